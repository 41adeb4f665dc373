//! How one endpoint of the receiver answers, and the limits that it keeps.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How deliveries are answered. As JSON, an absent field is the default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Answers {
    pub status: u16,
    /// The share of requests, 0 to 1, that is answered `fail_status` instead.
    pub fail: f64,
    /// 0: the connection is closed without an answer.
    pub fail_status: u16,
    /// Milliseconds for which each answer is held back.
    pub delay_ms: u64,
    /// Read and never answer: until the sender's deadline.
    pub hang: bool,
    /// Read and close the connection without an answer.
    pub hang_up: bool,
    /// Above it: 429.
    pub limit: Option<Limit>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            status: 200,
            fail: 0.0,
            fail_status: 503,
            delay_ms: 0,
            hang: false,
            hang_up: false,
            limit: None,
        }
    }
}

impl Answers {
    /// How long each answer is held back.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms)
    }
}

/// What a receiver takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// `burst` requests at once, and so many per second. The 429 says `Retry-After` if asked to:
    /// the whole seconds until there is room for one.
    Bucket {
        per_second: f64,
        burst: f64,
        retry_after: bool,
    },
    /// So many requests in a window that begins with its first one. The 429 says `Retry-After`: the
    /// whole seconds until its end.
    Window { most: u32, length_ms: u64 },
}

/// A request above the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Seconds in `Retry-After`.
    pub retry_after: Option<u64>,
}

/// A limit and how much of it is used. All instants are of one clock, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Limiter {
    limit: Limit,
    /// Bucket: requests in it as of `since_ns`. Window: requests in the one that began then.
    used: f64,
    since_ns: u64,
}

impl Limiter {
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            used: 0.0,
            since_ns: 0,
        }
    }

    /// Takes a request in, or refuses it.
    pub fn take(&mut self, now_ns: u64) -> Result<(), Refusal> {
        let past = seconds(now_ns.saturating_sub(self.since_ns));
        match self.limit {
            Limit::Bucket {
                per_second,
                burst,
                retry_after,
            } => {
                self.used = (self.used - past * per_second).max(0.0);
                self.since_ns = now_ns;
                let room_in = (self.used + 1.0 - burst) / per_second;
                self.enter(room_in <= 0.0, room_in)
                    .map_err(|refusal| Refusal {
                        retry_after: refusal.retry_after.filter(|_| retry_after),
                    })
            }
            Limit::Window { most, length_ms } => {
                let length = length_ms as f64 / 1e3;
                if past >= length || self.since_ns == 0 {
                    self.used = 0.0;
                    self.since_ns = now_ns;
                    return self.enter(most > 0, length);
                }
                self.enter(self.used < f64::from(most), length - past)
            }
        }
    }

    fn enter(&mut self, room: bool, room_in: f64) -> Result<(), Refusal> {
        if room {
            self.used += 1.0;
            return Ok(());
        }
        let wait = Duration::try_from_secs_f64(room_in.ceil()).unwrap_or_default();
        Err(Refusal {
            retry_after: Some(wait.as_secs().max(1)),
        })
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn taken(limiter: &mut Limiter, at_ns: impl IntoIterator<Item = u64>) -> usize {
        at_ns
            .into_iter()
            .filter(|now| limiter.take(*now).is_ok())
            .count()
    }

    #[test]
    fn a_bucket_takes_its_burst_at_once_and_its_rate_in_the_long_run() {
        let mut limiter = Limiter::new(Limit::Bucket {
            per_second: 20.0,
            burst: 5.0,
            retry_after: true,
        });

        assert_eq!(taken(&mut limiter, [SECOND; 50]), 5);
        assert_eq!(
            limiter.take(SECOND),
            Err(Refusal {
                retry_after: Some(1)
            })
        );
        let ten_seconds = (0..10_000).map(|it| SECOND + it * SECOND / 1_000);
        assert!((199..=201).contains(&taken(&mut limiter, ten_seconds)));
    }

    #[test]
    fn a_bucket_that_is_not_asked_to_says_nothing_about_when() {
        let mut limiter = Limiter::new(Limit::Bucket {
            per_second: 0.1,
            burst: 1.0,
            retry_after: false,
        });

        assert_eq!(limiter.take(SECOND), Ok(()));
        assert_eq!(limiter.take(SECOND), Err(Refusal { retry_after: None }));
    }

    #[test]
    fn a_window_takes_so_many_and_says_when_it_ends() {
        let mut limiter = Limiter::new(Limit::Window {
            most: 10,
            length_ms: 6_000,
        });

        assert_eq!(taken(&mut limiter, [5 * SECOND; 50]), 10);
        let late_in_it = limiter.take(5 * SECOND + 3 * SECOND / 2);
        assert_eq!(
            late_in_it,
            Err(Refusal {
                retry_after: Some(5)
            })
        );
        assert_eq!(taken(&mut limiter, [11 * SECOND; 50]), 10);
    }
}
