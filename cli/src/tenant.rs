//! `postrider tenant`: receiver sides, straight in the database.

use serde::Serialize;
use shared::domain::audit::Object;
use shared::ids::{OrganizationId, TenantId};
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::tenants::{self, Tenant};
use shared::store::{Session, StoreError};
use time::OffsetDateTime;

use crate::organization::{self, PAGE};
use crate::output::{Output, table};
use crate::store::{begin, commit, connect, store_failure};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a tenant; prints its id
    Create {
        /// For people
        #[arg(long, value_parser = organization::name)]
        name: String,
        /// The organization that it belongs to; without one it stands alone
        #[arg(long, value_name = "ORG_ID")]
        organization: Option<OrganizationId>,
        /// The organization's own name for it, unique there
        #[arg(long, value_name = "TEXT", requires = "organization", value_parser = external_id)]
        external_id: Option<String>,
    },
    /// List tenants, newest first
    List {
        /// Only those of this organization
        #[arg(long, value_name = "ORG_ID")]
        organization: Option<OrganizationId>,
    },
}

/// The longest name that an organization may have for a tenant, as in the API.
const MOST_EXTERNAL_ID: usize = 128;

fn external_id(text: &str) -> Result<String, String> {
    organization::short_text(text, MOST_EXTERNAL_ID)
}

#[derive(Debug, Serialize)]
struct Shown {
    id: TenantId,
    name: String,
    organization_id: Option<OrganizationId>,
    external_id: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Tenant> for Shown {
    fn from(from: Tenant) -> Self {
        Self {
            id: TenantId(from.id),
            name: from.name,
            organization_id: from.organization.map(OrganizationId),
            external_id: from.external_id,
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
        Command::Create {
            name,
            organization,
            external_id,
        } => {
            let owner = owner(&session, organization).await?;
            let transaction = begin(&mut session).await?;
            let made = tenants::create(&transaction, owner, external_id.as_deref(), &name).await;
            let taken = matches!(made, Err(StoreError::Conflict(_)));
            let made = made.map_err(|error| {
                if taken {
                    let text = "the organization has a tenant with this external id already";
                    return Failure::Failed(text.to_owned());
                }
                store_failure(error)
            })?;
            let (whose, object) = ((Some(made.key), owner), Object::new("tenant", made.id));
            commit(transaction, whose, "tenant.created", object).await?;
            let shown = Shown::from(made);
            output.result(&shown, |shown| shown.id.to_string());
        }
        Command::List { organization } => {
            let owner = owner(&session, organization).await?;
            let mut rows: Vec<Shown> = Vec::new();
            loop {
                let before = rows.last().map(|row| row.id.0);
                let page = tenants::list(&*session, owner, before, PAGE).await;
                let page = page.map_err(store_failure)?;
                if page.is_empty() {
                    break;
                }
                rows.extend(page.into_iter().map(Shown::from));
            }
            output.result(&rows, |rows| text(rows));
        }
    }
    Ok(())
}

/// The tenant with this public id.
pub(crate) async fn find(session: &Session, id: TenantId) -> Result<Tenant, Failure> {
    let found = tenants::find(&**session, None, id.0).await;
    found.map_err(store_failure)?.ok_or_else(|| {
        Failure::Failed(format!(
            "there is no tenant {id}: `postrider tenant list` shows all"
        ))
    })
}

async fn owner(
    session: &Session,
    organization: Option<OrganizationId>,
) -> Result<Option<i32>, Failure> {
    match organization {
        Some(id) => Ok(Some(organization::find(session, id).await?.key)),
        None => Ok(None),
    }
}

fn text(rows: &[Shown]) -> String {
    let cells = |row: &Shown| {
        vec![
            row.id.to_string(),
            row.name.clone(),
            row.organization_id
                .map_or_else(String::new, |id| id.to_string()),
            row.external_id.clone().unwrap_or_default(),
        ]
    };
    table(&rows.iter().map(cells).collect::<Vec<_>>())
}
