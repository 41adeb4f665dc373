//! `postrider master-key`: moves everything that is sealed in the database to another master key.

use serde::Serialize;
use shared::runtime::program::Failure;
use shared::runtime::settings::{ConfigErrors, Settings};
use shared::sealing::MasterKeys;
use shared::store::Session;
use shared::store::sealed::{self, COLUMNS, Column, Counts, Failed};

use crate::output::{Output, note, table};
use crate::store::{connect, store_failure};

/// Values that cannot be opened, of which one is told each; the rest are counted.
const MOST_TOLD: usize = 20;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Seal anew, with POSTRIDER_MASTER_KEY, what POSTRIDER_MASTER_KEY_PREVIOUS still seals
    #[command(after_help = "\
The database may be in use, and the command may be stopped and run again. Before it, every `api` and
`worker` must have both keys, or they cannot open what it writes; after it, when nothing is left,
POSTRIDER_MASTER_KEY_PREVIOUS can be taken away.

Exit code 0 when everything is sealed with POSTRIDER_MASTER_KEY, 1 when something is not.")]
    Reseal {
        /// Count what is left and change nothing
        #[arg(long)]
        check: bool,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    column: &'static str,
    resealed: u64,
    current: i64,
    left: i64,
    unknown_key: i64,
}

#[derive(Debug, Serialize)]
struct Report {
    columns: Vec<Row>,
    resealed: u64,
    /// Sealed with the previous key.
    left: i64,
    /// Sealed with a key that is neither of the two.
    unknown_key: i64,
    failed: Vec<String>,
    failed_count: usize,
}

pub(crate) async fn run(
    command: Command,
    settings: &Settings,
    output: Output,
) -> Result<(), Failure> {
    let Command::Reseal { check } = command;
    let keys = keys(settings)?;
    let session = connect(settings).await?;
    let mut report = Report {
        columns: Vec::new(),
        resealed: 0,
        left: 0,
        unknown_key: 0,
        failed: Vec::new(),
        failed_count: 0,
    };
    for column in COLUMNS {
        let resealed = if check {
            0
        } else {
            walk(&session, &keys, column, output, &mut report).await?
        };
        let counts = sealed::count(&session, &keys, column).await;
        report.add(column, resealed, counts.map_err(store_failure)?);
    }
    output.result(&report, Report::text);
    report.verdict()
}

/// Goes over a whole column; how many values were sealed anew.
async fn walk(
    session: &Session,
    keys: &MasterKeys,
    column: &Column,
    output: Output,
    report: &mut Report,
) -> Result<u64, Failure> {
    let (mut resealed, mut next) = (0, Some(0));
    while let Some(after) = next {
        let step = sealed::reseal(session, keys, column, after).await;
        let step = step.map_err(store_failure)?;
        resealed += step.resealed;
        report.note_failures(column, step.failed);
        next = step.next;
        if output.is_text() && next.is_some() {
            note(&format!("{}: {resealed} sealed anew so far", column.name));
        }
    }
    Ok(resealed)
}

impl Report {
    fn add(&mut self, column: &Column, resealed: u64, counts: Counts) {
        self.resealed += resealed;
        self.left += counts.previous;
        self.unknown_key += counts.other;
        self.columns.push(Row {
            column: column.name,
            resealed,
            current: counts.current,
            left: counts.previous,
            unknown_key: counts.other,
        });
    }

    fn note_failures(&mut self, column: &Column, failed: Vec<Failed>) {
        self.failed_count += failed.len();
        let room = MOST_TOLD.saturating_sub(self.failed.len());
        let told = failed.into_iter().take(room).map(|one| {
            let endpoint = one
                .endpoint
                .map_or_else(String::new, |id| format!(" of {id}"));
            format!("{}{endpoint}: {}", column.name, one.why)
        });
        self.failed.extend(told);
    }

    fn text(&self) -> String {
        let titles = [
            "",
            "sealed anew",
            "current key",
            "previous key",
            "unknown key",
        ];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        rows.extend(self.columns.iter().map(|row| {
            vec![
                row.column.to_owned(),
                row.resealed.to_string(),
                row.current.to_string(),
                row.left.to_string(),
                row.unknown_key.to_string(),
            ]
        }));
        let mut lines = vec![table(&rows)];
        lines.extend(self.failed.iter().cloned());
        if self.failed_count > self.failed.len() {
            let more = self.failed_count - self.failed.len();
            lines.push(format!("… and {more} more that cannot be opened"));
        }
        lines.join("\n")
    }

    fn verdict(&self) -> Result<(), Failure> {
        // What needs another key was found in vain as well, unless this was only a check.
        let closed = self
            .unknown_key
            .max(i64::try_from(self.failed_count).unwrap_or(i64::MAX));
        if closed > 0 {
            return Err(Failure::Failed(format!(
                "{closed} values cannot be opened with the keys at hand: set POSTRIDER_MASTER_KEY_PREVIOUS to \
                 the key that they are sealed with, and run it again"
            )));
        }
        if self.left > 0 {
            return Err(Failure::Failed(format!(
                "{} values are sealed with POSTRIDER_MASTER_KEY_PREVIOUS: run `postrider master-key reseal`; \
                 keep that key until none is left",
                self.left
            )));
        }
        Ok(())
    }
}

fn keys(settings: &Settings) -> Result<MasterKeys, Failure> {
    let key = settings.required("POSTRIDER_MASTER_KEY")?;
    let previous = settings.get("POSTRIDER_MASTER_KEY_PREVIOUS");
    MasterKeys::from_base64(key, previous).map_err(|problem| {
        let mut errors = ConfigErrors::default();
        errors.add("POSTRIDER_MASTER_KEY", problem);
        errors.into()
    })
}
