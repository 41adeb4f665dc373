//! Types of events: what a tenant says of them, and their schemas.
//!
//! Not here: rows that ingest makes at the first use of a type ([`super::ingest`]).
//!
//! # Invariants
//! - Every change raises `tenants.config_version` in its own transaction, so an event that was checked
//!   against an older schema is checked again before it is stored.
//! - A row stays for good: events refer to it. What was taken back and is not used is not shown.
//! - S3: every statement names the tenant.

use time::OffsetDateTime;
use tokio_postgres::{GenericClient, Row};

use super::ingest::MAX_TYPES;
use super::{Found, StoreError};
use crate::ids::TenantKey;

/// Types that one page looks at.
const STRETCH: i64 = 300;

/// A type is shown when it was declared, or when an event has it: a probe of each partition of `events_type`, so of $3
/// types at most. All of a tenant's types are sorted: [`MAX_TYPES`] at most, by `event_types_tenant_id_name_key`. `IS TRUE`
/// keeps the primary key from being walked through everybody's; an `EXISTS` might be answered from a hash of all events.
const PAGE: &str = "
WITH seen AS MATERIALIZED (
  SELECT t.id, t.declared_at FROM (
    SELECT t.id, t.declared_at FROM event_types t WHERE t.tenant_id = $1 AND (t.id < $2) IS TRUE OFFSET 0) t
  ORDER BY t.id DESC LIMIT $3)
SELECT m.count, m.last, x.* FROM (SELECT count(*) AS count, min(id) AS last FROM seen) m
LEFT JOIN LATERAL (
  SELECT t.id, t.name, t.description, t.schema, t.created_at, coalesce(t.updated_at, t.created_at)
  FROM (
    SELECT s.id FROM (SELECT * FROM seen ORDER BY id DESC OFFSET 0) s
    WHERE s.declared_at IS NOT NULL OR (SELECT true FROM events e WHERE e.tenant_id = $1 AND e.type_id = s.id LIMIT 1) LIMIT $4) s
  CROSS JOIN LATERAL (SELECT * FROM event_types t WHERE t.id = s.id OFFSET 0) t
  ORDER BY t.id DESC) x ON true";

/// As [`PAGE`], one. Uses `event_types_tenant_id_name_key`.
const FIND: &str = "
SELECT t.id, t.name, t.description, t.schema, t.created_at, coalesce(t.updated_at, t.created_at)
FROM event_types t
WHERE t.tenant_id = $1 AND t.name = $2 AND (t.declared_at IS NOT NULL OR EXISTS (
  SELECT FROM events e WHERE e.tenant_id = $1 AND e.type_id = t.id))";

/// Locks the tenant's row to the end of the transaction: changes of its types come one by one.
const RAISE_VERSION: &str =
    "UPDATE tenants SET config_version = config_version + 1 WHERE id = $1 RETURNING config_version";

/// Uses `event_types_tenant_id_name_key`.
const DECLARE: &str = "
WITH before AS (SELECT declared_at, description, schema FROM event_types WHERE tenant_id = $1 AND name = $2)
INSERT INTO event_types AS t (tenant_id, name, declared_at, updated_at, description, schema, schema_version)
SELECT $1, $2, now(), now(), $3, $4, $5
WHERE EXISTS (SELECT FROM event_types WHERE tenant_id = $1 AND name = $2)
   OR (SELECT count(*) FROM event_types WHERE tenant_id = $1) < $6
ON CONFLICT (tenant_id, name) DO UPDATE
SET declared_at = coalesce(t.declared_at, now()), updated_at = now(), description = excluded.description,
    schema = excluded.schema, schema_version = excluded.schema_version
RETURNING t.id, t.name, t.description, t.schema, t.created_at, t.updated_at,
  NOT EXISTS (SELECT FROM before WHERE declared_at IS NOT NULL),
  (SELECT description FROM before) IS DISTINCT FROM t.description, (SELECT schema FROM before) IS DISTINCT FROM t.schema";

/// Uses `event_types_tenant_id_name_key`.
const TAKE_BACK: &str = "
UPDATE event_types SET declared_at = NULL, updated_at = now(), description = NULL, schema = NULL, schema_version = NULL
WHERE tenant_id = $1 AND name = $2";

/// With the version of the configuration that it belongs to. Uses `tenants_pkey` and
/// `event_types_tenant_id_name_key`.
const SCHEMA: &str = "
SELECT t.config_version, e.schema, e.schema_version FROM tenants t
LEFT JOIN event_types e ON e.tenant_id = t.id AND e.name = $2 AND e.schema IS NOT NULL
WHERE t.id = $1";

