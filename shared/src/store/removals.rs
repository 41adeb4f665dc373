//! Removal: tenants, organizations and payloads that somebody wants gone.
//!
//! What stops at once (keys, endpoints) is done in the transaction of the request; the rows go in the
//! background, in batches of a worker's job. A removal walks the tables one after the other; how far it is
//! stands in its row, written in the transaction of each batch, so a job that was interrupted goes on.
//!
//! Expunging empties the payload (no JSON text is empty), so that the event is still there to be listed, and
//! the captured responses of its attempts. What was not delivered yet is closed.
//!
//! # Invariants
//! - D3: each batch is fenced by the job's lease. D6: what is final stays final.
//! - S3: every batch names the tenant.
//! - Bounded: a batch is some hundred rows, by an index that begins with the tenant.
//!
//! Rows that ingest or a worker still write for a tenant (its keys are believed for two seconds, a request may
//! be on the wire) are why a removal waits a minute before its rows go, and looks again before it ends.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row, Transaction};
use uuid::Uuid;

use super::leases::{self, Lease};
use super::{Session, StoreError};
use crate::domain::coded;
use crate::domain::delivery::{CloseReason, DeadLetterClass};
use crate::ids::{TenantKey, created_at, lower_bound, new_v7};
use crate::runtime::clock::wall_time;

/// Rows of a batch with payloads, and without.
const PAYLOADS: i64 = 200;
const NARROW: i64 = 2_000;
/// How long whatever was under way when a removal began may still write, in seconds.
const SETTLE_SECONDS: f64 = 60.0;

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
    }
}

macro_rules! delete_batch {
    ($table:literal, $id:literal) => {
        concat!(
            "WITH last AS MATERIALIZED (
               SELECT ",
            $id,
            " AS id FROM (SELECT ",
            $id,
            " FROM ",
            $table,
            " WHERE tenant_id = $1 AND ",
            $id,
            " > $2
                 ORDER BY tenant_id, ",
            $id,
            " LIMIT $3) b ORDER BY ",
            $id,
            " DESC LIMIT 1),
             gone AS (DELETE FROM ",
            $table,
            " WHERE tenant_id = $1 AND ",
            $id,
            " > $2 AND ",
            $id,
            " <= (SELECT id FROM last) RETURNING 1)
             SELECT (SELECT id FROM last), (SELECT count(*) FROM gone)"
        )
    };
}

/// The live rows of a tenant whose events are from $4 (included) to $5 (excluded), closed; their owners are told to
/// load anew. What is on the wire is left to its worker.
macro_rules! close_batch {
    ($table:literal) => {
        concat!(
            "WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
             batch AS MATERIALIZED (
               SELECT id, event_id FROM ", $table, " WHERE tenant_id = $1 AND id > $2 ORDER BY tenant_id, id LIMIT $3),
             gone AS (
               DELETE FROM ", $table, " r WHERE r.tenant_id = $1 AND r.id IN (
                 SELECT b.id FROM batch b WHERE b.event_id >= $4 AND b.event_id < $5 AND NOT b.id IN (SELECT id FROM flying))
               RETURNING r.slot, r.tenant_id, r.id, r.endpoint_id, r.event_id, r.attempts_made),
             shut AS (
               INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
               SELECT tenant_id, id, endpoint_id, event_id, $6, $7, attempts_made FROM gone),
             told AS (
               INSERT INTO commands (slot, tenant_id, endpoint_id, verb)
               SELECT DISTINCT CASE WHEN slot < 0 THEN slot + 256 ELSE slot END, tenant_id, endpoint_id, 1::int2 FROM gone)
             SELECT (SELECT id FROM batch ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)"
        )
    };
}

/// Payloads of a tenant's events from $4 to $5.
macro_rules! empty_batch {
    ($table:literal) => {
        concat!(
            "WITH last AS MATERIALIZED (
               SELECT id FROM (SELECT id FROM ", $table, " WHERE tenant_id = $1 AND id > $2 AND id >= $4 AND id < $5
                 ORDER BY tenant_id, id LIMIT $3) b ORDER BY id DESC LIMIT 1),
             gone AS (
               UPDATE ", $table, " SET payload = '' WHERE tenant_id = $1 AND id > $2 AND id >= $4 AND id <= (SELECT id FROM last)
                 AND octet_length(payload) > 0 RETURNING 1)
             SELECT (SELECT id FROM last), (SELECT count(*) FROM gone)"
        )
    };
}

