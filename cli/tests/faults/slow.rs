//! Recording is slow: slower than the lease (field report F62), and slow for as long as one looks (F58).

use std::time::Duration;

use load_tests::client::{Connection, request};
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::report::{Report, short_or_long};
use crate::world::{AtRisk, World};

/// Longer than a lease, than a record's budget, and than any statement may take.
const SLOWER_THAN_A_LEASE: f64 = 20.0;
const SLOW: f64 = 2.0;

/// F62: finished work is never taken for stuck. While outcomes cannot be recorded the leases are renewed, nothing is
/// sent a second time, and the metrics tell how long it has been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_what_is_recorded_more_slowly_than_a_lease_is_not_sent_again() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let workers = world.workers(2).await;
    let metrics = [workers[0].process.metrics(), workers[1].process.metrics()];
    slow_records(&world).await;
    let poster = world.post(short_or_long(50, 200), &endpoints);
    let mut report = Report::of("recording: 20 s late, longer than a lease");
    for _ in 0..short_or_long(1, 5) {
        received(&world, 100).await;
        set_latency(&world, SLOWER_THAN_A_LEASE).await;
        let since = boot_time();
        let slow = Duration::from_secs(short_or_long(15, 30));
        let name = "postrider_record_lag_seconds";
        for metrics in metrics {
            let told = || async { (metric(metrics, name).await > 10.0).then_some(()) };
            eventually(PATIENCE, told).await;
        }
        eventually(PATIENCE, || async {
            (boot_time().since(since) > slow).then_some(())
        })
        .await;
        set_latency(&world, 0.0).await;
        let since = boot_time();
        let recorded = world.count("SELECT count(*) FROM attempts").await;
        eventually(PATIENCE, || async {
            (world.count("SELECT count(*) FROM attempts").await > recorded + 100).then_some(())
        })
        .await;
        report.recovered(boot_time().since(since));
    }
    let posted = poster.stop().await;
    posted.nothing_refused();
    for (worker, metrics) in workers.iter().zip(metrics) {
        assert!(!world.slots_of(worker.incarnation).await.is_empty());
        assert!(metric(metrics, "postrider_lease_lost_total").await < 1.0);
    }
    report.note("recovered: outcomes are recorded again");
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// F62: a batch that takes longer than a record may is written in parts, and not tried as a whole for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_a_batch_that_takes_too_long_is_recorded_in_parts() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _worker = world.workers(1).await;
    slow_records(&world).await;
    // The first batch is held until all others have been answered; the second one is all of them.
    set_latency(&world, 3.5).await;
    let poster = world.post(500, &endpoints);
    eventually(PATIENCE, || async {
        (world.receiver.count() >= endpoints.len()).then_some(())
    })
    .await;
    let posted = poster.stop().await;
    // Longer for the batch than any statement may take.
    let each = "UPDATE latency SET seconds = 0, each_row = 0.05";
    world.sql().await.batch_execute(each).await.unwrap();

    let began = boot_time();
    let mut report = Report::of("recording: 50 ms for each row");
    world.finished(&posted.accepted).await;
    report.recovered(boot_time().since(began));
    report.note("recovered: all that was sent is recorded");
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// F58: attempts are written 2 s late, every time. Deliveries go on, events are accepted as fast as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_while_each_record_takes_two_seconds_deliveries_go_on() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    slow_records(&world).await;
    let poster = world.post(short_or_long(50, 200), &endpoints);
    received(&world, 100).await;
    set_latency(&world, SLOW).await;
    let (since, before, accepted) = (boot_time(), world.receiver.count(), poster.accepted());
    let slow = Duration::from_secs(short_or_long(10, 60));
    eventually(PATIENCE * 2, || async {
        (boot_time().since(since) > slow).then_some(())
    })
    .await;
    let sent = world.receiver.count() - before;
    let accepted = poster.accepted() - accepted;
    set_latency(&world, 0.0).await;

    let mut report = Report::of("recording: 2 s late, every time");
    let since = boot_time();
    let posted = poster.stop().await;
    posted.nothing_refused();
    world.finished(&posted.accepted).await;
    report.recovered(boot_time().since(since));
    assert!(
        sent * 2 > accepted,
        "{sent} sent while {accepted} were accepted"
    );
    assert!(
        posted.slowest() < Duration::from_secs(1),
        "{:?}",
        posted.slowest()
    );
    report.note(format!(
        "{sent} sent while {accepted} were accepted; recovered: nothing waits"
    ));
    report.close(&world, &posted, &AtRisk::default()).await;
}

/// From now on each statement that writes attempts can be made to wait.
async fn slow_records(world: &World) {
    let slow = "CREATE TABLE latency (seconds float8, each_row float8); INSERT INTO latency VALUES (0, 0);
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(seconds) FROM latency; RETURN NULL; END $$;
        CREATE FUNCTION wait_for_each() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(each_row) FROM latency; RETURN NEW; END $$;
        CREATE TRIGGER slow_rows BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION wait_for_each();
        CREATE TRIGGER slow BEFORE INSERT ON attempts FOR EACH STATEMENT EXECUTE FUNCTION wait();";
    world.sql().await.batch_execute(slow).await.unwrap();
}

async fn set_latency(world: &World, seconds: f64) {
    let set = "UPDATE latency SET seconds = $1";
    world.sql().await.execute(set, &[&seconds]).await.unwrap();
}

async fn received(world: &World, more: usize) {
    let before = world.receiver.count();
    eventually(PATIENCE, || async {
        (world.receiver.count() > before + more).then_some(())
    })
    .await;
}

/// The value of a metric without labels.
async fn metric(addr: std::net::SocketAddr, name: &str) -> f64 {
    let mut connection = Connection::open(addr).await.unwrap();
    let reply = connection
        .exchange(&request("GET", "/metrics", None, b""))
        .await;
    let text = String::from_utf8_lossy(reply.unwrap().body).into_owned();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}
