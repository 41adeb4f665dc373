//! How fast a replay goes: never faster than was asked for, and never so much at once that live deliveries of the
//! same endpoint wait behind it.
//!
//! # Invariants
//! - O1: what is made and waits at an endpoint stays under half of what its worker loads of it at a time
//!   (twice its limit of requests, 64 at most), so new events are always loaded beside it.

use std::time::Duration;

use time::OffsetDateTime;

/// What is made per second unless another rate is asked for.
pub const DEFAULT_PER_SECOND: f64 = 100.0;
/// The slowest and the fastest that may be asked for.
pub const LEAST_PER_SECOND: f64 = 0.01;
/// See [`LEAST_PER_SECOND`].
pub const MOST_PER_SECOND: f64 = 1_000.0;

/// Deliveries made at a time, in one commit.
pub const MOST_AT_ONCE: usize = 500;
/// Made and not ended, at one endpoint: most of these wait for their next attempt.
pub const MOST_OUTSTANDING: usize = 1_000;
/// Made and never tried, at one endpoint.
const MOST_WAITING: usize = 64;
/// So long a time's worth is made at once.
const SPAN: Duration = Duration::from_millis(100);

/// How many more may be made for an endpoint that takes so many requests at once.
#[must_use]
pub fn room(max_in_flight: u16, waiting: usize, outstanding: usize) -> usize {
    let most = usize::from(max_in_flight).clamp(1, MOST_WAITING);
    let waiting = most.saturating_sub(waiting);
    waiting
        .min(MOST_OUTSTANDING.saturating_sub(outstanding))
        .min(MOST_AT_ONCE)
}

/// How many may be made now at this rate; none before `paced_until`.
#[must_use]
pub fn allowance(per_second: f64, paced_until: OffsetDateTime, now: OffsetDateTime) -> usize {
    if paced_until > now {
        return 0;
    }
    let span = per_second.clamp(LEAST_PER_SECOND, MOST_PER_SECOND) * SPAN.as_secs_f64();
    let mut most = 1_u16;
    while f64::from(most) + 1.0 <= span {
        most += 1;
    }
    usize::from(most)
}

/// When the next may be made, after so many were.
#[must_use]
pub fn paced_until(
    per_second: f64,
    before: OffsetDateTime,
    made: usize,
    now: OffsetDateTime,
) -> OffsetDateTime {
    let per_second = per_second.clamp(LEAST_PER_SECOND, MOST_PER_SECOND);
    let made = f64::from(u32::try_from(made).unwrap_or(u32::MAX));
    // A little of the time that was lost is made up for, no more: that would be a burst.
    let from = before.max(now.saturating_sub(time::Duration::try_from(SPAN).unwrap_or_default()));
    from.saturating_add(time::Duration::seconds_f64(made / per_second))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);

    #[test]
    fn an_endpoint_has_room_for_as_many_as_it_takes_at_once() {
        assert_eq!(room(10, 0, 0), 10);
        assert_eq!(room(10, 7, 7), 3);
        assert_eq!(room(10, 12, 12), 0);
        assert_eq!(room(1, 0, 0), 1);
        assert_eq!(room(1_000, 0, 0), 64);
        assert_eq!(room(10, 0, 995), 5);
        assert_eq!(room(10, 0, 2_000), 0);
    }

    proptest! {
        /// Whatever the turns, no more are made in any time than the rate allows, and a tenth of a second's more.
        #[test]
        fn the_rate_holds_over_any_sequence_of_turns(
            per_second in 0.1..1_000.0_f64,
            pauses in prop::collection::vec(1_i64..400, 1..200),
        ) {
            let mut now = NOW;
            let mut until = NOW - time::Duration::days(1);
            let mut made = 0.0;
            for pause in pauses {
                let count = allowance(per_second, until, now);
                if count > 0 {
                    until = paced_until(per_second, until, count, now);
                    made += f64::from(u32::try_from(count).unwrap());
                }
                let elapsed = (now - NOW).as_seconds_f64();
                let most = per_second * (elapsed + 0.2) + 1.0;
                prop_assert!(made <= most, "{made} in {elapsed} s at {per_second}/s");
                now += time::Duration::milliseconds(pause);
            }
        }

        #[test]
        fn something_is_made_when_its_time_has_come(per_second in 0.01..1_000.0_f64) {
            prop_assert_eq!(allowance(per_second, NOW + time::Duration::milliseconds(1), NOW), 0);
            let count = allowance(per_second, NOW, NOW);
            prop_assert!((1..=100).contains(&count));
        }
    }
}
