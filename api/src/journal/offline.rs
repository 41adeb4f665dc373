//! A journal whose process is gone, replayed by hand.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use shared::runtime::clock::DatabaseClock;
use shared::runtime::spawn_driver;
use shared::store::{Database, Role, health};
use tokio_util::sync::CancellationToken;

use super::replay::{Replayed, Target, drain};
use super::{Journal, MOST_BYTES};
use crate::connections::Connections;
use crate::ingest::{Lane, Queues, hints, writer};

/// How long a question may wait for the database.
const DEADLINE: Duration = Duration::from_secs(10);
/// Connections besides the writers'.
const CONNECTIONS: usize = 2;

/// Replays a journal into the database, until it is empty; `told` is called after each file with what became of it. The
/// events are found by the workers' scans: nobody is told of them.
///
/// # Errors
/// When another process has the journal, or the database does not take the events. What is left is still there.
pub async fn replay(
    path: &Path,
    database: &Database,
    told: impl FnMut(Replayed),
) -> anyhow::Result<()> {
    // Nothing is added: what is there may be more than it would take.
    let journal = Journal::open(path, MOST_BYTES as u64)?;
    let connections = Connections::new(database.pool(Role::Api, CONNECTIONS, DEADLINE)?, DEADLINE);
    let clock = Arc::new(DatabaseClock::new());
    let sent = shared::runtime::clock::boot_time();
    let client = connections
        .get()
        .await
        .context("the database does not answer")?;
    let now = health::write_round_trip(&**client).await?;
    clock.measured(sent, shared::runtime::clock::boot_time(), now);
    drop(client);
    let queues = Arc::new(Queues::new(DEADLINE));
    let (hints, arriving) = hints::Hints::channel();
    drop(arriving);
    let writers = Arc::new(writer::Shared {
        database: database.clone(),
        queues: Arc::clone(&queues),
        clock,
        hints,
        connected: AtomicBool::new(false),
    });
    let stop = CancellationToken::new();
    let ends = stop.clone().drop_guard();
    for lane in [Lane::Plain, Lane::Keyed] {
        // Ends with `stop`.
        drop(spawn_driver(writer::run(
            Arc::clone(&writers),
            lane,
            stop.clone(),
        )));
    }
    let target = Target {
        queues,
        connections,
    };
    let drained = drain(&journal, &target, told).await;
    drop(ends);
    drained
}
