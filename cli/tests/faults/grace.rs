//! A stop that is not given the time it needs (field report F83): SIGKILL follows too soon, or the database is away.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, TestDatabase, eventually};
use uuid::Uuid;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, TAKE_OVER, World};

/// How long a receiver takes.
const SLOW: Duration = Duration::from_secs(3);
/// Few: what a dead worker had on the wire for a while is sent one at a time (`suspects`).
const ON_THE_WIRE: usize = 6;
/// What comes before SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// The shortest drain that the budgets allow, and the grace of `docs/configuration.md`.
const DRAIN: Duration = Duration::from_secs(20);
const KILL_GRACE: Duration = Duration::from_secs(30);

/// F83: what had no time to finish is taken up when the lease has run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_a_worker_that_is_killed_two_seconds_after_sigterm_loses_nothing() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let mut workers = world.workers(1).await;
    for slow in endpoints.iter().step_by(16) {
        world.receiver.answers(&slow.path, &[Answer::late(SLOW)]);
    }
    let poster = world.post(100, &endpoints);
    let mut report = Report::of("worker: SIGTERM, and SIGKILL after 2 s");
    let mut at_risk = AtRisk::default();
    for _ in 0..short_or_long(1, 10) {
        eventually(PATIENCE, || async {
            (world.receiver.open(|_| true) >= ON_THE_WIRE).then_some(())
        })
        .await;
        let mut leaving = workers.remove(0);
        workers.push(world.worker().await);
        leaving.process.signal(Signal::TERM);
        let told = boot_time();
        eventually(PATIENCE, || async {
            (boot_time().since(told) >= GRACE).then_some(())
        })
        .await;
        leaving.process.kill().await;
        let not_recorded = world.buried(leaving.incarnation).await;
        world.all_slots_owned(TAKE_OVER).await;
        report.recovered(boot_time().since(told));
        let theirs: Vec<Uuid> = not_recorded.keys().copied().collect();
        at_risk.add(not_recorded);
        let again = "SELECT count(DISTINCT delivery_id) FROM attempts WHERE delivery_id = ANY ($1) AND applied";
        let sql = world.sql().await;
        eventually(PATIENCE, || async {
            let row = sql.query_one(again, &[&theirs]).await.unwrap();
            (row.get::<_, i64>(0) == i64::try_from(theirs.len()).unwrap()).then_some(())
        })
        .await;
    }
    let posted = poster.stop().await;
    posted.nothing_refused();
    assert!(at_risk.total() > 0, "nothing was on the wire");
    report.note("requests of 3 s on the wire, which go one at a time afterwards; recovered: all slots have an owner again");
    report.close(&world, &posted, &at_risk).await;
}

/// F83: both end by themselves within the grace, though neither can write what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_api_and_worker_end_within_their_grace_while_the_database_is_away() {
    let mut cluster = TestCluster::new().await;
    let drain = [("POSTRIDER_DRAIN_TIMEOUT", format!("{}s", DRAIN.as_secs()))];
    let world = World::start_with(&cluster.url(), cluster.database(), &drain, &[]).await;
    let mut workers = world.workers(1).await;
    let endpoint = world.endpoint("late", json!({})).await;
    world
        .receiver
        .answers(&endpoint.path, &[Answer::late(SLOW), Answer::now(200)]);
    world.publish(&endpoint).await;
    eventually(PATIENCE, || async {
        (world.receiver.count() == 1).then_some(())
    })
    .await;
    let (mut api, addr) = world.another_api(&[]).await;
    let poster = world.post_to(&[addr], 20, std::slice::from_ref(&endpoint));
    eventually(PATIENCE, || async { (poster.accepted() > 5).then_some(()) }).await;

    cluster.stop().await.unwrap();
    eventually(PATIENCE, || async { (poster.waiting() > 5).then_some(()) }).await;
    api.signal(Signal::TERM);
    workers[0].process.signal(Signal::TERM);
    let told = boot_time();
    let (api, worker) = tokio::join!(api.ends(), workers[0].process.ends());
    let took = boot_time().since(told);
    assert!(took < KILL_GRACE, "{took:?} after the signal");
    assert_eq!((api.code(), worker.code()), (Some(0), Some(0)));
    let posted = poster.stop().await;
    cluster.start().await.unwrap();

    let at_risk = world.at_risk().await;
    let mut report = Report::of("deploy: SIGTERM while the database is away");
    let began = boot_time();
    let _next = world.worker().await;
    world.finished(&posted.accepted).await;
    report.recovered(boot_time().since(began));
    report.note(format!(
        "both ended {:.1} s after the signal with 0; its posts were refused",
        took.as_secs_f64()
    ));
    report.close(&world, &posted, &at_risk).await;
}
