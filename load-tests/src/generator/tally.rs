//! What became of the events that were posted.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::reply;
use crate::client::Reply;
use crate::ids::Id;
use crate::latency::{Latencies, Percentiles};

/// Counts replies.
#[derive(Debug)]
pub struct Tally {
    window: Range<u64>,
    latencies: Latencies,
    accepted_ids: Vec<Id>,
    report: Report,
}

/// The counts as they are told to others.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// Answered 2xx.
    pub accepted: u64,
    /// The deliveries that those replies promised.
    pub deliveries: u64,
    /// Answered 2xx within the measured window.
    pub accepted_in_window: u64,
    /// Replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Connections that broke or could not be opened: the event may have been accepted or not.
    pub broken: u64,
    /// From when an event was due to its 2xx, of those due in the measured window.
    pub latency_ms: Percentiles,
    /// The first reply that was not 2xx, or the first broken connection, for people.
    pub first_trouble: Option<String>,
}

impl Tally {
    /// Latencies and the count in the window are of this window (boot-clock nanoseconds).
    #[must_use]
    pub fn new(window: Range<u64>) -> Self {
        Self {
            window,
            latencies: Latencies::new(),
            accepted_ids: Vec::new(),
            report: Report::default(),
        }
    }

    /// Counts a reply; whether the event was accepted.
    pub(super) fn reply(&mut self, due_ns: u64, replied_ns: u64, reply: &Reply<'_>) -> bool {
        let report = &mut self.report;
        *report.statuses.entry(reply.status).or_default() += 1;
        if !(200..300).contains(&reply.status) {
            report.first_trouble.get_or_insert_with(|| {
                format!("{}: {}", reply.status, String::from_utf8_lossy(reply.body))
            });
            return false;
        }
        let mut accepted = 1;
        if reply::is_batch(reply.body) {
            accepted = 0;
            for (id, deliveries) in reply::batch(reply.body) {
                accepted += 1;
                report.deliveries += deliveries;
                self.accepted_ids.push(id);
            }
        } else {
            report.deliveries += reply::delivery_count(reply.body).unwrap_or(0);
            self.accepted_ids.extend(reply::event_id(reply.body));
        }
        report.accepted += accepted;
        if self.window.contains(&replied_ns) {
            report.accepted_in_window += accepted;
        }
        if self.window.contains(&due_ns) {
            self.latencies.record(due_ns, replied_ns);
        }
        true
    }

    pub(super) fn broken(&mut self, error: &io::Error) {
        self.report.broken += 1;
        self.report
            .first_trouble
            .get_or_insert_with(|| error.to_string());
    }

    /// Requests that are known or feared not to have been accepted.
    #[must_use]
    pub fn not_accepted(&self) -> u64 {
        let refused = self.report.statuses.iter();
        let refused = refused.filter(|(status, _)| !(200..300).contains(*status));
        let refused: u64 = refused.map(|(_, count)| count).sum();
        refused.saturating_add(self.report.broken)
    }

    /// Takes another's counts in, each with its own window.
    pub fn merge(&mut self, other: &Self) {
        let (mine, theirs) = (&mut self.report, &other.report);
        mine.accepted += theirs.accepted;
        mine.deliveries += theirs.deliveries;
        mine.accepted_in_window += theirs.accepted_in_window;
        mine.broken += theirs.broken;
        for (status, count) in &theirs.statuses {
            *mine.statuses.entry(*status).or_default() += count;
        }
        if let Some(trouble) = &theirs.first_trouble {
            mine.first_trouble.get_or_insert_with(|| trouble.clone());
        }
        self.latencies.merge(&other.latencies);
        self.accepted_ids.extend_from_slice(&other.accepted_ids);
    }

    /// The counts so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            latency_ms: self.latencies.percentiles(),
            ..self.report.clone()
        }
    }

    /// How many were accepted so far: cheaper than a report.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.report.accepted
    }

    /// The ids of the accepted events, as their replies named them.
    #[must_use]
    pub fn accepted_ids(&self) -> &[Id] {
        &self.accepted_ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_2xx_is_accepted_and_every_reply_is_counted() {
        let mut tally = Tally::new(100..200);
        let reply = |status| Reply {
            status,
            body: br#"{"delivery_count":3}"#,
            keep_alive: true,
        };

        assert!(tally.reply(150, 199, &reply(202)));
        assert!(tally.reply(199, 201, &reply(202)));
        assert!(!tally.reply(150, 160, &reply(503)));
        tally.broken(&io::Error::other("gone"));

        let report = tally.report();
        assert_eq!(
            (
                report.accepted,
                report.accepted_in_window,
                report.deliveries
            ),
            (2, 1, 6)
        );
        assert_eq!(report.statuses, BTreeMap::from([(202, 2), (503, 1)]));
        assert_eq!(report.latency_ms.samples, 2);
        assert_eq!(tally.not_accepted(), 2);
        assert_eq!(
            report.first_trouble.as_deref(),
            Some(r#"503: {"delivery_count":3}"#)
        );
    }
}