const DELETE_READY: &str = delete_batch!("ready", "id");
const DELETE_RETRY: &str = delete_batch!("retry", "id");
const DELETE_READY_ORDERED: &str = delete_batch!("ready_ordered", "id");
const DELETE_DEAD_LETTERS: &str = delete_batch!("dead_letters", "id");
const DELETE_CLOSED: &str = delete_batch!("closed", "id");
const DELETE_EVENTS: &str = delete_batch!("events", "id");
const DELETE_EVENTS_KEPT: &str = delete_batch!("events_kept", "id");
const DELETE_ATTEMPTS: &str = delete_batch!("attempts", "delivery_id");
const CLOSE_READY: &str = close_batch!("ready");
const CLOSE_RETRY: &str = close_batch!("retry");
const CLOSE_READY_ORDERED: &str = close_batch!("ready_ordered");
const EMPTY_EVENTS: &str = empty_batch!("events");
const EMPTY_EVENTS_KEPT: &str = empty_batch!("events_kept");
/// Of a class that is never revived.
const RECLASS_DEAD_LETTERS: &str = "
WITH batch AS MATERIALIZED (
  SELECT id, event_id FROM dead_letters WHERE tenant_id = $1 AND id > $2 ORDER BY tenant_id, id LIMIT $3),
gone AS (
  UPDATE dead_letters d SET class = $6, reason = 'the payload was expunged'
  WHERE d.tenant_id = $1 AND d.id IN (SELECT b.id FROM batch b WHERE b.event_id >= $4 AND b.event_id < $5) RETURNING 1)
SELECT (SELECT id FROM batch ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)";
const EMPTY_ATTEMPTS: &str = "
WITH last AS MATERIALIZED (
  SELECT delivery_id AS id FROM (SELECT delivery_id FROM attempts WHERE tenant_id = $1 AND delivery_id > $2
    ORDER BY tenant_id, delivery_id LIMIT $3) b ORDER BY delivery_id DESC LIMIT 1),
gone AS (
  UPDATE attempts SET response = NULL WHERE tenant_id = $1 AND delivery_id > $2 AND delivery_id <= (SELECT id FROM last)
    AND event_id >= $4 AND event_id < $5 AND response IS NOT NULL RETURNING 1)
SELECT (SELECT id FROM last), (SELECT count(*) FROM gone)";

/// Endpoints of a tenant, and what hangs on them.
const DELETE_ENDPOINTS: &str = "
WITH batch AS MATERIALIZED (SELECT id FROM endpoints WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 200),
s AS (DELETE FROM endpoint_secrets WHERE endpoint_id IN (SELECT id FROM batch)),
p AS (DELETE FROM endpoint_key_pairs WHERE endpoint_id IN (SELECT id FROM batch)),
u AS (DELETE FROM endpoint_urls WHERE endpoint_id IN (SELECT id FROM batch)),
r AS (DELETE FROM endpoint_runtime WHERE endpoint_id IN (SELECT id FROM batch)),
n AS (DELETE FROM notices WHERE endpoint_id IN (SELECT id FROM batch)),
e AS (DELETE FROM endpoints WHERE id IN (SELECT id FROM batch) RETURNING 1)
SELECT count(*) FROM e";
/// The small rest, but for the tenant itself.
const DELETE_REST: &str = "
WITH i AS (DELETE FROM idempotency_keys WHERE tenant_id = $1 AND key IN (
  SELECT key FROM idempotency_keys WHERE tenant_id = $1 ORDER BY tenant_id, key LIMIT 2000) RETURNING 1),
