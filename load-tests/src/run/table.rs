//! A result for people.

use super::outcome::{Outcome, Verdict};
use crate::latency::Percentiles;

/// A row: a name and a value.
type Row = (String, String);

/// A table of a few lines.
pub(super) fn table(outcome: &Outcome) -> String {
    let rows = [
        figures(outcome),
        verdicts(outcome),
        details(outcome),
        costs(outcome),
        faults(outcome),
    ]
    .concat();
    let lines = rows
        .iter()
        .map(|(name, value)| format!("  {name:<44} {value}\n"));
    let head = format!("\n{}: {}\n", outcome.scenario.name, outcome.scenario.what);
    head + &lines.collect::<String>()
}

fn row(name: &str, value: String) -> Row {
    (name.to_owned(), value)
}

fn figures(outcome: &Outcome) -> Vec<Row> {
    vec![
        row(
            "throughput",
            format!("{:.0} deliveries/s", outcome.throughput_per_second),
        ),
        row("POST to receipt, ms", latency(&outcome.latency_ms)),
        row("POST to 202, ms", latency(&outcome.accept_latency_ms)),
        row(
            "accepted / received",
            format!("{} / {}", outcome.accepted, outcome.received),
        ),
        row(
            "lost / duplicates",
            format!("{} / {}", outcome.lost, outcome.duplicates),
        ),
        row(
            "signatures good / bad",
            format!("{} / {}", outcome.signatures_good, outcome.signatures_bad),
        ),
        row(
            "connections",
            format!("{} at the receiver", outcome.connections),
        ),
        row(
            "replies",
            format!("{:?}, {} broken", outcome.statuses, outcome.broken),
        ),
        row("drain", format!("{:.2} s", outcome.drain_seconds)),
    ]
}

fn costs(outcome: &Outcome) -> Vec<Row> {
    let mut rows = vec![
        row(
            "WAL per delivery",
            format!("{:.0} bytes", outcome.wal_bytes_per_delivery),
        ),
        row(
            "commits per delivery",
            format!("{:.4}", outcome.commits_per_delivery),
        ),
    ];
    for (name, seconds) in &outcome.cpu_seconds {
        let each = outcome
            .cpu_us_per_delivery
            .get(name)
            .copied()
            .unwrap_or_default();
        let value = format!("{seconds:.1} s, {each:.1} µs per delivery");
        rows.push(row(&format!("CPU {name}"), value));
    }
    for (name, seconds) in outcome
        .postgres_cpu_seconds
        .iter()
        .filter(|(_, it)| **it >= 0.05)
    {
        rows.push(row(&format!("  of it {name}"), format!("{seconds:.1} s")));
    }
    rows.push(row(
        "CPU of others",
        format!("{:.1} s", outcome.other_cpu_seconds),
    ));
    let machine = &outcome.calibration;
    rows.push(row(
        "calibration",
        format!(
            "{:.0} fdatasync/s, {:.0} loopback requests/s, {} cores",
            machine.fdatasync_per_second, machine.loopback_requests_per_second, machine.cores
        ),
    ));
    rows
}

fn verdicts(outcome: &Outcome) -> Vec<Row> {
    let verdict = |it: &Verdict| {
        let measured = it.measured.map_or("not measured".to_owned(), rounded);
        let good = match (it.good, it.binding) {
            (true, _) => "good",
            (false, true) => "BAD",
            (false, false) => "bad (does not count)",
        };
        let value = format!("{measured}, should be {}: {good}", it.figure);
        row(&it.what, value)
    };
    outcome.verdicts.iter().map(verdict).collect()
}

fn details(outcome: &Outcome) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, value) in &outcome.details {
        match serde_json::from_value::<Percentiles>(value.clone()) {
            Ok(percentiles) => rows.push(row(name, latency(&percentiles))),
            Err(_another_shape) => rows.push(row(name, value.to_string())),
        }
    }
    rows
}

fn rounded(value: f64) -> String {
    format!("{}", (value * 1e3).round() / 1e3)
}

fn faults(outcome: &Outcome) -> Vec<Row> {
    outcome
        .faults
        .iter()
        .map(|fault| row("FAULT", fault.clone()))
        .collect()
}

fn latency(it: &Percentiles) -> String {
    format!(
        "p50 {:.2}  p90 {:.2}  p99 {:.2}  max {:.1}",
        it.p50, it.p90, it.p99, it.max
    )
}
