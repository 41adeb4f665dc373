//! Percentiles of response times, exact: from how often each whole millisecond occurred.
//!
//! Attempts are measured in whole milliseconds, so that counts per value lose nothing, and a minute of a busy
//! endpoint is some hundreds of pairs instead of many thousands of rows.
//!
//! # Invariants
//! - Equal to PostgreSQL's `percentile_cont` over the same samples, to the last bit (a property test asks it):
//!   the same interpolation, with the same operations in the same order.
//! - [`Rolling`] holds no minute twice: a minute that is counted again replaces what was counted before.

use std::collections::BTreeMap;

/// The percentiles that are computed, as `percentile_cont` is asked for them.
pub const FRACTIONS: [f64; 3] = [0.5, 0.95, 0.99];

/// Milliseconds under which half, 95 % and 99 % of the responses lie.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Percentiles {
    /// The median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

impl From<[f64; 3]> for Percentiles {
    fn from([p50_ms, p95_ms, p99_ms]: [f64; 3]) -> Self {
        Self {
            p50_ms,
            p95_ms,
            p99_ms,
        }
    }
}

/// One minute of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minute {
    /// Milliseconds and how many responses took so long, in any order, each value once.
    pub counts: Vec<(i32, u32)>,
}

/// The samples of an endpoint in a window that moves by whole minutes.
#[derive(Debug, Clone, Default)]
pub struct Rolling {
    minutes: BTreeMap<i64, Minute>,
    /// Of all minutes together.
    sum: BTreeMap<i32, u64>,
    samples: u64,
    pairs: usize,
}

impl Rolling {
    /// Counts a minute (since 1970), instead of what was counted of it before.
    pub fn replace(&mut self, number: i64, minute: Minute) {
        self.remove(number);
        if minute.counts.is_empty() {
            return;
        }
        for (ms, count) in &minute.counts {
            *self.sum.entry(*ms).or_default() += u64::from(*count);
            self.samples += u64::from(*count);
        }
        self.pairs += minute.counts.len();
        self.minutes.insert(number, minute);
    }

    /// Takes the minutes before this one out.
    pub fn forget_before(&mut self, number: i64) {
        while let Some((first, _)) = self.minutes.first_key_value()
            && *first < number
        {
            let first = *first;
            self.remove(first);
        }
    }

    /// Takes the minutes from this one on out: they are about to be counted again.
    pub fn forget_from(&mut self, number: i64) {
        while let Some((last, _)) = self.minutes.last_key_value()
            && *last >= number
        {
            let last = *last;
            self.remove(last);
        }
    }

    fn remove(&mut self, number: i64) {
        let Some(minute) = self.minutes.remove(&number) else {
            return;
        };
        self.pairs -= minute.counts.len();
        for (ms, count) in minute.counts {
            self.samples -= u64::from(count);
            if let Some(left) = self.sum.get_mut(&ms) {
                *left -= u64::from(count);
                if *left == 0 {
                    self.sum.remove(&ms);
                }
            }
        }
    }

    /// How many samples are in the window.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// How many of them are in minutes before this one.
    #[must_use]
    pub fn samples_before(&self, number: i64) -> u64 {
        let counts = self.minutes.range(..number).flat_map(|(_, it)| &it.counts);
        counts.map(|(_, count)| u64::from(*count)).sum()
    }

    /// What it takes in memory: pairs of eight bytes.
    #[must_use]
    pub const fn pairs(&self) -> usize {
        self.pairs
    }

    /// `None` without samples.
    #[must_use]
    pub fn percentiles(&self) -> Option<Percentiles> {
        let mut found = [0.0; 3];
        for (place, fraction) in found.iter_mut().zip(FRACTIONS) {
            *place = percentile_cont(&self.sum, self.samples, fraction)?;
        }
        Some(found.into())
    }
}

/// PostgreSQL's definition: the value at rank `fraction * (n - 1)`, between two samples in proportion.
/// Source: the documentation of ordered-set aggregates.
fn percentile_cont(sum: &BTreeMap<i32, u64>, samples: u64, fraction: f64) -> Option<f64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "PostgreSQL computes ranks in float8 as well; samples of a day are far below 2^53"
    )]
    let rank = fraction * samples.checked_sub(1)? as f64;
    let below = rank.floor();
    let low = at_rank(sum, below)?;
    let high = at_rank(sum, rank.ceil())?;
    #[expect(
        clippy::suboptimal_flops,
        reason = "a fused multiply-add would round otherwise than PostgreSQL"
    )]
    let between = low + (rank - below) * (high - low);
    Some(between)
}

/// The sample with this rank, counted from 0.
fn at_rank(sum: &BTreeMap<i32, u64>, rank: f64) -> Option<f64> {
    let mut seen = 0_u64;
    for (ms, count) in sum {
        seen += count;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        if (seen as f64) > rank {
            return Some(f64::from(*ms));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn minute(samples: &[i32]) -> Minute {
        let mut counts = BTreeMap::new();
        for ms in samples {
            *counts.entry(*ms).or_insert(0) += 1;
        }
        Minute {
            counts: counts.into_iter().collect(),
        }
    }

    fn rolling(samples: &[i32]) -> Rolling {
        let mut rolling = Rolling::default();
        rolling.replace(0, minute(samples));
        rolling
    }

    #[test]
    fn known_samples_have_the_percentiles_that_postgresql_gives() {
        // As `SELECT percentile_cont(ARRAY[.5, .95, .99]) WITHIN GROUP (ORDER BY v)` prints them.
        let cases: &[(&[i32], [f64; 3])] = &[
            (&[7], [7.0, 7.0, 7.0]),
            (&[1, 2], [1.5, 1.95, 1.99]),
            (&[5, 5, 5, 5], [5.0, 5.0, 5.0]),
            (&[30, 10, 20], [20.0, 29.0, 29.8]),
            (&[0, 0, 0, 100], [0.0, 85.0, 97.0]),
        ];
        for (samples, expected) in cases {
            let found = rolling(samples).percentiles().unwrap();
            for (found, expected) in [found.p50_ms, found.p95_ms, found.p99_ms]
                .iter()
                .zip(expected)
            {
                assert!(
                    (found - expected).abs() < 1e-9,
                    "{samples:?}: {found} {expected}"
                );
            }
        }
        assert_eq!(Rolling::default().percentiles(), None);
    }

    proptest! {
        #[test]
        fn a_window_that_moved_is_the_window_that_was_counted_at_once(
            minutes in proptest::collection::vec(proptest::collection::vec(0..50_i32, 0..20), 1..30),
            first in 0..30_i64,
            again in 0..30_i64,
        ) {
            let mut moved = Rolling::default();
            for (number, samples) in (0..).zip(&minutes) {
                // As long as a minute is open it is counted again and again.
                moved.replace(number, minute(&samples[..samples.len() / 2]));
                moved.replace(number, minute(samples));
            }
            moved.forget_from(again);
            for (number, samples) in (0..).zip(&minutes).filter(|(number, _)| *number >= again) {
                moved.replace(number, minute(samples));
            }
            moved.forget_before(first);

            let kept = (0..).zip(&minutes).filter(|(number, _)| *number >= first);
            let all: Vec<i32> = kept.flat_map(|(_, samples)| samples.clone()).collect();
            let at_once = rolling(&all);

            prop_assert_eq!(moved.samples(), at_once.samples());
            prop_assert_eq!(&moved.sum, &at_once.sum);
            prop_assert_eq!(moved.percentiles(), at_once.percentiles());
            prop_assert_eq!(moved.pairs() == 0, all.is_empty());
        }
    }
}
