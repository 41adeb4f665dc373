//! What was received: unique events, deliveries, duplicates, latencies.
//!
//! A *duplicate* is a delivery that comes again after it was answered 2xx: the only kind that a
//! receiver has to undo. One that comes again after it was refused is a *repeat*: a retry.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::order::{OrderBook, OrderCounts};
use super::watch::{Seen, Watch, Watching};
use crate::ids::{Id, IdMap, IdSet};
use crate::latency::{Latencies, Percentiles};
use crate::payload::Stamp;

/// One request that carried a delivery.
#[derive(Debug, Clone, Copy)]
pub struct Receipt {
    pub event: Id,
    pub delivery: Id,
    pub endpoint: usize,
    /// `None`: the payload is not as it was sent.
    pub stamp: Option<Stamp>,
    /// Boot-clock nanoseconds.
    pub arrived_ns: u64,
    /// What it is answered; 0: never.
    pub status: u16,
}

impl Receipt {
    /// Whether it is answered 2xx.
    #[must_use]
    pub fn taken(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Whether a signature was right, or not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signature {
    Good,
    Bad,
    Unchecked,
}

/// The receiver's counts. All counts are of requests unless their name says otherwise.
#[derive(Debug, Default)]
pub struct Books {
    events: IdSet,
    /// Whether each delivery was answered 2xx.
    deliveries: IdMap<bool>,
    window: Range<u64>,
    latencies: Latencies,
    counts: Counts,
    order: OrderBook,
    watches: Vec<Watching>,
}

/// The counts as they are told to others.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Connections that were accepted: what a sender that reuses them keeps far below the requests.
    pub connections: u64,
    /// Distinct `webhook-id`s that were answered 2xx at least once.
    pub events: u64,
    /// Distinct deliveries that were answered 2xx at least once.
    pub deliveries: u64,
    /// Deliveries that came again after a 2xx.
    pub duplicates: u64,
    /// Deliveries that came again after a refusal.
    pub repeats: u64,
    /// Answers other than 2xx.
    pub refused: u64,
    /// Requests whose headers or payload are not Postrider's or not ours.
    pub malformed: u64,
    pub signatures_good: u64,
    pub signatures_bad: u64,
    /// First receipts that arrived in the measured window.
    pub deliveries_in_window: u64,
    /// From the stamp to the first receipt, of what was sent in the measured window.
    pub latency_ms: Percentiles,
    /// The last first receipt, boot-clock nanoseconds.
    pub last_receipt_ns: u64,
}

impl Books {
    /// Measures what is sent and received between two instants of the boot clock, in nanoseconds.
    pub fn measure(&mut self, window: Range<u64>) {
        self.window = window;
        self.latencies = Latencies::new();
        self.counts.deliveries_in_window = 0;
    }

    /// Takes a request in.
    pub fn enter(&mut self, receipt: Receipt, signature: Signature) {
        match signature {
            Signature::Good => self.counts.signatures_good += 1,
            Signature::Bad => self.counts.signatures_bad += 1,
            Signature::Unchecked => {}
        }
        match receipt.stamp {
            None => self.counts.malformed += 1,
            Some(stamp) if stamp.key > 0 => {
                self.order.arrive(receipt.endpoint, stamp.key, stamp.number);
            }
            Some(_) => {}
        }
        let before = self.deliveries.get(&receipt.delivery).copied();
        match before {
            Some(true) => self.counts.duplicates += 1,
            Some(false) => self.counts.repeats += 1,
            None => {}
        }
        let first = receipt.taken() && before != Some(true);
        for watch in &mut self.watches {
            watch.enter(&receipt, first);
        }
        if !receipt.taken() {
            self.counts.refused += 1;
            self.deliveries.entry(receipt.delivery).or_insert(false);
        } else if first {
            self.deliveries.insert(receipt.delivery, true);
            self.events.insert(receipt.event);
            self.first_receipt(&receipt);
        }
    }

    fn first_receipt(&mut self, receipt: &Receipt) {
        self.counts.deliveries += 1;
        self.counts.last_receipt_ns = receipt.arrived_ns;
        if self.window.contains(&receipt.arrived_ns) {
            self.counts.deliveries_in_window += 1;
        }
        let sent_ns = receipt.stamp.map(|stamp| stamp.sent_ns);
        if let Some(sent_ns) = sent_ns.filter(|sent_ns| self.window.contains(sent_ns)) {
            self.latencies.record(sent_ns, receipt.arrived_ns);
        }
    }

    /// A request of this endpoint with an ordering key is answered 2xx now.
    pub fn answered(&mut self, endpoint: usize, stamp: Stamp) {
        self.order.answered(endpoint, stamp.key, stamp.number);
    }

    /// Watches these, in place of what was watched before.
    pub fn watch(&mut self, watches: Vec<Watch>) {
        self.watches = watches.into_iter().map(Watching::new).collect();
    }

    /// What was seen of what is watched, in the same order.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.watches.iter().map(Watching::seen).collect()
    }

