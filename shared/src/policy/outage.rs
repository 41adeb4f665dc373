//! Outages seen from their end: since when an endpoint fails, what of an outage is sent again when
//! it is over, and when an endpoint is given up. Not here: opening and closing
//! ([`breaker`](super::breaker)).
//!
//! What needs history is verified where the history is, in SQL, when one of these rules says so:
//! before an endpoint is disabled, that there were at least 10 failures over at least 12 hours since
//! `failing_since` and no success; before a dead letter is sent again, that it was not made by such
//! a replay itself.

use std::time::Duration;

use time::OffsetDateTime;

use super::backoff::longest_delay;
use super::instant::{earlier, since};
use crate::domain::attempt::Outcome;
use crate::domain::endpoint::EndpointSettings;

/// So many permanent refusals without a success between them are an outage of their own: a deploy
/// that answers 422 to everything for 20 minutes, not one bad payload.
pub const REFUSALS: u16 = 10;

/// Dead letters that died from `from` to `until`, both included, belong to an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first instant.
    pub from: OffsetDateTime,
    /// The last instant; not before `from`.
    pub until: OffsetDateTime,
}

/// The window of an outage that ended at `closed_at`. A delivery that was first tried when the
/// endpoint began to fail may have died up to a ladder before the breaker opened.
#[must_use]
pub fn recovery_window(
    opened_at: OffsetDateTime,
    failing_since: Option<OffsetDateTime>,
    closed_at: OffsetDateTime,
    longest_ladder: Duration,
) -> Window {
    let began = failing_since.map_or(opened_at, |since| since.min(opened_at));
    Window {
        from: earlier(began, longest_ladder).min(closed_at),
        until: closed_at,
    }
}

/// The longest a delivery's ladder takes under these settings, if the receiver asks for no more time.
#[must_use]
pub fn longest_ladder(settings: &EndpointSettings) -> Duration {
    let delays: Duration = (1..settings.max_attempts)
        .map(|made| longest_delay(&settings.backoff, made))
        .sum();
    let requests = settings
        .timeout()
        .saturating_mul(u32::from(settings.max_attempts));
    delays.saturating_add(requests).min(settings.max_age())
}

/// Since when an endpoint fails, and since when it refuses for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failing {
    since: Option<OffsetDateTime>,
    refusals: u16,
    first_refusal: Option<OffsetDateTime>,
}

impl Failing {
    /// As it was stored.
    #[must_use]
    pub fn restored(
        failing_since: Option<OffsetDateTime>,
        refusing_since: Option<OffsetDateTime>,
    ) -> Self {
        Self {
            since: failing_since,
            refusals: if refusing_since.is_some() {
                REFUSALS
            } else {
                0
            },
            first_refusal: refusing_since,
        }
    }

    /// The start of the first failed request since the last success; a permanent refusal is one.
    #[must_use]
    pub fn since(&self) -> Option<OffsetDateTime> {
        self.since
    }

    /// A failure that came before those that are known of, with no success since.
    pub fn began(&mut self, at: OffsetDateTime) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
    }

    /// The start of the first of [`REFUSALS`] or more permanent refusals since the last success.
    #[must_use]
    pub fn refusing_since(&self) -> Option<OffsetDateTime> {
        self.first_refusal
            .filter(|_first| self.refusals >= REFUSALS)
    }

    /// Permanent refusals since the last success, as far as is known.
    #[must_use]
    pub const fn refusals(&self) -> u16 {
        self.refusals
    }

    /// The run of permanent refusals at the end of the attempts, as read after a take-over, and when the
    /// first of them started; takes the larger.
    pub fn counted(&mut self, refusals: u16, first_started_at: OffsetDateTime) {
        if refusals <= self.refusals {
            return;
        }
        self.refusals = refusals;
        let earlier = |at: Option<OffsetDateTime>| {
            Some(at.map_or(first_started_at, |at| at.min(first_started_at)))
        };
        self.first_refusal = earlier(self.first_refusal);
        self.since = earlier(self.since);
    }

    /// A request that started then has ended. Whether [`since`](Self::since) or
    /// [`refusing_since`](Self::refusing_since) changed, which is to be stored.
    ///
    /// A success ends both. What says nothing about the endpoint, or only that it is busy, ends and
    /// begins neither.
    pub fn ended(&mut self, outcome: Outcome, started_at: OffsetDateTime) -> bool {
        let before = (self.since, self.refusing_since());
        match outcome {
            Outcome::Delivered => *self = Self::default(),
            Outcome::Transient | Outcome::Misconfigured => {
                self.since.get_or_insert(started_at);
            }
            Outcome::Permanent => {
                self.since.get_or_insert(started_at);
                self.first_refusal.get_or_insert(started_at);
                self.refusals = self.refusals.saturating_add(1);
            }
            Outcome::Throttled
            | Outcome::Gone
            | Outcome::Internal
            | Outcome::Refused
            | Outcome::Expired => {}
        }
        before != (self.since, self.refusing_since())
    }
}

/// Whether an endpoint that has just failed again is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disable {
    /// No.
    Not,
    /// Half of the time is over: its tenant is told.
    Soon,
    /// The time is over. Verify in SQL that there were enough failures and no success.
    Due,
}

/// Asked when an attempt has failed, and only then: time without traffic proves nothing.
/// `limit`: how long an endpoint may fail without any success; zero is for ever.
#[must_use]
pub fn disable_due(
    failing_since: Option<OffsetDateTime>,
    now: OffsetDateTime,
    limit: Duration,
) -> Disable {
    let Some(failing) = failing_since.filter(|_at| !limit.is_zero()) else {
        return Disable::Not;
    };
    let length = since(failing, now);
    if length >= limit {
        Disable::Due
    } else if length >= limit / 2 {
        Disable::Soon
    } else {
        Disable::Not
    }
}

#[cfg(test)]
mod tests;
