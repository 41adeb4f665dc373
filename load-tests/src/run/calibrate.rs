//! What the machine can do just now, without the system under test: figures from another day or
//! machine compare only after a look at these.
//!
//! Our own two measurements are always there. Beside them stand those of two well-known tools where
//! they are installed: `pg_test_fsync`, which writes as ours does, and `wrk`.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::system::System;
use crate::generator::{Generator, Pace, Plan, Target};
use crate::payload;

/// How long each is measured.
const LENGTH: Duration = Duration::from_secs(2);
/// Bytes written before each sync: a page, as `pg_test_fsync` does.
const PAGE: usize = 8 * 1024;
/// For a tool that does not end.
const LONGEST: Duration = Duration::from_secs(20);

/// The machine's own limits.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Calibration {
    /// 8 KiB writes made durable one after the other by `fdatasync`, where the database's files
    /// are: the first `fdatasync` line of `pg_test_fsync`.
    pub(super) fdatasync_per_second: f64,
    /// What `pg_test_fsync` says in that line; absent: it is not installed.
    pub(super) pg_test_fsync_per_second: Option<f64>,
    /// Requests per second from the generator (in the runner) to the receiver, nothing between.
    pub(super) loopback_requests_per_second: f64,
    /// The same by `wrk`, with one thread; absent: it is not installed.
    pub(super) wrk_requests_per_second: Option<f64>,
    pub(super) cores: usize,
}

impl Calibration {
    /// What could not be measured.
    pub(super) fn missing(&self) -> Vec<String> {
        let fsync = self.pg_test_fsync_per_second.is_none();
        let wrk = self.wrk_requests_per_second.is_none();
        let missing = [
            fsync.then(|| "pg_test_fsync: not beside the server that ran".to_owned()),
            wrk.then(|| "wrk: not installed".to_owned()),
        ];
        missing.into_iter().flatten().collect()
    }
}

/// Measures, on the disk that counts. Errors: it cannot be written to.
pub(super) async fn calibrate(system: &System) -> anyhow::Result<Calibration> {
    let (dir, receiver) = (system.dir(), system.receiver_addr);
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
        pg_test_fsync_per_second: pg_test_fsync(system.postgres.postmaster, dir).await,
        loopback_requests_per_second: per_second(requests, LENGTH.as_secs_f64()),
        wrk_requests_per_second: wrk(receiver).await,
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

/// The first `fdatasync` line of `pg_test_fsync`, which lies beside the server that runs. Its other
/// lines would take a quarter of a minute.
async fn pg_test_fsync(postmaster: u32, dir: &Path) -> Option<f64> {
    let server = std::fs::read_link(format!("/proc/{postmaster}/exe")).ok()?;
    let program: PathBuf = server.parent()?.join("pg_test_fsync");
    let mut child = Command::new(program)
        .args(["--secs-per-test", "2", "--filename"])
        .arg(dir.join("pg_test_fsync.tmp"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    let reading = async {
        while let Some(line) = lines.next_line().await.ok()? {
            if let Some(rate) = fdatasync_line(&line) {
                return Some(rate);
            }
        }
        None
    };
    let rate = tokio::time::timeout(LONGEST, reading).await.ok().flatten();
    child.kill().await.ok()?;
    rate
}

/// `fdatasync   686.279 ops/sec  1457 usecs/op` → 686.
fn fdatasync_line(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match *words.as_slice() {
        ["fdatasync", rate, "ops/sec", ..] => rate.parse().ok().map(f64::round),
        _ => None,
    }
}

async fn wrk(receiver: SocketAddr) -> Option<f64> {
    let seconds = format!("{}s", LENGTH.as_secs());
    let url = format!("http://{receiver}/raw");
    let running = Command::new("wrk")
        .args(["-t1", "-c64", "-d", &seconds, &url])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(LONGEST, running).await.ok()?.ok()?;
    wrk_rate(&String::from_utf8_lossy(&output.stdout))
}

fn wrk_rate(text: &str) -> Option<f64> {
    let rate = |line: &str| {
        line.trim()
            .strip_prefix("Requests/sec:")?
            .trim()
            .parse()
            .ok()
    };
    text.lines().find_map(rate).map(f64::round)
}

fn per_second(count: u64, seconds: f64) -> f64 {
    (count as f64 / seconds).round()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_lines_are_read() {
        let line = "        fdatasync                           686.279 ops/sec    1457 usecs/op";

        assert_eq!(fdatasync_line(line), Some(686.0));
        assert_eq!(fdatasync_line("fsync  300.1 ops/sec  3332 usecs/op"), None);
        assert_eq!(fdatasync_line("fdatasync  n/a"), None);
        let wrk = "Running 2s test\n  400 requests in 2.00s\nRequests/sec: 104321.55\nTransfer/sec: 3MB\n";
        assert_eq!(wrk_rate(wrk), Some(104_322.0));
        assert_eq!(wrk_rate("unable to connect"), None);
    }
}
