//! How throughput and the time of a claim change as something grows: history, endpoints, workers,
//! the age of the oldest snapshot. The points are in `details`, in order.
//!
//! A *claim* is what a worker does to find its next deliveries: `queue::load_ready` and
//! `queue::load_retry`, by `pg_stat_statements`.

mod claims;
mod history;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use self::claims::{Claimed, Claims};
use crate::generator::{Backlog, Generator, Pace, Plan, Target};
use crate::payload::now_ns;
use crate::run::stage::{LONG, Stage, per_second, until};

/// Events accepted and not yet received, at most.
const BACKLOG: u32 = 4_000;
/// For what is left after a point.
const REST: Duration = Duration::from_secs(60);

/// What grows.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum Growth {
    /// Deliveries that were made and ended: an event and an attempt each.
    History { rows: [i64; 3] },
    /// Ten of each tenant.
    Endpoints { tenants: [usize; 3] },
    /// 1, 2, 4 … of them.
    Workers { most: usize },
    /// The age of the oldest snapshot.
    Snapshot {
        /// Events while it is held.
        per_second: f64,
        /// Of each phase at full speed.
        full_seconds: f64,
    },
}

impl Growth {
    pub(in crate::run) fn short(self) -> Self {
        match self {
            Self::History { .. } => Self::History {
                rows: [1_000, 5_000, 20_000],
            },
            Self::Endpoints { .. } => Self::Endpoints {
                tenants: [1, 4, 40],
            },
            Self::Workers { .. } => Self::Workers { most: 2 },
            Self::Snapshot { per_second, .. } => Self::Snapshot {
                per_second,
                full_seconds: 3.0,
            },
        }
    }

    /// At first.
    pub(in crate::run) fn tenants(self) -> usize {
        match self {
            Self::Endpoints { tenants } => tenants.into_iter().min().unwrap_or(1),
            Self::History { .. } | Self::Workers { .. } | Self::Snapshot { .. } => 100,
        }
    }

    pub(in crate::run) fn shortest_seconds(self) -> f64 {
        match self {
            Self::Snapshot { .. } => 6.0,
            Self::History { .. } | Self::Endpoints { .. } | Self::Workers { .. } => 3.0,
        }
    }

    /// The most rows of history; the others below them as they were.
    pub(in crate::run) fn set_rows(&mut self, most: i64) {
        if let Self::History { rows } = self {
            *rows = rows.map(|it| it.min(most));
            if let Some(last) = rows.last_mut() {
                *last = most;
            }
        }
    }
}

pub(super) async fn play(stage: &mut Stage<'_>, growth: Growth) -> anyhow::Result<()> {
    let mut claims = Claims::new(&stage.system.postgres).await?;
    match growth {
        Growth::History { rows } => history::play(stage, &mut claims, rows).await,
        Growth::Endpoints { tenants } => endpoints(stage, &mut claims, tenants).await,
        Growth::Workers { most } => workers(stage, &mut claims, most).await,
        Growth::Snapshot {
            per_second,
            full_seconds,
        } => snapshot::play(stage, &mut claims, (per_second, full_seconds)).await,
    }
}

async fn endpoints(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    tenants: [usize; 3],
) -> anyhow::Result<()> {
    let mut world = stage.world.clone();
    let mut points = Vec::new();
    for tenants in tenants {
        let made = world.endpoints.len() / stage.scenario.endpoints_per_tenant;
        if made < tenants {
            eprintln!("  making {} more tenants", tenants - made);
            let more = made..tenants;
            world.extend(stage.scenario, stage.system, more).await?;
        }
        let first = first_events(stage, world.in_turn()).await?;
        let load = full_speed(stage, world.in_turn());
        let point = measured(stage, claims, load).await?;
        let mut point = told("endpoints", world.endpoints.len(), stage, &point);
        if let Value::Object(fields) = &mut point {
            fields.insert("first_events_per_second".to_owned(), first.into());
        }
        points.push(point);
    }
    stage.detail("points", points);
    Ok(())
}

/// An event for each endpoint, so that what is measured afterwards is not how caches are filled; how
/// many a second.
async fn first_events(stage: &mut Stage<'_>, targets: Vec<Target>) -> anyhow::Result<f64> {
    let from_ns = now_ns();
    let count = targets.len();
    stage.post(targets, count).await?;
    let rate = per_second(u64::try_from(count)?, &(from_ns..now_ns()));
    let promised = stage.promised();
    stage.received(promised, LONG).await?;
    Ok(rate.round())
}

async fn workers(stage: &mut Stage<'_>, claims: &mut Claims, most: usize) -> anyhow::Result<()> {
    let mut points = Vec::new();
    let mut running = stage.scenario.workers;
    loop {
        stage.system.workers_balanced().await?;
        let load = full_speed(stage, stage.world.in_turn());
        let point = measured(stage, claims, load).await?;
        points.push(told("workers", running, stage, &point));
        if running * 2 > most {
            break;
        }
        for _more in 0..running {
            stage.system.start_worker()?;
        }
        running *= 2;
        stage.system.workers_ready().await?;
    }
    stage.detail("points", points);
    Ok(())
}

/// What was measured under one load.
struct Point {
    /// Of as much as is delivered, and not of a fixed rate.
    full_speed: bool,
    per_second: f64,
    deliveries: u64,
    claimed: Claimed,
}

/// A point for the result.
fn told(what: &str, count: impl Into<Value>, stage: &Stage<'_>, point: &Point) -> Value {
    let mut told = json!({
        "throughput_per_second": point.per_second.round(),
        "claim": point.claimed,
        "cpu_us_per_delivery": stage.cpu_per(point.deliveries),
    });
    if let Value::Object(fields) = &mut told {
        fields.insert(what.to_owned(), count.into());
    }
    eprintln!("  {told}");
    told
}

/// As much as is delivered, for the scenario's seconds.
fn full_speed(stage: &Stage<'_>, targets: Vec<Target>) -> Plan {
    let backlog = Backlog {
        most: BACKLOG,
        fan_out: 1,
        receiver: stage.system.receiver_addr,
    };
    let pace = Pace::Closed {
        backlog: Some(backlog),
    };
    Plan {
        connections: 256,
        warmup: stage.warmup(),
        ..stage.plan(targets, pace, stage.length())
    }
}

/// Loads the system, measures, and waits until all of it was received.
async fn measured(stage: &mut Stage<'_>, claims: &mut Claims, load: Plan) -> anyhow::Result<Point> {
    let full_speed = matches!(load.pace, Pace::Closed { .. });
    let generator = Generator::new(load);
    let window = generator.window();
    let measuring = async {
        until(window.start).await;
        stage.begin(window.end).await?;
        let claimed = claims.watch(window.end).await?;
        stage.end().await?;
        anyhow::Ok(claimed)
    };
    let ((), claimed) = tokio::join!(generator.run(), measuring);
    let claimed = claimed?;
    took(stage, &generator).await?;
    let deliveries = stage.system.counts().await?.deliveries_in_window;
    Ok(Point {
        full_speed,
        per_second: per_second(deliveries, &window),
        deliveries,
        claimed,
    })
}

async fn took(stage: &mut Stage<'_>, generator: &Arc<Generator>) -> anyhow::Result<()> {
    stage.took(generator);
    let promised = stage.promised();
    stage.received(promised, REST).await?;
    // What is recorded late belongs to this load and not to the next.
    stage.system.settle().await?;
    stage.measured_until(now_ns().min(generator.window().end));
    Ok(())
}
