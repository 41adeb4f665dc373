//! How much at once: the one adaptive limit of an endpoint. It starts at one request after a
//! recovery and grows with successes; 429 and time-outs cut it. Not here: the endpoint's own rate
//! limit ([`bucket`](super::bucket)) and waiting as `Retry-After` says (the scheduler).
//!
//! The level is a real number from 1/128 to the cap. From one on it is the number of requests in
//! flight; below one it is a pace, one request at a time and a pause after each
//! (docs/adr/0009-a-limit-below-one-is-a-pace.md).

use std::time::Duration;

use time::OffsetDateTime;

/// The lowest level.
const LOWEST: f64 = 1.0 / 128.0;

/// The shortest response time that a pause is computed from: below it, clocks and schedulers decide.
const SHORTEST_RESPONSE: Duration = Duration::from_millis(1);

/// The longest pause: a receiver that needs more says `Retry-After`.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a success adds after a 429, as a share of the level.
const SHARE: f64 = 0.001_5;

/// What a 429 leaves of the level.
const CUT: f64 = 0.5;

/// The adaptive limit of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveLimit {
    level: f64,
    /// The last cut. A request that started before it says what is known already.
    cut_at: Option<OffsetDateTime>,
    /// It was cut for a 429: it feels its way instead of climbing.
    throttled: bool,
}

impl AdaptiveLimit {
    /// An endpoint that nothing bad is known of: the whole cap.
    #[must_use]
    pub fn at(cap: u16) -> Self {
        Self {
            level: f64::from(cap.max(1)),
            cut_at: None,
            throttled: false,
        }
    }

    /// An endpoint whose breaker has just closed: one request, then two, …
    #[must_use]
    pub fn recovering() -> Self {
        Self::at(1)
    }

    /// Whether one more request may start beside those in flight.
    #[must_use]
    pub fn allows(&self, in_flight: usize, cap: u16) -> bool {
        let Some(next) = in_flight.checked_add(1) else {
            return false;
        };
        let Ok(next) = u16::try_from(next) else {
            return false;
        };
        next <= cap.max(1) && f64::from(next) <= self.level.max(1.0)
    }

    /// The pause after a response that took so long; zero from level one on.
    #[must_use]
    pub fn pause(&self, response_time: Duration) -> Duration {
        let factor = (self.level.recip() - 1.0).max(0.0);
        let seconds = response_time.max(SHORTEST_RESPONSE).as_secs_f64() * factor;
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(LONGEST_PAUSE)
            .min(LONGEST_PAUSE)
    }

    /// A request was delivered.
    pub fn succeeded(&mut self, cap: u16) {
        let step = if self.throttled {
            self.level * SHARE
        } else {
            // One more per round of as many successes: 1, 2, 3, …
            self.level.max(1.0).recip()
        };
        self.level = (self.level + step).min(f64::from(cap.max(1)));
    }

    /// The receiver said 429 to a request that started then.
    pub fn throttled(&mut self, started_at: OffsetDateTime, now: OffsetDateTime) {
        if self.cuts(started_at, now) {
            self.throttled = true;
            self.level = (self.level * CUT).max(LOWEST);
        }
    }

    /// A request that started then ran into its deadline.
    pub fn timed_out(&mut self, started_at: OffsetDateTime, now: OffsetDateTime) {
        if self.cuts(started_at, now) {
            // Slow is not busy: the pace is left as it is.
            self.level = (self.level / 2.0).max(1.0).min(self.level);
        }
    }

    /// Whether the ramp after a recovery is over: half of the cap is reached, or it was cut.
    #[must_use]
    pub fn is_ramped(&self, cap: u16) -> bool {
        self.cut_at.is_some() || self.level >= f64::from(cap) / 2.0
    }

    fn cuts(&mut self, started_at: OffsetDateTime, now: OffsetDateTime) -> bool {
        if self.cut_at.is_some_and(|cut| started_at < cut) {
            return false;
        }
        self.cut_at = Some(now);
        true
    }
}
