//! Whether a worker gets on with its work, for its readiness: not only that it lives (its lease), but that
//! the tables it lives from answer it (field report F59: all is green, and nothing is delivered).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared::runtime::clock::boot_time;

/// A slot is scanned every ten seconds in any case, and a question is given up after eight.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(20);

/// How the database answered a loader's questions; milliseconds of boot time, zero for never.
#[derive(Debug, Default)]
pub struct Pulse {
    answered_at: AtomicU64,
    failed_at: AtomicU64,
    failing_since: AtomicU64,
}

impl Pulse {
    /// A question was answered.
    pub fn answered(&self) {
        self.answered_at.store(now(), Ordering::Relaxed);
        self.failing_since.store(0, Ordering::Relaxed);
    }

    /// A question was not.
    pub fn failed(&self) {
        let now = now();
        self.failed_at.store(now, Ordering::Relaxed);
        // Of one loader, so nobody else writes.
        if self.failing_since.load(Ordering::Relaxed) == 0 {
            self.failing_since.store(now, Ordering::Relaxed);
        }
    }

    /// How long no question has been answered, asked or not: of those that are asked all the time.
    #[must_use]
    pub fn silent_for(&self) -> Duration {
        since(self.answered_at.load(Ordering::Relaxed))
    }

    /// How long questions have failed, as far as they are still asked.
    #[must_use]
    pub fn failing_for(&self) -> Duration {
        let asked = since(self.failed_at.load(Ordering::Relaxed)) <= LONGEST_SILENCE;
        match self.failing_since.load(Ordering::Relaxed) {
            first if first > 0 && asked => since(first),
            _ => Duration::ZERO,
        }
    }
}

fn now() -> u64 {
    u64::try_from(boot_time().0.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

fn since(milliseconds: u64) -> Duration {
    let then = Duration::from_millis(milliseconds);
    boot_time().0.saturating_sub(then)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_from_the_first_until_an_answer() {
        let pulse = Pulse::default();
        assert_eq!(pulse.failing_for(), Duration::ZERO);
        pulse.failing_since.store(now() - 30_000, Ordering::Relaxed);
        pulse.failed();
        assert!(pulse.failing_for() >= Duration::from_secs(30));

        // Asked no more: its slots went elsewhere.
        pulse.failed_at.store(now() - 25_000, Ordering::Relaxed);
        assert_eq!(pulse.failing_for(), Duration::ZERO);

        pulse.failed();
        pulse.answered();
        assert_eq!(pulse.failing_for(), Duration::ZERO);
        assert!(pulse.silent_for() < Duration::from_secs(5));
    }
}
