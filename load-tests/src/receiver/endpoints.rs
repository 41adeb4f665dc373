//! The receiver's endpoints: how each answers, what each was asked, and when.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answers::{Answers, Limiter};
use crate::ids::{Id, IdMap};

/// The highest endpoint number that has answers of its own.
const MOST: usize = 1 << 20;
/// Requests that were on their way when a 429 was answered come in for so long, in nanoseconds.
const ON_THEIR_WAY: u64 = 250_000_000;

/// Endpoints by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Numbers(Vec<Range<usize>>);

impl Numbers {
    #[must_use]
    pub fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().cloned().flatten()
    }
}

impl From<Range<usize>> for Numbers {
    fn from(range: Range<usize>) -> Self {
        Self(Vec::from([range]))
    }
}

impl FromIterator<usize> for Numbers {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        Self(numbers.into_iter().map(|it| it..it + 1).collect())
    }
}

/// A change of how some endpoints answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub endpoints: Numbers,
    pub answers: Answers,
    /// Whether the instant of each request is kept from now on.
    #[serde(default)]
    pub journal: bool,
}

/// A request at a journalled endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Boot-clock nanoseconds.
    pub at_ns: u64,
    /// What it was answered.
    pub status: u16,
    /// The random half of the delivery's id.
    pub delivery: u64,
}

/// What an endpoint was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    pub requests: u64,
    pub throttled: u64,
    /// Requests of a delivery that had been told a later time by `Retry-After`.
    pub early: u64,
    /// Requests before the time that any delivery had been told, those on their way not counted.
    pub early_at_endpoint: u64,
}

/// The answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: u16,
    /// Seconds.
    pub(super) retry_after: Option<u64>,
    pub(super) delay: Duration,
    pub(super) hang: bool,
    pub(super) hang_up: bool,
}

/// All endpoints; those that nothing was said about answer by default.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    default: Answers,
    by_number: HashMap<usize, Endpoint>,
}

#[derive(Debug)]
struct Endpoint {
    answers: Answers,
    limiter: Option<Limiter>,
    journal: Option<Vec<Arrival>>,
    counts: EndpointCounts,
    /// Until when each delivery was told to wait.
    told: IdMap<u64>,
    /// From when, and until when, the endpoint was told to be left alone.
    told_all: Range<u64>,
}

impl Endpoints {
    pub(super) fn new(default: Answers) -> Self {
        Self {
            default,
            by_number: HashMap::new(),
        }
    }

    pub(super) fn change(&mut self, change: &Change) {
        for number in change.endpoints.iter().take_while(|it| *it < MOST) {
            self.endpoint(number).change(change);
        }
    }

    /// Takes a request in.
    pub(super) fn arrive(&mut self, number: usize, request: Asked) -> Verdict {
        self.endpoint(number.min(MOST)).arrive(request)
    }

    pub(super) fn counts(&self, numbers: Range<usize>) -> Vec<EndpointCounts> {
        self.each(numbers, |endpoint| endpoint.counts)
    }

    pub(super) fn arrivals(&self, numbers: Range<usize>) -> Vec<Vec<Arrival>> {
        self.each(numbers, |it| it.journal.clone().unwrap_or_default())
    }

    fn each<T: Default>(&self, numbers: Range<usize>, of: impl Fn(&Endpoint) -> T) -> Vec<T> {
        (numbers.start..numbers.end.min(MOST))
            .map(|number| self.by_number.get(&number).map(&of).unwrap_or_default())
            .collect()
    }

    fn endpoint(&mut self, number: usize) -> &mut Endpoint {
        let default = self.default;
        self.by_number
            .entry(number)
            .or_insert_with(|| Endpoint::new(default))
    }
}

/// A request, as far as its answer depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) delivery: Id,
    pub(super) now_ns: u64,
    /// 0 to 1: below the share that fails, it is one of those.
    pub(super) chance: f64,
}

impl Endpoint {
    fn new(answers: Answers) -> Self {
        Self {
            answers,
            limiter: answers.limit.map(Limiter::new),
            journal: None,
            counts: EndpointCounts::default(),
            told: IdMap::default(),
            told_all: 0..0,
        }
    }

    fn change(&mut self, change: &Change) {
        if self.answers.limit != change.answers.limit {
            self.limiter = change.answers.limit.map(Limiter::new);
        }
        self.answers = change.answers;
        if change.journal {
            self.journal.get_or_insert_default();
        }
    }

