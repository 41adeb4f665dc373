//! `postrider stats`: the percentiles of all endpoints, computed now, straight in the database.

use serde::Serialize;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::Role;

use crate::output::Output;
use crate::store::{checked, store_failure};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Compute percentiles and judge who is slow, as a worker does every minute
    #[command(after_help = "\
Needs DATABASE_URL. Workers do this by themselves; this is for when none runs, or to see at once what a minute
would bring. It may run beside them: a result that is older never replaces a newer one.

Example:
  postrider stats run --once")]
    Run {
        /// One round, then end; there is no other way yet
        #[arg(long, required = true)]
        once: bool,
    },
}

/// What was done.
#[derive(Serialize)]
struct Computed {
    endpoints: usize,
}

pub(crate) async fn run(
    command: Command,
    settings: &Settings,
    output: Output,
) -> Result<(), Failure> {
    let Command::Run { once: _always } = command;
    let database = checked(settings).await?;
    // As the job: by indexes only.
    let mut session = database
        .connect(Role::Worker)
        .await
        .map_err(store_failure)?;
    let endpoints = worker::run_stats_once(&mut session)
        .await
        .map_err(store_failure)?;
    output.result(&Computed { endpoints }, |computed| {
        format!(
            "computed the percentiles of {} endpoints",
            computed.endpoints
        )
    });
    Ok(())
}
