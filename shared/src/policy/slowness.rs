//! Which endpoints answer slowly: judged by the 95th percentile of a day, every [`JUDGED_EVERY`].
//!
//! # Invariants
//! - Fewer than [`ENOUGH_SAMPLES`] say nothing, whatever they say.

use std::time::Duration;

use super::breaker::VERY_SLOW_MS;

/// How often it is judged who is slow.
pub const JUDGED_EVERY: Duration = Duration::from_secs(15 * 60);
/// How far back samples count.
pub const WINDOW: Duration = Duration::from_secs(24 * 3_600);
/// Under so many samples an endpoint is neither slow nor getting slower.
pub const ENOUGH_SAMPLES: u64 = 20;
/// An endpoint with a 95th percentile above this many milliseconds is slow: an answer takes a receiver that
/// only stores what it gets a small part of that.
pub const SLOW_MS: f64 = 2_000.0;
/// It degrades when its 95th percentile is so many times that of the day before,
pub const DEGRADED_TIMES: f64 = 3.0;
/// and at least so many milliseconds: from 2 ms to 6 is no trend.
pub const DEGRADED_FROM_MS: f64 = 100.0;

/// The 95th percentile of a window, in milliseconds, and of how many samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// How many there were.
    pub samples: u64,
    /// Of them.
    pub p95_ms: f64,
}

impl Measured {
    const fn says_something(&self) -> bool {
        self.samples >= ENOUGH_SAMPLES
    }
}

/// What follows from an endpoint's percentiles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Flagged, and its tenant is told.
    pub slow: bool,
    /// Much slower than the day before.
    pub degrading: bool,
    /// Slow enough for its breaker to open sooner ([`lowered_threshold`](super::breaker::lowered_threshold)).
    pub very_slow: bool,
}

/// Judges an endpoint by its last 24 hours and, if they are known, by the 24 hours before these.
#[must_use]
pub fn judge(today: Measured, before: Option<Measured>) -> Verdict {
    if !today.says_something() {
        return Verdict::default();
    }
    let before = before.filter(Measured::says_something);
    Verdict {
        slow: today.p95_ms > SLOW_MS,
        degrading: today.p95_ms >= DEGRADED_FROM_MS
            && before.is_some_and(|before| today.p95_ms >= before.p95_ms * DEGRADED_TIMES),
        very_slow: today.p95_ms > f64::from(VERY_SLOW_MS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_slow_or_gets_slower() {
        type Case = (&'static str, (u64, f64), Option<(u64, f64)>, [bool; 3]);
        let cases: &[Case] = &[
            ("at the limit", (20, 2_000.0), None, [false, false, false]),
            ("above it", (20, 2_000.1), None, [true, false, false]),
            (
                "too few samples",
                (19, 9_000.0),
                None,
                [false, false, false],
            ),
            ("very slow", (20, 5_000.1), None, [true, false, true]),
            (
                "tripled",
                (20, 300.0),
                Some((20, 100.0)),
                [false, true, false],
            ),
            (
                "not quite",
                (20, 299.9),
                Some((20, 100.0)),
                [false, false, false],
            ),
            (
                "tripled from nearly nothing",
                (20, 30.0),
                Some((20, 2.0)),
                [false, false, false],
            ),
            (
                "too few the day before",
                (20, 300.0),
                Some((19, 100.0)),
                [false, false, false],
            ),
            (
                "both",
                (20, 6_000.0),
                Some((1_000, 500.0)),
                [true, true, true],
            ),
        ];
        for (name, today, before, [slow, degrading, very_slow]) in cases {
            let measured = |(samples, p95_ms): (u64, f64)| Measured { samples, p95_ms };
            let expected = Verdict {
                slow: *slow,
                degrading: *degrading,
                very_slow: *very_slow,
            };
            assert_eq!(
                judge(measured(*today), before.map(measured)),
                expected,
                "{name}"
            );
        }
    }
}
