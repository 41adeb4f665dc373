//! `postrider key`: API keys, straight in the database, for the first key of an installation.

use std::time::Duration;

use serde::Serialize;
use shared::domain::audit::Object;
use shared::ids::{KeyId, OrganizationId, TenantId, TenantKey};
use shared::runtime::clock::wall_time;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::Session;
use shared::store::keys::{self, KeyInfo, OwnerKey};
use time::OffsetDateTime;

use crate::organization::{self, PAGE};
use crate::output::{Output, note, table};
use crate::store::{begin, commit, connect, store_failure};
use crate::tenant;

/// What a key may do when nobody says less.
const TENANT_SCOPES: [&str; 5] = [
    "events:write",
    "endpoints:write",
    "read",
    "replay",
    "data:delete",
];
/// Also: make tenants, and manage their keys.
const ORGANIZATION_SCOPES: [&str; 2] = ["tenants:write", "keys:write"];

/// The longest life of a key that has an end: a hundred years.
const LONGEST_LIFE: Duration = Duration::from_hours(24 * 36_500);

/// How long a key holds.
fn lifetime(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if length.is_zero() || length > LONGEST_LIFE {
        let text =
            "expected more than nothing and at most 36500d; leave it out for a key without end";
        return Err(text.to_owned());
    }
    Ok(length)
}

/// Whom a key speaks for
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Owner {
    /// A tenant's key (`prk_…`)
    #[arg(long, value_name = "TENANT_ID")]
    tenant: Option<TenantId>,
    /// An organization's key (`pro_…`)
    #[arg(long, value_name = "ORG_ID")]
    organization: Option<OrganizationId>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a key; it is printed once and kept only as a hash
    #[command(after_help = "\
Examples:
  KEY=$(postrider key create --tenant tnt_… --name backend)
  postrider key create --tenant tnt_… --name reader --scope read --expires-in 90d")]
    Create {
        #[command(flatten)]
        owner: Owner,
        /// What it is for
        #[arg(long, value_parser = organization::name)]
        name: String,
        /// What it may do [default: everything]
        #[arg(long = "scope", value_parser = [
            "events:write", "endpoints:write", "read", "replay", "data:delete", "tenants:write", "keys:write",
        ])]
        scopes: Vec<String>,
        /// When it expires, from now [default: never]
        #[arg(long, value_name = "LENGTH", value_parser = lifetime)]
        expires_in: Option<Duration>,
    },
    /// List an owner's keys, newest first; never their text
    List {
        #[command(flatten)]
        owner: Owner,
    },
    /// Revoke a key; programs that cache it follow within seconds
    Revoke {
        #[command(flatten)]
        owner: Owner,
        /// The key's id, `key_…`
        id: KeyId,
    },
}

#[derive(Debug, Serialize)]
struct Shown {
    id: KeyId,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    hint: String,
    name: String,
    scopes: Vec<String>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    expires_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    revoked_at: Option<OffsetDateTime>,
}

impl Shown {
    fn new(info: KeyInfo, key: Option<String>) -> Self {
        Self {
            id: KeyId(info.id),
            key,
            hint: info.hint,
            name: info.name,
            scopes: info.scopes,
            created_at: info.created_at,
            expires_at: info.expires_at,
            revoked_at: info.revoked_at,
        }
    }

    fn state(&self) -> &'static str {
        if self.revoked_at.is_some() {
            "revoked"
        } else if self.expires_at.is_some_and(|at| at <= wall_time()) {
            "expired"
        } else {
            "valid"
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
            owner,
            name,
            scopes,
            expires_in,
        } => {
            let owner = find(&session, &owner).await?;
            let scopes = if scopes.is_empty() {
                all_scopes(owner)
            } else {
                scopes
            };
            let expires_at = expires_in.map(|length| wall_time() + length);
            let transaction = begin(&mut session).await?;
            let made = keys::create(&transaction, owner, &name, &scopes, expires_at).await;
            let (info, key) = made.map_err(store_failure)?;
            let object = Object::new("key", info.id);
            commit(transaction, whose(owner), "key.created", object).await?;
            let shown = Shown::new(info, Some(key.reveal().to_owned()));
            if output.is_text() {
                note(&format!(
                    "{} — this is the only time it is shown:",
                    shown.id
                ));
            }
            output.result(&shown, |shown| shown.key.clone().unwrap_or_default());
        }
        Command::List { owner } => {
            let owner = find(&session, &owner).await?;
            let rows = list(&session, owner).await?;
            output.result(&rows, |rows| text(rows));
        }
        Command::Revoke { owner, id } => {
            let owner = find(&session, &owner).await?;
            let transaction = begin(&mut session).await?;
            let revoked = keys::revoke(&transaction, owner, id.0).await;
            if !revoked.map_err(store_failure)? {
                return Err(Failure::Failed(format!(
                    "this owner has no key {id}: `postrider key list` shows all"
                )));
            }
            let object = Object::new("key", id.0);
            commit(transaction, whose(owner), "key.revoked", object).await?;
            output.result(&serde_json::json!({"id": id, "revoked": true}), |_| {
                format!("{id} is revoked")
            });
        }
    }
    Ok(())
}

/// An owner as the audit log names it.
const fn whose(owner: OwnerKey) -> (Option<TenantKey>, Option<i32>) {
    match owner {
        OwnerKey::Tenant(tenant) => (Some(tenant), None),
        OwnerKey::Organization(organization) => (None, Some(organization)),
    }
}

async fn list(session: &Session, owner: OwnerKey) -> Result<Vec<Shown>, Failure> {
    let mut rows: Vec<Shown> = Vec::new();
    loop {
        let before = rows.last().map(|row| row.id.0);
        let page = keys::list(&**session, owner, before, PAGE).await;
        let page = page.map_err(store_failure)?;
        if page.is_empty() {
            return Ok(rows);
        }
        rows.extend(page.into_iter().map(|info| Shown::new(info, None)));
    }
}

/// Everything that a key of this owner can be allowed.
pub(crate) fn all_scopes(owner: OwnerKey) -> Vec<String> {
    let own = match owner {
        OwnerKey::Tenant(_) => &[][..],
        OwnerKey::Organization(_) => &ORGANIZATION_SCOPES[..],
    };
    let scopes = TENANT_SCOPES.iter().chain(own);
    scopes.map(|scope| (*scope).to_owned()).collect()
}

async fn find(session: &Session, owner: &Owner) -> Result<OwnerKey, Failure> {
    match (owner.tenant, owner.organization) {
        (Some(id), _) => Ok(OwnerKey::Tenant(tenant::find(session, id).await?.key)),
        (None, Some(id)) => Ok(OwnerKey::Organization(
            organization::find(session, id).await?.key,
        )),
        (None, None) => Err(Failure::Configuration(
            "give --tenant or --organization".to_owned(),
        )),
    }
}

fn text(rows: &[Shown]) -> String {
    let cells = |row: &Shown| {
        vec![
            row.id.to_string(),
            format!("{}…", row.hint),
            row.state().to_owned(),
            row.name.clone(),
            row.scopes.join(","),
        ]
    };
    table(&rows.iter().map(cells).collect::<Vec<_>>())
}
