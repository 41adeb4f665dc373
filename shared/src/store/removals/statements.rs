//! The statements of removals, and which indexes they use.

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

pub(super) const DELETE_READY: &str = delete_batch!("ready", "id");
pub(super) const DELETE_RETRY: &str = delete_batch!("retry", "id");
pub(super) const DELETE_READY_ORDERED: &str = delete_batch!("ready_ordered", "id");
pub(super) const DELETE_DEAD_LETTERS: &str = delete_batch!("dead_letters", "id");
pub(super) const DELETE_CLOSED: &str = delete_batch!("closed", "id");
pub(super) const DELETE_EVENTS: &str = delete_batch!("events", "id");
pub(super) const DELETE_EVENTS_KEPT: &str = delete_batch!("events_kept", "id");
pub(super) const DELETE_ATTEMPTS: &str = delete_batch!("attempts", "delivery_id");
pub(super) const CLOSE_READY: &str = close_batch!("ready");
pub(super) const CLOSE_RETRY: &str = close_batch!("retry");
pub(super) const CLOSE_READY_ORDERED: &str = close_batch!("ready_ordered");
pub(super) const EMPTY_EVENTS: &str = empty_batch!("events");
pub(super) const EMPTY_EVENTS_KEPT: &str = empty_batch!("events_kept");
/// Of a class that is never revived.
pub(super) const RECLASS_DEAD_LETTERS: &str = "
WITH batch AS MATERIALIZED (
  SELECT id, event_id FROM dead_letters WHERE tenant_id = $1 AND id > $2 ORDER BY tenant_id, id LIMIT $3),
gone AS (
  UPDATE dead_letters d SET class = $6, reason = 'the payload was expunged'
  WHERE d.tenant_id = $1 AND d.id IN (SELECT b.id FROM batch b WHERE b.event_id >= $4 AND b.event_id < $5) RETURNING 1)
SELECT (SELECT id FROM batch ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM gone)";
pub(super) const EMPTY_ATTEMPTS: &str = "
WITH last AS MATERIALIZED (
  SELECT delivery_id AS id FROM (SELECT delivery_id FROM attempts WHERE tenant_id = $1 AND delivery_id > $2
    ORDER BY tenant_id, delivery_id LIMIT $3) b ORDER BY delivery_id DESC LIMIT 1),
gone AS (
  UPDATE attempts SET response = NULL WHERE tenant_id = $1 AND delivery_id > $2 AND delivery_id <= (SELECT id FROM last)
    AND event_id >= $4 AND event_id < $5 AND response IS NOT NULL RETURNING 1)
SELECT (SELECT id FROM last), (SELECT count(*) FROM gone)";

/// Endpoints of a tenant, and what hangs on them.
pub(super) const DELETE_ENDPOINTS: &str = "
WITH batch AS MATERIALIZED (SELECT id FROM endpoints WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 200),
s AS (DELETE FROM endpoint_secrets WHERE endpoint_id IN (SELECT id FROM batch)),
p AS (DELETE FROM endpoint_key_pairs WHERE endpoint_id IN (SELECT id FROM batch)),
u AS (DELETE FROM endpoint_urls WHERE endpoint_id IN (SELECT id FROM batch)),
r AS (DELETE FROM endpoint_runtime WHERE endpoint_id IN (SELECT id FROM batch)),
n AS (DELETE FROM notices WHERE endpoint_id IN (SELECT id FROM batch)),
o AS (DELETE FROM replay_outstanding WHERE endpoint_id IN (SELECT id FROM batch)),
e AS (DELETE FROM endpoints WHERE id IN (SELECT id FROM batch) RETURNING 1)
SELECT count(*) FROM e";
/// What was sent again, in batches: by `endpoints_tenant` and `replayed_event`.
pub(super) const DELETE_REPLAYED: &str = "
WITH gone AS (
  DELETE FROM replayed WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM endpoints e
    CROSS JOIN LATERAL (SELECT r.ctid FROM replayed r WHERE r.endpoint_id = e.id LIMIT 2000) r
    WHERE e.tenant_id = $1 LIMIT 2000)) RETURNING 1)
SELECT count(*) FROM gone";
/// The small rest, but for the tenant itself.
pub(super) const DELETE_REST: &str = "
WITH i AS (DELETE FROM idempotency_keys WHERE tenant_id = $1 AND key IN (
  SELECT key FROM idempotency_keys WHERE tenant_id = $1 ORDER BY tenant_id, key LIMIT 2000) RETURNING 1),
t AS (DELETE FROM event_types WHERE tenant_id = $1 AND id IN (
  SELECT id FROM event_types WHERE tenant_id = $1 ORDER BY tenant_id, name LIMIT 2000) RETURNING 1),