t AS (DELETE FROM event_types WHERE tenant_id = $1 AND id IN (
  SELECT id FROM event_types WHERE tenant_id = $1 ORDER BY tenant_id, name LIMIT 2000) RETURNING 1),
c AS (DELETE FROM event_counts WHERE tenant_id = $1 RETURNING 1),
k AS (DELETE FROM api_keys WHERE tenant_id = $1 RETURNING 1),
p AS (DELETE FROM pauses WHERE tenant_id = $1 RETURNING 1)
SELECT (SELECT count(*) FROM i) + (SELECT count(*) FROM t) + (SELECT count(*) FROM c) + (SELECT count(*) FROM k) + (SELECT count(*) FROM p)";
/// Not while anything of it is left: then all is walked again.
const DELETE_TENANT: &str = "
DELETE FROM tenants t WHERE t.id = $1 AND t.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM ready WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM retry WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM ready_ordered WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM dead_letters WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM closed WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM events WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM events_kept WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM attempts WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM endpoints WHERE tenant_id = $1)";
const DELETE_ORGANIZATION: &str = "
WITH o AS (
  DELETE FROM organizations o WHERE o.id = $1 AND o.deleted_at IS NOT NULL
    AND NOT EXISTS (SELECT FROM tenants WHERE organization_id = $1) RETURNING 1),
k AS (DELETE FROM api_keys WHERE organization_id = $1 AND EXISTS (SELECT FROM o))
SELECT count(*) FROM o";

/// Its own name is free again at once.
const MARK_TENANT: &str = "
UPDATE tenants SET deleted_at = now(), changed_at = now(), external_id = NULL, config_version = config_version + 1
WHERE id = $1 AND deleted_at IS NULL";
const MARK_ORGANIZATION: &str =
    "UPDATE organizations SET deleted_at = now() WHERE id = $1 AND deleted_at IS NULL";
/// With a removal for each.
const MARK_TENANTS_OF: &str = "
WITH t AS (
  UPDATE tenants SET deleted_at = now(), changed_at = now(), external_id = NULL, config_version = config_version + 1
  WHERE organization_id = $1 AND deleted_at IS NULL RETURNING id, public_id)
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id) SELECT gen_random_uuid(), 1, t.id, $1, t.public_id FROM t";
/// In batches: a tenant may have 10,000. Locks the endpoints, and nobody else needs the tenant's any more.
const STOP_ENDPOINTS: &str = "
WITH e AS (
  UPDATE endpoints SET state = 3, state_reason = 'the tenant was deleted', version = version + 1, updated_at = now()
  WHERE id IN (SELECT id FROM endpoints WHERE tenant_id = $1 AND state <> 3 ORDER BY tenant_id, id LIMIT $2)
  RETURNING id, tenant_id, slot),
c AS (INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, id, 1 FROM e)
SELECT count(*) FROM e";
const REVOKE_KEYS: &str = "
UPDATE api_keys SET revoked_at = now() WHERE (tenant_id = $1 OR organization_id = $2) AND revoked_at IS NULL";

const ADD: &str = "
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id, before_id, after_id)
VALUES ($1, $2, $3, coalesce($4, (SELECT organization_id FROM tenants WHERE id = $3)), $5, $6, $7)
RETURNING id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at";
/// Uses `removals_open`.
const NEXT: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE finished_at IS NULL AND not_before <= now() ORDER BY not_before, id LIMIT 1";
const SAVE: &str = "
UPDATE removals SET step = $2, after_id = $3, rows_done = rows_done + $4, not_before = now() + $5::float8 * interval '1 s',
  finished_at = CASE WHEN $6 THEN now() END WHERE id = $1";
