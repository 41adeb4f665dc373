//! Removal: tenants, organizations, payloads and secrets that somebody wants gone.
//!
//! What stops at once (keys, endpoints) is done in the transaction of the request; the rows go in the
//! background, in batches of a worker's job. A removal walks the tables one after the other; how far it is
//! stands in its row, written in the transaction of each batch, so a job that was interrupted goes on.
//!
//! Expunging empties the payload (no JSON text is empty), so that the event is still there to be listed, and
//! the captured responses of its attempts. What was not delivered yet is closed. A deleted endpoint's row stays for its
//! history; what is secret of it goes as soon as nothing can be sent to it.
//!
//! # Invariants
//! - D3: each batch is fenced by the job's lease. D6: what is final stays final.
//! - S3: every batch names the tenant.
//! - Bounded: a batch is some hundred rows, by an index that begins with the tenant.
//!
//! Rows that ingest or a worker still write for a tenant (its keys are believed for two seconds, a request may
//! be on the wire) are why a removal waits a minute before its rows go, and looks again before it ends.

mod batches;
mod expunge;
mod statements;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row, Transaction};
use uuid::Uuid;

use super::StoreError;
use super::new_id::new_id;
use crate::domain::coded;
use crate::ids::{TenantKey, lower_bound};

pub use self::batches::{Progress, advance};
use self::expunge::empty_at_once;
pub use self::statements::STATEMENTS;
use self::statements::{
    ADD, EVENT_EXISTS, FIND, LIST, MARK_ORGANIZATION, MARK_TENANT, MARK_TENANTS_OF, REVOKE_KEYS,
    STOP_ENDPOINTS,
};

coded! {
    /// What is removed.
    Kind, "kind of removal" {
        /// A tenant and all that is its own.
        Tenant = 1 "tenant",
        /// An organization, after its tenants.
        Organization = 2 "organization",
        /// The payloads of all events that a tenant has had so far.
        Payloads = 3 "payloads",
        /// The payload of one event.
        Payload = 4 "payload",
        /// What is secret of an endpoint.
        Endpoint = 5 "endpoint",
    }
}

/// Something that is being removed, or was.
#[derive(Debug, Clone)]
pub struct Removal {
    key: i64,
    /// The public id.
    pub id: Uuid,
    /// What is removed.
    pub kind: Kind,
    tenant: Option<i32>,
    organization: Option<i32>,
    /// The public id of the tenant, organization, event or endpoint.
    pub object: Uuid,
    before: Option<Uuid>,
    step: i16,
    after: Uuid,
    /// Rows that were removed or emptied so far.
    pub rows_done: i64,
    /// Asked for at.
    pub created_at: OffsetDateTime,
    /// All of it is gone since.
    pub finished_at: Option<OffsetDateTime>,
}

/// Stops a tenant at once, and begins its removal; `None`: it is deleted already. Call [`super::notify::commands`] after the commit.
///
/// # Errors
/// Any [`StoreError`].
pub async fn begin_tenant(
    transaction: &Transaction<'_>,
    (tenant, id): (TenantKey, Uuid),
) -> Result<Option<Removal>, StoreError> {
    // Endpoints before their tenant, as everybody locks them.
    let all = super::endpoints::MAX_ENDPOINTS;
    transaction
        .query_one(STOP_ENDPOINTS, &[&tenant.0, &all])
        .await?;
    if transaction.execute(MARK_TENANT, &[&tenant.0]).await? == 0 {
        return Ok(None);
    }
    let made = add(transaction, Kind::Tenant, (Some(tenant.0), None), id, None).await?;
    let none: Option<i32> = None;
    transaction
        .execute(REVOKE_KEYS, &[&tenant.0, &none])
        .await?;
    Ok(Some(made))
}