c AS (DELETE FROM event_counts WHERE tenant_id = $1 RETURNING 1),
k AS (DELETE FROM api_keys WHERE tenant_id = $1 RETURNING 1),
p AS (DELETE FROM pauses WHERE tenant_id = $1 RETURNING 1),
r AS (DELETE FROM replays WHERE id IN (SELECT id FROM replays WHERE tenant_id = $1 ORDER BY tenant_id, public_id LIMIT 100) RETURNING id),
rp AS (DELETE FROM replay_parts WHERE replay_id IN (SELECT id FROM r)),
rs AS (DELETE FROM replay_skips WHERE replay_id IN (SELECT id FROM r))
SELECT (SELECT count(*) FROM r) + (SELECT count(*) FROM i) + (SELECT count(*) FROM t) + (SELECT count(*) FROM c) + (SELECT count(*) FROM k) + (SELECT count(*) FROM p)";
/// Not while anything of it is left: then all is walked again.
pub(super) const DELETE_TENANT: &str = "
DELETE FROM tenants t WHERE t.id = $1 AND t.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM ready WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM retry WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM ready_ordered WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM dead_letters WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM closed WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM events WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM events_kept WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM attempts WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM endpoints WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM replays WHERE tenant_id = $1)";
pub(super) const DELETE_ORGANIZATION: &str = "
WITH o AS (
  DELETE FROM organizations o WHERE o.id = $1 AND o.deleted_at IS NOT NULL
    AND NOT EXISTS (SELECT FROM tenants WHERE organization_id = $1) RETURNING 1),
k AS (DELETE FROM api_keys WHERE organization_id = $1 AND EXISTS (SELECT FROM o))
SELECT count(*) FROM o";

/// Its own name is free again at once.
pub(super) const MARK_TENANT: &str = "
UPDATE tenants SET deleted_at = now(), changed_at = now(), external_id = NULL, config_version = config_version + 1
WHERE id = $1 AND deleted_at IS NULL";
pub(super) const MARK_ORGANIZATION: &str =
    "UPDATE organizations SET deleted_at = now() WHERE id = $1 AND deleted_at IS NULL";
/// With a removal for each.
pub(super) const MARK_TENANTS_OF: &str = "
WITH t AS (
  UPDATE tenants SET deleted_at = now(), changed_at = now(), external_id = NULL, config_version = config_version + 1
  WHERE organization_id = $1 AND deleted_at IS NULL RETURNING id, public_id)
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id) SELECT gen_random_uuid(), 1, t.id, $1, t.public_id FROM t";
/// In batches: a tenant may have 10,000. Locks the endpoints, and nobody else needs the tenant's any more.
pub(super) const STOP_ENDPOINTS: &str = "
WITH e AS (
  UPDATE endpoints SET state = 3, state_reason = 'the tenant was deleted', version = version + 1, updated_at = now()
  WHERE id IN (SELECT id FROM endpoints WHERE tenant_id = $1 AND state <> 3 ORDER BY tenant_id, id LIMIT $2)
  RETURNING id, tenant_id, slot),
c AS (INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, id, 1 FROM e)
SELECT count(*) FROM e";
pub(super) const REVOKE_KEYS: &str = "
UPDATE api_keys SET revoked_at = now() WHERE (tenant_id = $1 OR organization_id = $2) AND revoked_at IS NULL";

pub(super) const ADD: &str = "
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id, before_id, after_id)
VALUES ($1, $2, $3, coalesce($4, (SELECT organization_id FROM tenants WHERE id = $3)), $5, $6, $7)
RETURNING id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at";
/// Uses `removals_open`.
pub(super) const NEXT: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE finished_at IS NULL AND not_before <= now() ORDER BY not_before, id LIMIT 1";
pub(super) const SAVE: &str = "
UPDATE removals SET step = $2, after_id = $3, rows_done = rows_done + $4, not_before = now() + $5::float8 * interval '1 s',
  finished_at = CASE WHEN $6 THEN now() END WHERE id = $1";
/// Uses `removals_public_id_key`. $2 and $3: only this tenant's, this organization's.
pub(super) const FIND: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE public_id = $1 AND ($2::int4 IS NULL OR tenant_id = $2) AND ($3::int4 IS NULL OR organization_id = $3)";
/// By primary key backwards; there are few.
pub(super) const LIST: &str = "
SELECT id, public_id, kind, tenant_id, organization_id, object_id, before_id, step, after_id, rows_done, created_at, finished_at
FROM removals WHERE $1::uuid IS NULL OR id < (SELECT r.id FROM removals r WHERE r.public_id = $1) ORDER BY id DESC LIMIT $2";
pub(super) const EVENT_EXISTS: &str = "
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
    ("removals.delete_replayed", DELETE_REPLAYED),
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
