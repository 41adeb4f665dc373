//! Who changed what of the configuration, and when. Written in the transaction of the change.
//!
//! # Invariants
//! - S2: names of fields, never their values: no secret, header, URL or payload is in here.
//! - S3: a tenant reads its own rows, an organization its own and its tenants'.
//! - Bounded: a page with a filter looks at [`STRETCH`] rows and may hold fewer than were asked for.

use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::events::IdRange;
use super::new_id::new_id;
use super::{Found, StoreError};
use crate::domain::audit::{Actor, ActorKind, Object};
use crate::ids::TenantKey;

/// Rows that one page with a filter looks at.
const STRETCH: i64 = 2_000;

/// A tenant's row has its organization too.
const RECORD: &str = "
INSERT INTO audit_log (id, tenant_id, organization_id, actor, key_id, key_hint, action, object_type, object_id, changed, request_id)
VALUES ($1, $2, coalesce($3, (SELECT organization_id FROM tenants WHERE id = $2)), $4, $5, $6, $7, $8, $9, $10, $11)";

/// A page of the rows of `$from` that `$which` names: newest first, as many as `$limit`.
macro_rules! page {
    ($which:literal, $($from:literal),+ $(,)? ; $limit:literal) => {
        concat!(
            "
SELECT a.id, a.actor, a.key_id, a.key_hint, a.action, a.object_type, a.object_id, a.changed, a.request_id, t.public_id, o.public_id
FROM (SELECT * FROM ", $($from,)+ " WHERE ", $which, " ORDER BY id DESC LIMIT ", $limit, ") a
LEFT JOIN tenants t ON t.id = a.tenant_id LEFT JOIN organizations o ON o.id = a.organization_id
ORDER BY a.id DESC"
        )
    };
}

/// A page from $2 up of those of one viewer: as [`page`], out of a stretch ($7), which is where the walk ends. Rows are
/// compared so that it is not through everybody's, and the lower end of such a range does not end a walk.
macro_rules! page_of {
    ($whose:literal) => {
        page!(
            "id >= $2 AND ($5::text IS NULL OR action = $5) AND ($6::uuid IS NULL OR object_id = $6)",
            "(SELECT * FROM audit_log WHERE ", $whose, " >= $1 AND (", $whose, ", id) < ($1, $3)
         ORDER BY ", $whose, " DESC, id DESC LIMIT $7) s";
            "$4"
        )
    };
}

/// The id below which a page with a filter does not look: that of the row after a stretch.
macro_rules! floor_of {
    ($whose:literal) => {
        concat!(
            "SELECT id FROM audit_log WHERE ",
            $whose,
            " >= $1 AND (",
            $whose,
            ", id) < ($1, $2)
ORDER BY ",
            $whose,
            " DESC, id DESC OFFSET $3 LIMIT 1"
        )
    };
}

/// Walk `audit_log_tenant`, `audit_log_organization` or the primary key backwards, ids from the first (included) to the
/// second (excluded); the other filters are on that walk.
const PAGE_OF_TENANT: &str = page_of!("tenant_id");
const FLOOR_OF_TENANT: &str = floor_of!("tenant_id");
const PAGE_OF_ORGANIZATION: &str = page_of!("organization_id");
const FLOOR_OF_ORGANIZATION: &str = floor_of!("organization_id");
const PAGE_OF_ALL: &str = page!(
    "id >= $1 AND id < $2 AND ($4::text IS NULL OR action = $4) AND ($5::uuid IS NULL OR object_id = $5)",
    "audit_log";
    "$3"
);
const FLOOR_OF_ALL: &str =
    "SELECT id FROM audit_log WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("audit_log.record", RECORD),
    ("audit_log.page_of_tenant", PAGE_OF_TENANT),
    ("audit_log.floor_of_tenant", FLOOR_OF_TENANT),
    ("audit_log.page_of_organization", PAGE_OF_ORGANIZATION),
    ("audit_log.floor_of_organization", FLOOR_OF_ORGANIZATION),
    ("audit_log.page_of_all", PAGE_OF_ALL),
    ("audit_log.floor_of_all", FLOOR_OF_ALL),
];

/// Whose configuration changed, and who changed it.
#[derive(Debug, Clone)]
pub struct Author<'a> {
    /// Who.
    pub actor: Actor,
    /// Whose; `None`: an organization's own, or the operator's.
    pub tenant: Option<TenantKey>,
    /// `organizations.id`; a tenant's is found.
    pub organization: Option<i32>,
    /// Of the request, as the reply says it.
    pub request_id: Option<&'a str>,
}

