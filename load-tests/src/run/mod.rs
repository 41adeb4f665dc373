//! Runs a scenario: starts everything as separate processes, loads it, waits for the drain, checks.
//!
//! Each run has a database, tenants and endpoints of its own; nothing is left behind but the result.

mod calibrate;
mod cpu;
mod database;
mod load;
mod measure;
mod outcome;
mod process;
mod rate;
mod scenario;
mod scripts;
mod setup;
mod stage;
mod starts;
mod system;
mod table;

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use self::outcome::Outcome;
use self::scenario::Scenario;
use self::system::System;
use crate::commands::say;

#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// A scenario's name, or all; a wrong name lists them
    scenario: String,
    /// A few seconds and few endpoints: shows that it runs, not how fast
    #[arg(long)]
    short: bool,
    /// Seconds of the measured window
    #[arg(long)]
    seconds: Option<f64>,
    /// How many attempts are in the table, where a scenario fills it by SQL
    #[arg(long)]
    rows: Option<i64>,
    /// Where the results go
    #[arg(long, default_value = "load-tests/results")]
    results: PathBuf,
    /// Where postrider-api and postrider-worker are [default: beside this program]
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Keep the processes' logs in this directory
    #[arg(long)]
    logs: Option<PathBuf>,
    /// Give PostgreSQL a setting: NAME=VALUE
    #[arg(long)]
    postgres: Vec<String>,
    /// Load pg_stat_statements (a little slower) and show what the statements cost
    #[arg(long)]
    statements: bool,
    /// Give the API or the worker a setting: api:NAME=VALUE or worker:NAME=VALUE
    #[arg(long)]
    set: Vec<String>,
}

/// Runs what was asked for; whether every check held.
pub(crate) async fn run(arguments: &RunArguments) -> anyhow::Result<bool> {
    let mut good = true;
    for scenario in chosen(arguments)? {
        let outcome = tokio::select! {
            outcome = one(scenario, arguments) => outcome?,
            signal = interrupted() => bail!("stopped by {signal}"),
        };
        say(&table::table(&outcome))?;
        outcome.write(&arguments.results)?;
        good &= outcome.faults.is_empty();
    }
    Ok(good)
}

fn chosen(arguments: &RunArguments) -> anyhow::Result<Vec<Scenario>> {
    let name = arguments.scenario.as_str();
    let chosen: Vec<Scenario> = scenario::all()
        .into_iter()
        .filter(|scenario| name == "all" || name == scenario.name)
        .map(|scenario| {
            if arguments.short {
                scenario.short()
            } else {
                scenario
            }
        })
        .map(|scenario| Scenario {
            seconds: arguments.seconds.unwrap_or(scenario.seconds),
            ..scenario
        })
        .map(|scenario| match arguments.rows {
            Some(rows) => scenario.with_rows(rows),
            None => scenario,
        })
        .collect();
    if chosen.is_empty() {
        bail!("no scenario {name}; there are: {}, all", scenario::names());
    }
    Ok(chosen)
}

/// What started is stopped when the run is dropped, so a signal must not end this process at once.
async fn interrupted() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}

async fn one(scenario: Scenario, arguments: &RunArguments) -> anyhow::Result<Outcome> {
    eprintln!(
        "{}: starting PostgreSQL, the receiver, the API and {} worker(s)",
        scenario.name, scenario.workers
    );
    let own = std::env::current_exe().context("where is this program?")?;
    let programs = match &arguments.programs {
        Some(programs) => programs.clone(),
        None => own
            .parent()
            .context("this program is in no directory")?
            .to_owned(),
    };
    let options = system::Options {
        programs,
        own,
        logs: arguments.logs.clone(),
        // What was asked for comes last, and so holds.
        settings: [scenario.settings(), arguments.set.clone()].concat(),
        postgres: arguments.postgres.clone(),
        statements: arguments.statements || scenario.counts_statements(),
        verify: scenario.verify,
        workers: scenario.workers,
    };
    let mut system = System::start(options).await?;
    let measured = measure::measure(&mut system, &scenario).await?;
    system.stop().await?;
    Ok(Outcome::of(scenario, measured))
}
