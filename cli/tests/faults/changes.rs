//! What a tenant changes takes effect within two seconds of the API's reply, and loses nothing.

use std::time::Duration;

use serde_json::{Value, json};
use shared::domain::delivery::{CloseReason, Status};
use shared::ids::DeliveryId;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{AtRisk, World};

/// The contract: no attempt starts later than this after the reply.
const IN_FORCE: Duration = Duration::from_secs(2);
const PENDING: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_an_endpoint_that_is_disabled_is_skipped() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = backlog(&world).await;

    world
        .ask(
            "POST",
            &format!("/v1/endpoints/{}/disable", endpoint.id),
            &Value::Null,
        )
        .await;

    all_closed(&world, &endpoint, CloseReason::EndpointDisabled).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_an_endpoint_that_is_deleted_is_cancelled() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = backlog(&world).await;

    world
        .ask(
            "DELETE",
            &format!("/v1/endpoints/{}", endpoint.id),
            &Value::Null,
        )
        .await;

    all_closed(&world, &endpoint, CloseReason::EndpointDeleted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_url_takes_the_deliveries_over() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let endpoint = world.endpoint("old", json!({})).await;
    let poster = world.post(100, std::slice::from_ref(&endpoint));
    let begun = || async { (world.receiver.at("/old").len() > 20).then_some(()) };
    eventually(PATIENCE, begun).await;

    let url = json!({ "url": world.receiver.url("/new") });
    world
        .ask("PATCH", &format!("/v1/endpoints/{}", endpoint.id), &url)
        .await;
    let replied = boot_time();

    let moved = || async { (world.receiver.at("/new").len() > 20).then_some(()) };
    eventually(PATIENCE, moved).await;
    let accepted = poster.stop().await.all_accepted();
    world.finished(&accepted).await;
    assert_eq!(
        AtRisk::default().excuse(&world.receiver.all()),
        0,
        "repetitions"
    );
    let last = world.receiver.at("/old").last().unwrap().at.since(replied);
    let first = world.receiver.at("/new")[0].at.since(replied);
    assert!(
        last <= IN_FORCE && first <= IN_FORCE,
        "old until {last:?}, new from {first:?}"
    );
    eprintln!("after the reply: old until {last:?}, new from {first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_waits_for_an_hour_is_retried_now() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let rare = json!({ "backoff": { "base_seconds": 3600, "max_seconds": 86_400 } });
    let endpoint = world.endpoint("down", rare).await;
    world
        .receiver
        .answers(&endpoint.path, &[Answer::now(503), Answer::now(200)]);
    let delivery = world.publish(&endpoint).await;
    let waits = || async { (world.count("SELECT count(*) FROM retry").await == 1).then_some(()) };
    eventually(PATIENCE, waits).await;

    world
        .ask(
            "POST",
            &format!("/v1/deliveries/{}/retry", DeliveryId(delivery)),
            &Value::Null,
        )
        .await;
    let replied = boot_time();

    world.finished(&[]).await;
    let arrivals = world.receiver.at(&endpoint.path);
    assert_eq!(
        arrivals.iter().map(|it| it.attempt).collect::<Vec<_>>(),
        [1, 2]
    );
    let waited = arrivals[1].at.since(replied);
    assert!(waited <= IN_FORCE, "sent {waited:?} after the reply");
}

/// An endpoint that takes two deliveries a second, with 200 of them waiting and two on the wire.
async fn backlog(world: &World) -> Endpoint {
    let endpoint = world.endpoint("slow", json!({ "max_in_flight": 2 })).await;
    world
        .receiver
        .answers(&endpoint.path, &[Answer::late(Duration::from_secs(1))]);
    for _ in 0..PENDING {
        world.publish(&endpoint).await;
    }
    eventually(PATIENCE, || async {
        (world.receiver.open(|_| true) == 2).then_some(())
    })
    .await;
    endpoint
}

/// What was on the wire is delivered, everything else closed for this reason, and what is posted
/// afterwards is not sent.
async fn all_closed(world: &World, endpoint: &Endpoint, reason: CloseReason) {
    let replied = boot_time();
    world.finished(&[]).await;
    let arrivals = world.receiver.at(&endpoint.path);
    let last = arrivals.last().unwrap().at.since(replied);
    assert!(
        last <= IN_FORCE,
        "a request started {last:?} after the reply"
    );
    let sql = world.sql().await;
    let closed =
        "SELECT count(*) FROM closed WHERE endpoint_id = $1 AND status = $2 AND reason = $3";
    let status: Status = reason.status();
    let row = sql
        .query_one(closed, &[&endpoint.key, &status.code(), &reason.code()])
        .await
        .unwrap();
    let closed = usize::try_from(row.get::<_, i64>(0)).unwrap();
    assert_eq!(
        closed,
        PENDING - arrivals.len(),
        "closed as {}",
        reason.name()
    );
    let delivered = "SELECT count(*) FROM attempts WHERE applied AND final_status = 3";
    assert_eq!(
        usize::try_from(world.count(delivered).await).unwrap(),
        arrivals.len()
    );
    eprintln!(
        "{closed} closed, {} sent, the last {last:?} after the reply",
        arrivals.len()
    );
}
