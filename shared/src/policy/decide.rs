//! From verdict to consequence: what becomes of a delivery after an attempt.
//!
//! Pure: the caller gives the time and a draw of chance. Not here: what the outcome means for the
//! endpoint (breaker, auto-disable) and the parking of an endpoint that said `Retry-After`.
//!
//! Two counters: *made* numbers the requests, *charged* is what `max_attempts` limits. Not charged
//! are a 429, and a request whose connection ended as connections do (*maybe sent*, *not sent*), while
//! fewer than [`MAX_FORGIVEN`] attempts of the delivery went uncharged; such a one is sent again at once.
//! Never charged is an attempt for which this machine had no socket, or its proxy was away: its endpoint was
//! not asked.
//!
//! A retry that would come after the delivery's end of life (`max_age`, `deliver_before`) is not
//! scheduled: the delivery becomes a dead letter now rather than wait to become one. The draw
//! decides, not its bound: near its end a delivery is not tried more often than otherwise.
//!
//! # Invariants
//! - D4 `charged ≤ max_attempts`; only an attempt that was made raises it, by at most one.
//! - D5 `now ≤ next ≤ now + max(backoff's cap, 24 h)`; `Retry-After` only delays.
//! - D6 a decision other than `RetryAt` is final.

use std::time::Duration;

use time::OffsetDateTime;

use super::backoff::{UnitInterval, next_delay};
use super::classify::Verdict;
use super::instant::later;
use crate::domain::attempt::Outcome;
use crate::domain::delivery::{CloseReason, DeadLetterClass};
use crate::domain::endpoint::EndpointSettings;

/// How many attempts of one delivery may be forgiven as nobody's fault. A receiver whose idle limit
/// is ours to the millisecond loses one now and then; one that always does is broken.
pub const MAX_FORGIVEN: u16 = 3;

/// The longest wait after an attempt that was forgiven. Short, because nothing is wrong; not zero, because
/// a server that restarts ends many connections at once.
const MAX_FORGIVEN_DELAY: Duration = Duration::from_secs(1);

/// The longest wait after an attempt that failed by what is ours to mend: half a minute after it is mended,
/// all is sent. It doubles from a second, so that all that fails so at once does not come back at once.
const MAX_MENDING_DELAY: Duration = Duration::from_secs(30);

/// The most requests for one delivery, charged or not: what the database's counter holds.
pub const MAX_ATTEMPTS_MADE: u16 = i16::MAX.unsigned_abs();

/// The shortest wait after an attempt that is never charged. It doubles with the attempts made up to the
/// longest: nothing else keeps such a delivery from being tried every second for days.
const MIN_UNCHARGED_DELAY: Duration = Duration::from_secs(1);
/// The longest wait after a 429.
const MAX_THROTTLED_DELAY: Duration = Duration::from_secs(3_600);

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Delivered.
    Complete,
    /// Try again, not before this instant.
    RetryAt(OffsetDateTime),
    /// No longer tried; kept, explained, replayable.
    DeadLetter(DeadLetterClass),
    /// Ended without being delivered or dead. Of attempts it follows only from a test's.
    Close(CloseReason),
    /// The receiver is gone: the endpoint is disabled, the delivery and all that wait are closed.
    DisableEndpoint(CloseReason),
}

/// A decision and what goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// What becomes of the delivery.
    pub decision: Decision,
    /// Attempts charged, this one included if it is.
    pub charged: u16,
    /// The attempt was nobody's fault: it says nothing about the endpoint.
    pub forgiven: bool,
    /// Why it is a dead letter, in words.
    pub reason: Option<&'static str>,
    /// The last attempt of its ladder failed, and not by a refusal: if the endpoint had no success
    /// since the first one, it is down.
    pub exhausted: bool,
}

impl Decided {
    /// What becomes of a delivery that was only a test: somebody waits for its one answer, so it is not tried
    /// again and leaves no dead letter.
    #[must_use]
    pub fn of_a_test(self) -> Self {
        let decision = match self.decision {
            Decision::RetryAt(_) | Decision::DeadLetter(_) => {
                Decision::Close(CloseReason::TestFailed)
            }
            Decision::Complete | Decision::Close(_) | Decision::DisableEndpoint(_) => self.decision,
        };
        Self {
            decision,
            exhausted: false,
            ..self
        }
    }
}

/// Where a delivery stands when an attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests made, the one just ended included.
    pub attempts_made: u16,
    /// Attempts charged before the one just ended.
    pub attempts_charged: u16,
    /// When the delivery was created.
    pub created_at: OffsetDateTime,
    /// The event's own end of life.
    pub deliver_before: Option<OffsetDateTime>,
}

impl Progress {
    /// The instant from which the delivery is not sent any more, and why.
    fn end_of_life(&self, settings: &EndpointSettings) -> (OffsetDateTime, &'static str) {
        let by_age = later(self.created_at, settings.max_age());
        match self.deliver_before {
            Some(at) if at < by_age => {
                (at, "its deliver_before would pass before the next attempt")
            }
            Some(_) | None => (by_age, "its max_age would pass before the next attempt"),
        }
    }

    /// Whether the attempt just ended counts against `max_attempts`.
    fn charges(&self, verdict: &Verdict) -> bool {
        let uncharged_before = self
            .attempts_made
            .saturating_sub(1)
            .saturating_sub(self.attempts_charged);
        match verdict.outcome {
            Outcome::Throttled | Outcome::Refused | Outcome::Internal | Outcome::Expired => false,
            Outcome::Delivered
            | Outcome::Transient
            | Outcome::Misconfigured
            | Outcome::Permanent
            | Outcome::Gone => !verdict.blameless || uncharged_before >= MAX_FORGIVEN,
        }
    }