/// Uses `removals_public_id_key`. $2 and $3: only this tenant's, this organization's.
const FIND: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE public_id = $1 AND ($2::int4 IS NULL OR tenant_id = $2) AND ($3::int4 IS NULL OR organization_id = $3)";
/// By primary key backwards; there are few.
const LIST: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE $1::uuid IS NULL OR id < (SELECT r.id FROM removals r WHERE r.public_id = $1) ORDER BY id DESC LIMIT $2";
const EVENT_EXISTS: &str = "
SELECT FROM events WHERE tenant_id = $1 AND id = $2
UNION ALL SELECT FROM events_kept WHERE tenant_id = $1 AND id = $2 LIMIT 1";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("removals.delete_ready", DELETE_READY),
    ("removals.delete_retry", DELETE_RETRY),
    ("removals.delete_ready_ordered", DELETE_READY_ORDERED),
    ("removals.delete_dead_letters", DELETE_DEAD_LETTERS),
    ("removals.delete_closed", DELETE_CLOSED),
    ("removals.delete_events", DELETE_EVENTS),
    ("removals.delete_events_kept", DELETE_EVENTS_KEPT),
    ("removals.delete_attempts", DELETE_ATTEMPTS),
    ("removals.close_ready", CLOSE_READY),
    ("removals.close_retry", CLOSE_RETRY),
    ("removals.close_ready_ordered", CLOSE_READY_ORDERED),
    ("removals.empty_events", EMPTY_EVENTS),
    ("removals.empty_events_kept", EMPTY_EVENTS_KEPT),
    ("removals.reclass_dead_letters", RECLASS_DEAD_LETTERS),
    ("removals.empty_attempts", EMPTY_ATTEMPTS),
    ("removals.delete_endpoints", DELETE_ENDPOINTS),
    ("removals.delete_rest", DELETE_REST),
    ("removals.delete_tenant", DELETE_TENANT),
    ("removals.delete_organization", DELETE_ORGANIZATION),
    ("removals.mark_tenant", MARK_TENANT),
    ("removals.mark_organization", MARK_ORGANIZATION),
    ("removals.mark_tenants_of", MARK_TENANTS_OF),
    ("removals.stop_endpoints", STOP_ENDPOINTS),
    ("removals.revoke_keys", REVOKE_KEYS),
    ("removals.add", ADD),
    ("removals.next", NEXT),
    ("removals.save", SAVE),
    ("removals.find", FIND),
    ("removals.list", LIST),
    ("removals.event_exists", EVENT_EXISTS),
];

/// What a walk does with a table, in order. A tenant's begins when its endpoints have stopped.
const TENANT_STEPS: [(&str, i64); 8] = [
    (DELETE_READY, NARROW),
    (DELETE_RETRY, NARROW),
    (DELETE_READY_ORDERED, NARROW),
    (DELETE_DEAD_LETTERS, NARROW),
    (DELETE_CLOSED, NARROW),
    (DELETE_EVENTS, PAYLOADS),
    (DELETE_EVENTS_KEPT, PAYLOADS),
    (DELETE_ATTEMPTS, PAYLOADS),
];

/// Which parameters a batch of an expunging walk has besides the first five.
#[derive(Clone, Copy)]
enum Batch {
    Close,
    Reclass,
    Empty,
}

/// Payloads first: nothing that is loaded after that is sent. The last two are repeated later, for what was on
/// the wire.
const EXPUNGE_STEPS: [(&str, Batch, i64); 9] = [
    (EMPTY_EVENTS, Batch::Empty, PAYLOADS),
    (EMPTY_EVENTS_KEPT, Batch::Empty, PAYLOADS),
    (CLOSE_READY, Batch::Close, NARROW),
    (CLOSE_RETRY, Batch::Close, NARROW),
    (CLOSE_READY_ORDERED, Batch::Close, NARROW),
    (RECLASS_DEAD_LETTERS, Batch::Reclass, NARROW),
    (EMPTY_ATTEMPTS, Batch::Empty, PAYLOADS),
    (RECLASS_DEAD_LETTERS, Batch::Reclass, NARROW),
    (EMPTY_ATTEMPTS, Batch::Empty, PAYLOADS),
];
/// The first that is a repetition.
const SECOND_LOOK: i16 = 7;

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
    /// The public id of the tenant, organization or event.
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

