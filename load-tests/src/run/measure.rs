//! One measurement of a running system: calibrate, make the endpoints, play the scenario, wait for
//! the drain, count.

use std::time::Duration;

use super::calibrate::calibrate;
use super::database;
use super::load::{self, ids};
use super::outcome::Measured;
use super::scenario::{Load, Scenario};
use super::scripts;
use super::setup;
use super::stage::Stage;
use super::system::System;
use crate::receiver::Change;

/// PostgreSQL's backends tell their counters once a second at most.
const COUNTERS: Duration = Duration::from_millis(1_200);

pub(super) async fn measure(system: &mut System, scenario: &Scenario) -> anyhow::Result<Measured> {
    let calibration = calibrate(system.dir(), system.receiver_addr).await?;
    eprintln!("{}: making {} tenants", scenario.name, scenario.tenants);
    let (api, receiver) = (system.api_addr, system.receiver_addr);
    let world = setup::create(scenario, api, &system.admin_token, receiver).await?;
    let secrets: Vec<&str> = world
        .endpoints
        .iter()
        .map(|it| it.secret.as_str())
        .collect();
    system.tell("secrets", &secrets).await?;
    let answers = Change {
        endpoints: (0..scenario.endpoints()).into(),
        answers: scenario.answers,
        journal: false,
    };
    system.tell("answers", &[answers]).await?;
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
    Ok(Measured {
        received_ids: ids(&system.control("events", b"").await?),
        per_delivery: counters.per_delivery(counters_before, received.deliveries),
        postgres_settings: database::SETTINGS.iter().copied().collect(),
        kept_ids,
        played,
        received,
        live_at_end,
        calibration,
    })
}
