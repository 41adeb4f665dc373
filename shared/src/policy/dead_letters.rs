//! What the dead letters of an endpoint have in common, and what a person may do about it.
//!
//! Not here: counting them (`store::dead_letters`).

use std::time::Duration;

use crate::domain::coded;
use crate::domain::delivery::DeadLetterClass;

/// Those that died within such a time of each other are near: an outage, a deploy that went wrong.
pub const BURST_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Fewer than this are no burst, however near they are.
pub const LEAST_OF_A_BURST: u64 = 5;
/// Percent of them that must be near each other.
const BURST_PERCENT: u64 = 80;
/// Percent of them that must have been refused for who asked, or how often.
const AUTH_OR_THROTTLE_PERCENT: u64 = 50;
/// HTTP statuses that say so.
pub const AUTH_OR_THROTTLE: [i16; 4] = [401, 403, 407, 429];

coded! {
    /// What an endpoint's dead letters look like together.
    Pattern, "pattern" {
        /// Most died at about the same time.
        Burst = 1 "burst",
        /// At least half were refused for their credentials, or for coming too fast.
        AuthOrThrottle = 2 "auth_or_throttle",
        /// A few now and then.
        SlowDrip = 3 "slow_drip",
    }
}

/// What is counted of an endpoint's dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// All of them.
    pub count: u64,
    /// The most that died within [`BURST_WITHIN`].
    pub busiest: u64,
    /// Those with a status of [`AUTH_OR_THROTTLE`], or throttled until the end of their life.
    pub auth_or_throttle: u64,
}

/// What they look like. Credentials come first: such dead letters often come in bursts, and sending them again
/// does not help.
#[must_use]
pub fn pattern(sample: Sample) -> Pattern {
    if at_least(
        sample.auth_or_throttle,
        AUTH_OR_THROTTLE_PERCENT,
        sample.count,
    ) {
        Pattern::AuthOrThrottle
    } else if sample.count >= LEAST_OF_A_BURST
        && at_least(sample.busiest, BURST_PERCENT, sample.count)
    {
        Pattern::Burst
    } else {
        Pattern::SlowDrip
    }
}

fn at_least(part: u64, percent: u64, whole: u64) -> bool {
    // Wider than the numbers, so that none is too large.
    whole > 0 && u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// What a person may do, in words. `class` and `status` are of most of them.
#[must_use]
pub const fn advice(pattern: Pattern, class: DeadLetterClass, status: Option<i16>) -> &'static str {
    match (class, pattern, status) {
        (DeadLetterClass::Internal, ..) => {
            "The fault is on our side and the operator is told of it: nothing is wrong with the endpoint. Replay \
             these when it is mended."
        }
        (DeadLetterClass::Refused, ..) => {
            "The endpoint's address is not one that may be sent to (private, or reserved). Change its URL, or ask \
             the operator to allow the address; then replay these."
        }
        (DeadLetterClass::Expired, ..) => {
            "They became too old before they could be delivered. See why deliveries wait (the endpoint's health, its \
             rate_limit), or raise max_age_seconds; what has a deliver_before cannot be sent after it."
        }
        (_, Pattern::AuthOrThrottle, Some(429)) => {
            "The receiver takes fewer requests than it is sent. Set the endpoint's rate_limit below what it allows, \
             or have it allow more; then replay these, slowly (rate_per_second)."
        }
        (_, Pattern::AuthOrThrottle, Some(401 | 403 | 407)) => {
            "The receiver refuses the credentials. See whether a token in the endpoint's headers has expired, whether \
             it verifies with the current secret, and whether a firewall lets us through; then replay these."
        }
        (_, Pattern::AuthOrThrottle, _) => {
            "The receiver refuses the credentials, or the number of requests. Check the endpoint's headers, its secret \
             and its rate_limit; then replay these."
        }
        (DeadLetterClass::Misconfigured, _, Some(404)) => {
            "Nothing answers at the endpoint's path. Check its URL; when it is right, replay these."
        }
        (DeadLetterClass::Permanent, Pattern::Burst, _) => {
            "For a while the receiver refused what it was sent: often a deploy that went wrong. Look at one of the \
             responses; when the receiver is mended, replay these."
        }
        (DeadLetterClass::Permanent, Pattern::SlowDrip, _) => {
            "The receiver refuses some events for good. Look at the response of one of them: it is likely to say which \
             field it does not take. Replaying helps only after the receiver was changed."
        }
        (_, Pattern::Burst, _) => {
            "The receiver was away or failing for a while. If the endpoint's health is good again, replay these; an \
             endpoint with replay_on_recovery does so by itself."
        }
        (_, Pattern::SlowDrip, _) => {
            "The receiver fails now and then. Look at the attempts of one of them (timeouts: it should answer first and \
             work later), and consider more max_attempts or backoff \"standard-webhooks\"; then replay these."
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn sample(count: u64, busiest: u64, auth_or_throttle: u64) -> Sample {
        Sample {
            count,
            busiest,
            auth_or_throttle,
        }
    }

    #[test]
    fn each_pattern_begins_where_it_is_said_to() {
        for (sample, expected) in [
            (sample(5, 4, 0), Pattern::Burst),
            (sample(5, 3, 0), Pattern::SlowDrip),
            (sample(4, 4, 0), Pattern::SlowDrip),
            (sample(100, 80, 0), Pattern::Burst),
            (sample(100, 79, 0), Pattern::SlowDrip),
            (sample(100, 100, 49), Pattern::Burst),
            (sample(100, 100, 50), Pattern::AuthOrThrottle),
            (sample(1, 1, 1), Pattern::AuthOrThrottle),
            (sample(0, 0, 0), Pattern::SlowDrip),
        ] {
            assert_eq!(pattern(sample), expected, "{sample:?}");
        }
    }

    #[test]
    fn every_case_has_words_that_say_what_to_do() {
        for pattern in Pattern::ALL {
            for class in DeadLetterClass::ALL {
                for status in [None, Some(401), Some(404), Some(422), Some(429), Some(503)] {
                    let words = advice(*pattern, *class, status);
                    assert!(words.len() > 60 && words.ends_with('.'), "{words}");
                    assert!(!words.contains("  "), "{words}");
                }
            }
        }
    }

    proptest! {
        /// More of what makes a pattern never unmakes it, and numbers of any size are fine.
        #[test]
        fn patterns_are_monotonous(count: u64, busiest: u64, auth: u64, more in 0_u64..1_000) {
            let before = pattern(sample(count, busiest, auth));
            match before {
                Pattern::AuthOrThrottle => prop_assert_eq!(
                    pattern(sample(count, busiest, auth.saturating_add(more))), before),
                Pattern::Burst => prop_assert_eq!(
                    pattern(sample(count, busiest.saturating_add(more), auth)), before),
                Pattern::SlowDrip => {}
            }
        }
    }
}
