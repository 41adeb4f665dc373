//! Scenarios that do more than one thing after the other, each with what it has to show.

mod drain;
mod growth;
mod hot_tenant;
mod ingest;
mod kill_gap;
mod large_payloads;
mod lists;
mod ordered;
mod phases;
mod rate_limit;
mod recovery;
mod replay;
pub(super) mod slow_endpoints;
mod slow_endpoints_at_load;
mod soak;
mod statements;
mod telemetry;
mod throttle;

use serde::Serialize;
use serde_json::{Map, Value};

pub(super) use self::growth::Growth;
pub(super) use self::replay::Again;
pub(super) use self::soak::Soak;
use super::stage::Stage;

/// What to do, and how much of it.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Script {
    SlowEndpoints {
        hanging: usize,
        per_second: f64,
    },
    SlowEndpointsAtLoad {
        hanging: usize,
    },
    LargePayloads {
        /// Events of both sizes.
        per_second: f64,
        /// The share of them that is large.
        share: f64,
        bytes: usize,
        /// How late the receivers of large ones answer in the last phase.
        delay_ms: u64,
        /// Of the worker: few enough for the wave to meet its bound.
        permits: u32,
    },
    HotTenant {
        /// Events that wait when the worker starts.
        backlog: usize,
        /// Of the other tenant.
        per_second: f64,
    },
    Recovery {
        /// Per endpoint.
        pending: usize,
        /// What each receiver takes.
        per_second: f64,
        /// New events per endpoint.
        new_per_second: f64,
    },
    RateLimit {
        per_second: f64,
        burst: u32,
    },
    Replay(Again),
    Ingest {
        /// Events in one request.
        batch: usize,
        connections: usize,
    },
    Drain {
        events: usize,
    },
    Memory {
        events: usize,
        tenants: usize,
    },
    KillGap {
        kills: usize,
        per_second: f64,
    },
    Growth(Growth),
    Soak(Soak),
    Ordered {
        keys: u32,
    },
    Lists {
        /// Rows in the table of attempts.
        attempts: i64,
    },
    Telemetry {
        /// Attempts of one day.
        samples: i64,
    },
    Throttle {
        events: usize,
        /// In each window.
        most: u32,
        window_seconds: u64,
    },
}

/// Plays a script.
pub(super) async fn play(script: Script, stage: &mut Stage<'_>) -> anyhow::Result<()> {
    match script {
        Script::SlowEndpoints {
            hanging,
            per_second,
        } => slow_endpoints::play(stage, hanging, per_second).await,
        Script::SlowEndpointsAtLoad { hanging } => {
            slow_endpoints_at_load::play(stage, hanging).await
        }
        Script::LargePayloads {
            per_second,
            share,
            bytes,
            delay_ms,
            permits,
        } => {
            let wave = large_payloads::Wave {
                per_second,
                share,
                bytes,
                delay_ms,
                permits,
            };
            large_payloads::play(stage, wave).await
        }
        Script::HotTenant {
            backlog,
            per_second,
        } => hot_tenant::play(stage, backlog, per_second).await,
        Script::Recovery {
            pending,
            per_second,
            new_per_second,
        } => {
            let outage = recovery::Outage {
                pending,
                per_second,
                new_per_second,
            };
            recovery::play(stage, outage).await
        }
        Script::RateLimit { per_second, burst } => {
            rate_limit::play(stage, per_second, f64::from(burst)).await
        }
        Script::Replay(again) => replay::play(stage, again).await,
        Script::Ingest { batch, connections } => ingest::play(stage, batch, connections).await,
        Script::Drain { events } => drain::play(stage, events).await,
        Script::Memory { events, .. } => drain::remember(stage, events).await,
        Script::KillGap { kills, per_second } => kill_gap::play(stage, kills, per_second).await,
        Script::Growth(growth) => growth::play(stage, growth).await,
        Script::Soak(soak) => soak::play(stage, soak).await,
        Script::Ordered { keys } => ordered::play(stage, keys).await,
        Script::Lists { attempts } => lists::play(stage, attempts).await,
        Script::Telemetry { samples } => telemetry::play(stage, samples).await,
        Script::Throttle {
            events,
            most,
            window_seconds,
        } => throttle::play(stage, events, most, window_seconds).await,
    }
}

