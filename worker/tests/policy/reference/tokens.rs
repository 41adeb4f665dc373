//! A token bucket as a level that fills, where `shared::policy` keeps an instant.

use std::time::Duration;

use shared::domain::endpoint::RateLimit;

use super::At;

/// Tokens are computed in floating point here.
pub(super) const ROUNDING: f64 = 1e-6;
/// Positions of buckets are stored in whole microseconds, which a slower limit makes longer.
pub(super) const MOMENT: Duration = Duration::from_micros(200);

/// How many there are at most: a limit counts from when it is set. And at least: its owner may have to begin
/// with an empty bucket, and one that does not know the endpoint yet later than now (`None`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens {
    pub(super) limit: RateLimit,
    pub(super) most: f64,
    pub(super) least: Option<f64>,
    pub(super) at: At,
}

impl Tokens {
    pub(super) fn fill(&mut self, now: At) {
        let passed = (now - self.at).as_seconds_f64().max(0.0);
        let (rate, burst) = (self.limit.per_second, f64::from(self.limit.burst));
        let filled = |level: f64| (level + passed * rate).min(burst);
        (self.most, self.least, self.at) = (filled(self.most), self.least.map(filled), now);
    }

    pub(super) fn at(mut self, now: At) -> Self {
        self.fill(now);
        self
    }

    pub(super) fn is_full(&self) -> bool {
        self.most >= f64::from(self.limit.burst) - ROUNDING
    }

    pub(super) fn empty(&mut self, now: At) {
        (self.most, self.least, self.at) = (0.0, Some(0.0), now);
    }
}
