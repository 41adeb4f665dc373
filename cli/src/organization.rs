//! `postrider organization`: SaaS companies, straight in the database.

use serde::Serialize;
use shared::domain::audit::Object;
use shared::ids::OrganizationId;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::tenants::{self, Organization};
use time::OffsetDateTime;

use crate::output::{Output, table};
use crate::store::{begin, commit, connect, store_failure};

/// Rows per query of a list.
pub(crate) const PAGE: i64 = 250;

/// The longest name, as in the API.
const MOST_NAME: usize = 256;

/// A name for people; the API has the same rules.
pub(crate) fn name(text: &str) -> Result<String, String> {
    short_text(text, MOST_NAME)
}

/// A text that says something, on one line.
pub(crate) fn short_text(text: &str, most: usize) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().count() > most || text.chars().any(char::is_control) {
        return Err(format!(
            "expected 1 to {most} characters, none of them a control character"
        ));
    }
    Ok(text.to_owned())
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make an organization; prints its id
    Create {
        /// For people
        #[arg(long, value_parser = name)]
        name: String,
    },
    /// List all organizations, newest first
    List,
}

#[derive(Debug, Serialize)]
struct Shown {
    id: OrganizationId,
    name: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Organization> for Shown {
    fn from(from: Organization) -> Self {
        Self {
            id: OrganizationId(from.id),
            name: from.name,
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
        Command::Create { name } => {
            let transaction = begin(&mut session).await?;
            let made = tenants::create_organization(&transaction, &name).await;
            let made = made.map_err(store_failure)?;
            let (whose, object) = ((None, Some(made.key)), Object::new("organization", made.id));
            commit(transaction, whose, "organization.created", object).await?;
            let shown = Shown::from(made);
            output.result(&shown, |shown| shown.id.to_string());
        }
        Command::List => {
            let mut rows: Vec<Shown> = Vec::new();
            loop {
                let before = rows.last().map(|row| row.id.0);
                let page = tenants::list_organizations(&*session, before, PAGE).await;
                let page = page.map_err(store_failure)?;
                if page.is_empty() {
                    break;
                }
                rows.extend(page.into_iter().map(Shown::from));
            }
            output.result(&rows, |rows| {
                let cells = |row: &Shown| vec![row.id.to_string(), row.name.clone()];
                table(&rows.iter().map(cells).collect::<Vec<_>>())
            });
        }
    }
    Ok(())
}

/// The organization with this public id.
pub(crate) async fn find(
    session: &shared::store::Session,
    id: OrganizationId,
) -> Result<Organization, Failure> {
    let found = tenants::find_organization(&**session, id.0).await;
    found.map_err(store_failure)?.ok_or_else(|| {
        Failure::Failed(format!(
            "there is no organization {id}: `postrider organization list` shows all"
        ))
    })
}