impl Script {
    /// The same with little to do.
    pub(super) fn short(self) -> Self {
        match self {
            Self::HotTenant { per_second, .. } => Self::HotTenant {
                backlog: 60_000,
                per_second,
            },
            Self::Recovery {
                per_second,
                new_per_second,
                ..
            } => Self::Recovery {
                pending: 500,
                per_second,
                new_per_second,
            },
            Self::Ordered { .. } => Self::Ordered { keys: 200 },
            Self::Drain { .. } => Self::Drain { events: 20_000 },
            Self::Memory { .. } => Self::Memory {
                events: 20_000,
                tenants: 100,
            },
            Self::KillGap { per_second, .. } => Self::KillGap {
                kills: 1,
                per_second,
            },
            Self::Growth(growth) => Self::Growth(growth.short()),
            Self::Soak(soak) => Self::Soak(soak.short()),
            Self::Replay(again) => Self::Replay(Again {
                events: 5_000,
                limited: 200,
                ..again
            }),
            Self::Lists { .. } => Self::Lists { attempts: 100_000 },
            Self::Telemetry { .. } => Self::Telemetry { samples: 100_000 },
            Self::Throttle { most, .. } => Self::Throttle {
                events: 30,
                most,
                window_seconds: 3,
            },
            Self::SlowEndpoints { .. }
            | Self::SlowEndpointsAtLoad { .. }
            | Self::LargePayloads { .. }
            | Self::RateLimit { .. }
            | Self::Ingest { .. } => self,
        }
    }

    /// How many tenants with how many endpoints each it is about.
    pub(super) fn shape(self) -> (usize, usize) {
        match self {
            Self::SlowEndpoints { .. } | Self::LargePayloads { .. } => (4, 5),
            Self::SlowEndpointsAtLoad { .. } => (20, 10),
            Self::HotTenant { .. } => (2, 10),
            Self::Recovery { .. } => (1, 2),
            Self::RateLimit { .. } => (8, 3),
            Self::Replay(_) => (2, 5),
            Self::Ingest { .. } => (20, 10),
            Self::Ordered { .. } => (5, 2),
            Self::Drain { .. } => (100, 10),
            Self::Memory { tenants, .. } => (tenants, 10),
            Self::KillGap { .. } => (6, 10),
            Self::Growth(growth) => (growth.tenants(), 10),
            Self::Soak(soak) => (soak.tenants(), 10),
            Self::Throttle { .. } => (1, 1),
            Self::Lists { .. } | Self::Telemetry { .. } => (50, 20),
        }
    }

    /// Seconds of the window in a short run: some need a lease to end in it, or late answers to come.
    pub(super) fn shortest_seconds(self) -> f64 {
        match self {
            Self::RateLimit { .. } => 36.0,
            Self::Ordered { .. } => 16.0,
            Self::Recovery { .. } => 8.0,
            Self::LargePayloads { .. } => 12.0,
            // Two steps of the statistics.
            Self::Telemetry { .. } => 65.0,
            Self::Growth(growth) => growth.shortest_seconds(),
            Self::SlowEndpoints { .. }
            | Self::SlowEndpointsAtLoad { .. }
            | Self::HotTenant { .. }
            | Self::Replay(_)
            | Self::Ingest { .. }
            | Self::Lists { .. }
            | Self::Drain { .. }
            | Self::Memory { .. }
            | Self::KillGap { .. }
            | Self::Soak(_)
            | Self::Throttle { .. } => 3.0,
        }
    }

    /// So many attempts, where they are made by SQL.
    pub(super) fn set_rows(&mut self, rows: i64) {
        if let Self::Lists { attempts: own } | Self::Telemetry { samples: own } = self {
            *own = rows;
        } else if let Self::Growth(growth) = self {
            growth.set_rows(rows);
        }
    }

    /// The fields of an endpoint that the others have not.
    pub(super) fn fields(self, endpoint: usize) -> Option<Map<String, Value>> {
        match self {
            Self::Recovery { per_second, .. } => recovery::fields(endpoint, per_second),
            Self::Replay(_) => replay::fields(endpoint),
            Self::SlowEndpoints { .. }
            | Self::SlowEndpointsAtLoad { .. }
            | Self::LargePayloads { .. }
            | Self::HotTenant { .. }
            | Self::RateLimit { .. }
            | Self::Ingest { .. }
            | Self::Ordered { .. }
            | Self::Lists { .. }
            | Self::Telemetry { .. }
            | Self::Drain { .. }
            | Self::Memory { .. }
            | Self::KillGap { .. }
            | Self::Growth(_)
            | Self::Soak(_)
            | Self::Throttle { .. } => None,
        }
    }

    /// Settings of the programs, as `--set` takes them.
    pub(super) fn settings(self) -> Vec<String> {
        match self {
            Self::LargePayloads { permits, .. } => {
                vec![format!("worker:POSTRIDER_MAX_IN_FLIGHT={permits}")]
            }
            Self::SlowEndpoints { .. }
            | Self::SlowEndpointsAtLoad { .. }
            | Self::HotTenant { .. }
            | Self::Recovery { .. }
            | Self::RateLimit { .. }
            | Self::Replay(_)
            | Self::Ingest { .. }
            | Self::Ordered { .. }
            | Self::Lists { .. }
            | Self::Telemetry { .. }
            | Self::Drain { .. }
            | Self::Memory { .. }
            | Self::KillGap { .. }
            | Self::Growth(_)
            | Self::Soak(_)
            | Self::Throttle { .. } => Vec::new(),
        }
    }
}
