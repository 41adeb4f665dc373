//! When to try again: backoff. Decides a delay, never *whether* (`decide`).
//!
//! The delay before attempt n + 1 (n = attempts made):
//! - doubling: uniform in `0 .. min(base · 2^n, max)` (full jitter, which spreads a backlog that failed
//!   together over the whole span); with the defaults (30 s, 3600 s) the second attempt follows within
//!   60 s, the fifth within 480 s;
//! - `standard-webhooks`: uniform in the second half of the schedule's delay, 5 s, 5 min, 30 min, 2 h,
//!   5 h, 10 h, 14 h, 20 h, 24 h and 24 h from then on. Half of it stays fixed: a schedule is chosen
//!   for its length, and a delay near zero would spend an attempt on the same minute.
//!
//! # Invariants
//! - D5 a delay is never above the backoff's cap, whatever the number of attempts.

use std::time::Duration;

use crate::domain::endpoint::{Backoff, Doubling, Preset};

/// Seconds between the attempts of the Standard Webhooks specification 1.0; the last one repeats.
const STANDARD_WEBHOOKS: [u32; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

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

/// The most any delay can be.
#[must_use]
pub fn cap(backoff: &Backoff) -> Duration {
    longest_delay(backoff, u16::MAX)
}

/// The most the delay after this many attempts can be.
#[must_use]
pub fn longest_delay(backoff: &Backoff, attempts_made: u16) -> Duration {
    match backoff {
        Backoff::Doubling(doubling) => doubled(doubling, attempts_made),
        Backoff::Preset(Preset::StandardWebhooks) => {
            let index = usize::from(attempts_made.saturating_sub(1));
            let seconds = STANDARD_WEBHOOKS
                .get(index)
                .or(STANDARD_WEBHOOKS.last())
                .copied()
                .unwrap_or(0);
            Duration::from_secs(seconds.into())
        }
    }
}

fn doubled(doubling: &Doubling, attempts_made: u16) -> Duration {
    // 32 doublings take any base above zero past any maximum, and a u32 cannot overflow a u64.
    let doublings = attempts_made.min(32);
    let seconds = u64::from(doubling.base_seconds) << doublings;
    Duration::from_secs(seconds.min(u64::from(doubling.max_seconds)))
}

/// The delay before the next attempt.
#[must_use]
pub fn next_delay(backoff: &Backoff, attempts_made: u16, jitter: UnitInterval) -> Duration {
    let longest = longest_delay(backoff, attempts_made);
    let share = match backoff {
        Backoff::Doubling(_) => jitter.get(),
        Backoff::Preset(_) => f64::midpoint(1.0, jitter.get()),
    };
    longest.mul_f64(share).min(longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STANDARD: Backoff = Backoff::Preset(Preset::StandardWebhooks);

    #[test]
    fn the_default_ladder_is_the_documented_one() {
        let bounds: Vec<u64> = (1..=8)
            .map(|made| longest_delay(&Backoff::FAST, made).as_secs())
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

    #[test]
    fn the_preset_is_the_schedule_of_standard_webhooks() {
        let minutes = |made| longest_delay(&STANDARD, made).as_secs_f64() / 60.0;
        let schedule: Vec<f64> = (2..=12).map(minutes).collect();
        assert_eq!(
            schedule,
            [
                5.0, 30.0, 120.0, 300.0, 600.0, 840.0, 1_200.0, 1_440.0, 1_440.0, 1_440.0, 1_440.0
            ]
        );
        assert_eq!(longest_delay(&STANDARD, 1), Duration::from_secs(5));
        assert_eq!(longest_delay(&STANDARD, 0), Duration::from_secs(5));
        assert_eq!(cap(&STANDARD), Duration::from_secs(86_400));

        let draw = |value| next_delay(&STANDARD, 2, UnitInterval::new(value).unwrap()).as_secs();
        assert_eq!([draw(0.0), draw(0.5), draw(1.0)], [150, 225, 300]);
    }

    fn any_doubling() -> impl Strategy<Value = Doubling> {
        let seconds = || prop_oneof![0_u32..=120, 0_u32..=86_400, any::<u32>()];
        (seconds(), seconds()).prop_map(|(base_seconds, max_seconds)| Doubling {
            base_seconds,
            max_seconds,
        })
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        prop_oneof![3 => any_doubling().prop_map(Backoff::Doubling), 1 => Just(STANDARD)]
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
            prop_assert!(bound <= cap(&backoff));
            if let Backoff::Doubling(doubling) = backoff {
                let exact = u128::from(doubling.base_seconds).saturating_mul(2_u128.saturating_pow(u32::from(made)));
                let expected = exact.min(u128::from(doubling.max_seconds));
                prop_assert_eq!(u128::from(bound.as_secs()), expected);
            }
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
            let least = match backoff {
                Backoff::Doubling(_) => Duration::ZERO,
                Backoff::Preset(_) => longest_delay(&backoff, made) / 2,
            };
            prop_assert_eq!(draw(0.0), least);
            prop_assert_eq!(draw(1.0), longest_delay(&backoff, made));
        }
    }
}
