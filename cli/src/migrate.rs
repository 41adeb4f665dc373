//! `postrider migrate`: the schema of this program, forward only.

use serde::Serialize;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::migrate::{self, SCHEMA_VERSION};

use crate::output::Output;
use crate::store::{database, migrate_failure};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two processes at once are safe: the second waits and finds nothing to do. The database may be in
use meanwhile. With --check the exit code is 1 when something is pending.")]
pub(crate) struct Args {
    /// Say what is pending and change nothing
    #[arg(long)]
    check: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    schema_version: i32,
    applied: Vec<String>,
    pending: Vec<String>,
}

impl Report {
    fn text(&self) -> String {
        let lines = |verb: &str, names: &[String]| -> Vec<String> {
            names.iter().map(|name| format!("{verb} {name}")).collect()
        };
        let mut text = lines("applied", &self.applied);
        text.extend(lines("pending", &self.pending));
        if self.pending.is_empty() {
            text.push(format!("the schema is at version {}", self.schema_version));
        }
        text.join("\n")
    }
}

pub(crate) async fn run(args: &Args, settings: &Settings, output: Output) -> Result<(), Failure> {
    let database = database(settings)?;
    let name = |version: i32, name: &str| format!("{version:04}_{name}");
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        applied: Vec::new(),
        pending: Vec::new(),
    };
    if args.check {
        let pending = migrate::pending(&database).await.map_err(migrate_failure)?;
        report.pending = pending.iter().map(|m| name(m.version, m.name)).collect();
    } else {
        let applied = migrate::migrate(&database).await.map_err(migrate_failure)?;
        report.applied = applied.iter().map(|m| name(m.version, m.name)).collect();
    }
    output.result(&report, Report::text);
    if report.pending.is_empty() {
        Ok(())
    } else {
        Err(Failure::Failed(format!(
            "{} migrations are pending: run `postrider migrate`",
            report.pending.len()
        )))
    }
}
