//! `postrider pause`: an operator holds deliveries back by rule, without SQL, and lets them go (field
//! report F36).

use std::process::Command;

use serde_json::json;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::world::{TAKE_OVER, World};

/// Runs `postrider pause` on this database.
fn pause(database: &TestDatabase, args: &[&str]) {
    let run = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .arg("pause")
        .args(args)
        .env("DATABASE_URL", database.url())
        .output()
        .unwrap();
    assert!(run.status.success(), "{args:?}: {run:?}");
}

async fn publish(world: &World, endpoint: &Endpoint, count: usize) {
    for _ in 0..count {
        world.publish(endpoint).await;
    }
}

/// Until so many requests have come for this endpoint.
async fn arrive(world: &World, endpoint: &Endpoint, count: usize) {
    eventually(PATIENCE, || async {
        (world.receiver.count_at(&endpoint.path) == count).then_some(())
    })
    .await;
}

const PARKED: &str = "SELECT count(*) FROM ready WHERE slot < 0";

async fn waits_until(world: &World, sql: &str, count: usize) {
    let count = i64::try_from(count).unwrap();
    eventually(PATIENCE, || async {
        (world.count(sql).await == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_type_is_held_back_through_a_crash_while_others_go_and_then_goes_once() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut first = world.worker().await;
    world.all_slots_owned(TAKE_OVER).await;
    let (report, order) = (
        world.endpoint("report", json!({})).await,
        world.endpoint("order", json!({})).await,
    );

    let rule = ["--event-type", "report"];
    pause(
        &database,
        &[&["start", "--reason", "wrong totals"], &rule[..]].concat(),
    );
    // The worker looks every second: what it sent before it knew is not held back.
    let mut before = 0;
    loop {
        publish(&world, &report, 1).await;
        let ended = eventually(PATIENCE, || async {
            let parked = world.count(PARKED).await;
            let arrived = world.receiver.count_at(&report.path);
            (parked == 1 || arrived > before).then_some(parked)
        });
        if ended.await == 1 {
            break;
        }
        before += 1;
    }
    publish(&world, &report, 20).await;
    publish(&world, &order, 20).await;
    arrive(&world, &order, 20).await;
    waits_until(&world, PARKED, 21).await;

    first.process.kill().await;
    let _second = world.worker().await;
    world.all_slots_owned(TAKE_OVER).await;
    publish(&world, &report, 1).await;
    waits_until(&world, PARKED, 22).await;
    assert_eq!(world.receiver.count_at(&report.path), before);

    pause(&database, &[&["end"], &rule[..]].concat());
    arrive(&world, &report, before + 22).await;
    world.finished(&[]).await;
    world.each_delivery_in_one_place().await;
    let again = "SELECT count(*) FROM attempts WHERE no > 1";
    assert_eq!(world.count(again).await, 0, "holding back is no attempt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_tenant_is_held_back_at_its_gates_and_moves_no_row() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let find = "SELECT public_id FROM tenants";
    let tenant: Uuid = world.sql().await.query_one(find, &[]).await.unwrap().get(0);
    let tenant = shared::ids::TenantId(tenant).to_string();
    let endpoint = world.endpoint("order", json!({})).await;
    let rule = ["--tenant", tenant.as_str()];
    pause(
        &database,
        &[&["start", "--reason", "a flood"], &rule[..]].concat(),
    );
    // It was there before the worker: not even one request goes.
    let _worker = world.worker().await;
    world.all_slots_owned(TAKE_OVER).await;

    publish(&world, &endpoint, 10).await;
    let deferred = "SELECT count(*) FROM ready WHERE slot >= 0";
    waits_until(&world, deferred, 10).await;
    pause(&database, &["list"]);
    assert_eq!(world.receiver.count_at(&endpoint.path), 0);

    pause(&database, &[&["end"], &rule[..]].concat());
    arrive(&world, &endpoint, 10).await;
    world.finished(&[]).await;
    world.each_delivery_in_one_place().await;
}
