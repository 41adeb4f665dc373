//! When to try again: full-jitter exponential backoff. Decides a delay, never *whether* (`decide`).
//!
//! The delay before attempt n + 1 is uniform in `0 .. min(base · 2^n, max)`, n = attempts made; with
//! the defaults (30 s, 3600 s) the second attempt follows within 60 s, the fifth within 480 s.
//! Full jitter spreads a backlog that failed together over the whole span.
//!
//! # Invariants
//! - D5 a delay is never above `max`, whatever the number of attempts.

use std::time::Duration;

use crate::domain::endpoint::Backoff;

/// A number from 0 to 1, both included: a draw of chance, made by the caller.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct UnitInterval(f64);

impl UnitInterval {
    /// `None` outside 0..=1 and for what is no number.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// The most the delay after this many attempts can be.
#[must_use]
pub fn longest_delay(backoff: &Backoff, attempts_made: u16) -> Duration {
    // 32 doublings take any base above zero past any maximum, and a u32 cannot overflow a u64.
    let doublings = attempts_made.min(32);
    let seconds = u64::from(backoff.base_seconds) << doublings;
    Duration::from_secs(seconds.min(u64::from(backoff.max_seconds)))
}

/// The delay before the next attempt.
#[must_use]
pub fn next_delay(backoff: &Backoff, attempts_made: u16, jitter: UnitInterval) -> Duration {
    let longest = longest_delay(backoff, attempts_made);
    longest.mul_f64(jitter.get()).min(longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: Backoff = Backoff {
        base_seconds: 30,
        max_seconds: 3_600,
    };

    #[test]
    fn the_default_ladder_is_the_documented_one() {
        let bounds: Vec<u64> = (1..=8)
            .map(|made| longest_delay(&DEFAULT, made).as_secs())
            .collect();
        assert_eq!(bounds, [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]);
    }

    #[test]
    fn only_numbers_from_zero_to_one_are_draws() {
        for value in [0.0, 0.5, 1.0, f64::MIN_POSITIVE] {
            assert_eq!(UnitInterval::new(value).unwrap().get(), value);
        }
        for value in [-0.1, 1.000_001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(UnitInterval::new(value), None);
        }
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        let seconds = || prop_oneof![0_u32..=120, 0_u32..=86_400, any::<u32>()];
        (seconds(), seconds()).prop_map(|(base_seconds, max_seconds)| Backoff {
            base_seconds,
            max_seconds,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_024))]

        /// D5
        #[test]
        fn a_delay_is_within_its_bound_for_any_number_of_attempts(
            backoff in any_backoff(),
            made in any::<u16>(),
            draw in 0.0..=1.0_f64,
        ) {
            let jitter = UnitInterval::new(draw).unwrap();
            let delay = next_delay(&backoff, made, jitter);
            let bound = longest_delay(&backoff, made);
            prop_assert!(delay <= bound);
            prop_assert!(bound <= Duration::from_secs(u64::from(backoff.max_seconds)));
            let exact = u128::from(backoff.base_seconds).saturating_mul(2_u128.saturating_pow(u32::from(made)));
            let expected = exact.min(u128::from(backoff.max_seconds));
            prop_assert_eq!(u128::from(bound.as_secs()), expected);
        }

        #[test]
        fn the_bound_grows_with_attempts_and_the_delay_with_the_draw(
            backoff in any_backoff(),
            made in 0..u16::MAX,
            low in 0.0..=1.0_f64,
            high in 0.0..=1.0_f64,
        ) {
            prop_assert!(longest_delay(&backoff, made) <= longest_delay(&backoff, made + 1));
            let (low, high) = (low.min(high), low.max(high));
            let draw = |value| next_delay(&backoff, made, UnitInterval::new(value).unwrap());
            prop_assert!(draw(low) <= draw(high));
            prop_assert_eq!(draw(0.0), Duration::ZERO);
            prop_assert_eq!(draw(1.0), longest_delay(&backoff, made));
        }
    }
}
