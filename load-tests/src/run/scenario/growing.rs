//! Scenarios in which something grows, or should not.

use serde_json::json;

use super::Scenario;
use super::catalogue::scripted;
use crate::receiver::{Answers, Verify};
use crate::run::scripts::{Growth, Script, Soak};

fn grows(name: &'static str, what: &'static str, growth: Growth) -> Scenario {
    Scenario {
        seconds: 20.0,
        verify: Verify::Sample,
        ..scripted(name, what, Script::Growth(growth))
    }
}

pub(super) fn history() -> Scenario {
    grows(
        "growth-history",
        "throughput and the time of a claim as the history grows",
        Growth::History {
            rows: [1_000, 100_000, 10_000_000],
        },
    )
}

pub(super) fn endpoints() -> Scenario {
    grows(
        "growth-endpoints",
        "throughput and the time of a claim as the endpoints become more",
        Growth::Endpoints {
            tenants: [1, 100, 10_000],
        },
    )
}

pub(super) fn workers() -> Scenario {
    grows(
        "growth-workers",
        "throughput with 1, 2 and 4 workers, all on this machine's cores",
        Growth::Workers { most: 4 },
    )
}

pub(super) fn snapshot() -> Scenario {
    Scenario {
        seconds: 600.0,
        ..grows(
            "growth-snapshot",
            "what a snapshot that is held for minutes costs: at 500/s, then at full speed",
            Growth::Snapshot {
                per_second: 500.0,
                full_seconds: 30.0,
            },
        )
    }
}

pub(super) fn soak() -> Scenario {
    Scenario {
        hosts: 20_000,
        payload_bytes: 256,
        verify: Verify::Sample,
        endpoint: json!({ "backoff": { "base_seconds": 1, "max_seconds": 4 }, "max_attempts": 15 }),
        answers: Answers {
            fail: 0.02,
            ..Answers::default()
        },
        ..scripted(
            "soak",
            "memory, files, threads and dead rows while the deliveries of hours at 200/s go through",
            Script::Soak(Soak {
                hours: 8.0,
                per_second: 200,
                broken: 5,
            }),
        )
    }
}
