//! How fast a key may be used: one bucket per key in the memory of each API process, so that a request
//! asks nobody. A key that is used through n processes gets n times its limit at most.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, MonotonicClock};
use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use shared::domain::limits::KeyRate;

use crate::problem::{ApiError, Kind};

type Limiter = RateLimiter<NotKeyed, InMemoryState, MonotonicClock, StateInformationMiddleware>;

/// The bucket of a key.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) limit: KeyRate,
    bucket: Limiter,
    clock: MonotonicClock,
}

/// What is left, for the headers of the reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remaining {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// Seconds until all of it is there again.
    pub(crate) reset: u64,
}

impl Rate {
    pub(super) fn new(limit: KeyRate) -> Self {
        let one = NonZeroU32::MIN;
        let quota = Quota::per_second(NonZeroU32::new(limit.per_second).unwrap_or(one))
            .allow_burst(NonZeroU32::new(limit.burst).unwrap_or(one));
        let clock = MonotonicClock;
        Self {
            limit,
            bucket: RateLimiter::direct_with_clock(quota, clock.clone()).with_middleware(),
            clock,
        }
    }

    /// Takes `count` out, or says from when on they are there.
    pub(super) fn take(&self, count: u32) -> (Remaining, Result<(), ApiError>) {
        let Some(count) = NonZeroU32::new(count) else {
            return (self.remaining(self.limit.burst), Ok(()));
        };
        match self.bucket.check_n(count) {
            Ok(Ok(state)) => (self.remaining(state.remaining_burst_capacity()), Ok(())),
            Ok(Err(not_until)) => {
                let wait = not_until.wait_time_from(self.clock.now());
                let KeyRate { per_second, burst } = self.limit;
                let detail = format!(
                    "this key may be used {per_second} times a second, {burst} at once; each event counts"
                );
                let error = ApiError::new(Kind::RateLimited, detail).retry_after(seconds(wait));
                (self.remaining(0), Err(error))
            }
            Err(_never) => {
                let detail = format!(
                    "{count} events at once are more than this key may ever send: send at most {} in one request",
                    self.limit.burst
                );
                (
                    self.remaining(0),
                    Err(ApiError::new(Kind::LimitReached, detail)),
                )
            }
        }
    }

    fn remaining(&self, remaining: u32) -> Remaining {
        let missing = self.limit.burst.saturating_sub(remaining);
        Remaining {
            limit: self.limit.burst,
            remaining,
            reset: u64::from(missing.div_ceil(self.limit.per_second.max(1))),
        }
    }
}

/// Whole seconds, at least one: `Retry-After` knows no others.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0).max(u64::from(wait.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32, burst: u32) -> Rate {
        Rate::new(KeyRate { per_second, burst })
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_says_when_to_come_back() {
        let rate = rate(1, 3);

        let (left, first) = rate.take(3);
        let (_, second) = rate.take(1);

        assert!(first.is_ok());
        assert_eq!((left.limit, left.remaining, left.reset), (3, 0, 3));
        assert_eq!(second.unwrap_err().kind(), Kind::RateLimited);
    }

    #[test]
    fn what_can_never_fit_is_told_apart_from_what_has_to_wait() {
        assert_eq!(rate(1, 3).take(4).1.unwrap_err().kind(), Kind::LimitReached);
    }

    #[test]
    fn a_wait_is_rounded_up_to_whole_seconds() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(2)), 2);
        assert_eq!(seconds(Duration::from_millis(2_001)), 3);
        assert_eq!(seconds(Duration::ZERO), 1);
    }
}
