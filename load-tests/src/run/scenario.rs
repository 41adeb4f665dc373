//! The scenarios, as data.

use serde::Serialize;

use crate::receiver::Verify;

/// What is measured. Everything runs on one machine.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) load: Load,
    pub(super) tenants: usize,
    pub(super) endpoints_per_tenant: usize,
    pub(super) payload_bytes: usize,
    /// Which signatures the receiver checks.
    pub(super) verify: Verify,
    /// Seconds before the measured window, and of it.
    pub(super) warmup: f64,
    pub(super) seconds: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Load {
    /// As many events as are delivered: so many posts under way, so many events accepted and not
    /// yet received at most.
    Closed { connections: usize, backlog: u32 },
    /// A fixed rate, come what may.
    Open { per_second: f64, connections: usize },
}

/// All scenarios. In each, an event goes to exactly one of 1,000 endpoints: 100 tenants with a key
/// of their own and 10 endpoints, each subscribed to one event type; turn by turn.
#[must_use]
pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "fanout-1",
            what: "events per second from POST to receipt, sustained",
            load: Load::Closed {
                connections: 256,
                backlog: 4_000,
            },
            tenants: 100,
            endpoints_per_tenant: 10,
            payload_bytes: 512,
            verify: Verify::Sample,
            warmup: 5.0,
            seconds: 60.0,
        },
        latency("latency-200", 200.0),
        latency("latency-1000", 1_000.0),
    ]
}

fn latency(name: &'static str, per_second: f64) -> Scenario {
    Scenario {
        name,
        what: "milliseconds from POST to receipt at a fixed rate",
        load: Load::Open {
            per_second,
            connections: 64,
        },
        tenants: 100,
        endpoints_per_tenant: 10,
        payload_bytes: 512,
        verify: Verify::All,
        warmup: 5.0,
        seconds: 60.0,
    }
}

impl Scenario {
    /// The same in a few seconds, with few endpoints: shows that it runs, not how fast.
    #[must_use]
    pub(super) fn short(self) -> Self {
        Self {
            tenants: 4,
            endpoints_per_tenant: 5,
            warmup: 1.0,
            seconds: 3.0,
            ..self
        }
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
