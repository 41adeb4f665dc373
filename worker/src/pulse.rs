//! Whether a worker gets on with its work, for its readiness: not only that it lives (its lease), but that
//! the tables it lives from answer it (field report F59: all is green, and nothing is delivered).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared::runtime::clock::boot_time;

/// A slot is scanned every ten seconds in any case, and a scan is given up after eight.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(20);

/// When the queue was last read, in milliseconds of boot time.
#[derive(Debug)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// Beats once.
    #[must_use]
    pub fn new() -> Self {
        let pulse = Self(AtomicU64::new(0));
        pulse.beat();
        pulse
    }

    /// The queue was read.
    pub fn beat(&self) {
        let now = u64::try_from(boot_time().0.as_millis()).unwrap_or(u64::MAX);
        self.0.store(now, Ordering::Relaxed);
    }

    /// How long ago that was.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        let last = Duration::from_millis(self.0.load(Ordering::Relaxed));
        boot_time().0.saturating_sub(last)
    }
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new()
    }
}
