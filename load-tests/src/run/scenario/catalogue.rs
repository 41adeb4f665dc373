//! All scenarios. `docs/performance.md` describes them.

use serde_json::json;

use super::{Beside, Load, Scenario, growing};
use crate::receiver::{Answers, Verify};
use crate::run::scripts::{Again, Script};

/// What the API takes at most, unless it is told otherwise.
const LARGEST_PAYLOAD: usize = 256 << 10;

/// All scenarios. Where nothing else is said, an event goes to exactly one of 1,000 endpoints: 100
/// tenants with a key of their own and 10 endpoints, each subscribed to one event type; turn by turn.
#[must_use]
pub(in crate::run) fn all() -> Vec<Scenario> {
    vec![
        fanout_1(),
        fanout_10(),
        drain(),
        latency("latency-200", 200.0),
        latency("latency-1000", 1_000.0),
        failures(),
        slow_endpoints(),
        slow_endpoints_200(),
        large_payloads(),
        hot_tenant(),
        recovery(),
        rate_limit(),
        replay(),
        ordered(),
        throttle(),
        ingest_single(),
        ingest_batch(),
        memory(),
        kill_gap(),
        lists(),
        telemetry(),
        growing::history(),
        growing::endpoints(),
        growing::workers(),
        growing::snapshot(),
        growing::soak(),
    ]
}

fn fanout_1() -> Scenario {
    Scenario {
        name: "fanout-1",
        what: "events per second from POST to receipt, sustained",
        load: Load::Closed {
            connections: 256,
            backlog: 4_000,
        },
        tenants: 100,
        endpoints_per_tenant: 10,
        fan_out: 1,
        hosts: 1,
        endpoint: json!({}),
        answers: Answers::default(),
        workers: 1,
        payload_bytes: 512,
        verify: Verify::Sample,
        warmup: 5.0,
        seconds: 60.0,
        baseline: Some(Beside::Closed { backlog: 600 }),
        short: false,
    }
}

fn fanout_10() -> Scenario {
    Scenario {
        name: "fanout-10",
        what: "deliveries per second, sustained, where each event goes to ten endpoints",
        load: Load::Closed {
            connections: 128,
            backlog: 800,
        },
        fan_out: 10,
        ..fanout_1()
    }
}

fn drain() -> Scenario {
    Scenario {
        payload_bytes: 128,
        verify: Verify::Sample,
        baseline: Some(Beside::Drain {
            deliveries: 100_000,
        }),
        ..scripted(
            "drain",
            "deliveries per second while a backlog is drained and nothing new comes",
            Script::Drain { events: 1_000_000 },
        )
    }
}

fn memory() -> Scenario {
    Scenario {
        payload_bytes: 128,
        verify: Verify::Sample,
        ..scripted(
            "memory",
            "what a worker needs for a backlog of a million at a hundred thousand endpoints",
            Script::Memory {
                events: 1_000_000,
                tenants: 10_000,
            },
        )
    }
}

fn kill_gap() -> Scenario {
    Scenario {
        workers: 3,
        ..scripted(
            "kill-gap",
            "how long a killed worker's endpoints get nothing, one of 3 workers killed three times",
            Script::KillGap {
                kills: 3,
                per_second: 300.0,
            },
        )
    }
}

fn latency(name: &'static str, per_second: f64) -> Scenario {
    Scenario {
        name,
        what: "milliseconds from POST to receipt at a fixed rate",
        load: Load::Open {
            per_second,
            connections: 64,
        },
        verify: Verify::All,
        baseline: (per_second <= 200.0).then_some(Beside::Open { per_second }),
        ..fanout_1()
    }
}

/// Retries soon, and more often than 10 % of failures ever need.
fn failures() -> Scenario {
    Scenario {
        name: "failures-10pct",
        what: "deliveries per second while one request in ten is answered 503",
        load: Load::Closed {
            connections: 256,
            backlog: 8_000,
        },
        endpoint: json!({ "backoff": { "base_seconds": 1, "max_seconds": 4 }, "max_attempts": 15 }),
        answers: Answers {
            fail: 0.1,
            ..Answers::default()
        },
        baseline: Some(Beside::Closed { backlog: 600 }),
        ..fanout_1()
    }
}

pub(super) fn scripted(name: &'static str, what: &'static str, script: Script) -> Scenario {
    let (tenants, endpoints_per_tenant) = script.shape();
    Scenario {
        name,
        what,
        load: Load::Scripted(script),
        tenants,
        endpoints_per_tenant,
        verify: Verify::All,
        warmup: 3.0,
        seconds: 30.0,
        baseline: None,
        ..fanout_1()
    }
}

fn slow_endpoints() -> Scenario {
    Scenario {
        baseline: Some(Beside::Hanging {
            hanging: 5,
            per_second: 200.0,
        }),
        endpoint: json!({ "backoff": { "base_seconds": 1, "max_seconds": 4 } }),
        ..scripted(
            "slow-endpoints",
            "latency of 15 endpoints before and while 5 others hang until the deadline",
            Script::SlowEndpoints {
                hanging: 5,
                per_second: 200.0,
            },
        )
    }
}

