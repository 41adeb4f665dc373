//! PostgreSQL ends in the middle of everything and comes back, five times.

use std::collections::HashSet;
use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::testing::{TestCluster, eventually};
use uuid::Uuid;

use crate::process::PATIENCE;
use crate::world::{AtRisk, World};

const CRASHES: usize = 5;
const PER_SECOND: u32 = 200;
/// Architecture §8.
const RESUMED: Duration = Duration::from_secs(10);

/// D2: what was acknowledged is there after the crash, and delivered. A post that comes while the
/// database is away waits and is accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_crashes_of_the_database_lose_nothing_and_are_no_error_for_anyone() {
    let mut cluster = TestCluster::new().await;
    let world = World::start(&cluster.url(), cluster.database()).await;
    let endpoints = world.an_endpoint_in_each_slot().await;
    let _workers = world.workers(2).await;
    let poster = world.post(PER_SECOND, &endpoints);

    let mut at_risk = AtRisk::default();
    for _ in 0..CRASHES {
        let accepted = poster.accepted();
        eventually(PATIENCE, || async { (poster.accepted() > accepted + 100).then_some(()) }).await;
        let recorded = recorded(&world).await;
        let began = boot_time();
        cluster.crash_and_restart().await.unwrap();
        let back = boot_time();
        let arrived = world.receiver.all();
        let arrived = arrived.iter().map(|arrival| arrival.delivery);
        let not_recorded: HashSet<Uuid> = arrived.filter(|id| !recorded.contains(id)).collect();
        at_risk.add(not_recorded);
        // Ids carry the instant at which the event was accepted: what comes now was accepted after.
        let first = eventually(RESUMED, || async {
            let arrivals = world.receiver.all();
            arrivals.iter().find(|it| it.at > back).map(|it| it.at)
        })
        .await;
        eprintln!("away for {:?}, delivering after {:?}", back.since(began), first.since(back));
    }

    let accepted = poster.stop().await.all_accepted();
    world.finished(&accepted).await;
    let repeated = at_risk.excuse(&world.receiver.all());
    let excused = at_risk.total();
    eprintln!("{} events, {repeated} of {excused} not recorded were repeated", accepted.len());
}

async fn recorded(world: &World) -> HashSet<Uuid> {
    let rows = world.sql().await.query("SELECT delivery_id FROM attempts", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
