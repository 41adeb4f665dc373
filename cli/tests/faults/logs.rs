//! The log follows one delivery from the request to its end, by ids, and carries nothing of what it carries.

use load_tests::client::request_with;
use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use crate::process::{PATIENCE, Process, read};
use crate::receiver::Answer;
use crate::world::World;

/// The lines with this message about this event.
fn about(process: &Process, event: &Value, message: &str) -> Vec<Value> {
    let log = process.log();
    let lines = log.lines().filter_map(read);
    lines
        .filter(|line| line["message"] == message && line["event.id"] == *event)
        .collect()
}

/// S2 and the guide in docs/logs.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_the_log_follows_a_delivery_by_its_ids_and_shows_nothing_that_it_carries() {
    let database = TestDatabase::new().await;
    let all = [("RUST_LOG", "debug".to_owned())];
    let world = World::start_with(database.url(), database.database(), &all, &[]).await;
    let secret = json!({ "headers": { "X-Shop": "a-header-of-the-tenant" } });
    let endpoint = world.endpoint("refusing", secret).await;
    let other = world.endpoint("fine", json!({})).await;
    world.receiver.answers(
        &endpoint.path,
        &[Answer::now(422).body(*b"the-receivers-words")],
    );
    let worker = world.worker().await;
    let api = &world.api_process;

    let mut events = Vec::new();
    for endpoint in [&endpoint, &other] {
        let body = json!({ "type": endpoint.event_type, "payload": { "name": "a-persons-name" } });
        let headers = [("x-request-id", "req-17")];
        let request = request_with(
            ("POST", "/v1/events"),
            Some(&world.key),
            &headers,
            body.to_string().as_bytes(),
        );
        let (status, reply) = world.exchange(&request).await;
        assert_eq!(status, 202, "{reply}");
        events.push(serde_json::from_str::<Value>(&reply).unwrap());
    }
    let (given_up, delivered) = (&events[0], &events[1]);
    eventually(PATIENCE, || async {
        let ended = about(&worker.process, &given_up["id"], "a delivery was given up").len()
            + about(&worker.process, &delivered["id"], "an attempt succeeded").len();
        (ended == 2).then_some(())
    })
    .await;

    for event in &events {
        let accepted = about(api, &event["id"], "an event was accepted");
        assert_eq!(accepted.len(), 1, "{accepted:?}");
        assert_eq!(accepted[0]["level"], "DEBUG");
        assert_eq!(accepted[0]["request.id"], "req-17");
        assert_eq!(accepted[0]["deliveries"], 1);
    }
    let succeeded = about(&worker.process, &delivered["id"], "an attempt succeeded");
    assert_eq!(succeeded[0]["level"], "DEBUG");
    assert_eq!(succeeded[0]["endpoint.id"], other.id.as_str());
    let failed = about(&worker.process, &given_up["id"], "an attempt failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0]["endpoint.id"], endpoint.id.as_str());
    assert_eq!(failed[0]["attempt.number"], 1);
    assert_eq!(failed[0]["status"], 422);
    let ended = about(&worker.process, &given_up["id"], "a delivery was given up");
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended[0]["level"], "INFO");
    assert_eq!(ended[0]["class"], "permanent");
    assert_eq!(ended[0]["endpoint.key"], endpoint.key);
    for line in failed.iter().chain(&ended) {
        assert_eq!(line["delivery.id"], given_up["deliveries"][0]["id"]);
    }
    let everything = api.log() + &worker.process.log();
    for kept in [
        "a-persons-name",
        "a-header-of-the-tenant",
        "the-receivers-words",
        world.key.as_str(),
        endpoint.secret.as_str(),
    ] {
        assert!(!everything.contains(kept), "{kept} is in the log");
    }
}
