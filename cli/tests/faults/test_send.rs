//! Test sends through the whole product: somebody asks, and is told what the receiver answered.

use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

async fn test(world: &World, endpoint: &Endpoint, body: &Value) -> (u16, Value) {
    test_raw(world, endpoint, &body.to_string()).await
}

async fn test_raw(world: &World, endpoint: &Endpoint, body: &str) -> (u16, Value) {
    let path = format!("/v1/endpoints/{}/test", endpoint.id);
    let (status, reply) = world
        .ask_as(Some(&world.key), ("POST", &path), body.as_bytes())
        .await;
    (status, serde_json::from_str(&reply).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_is_sent_now_and_answers_with_its_attempt() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let well = world.endpoint("well", json!({})).await;
    let ill = world.endpoint("ill", json!({})).await;
    let url = world.receiver.url("/pb?click={order.click_id}");
    let postback = json!({ "kind": "postback", "url": url });
    let postback = world.endpoint("postback", postback).await;
    let refusal = Answer::now(503).body(b"not today".to_vec());
    world.receiver.answers(&ill.path, &[refusal]);

    let (status, attempt) = test(&world, &well, &json!({"payload": {"hello": 1}})).await;
    assert_eq!((status, &attempt["status_code"]), (200, &json!(200)));
    assert_eq!(attempt["outcome"], "delivered");
    let arrived = world.receiver.at(&well.path);
    assert_eq!(arrived[0].request.body(), br#"{"hello":1}"#);
    let event_type = arrived[0].request.header("postrider-event-type");
    assert_eq!(event_type.as_deref(), Some("postrider.test"));

    let (status, attempt) = test(&world, &postback, &json!({})).await;
    assert_eq!((status, &attempt["outcome"]), (200, &json!("delivered")));
    assert_eq!(world.receiver.count_at("/pb?click=test"), 1);

    // P1: as it was written, also what parsers do not agree on.
    for payload in [
        r#"{"z" : 1, "a": 12345678901234567890123, "m": 1.50, "e": 1e400}"#,
        r#"{"a": "\ud800", "a": "\u0000"}"#,
        "[ [ ], -0 ]",
    ] {
        let (status, attempt) =
            test_raw(&world, &well, &format!(r#"{{"payload": {payload}}}"#)).await;
        assert_eq!((status, &attempt["outcome"]), (200, &json!("delivered")));
        let arrived = world.receiver.at(&well.path);
        assert_eq!(arrived.last().unwrap().request.body(), payload.as_bytes());
    }
    let deep = "[".repeat(129) + &"]".repeat(129);
    for (wrong, pointer) in [
        (format!(r#"{{"payload": {deep}}}"#), "/payload"),
        (r#"{"payload": 1, "payloads": 2}"#.to_owned(), "/payloads"),
        ("[1]".to_owned(), ""),
    ] {
        let (status, problem) = test_raw(&world, &well, &wrong).await;
        assert_eq!(
            (status, &problem["errors"][0]["pointer"]),
            (422, &json!(pointer)),
            "{problem}"
        );
    }

    // One attempt, whatever comes of it, and nobody is alarmed.
    let (status, attempt) = test(&world, &ill, &json!({})).await;
    assert_eq!((status, &attempt["status_code"]), (200, &json!(503)));
    assert_eq!(attempt["response"], "not today");
    assert_eq!(attempt["final_status"], "cancelled");
    world.finished(&[]).await;
    let path = format!(
        "/v1/deliveries/{}",
        attempt["delivery_id"].as_str().unwrap()
    );
    let shown = world.ask("GET", &path, &Value::Null).await;
    assert_eq!(shown["status"], "cancelled");
    assert_eq!(shown["close_reason"], "test_failed");
    assert_eq!(world.count("SELECT count(*) FROM dead_letters").await, 0);
    assert_eq!(world.receiver.count_at(&ill.path), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_that_cannot_be_sent_now_says_what_holds_it_back() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let settings = json!({ "timeout_ms": 500, "max_attempts": 1, "breaker": { "failures": 1, "cooldown_seconds": 600 } });
    let endpoint = world.endpoint("open", settings).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(500)]);
    world.publish(&endpoint).await;
    let health = format!("/v1/endpoints/{}/health", endpoint.id);
    eventually(PATIENCE, || async {
        let health = world.ask("GET", &health, &Value::Null).await;
        (health["state"] == "open").then_some(())
    })
    .await;

    let (status, waits) = test(&world, &endpoint, &json!({})).await;
    assert_eq!(status, 202, "{waits}");
    assert!(waits["detail"].as_str().unwrap().contains("breaker"));

    let disable = format!("/v1/endpoints/{}/disable", endpoint.id);
    world.ask("POST", &disable, &Value::Null).await;
    let (status, problem) = test(&world, &endpoint, &json!({})).await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("enable"));
}
