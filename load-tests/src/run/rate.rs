//! Checks R1 at the receiver: in any window of t seconds at most rate·t + burst requests.

use std::ops::Range;

/// The limit that was promised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promise {
    pub(super) per_second: f64,
    pub(super) burst: f64,
    /// Requests that are t apart when they start may arrive so much closer together.
    pub(super) jitter_ns: u64,
}

impl Promise {
    /// The worst of all windows. `arrivals_ns` ascend.
    ///
    /// The most that any window ending at an arrival has, less rate·t, is 1 more than the most that
    /// the arrival before had, less what the rate allowed since: so one pass sees all windows.
    pub(super) fn worst(&self, arrivals_ns: &[u64]) -> Worst {
        let jitter = self.jitter_ns as f64 / 1e9 * self.per_second;
        let allowed = self.burst + jitter;
        let (mut level, mut from_ns, mut last_ns) = (0.0_f64, 0, 0);
        let mut worst = Worst {
            excess: -allowed,
            window: 0..0,
        };
        for arrived_ns in arrivals_ns {
            let since = arrived_ns.saturating_sub(last_ns) as f64 / 1e9;
            level -= since * self.per_second;
            if level <= 0.0 {
                (level, from_ns) = (0.0, *arrived_ns);
            }
            level += 1.0;
            if level - allowed > worst.excess {
                worst = Worst {
                    excess: level - allowed,
                    window: from_ns..*arrived_ns,
                };
            }
            last_ns = *arrived_ns;
        }
        worst
    }
}

/// The window with the most requests above the promise.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Worst {
    /// Requests above the promise; negative: not even here as many as there might be.
    pub(super) excess: f64,
    /// From its first arrival to its last.
    pub(super) window: Range<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise {
        per_second: 20.0,
        burst: 10.0,
        jitter_ns: 0,
    };

    /// A burst of 10 at `from_ns` and then 20 per second for `seconds`.
    fn full_speed(from_ns: u64, seconds: u64) -> Vec<u64> {
        let burst = std::iter::repeat_n(from_ns, 10);
        let steady = (1..=seconds * 20).map(|it| from_ns + it * 50_000_000);
        burst.chain(steady).collect()
    }

    /// The definition, over all pairs.
    fn by_all_windows(arrivals: &[u64]) -> f64 {
        let mut worst = f64::MIN;
        for (from, start) in arrivals.iter().enumerate() {
            for (number, end) in arrivals[from..].iter().enumerate() {
                let seconds = (end - start) as f64 / 1e9;
                worst = worst.max((number + 1) as f64 - seconds * PROMISE.per_second);
            }
        }
        worst - PROMISE.burst
    }

    #[test]
    fn full_speed_keeps_the_promise_and_one_request_more_breaks_it() {
        let good = full_speed(1_000_000_000, 5);
        let mut bad = good.clone();
        bad.insert(60, bad[60]);

        assert!(PROMISE.worst(&good).excess.abs() < 1e-6);
        assert!((PROMISE.worst(&bad).excess - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_second_bucket_that_starts_full_is_found_wherever_it_starts() {
        // What two workers do that both believe they own the endpoint, or one that starts with a
        // full bucket after a crash.
        let mut series = full_speed(1_000_000_000, 5);
        series.extend(full_speed(6_050_000_000, 5));

        let worst = PROMISE.worst(&series);
        assert!((worst.excess - 9.0).abs() < 1e-6);
        assert_eq!(worst.window.start, 1_000_000_000);
        assert!(worst.window.end >= 6_050_000_000);
    }

    #[test]
    fn a_quiet_time_fills_the_bucket_and_no_more() {
        let mut series = full_speed(1_000_000_000, 1);
        series.extend(full_speed(60_000_000_000, 1));
        let with_eleven = [series.as_slice(), &[61_000_000_000]].concat();

        assert!(PROMISE.worst(&series).excess <= 1e-6);
        assert!((PROMISE.worst(&with_eleven).excess - 1.0).abs() < 1e-6);
    }

    #[test]
    fn one_pass_finds_what_all_windows_have() {
        // Uneven, by a linear congruence: bursts, gaps and everything between.
        let mut state = 7_u64;
        let mut at_ns = 0;
        let series: Vec<u64> = (0..300)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                at_ns += (state >> 40) * 10;
                at_ns
            })
            .collect();

        assert!((PROMISE.worst(&series).excess - by_all_windows(&series)).abs() < 1e-6);
    }

    #[test]
    fn jitter_allows_what_it_explains_and_no_more() {
        let jittery = Promise {
            jitter_ns: 25_000_000,
            ..PROMISE
        };
        let mut series = full_speed(1_000_000_000, 2);
        series[40] -= 20_000_000;
        let late = series.clone();
        series.push(series[series.len() - 1]);

        assert!(jittery.worst(&late).excess <= 0.0);
        assert!(PROMISE.worst(&late).excess > 0.3);
        assert!((jittery.worst(&series).excess - 0.5).abs() < 1e-6);
    }
}
