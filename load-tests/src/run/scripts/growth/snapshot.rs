//! A session holds a snapshot open, as a long report or a forgotten transaction does, so nothing that is deleted can be cleaned
//! up (field report F60). What does that cost, while it lasts and afterwards?

use std::time::Duration;

use serde_json::{Value, json};
use shared::runtime::clock::boot_time;

use super::claims::{Claimed, Claims};
use super::{Point, full_speed, measured};
use crate::generator::{Pace, Plan};
use crate::run::sample;
use crate::run::stage::Stage;

/// Of one step of the steady load.
const STEP: Duration = Duration::from_secs(10);
const SHORT_STEP: Duration = Duration::from_secs(2);
/// A claim, at the end, in milliseconds.
const MOST_MS: f64 = 50.0;
/// From the release on, in seconds.
const RECOVERY: f64 = 120.0;
/// It has recovered when one of so many dead rows is left.
const LEFT: i64 = 10;

/// What happened, step by step.
struct Course {
    began: Duration,
    steps: Vec<Value>,
    most_dead: i64,
}

pub(super) async fn play(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    (per_second, full_seconds): (f64, f64),
) -> anyhow::Result<()> {
    let full = Duration::try_from_secs_f64(full_seconds)?;
    let mut course = Course {
        began: boot_time().0,
        steps: Vec::new(),
        most_dead: 0,
    };
    let before = at_full_speed(stage, claims, full).await?;
    course.step(stage, "before", &before).await?;

    let holder = stage.system.postgres.connect().await?;
    const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ready";
    holder.batch_execute(HOLD).await?;
    let released = boot_time().after(stage.length().saturating_sub(full));
    while boot_time() < released {
        let point = steady(stage, claims, per_second).await?;
        course.step(stage, "held", &point).await?;
    }
    let held = at_full_speed(stage, claims, full).await?;
    course.step(stage, "held", &held).await?;
    holder.batch_execute("COMMIT").await?;

    let recovery = recover(stage, claims, per_second, &mut course).await?;
    let last = at_full_speed(stage, claims, full).await?;
    course.step(stage, "after", &last).await?;
    report(stage, [&before, &held, &last], recovery);
    stage.detail("most_dead_rows", course.most_dead);
    stage.detail("course", course.steps);
    Ok(())
}

/// Goes on at the steady load until what is dead is cleaned up; seconds, `None`: not in time.
async fn recover(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    per_second: f64,
    course: &mut Course,
) -> anyhow::Result<Option<f64>> {
    let released = boot_time();
    let enough = course.most_dead / LEFT;
    while boot_time().since(released).as_secs_f64() < RECOVERY {
        let point = steady(stage, claims, per_second).await?;
        let dead = course.step(stage, "released", &point).await?;
        if dead <= enough {
            return Ok(Some(boot_time().since(released).as_secs_f64()));
        }
    }
    Ok(None)
}

fn report(stage: &mut Stage<'_>, [before, held, after]: [&Point; 3], recovery: Option<f64>) {
    let loss = 100.0 * (1.0 - held.per_second / before.per_second.max(1.0));
    stage.detail("loss_percent", (loss.max(0.0) * 10.0).round() / 10.0);
    stage.detail("full_speed_before", before.per_second.round());
    stage.detail("full_speed_held", held.per_second.round());
    stage.detail("full_speed_after", after.per_second.round());
    let claim =
        |it: &Claimed| json!({ "mean_ms": it.mean_ms, "p99_ms": it.p99_ms, "max_ms": it.max_ms });
    stage.detail("claim_before", claim(&before.claimed));
    stage.detail("claim_held", claim(&held.claimed));
    stage.detail("claim_after", claim(&after.claimed));
    stage.below(
        "p99 of a claim at the end, ms",
        held.claimed.p99_ms,
        MOST_MS,
    );
    stage.at_most("seconds from release to recovery", recovery, RECOVERY);
}

async fn at_full_speed(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    length: Duration,
) -> anyhow::Result<Point> {
    let load = full_speed(stage, stage.world.in_turn());
    let load = Plan {
        measured: length,
        ..load
    };
    measured(stage, claims, load).await
}

async fn steady(
    stage: &mut Stage<'_>,
    claims: &mut Claims,
    per_second: f64,
) -> anyhow::Result<Point> {
    let step = if stage.scenario.short {
        SHORT_STEP
    } else {
        STEP
    };
    let load = stage.plan(stage.world.in_turn(), Pace::Open { per_second }, step);
    measured(stage, claims, load).await
}

impl Course {
    /// Notes a step; the dead rows now.
    async fn step(&mut self, stage: &Stage<'_>, phase: &str, point: &Point) -> anyhow::Result<i64> {
        let tables = sample::tables(stage.system.postgres.client()).await?;
        let live = ["ready", "retry"].into_iter();
        let dead: i64 = live.filter_map(|it| tables.dead_rows.get(it)).sum();
        self.most_dead = self.most_dead.max(dead);
        let at = boot_time().0.saturating_sub(self.began).as_secs_f64();
        let step = json!({
            "at_seconds": (at * 10.0).round() / 10.0,
            "phase": phase,
            "full_speed": point.full_speed,
            "throughput_per_second": point.per_second.round(),
            "claim": point.claimed,
            "dead_rows": dead,
            "ready_bytes": tables.bytes.get("ready"),
        });
        eprintln!("  {step}");
        self.steps.push(step);
        Ok(dead)
    }
}
