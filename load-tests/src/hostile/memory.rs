//! How much memory the sender's process takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use shared::runtime::spawn_driver;
use tokio::task::JoinHandle;

/// How much memory this process takes, watched all the time.
pub(super) struct Memory {
    before: u64,
    most: Arc<AtomicU64>,
    watching: JoinHandle<()>,
}

impl Memory {
    pub(super) fn watched() -> anyhow::Result<Self> {
        let before = resident()?;
        let most = Arc::new(AtomicU64::new(before));
        let watching = spawn_driver(watch(Arc::clone(&most)));
        Ok(Self {
            before,
            most,
            watching,
        })
    }

    /// By how much it grew at most, in bytes.
    pub(super) fn growth(self) -> anyhow::Result<u64> {
        self.watching.abort();
        let most = self.most.load(Ordering::Relaxed).max(resident()?);
        Ok(most.saturating_sub(self.before))
    }
}

/// Ends when it is stopped.
async fn watch(most: Arc<AtomicU64>) {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    loop {
        tick.tick().await;
        if let Ok(now) = resident() {
            most.fetch_max(now, Ordering::Relaxed);
        }
    }
}

/// This process' resident memory, in bytes.
fn resident() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
