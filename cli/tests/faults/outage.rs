//! A receiver that is away for a while gets everything without a human (architecture §6), and one that
//! cannot take a single payload is not asked for ever.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

const LADDER: usize = 2;

/// Two attempts a second apart, a breaker that opens after four failures and asks again after a second:
/// the defaults' proportions in seconds instead of minutes.
fn settings() -> Value {
    json!({
        "max_attempts": LADDER,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 4, "cooldown_seconds": 1, "max_cooldown_seconds": 4 },
    })
}

/// F42, F46: down, or answering 404 as in a deploy, for longer than any ladder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_was_away_gets_every_event_of_the_outage_without_a_human() {
    for status in [503, 404] {
        let database = TestDatabase::new().await;
        let world = World::start(database.url(), database.database()).await;
        let _workers = world.workers(1).await;
        let endpoint = world.endpoint("away", settings()).await;
        world.receiver.answers("/away", &[Answer::now(status)]);
        let poster = world.post(20, std::slice::from_ref(&endpoint));

        let opened = "SELECT count(*) FROM endpoint_runtime WHERE breaker <> 0";
        eventually(PATIENCE, || async {
            (world.count(opened).await == 1).then_some(())
        })
        .await;
        // Long enough for ladders to end: what was tried before the breaker opened, and what probed.
        let dead = "SELECT count(*) FROM dead_letters WHERE kind = 0";
        eventually(PATIENCE, || async {
            (world.count(dead).await >= 2).then_some(())
        })
        .await;
        let while_down = world.receiver.count();
        world.receiver.answers("/away", &[Answer::now(200)]);
        let back = boot_time();
        let accepted = poster.stop().await.all_accepted();

        all_delivered(&world, &accepted).await;
        let recovered = boot_time().since(back);
        world.finished(&accepted).await;
        let closed =
            "SELECT count(*) FROM endpoint_runtime WHERE breaker = 0 AND recover_until IS NULL";
        eventually(PATIENCE, || async {
            (world.count(closed).await == 1).then_some(())
        })
        .await;
        eprintln!(
            "{status}: {} events, {while_down} requests while away, all delivered {recovered:?} after it was back",
            accepted.len()
        );
    }
}

/// One event, nothing else: its exhausted ladder opens the breaker, the probe is itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_event_of_a_quiet_endpoint_survives_an_outage_too() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("quiet", settings()).await;
    world.receiver.answers("/quiet", &[Answer::now(503)]);

    world.publish(&endpoint).await;
    let probed = || async { (world.receiver.at("/quiet").len() > LADDER).then_some(()) };
    eventually(PATIENCE, probed).await;
    world.receiver.answers("/quiet", &[Answer::now(200)]);

    let event = world.receiver.at("/quiet")[0].event;
    all_delivered(&world, &[event]).await;
    world.finished(&[event]).await;
}

/// An owner that is killed after it recorded the dead letter and before it could store that the breaker
/// opened leaves an outage that the next owner finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_whose_owner_was_killed_is_not_forgotten() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(1).await;
    let endpoint = world.endpoint("quiet", settings()).await;
    world.receiver.answers("/quiet", &[Answer::now(503)]);
    world.publish(&endpoint).await;
    let dead = "SELECT count(*) FROM dead_letters WHERE kind = 0";
    eventually(PATIENCE, || async {
        (world.count(dead).await == 1).then_some(())
    })
    .await;

    workers[0].process.kill().await;
    // As if it had been killed a moment earlier.
    let sql = world.sql().await;
    sql.execute("DELETE FROM endpoint_runtime", &[])
        .await
        .unwrap();
    world.receiver.answers("/quiet", &[Answer::now(200)]);
    workers.push(world.worker().await);

    let event = world.receiver.at("/quiet")[0].event;
    all_delivered(&world, &[event]).await;
}

/// F37 and review 21: one payload that the receiver always fails on, beside traffic that is well. It is
/// tried at most twice the ladder, and opens nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_always_fails_gets_at_most_two_ladders() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("picky", settings()).await;
    let (bad, _) = event(&world, &endpoint).await;
    world.receiver.refuses(bad);
    // The endpoint has an outage of its own beside it, so that recovery comes across the bad one.
    world.receiver.answers("/picky", &[Answer::now(503)]);
    let poster = world.post(20, std::slice::from_ref(&endpoint));
    let opened = "SELECT count(*) FROM endpoint_runtime WHERE breaker <> 0";
    eventually(PATIENCE, || async {
        (world.count(opened).await == 1).then_some(())
    })
    .await;
    world.receiver.answers("/picky", &[Answer::now(200)]);
    let accepted = poster.stop().await.all_accepted();
    let good: Vec<Uuid> = accepted.into_iter().filter(|id| *id != bad).collect();

    all_delivered(&world, &good).await;
    // Its replay has ended as well: nothing is live, and nothing is left to replay.
    let over = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM retry)
        + (SELECT count(*) FROM endpoint_runtime WHERE recover_until IS NOT NULL)";
    eventually(PATIENCE, || async {
        (world.count(over).await == 0).then_some(())
    })
    .await;
    let tries = world.receiver.all();
    let tries = tries.iter().filter(|it| it.event == bad).count();
    assert!(
        (LADDER..=2 * LADDER).contains(&tries),
        "the bad payload was sent {tries} times"
    );
}

/// While a breaker is open, what waits behind it costs no request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_probes_reaches_a_receiver_that_is_down() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let mut settings = settings();
    settings["breaker"] =
        json!({ "failures": 4, "cooldown_seconds": 2, "max_cooldown_seconds": 2 });
    let endpoint = world.endpoint("down", settings).await;
    world.receiver.answers("/down", &[Answer::now(503)]);
    let poster = world.post(50, std::slice::from_ref(&endpoint));
    let opened = "SELECT count(*) FROM endpoint_runtime WHERE breaker <> 0";
    eventually(PATIENCE, || async {
        (world.count(opened).await == 1).then_some(())
    })
    .await;

    let before = world.receiver.count();
    let began = boot_time();
    let probes = || async { (world.receiver.count() >= before + 3).then_some(()) };
    eventually(PATIENCE, probes).await;
    let length = boot_time().since(began);
    poster.stop().await.all_accepted();

    assert!(
        length >= Duration::from_secs(4),
        "three probes within {length:?}: one every two seconds"
    );
}

async fn event(world: &World, endpoint: &Endpoint) -> (Uuid, Uuid) {
    let delivery = world.publish(endpoint).await;
    let find = "SELECT id FROM events WHERE $1 = ANY (fan_delivery)";
    let row = world.sql().await.query_one(find, &[&delivery]).await;
    (row.unwrap().get(0), delivery)
}

/// Waits until each of these events was answered 2xx.
async fn all_delivered(world: &World, events: &[Uuid]) {
    eventually(PATIENCE, || async {
        let arrivals = world.receiver.all();
        let delivered: HashSet<Uuid> = arrivals
            .iter()
            .filter(|it| it.status == 200)
            .map(|it| it.event)
            .collect();
        events.iter().all(|id| delivered.contains(id)).then_some(())
    })
    .await;
}
