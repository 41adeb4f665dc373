//! How fast an endpoint may be sent to: a token bucket of one instant (GCRA: ITU-T I.371, ATM Forum
//! Traffic Management 4.0). Decides whether a request may start and from when on the next may; who
//! owns the bucket, and whether a stored position is to be believed, is the worker's matter.
//!
//! The *theoretical arrival time* `tat` is when the bucket will be full again: every request taken
//! moves it one period on. A request fits if afterwards `tat ≤ now + burst · period`.
//!
//! Nanoseconds since 1970 in an `i128`: no sum of real instants and lengths leaves it, so the law
//! holds to the last year of the calendar.
//!
//! # Invariants
//! - R1 in any window of t seconds at most `rate · t + burst` are taken, across crashes (a new bucket
//!   is empty as of the take-over), hand-overs (positions round up), changes of the quota (spent
//!   tokens stay spent; the larger rate and burst of the window count) and eviction of full buckets.

use std::time::Duration;

use time::{OffsetDateTime, PrimitiveDateTime};

use crate::domain::endpoint::RateLimit;

/// The longest period, about 31 years: so that a product of two fits.
const MAX_PERIOD: i128 = 1_000_000_000_000_000_000;

const NANOS_PER_MICRO: i128 = 1_000;

/// A rate limit in the units of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Nanoseconds per token, rounded up; 1 to `MAX_PERIOD`.
    period: i128,
    /// Tokens of a full bucket; at least 1.
    burst: i128,
}

impl Quota {
    /// `None` for what limits nothing sensibly: a rate that is not finite or not above zero, and a
    /// burst of 0. A rate below one in 31 years counts as that.
    #[must_use]
    pub fn new(limit: &RateLimit) -> Option<Self> {
        let rate = limit.per_second;
        if !rate.is_finite() || rate <= 0.0 || limit.burst == 0 {
            return None;
        }
        Some(Self {
            period: period(rate),
            burst: i128::from(limit.burst),
        })
    }

    /// The time between two tokens.
    #[must_use]
    pub fn period(&self) -> Duration {
        u64::try_from(self.period).map_or(Duration::MAX, Duration::from_nanos)
    }

    const fn tokens(&self, count: i128) -> i128 {
        self.period.saturating_mul(count)
    }
}

/// Nanoseconds per token. The conversion rounds to the nearest; below the truth it is one more.
fn period(rate: f64) -> i128 {
    let Ok(nearest) = Duration::try_from_secs_f64(rate.recip()) else {
        return MAX_PERIOD;
    };
    let up = i128::from(nearest.as_secs_f64() * rate < 1.0);
    let nanos = i128::try_from(nearest.as_nanos()).unwrap_or(MAX_PERIOD);
    nanos.saturating_add(up).clamp(1, MAX_PERIOD)
}

/// The tokens of an endpoint. Two words; lives with the endpoint's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// When it will be full again, in nanoseconds since 1970.
    tat: i128,
}

impl Bucket {
    /// A full bucket: of an endpoint that nobody can have sent to lately.
    #[must_use]
    pub fn full(now: OffsetDateTime) -> Self {
        Self {
            tat: now.unix_timestamp_nanos(),
        }
    }

    /// A bucket that was empty at that instant, however late it is made: what the former owner sent
    /// before it is not known, what was sent since is.
    #[must_use]
    pub fn emptied_at(at: OffsetDateTime, quota: &Quota) -> Self {
        Self {
            tat: at
                .unix_timestamp_nanos()
                .saturating_add(quota.tokens(quota.burst)),
        }
    }

    /// The bucket of the former owner, from its [`position`](Self::position). It is a length of time
    /// in tokens of that owner's quota: under another one, an [emptied](Self::emptied_at) bucket is due.
    #[must_use]
    pub fn handed_over(position: OffsetDateTime) -> Self {
        Self {
            tat: position.unix_timestamp_nanos(),
        }
    }

    /// When the next token is there; may be in the past.
    #[must_use]
    pub fn earliest(&self, quota: &Quota) -> OffsetDateTime {
        instant(self.next(quota))
    }

    /// When the next token is there for somebody who leaves half of the bucket to others; may be in the past.
    #[must_use]
    pub fn earliest_above_half(&self, quota: &Quota) -> OffsetDateTime {
        instant(
            self.next(quota)
                .saturating_add(quota.tokens(quota.burst / 2)),
        )
    }

    /// Takes a token.
    ///
    /// # Errors
    /// When one will be there.
    pub fn take(&mut self, now: OffsetDateTime, quota: &Quota) -> Result<(), OffsetDateTime> {
        let nanos = now.unix_timestamp_nanos();
        if nanos < self.next(quota) {
            return Err(self.earliest(quota));
        }
        self.tat = self.tat.max(nanos).saturating_add(quota.period);
        Ok(())
    }

    /// Goes on under another quota. The tokens that are there stay, parts of one as well, as far as
    /// the new burst holds them; a change never gives one. So spent tokens stay spent, also those of a
    /// former owner that nobody knows of: not even a larger burst is there at once.
    pub fn requota(&mut self, now: OffsetDateTime, old: &Quota, new: &Quota) {
        if old == new {
            return;
        }
        let now = now.unix_timestamp_nanos();
        let spent = self.tat.saturating_sub(now).max(0);
        let (whole, part) = (spent.div_euclid(old.period), spent.rem_euclid(old.period));
        // Both factors are at most MAX_PERIOD, so the product fits; rounded up.
        let part = part
            .saturating_mul(new.period)
            .saturating_add(old.period - 1)
            .div_euclid(old.period);
        let spent = new
            .tokens(whole.saturating_add(new.burst - old.burst))
            .saturating_add(part);
        self.tat = now.saturating_add(spent.max(0));
    }

    /// Whether nothing of it is spent: only then may it be forgotten.
    #[must_use]
    pub fn is_full(&self, now: OffsetDateTime) -> bool {
        self.tat <= now.unix_timestamp_nanos()
    }

    /// What to store at a hand-over: rounded up to the microsecond, which is what PostgreSQL keeps.
    #[must_use]
    pub fn position(&self) -> OffsetDateTime {
        let up = self.tat.saturating_add(NANOS_PER_MICRO - 1);
        instant(up.saturating_sub(up.rem_euclid(NANOS_PER_MICRO)))
    }

    const fn next(&self, quota: &Quota) -> i128 {
        self.tat.saturating_sub(quota.tokens(quota.burst - 1))
    }
}

/// The instant, or the end of the calendar that it lies beyond.
fn instant(nanos: i128) -> OffsetDateTime {
    let end = if nanos < 0 {
        PrimitiveDateTime::MIN
    } else {
        PrimitiveDateTime::MAX
    };
    OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or_else(|_beyond| end.assume_utc())
}

#[cfg(test)]
mod tests;