/// Uses `event_types_schema`.
const SCHEMAS: &str = "
SELECT name, schema FROM event_types WHERE tenant_id = $1 AND schema IS NOT NULL ORDER BY id LIMIT $2";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("event_types.page", PAGE),
    ("event_types.find", FIND),
    ("event_types.raise_version", RAISE_VERSION),
    ("event_types.declare", DECLARE),
    ("event_types.take_back", TAKE_BACK),
    ("event_types.schema", SCHEMA),
    ("event_types.schemas", SCHEMAS),
];

/// A type of event.
#[derive(Debug, Clone)]
pub struct EventType {
    /// Its row.
    pub id: i32,
    /// Its name.
    pub name: String,
    /// What the tenant says of it.
    pub description: Option<String>,
    /// JSON Schema, as it was written.
    pub schema: Option<String>,
    /// When it was first used or declared.
    pub created_at: OffsetDateTime,
    /// When description or schema last changed.
    pub updated_at: OffsetDateTime,
}

/// The schema of a type, if it has one.
#[derive(Debug)]
pub struct Schema {
    /// The version of the tenant's configuration that this was read from.
    pub config_version: i64,
    /// The version that it came with, and its text.
    pub schema: Option<(i64, String)>,
}

/// A tenant's types, the last made first, those before a row.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl GenericClient,
    tenant: TenantKey,
    before: i32,
    limit: i64,
) -> Result<Found<EventType, i32>, StoreError> {
    let rows = client
        .query(PAGE, &[&tenant.0, &before, &STRETCH, &limit])
        .await?;
    Found::in_stretch(&rows, STRETCH, event_type)
}

/// Names and schemas of the types that have one; so many at most.
///
/// # Errors
/// Any [`StoreError`].
pub async fn schemas(
    client: &impl GenericClient,
    tenant: TenantKey,
    limit: i64,
) -> Result<Vec<(String, String)>, StoreError> {
    let rows = client.query(SCHEMAS, &[&tenant.0, &limit]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// Finds a type of a tenant.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    name: &str,
) -> Result<Option<EventType>, StoreError> {
    let row = client.query_opt(FIND, &[&tenant.0, &name]).await?;
    row.as_ref().map(|row| event_type(row, 0)).transpose()
}

/// A type as it was declared, and what that changed.
#[derive(Debug)]
pub struct Declared {
    /// As it is now.
    pub event_type: EventType,
    /// Whether it was not declared before.
    pub is_new: bool,
    /// Names of the fields that are others now.
    pub changed: Vec<&'static str>,
}

/// Sets description and schema; `None` when it would be more than [`MAX_TYPES`]. In a transaction.
///
/// # Errors
/// Any [`StoreError`].
pub async fn declare(
    transaction: &impl GenericClient,
    tenant: TenantKey,
    name: &str,
    description: Option<&str>,
    schema: Option<&str>,
) -> Result<Option<Declared>, StoreError> {
    // Also the lock that makes what was there before the statement all that was there before it.
    let version = raise_version(transaction, tenant).await?;
    let version = schema.map(|_| version);
    let row = transaction
        .query_opt(
            DECLARE,
            &[
                &tenant.0,
                &name,
                &description,
                &schema,
                &version,
                &MAX_TYPES,
            ],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let mut changed = Vec::new();
    for (name, column) in [("description", 7), ("schema", 8)] {
        if row.try_get(column)? {
            changed.push(name);
        }
    }
    Ok(Some(Declared {
        event_type: event_type(&row, 0)?,
        is_new: row.try_get(6)?,
        changed,
    }))
}

/// Removes description and schema. In a transaction.
///
/// # Errors
/// Any [`StoreError`].
pub async fn take_back(
    transaction: &impl GenericClient,
    tenant: TenantKey,
    name: &str,
) -> Result<(), StoreError> {
    raise_version(transaction, tenant).await?;
    transaction.execute(TAKE_BACK, &[&tenant.0, &name]).await?;
    Ok(())
}

/// The schema that a type has now.
///
/// # Errors
/// Any [`StoreError`]; a tenant that does not exist is one.
pub async fn schema(
    client: &impl GenericClient,
    tenant: TenantKey,
    name: &str,
) -> Result<Schema, StoreError> {
    let row = client.query_one(SCHEMA, &[&tenant.0, &name]).await?;
    let (text, version): (Option<String>, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
    Ok(Schema {
        config_version: row.try_get(0)?,
        schema: version.zip(text),
    })
}

async fn raise_version(
    transaction: &impl GenericClient,
    tenant: TenantKey,
) -> Result<i64, StoreError> {
    let row = transaction.query_one(RAISE_VERSION, &[&tenant.0]).await?;
    Ok(row.try_get(0)?)
}

/// Its columns begin there.
fn event_type(row: &Row, at: usize) -> Result<EventType, StoreError> {
    Ok(EventType {
        id: row.try_get(at)?,
        name: row.try_get(at + 1)?,
        description: row.try_get(at + 2)?,
        schema: row.try_get(at + 3)?,
        created_at: row.try_get(at + 4)?,
        updated_at: row.try_get(at + 5)?,
    })
}
