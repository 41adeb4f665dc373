//! `postrider pause`: holds deliveries back by rule, straight in the database.

use std::time::Duration;

use serde::Serialize;
use shared::domain::audit::Object;
use shared::domain::endpoint::is_type_pattern;
use shared::domain::pause::LONGEST;
use shared::ids::{TenantId, TenantKey};
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::Session;
use shared::store::pauses::{self, Shown as Stored, What};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::organization;
use crate::output::{Output, table};
use crate::store::{begin, commit, connect, store_failure};
use crate::tenant;

/// As the audit log names it.
const PAUSE: Object = Object {
    kind: "pause",
    id: None,
};
/// The longest reason.
const MOST_REASON: usize = 256;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Hold deliveries back; they wait, and cost no attempt. Again: change when it ends
    #[command(after_help = "\
Needs DATABASE_URL, as all commands for operators do. Events are accepted as before. What is on the wire ends;
the rest is held back within two seconds, and goes when the pause ends. What grew older than its endpoint's max_age_seconds meanwhile becomes a dead letter.

Examples:
  postrider pause start --tenant tnt_… --reason 'payloads of 256 KiB by the million'
  postrider pause start --event-type 'report.*' --for 30m --reason 'wrong totals in reports'")]
    Start {
        #[command(flatten)]
        what: Rule,
        /// When it ends by itself, from now: at most 7d
        #[arg(long = "for", value_name = "LENGTH", default_value = "24h", value_parser = length)]
        length: Duration,
        /// Why, for those who see it later
        #[arg(long, value_name = "TEXT", value_parser = reason)]
        reason: String,
    },
    /// End a pause now: what it held back goes on within seconds
    End {
        #[command(flatten)]
        what: Rule,
    },
    /// List what is held back
    List {
        /// Also what is over, for half a minute
        #[arg(long)]
        all: bool,
    },
}

/// What is meant; with both, only what matches both
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Rule {
    /// Deliveries of this tenant
    #[arg(long, value_name = "TENANT_ID")]
    tenant: Option<TenantId>,
    /// Deliveries of events of this type, or with a prefix like `order.*`
    #[arg(long, value_name = "TYPE", value_parser = event_type)]
    event_type: Option<String>,
}

fn event_type(text: &str) -> Result<String, String> {
    if is_type_pattern(text) {
        return Ok(text.to_owned());
    }
    let text = "expected an event type (1 to 128 of a-z A-Z 0-9 . _ -) or a prefix like `order.*`";
    Err(text.to_owned())
}

fn length(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if length.is_zero() || length > LONGEST.unsigned_abs() {
        return Err("expected more than nothing and at most 7d, for example 30m or 24h".to_owned());
    }
    Ok(length)
}

fn reason(text: &str) -> Result<String, String> {
    organization::short_text(text, MOST_REASON)
}

#[derive(Debug, Serialize)]
struct Shown {
    tenant_id: Option<TenantId>,
    event_type: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    until: OffsetDateTime,
    /// It is over, and what it held back goes on.
    over: bool,
    reason: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

#[derive(Debug, Serialize)]
struct Started {
    #[serde(with = "time::serde::rfc3339")]
    until: OffsetDateTime,
}

impl From<Stored> for Shown {
    fn from(from: Stored) -> Self {
        Self {
            tenant_id: from.tenant.map(TenantId),
            event_type: from.event_type,
            until: from.until,
            over: from.over,
            reason: from.reason,
            created_at: from.created_at,
        }
    }
}

pub(crate) async fn run(
    command: Command,
    settings: &Settings,
    output: Output,
) -> Result<(), Failure> {
    let mut session = connect(settings).await?;
    match command {
        Command::Start {
            what,
            length,
            reason,
        } => {
            let rule = resolve(&session, &what).await?;
            let tenant = rule.tenant;
            let transaction = begin(&mut session).await?;
            let started = pauses::start(&transaction, rule, length, &reason).await;
            let Some(until) = started.map_err(store_failure)? else {
                return Err(Failure::Failed(format!(
                    "there are {} pauses already: end some with `postrider pause end`, or use a prefix like `order.*`",
                    pauses::MOST
                )));
            };
            commit(transaction, (tenant, None), "pause.started", PAUSE).await?;
            output.result(&Started { until }, |it| {
                format!("held back until {}", instant(it.until))
            });
        }
        Command::End { what } => {
            let rule = resolve(&session, &what).await?;
            let tenant = rule.tenant;
            let transaction = begin(&mut session).await?;
            let ended = pauses::end(&transaction, rule).await;
            if !ended.map_err(store_failure)? {
                return Err(Failure::Failed(
                    "there is no such pause, or it is over: `postrider pause list --all` shows all"
                        .to_owned(),
                ));
            }
            commit(transaction, (tenant, None), "pause.ended", PAUSE).await?;
            output.result(&serde_json::json!({ "ended": true }), |_| {
                "ended: what no other pause means goes on within seconds, in lines (ordered) within half a minute"
                    .to_owned()
            });
        }
        Command::List { all } => {
            let listed = pauses::list(&*session).await.map_err(store_failure)?;
            let listed = listed.into_iter().filter(|pause| all || !pause.over);
            let rows: Vec<Shown> = listed.map(Shown::from).collect();
            output.result(&rows, |rows| text(rows));
        }
    }
    Ok(())
}

async fn resolve<'a>(session: &Session, rule: &'a Rule) -> Result<What<'a>, Failure> {
    let tenant: Option<TenantKey> = match rule.tenant {
        Some(id) => Some(tenant::find(session, id).await?.key),
        None => None,
    };
    Ok(What {
        tenant,
        event_type: rule.event_type.as_deref(),
    })
}

fn instant(at: OffsetDateTime) -> String {
    at.truncate_to_second()
        .format(&Rfc3339)
        .unwrap_or_else(|_| at.to_string())
}

fn text(rows: &[Shown]) -> String {
    let cells = |row: &Shown| {
        let tenant = row.tenant_id.map(|id| id.to_string());
        let until = if row.over {
            "over".to_owned()
        } else {
            instant(row.until)
        };
        vec![
            tenant.unwrap_or_else(|| "every tenant".to_owned()),
            row.event_type
                .clone()
                .unwrap_or_else(|| "every type".to_owned()),
            until,
            row.reason.clone(),
        ]
    };
    table(&rows.iter().map(cells).collect::<Vec<_>>())
}
