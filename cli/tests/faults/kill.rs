//! `kill -9` of one of three workers under load, again and again.

use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, World};

/// In the short form and in the long one.
const KILLS: (usize, usize) = (10, 30);
const PER_SECOND: u32 = 150;

/// D3, D6, D8: 0 lost; what is repeated was sent and not yet recorded at a kill, and is known by
/// the same `webhook-id`; every delivery ends once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_a_row_lose_nothing_and_repeat_only_what_was_not_recorded() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    // Some are slow, so that every kill finds requests on the wire.
    for slow in endpoints.iter().step_by(8) {
        world
            .receiver
            .answers(&slow.path, &[Answer::late(Duration::from_millis(900))]);
    }
    let mut workers = world.workers(3).await;
    let poster = world.post(PER_SECOND, &endpoints);

    let mut report = Report::of("worker: kill -9 of one of three");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(KILLS.0, KILLS.1) {
        let mut victim = workers.remove(0);
        let slots = world.slots_of(victim.incarnation).await;
        let theirs: Vec<_> = endpoints
            .iter()
            .filter(|it| slots.contains(&it.slot))
            .collect();
        eventually(PATIENCE, || async {
            let open = world
                .receiver
                .open(|it| theirs.iter().any(|one| one.path == it.path));
            (open > 0).then_some(())
        })
        .await;
        victim.process.kill().await;
        let killed = boot_time();
        workers.push(world.worker().await);
        let not_recorded = world.buried(victim.incarnation).await;
        world.all_slots_owned(TAKE_OVER).await;
        report.recovered(boot_time().since(killed));
        at_risk.add(not_recorded);
    }

    let posted = poster.stop().await;
    posted.nothing_refused();
    assert!(at_risk.total() > 0, "no kill found a request on the wire");
    report.note("recovered: all slots have an owner again");
    report.close(&world, &posted, &at_risk).await;
}
