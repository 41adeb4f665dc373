//! A worker joins under load.

use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::Report;
use crate::world::{AtRisk, World};

/// At most an eighth of the slots moves at a time, and what is on the wire is waited for.
const SPREAD: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_joins_gets_its_share_and_nothing_is_lost_or_repeated() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    for slow in endpoints.iter().step_by(8) {
        world
            .receiver
            .answers(&slow.path, &[Answer::late(Duration::from_millis(700))]);
    }
    let mut workers = world.workers(2).await;
    let poster = world.post(150, &endpoints);
    let before = world.receiver.count();
    eventually(PATIENCE, || async {
        (world.receiver.count() > before + 100).then_some(())
    })
    .await;

    workers.push(world.worker().await);
    let joined = boot_time();
    world.spread_over(3, SPREAD).await;
    let took = boot_time().since(joined);
    // The new one works: what is posted now for its slots arrives.
    let slots = world.slots_of(workers[2].incarnation).await;
    for endpoint in endpoints
        .iter()
        .filter(|endpoint| slots.contains(&endpoint.slot))
        .take(3)
    {
        let delivery = world.publish(endpoint).await;
        let arrived = || async {
            world
                .receiver
                .all()
                .iter()
                .any(|it| it.delivery == delivery)
                .then_some(())
        };
        eventually(PATIENCE, arrived).await;
    }

    let posted = poster.stop().await;
    posted.nothing_refused();
    let mut report = Report::of("worker: one joins two under load");
    report.recovered(took);
    report.note("recovered: the slots are spread over three");
    report.close(&world, &posted, &AtRisk::default()).await;
}
