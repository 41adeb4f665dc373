//! What the machine can do just now, without the system under test: figures from another day or
//! machine compare only after a look at these.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::generator::{Generator, Pace, Plan, Target};
use crate::payload;

/// How long each of the two is measured.
const LENGTH: Duration = Duration::from_secs(2);
/// Bytes written before each sync: a page, as `pg_test_fsync` does.
const PAGE: usize = 8 * 1024;

/// The machine's own limits.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Calibration {
    /// 8 KiB writes made durable one after the other by `fdatasync`, where the database's files
    /// are: the first `fdatasync` line of `pg_test_fsync`.
    pub(super) fdatasync_per_second: f64,
    /// Requests per second from the generator (in the runner) to the receiver, nothing between.
    pub(super) loopback_requests_per_second: f64,
    pub(super) cores: usize,
}

/// Measures. `dir` is on the disk that counts; errors: it cannot be written to.
pub(super) async fn calibrate(dir: &Path, receiver: SocketAddr) -> anyhow::Result<Calibration> {
    let fdatasync_per_second = fdatasync(dir)?;
    let generator = Generator::new(Plan {
        addr: receiver,
        targets: vec![Target {
            path: "/raw".to_owned(),
            key: None,
            event_type: None,
        }],
        connections: 64,
        pace: Pace::Closed { backlog: None },
        payload_bytes: 512,
        batch: 1,
        most: None,
        keys: 0,
        warmup: Duration::from_millis(200),
        measured: LENGTH,
    });
    generator.run().await;
    let requests = generator.tally().report().accepted_in_window;
    Ok(Calibration {
        fdatasync_per_second,
        loopback_requests_per_second: per_second(requests, LENGTH.as_secs_f64()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

fn fdatasync(dir: &Path) -> anyhow::Result<f64> {
    let path = dir.join("fdatasync.tmp");
    let file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let page = [b'x'; PAGE];
    file.write_all_at(&page, 0)?;
    file.sync_all()?;
    let began_ns = payload::now_ns();
    let mut syncs = 0;
    let mut elapsed = Duration::ZERO;
    while elapsed < LENGTH {
        file.write_all_at(&page, 0)?;
        file.sync_data()?;
        syncs += 1;
        elapsed = Duration::from_nanos(payload::now_ns().saturating_sub(began_ns));
    }
    std::fs::remove_file(&path)?;
    Ok(per_second(syncs, elapsed.as_secs_f64()))
}

fn per_second(count: u64, seconds: f64) -> f64 {
    (count as f64 / seconds).round()
}
