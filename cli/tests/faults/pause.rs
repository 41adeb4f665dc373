//! A worker that stands still past its lease with requests on the wire, and wakes up.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::Report;
use crate::world::{AtRisk, TAKE_OVER, World};

const SLOW: Duration = Duration::from_millis(1_500);
/// Long enough to stop the worker meanwhile.
const SLOWER: Duration = Duration::from_secs(5);

/// D3: nothing that it does after it wakes counts, and it sends nothing under its old lease. The slow
/// endpoints have rows loaded and waiting in its memory, which it would send if it could; and one answer
/// that waits for it is a 410, which would disable an endpoint that has answered 200 since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn d3_a_worker_that_wakes_after_its_lease_changes_nothing_and_joins_again() {
    let mut report = Report::of("worker: SIGSTOP past its lease, then SIGCONT");
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let mut workers = world.workers(2).await;
    let slots = world.slots_of(workers[0].incarnation).await;
    let (theirs, _): (Vec<_>, Vec<_>) = endpoints
        .iter()
        .cloned()
        .partition(|it| slots.contains(&it.slot));
    let slow: Vec<_> = theirs.iter().step_by(8).cloned().collect();
    for endpoint in &slow {
        world
            .receiver
            .answers(&endpoint.path, &[Answer::late(SLOW)]);
        let path = format!("/v1/endpoints/{}", endpoint.id);
        world
            .ask("PATCH", &path, &json!({ "max_in_flight": 1 }))
            .await;
    }
    let gone = theirs[1].clone();
    world.receiver.answers(
        &gone.path,
        &[Answer::late(SLOWER).status(410), Answer::now(200)],
    );
    let mut others = endpoints.clone();
    others.retain(|endpoint| endpoint.key != gone.key);
    let poster = world.post(100, &others);

    on_the_wire(&world, &gone, &slow).await;
    workers[0].process.signal(Signal::STOP);
    let stopped = boot_time();
    // Stopped between its last look at the lease and the write to the socket, it writes when it wakes:
    // what it had admitted by now may come twice, and nothing that came later.
    let admitted = world.live_with(workers[0].incarnation).await;
    let not_recorded = world.buried(workers[0].incarnation).await;
    world.all_slots_owned(TAKE_OVER).await;
    report.recovered(boot_time().since(stopped));
    let caught: Vec<Uuid> = not_recorded.keys().copied().collect();
    all_ended(&world, &caught).await;
    let ends = ends(&world, &caught).await;

    workers[0].process.signal(Signal::CONT);
    let reborn = workers[0].process.joined(2).await;
    assert_ne!(reborn, workers[0].incarnation);
    // It has woken up and read the answers that had come meanwhile: what it records is kept apart.
    eventually(PATIENCE, || async {
        (world
            .count("SELECT count(*) FROM attempts WHERE NOT applied")
            .await
            > 0)
        .then_some(())
    })
    .await;
    works_again(&world, reborn, &others).await;

    let posted = poster.stop().await;
    posted.nothing_refused();
    world.finished(&posted.accepted).await;
    assert_eq!(
        ends,
        self::ends(&world, &caught).await,
        "a late record changed a final state"
    );
    let shown = world
        .ask("GET", &format!("/v1/endpoints/{}", gone.id), &Value::Null)
        .await;
    assert_eq!(shown["enabled"], true, "a late 410 disabled its endpoint");
    let mut at_risk = AtRisk::default();
    at_risk.add(admitted.into_iter().map(|delivery| (delivery, 1)));
    at_risk.add(not_recorded);
    let late = world
        .count("SELECT count(*) FROM attempts WHERE NOT applied")
        .await;
    assert!(
        usize::try_from(late).unwrap() <= at_risk.total(),
        "it recorded what it had not sent"
    );
    report.note(format!("{late} late records changed nothing"));
    report.close(&world, &posted, &at_risk).await;
}

/// Waits until a request that will be answered 410 and five slow ones are under way together.
async fn on_the_wire(world: &World, gone: &Endpoint, slow: &[Endpoint]) {
    let slow: HashSet<&str> = slow.iter().map(|endpoint| endpoint.path.as_str()).collect();
    let five = || world.receiver.open(|it| slow.contains(it.path.as_str())) >= 5;
    eventually(PATIENCE, || async { five().then_some(()) }).await;
    world.publish(gone).await;
    eventually(SLOWER, || async {
        (five() && world.receiver.open(|it| it.path == gone.path) > 0).then_some(())
    })
    .await;
}

/// Waits until this life of a worker has slots and delivers what comes for one of them.
async fn works_again(world: &World, incarnation: Uuid, endpoints: &[Endpoint]) {
    let slots = || async {
        let slots = world.slots_of(incarnation).await;
        (!slots.is_empty()).then_some(slots)
    };
    let slots = eventually(PATIENCE, slots).await;
    let theirs = endpoints
        .iter()
        .find(|endpoint| slots.contains(&endpoint.slot))
        .unwrap();
    let delivery = world.publish(theirs).await;
    all_ended(world, &[delivery]).await;
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
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}
