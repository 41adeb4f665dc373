//! D7: no connection of the database is held while a receiver is being waited for.

use std::time::Duration;

use serde_json::json;
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

/// Longer than the look at the database takes, shorter than the requests' deadline.
const SLOW: Duration = Duration::from_secs(5);
const ENDPOINTS: usize = 8;
const EACH: usize = 8;
/// Loader, scanner, recorder, lease, listener, commands, and one to spare for the jobs: as many, whatever
/// is on the wire.
const CONNECTIONS: i64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_requests_on_the_wire_hold_no_connection_and_no_transaction() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
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
    let ours = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'postrider-worker'";
    let connections = world.count(&format!("SELECT count(*) {ours}")).await;
    let open = format!("SELECT count(*) {ours} AND state LIKE 'idle in transaction%'");
    let transactions = world.count(&open).await;
    let still_open = world.receiver.open(|_| true);

    assert_eq!(
        still_open,
        ENDPOINTS * EACH,
        "the look was taken while all of them were open"
    );
    assert_eq!(transactions, 0);
    assert!(
        connections <= CONNECTIONS,
        "{connections} connections for {still_open} requests"
    );
}