    /// Whether the attempt just ended is nobody's fault and is sent again soon.
    fn forgives(&self, verdict: &Verdict) -> bool {
        verdict.blameless
            && (is_ours_to_mend(verdict) || verdict.outcome == Outcome::Transient)
            && !self.charges(verdict)
    }
}

/// What becomes of a delivery after an attempt, or instead of one.
#[must_use]
pub fn decide(
    settings: &EndpointSettings,
    progress: &Progress,
    verdict: &Verdict,
    now: OffsetDateTime,
    jitter: UnitInterval,
) -> Decided {
    let charged = progress
        .attempts_charged
        .saturating_add(u16::from(progress.charges(verdict)))
        .min(settings.max_attempts.max(progress.attempts_charged));
    let after = Progress {
        attempts_charged: charged,
        ..*progress
    };
    let again = |class, floor| {
        retry(
            settings,
            &after,
            class,
            (now, delay(settings, progress, verdict, jitter).max(floor)),
        )
    };
    let (decision, reason) = match verdict.outcome {
        Outcome::Delivered => (Decision::Complete, None),
        Outcome::Transient => again(DeadLetterClass::Transient, Duration::ZERO),
        Outcome::Misconfigured => again(DeadLetterClass::Misconfigured, Duration::ZERO),
        Outcome::Throttled => again(
            DeadLetterClass::Throttled,
            doubling_delay(progress.attempts_made, MAX_THROTTLED_DELAY, jitter),
        ),
        Outcome::Internal if is_ours_to_mend(verdict) => {
            again(DeadLetterClass::Internal, Duration::ZERO)
        }
        Outcome::Gone => (Decision::DisableEndpoint(CloseReason::Gone), None),
        Outcome::Permanent => dead(
            DeadLetterClass::Permanent,
            "the receiver refused it for good",
        ),
        Outcome::Internal => dead(DeadLetterClass::Internal, "it could not be sent: our fault"),
        Outcome::Refused => dead(
            DeadLetterClass::Refused,
            "nothing was sent: the endpoint's address or template does not allow it",
        ),
        Outcome::Expired => dead(DeadLetterClass::Expired, "it was too old to be sent"),
    };
    let exhausted = matches!(
        decision,
        Decision::DeadLetter(DeadLetterClass::Transient | DeadLetterClass::Misconfigured)
    );
    Decided {
        decision,
        charged,
        forgiven: progress.forgives(verdict),
        reason,
        exhausted,
    }
}

/// The delay before the next attempt: backoff, and no shorter than the receiver asks.
fn delay(
    settings: &EndpointSettings,
    progress: &Progress,
    verdict: &Verdict,
    jitter: UnitInterval,
) -> Duration {
    let own = if is_ours_to_mend(verdict) {
        doubling_delay(progress.attempts_made, MAX_MENDING_DELAY, jitter)
    } else if progress.forgives(verdict) {
        MAX_FORGIVEN_DELAY.mul_f64(jitter.get())
    } else {
        next_delay(&settings.backoff, progress.attempts_made, jitter)
    };
    own.max(verdict.retry_after.unwrap_or(Duration::ZERO))
}

/// We had no socket for it, or no proxy: ours to mend, and it will pass.
fn is_ours_to_mend(verdict: &Verdict) -> bool {
    verdict.blameless && verdict.outcome == Outcome::Internal
}

/// In the second half of a bound that doubles with each attempt: for what is never charged.
fn doubling_delay(attempts_made: u16, longest: Duration, jitter: UnitInterval) -> Duration {
    let doublings = u32::from(attempts_made.saturating_sub(1));
    let bound = MIN_UNCHARGED_DELAY
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(longest);
    bound
        .mul_f64(f64::midpoint(1.0, jitter.get()))
        .clamp(MIN_UNCHARGED_DELAY, bound)
}

/// A retry, unless the ladder or the delivery's life ends first.
fn retry(
    settings: &EndpointSettings,
    after: &Progress,
    class: DeadLetterClass,
    (now, delay): (OffsetDateTime, Duration),
) -> (Decision, Option<&'static str>) {
    let exhausted = after.attempts_charged >= settings.max_attempts;
    if exhausted || after.attempts_made >= MAX_ATTEMPTS_MADE {
        return dead(class, "all its attempts are used");
    }
    let next = later(now, delay);
    let (end, reason) = after.end_of_life(settings);
    if next >= end {
        return dead(expiry_class(class), reason);
    }
    (Decision::RetryAt(next), None)
}

/// A delivery that was throttled to its end is told apart: the receiver is well, but too slow for us.
const fn expiry_class(class: DeadLetterClass) -> DeadLetterClass {
    match class {
        DeadLetterClass::Throttled => DeadLetterClass::Throttled,
        DeadLetterClass::Transient
        | DeadLetterClass::Misconfigured
        | DeadLetterClass::Permanent
        | DeadLetterClass::Internal
        | DeadLetterClass::Refused
        | DeadLetterClass::Expired => DeadLetterClass::Expired,
    }
}

const fn dead(class: DeadLetterClass, reason: &'static str) -> (Decision, Option<&'static str>) {
    (Decision::DeadLetter(class), Some(reason))
}

#[cfg(test)]
mod tests;
