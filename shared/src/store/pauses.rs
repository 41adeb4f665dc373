//! Pauses, and the live rows that wait because of one.
//!
//! A tenant's pause moves nothing: its endpoints' gates stay shut. What waits because of its *type* stands
//! among rows that may go, so it is taken out of their way: [`park`] gives it a negative slot, in the table
//! where it is. Its status, its cancelling, its count and what retention owes it stay as they are, and no
//! owner finds it ([ADR 0015](../../../docs/adr/0015-what-is-parked-has-a-slot-of-nobody.md)). A row in a line
//! keeps its place and gets a due time instead: moved away, it would let the next one of its key pass.
//!
//! # Invariants
//! - D3 [`park`] is fenced as every change of a live row that an owner may hold.
//! - D8 a pause has an end, and whatever is parked without one is given back by [`unpark`], which the
//!   `pauses` job calls. Nobody owns what is parked, so that needs no fence: whoever comes second finds
//!   nothing to move.

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient};
use uuid::Uuid;

use super::StoreError;
use crate::domain::pause::{Pause, Pauses};
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};

/// So many pauses at most: every worker looks at all of them for each row it loads.
pub const MOST: i64 = 100;

/// Rows of each table in one statement of [`unpark`].
const BATCH: i64 = 1_000;

/// A small table, read whole.
const READ: &str = "SELECT id, tenant_id, event_type, until FROM pauses ORDER BY id LIMIT 1000";

const LIST: &str = "
SELECT t.public_id, p.event_type, p.until, p.reason, p.created_at, p.until <= now()
FROM pauses p LEFT JOIN tenants t ON t.id = p.tenant_id ORDER BY p.id LIMIT 1000";

/// One that is there already is changed. Parallel ones may exceed the limit by their number.
const START: &str = "
INSERT INTO pauses (tenant_id, event_type, until, reason)
SELECT $1, $2, now() + $3::float8 * interval '1 s', $4
WHERE (SELECT count(*) FROM pauses) < $5
  OR EXISTS (SELECT FROM pauses p WHERE p.tenant_id IS NOT DISTINCT FROM $1 AND p.event_type IS NOT DISTINCT FROM $2)
ON CONFLICT (coalesce(tenant_id, 0), coalesce(event_type, '')) DO UPDATE SET until = excluded.until, reason = excluded.reason
RETURNING until";

/// The row stays until what it parked is given back.
const END: &str = "
UPDATE pauses SET until = now()
WHERE tenant_id IS NOT DISTINCT FROM $1 AND event_type IS NOT DISTINCT FROM $2 AND until > now()";

const FORGET: &str = "DELETE FROM pauses WHERE id = ANY ($1) AND until <= $2";

/// By `ready_by_id`, `retry_by_id` and `ready_ordered_by_id`. Locks and fence as in `CLOSE`.
const PARK: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT s.slot FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = $2 AND s.epoch = $3 FOR SHARE OF s),
a AS (UPDATE ready SET slot = slot - 256 WHERE ctid = ANY (ARRAY(
  SELECT r.c FROM ok CROSS JOIN unnest($6::uuid[]) w(id) CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready r WHERE r.tenant_id = $5 AND r.id = w.id AND r.slot = ok.slot AND r.endpoint_id = $4 OFFSET 0) r))),
b AS (UPDATE retry SET slot = slot - 256 WHERE ctid = ANY (ARRAY(
  SELECT r.c FROM ok CROSS JOIN unnest($6::uuid[]) w(id) CROSS JOIN LATERAL (
    SELECT ctid AS c FROM retry r WHERE r.tenant_id = $5 AND r.id = w.id AND r.slot = ok.slot AND r.endpoint_id = $4 OFFSET 0) r))),
c AS (UPDATE ready_ordered SET due_at = $7 WHERE ctid = ANY (ARRAY(
  SELECT r.c FROM ok CROSS JOIN unnest($6::uuid[]) w(id) CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready_ordered r WHERE r.tenant_id = $5 AND r.id = w.id AND r.slot = ok.slot AND r.endpoint_id = $4 OFFSET 0) r)))
SELECT count(*) FROM ok";

