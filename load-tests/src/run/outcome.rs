//! The result of a scenario: what `results/<scenario>.json` holds (contract §1), and whether it
//! is good.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;
use shared::runtime::clock::wall_time;

use super::baseline::{Baseline, Ratio};
use super::calibrate::Calibration;
use super::cpu::Cpu;
use super::scenario::Scenario;
use super::scenario::aims::{self, Figure, Reached};
use crate::generator::Report;
use crate::ids::{Id, IdSet};
use crate::latency::Percentiles;
use crate::receiver::books::Counts;

/// Everything that is known about a run. Field names of contract §1 are fixed.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) scenario: Scenario,
    /// The day of the run.
    pub(super) date: String,
    /// First receipts per second of the measured window.
    pub(super) throughput_per_second: f64,
    /// From POST (in an open loop: from when it was due) to receipt.
    pub(super) latency_ms: Percentiles,
    /// From POST to the 202.
    pub(super) accept_latency_ms: Percentiles,
    pub(super) accepted: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    /// Received although no 202 came back: the connection broke in between.
    pub(super) unacknowledged: u64,
    /// Retries of what the receiver refused.
    pub(super) repeats: u64,
    /// Connections that the receiver accepted, the runner's few included.
    pub(super) connections: u64,
    pub(super) signatures_good: u64,
    pub(super) signatures_bad: u64,
    /// Requests at the receiver with other headers or payload bytes than were sent.
    pub(super) malformed: u64,
    /// Replies of the API by status; `broken` connections beside them.
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) broken: u64,
    /// Deliveries still live when everything was received.
    pub(super) live_at_end: i64,
    /// From the end of the window to the last first receipt.
    pub(super) drain_seconds: f64,
    /// Over the whole run, drain included.
    pub(super) wal_bytes_per_delivery: f64,
    pub(super) commits_per_delivery: f64,
    /// In the measured window.
    pub(super) cpu_seconds: BTreeMap<String, f64>,
    pub(super) cpu_us_per_delivery: BTreeMap<String, f64>,
    pub(super) postgres_cpu_seconds: BTreeMap<String, f64>,
    /// What others on the machine used in the window.
    pub(super) other_cpu_seconds: f64,
    pub(super) calibration: Calibration,
    pub(super) postgres_settings: BTreeMap<&'static str, &'static str>,
    /// How far it came on the way from floor to stretch.
    pub(super) aims: Vec<Reached>,
    /// The classic design in the same run, and how many times better ours is.
    pub(super) baseline: Option<Baseline>,
    pub(super) ratio: Option<Ratio>,
    /// What could not be measured, for want of a tool.
    pub(super) not_measured: Vec<String>,
    /// What the scenario has to show, and whether it did.
    pub(super) verdicts: Vec<Verdict>,
    /// Figures of this scenario alone.
    pub(super) details: BTreeMap<String, Value>,
    /// What was wrong; empty: nothing.
    pub(super) faults: Vec<String>,
}

/// A figure that the scenario has to show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) what: String,
    /// What it should be, in words.
    pub(super) figure: String,
    /// `None`: it could not be measured, which is bad.
    pub(super) measured: Option<f64>,
    pub(super) good: bool,
    /// Whether a bad one is a fault. In a short run, figures about speed are not.
    pub(super) binding: bool,
}

/// What was done to the system, and what its sender saw.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) sent: Report,
    pub(super) accepted_ids: Vec<Id>,
    /// The measured window, boot-clock nanoseconds.
    pub(super) window: Range<u64>,
    /// In the window.
    pub(super) cpu: Cpu,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) details: BTreeMap<String, Value>,
    /// Part of what was accepted is left to the system: it is neither waited for nor lost.
    pub(super) unfinished: bool,
    /// How many deliveries may come again after a 2xx: a worker was killed.
    pub(super) duplicates_allowed: u64,
}

/// What was measured, before it is put together.
pub(super) struct Measured {
    pub(super) played: Played,
    pub(super) received: Counts,
    pub(super) received_ids: Vec<Id>,
    /// Events of which the system still has a live, dead or closed delivery, if it is unfinished.
    pub(super) kept_ids: Vec<Id>,
    pub(super) per_delivery: (f64, f64),
    pub(super) live_at_end: i64,
    pub(super) calibration: Calibration,
    pub(super) postgres_settings: BTreeMap<&'static str, &'static str>,
}

/// Events that were accepted, never came and are not kept, and events that came and were never
/// acknowledged.
pub(super) fn compare(accepted: &[Id], received: &[Id], kept: &[Id]) -> (u64, u64) {
    let accepted: IdSet = accepted.iter().copied().collect();
    let received: IdSet = received.iter().copied().collect();
    let kept: IdSet = kept.iter().copied().collect();
    let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let missing = accepted.difference(&received);
    (
        count(missing.filter(|id| !kept.contains(*id)).count()),
        count(received.difference(&accepted).count()),
    )
}

