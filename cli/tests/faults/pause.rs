//! A worker that stands still past its lease with requests on the wire, and wakes up.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::{AtRisk, TAKE_OVER, World};

/// D3: nothing that it does after it wakes counts, and it sends nothing under its old lease. The slow
/// endpoints have rows loaded and waiting in its memory, which it would send if it could.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a_worker_that_wakes_after_its_lease_changes_nothing_and_joins_again() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    for (number, slow) in endpoints.iter().enumerate().filter(|(number, _)| number % 8 == 0) {
        world.receiver.answers(&slow.path, &[Answer::late(Duration::from_millis(1_500))]);
        let path = format!("/v1/endpoints/{}", endpoints[number].id);
        world.ask("PATCH", &path, &json!({ "max_in_flight": 1 })).await;
    }
    let mut workers = world.workers(2).await;
    let poster = world.post(100, &endpoints);

    let slots = world.slots_of(workers[0].incarnation).await;
    let theirs: HashSet<_> = endpoints.iter().filter(|it| slots.contains(&it.slot)).map(|it| &it.path).collect();
    eventually(PATIENCE, || async {
        let open = world.receiver.open(|arrival| theirs.contains(&arrival.path));
        (open >= 5).then_some(())
    })
    .await;
    workers[0].process.signal(Signal::STOP);
    let not_recorded = world.buried(workers[0].incarnation).await;
    assert!(!not_recorded.is_empty(), "nothing was on the wire");
    world.all_slots_owned(TAKE_OVER).await;
    let on_the_wire: Vec<Uuid> = not_recorded.iter().copied().collect();
    all_ended(&world, &on_the_wire).await;
    let ends = ends(&world, &on_the_wire).await;

    workers[0].process.signal(Signal::CONT);
    let reborn = workers[0].process.joined(2).await;
    assert_ne!(reborn, workers[0].incarnation);
    // It has woken up and read the answers that had come meanwhile: what it records is kept apart.
    eventually(PATIENCE, || async {
        (world.count("SELECT count(*) FROM attempts WHERE NOT applied").await > 0).then_some(())
    })
    .await;
    eventually(PATIENCE, || async { (!world.slots_of(reborn).await.is_empty()).then_some(()) }).await;

    // It works again: an event for a slot of its new life is delivered, by nobody else.
    let slot = *world.slots_of(reborn).await.iter().next().unwrap();
    let mine = endpoints.iter().find(|endpoint| endpoint.slot == slot).unwrap();
    let delivery = world.publish(mine).await;
    all_ended(&world, &[delivery]).await;

    let accepted = poster.stop().await.all_accepted();
    world.finished(&accepted).await;
    assert_eq!(ends, self::ends(&world, &on_the_wire).await, "a late record changed a final state");
    let mut at_risk = AtRisk::default();
    at_risk.add(on_the_wire);
    let repeated = at_risk.excuse(&world.receiver.all());
    let late = world.count("SELECT count(*) FROM attempts WHERE NOT applied").await;
    eprintln!("{} on the wire, {repeated} repeated, {late} late records", at_risk.total());
    assert!(usize::try_from(late).unwrap() <= at_risk.total(), "it recorded more than was on the wire");
}

/// Waits until each of these deliveries has ended.
async fn all_ended(world: &World, deliveries: &[Uuid]) {
    eventually(PATIENCE, || async {
        (ends(world, deliveries).await.len() == deliveries.len()).then_some(())
    })
    .await;
}

/// Which attempt ended each of these deliveries, and under which epoch.
async fn ends(world: &World, deliveries: &[Uuid]) -> Vec<(Uuid, i16, i64)> {
    let sql = "SELECT delivery_id, no, epoch FROM attempts
               WHERE delivery_id = ANY ($1) AND final_status IS NOT NULL ORDER BY delivery_id";
    let rows = world.sql().await.query(sql, &[&deliveries]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}
