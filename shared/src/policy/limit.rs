//! How much at once: the one adaptive limit of an endpoint. It starts at one request after a
//! recovery and grows with successes; 429 and time-outs cut it. Not here: the endpoint's own rate
//! limit ([`bucket`](super::bucket)) and waiting as `Retry-After` says (the scheduler).
//!
//! The level is a real number from 1/128 to the cap. From one on it is the number of requests in
//! flight; below one it is a pace, one request at a time and a pause after each
//! (docs/adr/0009-a-limit-below-one-is-a-pace.md, with the figures behind the constants).

use std::time::Duration;

use time::OffsetDateTime;

use super::instant::since;

/// The lowest level.
const LOWEST: f64 = 1.0 / 128.0;

/// The shortest response time that a pause is computed from: below it, clocks and schedulers decide.
const SHORTEST_RESPONSE: Duration = Duration::from_millis(1);

/// Rounds of a ramp at each level: whoever is back from an outage and can take little says so at a low one.
const RAMP_ROUNDS: f64 = 2.5;

/// The longest pause: a receiver that needs more says `Retry-After`.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the first 429 leaves of the level.
const FIRST_CUT: f64 = 0.5;

/// What a later 429 leaves at least ...
const DEEPEST_CUT: f64 = 1.0 / 32.0;

/// ... and at most.
const SHALLOWEST_CUT: f64 = 0.8;

/// Between "what was kept up, pauses included" (1) and "what was too much" (0), as exponents.
const TRUST: f64 = 0.7;

/// So many successes lead back to the level of the last 429, however deep the cut: at most one 429 in
/// as many requests comes from asking for more.
const CLIMB: f64 = 300.0;

/// How long an endpoint is left alone after a 429 that does not say how long.
pub const PARK: Duration = Duration::from_secs(1);

/// The adaptive limit of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveLimit {
    level: f64,
    /// The last cut. A request that started before it says what is known already.
    cut_at: Option<OffsetDateTime>,
    /// What the last 429 left to know, until the cap is reached again.
    throttle: Option<Throttle>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Throttle {
    at: OffsetDateTime,
    /// What a success adds, as a share of the level.
    share: f64,
}

impl AdaptiveLimit {
    /// An endpoint that nothing bad is known of: the whole cap.
    #[must_use]
    pub fn at(cap: u16) -> Self {
        Self {
            level: f64::from(cap.max(1)),
            cut_at: None,
            throttle: None,
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

    /// A request was delivered. `cap`: the endpoint's own limit on requests in flight.
    pub fn succeeded(&mut self, cap: u16) {
        let step = self.throttle.map_or_else(
            // One more per two and a half rounds of as many successes: 1, 2, 3, …
            || (RAMP_ROUNDS * self.level.max(1.0)).recip(),
            |throttle| self.level * throttle.share,
        );
        let cap = f64::from(cap.max(1));
        self.level += step;
        if self.level >= cap {
            self.level = cap;
            self.throttle = None;
        }
    }

    /// The receiver said 429 to a request that started then.
    pub fn throttled(&mut self, started_at: OffsetDateTime, now: OffsetDateTime) {
        if !self.cuts(started_at, now) {
            return;
        }
        let left = self
            .throttle
            .map_or(FIRST_CUT, |last| kept_up(since(last.at, now)));
        self.throttle = Some(Throttle {
            at: now,
            share: -left.ln() / CLIMB,
        });
        self.level = (self.level * left).max(LOWEST);
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

/// What to keep of a level that led to another 429 so long after the last one. For [`PARK`] of it
/// nothing was sent: over the whole time the receiver kept up with this share of the level. That is
/// too little, for it may have been ready long before; the level itself was too much.
fn kept_up(length: Duration) -> f64 {
    let sending = length.saturating_sub(PARK).as_secs_f64();
    let share = sending / length.as_secs_f64().max(f64::MIN_POSITIVE);
    share.powf(TRUST).clamp(DEEPEST_CUT, SHALLOWEST_CUT)
}

#[cfg(test)]
mod tests;
