//! What each fault did, as a row of the table in `docs/reliability.md`, and what it must have done: nothing
//! lost, nothing stuck, and nothing repeated that was not on its way.
//!
//! The tests run in a short form by `make test` and in a long one by `make faults`, which also collects the
//! rows. They are the same tests, with more rounds.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::poster::Posted;
use crate::world::{AtRisk, World, requests};

/// Set by `scripts/faults`.
const LONG: &str = "FAULTS_LONG";
/// The directory that it collects the rows from.
const ROWS: &str = "FAULTS_ROWS";

/// Whether this is the long form.
pub(crate) fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// The first in the short form, the second in the long one: rounds, rates, lengths.
pub(crate) fn short_or_long<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// One kind of fault, while it is tried.
#[derive(Debug)]
pub(crate) struct Report {
    fault: &'static str,
    runs: usize,
    recovery: Duration,
    notes: Vec<String>,
}

impl Report {
    /// Of this fault, in a few words: what it happens to, a colon, and what happens. The table is sorted by it.
    pub(crate) fn of(fault: &'static str) -> Self {
        Self {
            fault,
            runs: 0,
            recovery: Duration::ZERO,
            notes: Vec::new(),
        }
    }

    /// It happened once, and so long after it began all was well again.
    pub(crate) fn recovered(&mut self, after: Duration) {
        self.runs += 1;
        self.recovery = self.recovery.max(after);
        eprintln!("{}: well again after {after:?}", self.fault);
    }

    /// Something else that a reader of the table should know.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Waits until nothing is left to do, compares what was acknowledged with what was received and with
    /// what the database says, tells the row, and fails if something was lost, is stuck, or was repeated
    /// more often than it was at risk.
    pub(crate) async fn close(self, world: &World, posted: &Posted, at_risk: &AtRisk) {
        let found = world.found(&posted.accepted).await;
        let arrivals = world.receiver.all();
        let unexcused = at_risk.unexcused(&arrivals);
        let row = json!({
            "fault": self.fault,
            "long": is_long(),
            "runs": self.runs,
            "posted": posted.accepted.len(),
            "refused": posted.refused.len(),
            "lost": found.lost,
            "duplicates": arrivals.len() - requests(&arrivals).len(),
            "allowed": at_risk.total(),
            "stuck": found.stuck,
            "error_window_ms": milliseconds(posted.error_window()),
            "slowest_202_ms": milliseconds(posted.slowest()),
            "recovery_ms": milliseconds(self.recovery),
            "notes": self.notes.join("; "),
        });
        eprintln!("{row}");
        if let Some(directory) = std::env::var_os(ROWS) {
            write(&directory, self.fault, &row);
        }

        assert!(self.runs > 0, "the fault did not happen");
        found.is_well(posted.accepted.len());
        if let Some((delivery, sent)) = unexcused.first() {
            let mut history = arrivals;
            history.retain(|it| it.delivery == *delivery);
            panic!(
                "{} deliveries were repeated without reason; one had {sent} requests: {history:#?}",
                unexcused.len()
            );
        }
    }
}

fn write(directory: &OsStr, fault: &str, row: &Value) {
    let name: String = fault
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() { it } else { '-' })
        .collect();
    let file = Path::new(directory).join(format!("{name}.json"));
    fs::write(file, row.to_string()).unwrap();
}

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap()
}
