//! The same under load: one of three workers dies with many deliveries in its hands, at each step in turn.

use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use super::{dies_at, has_died};
use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, World};

const STEPS: [&str; 8] = [
    "worker.written",
    "worker.loaded",
    "worker.admitted",
    "worker.connected",
    "worker.writing",
    "worker.answered",
    "worker.recording",
    "worker.recorded",
];
/// The passage that it dies at: connections are opened rarely.
const AT: usize = 40;
const AT_RARE: usize = 2;

/// D3, D6, F66: as in `kill`, where chance picks the moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_at_any_step_under_load_repeats_only_what_was_not_recorded() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    let poster = world.post(short_or_long(150, 300), &endpoints);
    let mut report = Report::of("worker: SIGKILL at each step under load");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(1, 3) {
        for point in &STEPS[..short_or_long(1, STEPS.len())] {
            let at = if *point == "worker.connected" {
                AT_RARE
            } else {
                AT
            };
            let mut victim = world.worker_with(&[dies_at(point, at)]).await;
            has_died(&mut victim.process).await;
            let died = boot_time();
            at_risk.add(world.buried(victim.incarnation).await);
            world.all_slots_owned(TAKE_OVER).await;
            report.recovered(boot_time().since(died));
            let count = world.receiver.count();
            eventually(PATIENCE, || async {
                (world.receiver.count() > count + endpoints.len()).then_some(())
            })
            .await;
        }
    }
    let posted = poster.stop().await;
    posted.nothing_refused();
    report.note("recovered: all slots have an owner again");
    report.close(&world, &posted, &at_risk).await;
}
