//! PostgreSQL ends in the middle of everything and comes back.

use std::collections::HashSet;
use std::time::Duration;

use shared::ids::created_at;
use shared::runtime::clock::{boot_time, wall_time};
use shared::testing::{TestCluster, eventually};
use uuid::Uuid;

use crate::poster::Poster;
use crate::process::PATIENCE;
use crate::report::Report;
use crate::world::{AtRisk, LEASE, World, requests};

const CRASHES: usize = 5;
const PER_SECOND: u32 = 200;
/// Two seconds of posts: what a restart of a larger database takes.
const WAITING: usize = 400;
/// Architecture §8.
const RESUMED: Duration = Duration::from_secs(10);

/// D2, F87: what was acknowledged is there after the crash, and delivered. A post that comes while the
/// database is away waits and is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_crashes_of_the_database_lose_nothing_and_are_no_error_for_anyone() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    let poster = world.post(PER_SECOND, &endpoints);

    let mut report = Report::of("database: crash (SIGQUIT), and away for 2 s");
    let mut at_risk = AtRisk::default();
    for _ in 0..CRASHES {
        some_accepted(&poster).await;
        let recorded = recorded(&world).await;
        cluster.crash_and_restart().await.unwrap();
        let mut sent = requests(&world.receiver.all());
        sent.retain(|delivery, _| !recorded.contains(delivery));
        at_risk.add(sent);
        report.recovered(resumed(&world).await);
    }
    // Once it stays away while the posts pile up.
    some_accepted(&poster).await;
    cluster.stop().await.unwrap();
    eventually(PATIENCE, || async {
        (poster.waiting() > WAITING).then_some(())
    })
    .await;
    cluster.start().await.unwrap();
    report.recovered(resumed(&world).await);

    let posted = poster.stop().await;
    posted.nothing_refused();
    report.note("recovered: from its being up again to the next event delivered");
    report.close(&world, &posted, &at_risk).await;
}

/// A database that is away for longer than the leases has buried nobody: the first worker that comes
/// back does not take everything, and what comes then is delivered by those who had it before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_the_lease_costs_no_worker_its_slots() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    let before = owners(&world).await;

    cluster.stop().await.unwrap();
    let stopped = boot_time();
    let over = LEASE + Duration::from_secs(2);
    eventually(PATIENCE, || async {
        (boot_time().since(stopped) > over).then_some(())
    })
    .await;
    cluster.start().await.unwrap();

    let mut report = Report::of("database: away for longer than the leases");
    let poster = world.post(PER_SECOND, &endpoints);
    world.all_slots_owned(RESUMED).await;
    report.recovered(resumed(&world).await);
    let posted = poster.stop().await;
    posted.nothing_refused();
    assert_eq!(owners(&world).await, before, "slots changed hands");
    report.close(&world, &posted, &AtRisk::default()).await;
}

async fn some_accepted(poster: &Poster) {
    let accepted = poster.accepted();
    eventually(PATIENCE, || async {
        (poster.accepted() > accepted + 100).then_some(())
    })
    .await;
}

/// Waits until an event is delivered that was accepted after this call; how long that took.
async fn resumed(world: &World) -> Duration {
    let (now, began) = (wall_time(), boot_time());
    let arrived = || async {
        world
            .receiver
            .all()
            .iter()
            .any(|it| created_at(it.event) > now)
            .then_some(())
    };
    eventually(RESUMED, arrived).await;
    boot_time().since(began)
}

async fn recorded(world: &World) -> HashSet<Uuid> {
    let rows = world
        .sql()
        .await
        .query("SELECT delivery_id FROM attempts", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The owner and the epoch of each slot.
async fn owners(world: &World) -> Vec<(i16, Option<Uuid>, i64)> {
    let owners = "SELECT slot, owner, epoch FROM slots ORDER BY slot";
    let rows = world.sql().await.query(owners, &[]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}