/// What a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is due.
    Idle,
    /// A batch was done.
    Batch,
    /// The endpoints of a tenant were stopped: their owners should be told.
    Stopped,
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
    for (statement, batch, limit) in EXPUNGE_STEPS.into_iter().take(2) {
        expunge(transaction, &removal, (statement, batch), limit).await?;
    }
    Ok(Some(removal))
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

/// One batch of the removal that has waited longest.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is lost (D3); else those of the database.
pub async fn advance(session: &mut Session, lease: &Lease) -> Result<Progress, StoreError> {
    let transaction = session.transaction().await?;
    leases::still_mine(&transaction, lease).await?;
    let Some(row) = transaction.query_opt(NEXT, &[]).await? else {
        return Ok(Progress::Idle);
    };
    let removal = read(&row)?;
    let next = match removal.kind {
        Kind::Tenant => remove_tenant(&transaction, &removal).await?,
        Kind::Organization => remove_organization(&transaction, &removal).await?,
        Kind::Payloads | Kind::Payload => expunge_next(&transaction, &removal).await?,
    };
    let params: [&(dyn ToSql + Sync); 6] = [
        &removal.key,
        &next.step,
        &next.after,
        &next.rows,
        &next.wait_seconds,
        &next.finished,
    ];
    transaction.execute(SAVE, &params).await?;
    transaction.commit().await?;
    Ok(if next.stopped {
        Progress::Stopped
    } else {
        Progress::Batch
    })
}

/// Where a removal stands after a batch.
#[derive(Default)]
struct Next {
    step: i16,
    after: Uuid,
    rows: i64,
    wait_seconds: f64,
    finished: bool,
    stopped: bool,
}

/// Step 0 stops endpoints, then come the tables, the endpoints, the rest and the tenant.
async fn remove_tenant(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let tenant = removal.tenant.unwrap_or_default();
    let Some(table) = usize::try_from(removal.step)
        .ok()
        .and_then(|step| step.checked_sub(1))
    else {
        return stop_tenant(transaction, removal).await;
    };
    if let Some((statement, limit)) = TENANT_STEPS.get(table) {
        let params: [&(dyn ToSql + Sync); 3] = [&tenant, &removal.after, limit];
        let (last, rows) = batch(transaction, statement, &params).await?;
        return Ok(match last {
            Some(after) => Next {
                after,
                ..removal.stays(rows)
            },
            None => removal.moves_on(rows),
        });
    }
    let statement = match table - TENANT_STEPS.len() {
        0 => DELETE_ENDPOINTS,
        1 => DELETE_REST,
        _ => return end_tenant(transaction, removal).await,
    };
    let row = transaction.query_one(statement, &[&tenant]).await?;
    Ok(match row.try_get(0)? {
        0 => removal.moves_on(0),
        rows => removal.stays(rows),
    })
}

async fn stop_tenant(transaction: &Transaction<'_>, removal: &Removal) -> Result<Next, StoreError> {
    let row = transaction
        .query_one(STOP_ENDPOINTS, &[&removal.tenant, &NARROW])
        .await?;
    let stopped: i64 = row.try_get(0)?;
    let next = if stopped == NARROW {
        removal.stays(0)
    } else {
        Next {
            wait_seconds: SETTLE_SECONDS,
            ..removal.moves_on(0)
        }
    };
    Ok(Next {
        stopped: stopped > 0,
        ..next
    })
}

async fn end_tenant(transaction: &Transaction<'_>, removal: &Removal) -> Result<Next, StoreError> {
    let gone = transaction
        .execute(DELETE_TENANT, &[&removal.tenant])
        .await?;
    Ok(if gone > 0 {
        Next {
            finished: true,
            ..removal.stays(1)
        }
    } else {
        // Something was written meanwhile: once more from the first table.
        Next {
            step: 1,
            wait_seconds: 1.0,
            ..Next::default()
        }
    })
}

