//! Slots change hands, and whoever gives or takes them dies before or after the commit.

use rustix::process::Signal;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use super::{dies_at, has_died};
use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, World};

/// D3, D8, F66: no slot stays without a living owner, and what waits in it is delivered. Whoever buries the dead may
/// die of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_while_slots_change_hands_leaves_none_behind() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let poster = world.post(50, &endpoints);
    let mut report = Report::of("worker: SIGKILL while slots change hands");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(1, 5) {
        // All others die, so it is the one that buries them.
        let mut burying = world.dying_worker("worker.dead_declared").await;
        world.spread_over(1, PATIENCE).await;
        let began = boot_time();
        for point in ["worker.joined", "worker.slots_taken"] {
            has_died(&mut world.starting_worker(&[dies_at(point, 1)])).await;
        }
        for point in [
            "worker.slots_releasing",
            "worker.slots_released",
            "worker.leaving",
        ] {
            let mut leaving = world.dying_worker(point).await;
            eventually(PATIENCE, || async {
                (!world.slots_of(leaving.incarnation).await.is_empty()).then_some(())
            })
            .await;
            leaving.process.signal(Signal::TERM);
            has_died(&mut leaving.process).await;
        }
        has_died(&mut burying.process).await;
        at_risk.join(world.at_risk().await);

        let mut healthy = world.worker().await;
        // A slot whose owner has just died seems to have one as long as the lease runs.
        eventually(TAKE_OVER, || async {
            (world.slots_of(healthy.incarnation).await.len() == 256).then_some(())
        })
        .await;
        report.recovered(boot_time().since(began));
        let before = world.receiver.count();
        eventually(PATIENCE, || async {
            (world.receiver.count() > before + endpoints.len()).then_some(())
        })
        .await;
        healthy.process.signal(Signal::TERM);
        assert!(healthy.process.ends().await.success());
    }
    let _last = world.worker().await;
    let posted = poster.stop().await;
    posted.nothing_refused();
    report.note(
        "six deaths in each run, one after the other; recovered: all slots have an owner again",
    );
    report.close(&world, &posted, &at_risk).await;
}
