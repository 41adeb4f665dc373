//! What is expunged or deleted while workers run: nothing of it is sent any more, and it is gone.

use load_tests::client;
use serde_json::{Value, json};
use shared::domain::delivery::CloseReason;
use shared::ids::{DeliveryId, TenantId};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{ADMIN_TOKEN, World};

/// A delivery that was tried once, in vain, and waits for its next attempt.
async fn waiting(world: &World, endpoint: &Endpoint) -> Uuid {
    let delivery = world.publish(endpoint).await;
    let query = format!("SELECT count(*) FROM retry WHERE id = '{delivery}'");
    eventually(PATIENCE, || async {
        (world.count(&query).await == 1).then_some(())
    })
    .await;
    delivery
}

/// Whether it was closed because of an expunged payload.
async fn expunged(world: &World, delivery: Uuid) -> Option<()> {
    let (status, reason) = (
        CloseReason::Expunged.status().code(),
        CloseReason::Expunged.code(),
    );
    let query = format!(
        "SELECT count(*) FROM closed WHERE id = '{delivery}' AND status = {status} AND reason = {reason}"
    );
    (world.count(&query).await == 1).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expunged_event_is_never_sent_again_and_an_empty_body_never_at_all() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let endpoint = world.endpoint("expunged", json!({})).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(500)]);
    let (asked, met) = (
        waiting(&world, &endpoint).await,
        waiting(&world, &endpoint).await,
    );
    let tried = world.receiver.count_at(&endpoint.path);

    // One whose removal is asked for.
    let shown = world
        .ask(
            "GET",
            &format!("/v1/deliveries/{}", DeliveryId(asked)),
            &Value::Null,
        )
        .await;
    let event = shown["event_id"].as_str().unwrap().to_owned();
    world
        .ask(
            "DELETE",
            &format!("/v1/events/{event}/payload"),
            &Value::Null,
        )
        .await;
    eventually(PATIENCE, || expunged(&world, asked)).await;
    // One whose payload is gone when a worker loads it.
    let emptied = "UPDATE events SET payload = '' WHERE octet_length(payload) > 0";
    assert_eq!(world.sql().await.execute(emptied, &[]).await.unwrap(), 1);
    world
        .ask(
            "POST",
            &format!("/v1/deliveries/{}/retry", DeliveryId(met)),
            &Value::Null,
        )
        .await;
    eventually(PATIENCE, || expunged(&world, met)).await;

    assert_eq!(world.receiver.count_at(&endpoint.path), tried);
    world.each_delivery_in_one_place().await;
    let dead = world.count("SELECT count(*) FROM dead_letters").await;
    assert_eq!(dead, 0, "nothing of it pages an operator");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_to_a_test_is_not_given_again_when_its_event_was_expunged() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let endpoint = world.endpoint("echo", json!({})).await;
    let echo = Answer::now(400).body(b"you said: needle".to_vec());
    world.receiver.answers(&endpoint.path, &[echo]);
    let path = format!("/v1/endpoints/{}/test", endpoint.id);
    let headers = [("Idempotency-Key", "once")];
    let post = client::request_with(("POST", &path), Some(&world.key), &headers, b"{}");

    let (status, first) = world.exchange(&post).await;
    assert_eq!(status, 200, "{first}");
    assert!(first.contains("needle"), "{first}");
    assert_eq!(world.exchange(&post).await, (200, first.clone()));
    let first: Value = serde_json::from_str(&first).unwrap();
    let payload = format!("/v1/events/{}/payload", first["event_id"].as_str().unwrap());
    world.ask("DELETE", &payload, &Value::Null).await;

    // At once: it is not left to the job.
    let (status, again) = world.exchange(&post).await;
    assert_eq!(status, 409, "{again}");
    assert!(
        again.contains("expunged") && !again.contains("needle"),
        "{again}"
    );
    assert_eq!(
        world.receiver.count_at(&endpoint.path),
        1,
        "it was carried out once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_removes_a_deleted_tenant_and_delivers_the_others_meanwhile() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let endpoint = world.endpoint("gone", json!({})).await;
    world.receiver.answers(&endpoint.path, &[Answer::now(500)]);
    waiting(&world, &endpoint).await;
    let tenant: Uuid = {
        let query = "SELECT t.public_id FROM tenants t JOIN endpoints e ON e.tenant_id = t.id WHERE e.id = $1";
        let row = world.sql().await.query_one(query, &[&endpoint.key]).await;
        row.unwrap().get(0)
    };

    let path = format!("/v1/admin/tenants/{}", TenantId(tenant));
    let (status, body) = world
        .ask_as(Some(ADMIN_TOKEN), ("DELETE", &path), b"")
        .await;
    assert_eq!(status, 202, "{body}");
    // The owner closes what waits as soon as it hears of it.
    eventually(PATIENCE, || async {
        (world.count("SELECT count(*) FROM retry").await == 0).then_some(())
    })
    .await;
    // The minute for what was under way is not waited for here.
    eventually(PATIENCE, || async {
        let hurry = "UPDATE removals SET not_before = now() WHERE step > 0 AND not_before > now() + interval '2 s'";
        world.sql().await.execute(hurry, &[]).await.unwrap();
        let query = "SELECT count(*) FROM removals WHERE finished_at IS NOT NULL";
        (world.count(query).await == 1).then_some(())
    })
    .await;

    for table in [
        "tenants",
        "endpoints",
        "events",
        "attempts",
        "closed",
        "api_keys",
        "endpoint_secrets",
    ] {
        let left = world.count(&format!("SELECT count(*) FROM {table}")).await;
        assert_eq!(left, 0, "{table}");
    }
}
