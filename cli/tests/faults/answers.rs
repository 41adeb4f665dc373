//! What a receiver answers decides what follows.

use std::time::Duration;

use serde_json::{Value, json};
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::testing::TestDatabase;
use uuid::Uuid;

use crate::receiver::Answer;
use crate::world::World;

/// The quickest ladder that the API takes.
fn quick(max_attempts: u16) -> Value {
    json!({ "max_attempts": max_attempts, "backoff": { "base_seconds": 1, "max_seconds": 1 } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_recovers_gets_the_third_attempt_of_the_same_event() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("busy", quick(5)).await;
    world.receiver.answers(
        "/busy",
        &[Answer::now(503), Answer::now(503), Answer::now(200)],
    );

    let delivery = world.publish(&endpoint).await;

    world.finished(&[]).await;
    let attempts: Vec<_> = world
        .receiver
        .at("/busy")
        .iter()
        .map(|it| it.attempt)
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
    let recorded = [
        (1, Some(503), None),
        (2, Some(503), None),
        (3, Some(200), Some(3)),
    ];
    assert_eq!(attempts_of(&world, delivery).await, recorded);
}

/// D4: an exhausted ladder ends in the class that tells the tenant what to look for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_not_there_is_a_dead_letter_of_a_misconfigured_endpoint() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("moved", quick(3)).await;
    world.receiver.answers("/moved", &[Answer::now(404)]);

    let delivery = world.publish(&endpoint).await;

    world.finished(&[]).await;
    assert_eq!(world.receiver.at("/moved").len(), 3);
    let dead = "SELECT class, status, attempts_made FROM dead_letters WHERE id = $1";
    let row = world
        .sql()
        .await
        .query_one(dead, &[&delivery])
        .await
        .unwrap();
    let found: (i16, Option<i16>, i16) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(found, (DeadLetterClass::Misconfigured.code(), Some(404), 3));
    let recorded = [
        (1, Some(404), None),
        (2, Some(404), None),
        (3, Some(404), Some(5)),
    ];
    assert_eq!(attempts_of(&world, delivery).await, recorded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_gone_disables_its_endpoint_and_what_waits_is_skipped() {
    const EVENTS: usize = 40;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let mut settings = quick(5);
    settings["max_in_flight"] = json!(1);
    let endpoint = world.endpoint("gone", settings).await;
    // The first is answered late, so that the others wait behind it.
    world
        .receiver
        .answers("/gone", &[Answer::late(Duration::from_secs(1)).status(410)]);

    for _ in 0..EVENTS {
        world.publish(&endpoint).await;
    }

    world.finished(&[]).await;
    let shown = world
        .ask(
            "GET",
            &format!("/v1/endpoints/{}", endpoint.id),
            &Value::Null,
        )
        .await;
    assert_eq!(shown["enabled"], false);
    let sql = world.sql().await;
    let rows = sql
        .query(
            "SELECT reason, count(*) FROM closed GROUP BY 1 ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let closed: Vec<(i16, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let sent = i64::try_from(world.receiver.at("/gone").len()).unwrap();
    let all = i64::try_from(EVENTS).unwrap();
    let wanted = [
        (CloseReason::EndpointDisabled.code(), all - sent),
        (CloseReason::Gone.code(), sent),
    ];
    assert_eq!(closed, wanted);
    assert_eq!(sent, 1, "requests after the first 410");
}

/// D5: the receiver's wish delays the next attempt, far beyond what the ladder would have; a 429 is
/// not charged, so one attempt is enough for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_asks_for_time_gets_it() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let later = world.endpoint("later", quick(2)).await;
    let slower = world.endpoint("slower", quick(1)).await;
    world.receiver.answers(
        "/later",
        &[Answer::now(503).with("retry-after: 4"), Answer::now(200)],
    );
    world.receiver.answers(
        "/slower",
        &[Answer::now(429).with("retry-after: 4"), Answer::now(200)],
    );

    let deliveries = [world.publish(&later).await, world.publish(&slower).await];

    world.finished(&[]).await;
    for (path, delivery) in [("/later", deliveries[0]), ("/slower", deliveries[1])] {
        let arrivals = world.receiver.at(path);
        assert_eq!(arrivals.len(), 2, "{path}");
        let waited = arrivals[1].at.since(arrivals[0].answered.unwrap());
        let wanted = Duration::from_secs(4)..Duration::from_secs(7);
        assert!(
            wanted.contains(&waited),
            "{path} was asked again after {waited:?}"
        );
        assert_eq!(
            attempts_of(&world, delivery).await[1],
            (2, Some(200), Some(3)),
            "{path}"
        );
    }
}

/// Number, HTTP status and final status of a delivery's attempts.
async fn attempts_of(world: &World, delivery: Uuid) -> Vec<(i16, Option<i16>, Option<i16>)> {
    let find = "SELECT no, status, final_status FROM attempts WHERE delivery_id = $1 ORDER BY no";
    let rows = world.sql().await.query(find, &[&delivery]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}
