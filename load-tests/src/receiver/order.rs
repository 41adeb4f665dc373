//! Checks the order of what came per endpoint and ordering key.
//!
//! What FIFO promises: an event is sent when the one before it is final. So a higher number may come
//! only after the last one was answered 2xx, a lower one never, and the last one may come again: when
//! it was refused (a retry), or after a crash of its worker (a repeat).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The books of all keys.
#[derive(Debug, Default)]
pub struct OrderBook {
    keys: HashMap<(usize, u32), Last>,
    counts: OrderCounts,
}

/// What was found, in requests unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderCounts {
    pub keys: u64,
    pub requests: u64,
    /// A number below one that came before.
    pub backwards: u64,
    /// A number that came although the one before was not answered 2xx.
    pub overtaking: u64,
    /// The last one again after its 2xx.
    pub repeats: u64,
    /// The first that was out of order, for people.
    pub first_trouble: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    number: u64,
    done: bool,
}

impl OrderBook {
    /// Takes a request in.
    pub fn arrive(&mut self, endpoint: usize, key: u32, number: u64) {
        self.counts.requests += 1;
        let Some(last) = self.keys.get_mut(&(endpoint, key)) else {
            self.keys.insert(
                (endpoint, key),
                Last {
                    number,
                    done: false,
                },
            );
            return;
        };
        let before = *last;
        if number > before.number {
            *last = Last {
                number,
                done: false,
            };
            if before.done {
                return;
            }
            self.counts.overtaking += 1;
        } else if number < before.number {
            self.counts.backwards += 1;
        } else {
            self.counts.repeats += u64::from(before.done);
            return;
        }
        self.counts.first_trouble.get_or_insert_with(|| {
            let done = if before.done { "" } else { " not" };
            let last = before.number;
            format!(
                "endpoint {endpoint} key {key}: {number} after {last}, which was{done} answered 2xx"
            )
        });
    }

    /// The request was answered 2xx.
    pub fn answered(&mut self, endpoint: usize, key: u32, number: u64) {
        if let Some(last) = self.keys.get_mut(&(endpoint, key)) {
            last.done |= last.number == number;
        }
    }

    #[must_use]
    pub fn counts(&self) -> OrderCounts {
        OrderCounts {
            keys: u64::try_from(self.keys.len()).unwrap_or(u64::MAX),
            ..self.counts.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series of one key: numbers, and whether each is answered 2xx before the next comes.
    fn series(requests: &[(u64, bool)]) -> OrderCounts {
        let mut book = OrderBook::default();
        for (number, taken) in requests {
            book.arrive(3, 1, *number);
            // Another key in between changes nothing.
            book.arrive(3, 2, 1);
            book.arrive(4, 1, 1_000);
            if *taken {
                book.answered(3, 1, *number);
            }
        }
        book.counts()
    }

    #[test]
    fn retries_gaps_and_a_repeat_of_the_last_are_in_order() {
        let counts = series(&[(1, true), (2, false), (2, true), (2, true), (5, true)]);

        assert_eq!((counts.backwards, counts.overtaking), (0, 0));
        assert_eq!((counts.repeats, counts.keys), (1, 3));
        assert_eq!(counts.first_trouble, None);
    }

    #[test]
    fn one_that_comes_before_the_last_was_taken_overtakes_it() {
        let counts = series(&[(1, true), (2, false), (3, true)]);

        assert_eq!((counts.backwards, counts.overtaking), (0, 1));
        assert_eq!(
            counts.first_trouble.as_deref(),
            Some("endpoint 3 key 1: 3 after 2, which was not answered 2xx")
        );
    }

    #[test]
    fn one_that_comes_after_a_later_one_goes_backwards_even_when_it_was_taken_before() {
        let never_seen = series(&[(1, true), (3, true), (2, true)]);
        let repeated_late = series(&[(1, true), (2, true), (1, true)]);

        assert_eq!((never_seen.backwards, never_seen.overtaking), (1, 0));
        assert_eq!((repeated_late.backwards, repeated_late.repeats), (1, 0));
    }
}