/// Whose rows to read.
#[derive(Debug, Clone, Copy)]
pub enum Viewer {
    /// A tenant's.
    Tenant(TenantKey),
    /// An organization's own and its tenants'.
    Organization(i32),
    /// The operator's: all.
    Operator,
}

/// Which rows.
#[derive(Debug, Clone, Copy)]
pub struct Filter<'a> {
    /// Ids from (included) and to (excluded).
    pub range: IdRange,
    /// Only this action.
    pub action: Option<&'a str>,
    /// Only what was done to the object with this public id.
    pub object: Option<Uuid>,
}

/// A row.
#[derive(Debug, Clone)]
pub struct Entry {
    /// UUIDv7: the instant is in it.
    pub id: Uuid,
    /// What kind of actor.
    pub actor: ActorKind,
    /// Its key.
    pub key: Option<(Uuid, String)>,
    /// What was done: `endpoint.updated`.
    pub action: String,
    /// To what kind of thing.
    pub object_type: String,
    /// To which one.
    pub object_id: Option<Uuid>,
    /// Names of the fields that changed.
    pub changed: Vec<String>,
    /// Of the request.
    pub request_id: Option<String>,
    /// The tenant's public id, while it exists.
    pub tenant: Option<Uuid>,
    /// The organization's public id, while it exists.
    pub organization: Option<Uuid>,
}

/// Records a change, in its transaction.
///
/// # Errors
/// Any [`StoreError`].
pub async fn record(
    client: &impl GenericClient,
    author: &Author<'_>,
    action: &str,
    object: Object,
    changed: &[&str],
) -> Result<(), StoreError> {
    let (key, hint) = match &author.actor {
        Actor::Key(id, hint) => (Some(*id), Some(hint)),
        Actor::Admin | Actor::CommandLine => (None, None),
    };
    let tenant = author.tenant.map(|tenant| tenant.0);
    let actor = author.actor.kind().code();
    let params: [&(dyn ToSql + Sync); 11] = [
        &new_id(client).await?,
        &tenant,
        &author.organization,
        &actor,
        &key,
        &hint,
        &action,
        &object.kind,
        &object.id,
        &changed,
        &author.request_id,
    ];
    client.execute(RECORD, &params).await?;
    Ok(())
}

/// Rows that a viewer may see, newest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl GenericClient,
    viewer: Viewer,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Found<Entry>, StoreError> {
    let (from, to) = filter.range;
    let (page, floor, whose) = match &viewer {
        Viewer::Tenant(tenant) => (PAGE_OF_TENANT, FLOOR_OF_TENANT, Some(&tenant.0)),
        Viewer::Organization(organization) => (
            PAGE_OF_ORGANIZATION,
            FLOOR_OF_ORGANIZATION,
            Some(organization),
        ),
        Viewer::Operator => (PAGE_OF_ALL, FLOOR_OF_ALL, None),
    };
    let whose = whose.map(|whose| whose as &(dyn ToSql + Sync));
    let mut floor_at = from;
    if filter.action.is_some() || filter.object.is_some() {
        let rest: [&(dyn ToSql + Sync); 2] = [&to, &STRETCH];
        let params: Vec<_> = whose.into_iter().chain(rest).collect();
        if let Some(row) = client.query_opt(floor, &params).await? {
            floor_at = from.max(row.try_get(0)?);
        }
    }
    let rest: [&(dyn ToSql + Sync); 5] = [&floor_at, &to, &limit, &filter.action, &filter.object];
    let down_to_the_floor = STRETCH + 1;
    let last: Option<&(dyn ToSql + Sync)> = whose.map(|_| &down_to_the_floor as _);
    let params: Vec<_> = whose.into_iter().chain(rest).chain(last).collect();
    let rows = client.query(page, &params).await?;
    let rows: Vec<Entry> = rows.iter().map(entry).collect::<Result<_, _>>()?;
    Ok(Found::down_to(floor_at, from, rows, limit))
}

fn entry(row: &Row) -> Result<Entry, StoreError> {
    let key: Option<Uuid> = row.try_get(2)?;
    Ok(Entry {
        id: row.try_get(0)?,
        actor: ActorKind::try_from(row.try_get::<_, i16>(1)?)?,
        key: key
            .map(|id| {
                Ok::<_, StoreError>((id, row.try_get::<_, Option<_>>(3)?.unwrap_or_default()))
            })
            .transpose()?,
        action: row.try_get(4)?,
        object_type: row.try_get(5)?,
        object_id: row.try_get(6)?,
        changed: row.try_get(7)?,
        request_id: row.try_get(8)?,
        tenant: row.try_get(9)?,
        organization: row.try_get(10)?,
    })
}
