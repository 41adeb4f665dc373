//! The database, for the commands that go straight to it.

use shared::domain::audit::{Actor, Object};
use shared::ids::TenantKey;
use shared::runtime::program::Failure;
use shared::runtime::settings::Settings;
use shared::store::audit_log::{self, Author};
pub(crate) use shared::store::failure::{migrate_failure, store_failure};
use shared::store::migrate;
use shared::store::{Database, Role, Session, Transaction};

/// The database that `DATABASE_URL` names.
pub(crate) fn database(settings: &Settings) -> Result<Database, Failure> {
    let url = settings.required("DATABASE_URL")?;
    Database::new(url).map_err(store_failure)
}

/// The database, which has the schema of this program.
pub(crate) async fn checked(settings: &Settings) -> Result<Database, Failure> {
    let database = database(settings)?;
    migrate::check_version(&database)
        .await
        .map_err(migrate_failure)?;
    Ok(database)
}

/// A connection to a database that has the schema of this program.
pub(crate) async fn connect(settings: &Settings) -> Result<Session, Failure> {
    checked(settings)
        .await?
        .connect(Role::Maintenance)
        .await
        .map_err(store_failure)
}

/// The transaction of a change, which [`commit`] ends.
pub(crate) async fn begin(session: &mut Session) -> Result<Transaction<'_>, Failure> {
    let begun = session.transaction().await;
    begun.map_err(|error| store_failure(error.into()))
}

/// Commits a change together with its entry in the audit log.
pub(crate) async fn commit(
    transaction: Transaction<'_>,
    (tenant, organization): (Option<TenantKey>, Option<i32>),
    action: &str,
    object: Object,
) -> Result<(), Failure> {
    let author = Author {
        actor: Actor::CommandLine,
        tenant,
        organization,
        request_id: None,
    };
    audit_log::record(&transaction, &author, action, object, &[])
        .await
        .map_err(store_failure)?;
    let committed = transaction.commit().await;
    committed.map_err(|error| store_failure(error.into()))
}
