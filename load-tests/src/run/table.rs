//! A result for people.

use super::outcome::{Outcome, Verdict};
use super::scenario::aims::{Level, Reached};
use crate::latency::Percentiles;

/// A row: a name and a value.
type Row = (String, String);

/// A table of a few lines.
pub(super) fn table(outcome: &Outcome) -> String {
    let rows = [
        figures(outcome),
        aims(outcome),
        beside(outcome),
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
    let or_none = |it: Option<f64>| it.map_or("?".to_owned(), |it| format!("{it:.0}"));
    rows.push(row(
        "calibration",
        format!(
            "{:.0} fdatasync/s (pg_test_fsync {}), {:.0} loopback requests/s (wrk {}), {} cores",
            machine.fdatasync_per_second,
            or_none(machine.pg_test_fsync_per_second),
            machine.loopback_requests_per_second,
            or_none(machine.wrk_requests_per_second),
            machine.cores
        ),
    ));
    let missing = outcome.not_measured.iter();
    rows.extend(missing.map(|it| row("not measured", it.clone())));
    rows
}

fn aims(outcome: &Outcome) -> Vec<Row> {
    let aim = |it: &Reached| {
        let measured = it.measured.map_or("not measured".to_owned(), rounded);
        let reached = match it.reached {
            Level::None => "below the floor",
            Level::Floor => "floor",
            Level::Target => "target",
            Level::Stretch => "stretch",
        };
        let steps = format!("{} / {} / {}", it.floor, it.target, it.stretch);
        let value = format!("{measured} {}: {reached} (of {steps})", it.unit);
        row(it.what, value)
    };
    outcome.aims.iter().map(aim).collect()
}

fn beside(outcome: &Outcome) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(it) = &outcome.baseline {
        let mut figures = format!("{:.0} deliveries/s", it.deliveries_per_second);
        if let Some((p50, p99)) = it.p50.zip(it.p99) {
            figures += &format!(", p50 {p50:.1} ms, p99 {p99:.1} ms");
        }
        rows.push(row("baseline", figures));
        rows.extend(it.with_sleep_per_second.map(|it| {
            row(
                "  with sleep after full batches",
                format!("{it:.0} deliveries/s"),
            )
        }));
        rows.extend(it.healthy_share.map(|it| {
            row(
                "  the healthy get, of before",
                format!("{:.0} %", it * 100.0),
            )
        }));
    }
    if let Some(ratio) = outcome.ratio {
        let value = format!("{} times ({})", ratio.times, ratio.of);
        rows.push(row("better than the baseline", value));
    }
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
        if let Some(list) = value.as_array() {
            rows.push(row(name, format!("{} in the result", list.len())));
            continue;
        }
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
