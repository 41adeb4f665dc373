//! D7: no connection of the database is held while a receiver is being waited for.

use std::time::Duration;

use serde_json::json;
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};
use worker::CONNECTIONS;

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

/// Longer than the look at the database takes, shorter than the requests' deadline.
const SLOW: Duration = Duration::from_secs(5);
const ENDPOINTS: usize = 20;
const EACH: usize = 10;
/// Of the API's pool: far fewer than there are requests on the wire.
const POOL: usize = 5;
const ASKED: u32 = 50;
const QUICK: Duration = Duration::from_millis(300);
/// What a worker's parts have open; its maintenance has a name of its own, which these tests use as well.
const OURS: &str = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'postrider-worker'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_requests_on_the_wire_hold_no_connection_and_no_transaction() {
    let database = TestDatabase::new().await;
    let pool = [("POSTRIDER_CONNECTIONS", POOL.to_string())];
    let world = World::start_with(database.url(), database.database(), &pool, &[]).await;
    let _worker = world.worker().await;
    for number in 0..ENDPOINTS {
        let endpoint = world.endpoint(&format!("slow-{number}"), json!({})).await;
        world
            .receiver
            .answers(&endpoint.path, &[Answer::late(SLOW)]);
        for _ in 0..EACH {
            world.publish(&endpoint).await;
        }
    }

    eventually(PATIENCE, || async {
        (world.receiver.open(|_| true) == ENDPOINTS * EACH).then_some(())
    })
    .await;
    let connections = world.count(&format!("SELECT count(*) {OURS}")).await;
    let waiting = format!("SELECT count(*) {OURS} AND state LIKE 'idle in transaction%'");
    // A job may just be between two statements of its own; what is held for a request stays.
    eventually(PATIENCE, || async {
        (world.count(&waiting).await == 0).then_some(())
    })
    .await;
    let mut slowest = Duration::ZERO;
    for _ in 0..ASKED {
        let began = boot_time();
        world
            .ask("GET", "/v1/endpoints?limit=1", &json!(null))
            .await;
        slowest = slowest.max(boot_time().since(began));
    }
    assert!(slowest < QUICK, "a request took {slowest:?}");

    let still_open = world.receiver.open(|_| true);

    assert_eq!(
        still_open,
        ENDPOINTS * EACH,
        "the look was taken while all of them were open"
    );
    assert!(
        usize::try_from(connections).unwrap() <= CONNECTIONS,
        "{connections} connections for {still_open} requests"
    );
}
