//! Order per key through failures, a `kill -9`, a hand-over and dead letters, as the receiver sees it; and
//! what it costs (field report F56).

use std::time::Duration;

use serde_json::json;
use shared::ids::EventId;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::{Answer, Arrival};
use crate::world::World;

impl World {
    /// Publishes one event of this key; its id, once it was accepted.
    async fn publish_in_order(&self, endpoint: &Endpoint, key: &str) -> Uuid {
        let event = json!({ "type": endpoint.event_type, "payload": {}, "ordering_key": key });
        let reply = self.ask("POST", "/v1/events", &event).await;
        let id: EventId = reply["id"].as_str().unwrap().parse().unwrap();
        id.0
    }
}

/// The requests of these events, in the order of their arrival; a place for each in their line.
fn places(arrivals: &[Arrival], line: &[Uuid]) -> Vec<(usize, Arrival)> {
    let place = |arrival: &Arrival| line.iter().position(|event| *event == arrival.event);
    let arrivals = arrivals.iter();
    arrivals
        .filter_map(|arrival| Some((place(arrival)?, arrival.clone())))
        .collect()
}

/// Each event after the one before it was answered for good, none left out.
fn in_order(arrivals: &[Arrival], line: &[Uuid]) {
    let requests = places(arrivals, line);
    let mut next = 0;
    for pair in requests.windows(2) {
        let [(before, first), (after, second)] = pair else {
            continue;
        };
        assert!(
            after == before || *after == before + 1,
            "place {after} after {before}: {requests:#?}"
        );
        if after > before {
            assert_eq!(first.status, 200, "the one before had not succeeded");
        }
        // What a killed worker had on the wire may not have been answered to it.
        let answered = first.answered.unwrap_or(first.at);
        assert!(second.at >= answered, "two at once: {first:?} {second:?}");
        next = *after;
    }
    assert_eq!(next + 1, line.len(), "all of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_through_failures_a_kill_and_a_hand_over() {
    const KEYS: usize = 6;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut workers = world.workers(2).await;
    let settings = json!({
        "ordered": true,
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 1000 },
    });
    let mut endpoints = Vec::new();
    for number in 0..4 {
        let name = format!("line{number}");
        endpoints.push(world.endpoint(&name, settings.clone()).await);
        // Each delivery fails at first.
        let answers = [Answer::now(503), Answer::late(Duration::from_millis(20))];
        world.receiver.answers(&format!("/{name}"), &answers);
    }

    let mut lines = vec![Vec::new(); endpoints.len() * KEYS];
    for _ in 0..12 {
        for (number, line) in lines.iter_mut().enumerate() {
            let (endpoint, key) = (&endpoints[number / KEYS], number % KEYS);
            let event = world.publish_in_order(endpoint, &key.to_string()).await;
            line.push(event);
        }
    }
    eventually(PATIENCE, || async {
        (world.receiver.count() > 100).then_some(())
    })
    .await;
    workers[0].process.kill().await;
    let _third = world.worker().await;
    world.finished(&lines.concat()).await;

    for (number, line) in lines.iter().enumerate() {
        let endpoint = &endpoints[number / KEYS];
        in_order(&world.receiver.at(&endpoint.path), line);
    }
}

/// F56.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_goes_at_one_request_per_round_trip_and_keys_go_in_parallel() {
    const ROUND_TRIP: Duration = Duration::from_millis(300);
    const EACH: usize = 8;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("slow", json!({ "ordered": true })).await;
    world.receiver.answers("/slow", &[Answer::late(ROUND_TRIP)]);

    let mut lines = vec![Vec::new(); 5];
    for _ in 0..EACH {
        for (key, line) in lines.iter_mut().enumerate() {
            line.push(world.publish_in_order(&endpoint, &key.to_string()).await);
        }
    }
    world.finished(&lines.concat()).await;

    let arrivals = world.receiver.at("/slow");
    for line in &lines {
        in_order(&arrivals, line);
    }
    let (first, last) = (arrivals.first().unwrap(), arrivals.last().unwrap());
    let took = last.at.since(first.at);
    let one_after_the_other = ROUND_TRIP * u32::try_from(5 * EACH - 1).unwrap();
    eprintln!("5 keys with {EACH} events each, 300 ms each: {took:?}");
    assert!(took >= ROUND_TRIP * u32::try_from(EACH - 1).unwrap());
    assert!(took < one_after_the_other / 2, "keys wait for one another");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_releases_its_key_or_blocks_it_until_it_was_replayed() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    for (name, on_dead_letter) in [("releases", "release"), ("blocks", "block")] {
        let settings =
            json!({ "ordered": true, "on_dead_letter": on_dead_letter, "max_attempts": 1 });
        let endpoint = world.endpoint(name, settings).await;
        // Seen before the worker loads it, so that the first request is refused.
        world.receiver.answers(&endpoint.path, &[Answer::now(422)]);
        let dead = world.publish_in_order(&endpoint, "k").await;
        let died = format!(
            "SELECT count(*) FROM dead_letters WHERE event_id = '{dead}' AND order_key IS NOT NULL"
        );
        eventually(PATIENCE, || async {
            (world.count(&died).await == 1).then_some(())
        })
        .await;
        world.receiver.answers(&endpoint.path, &[Answer::now(200)]);
        let behind = world.publish_in_order(&endpoint, "k").await;
        let arrived = |event: Uuid| {
            let arrivals = world.receiver.at(&endpoint.path);
            arrivals.iter().any(|arrival| arrival.event == event)
        };
        // Two rounds of another key's: every scan and walk since would have found what may go.
        for _ in 0..2 {
            let other = world.publish_in_order(&endpoint, "other").await;
            eventually(PATIENCE, || {
                std::future::ready(arrived(other).then_some(()))
            })
            .await;
        }

        if on_dead_letter == "block" {
            let waits = format!("SELECT count(*) FROM ready_ordered WHERE event_id = '{behind}'");
            assert_eq!(world.count(&waits).await, 1);
            assert!(!arrived(behind), "it waits for the replay");
            let replayed =
                "UPDATE dead_letters SET replayed_as = gen_random_uuid() WHERE event_id = $1";
            world.sql().await.execute(replayed, &[&dead]).await.unwrap();
        }
        eventually(PATIENCE, || {
            std::future::ready(arrived(behind).then_some(()))
        })
        .await;
    }
}
