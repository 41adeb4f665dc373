//! Deliveries that were on the wire when their worker died: one of them may have killed it.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;
use shared::domain::delivery::DeadLetterClass;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{AtRisk, TAKE_OVER, Worker, World};

/// Long enough to see whether the next one waited for it.
const ALONE: Duration = Duration::from_secs(2);

/// The next owner sends them one at a time, and once they have killed nobody they are cleared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_the_wire_at_a_death_is_sent_alone_and_cleared() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(1).await;
    let mut deliveries = HashSet::new();
    for name in ["a", "b", "c"] {
        let endpoint = world.endpoint(name, json!({})).await;
        world
            .receiver
            .answers(&endpoint.path, &[Answer::never(), Answer::late(ALONE)]);
        deliveries.insert(world.publish(&endpoint).await);
    }
    listed(&world, &workers[0], deliveries.len()).await;
    workers.push(world.worker().await);

    workers[0].process.kill().await;
    let not_recorded = world.buried(workers[0].incarnation).await;
    assert_eq!(not_recorded.into_keys().collect::<HashSet<_>>(), deliveries);
    let sql = world.sql().await;
    let suspects = sql
        .query("SELECT delivery_id FROM suspects", &[])
        .await
        .unwrap();
    let suspects: HashSet<Uuid> = suspects.iter().map(|row| row.get(0)).collect();
    assert_eq!(suspects, deliveries);

    world.finished(&[]).await;
    let mut again: Vec<_> = world
        .receiver
        .all()
        .into_iter()
        .skip(deliveries.len())
        .collect();
    again.sort_unstable_by_key(|arrival| arrival.at);
    assert_eq!(again.len(), deliveries.len(), "each is sent once more");
    for pair in again.windows(2) {
        assert!(
            pair[0].answered.unwrap() <= pair[1].at,
            "two at a time: {pair:?}"
        );
    }
    no_suspects(&world).await;
}

/// A delivery that is on the wire at three deaths is a dead letter of class *internal*. The second
/// and the third death come at once, before any heartbeat could have listed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_the_wire_at_three_deaths_is_not_sent_again() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(1).await;
    let deadly = world.endpoint("deadly", json!({})).await;
    let harmless = world.endpoint("harmless", json!({})).await;
    world.receiver.answers(&deadly.path, &[Answer::never()]);
    let delivery = world.publish(&deadly).await;
    listed(&world, &workers[0], 1).await;

    for deaths in 1..=3 {
        workers.push(world.worker().await);
        let sent = || async { (world.receiver.at(&deadly.path).len() == deaths).then_some(()) };
        eventually(TAKE_OVER, sent).await;
        let owner = world.owner(deadly.slot).await;
        let sender = workers.iter().position(|it| it.incarnation == owner);
        workers.remove(sender.unwrap()).process.kill().await;
    }

    let sql = world.sql().await;
    let find = "SELECT class, attempts_made FROM dead_letters WHERE id = $1";
    let row = eventually(TAKE_OVER, || async {
        sql.query_opt(find, &[&delivery]).await.unwrap()
    });
    let row = row.await;
    assert_eq!(row.get::<_, i16>(0), DeadLetterClass::Internal.code());
    let other = world.publish(&harmless).await;
    let arrived = || async {
        world
            .receiver
            .all()
            .iter()
            .any(|it| it.delivery == other)
            .then_some(())
    };
    eventually(PATIENCE, arrived).await;
    world.finished(&[]).await;
    assert_eq!(world.receiver.at(&deadly.path).len(), 3, "requests");
    let mut at_risk = AtRisk::default();
    at_risk.add([(delivery, 1), (delivery, 2)]);
    at_risk.excuse(&world.receiver.all());
    no_suspects(&world).await;
}

/// Waits until the worker's heartbeat lists so many deliveries.
async fn listed(world: &World, worker: &Worker, count: usize) {
    let sql = world.sql().await;
    let listed = "SELECT cardinality(in_flight) FROM workers WHERE id = $1";
    eventually(PATIENCE, || async {
        let row = sql.query_one(listed, &[&worker.incarnation]).await.unwrap();
        (usize::try_from(row.get::<_, i32>(0)).unwrap() == count).then_some(())
    })
    .await;
}

async fn no_suspects(world: &World) {
    eventually(PATIENCE, || async {
        (world.count("SELECT count(*) FROM suspects").await == 0).then_some(())
    })
    .await;
}