/// Loose index scans of `ready_pkey` and `retry_pkey` below slot 0: one probe for each endpoint that has parked
/// rows, and two where there are none. No lock.
const PARKED: &str = "
WITH RECURSIVE a AS (
  (SELECT r.slot, r.endpoint_id, r.tenant_id FROM ready r WHERE r.slot < 0 ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1)
  UNION ALL
  SELECT f.slot, f.endpoint_id, f.tenant_id FROM a CROSS JOIN LATERAL (
    SELECT r.slot, r.endpoint_id, r.tenant_id FROM ready r WHERE r.slot < 0 AND (r.slot, r.endpoint_id) > (a.slot, a.endpoint_id)
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f),
b AS (
  (SELECT r.slot, r.endpoint_id, r.tenant_id FROM retry r WHERE r.slot < 0 ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1)
  UNION ALL
  SELECT f.slot, f.endpoint_id, f.tenant_id FROM b CROSS JOIN LATERAL (
    SELECT r.slot, r.endpoint_id, r.tenant_id FROM retry r WHERE r.slot < 0 AND (r.slot, r.endpoint_id) > (b.slot, b.endpoint_id)
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f)
SELECT slot, endpoint_id, tenant_id FROM a UNION SELECT slot, endpoint_id, tenant_id FROM b ORDER BY slot, endpoint_id";

/// By `ready_pkey` and `retry_pkey`.
const UNPARK: &str = "
WITH a AS (UPDATE ready SET slot = slot + 256 WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM ready r WHERE r.slot = $1 AND r.endpoint_id = $2 ORDER BY r.slot, r.endpoint_id, r.id LIMIT $3)) RETURNING 1),
b AS (UPDATE retry SET slot = slot + 256 WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM retry r WHERE r.slot = $1 AND r.endpoint_id = $2 ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT $3)) RETURNING 1)
SELECT (SELECT count(*) FROM a) + (SELECT count(*) FROM b)";

/// By `endpoints_pkey`.
const NOT_ENABLED: &str = "
SELECT w.id FROM unnest($1::int8[]) w(id)
WHERE NOT EXISTS (SELECT FROM endpoints e WHERE e.id = w.id AND e.state = 1)";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("pauses.read", READ),
    ("pauses.list", LIST),
    ("pauses.start", START),
    ("pauses.end", END),
    ("pauses.forget", FORGET),
    ("pauses.park", PARK),
    ("pauses.parked", PARKED),
    ("pauses.unpark", UNPARK),
    ("pauses.not_enabled", NOT_ENABLED),
];

/// What is held back, as it was asked for: see [`Pause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct What<'a> {
    /// Whose; `None`: everybody's.
    pub tenant: Option<TenantKey>,
    /// Of which types; `None`: of all.
    pub event_type: Option<&'a str>,
}

/// A pause, as people are shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The tenant's public id; `None`: every tenant.
    pub tenant: Option<Uuid>,
    /// See [`Pause::event_type`].
    pub event_type: Option<String>,
    /// See [`Pause::until`].
    pub until: OffsetDateTime,
    /// Why, in the operator's words.
    pub reason: String,
    /// When it began.
    pub created_at: OffsetDateTime,
    /// It is over; what was parked is being given back.
    pub over: bool,
}

/// An endpoint with rows that are put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    /// Its slot, less 256: as many as there are slots.
    pub slot: Slot,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Whose it is.
    pub tenant: TenantKey,
}

/// All pauses, also those that are over and not yet forgotten.
///
/// # Errors
/// As any statement.
pub async fn read(client: &Client) -> Result<Pauses, StoreError> {
    let rows = client.query(READ, &[]).await?;
    let pauses: Result<Vec<_>, _> = rows.iter().map(read_row).collect();
    Ok(Pauses(pauses?))
}

fn read_row(row: &tokio_postgres::Row) -> Result<Pause, StoreError> {
    Ok(Pause {
        id: row.try_get(0)?,
        tenant: row.try_get::<_, Option<i32>>(1)?.map(TenantKey),
        event_type: row.try_get(2)?,
        until: row.try_get(3)?,
    })
}

