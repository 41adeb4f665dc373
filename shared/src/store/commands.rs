//! What the API asks of a slot's owner: rows that the owner executes and removes.
//!
//! The API never touches a live row that the owner may hold in memory, but for a cancel
//! (compare-and-delete). Removal is fenced: a worker that was declared dead must not swallow a command
//! that its successor has not seen (D3).

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::StoreError;
use crate::domain::attempt::Outcome;
use crate::ids::{EndpointKey, Incarnation, Slot, TenantKey};

/// By `commands_slot`.
const PENDING: &str = "SELECT c.id, c.slot, c.tenant_id, c.endpoint_id, c.delivery_id, c.verb
FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
  SELECT * FROM commands c WHERE c.slot = w.slot ORDER BY c.slot, c.id LIMIT 100) c
ORDER BY c.id LIMIT 1000";

const REMOVE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
mine AS MATERIALIZED (SELECT s.slot FROM slots s JOIN me ON me.id = s.owner)
DELETE FROM commands c WHERE c.id = ANY ($2) AND c.slot IN (SELECT slot FROM mine)";

/// By `retry_by_id` and `ready_ordered_by_id`. A row that is due already is left alone: it may be on the wire, and a record
/// that finds it moved would not apply.
const MAKE_DUE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
mine AS MATERIALIZED (SELECT s.slot FROM slots s JOIN me ON me.id = s.owner),
o AS (
  UPDATE ready_ordered r SET due_at = $4
  WHERE r.tenant_id = $2 AND r.id = $3 AND r.due_at > $4 AND r.slot IN (SELECT slot FROM mine))
UPDATE retry r SET due_at = $4 WHERE r.tenant_id = $2 AND r.id = $3 AND r.due_at > $4 AND r.slot IN (SELECT slot FROM mine)";

/// The endpoint's owner met a 410: disabled in the transaction of the command that tells everyone, if an
/// attempt of that delivery and instant counted and was answered so. By `attempts_pkey`. Whether the record's acknowledgement arrived does not matter.
const DISABLE_GONE: &str = "
WITH gone AS MATERIALIZED (
  SELECT FROM attempts a WHERE a.tenant_id = $2 AND a.delivery_id = $5 AND a.started_at = $6 AND a.applied AND a.outcome = $7 LIMIT 1),
e AS (
  UPDATE endpoints SET state = 2, state_reason = $3, version = version + 1, updated_at = now()
  WHERE id = $1 AND tenant_id = $2 AND state = 1 AND version = $4 AND EXISTS (SELECT FROM gone) RETURNING id, tenant_id, slot),
t AS (
  UPDATE tenants SET config_version = config_version + 1 WHERE id IN (SELECT tenant_id FROM e))
INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, id, 1 FROM e";

/// [`DISABLE_GONE`], if the attempts bear it out. By `attempts_endpoint` of the partitions since then: the first
/// failure, and of the last 100,000 attempts how many failed, and whether one succeeded. Who saw that
/// many failures in a row since a success that was forgotten in a crash is wrong about its instant only.
const DISABLE_FAILING: &str = "
WITH since AS MATERIALIZED (
  SELECT greatest($5, (SELECT r.enabled_at FROM endpoint_runtime r WHERE r.endpoint_id = $1)) AS at),
first AS MATERIALIZED (
  SELECT a.started_at FROM attempts a
  WHERE a.endpoint_id = $1 AND a.started_at >= (SELECT at FROM since) AND a.applied AND a.outcome = ANY ($6)
  ORDER BY a.endpoint_id, a.started_at LIMIT 1),
recent AS MATERIALIZED (
  SELECT a.outcome, a.started_at FROM attempts a
  WHERE a.endpoint_id = $1 AND a.started_at >= (SELECT at FROM since) AND a.applied
  ORDER BY a.endpoint_id, a.started_at DESC LIMIT 100000),
borne_out AS MATERIALIZED (
  SELECT FROM recent
  HAVING count(*) FILTER (WHERE outcome = ANY ($6)) >= $7 AND NOT coalesce(bool_or(outcome = $8), false)
     AND max(started_at) FILTER (WHERE outcome = ANY ($6)) - (SELECT started_at FROM first) >= $9::float8 * interval '1 s'),
e AS (
  UPDATE endpoints SET state = 2, state_reason = $3, version = version + 1, updated_at = now()
  WHERE id = $1 AND tenant_id = $2 AND state = 1 AND version = $4 AND EXISTS (SELECT FROM borne_out) RETURNING id, tenant_id, slot),
t AS (
  UPDATE tenants SET config_version = config_version + 1 WHERE id IN (SELECT tenant_id FROM e))
INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, id, 1 FROM e";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("commands::pending", PENDING),
    ("commands::remove", REMOVE),
    ("commands::make_due", MAKE_DUE),
    ("commands::disable_gone", DISABLE_GONE),
    ("commands::disable_failing", DISABLE_FAILING),
];

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The endpoint changed: read it anew before the next request.
    Reload,
    /// This delivery's next attempt is due now.
    RetryNow(Uuid),
}

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// In the order they were given, within a slot.
    pub id: i64,
    /// Whose owner is asked.
    pub slot: Slot,
    /// Whose endpoint it is.
    pub tenant: TenantKey,
    /// Which endpoint.
    pub endpoint: EndpointKey,
    /// What to do.
    pub verb: Verb,
}

/// Commands for these slots, oldest first, at most 1,000.
///
/// # Errors
/// [`StoreError::Decode`] for a verb that this program does not know.
pub async fn pending(client: &Client, slots: &[Slot]) -> Result<Vec<Command>, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let rows = client.query(PENDING, &[&slots]).await?;
    rows.iter().map(read).collect()
}

fn read(row: &tokio_postgres::Row) -> Result<Command, StoreError> {
    let delivery: Option<Uuid> = row.try_get(4)?;
    let verb = match (row.try_get::<_, i16>(5)?, delivery) {
        (1, _) => Verb::Reload,
        (2, Some(delivery)) => Verb::RetryNow(delivery),
        (code, _) => return Err(StoreError::Decode(format!("unknown command {code}"))),
    };
    Ok(Command {
        id: row.try_get(0)?,
        slot: Slot(row.try_get(1)?),
        tenant: TenantKey(row.try_get(2)?),
        endpoint: EndpointKey(row.try_get(3)?),
        verb,
    })
}

/// Removes executed commands, if this incarnation still owns their slots.
///
/// # Errors
/// As any statement.
pub async fn remove(
    client: &Client,
    incarnation: Incarnation,
    ids: &[i64],
) -> Result<(), StoreError> {
    client.execute(REMOVE, &[&incarnation.0, &ids]).await?;
    Ok(())
}

/// Makes a waiting retry due at `now`. Nothing happens if it is due, final or someone else's.
///
/// # Errors
/// As any statement.
pub async fn make_due(
    client: &Client,
    incarnation: Incarnation,
    (tenant, delivery): (TenantKey, Uuid),
    now: OffsetDateTime,
) -> Result<(), StoreError> {
    client
        .execute(MAKE_DUE, &[&incarnation.0, &tenant.0, &delivery, &now])
        .await?;
    Ok(())
}

/// Disables an endpoint whose receiver answered 410 to a request made under this version of it; whether it
/// did: a later version may have another URL, or have been enabled by hand. Only if the database holds an
/// attempt that counted, of this delivery and started at this instant, and was answered with a 410. For every record that decided so, also one that
/// seems to have come too late: its first submission may have been applied and its acknowledgement lost.
///
/// # Errors
/// As any statement.
pub async fn disable_gone(
    client: &Client,
    (endpoint, version): (EndpointKey, i32),
    tenant: TenantKey,
    (delivery, started_at): (Uuid, OffsetDateTime),
    reason: &str,
) -> Result<bool, StoreError> {
    let gone = Outcome::Gone.code();
    let params: [&(dyn ToSql + Sync); 7] = [
        &endpoint.0,
        &tenant.0,
        &reason,
        &version,
        &delivery,
        &started_at,
        &gone,
    ];
    Ok(client.execute(DISABLE_GONE, &params).await? > 0)
}

/// So many failures at least, and so far apart: a monthly event that fails once disables nothing.
const LEAST_FAILURES: i64 = 10;
/// See [`LEAST_FAILURES`].
const LEAST_SPAN: Duration = Duration::from_secs(12 * 3_600);
/// What says that the endpoint does not work: neither our own trouble nor a receiver that is busy.
const FAILURES: [Outcome; 4] = [
    Outcome::Transient,
    Outcome::Misconfigured,
    Outcome::Permanent,
    Outcome::Gone,
];

/// Disables an endpoint that has failed since `failing_since` (or since it was enabled again) under this
/// version of it; whether it did. Only if the attempts bear it out: at least 10 failures over at least 12
/// hours, and no success. Not fenced: what decides is in the database, whoever asks. Call
/// [`super::notify::commands`] afterwards.
///
/// # Errors
/// As any statement.
pub async fn disable_failing(
    client: &Client,
    (endpoint, version): (EndpointKey, i32),
    tenant: TenantKey,
    failing_since: OffsetDateTime,
    reason: &str,
) -> Result<bool, StoreError> {
    let failures = FAILURES.map(Outcome::code).to_vec();
    let success = Outcome::Delivered.code();
    let span = LEAST_SPAN.as_secs_f64();
    let params: [&(dyn ToSql + Sync); 9] = [
        &endpoint.0,
        &tenant.0,
        &reason,
        &version,
        &failing_since,
        &failures,
        &LEAST_FAILURES,
        &success,
        &span,
    ];
    Ok(client.execute(DISABLE_FAILING, &params).await? > 0)
}
