//! Runs a scenario: starts everything as separate processes, loads it, waits for the drain, checks.
//!
//! Each run has a database, tenants and endpoints of its own; nothing is left behind but the result.

mod baseline;
mod calibrate;
mod cpu;
mod database;
mod load;
mod measure;
mod outcome;
mod process;
mod rate;
mod sample;
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
use self::scenario::{Family, Scenario};
use self::system::System;
use crate::commands::say;

#[derive(Debug, clap::Args)]
pub struct RunArguments {
    /// Scenarios' names, all or growth; a wrong name lists them
    #[arg(required = true)]
    scenarios: Vec<String>,
    /// A few seconds and few endpoints: shows that it runs, not how fast
    #[arg(long)]
    short: bool,
    /// Seconds of the measured window
    #[arg(long)]
    seconds: Option<f64>,
    /// How many attempts are in the table, where a scenario fills it by SQL
    #[arg(long)]
    rows: Option<i64>,
    /// How many hours at 200/s `soak` stands for
    #[arg(long)]
    hours: Option<f64>,
    /// Measure the baseline in short runs too
    #[arg(long)]
    baseline: bool,
    /// Do not measure the baseline
    #[arg(long, conflicts_with = "baseline")]
    no_baseline: bool,
    /// The Python that has the baseline's packages
    #[arg(long, default_value = "load-tests/.venv/bin/python")]
    python: PathBuf,
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
    let mut chosen = Vec::new();
    for name in &arguments.scenarios {
        let found = scenario::all().into_iter().filter(|it| is_meant(name, it));
        let before = chosen.len();
        chosen.extend(found.map(|it| changed(it, arguments)));
        if chosen.len() == before {
            let names = scenario::names();
            bail!("no scenario {name}; there are: {names}, all, growth");
        }
    }
    Ok(chosen)
}

fn is_meant(name: &str, scenario: &Scenario) -> bool {
    match scenario.family() {
        Family::Figures if name == "all" => true,
        Family::Growth if name == "growth" => true,
        Family::Figures | Family::Growth | Family::Alone => name == scenario.name,
    }
}

/// As the options say.
fn changed(mut scenario: Scenario, arguments: &RunArguments) -> Scenario {
    if let Some(hours) = arguments.hours {
        scenario = scenario.with_hours(hours);
    }
    if arguments.short {
        scenario = scenario.short();
    }
    if let Some(rows) = arguments.rows {
        scenario = scenario.with_rows(rows);
    }
    if arguments.no_baseline || (arguments.short && !arguments.baseline) {
        scenario.baseline = None;
    }
    Scenario {
        seconds: arguments.seconds.unwrap_or(scenario.seconds),
        ..scenario
    }
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
        hosts: scenario.hosts,
    };
    let mut system = System::start(options).await?;
    let (measured, world) = measure::measure(&mut system, &scenario).await?;
    let beside = scenario.baseline;
    let mut outcome = Outcome::of(scenario, measured);
    if let Some(beside) = beside {
        match baseline::python(&arguments.python).await {
            Ok(python) => {
                system.stop_programs().await?;
                let with = (python.as_path(), beside);
                let baseline =
                    baseline::measure(&mut system, &outcome.scenario, &world, with).await?;
                outcome.compare(baseline);
            }
            Err(missing) => outcome.not_measured.push(missing),
        }
    }
    system.stop().await?;
    Ok(outcome)
}
