//! What came in at some endpoints of what was sent, or came, within some time.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Numbers;
use super::books::Receipt;
use crate::latency::{Latencies, Percentiles};

/// What to watch. Instants are boot-clock nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    pub name: String,
    pub endpoints: Numbers,
    /// When the event was due to be posted.
    pub sent: Range<u64>,
    /// When the request arrived.
    pub arrived: Range<u64>,
}

/// Any instant.
pub const ALWAYS: Range<u64> = 0..u64::MAX;

impl Watch {
    /// What was sent to some endpoints in some time, whenever it arrives.
    #[must_use]
    pub fn of_sent(name: &str, endpoints: &Numbers, sent: Range<u64>) -> Self {
        Self {
            name: name.to_owned(),
            endpoints: endpoints.clone(),
            sent,
            arrived: ALWAYS,
        }
    }
}

/// What was seen.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    pub name: String,
    pub requests: u64,
    pub throttled: u64,
    /// Deliveries that were answered 2xx for the first time.
    pub deliveries: u64,
    /// Of those, from when they were due to be posted to their arrival.
    pub latency_ms: Percentiles,
}

/// A watch with what it has seen.
#[derive(Debug)]
pub(super) struct Watching {
    watch: Watch,
    seen: Seen,
    latencies: Latencies,
}

impl Watching {
    pub(super) fn new(watch: Watch) -> Self {
        Self {
            seen: Seen {
                name: watch.name.clone(),
                ..Seen::default()
            },
            latencies: Latencies::new(),
            watch,
        }
    }

    /// Counts a request, and whether it is its delivery's first that is answered 2xx.
    pub(super) fn enter(&mut self, receipt: &Receipt, first: bool) {
        let sent_ns = receipt.stamp.map_or(0, |stamp| stamp.sent_ns);
        let watched = self.watch.endpoints.contains(receipt.endpoint)
            && self.watch.sent.contains(&sent_ns)
            && self.watch.arrived.contains(&receipt.arrived_ns);
        if !watched {
            return;
        }
        self.seen.requests += 1;
        self.seen.throttled += u64::from(receipt.status == 429);
        if first {
            self.seen.deliveries += 1;
            self.latencies.record(sent_ns, receipt.arrived_ns);
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            latency_ms: self.latencies.percentiles(),
            ..self.seen.clone()
        }
    }
}