fn slow_endpoints_200() -> Scenario {
    Scenario {
        verify: Verify::Sample,
        endpoint: json!({ "backoff": { "base_seconds": 1, "max_seconds": 4 } }),
        ..scripted(
            "slow-endpoints-200",
            "the same with 10 of 200 at 60 % of the capacity, then with half of them",
            Script::SlowEndpointsAtLoad { hanging: 10 },
        )
    }
}

fn large_payloads() -> Scenario {
    Scenario {
        payload_bytes: 1_024,
        ..scripted(
            "large-payloads",
            "latency of 3 tenants before and while a fourth posts 5 % of all events, each 256 KiB",
            Script::LargePayloads {
                per_second: 400.0,
                share: 0.05,
                bytes: LARGEST_PAYLOAD,
                delay_ms: 2_000,
                permits: 64,
            },
        )
    }
}

fn hot_tenant() -> Scenario {
    Scenario {
        endpoint: json!({ "max_pending": 1_000_000 }),
        verify: Verify::Sample,
        payload_bytes: 128,
        ..scripted(
            "hot-tenant",
            "how long one tenant's events wait while another drains a backlog",
            Script::HotTenant {
                backlog: 1_000_000,
                per_second: 10.0,
            },
        )
    }
}

fn recovery() -> Scenario {
    Scenario {
        seconds: 60.0,
        ..scripted(
            "recovery",
            "endpoints with a backlog come back and take 20 requests a second",
            Script::Recovery {
                pending: 50_000,
                per_second: 20.0,
                new_per_second: 3.0,
            },
        )
    }
}

fn rate_limit() -> Scenario {
    Scenario {
        seconds: 60.0,
        workers: 3,
        endpoint: json!({ "rate_limit": { "per_second": 20, "burst": 10 } }),
        ..scripted(
            "rate-limit",
            "what endpoints with a limit get while one of 3 workers is killed and one paused",
            Script::RateLimit {
                per_second: 20.0,
                burst: 10,
            },
        )
    }
}

fn replay() -> Scenario {
    Scenario {
        seconds: 90.0,
        // What a refusing endpoint takes again is replayed by itself, which would be another replay.
        endpoint: json!({ "replay_on_recovery": false, "max_pending": 1_000_000 }),
        ..scripted(
            "replay",
            "live events' latency before and while 100,000 dead letters of one endpoint are replayed",
            Script::Replay(Again {
                events: 100_000,
                per_second: 1_000.0,
                limited: 3_000,
                limit: 50.0,
                live: 200.0,
            }),
        )
    }
}

fn ordered() -> Scenario {
    Scenario {
        workers: 2,
        endpoint: json!({
            "ordered": true,
            "backoff": { "base_seconds": 1, "max_seconds": 1 },
            "max_attempts": 50,
        }),
        ..scripted(
            "ordered",
            "order per key while requests fail and one of 2 workers is killed",
            Script::Ordered { keys: 4_000 },
        )
    }
}

fn throttle() -> Scenario {
    Scenario {
        endpoint: json!({ "backoff": { "base_seconds": 1, "max_seconds": 4 } }),
        ..scripted(
            "throttle",
            "100 events for a receiver that takes 10 a minute and says when to come again",
            Script::Throttle {
                events: 100,
                most: 10,
                window_seconds: 60,
            },
        )
    }
}

fn ingest_single() -> Scenario {
    Scenario {
        verify: Verify::Sample,
        ..scripted(
            "ingest-single",
            "events per second that are accepted, one per request, while no worker runs",
            Script::Ingest {
                batch: 1,
                connections: 256,
            },
        )
    }
}

fn ingest_batch() -> Scenario {
    Scenario {
        verify: Verify::Sample,
        ..scripted(
            "ingest-batch",
            "events per second that are accepted, a thousand per request, while no worker runs",
            Script::Ingest {
                batch: 1_000,
                connections: 8,
            },
        )
    }
}

fn lists() -> Scenario {
    Scenario {
        workers: 0,
        ..scripted(
            "lists",
            "milliseconds of every list of the API with ten million attempts in the table",
            Script::Lists {
                attempts: 10_000_000,
            },
        )
    }
}

fn telemetry() -> Scenario {
    Scenario {
        workers: 0,
        seconds: 180.0,
        ..scripted(
            "telemetry",
            "what gauges and statistics cost the database with ten million samples in a day",
            Script::Telemetry {
                samples: 10_000_000,
            },
        )
    }
}

/// The names of all scenarios, for help and errors.
#[must_use]
pub(in crate::run) fn names() -> String {
    all()
        .iter()
        .map(|scenario| scenario.name)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_payload_is_what_the_api_takes_by_default() {
        let setting = shared::runtime::settings::find("POSTRIDER_MAX_PAYLOAD_BYTES");

        let default = setting.map(|setting| setting.default_shown().parse());
        assert_eq!(default, Some(Ok(LARGEST_PAYLOAD)));
    }
}
