//! The API dies between a request and its answer: whoever asks again with the same key gets what was done, and what
//! was not done is done once (field reports F81 (a), F87).

use std::net::SocketAddr;

use load_tests::client::{self, Connection};
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::TestDatabase;

use super::{dies_at, has_died};
use crate::poster::Posted;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

const EVENTS: &str = "SELECT count(*) FROM events";
const ENDPOINTS: &str = "SELECT count(*) FROM endpoints";

/// D1, D2: before the commit there is neither event nor key, after it there are both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_answer_was_lost_is_there_once_however_often_it_is_posted() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("asked", json!({})).await;
    let mut report = Report::of("API: SIGKILL before and after the commit of an event");
    let mut events = 0;
    for round in 0..short_or_long(1, 5) {
        for (point, stored) in [("api.ingest_writing", 0), ("api.ingest_written", 1)] {
            for key in ["Idempotency-Key", "external_id"] {
                let mut event = json!({ "type": endpoint.event_type, "payload": { "order": 1 } });
                let name = format!("{point}-{round}");
                let headers: &[(&str, &str)] = if key == "external_id" {
                    event["external_id"] = json!(name);
                    &[]
                } else {
                    &[("idempotency-key", &name)]
                };
                let ask = ("POST", "/v1/events");
                let body = event.to_string();
                let request = client::request_with(ask, Some(&world.key), headers, body.as_bytes());
                let died = dies_of(&world, point, &request).await;
                assert_eq!(world.count(EVENTS).await, events + stored, "{point} {key}");

                let first = accepted(world.api, &request).await;
                report.recovered(boot_time().since(died));
                let second = accepted(world.api, &request).await;
                events += 1;
                assert_eq!(first, second, "{point} {key}");
                assert_eq!(world.count(EVENTS).await, events, "{point} {key}");
            }
        }
    }
    let posted = Posted::from(world.events().await);
    report.note("asked again at another API with the same key; recovered: the answer is there");
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// Every other POST claims its key, does its work and keeps its answer, in this order; between these it dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_whose_answer_was_lost_is_answered_or_done_again_when_its_claim_has_ended() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let body = json!({ "url": "http://127.0.0.1:8099/", "event_types": ["a"] }).to_string();
    for (point, done, done_again) in [
        ("api.key_claimed", 0, 1),
        // That it was done is not known: the key runs again, as the module says.
        ("api.key_worked", 1, 1),
        ("api.key_kept", 1, 0),
    ] {
        let before = world.count(ENDPOINTS).await;
        let ask = ("POST", "/v1/endpoints");
        let key = [("idempotency-key", point)];
        let request = client::request_with(ask, Some(&world.key), &key, body.as_bytes());
        dies_of(&world, point, &request).await;
        assert_eq!(world.count(ENDPOINTS).await, before + done, "{point}");

        if done_again == 1 {
            let (status, text) = world.exchange(&request).await;
            assert_eq!(
                status, 409,
                "{point}: while it may still be running: {text}"
            );
            // The claim's life, which is less than a minute, is over.
            let end = "UPDATE idempotency_keys SET expires_at = now() WHERE claim IS NOT NULL";
            world.sql().await.batch_execute(end).await.unwrap();
        }
        let (status, first) = world.exchange(&request).await;
        assert_eq!(status, 201, "{point}: {first}");
        assert_eq!(world.exchange(&request).await, (201, first), "{point}");
        assert_eq!(
            world.count(ENDPOINTS).await,
            before + done + done_again,
            "{point}"
        );
    }
}

/// Asks an API process of its own, which dies of it.
async fn dies_of(world: &World, point: &str, request: &[u8]) -> shared::runtime::clock::BootTime {
    let (mut process, addr) = world.another_api(&[dies_at(point, 1)]).await;
    let mut connection = Connection::open(addr).await.unwrap();
    let answer = connection.exchange(request).await;
    assert!(
        answer.is_err(),
        "{point}: it answered {:?}",
        answer.map(|it| it.status)
    );
    has_died(&mut process).await;
    boot_time()
}

async fn accepted(api: SocketAddr, request: &[u8]) -> Value {
    let mut connection = Connection::open(api).await.unwrap();
    let reply = connection.exchange(request).await.unwrap();
    let text = String::from_utf8_lossy(reply.body).into_owned();
    assert_eq!(reply.status, 202, "{text}");
    let reply: Value = serde_json::from_str(&text).unwrap();
    reply["id"].clone()
}
