//! The clocks: the only place that reads one.
//!
//! - [`boot_time`] keeps counting while a machine is suspended (`CLOCK_BOOTTIME`): a lease that ran
//!   out during a suspension is seen to have run out. `Instant` stands still there.
//! - [`DatabaseClock`] estimates the database's clock, which stamps ids and due times, from the
//!   boot clock and the offset measured at each commit.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use time::OffsetDateTime;

/// Time since the machine started, suspensions included. Comparable within one machine's uptime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// The instant this much later.
    #[must_use]
    pub fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }

    /// How long ago `earlier` was; zero if it is in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Reads the boot clock.
#[must_use]
pub fn boot_time() -> BootTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    BootTime(Duration::new(seconds, nanos))
}

/// Reads this machine's wall clock. For signatures' timestamps and logs; never for due times.
#[must_use]
pub fn wall_time() -> OffsetDateTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the wall clock"
    )]
    OffsetDateTime::now_utc()
}

/// An estimate of the database's clock, shared by the tasks of a process.
#[derive(Debug)]
pub struct DatabaseClock {
    /// Database time minus boot time, in microseconds.
    offset: AtomicI64,
    /// Boot time of the last measurement, in milliseconds; 0: none yet.
    measured: AtomicI64,
}

impl DatabaseClock {
    /// Starts from this machine's wall clock, until the first measurement.
    #[must_use]
    pub fn new() -> Self {
        Self {
            offset: AtomicI64::new(micros_between(wall_time(), boot_time())),
            measured: AtomicI64::new(0),
        }
    }

    /// The database's time now, as far as known.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.at(boot_time())
    }

    /// The database's time at an instant of the boot clock.
    #[must_use]
    pub fn at(&self, at: BootTime) -> OffsetDateTime {
        let since_boot = i128::try_from(at.0.as_nanos()).unwrap_or(0);
        let offset = i128::from(self.offset.load(Ordering::Relaxed)) * 1_000;
        OffsetDateTime::from_unix_timestamp_nanos(since_boot + offset)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Takes a measurement: the database said `answer` to a question sent and answered at these instants.
    pub fn measured(&self, sent: BootTime, answered: BootTime, answer: OffsetDateTime) {
        let middle = BootTime(sent.0 + answered.since(sent) / 2);
        self.offset
            .store(micros_between(answer, middle), Ordering::Relaxed);
        let at = i64::try_from(answered.0.as_millis()).unwrap_or(i64::MAX);
        self.measured.store(at.max(1), Ordering::Relaxed);
    }

    /// How long ago the last measurement was.
    #[must_use]
    pub fn measured_ago(&self) -> Option<Duration> {
        let at = u64::try_from(self.measured.load(Ordering::Relaxed)).ok();
        let at = at.filter(|at| *at > 0)?;
        Some(boot_time().since(BootTime(Duration::from_millis(at))))
    }

    /// How far this machine's wall clock is from the database's; positive when ours is ahead.
    #[must_use]
    pub fn wall_offset(&self) -> time::Duration {
        wall_time() - self.now()
    }
}

impl Default for DatabaseClock {
    fn default() -> Self {
        Self::new()
    }
}

fn micros_between(instant: OffsetDateTime, boot: BootTime) -> i64 {
    let nanos = instant.unix_timestamp_nanos() - i128::try_from(boot.0.as_nanos()).unwrap_or(0);
    i64::try_from(nanos / 1_000).unwrap_or(0)
}
