//! `postrider config`: is the configuration usable, and where does each value come from?

use serde::Serialize;
use shared::runtime::budgets;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::Database;

use crate::output::{Output, table};
use crate::store::store_failure;

#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub(crate) enum Command {
    /// Check that `api` and `worker` could start with it, and add up the time budgets
    #[command(after_help = "\
Nothing is contacted: this is about values, and files of this machine that they name. Exit code 2, or 1 for such a
file, when something must be changed.")]
    Check,
    /// Print every setting, its value and where it comes from; secrets are hidden
    Show,
}

#[derive(Debug, Serialize)]
struct Sum {
    inner: &'static str,
    inner_seconds: u64,
    outer: &'static str,
    outer_seconds: u64,
}

pub(crate) fn run(command: &Command, settings: &Settings, output: Output) -> Result<(), Failure> {
    match command {
        Command::Check => check(settings, output),
        Command::Show => {
            output.result(&settings.shown(), |rows| {
                let cells = |row: &shared::runtime::settings::Shown| {
                    let value = row.value.clone().unwrap_or_else(|| "—".to_owned());
                    vec![row.name.to_owned(), value, row.source.to_owned()]
                };
                table(&rows.iter().map(cells).collect::<Vec<_>>())
            });
            Ok(())
        }
    }
}

/// As far as that can be known without a database.
fn servers_could_start(settings: &Settings) -> Result<(), Failure> {
    api::Config::from_settings(settings)?;
    let worker = worker::Config::from_settings(settings)?;
    Database::new(&worker.database_url.0).map_err(store_failure)?;
    worker::sender::trusted(worker.ca_file.as_deref()).map_err(Failure::Failed)?;
    Ok(())
}

/// Values and budgets were checked when the settings were loaded; here is what servers need besides.
fn check(settings: &Settings, output: Output) -> Result<(), Failure> {
    servers_could_start(settings)?;
    let sums: Vec<Sum> = budgets::budgets(settings)
        .into_iter()
        .map(|budget| Sum {
            inner: budget.inner,
            inner_seconds: budget.inner_length.as_secs(),
            outer: budget.outer,
            outer_seconds: budget.outer_length.as_secs(),
        })
        .collect();
    let ladder = budgets::longest_ladder();
    let report = serde_json::json!({
        "usable": true,
        "budgets": sums,
        "longest_request_seconds": budgets::longest_request(settings).as_secs(),
        "longest_ladder_seconds": ladder.as_secs(),
    });
    output.result(&report, |_| {
        let show = |seconds| humantime::format_duration(std::time::Duration::from_secs(seconds));
        let cells = |sum: &Sum| {
            vec![
                sum.inner.to_owned(),
                show(sum.inner_seconds).to_string(),
                format!("fits into {}", sum.outer),
                show(sum.outer_seconds).to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = sums.iter().map(cells).collect();
        format!(
            "{}\nlongest timeout that an endpoint may ask for: {}\n\
             longest time from first attempt to dead letter, with the default backoff: {}\n\
             the configuration is usable",
            table(&rows),
            humantime::format_duration(budgets::longest_request(settings)),
            humantime::format_duration(ladder),
        )
    });
    Ok(())
}
