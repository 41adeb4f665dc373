//! Latencies in a histogram of three significant digits, and what is reported of them.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart, in microseconds: ten minutes.
const LONGEST_US: u64 = 600_000_000;

/// Counts latencies.
#[derive(Debug)]
pub struct Latencies(Option<Histogram<u64>>);

/// Percentiles in milliseconds; zeros when there are no samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    pub samples: u64,
}

impl Latencies {
    #[must_use]
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_US, 3).ok())
    }

    /// Counts the time between two instants of the boot clock, in nanoseconds.
    pub fn record(&mut self, from_ns: u64, until_ns: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(until_ns.saturating_sub(from_ns) / 1_000);
        }
    }

    /// Takes another's counts in.
    pub fn merge(&mut self, other: &Self) {
        if let (Some(mine), Some(theirs)) = (&mut self.0, &other.0) {
            for value in theirs.iter_recorded() {
                mine.saturating_record_n(value.value_iterated_to(), value.count_at_value());
            }
        }
    }

    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let Some(histogram) = self.0.as_ref().filter(|histogram| !histogram.is_empty()) else {
            return Percentiles::default();
        };
        let at = |quantile| milliseconds(histogram.value_at_quantile(quantile));
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: milliseconds(histogram.max()),
            samples: histogram.len(),
        }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth_of_the_samples() {
        let mut one = Latencies::new();
        let mut other = Latencies::new();
        for millisecond in 1..=1_000_u64 {
            let half = if millisecond % 2 == 0 {
                &mut one
            } else {
                &mut other
            };
            half.record(5, 5 + millisecond * 1_000_000);
        }

        one.merge(&other);

        let found = one.percentiles();
        assert_eq!(found.samples, 1_000);
        for (found, exact) in [(found.p50, 500.0), (found.p99, 990.0), (found.max, 1_000.0)] {
            assert!(
                (found - exact).abs() <= exact / 900.0,
                "{found} instead of {exact}"
            );
        }
        assert_eq!(Latencies::new().percentiles(), Percentiles::default());
    }

    #[test]
    fn a_receipt_before_its_sending_counts_as_no_time() {
        let mut latencies = Latencies::new();

        latencies.record(10_000, 0);

        assert_eq!(latencies.percentiles().samples, 1);
        assert!(latencies.percentiles().max <= 0.001);
    }
}