async fn remove_organization(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let organization = removal.organization.unwrap_or_default();
    let row = transaction
        .query_one(DELETE_ORGANIZATION, &[&organization])
        .await?;
    let gone: i64 = row.try_get(0)?;
    Ok(Next {
        rows: gone,
        finished: gone > 0,
        wait_seconds: 1.0,
        ..Next::default()
    })
}

async fn expunge_next(
    transaction: &Transaction<'_>,
    removal: &Removal,
) -> Result<Next, StoreError> {
    let step = usize::try_from(removal.step).unwrap_or(usize::MAX);
    let Some((statement, kind, limit)) = EXPUNGE_STEPS.get(step) else {
        return Ok(Next {
            step: removal.step,
            finished: true,
            ..Next::default()
        });
    };
    let (last, rows) = expunge(transaction, removal, (statement, *kind), *limit).await?;
    Ok(match last {
        Some(after) => Next {
            step: removal.step,
            after,
            rows,
            ..Next::default()
        },
        None => Next {
            step: removal.step + 1,
            after: removal.first(),
            rows,
            wait_seconds: if removal.step + 1 == SECOND_LOOK {
                SETTLE_SECONDS
            } else {
                0.0
            },
            ..Next::default()
        },
    })
}

async fn expunge(
    transaction: &Transaction<'_>,
    removal: &Removal,
    (statement, kind): (&str, Batch),
    limit: i64,
) -> Result<(Option<Uuid>, i64), StoreError> {
    let tenant = removal.tenant.unwrap_or_default();
    let (from, to) = removal.events();
    let reason = CloseReason::Expunged;
    let (status, code) = (reason.status().code(), reason.code());
    let class = DeadLetterClass::Expired.code();
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&tenant, &removal.after, &limit, &from, &to];
    match kind {
        Batch::Close => params.extend([&status as &(dyn ToSql + Sync), &code]),
        Batch::Reclass => params.push(&class),
        Batch::Empty => {}
    }
    batch(transaction, statement, &params).await
}

/// The last id that a batch has walked over, if there was one, and how many rows it changed.
async fn batch(
    transaction: &Transaction<'_>,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<(Option<Uuid>, i64), StoreError> {
    let row = transaction.query_one(statement, params).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

impl Removal {
    /// The same step again.
    fn stays(&self, rows: i64) -> Next {
        Next {
            step: self.step,
            after: self.after,
            rows,
            ..Next::default()
        }
    }

    /// The next step, from its beginning.
    fn moves_on(&self, rows: i64) -> Next {
        Next {
            step: self.step.saturating_add(1),
            rows,
            ..Next::default()
        }
    }

    /// The events whose payloads are expunged: from the first (included) to the second (excluded).
    fn events(&self) -> (Uuid, Uuid) {
        match (self.kind, self.before) {
            (Kind::Payload, _) => {
                let next = self.object.as_u128().saturating_add(1);
                (self.object, Uuid::from_u128(next))
            }
            (_, before) => (Uuid::nil(), before.unwrap_or(Uuid::nil())),
        }
    }

    /// Where a walk begins: no delivery is older than its event.
    fn first(&self) -> Uuid {
        begin(self.kind, self.object)
    }
}

fn begin(kind: Kind, object: Uuid) -> Uuid {
    match kind {
        Kind::Payload => {
            let millisecond = lower_bound(created_at(object) - time::Duration::milliseconds(1));
            Uuid::from_u128(millisecond.as_u128().saturating_sub(1))
        }
        Kind::Tenant | Kind::Organization | Kind::Payloads => Uuid::nil(),
    }
}

async fn add(
    transaction: &Transaction<'_>,
    kind: Kind,
    (tenant, organization): (Option<i32>, Option<i32>),
    object: Uuid,
    before: Option<Uuid>,
) -> Result<Removal, StoreError> {
    let params: [&(dyn ToSql + Sync); 7] = [
        &new_v7(wall_time()),
        &kind.code(),
        &tenant,
        &organization,
        &object,
        &before,
        &begin(kind, object),
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