    /// What was found about the order per key.
    #[must_use]
    pub fn order(&self) -> OrderCounts {
        self.order.counts()
    }

    /// Counts a connection.
    pub fn connected(&mut self) {
        self.counts.connections += 1;
    }

    /// Counts a request that is no delivery of Postrider's.
    pub fn malformed(&mut self) {
        self.counts.malformed += 1;
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            events: u64::try_from(self.events.len()).unwrap_or(u64::MAX),
            latency_ms: self.latencies.percentiles(),
            ..self.counts.clone()
        }
    }

    /// Distinct deliveries that were taken: the cheap count that a generator polls.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.counts.deliveries
    }

    /// The events that were taken.
    pub fn events(&self) -> impl Iterator<Item = Id> + '_ {
        self.events.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::ALWAYS;
    use super::*;

    fn receipt(event: Id, delivery: Id) -> Receipt {
        Receipt {
            event,
            delivery,
            endpoint: 0,
            stamp: sent(100),
            arrived_ns: 200,
            status: 200,
        }
    }

    fn sent(sent_ns: u64) -> Option<Stamp> {
        Some(Stamp {
            sent_ns,
            ..Stamp::default()
        })
    }

    #[test]
    fn a_delivery_taken_twice_is_a_duplicate_and_one_event_at_two_endpoints_is_not() {
        let mut books = Books::default();

        books.enter(receipt(1, 10), Signature::Good);
        books.enter(receipt(1, 11), Signature::Good);
        books.enter(receipt(1, 10), Signature::Bad);

        let counts = books.counts();
        assert_eq!(
            (counts.events, counts.deliveries, counts.duplicates),
            (1, 2, 1)
        );
        assert_eq!((counts.signatures_good, counts.signatures_bad), (2, 1));
    }

    #[test]
    fn a_delivery_that_was_refused_and_comes_again_is_a_repeat_and_received_once_taken() {
        let mut books = Books::default();

        books.enter(
            Receipt {
                status: 503,
                ..receipt(1, 10)
            },
            Signature::Unchecked,
        );
        let refused = books.counts();
        books.enter(receipt(1, 10), Signature::Unchecked);

        assert_eq!(
            (refused.events, refused.deliveries, refused.refused),
            (0, 0, 1)
        );
        let counts = books.counts();
        assert_eq!(
            (counts.events, counts.deliveries, counts.repeats),
            (1, 1, 1)
        );
        assert_eq!(counts.duplicates, 0);
    }

    #[test]
    fn the_window_decides_by_arrival_what_is_throughput_and_by_stamp_what_is_latency() {
        let mut books = Books::default();
        books.measure(1_000_000..2_000_000);
        let at = |delivery, sent_ns, arrived_ns| Receipt {
            stamp: sent(sent_ns),
            arrived_ns,
            ..receipt(delivery, delivery)
        };

        books.enter(at(1, 900_000, 1_500_000), Signature::Unchecked);
        books.enter(at(2, 1_000_000, 1_999_999), Signature::Unchecked);
        books.enter(at(3, 1_999_999, 5_000_000), Signature::Unchecked);
        books.enter(at(4, 2_000_000, 6_000_000), Signature::Unchecked);

        let counts = books.counts();
        assert_eq!(counts.deliveries_in_window, 2);
        assert_eq!(counts.latency_ms.samples, 2);
        assert_eq!(counts.last_receipt_ns, 6_000_000);
        assert_eq!(counts.deliveries, 4);
    }

    #[test]
    fn a_watch_sees_its_endpoints_and_its_time_and_nothing_else() {
        let mut books = Books::default();
        let watch = Watch {
            name: "healthy".to_owned(),
            endpoints: (2..4).into(),
            sent: 1_000_000..2_000_000,
            arrived: ALWAYS,
        };
        books.watch(vec![watch]);
        let at = |delivery, endpoint, sent_ns, status| Receipt {
            endpoint,
            stamp: sent(sent_ns),
            arrived_ns: 4_000_000,
            status,
            ..receipt(delivery, delivery)
        };

        books.enter(at(1, 1, 1_000_000, 200), Signature::Unchecked);
        books.enter(at(2, 2, 999_999, 200), Signature::Unchecked);
        books.enter(at(3, 2, 1_000_000, 429), Signature::Unchecked);
        books.enter(at(3, 2, 1_000_000, 200), Signature::Unchecked);
        books.enter(at(3, 2, 1_000_000, 200), Signature::Unchecked);

        let seen = &books.seen()[0];
        assert_eq!((seen.requests, seen.throttled, seen.deliveries), (3, 1, 1));
        assert_eq!(seen.latency_ms.samples, 1);
        assert!((seen.latency_ms.max - 3.0).abs() < 0.01);
    }

    #[test]
    fn a_payload_that_was_changed_is_counted() {
        let mut books = Books::default();

        books.enter(
            Receipt {
                stamp: None,
                ..receipt(1, 10)
            },
            Signature::Unchecked,
        );

        assert_eq!(books.counts().malformed, 1);
        assert_eq!(books.counts().deliveries, 1);
    }
}
