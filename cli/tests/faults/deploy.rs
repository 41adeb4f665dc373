//! A rolling deploy under load: every API and every worker is replaced, one after the other (field report F83).

use rustix::process::Signal;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

const EACH: usize = 2;

/// D2, F83: a publisher that posts again, with the same `Idempotency-Key`, what an API did not take or did not answer
/// loses nothing and sees no error; no event is stored twice, and no delivery repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_a_rolling_deploy_loses_nothing_repeats_nothing_and_is_no_error_for_anyone() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let mut workers = world.workers(EACH).await;
    let mut apis = vec![world.another_api(&[]).await, world.another_api(&[]).await];
    let poster = world.post_once_to(&[apis[0].1, apis[1].1], short_or_long(150, 500), &endpoints);
    let mut report = Report::of("deploy: each API and worker replaced by SIGTERM");
    for _ in 0..short_or_long(1, 5) {
        for _ in 0..EACH {
            let began = boot_time();
            let new = world.another_api(&[]).await;
            poster.goes_to(new.1);
            let (mut old, addr) = apis.remove(0);
            apis.push(new);
            old.signal(Signal::TERM);
            assert!(old.ends().await.success());
            poster.goes_no_more_to(addr);

            workers.push(world.worker().await);
            let mut old = workers.remove(0);
            old.process.signal(Signal::TERM);
            assert!(old.process.ends().await.success());
            world.spread_over(EACH, PATIENCE).await;
            report.recovered(boot_time().since(began));
            let before = world.receiver.count();
            eventually(PATIENCE, || async {
                (world.receiver.count() > before + endpoints.len()).then_some(())
            })
            .await;
        }
    }
    let posted = poster.stop().await;
    report.note(format!(
        "at {} events/s; {} posts were made again at the next address; recovered: one API and one worker are replaced",
        short_or_long(150, 500),
        posted.elsewhere
    ));
    posted.nothing_refused();
    assert_eq!(world.events().await.len(), posted.accepted.len(), "stored");
    report.close(&world, &posted, &AtRisk::default()).await;
}
