//! The scenarios, as data: what they are ([`catalogue`]) and what they have to reach ([`aims`]).

pub(super) mod aims;
mod catalogue;
mod growing;

use serde::Serialize;
use serde_json::Value;

pub(super) use self::catalogue::{all, names};
use super::scripts::Script;
use crate::receiver::{Answers, Verify};

/// What is measured. Everything runs on one machine.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) load: Load,
    pub(super) tenants: usize,
    pub(super) endpoints_per_tenant: usize,
    /// Deliveries of each event, all to endpoints of one tenant.
    pub(super) fan_out: usize,
    /// Hosts that the endpoints' URLs name in turn, all of them this machine; 1: the receiver's address.
    pub(super) hosts: usize,
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
    /// How the classic design is measured beside it.
    pub(super) baseline: Option<Beside>,
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

/// What the classic design is given, of what the scenario gives us.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Beside {
    /// So many deliveries made and not yet received, at most.
    Closed { backlog: u64 },
    /// So many deliveries made before it starts.
    Drain { deliveries: u64 },
    /// So many events per second.
    Open { per_second: f64 },
    /// The same, and some endpoints hang from the half on.
    Hanging { hanging: usize, per_second: f64 },
}

/// What a scenario is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// `all`
    Figures,
    /// `growth`
    Growth,
    /// Only by its own name: it takes long.
    Alone,
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
                endpoints_per_tenant: short.fan_out.max(5),
                ..short
            },
            Load::Scripted(script) => Self {
                seconds: script.shortest_seconds(),
                tenants: script.short().shape().0,
                hosts: short.hosts.min(200),
                load: Load::Scripted(script.short()),
                ..short
            },
        }
    }

    /// The same with so many attempts, where they are made by SQL.
    #[must_use]
    pub(super) fn with_rows(mut self, rows: i64) -> Self {
        if let Load::Scripted(script) = &mut self.load {
            script.set_rows(rows);
        }
        self
    }

    /// The same for so many hours, where it stands for hours.
    #[must_use]
    pub(super) fn with_hours(mut self, hours: f64) -> Self {
        if let Load::Scripted(Script::Soak(soak)) = &mut self.load {
            soak.hours = hours;
        }
        self
    }

    pub(super) const fn family(&self) -> Family {
        match self.load {
            Load::Scripted(Script::Growth(_)) => Family::Growth,
            Load::Scripted(Script::Soak(_)) => Family::Alone,
            Load::Scripted(_) | Load::Closed { .. } | Load::Open { .. } => Family::Figures,
        }
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
        matches!(
            self.load,
            Load::Scripted(Script::Telemetry { .. } | Script::Growth(_))
        )
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
