//! One measurement of a running system: calibrate, make the endpoints, play the scenario, wait for
//! the drain, count.

use std::time::Duration;

use super::calibrate::calibrate;
use super::database;
use super::load::{self, ids};
use super::outcome::Measured;
use super::scenario::{Load, Scenario};
use super::scripts;
use super::setup::World;
use super::stage::Stage;
use super::system::System;

/// PostgreSQL's backends tell their counters once a second at most.
const COUNTERS: Duration = Duration::from_millis(1_200);

/// What was measured, and what it was measured with.
pub(super) async fn measure(
    system: &mut System,
    scenario: &Scenario,
) -> anyhow::Result<(Measured, World)> {
    let calibration = calibrate(system).await?;
    eprintln!("{}: making {} tenants", scenario.name, scenario.tenants);
    let mut world = World::default();
    world.extend(scenario, system, 0..scenario.tenants).await?;
    tokio::time::sleep(COUNTERS).await;
    let counters_before = system.postgres.counters().await?;

    let mut played = match scenario.load {
        Load::Closed { .. } | Load::Open { .. } => load::play(system, scenario, &world).await?,
        Load::Scripted(script) => {
            let mut stage = Stage::new(system, scenario, &world);
            scripts::play(script, &mut stage).await?;
            stage.finish()
        }
    };

    let mut kept_ids = Vec::new();
    let live_at_end = if played.unfinished {
        kept_ids = system.postgres.kept().await?;
        system.postgres.live().await?
    } else {
        system.drain(played.sent.deliveries).await?;
        system.settle().await?
    };
    let (dead, closed) = system.postgres.ended_undelivered().await?;
    let mut detail = |name: &str, value: i64| played.details.insert(name.to_owned(), value.into());
    detail("dead_letters", dead);
    detail("skipped_or_cancelled", closed);
    tokio::time::sleep(COUNTERS).await;
    let counters = system.postgres.counters().await?;
    system.postgres.show_statements().await?;
    let received = system.counts().await?;
    let measured = Measured {
        received_ids: ids(&system.control("events", b"").await?),
        per_delivery: counters.per_delivery(counters_before, received.deliveries),
        postgres_settings: database::SETTINGS.iter().copied().collect(),
        kept_ids,
        played,
        received,
        live_at_end,
        calibration,
    };
    Ok((measured, world))
}
