//! `postrider journal`: what an API accepted on local disk, looked at, and replayed when its process is gone.

use std::path::PathBuf;

use api::journal::{self, Contents, Replayed};
use serde::Serialize;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use time::format_description::well_known::Rfc3339;

use crate::output::{Output, note};
use crate::store::checked;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// What is in a journal; also while a process uses it
    Status {
        /// The directory (POSTRIDER_JOURNAL_DIR of that API process)
        dir: PathBuf,
    },
    /// Bring the events of a journal into the database; its API process must be gone
    #[command(after_help = "\
Needs DATABASE_URL. An API process does this by itself as soon as the database is back, and after a restart with the
same POSTRIDER_JOURNAL_DIR; this is for a directory that outlived its process. Again after a failure or a crash changes
nothing: each event is stored once, under the id that its publisher was given.

Example:
  postrider journal replay /var/lib/postrider/journal-a")]
    Replay {
        /// The directory
        dir: PathBuf,
    },
}

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    stored: usize,
    /// Their keys stood for events that other processes accepted.
    aliases: usize,
    /// The database would not take them; they are kept in the directory.
    refused: usize,
}

pub(crate) async fn run(
    command: Command,
    settings: &Settings,
    output: Output,
) -> Result<(), Failure> {
    match command {
        Command::Status { dir } => {
            let contents = journal::inspect(&dir).map_err(failed)?;
            output.result(&contents, text);
            Ok(())
        }
        Command::Replay { dir } => {
            if !dir.is_dir() {
                let text = format!("{} is no directory: nothing to replay", dir.display());
                return Err(Failure::Failed(text));
            }
            let database = checked(settings).await?;
            let mut done = Done::default();
            let told = |file: Replayed| {
                done.stored += file.stored;
                done.aliases += file.aliases;
                done.refused += file.refused;
                if output.is_text() {
                    note(&format!(
                        "{} events so far",
                        done.stored + done.aliases + done.refused
                    ));
                }
            };
            journal::replay_offline(&dir, &database, told)
                .await
                .map_err(failed)?;
            output.result(&done, |done| {
                format!(
                    "{} events stored, {} had been accepted elsewhere under the same key, {} refused",
                    done.stored, done.aliases, done.refused
                )
            });
            if done.refused > 0 {
                let text = "the refused events are kept in the directory, each with the reason; `postrider journal status` counts them";
                return Err(Failure::Failed(text.to_owned()));
            }
            Ok(())
        }
    }
}

fn text(contents: &Contents) -> String {
    let oldest = contents.oldest.and_then(|at| at.format(&Rfc3339).ok());
    let oldest = oldest.map_or_else(String::new, |at| format!(", the first of {at}"));
    format!(
        "{} events to be replayed{oldest}; {} bytes; {} refused; {} damaged files",
        contents.events, contents.bytes, contents.refused, contents.damaged_files
    )
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::Failed(format!("{error:#}"))
}