    fn arrive(&mut self, request: Asked) -> Verdict {
        let now_ns = request.now_ns;
        self.counts.requests += 1;
        if self
            .told
            .get(&request.delivery)
            .is_some_and(|until| now_ns < *until)
        {
            self.counts.early += 1;
        }
        if self.told_all.contains(&now_ns) {
            self.counts.early_at_endpoint += 1;
        }
        let refused = self.limiter.as_mut().and_then(|it| it.take(now_ns).err());
        let (status, retry_after) = match refused {
            Some(refusal) => (429, refusal.retry_after),
            None if request.chance < self.answers.fail => (self.answers.fail_status, None),
            None => (self.answers.status, None),
        };
        if status == 429 {
            self.counts.throttled += 1;
        }
        if let Some(seconds) = retry_after {
            let until_ns = now_ns.saturating_add(seconds.saturating_mul(1_000_000_000));
            self.told.insert(request.delivery, until_ns);
            let from_ns = now_ns.saturating_add(ON_THEIR_WAY);
            if now_ns >= self.told_all.end {
                self.told_all = from_ns..until_ns;
            } else {
                self.told_all.end = self.told_all.end.max(until_ns);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.push(Arrival {
                at_ns: now_ns,
                status,
                delivery: random_half(request.delivery),
            });
        }
        Verdict {
            status,
            retry_after,
            delay: self.answers.delay(),
            hang: self.answers.hang,
            hang_up: self.answers.hang_up || status == 0,
        }
    }
}

/// The half of an id that tells it from the others of its millisecond.
#[must_use]
pub fn random_half(id: Id) -> u64 {
    u64::try_from(id & Id::from(u64::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::answers::Limit;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn ask(endpoints: &mut Endpoints, number: usize, delivery: Id, now_ns: u64) -> Verdict {
        let request = Asked {
            delivery,
            now_ns,
            chance: 0.5,
        };
        endpoints.arrive(number, request)
    }

    fn one_in_ten_seconds() -> Endpoints {
        let mut endpoints = Endpoints::default();
        let limit = Limit::Window {
            most: 1,
            length_ms: 10_000,
        };
        endpoints.change(&Change {
            endpoints: (1..2).into(),
            answers: Answers {
                limit: Some(limit),
                ..Answers::default()
            },
            journal: true,
        });
        endpoints
    }

    #[test]
    fn each_endpoint_answers_as_it_was_told_and_the_others_by_default() {
        let mut endpoints = Endpoints::default();
        endpoints.change(&Change {
            endpoints: (1..3).into(),
            answers: Answers {
                fail: 0.6,
                delay_ms: 20,
                ..Answers::default()
            },
            journal: false,
        });

        let statuses: Vec<u16> = (0..4)
            .map(|number| ask(&mut endpoints, number, 7, SECOND).status)
            .collect();

        assert_eq!(statuses, [200, 503, 503, 200]);
        let delayed = ask(&mut endpoints, 2, 7, SECOND);
        assert_eq!(delayed.delay, Duration::from_millis(20));
        assert_eq!(
            endpoints
                .counts(0..3)
                .iter()
                .map(|it| it.requests)
                .sum::<u64>(),
            4
        );
        assert_eq!(ask(&mut endpoints, usize::MAX, 7, SECOND).status, 200);
    }

    #[test]
    fn a_request_before_the_stated_time_is_early_and_one_at_that_time_is_not() {
        let mut endpoints = one_in_ten_seconds();

        assert_eq!(ask(&mut endpoints, 1, 1, SECOND).status, 200);
        let refused = ask(&mut endpoints, 1, 2, 2 * SECOND);
        ask(&mut endpoints, 1, 3, 2 * SECOND + SECOND / 10);
        ask(&mut endpoints, 1, 2, 5 * SECOND);
        ask(&mut endpoints, 1, 2, 12 * SECOND);

        assert_eq!(refused.retry_after, Some(9));
        let counts = endpoints.counts(1..2)[0];
        assert_eq!((counts.requests, counts.throttled), (5, 3));
        assert_eq!(counts.early, 1, "delivery 2, six seconds too soon");
        assert_eq!(counts.early_at_endpoint, 1, "not the one on its way");
    }

    #[test]
    fn the_journal_has_each_request_with_its_answer() {
        let mut endpoints = one_in_ten_seconds();

        ask(&mut endpoints, 0, 1, SECOND);
        ask(&mut endpoints, 1, 2, 2 * SECOND);
        ask(&mut endpoints, 1, 3, 3 * SECOND);

        let journal = endpoints.arrivals(0..2);
        let arrival = |at_ns, status, delivery| Arrival {
            at_ns,
            status,
            delivery,
        };
        let second = vec![arrival(2 * SECOND, 200, 2), arrival(3 * SECOND, 429, 3)];
        assert_eq!(journal, [vec![], second]);
    }
}