/// Stops an organization's keys and its tenants' at once, and begins their removal; `None`: it is deleted already. Their endpoints stop within
/// seconds, one tenant after the other.
///
/// # Errors
/// Any [`StoreError`].
pub async fn begin_organization(
    transaction: &Transaction<'_>,
    (organization, id): (i32, Uuid),
) -> Result<Option<Removal>, StoreError> {
    let marked = transaction
        .execute(MARK_ORGANIZATION, &[&organization])
        .await?;
    if marked == 0 {
        return Ok(None);
    }
    transaction
        .execute(MARK_TENANTS_OF, &[&organization])
        .await?;
    let none: Option<i32> = None;
    transaction
        .execute(REVOKE_KEYS, &[&none, &organization])
        .await?;
    let whose = (None, Some(organization));
    let made = add(transaction, Kind::Organization, whose, id, None).await?;
    Ok(Some(made))
}

/// Begins to expunge the payloads of all events that a tenant has had.
///
/// # Errors
/// Any [`StoreError`].
pub async fn begin_payloads(
    transaction: &Transaction<'_>,
    (tenant, id): (TenantKey, Uuid),
    before: OffsetDateTime,
) -> Result<Removal, StoreError> {
    let before = Some(lower_bound(before));
    add(
        transaction,
        Kind::Payloads,
        (Some(tenant.0), None),
        id,
        before,
    )
    .await
}

/// Expunges the payload of one event at once, and begins to remove what came of it; `None`: there is no such
/// event.
///
/// # Errors
/// Any [`StoreError`].
pub async fn begin_payload(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    event: Uuid,
) -> Result<Option<Removal>, StoreError> {
    if transaction
        .query_opt(EVENT_EXISTS, &[&tenant.0, &event])
        .await?
        .is_none()
    {
        return Ok(None);
    }
    let removal = add(
        transaction,
        Kind::Payload,
        (Some(tenant.0), None),
        event,
        None,
    )
    .await?;
    empty_at_once(transaction, &removal).await?;
    Ok(Some(removal))
}

/// Begins to remove what is secret of an endpoint, in the transaction that deletes it.
///
/// # Errors
/// Any [`StoreError`].
pub(super) async fn begin_endpoint(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: Uuid,
) -> Result<(), StoreError> {
    let whose = (Some(tenant.0), None);
    add(transaction, Kind::Endpoint, whose, endpoint, None).await?;
    Ok(())
}

/// A removal, if it is of this tenant or organization; with neither, whosever it is.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    id: Uuid,
    tenant: Option<TenantKey>,
    organization: Option<i32>,
) -> Result<Option<Removal>, StoreError> {
    let tenant = tenant.map(|tenant| tenant.0);
    let row = client
        .query_opt(FIND, &[&id, &tenant, &organization])
        .await?;
    row.as_ref().map(read).transpose()
}

/// All removals, newest first, those after `before`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Removal>, StoreError> {
    let rows = client.query(LIST, &[&before, &limit]).await?;
    rows.iter().map(read).collect()
}

async fn add(
    transaction: &Transaction<'_>,
    kind: Kind,
    (tenant, organization): (Option<i32>, Option<i32>),
    object: Uuid,
    before: Option<Uuid>,
) -> Result<Removal, StoreError> {
    let params: [&(dyn ToSql + Sync); 6] = [
        &new_id(transaction).await?,
        &kind.code(),
        &tenant,
        &organization,
        &object,
        &before,
    ];
    read(&transaction.query_one(ADD, &params).await?)
}

fn read(row: &Row) -> Result<Removal, StoreError> {
    Ok(Removal {
        key: row.try_get(0)?,
        id: row.try_get(1)?,
        kind: Kind::try_from(row.try_get::<_, i16>(2)?)?,
        tenant: row.try_get(3)?,
        organization: row.try_get(4)?,
        object: row.try_get(5)?,
        before: row.try_get(6)?,
        step: row.try_get(7)?,
        after: row.try_get(8)?,
        rows_done: row.try_get(9)?,
        created_at: row.try_get(10)?,
        finished_at: row.try_get(11)?,
    })
}
