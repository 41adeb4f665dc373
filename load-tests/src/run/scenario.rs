//! The scenarios, as data.

use serde::Serialize;
use serde_json::{Value, json};

use super::scripts::{Again, Script};
use crate::receiver::{Answers, Verify};

/// What the API takes at most, unless it is told otherwise.
const LARGEST_PAYLOAD: usize = 256 << 10;

/// What is measured. Everything runs on one machine.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) load: Load,
    pub(super) tenants: usize,
    pub(super) endpoints_per_tenant: usize,
    /// Fields of every endpoint besides its URL and its event type.
    pub(super) endpoint: Value,
    /// How every endpoint answers at first.
    pub(super) answers: Answers,
    pub(super) workers: usize,
    pub(super) payload_bytes: usize,
    /// Which signatures the receiver checks.
    pub(super) verify: Verify,
    /// Seconds before the measured window, and of it.
    pub(super) warmup: f64,
    pub(super) seconds: f64,
    /// Deliveries per second that have to be reached.
    pub(super) floor: Option<f64>,
    /// Shows that it runs, not how fast: figures about speed are told and do not count.
    pub(super) short: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Load {
    /// As many events as are delivered: so many posts under way, so many events accepted and not
    /// yet received at most.
    Closed { connections: usize, backlog: u32 },
    /// A fixed rate, come what may.
    Open { per_second: f64, connections: usize },
    /// More than one thing after the other.
    Scripted(Script),
}

/// All scenarios. Where nothing else is said, an event goes to exactly one of 1,000 endpoints: 100
/// tenants with a key of their own and 10 endpoints, each subscribed to one event type; turn by turn.
#[must_use]
pub(super) fn all() -> Vec<Scenario> {
    vec![
        fanout_1(),
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
        lists(),
        telemetry(),
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
        endpoint: json!({}),
        answers: Answers::default(),
        workers: 1,
        payload_bytes: 512,
        verify: Verify::Sample,
        warmup: 5.0,
        seconds: 60.0,
        floor: None,
        short: false,
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
        floor: Some(4_000.0),
        ..fanout_1()
    }
}

fn scripted(name: &'static str, what: &'static str, script: Script) -> Scenario {
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
        ..fanout_1()
    }
}

fn slow_endpoints() -> Scenario {
    Scenario {
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
                floor: 10_000.0,
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
                floor: 30_000.0,
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

impl Scenario {
    /// The same in a few seconds, with few endpoints: shows that it runs, not how fast.
    #[must_use]
    pub(super) fn short(self) -> Self {
        let short = Self {
            warmup: 1.0,
            seconds: 3.0,
            short: true,
            ..self
        };
        match short.load {
            Load::Closed { .. } | Load::Open { .. } => Self {
                tenants: 4,
                endpoints_per_tenant: 5,
                ..short
            },
            Load::Scripted(script) => Self {
                seconds: script.shortest_seconds(),
                load: Load::Scripted(script.short()),
                ..short
            },
        }
    }

    /// The same with so many attempts, where they are made by SQL.
    #[must_use]
    pub(super) fn with_rows(mut self, rows: i64) -> Self {
        if let Load::Scripted(
            Script::Lists { attempts: own } | Script::Telemetry { samples: own },
        ) = &mut self.load
        {
            *own = rows;
        }
        self
    }

    /// Whether events are posted: what is filled by SQL is read as it was filled.
    pub(super) const fn posts(&self) -> bool {
        !matches!(
            self.load,
            Load::Scripted(Script::Lists { .. } | Script::Telemetry { .. })
        )
    }

    /// Whether it is about the database's statements.
    pub(super) const fn counts_statements(&self) -> bool {
        matches!(self.load, Load::Scripted(Script::Telemetry { .. }))
    }

    /// Whether anything is sent: while ingest alone is measured no worker runs.
    pub(super) const fn delivers(&self) -> bool {
        self.posts() && !matches!(self.load, Load::Scripted(Script::Ingest { .. }))
    }

    /// The fields of an endpoint besides its URL and its event type.
    pub(super) fn fields(&self, endpoint: usize) -> Value {
        let mut fields = self.endpoint.clone();
        let own = match self.load {
            Load::Scripted(script) => script.fields(endpoint),
            Load::Closed { .. } | Load::Open { .. } => None,
        };
        if let (Some(own), Value::Object(fields)) = (own, &mut fields) {
            fields.extend(own);
        }
        fields
    }

    /// Settings of the programs, as `--set` takes them.
    pub(super) fn settings(&self) -> Vec<String> {
        match self.load {
            Load::Scripted(script) => script.settings(),
            Load::Closed { .. } | Load::Open { .. } => Vec::new(),
        }
    }

    /// Endpoints in all.
    pub(super) fn endpoints(&self) -> usize {
        self.tenants * self.endpoints_per_tenant
    }
}

/// The names of all scenarios, for help and errors.
#[must_use]
pub(super) fn names() -> String {
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