impl Outcome {
    pub(super) fn of(scenario: Scenario, measured: Measured) -> Self {
        let Measured {
            played, received, ..
        } = measured;
        let (sent, cpu) = (played.sent, played.cpu);
        let (lost_events, unacknowledged) = compare(
            &played.accepted_ids,
            &measured.received_ids,
            &measured.kept_ids,
        );
        let in_window = received.deliveries_in_window;
        let seconds = played.window.end.saturating_sub(played.window.start) as f64 / 1e9;
        // A delivery can be lost although its event came to another endpoint.
        let lost_deliveries = if played.unfinished {
            0
        } else {
            sent.deliveries.saturating_sub(received.deliveries)
        };
        let each = |seconds: f64| (seconds * 1e7 / in_window.max(1) as f64).round() / 10.0;
        let mut outcome = Self {
            date: wall_time().date().to_string(),
            throughput_per_second: (in_window as f64 / seconds.max(0.001) * 10.0).round() / 10.0,
            latency_ms: received.latency_ms,
            accept_latency_ms: sent.latency_ms,
            accepted: sent.accepted,
            received: received.events,
            lost: lost_events.max(lost_deliveries),
            duplicates: received.duplicates,
            unacknowledged,
            repeats: received.repeats,
            connections: received.connections,
            signatures_good: received.signatures_good,
            signatures_bad: received.signatures_bad,
            malformed: received.malformed,
            statuses: sent.statuses.clone(),
            broken: sent.broken,
            live_at_end: measured.live_at_end,
            drain_seconds: received.last_receipt_ns.saturating_sub(played.window.end) as f64 / 1e9,
            wal_bytes_per_delivery: measured.per_delivery.0.round(),
            commits_per_delivery: (measured.per_delivery.1 * 1e4).round() / 1e4,
            cpu_us_per_delivery: cpu
                .processes
                .iter()
                .map(|(name, seconds)| (name.clone(), each(*seconds)))
                .collect(),
            other_cpu_seconds: cpu.others(),
            cpu_seconds: cpu.processes,
            postgres_cpu_seconds: cpu.postgres,
            postgres_settings: measured.postgres_settings,
            aims: Vec::new(),
            baseline: None,
            ratio: None,
            not_measured: measured.calibration.missing(),
            calibration: measured.calibration,
            verdicts: played.verdicts,
            details: played.details,
            faults: Vec::new(),
            scenario,
        };
        outcome.judge();
        outcome.faults = outcome.find_faults(&sent, played.duplicates_allowed);
        if !played.unfinished && outcome.live_at_end > 0 {
            let live = outcome.live_at_end;
            outcome
                .faults
                .push(format!("{live} deliveries still live at the end"));
        }
        outcome
    }

    /// Puts what was measured beside what was aimed at.
    fn judge(&mut self) {
        for aim in aims::of(self.scenario.name) {
            let measured = match aim.figure {
                Figure::Throughput => Some(self.throughput_per_second),
                Figure::P50 => Some(self.latency_ms.p50),
                Figure::P99 => Some(self.latency_ms.p99),
                Figure::WalPerDelivery => Some(self.wal_bytes_per_delivery),
                Figure::Detail(name) => self.details.get(name).and_then(Value::as_f64),
            };
            self.aims.push(aim.beside(measured));
        }
    }

    /// Puts the classic design beside it.
    pub(super) fn compare(&mut self, baseline: Baseline) {
        self.ratio = baseline.ratio(self);
        self.baseline = Some(baseline);
    }

    fn find_faults(&self, sent: &Report, duplicates_allowed: u64) -> Vec<String> {
        let checks = [
            (
                self.scenario.posts() && self.accepted == 0,
                "no event was accepted".to_owned(),
            ),
            (
                self.scenario.delivers() && self.throughput_per_second <= 0.0,
                "nothing was received in the window".to_owned(),
            ),
            (self.lost > 0, format!("{} lost", self.lost)),
            (
                self.duplicates > duplicates_allowed,
                format!("{} duplicates", self.duplicates),
            ),
            (
                self.signatures_bad > 0,
                format!("{} bad signatures", self.signatures_bad),
            ),
            (
                self.malformed > 0,
                format!("{} malformed requests or payloads", self.malformed),
            ),
        ];
        let mut faults: Vec<String> = checks
            .into_iter()
            .filter(|(bad, _)| *bad)
            .map(|(_, what)| what)
            .collect();
        faults.extend(self.verdicts.iter().filter_map(Verdict::fault));
        if !self.scenario.short {
            faults.extend(self.aims.iter().filter_map(Reached::fault));
        }
        // Not a fault by itself (a busy API may answer 503), but what to look at first.
        if let Some(trouble) = sent.first_trouble.as_ref().filter(|_| !faults.is_empty()) {
            faults.push(format!("the first trouble at the API: {trouble}"));
        }
        faults
    }

    /// Writes `<dir>/<scenario>.json`, or `<scenario>.short.json`, which is no result to keep.
    pub(super) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let kind = if self.scenario.short { ".short" } else { "" };
        let path = dir.join(format!("{}{kind}.json", self.scenario.name));
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&path, serde_json::to_vec_pretty(self)?))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Verdict {
    fn fault(&self) -> Option<String> {
        let measured = self.measured.map(|it| it.to_string());
        let measured = measured.as_deref().unwrap_or("not measured");
        (self.binding && !self.good)
            .then(|| format!("{}: {measured}, should be {}", self.what, self.figure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_accepted_and_never_came_is_lost_and_the_other_way_round_it_is_not() {
        assert_eq!(compare(&[1, 2, 3], &[3, 4, 1, 5], &[]), (1, 2));
        assert_eq!(compare(&[1, 2, 3, 6], &[3], &[2, 3, 6]), (1, 0), "kept");
        assert_eq!(compare(&[], &[], &[]), (0, 0));
    }

    #[test]
    fn a_verdict_is_a_fault_only_when_it_is_bad_and_binding() {
        let bad = Verdict {
            what: "ratio".to_owned(),
            figure: "<= 1.5".to_owned(),
            measured: Some(2.0),
            good: false,
            binding: true,
        };

        assert_eq!(bad.fault().as_deref(), Some("ratio: 2, should be <= 1.5"));
        assert_eq!(
            Verdict {
                binding: false,
                ..bad.clone()
            }
            .fault(),
            None
        );
        assert_eq!(Verdict { good: true, ..bad }.fault(), None);
    }
}