/// All pauses, for people.
///
/// # Errors
/// As any statement.
pub async fn list(client: &impl GenericClient) -> Result<Vec<Shown>, StoreError> {
    let read = |row: &tokio_postgres::Row| {
        Ok(Shown {
            tenant: row.try_get(0)?,
            event_type: row.try_get(1)?,
            until: row.try_get(2)?,
            reason: row.try_get(3)?,
            created_at: row.try_get(4)?,
            over: row.try_get(5)?,
        })
    };
    client.query(LIST, &[]).await?.iter().map(read).collect()
}

/// Begins a pause, or changes the end of one; when it ends. `None`: there are [`MOST`] of them.
///
/// # Errors
/// As any statement.
pub async fn start(
    client: &impl GenericClient,
    what: What<'_>,
    length: Duration,
    reason: &str,
) -> Result<Option<OffsetDateTime>, StoreError> {
    let tenant = what.tenant.map(|tenant| tenant.0);
    let seconds = length.as_secs_f64();
    let params: [&(dyn ToSql + Sync); 5] = [&tenant, &what.event_type, &seconds, &reason, &MOST];
    let row = client.query_opt(START, &params).await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
}

/// Ends a pause now; whether there was one. Workers go on within seconds.
///
/// # Errors
/// As any statement.
pub async fn end(client: &impl GenericClient, what: What<'_>) -> Result<bool, StoreError> {
    let tenant = what.tenant.map(|tenant| tenant.0);
    Ok(client.execute(END, &[&tenant, &what.event_type]).await? > 0)
}

/// Forgets these pauses, if they were over at that time.
///
/// # Errors
/// As any statement.
pub async fn forget(
    client: &Client,
    pauses: &[i64],
    over_at: OffsetDateTime,
) -> Result<(), StoreError> {
    client.execute(FORGET, &[&pauses, &over_at]).await?;
    Ok(())
}

/// Takes live rows of one endpoint out of the way of those that may go; rows that stand in line wait until
/// `look_again` where they are.
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more (D3).
pub async fn park(
    client: &Client,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    (tenant, endpoint): (TenantKey, EndpointKey),
    deliveries: &[Uuid],
    look_again: OffsetDateTime,
) -> Result<(), StoreError> {
    let params: [&(dyn ToSql + Sync); 7] = [
        &incarnation.0,
        &slot.0,
        &epoch.0,
        &endpoint.0,
        &tenant.0,
        &deliveries,
        &look_again,
    ];
    let row = client.query_one(PARK, &params).await?;
    if row.try_get::<_, i64>(0)? == 0 {
        return Err(StoreError::NotOwner);
    }
    Ok(())
}

/// Which endpoints have parked rows.
///
/// # Errors
/// As any statement.
pub async fn parked(client: &Client) -> Result<Vec<Parked>, StoreError> {
    let read = |row: &tokio_postgres::Row| {
        Ok(Parked {
            slot: Slot(row.try_get(0)?),
            endpoint: EndpointKey(row.try_get(1)?),
            tenant: TenantKey(row.try_get(2)?),
        })
    };
    client.query(PARKED, &[]).await?.iter().map(read).collect()
}

/// Those of these endpoints that take no deliveries.
///
/// # Errors
/// As any statement.
pub async fn not_enabled(
    client: &Client,
    endpoints: &[EndpointKey],
) -> Result<Vec<EndpointKey>, StoreError> {
    let keys: Vec<i64> = endpoints.iter().map(|endpoint| endpoint.0).collect();
    let rows = client.query(NOT_ENABLED, &[&keys]).await?;
    rows.iter()
        .map(|row| Ok(EndpointKey(row.try_get(0)?)))
        .collect()
}

/// Gives parked rows of one endpoint back to its owner, some thousands at most; how many. Call again until
/// there are none.
///
/// # Errors
/// As any statement.
pub async fn unpark(client: &Client, parked: &Parked) -> Result<u64, StoreError> {
    let params: [&(dyn ToSql + Sync); 3] = [&parked.slot.0, &parked.endpoint.0, &BATCH];
    let row = client.query_one(UNPARK, &params).await?;
    Ok(u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0))
}
