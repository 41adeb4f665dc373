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

/// A tenant's deliveries after $2, and whether their events are from $4 (included) to $5 (excluded).
macro_rules! walk {
    ($table:literal, $id:literal) => {
        concat!(
            "SELECT ",
            $id,
            ", event_id >= $4 AND event_id < $5 FROM ",
            $table,
            " WHERE tenant_id = $1 AND ",
            $id,
            " > $2 ORDER BY tenant_id, ",
            $id,
            " LIMIT $3"
        )
    };
}

/// Bytes that are kept of a tenant's events from $4 to $5. `$held`: what the index asks for.
macro_rules! empty_batch {
    ($table:literal, $event:literal, $bytes:literal, $held:literal) => {
        concat!(
            "WITH last AS MATERIALIZED (
               SELECT id FROM (SELECT ",
            $event,
            " AS id FROM ",
            $table,
            " WHERE tenant_id = $1 AND ",
            $event,
            " > $2 AND ",
            $event,
            " >= $4 AND ",
            $event,
            " < $5",
            $held,
            "
                 ORDER BY tenant_id, ",
            $event,
            " LIMIT $3) b ORDER BY id DESC LIMIT 1),
             gone AS (
               UPDATE ",
            $table,
            " SET ",
            $bytes,
            " = '' WHERE tenant_id = $1 AND ",
            $event,
            " > $2 AND ",
            $event,
            " >= $4
                 AND ",
            $event,
            " <= (SELECT id FROM last) AND octet_length(",
            $bytes,
            ") > 0",
            $held,
            " RETURNING 1)
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
pub(super) const EMPTY_EVENTS: &str = empty_batch!("events", "id", "payload", "");
pub(super) const EMPTY_EVENTS_KEPT: &str = empty_batch!("events_kept", "id", "payload", "");
/// Replies that are given again and repeat what a receiver answered. Uses `idempotency_keys_reply`.
pub(super) const EMPTY_REPLIES: &str = empty_batch!(
    "idempotency_keys",
    "event_id",
    "reply",
    " AND reply IS NOT NULL"
);
pub(super) const WALK_READY: &str = walk!("ready", "id");
pub(super) const WALK_RETRY: &str = walk!("retry", "id");
pub(super) const WALK_READY_ORDERED: &str = walk!("ready_ordered", "id");
pub(super) const WALK_DEAD_LETTERS: &str = walk!("dead_letters", "id");
pub(super) const WALK_ATTEMPTS: &str = walk!("attempts", "delivery_id");
/// All deliveries that an event ever had: those it was accepted with, and those that were made later. As [`walk!`], by
/// `events_pkey`, `events_kept_pkey`, and a probe of `replayed_event` for each endpoint of the tenant: nothing here
/// grows with what else the tenant has sent.
pub(super) const OF_EVENT: &str = "
SELECT id, true FROM (
  SELECT unnest(fan_delivery) AS id FROM events WHERE tenant_id = $1 AND id >= $4 AND id < $5
  UNION SELECT unnest(fan_delivery) FROM events_kept WHERE tenant_id = $1 AND id >= $4 AND id < $5
  UNION SELECT r.delivery_id FROM endpoints e CROSS JOIN LATERAL (
    SELECT r.delivery_id FROM replayed r WHERE r.endpoint_id = e.id AND r.event_id >= $4 AND r.event_id < $5 OFFSET 0) r
  WHERE e.tenant_id = $1) d
WHERE id > $2 ORDER BY id LIMIT $3";
/// Where the rows of these deliveries (`$ids`) are, each by a probe of its own: a plan made for `id = ANY (…)` while the
/// table was empty walks all of the tenant's.
macro_rules! probes {
    ($table:literal, $ids:literal) => {
        concat!(
            "ctid = ANY (ARRAY(SELECT r.c FROM ",
            $ids,
            " d(id) CROSS JOIN LATERAL (
               SELECT ctid AS c FROM ",
            $table,
            " WHERE tenant_id = $1 AND id = d.id OFFSET 0) r))"
        )
    };
}

/// Those of these deliveries ($2) that live, closed; their owners are told to load anew. What is on the wire is left to
/// its worker. Uses the `…_by_id` indexes.
pub(super) const CLOSE: &str = concat!(
    "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
still AS MATERIALIZED (SELECT d.id FROM unnest($2::uuid[]) d(id) WHERE NOT d.id IN (SELECT id FROM flying)),
a AS (DELETE FROM ready WHERE ",
    probes!("ready", "still"),
    " RETURNING slot, id, endpoint_id, event_id, attempts_made),
b AS (DELETE FROM retry WHERE ",
    probes!("retry", "still"),
    " RETURNING slot, id, endpoint_id, event_id, attempts_made),
c AS (DELETE FROM ready_ordered WHERE ",
    probes!("ready_ordered", "still"),
    " RETURNING slot, id, endpoint_id, event_id, attempts_made),
gone AS (SELECT * FROM a UNION ALL SELECT * FROM b UNION ALL SELECT * FROM c),
shut AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT $1, id, endpoint_id, event_id, $3, $4, attempts_made FROM gone),
told AS (
  INSERT INTO commands (slot, tenant_id, endpoint_id, verb)
  SELECT DISTINCT CASE WHEN slot < 0 THEN slot + 256 ELSE slot END, $1, endpoint_id, 1::int2 FROM gone)
SELECT count(*) FROM gone"
);
/// Of a class that is never revived. Uses `dead_letters_pkey`.
pub(super) const RECLASS: &str = concat!(
    "UPDATE dead_letters SET class = $3, reason = 'the payload was expunged' WHERE class <> $3 AND ",
    probes!("dead_letters", "unnest($2::uuid[])"),
);
/// Of one delivery: its attempts may be in many partitions, in each of which this is one probe of `attempts_pkey`.
pub(super) const EMPTY_ATTEMPTS: &str = "
UPDATE attempts SET response = NULL
WHERE tenant_id = $1 AND delivery_id = $2 AND started_at >= $3 AND response IS NOT NULL";

/// What still waits for a deleted endpoint, also what a pause holds back. By primary keys.
pub(super) const LIVE_OF_ENDPOINT: &str = "
SELECT r.id FROM endpoints e CROSS JOIN LATERAL (VALUES (e.slot), ((e.slot - 256)::int2)) s(slot)
CROSS JOIN LATERAL (
  SELECT id FROM ready WHERE slot = s.slot AND endpoint_id = e.id
  UNION ALL SELECT id FROM retry WHERE slot = s.slot AND endpoint_id = e.id
  UNION ALL SELECT id FROM ready_ordered WHERE slot = s.slot AND endpoint_id = e.id) r
WHERE e.public_id = $1 AND e.state = 3 LIMIT $2";
/// What is secret of a deleted endpoint. Its row stays for its history, with its URL and settings (`redact` holds on).
pub(super) const WIPE_ENDPOINT: &str = "
WITH e AS (
  UPDATE endpoints SET sealed_headers = NULL, sealed_client_certificate = NULL WHERE public_id = $1 AND state = 3 RETURNING id),
s AS (DELETE FROM endpoint_secrets WHERE endpoint_id IN (SELECT id FROM e) RETURNING 1),
p AS (DELETE FROM endpoint_key_pairs WHERE endpoint_id IN (SELECT id FROM e) RETURNING 1)
SELECT (SELECT count(*) FROM e) + (SELECT count(*) FROM s) + (SELECT count(*) FROM p)";

/// Endpoints of a tenant, and what hangs on them.
pub(super) const DELETE_ENDPOINTS: &str = "
WITH batch AS MATERIALIZED (SELECT id FROM endpoints WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 200),
s AS (DELETE FROM endpoint_secrets WHERE endpoint_id IN (SELECT id FROM batch)),
p AS (DELETE FROM endpoint_key_pairs WHERE endpoint_id IN (SELECT id FROM batch)),
u AS (DELETE FROM endpoint_urls WHERE endpoint_id IN (SELECT id FROM batch)),
r AS (DELETE FROM endpoint_runtime WHERE endpoint_id IN (SELECT id FROM batch)),
n AS (DELETE FROM notices WHERE endpoint_id IN (SELECT id FROM batch)),
f AS (DELETE FROM endpoint_stats WHERE endpoint_id IN (SELECT id FROM batch)),
h AS (DELETE FROM endpoint_stats_hours WHERE endpoint_id IN (SELECT id FROM batch)),
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
  AND NOT EXISTS (SELECT FROM endpoints WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM replays WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM idempotency_keys WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM event_types WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM event_counts WHERE tenant_id = $1) AND NOT EXISTS (SELECT FROM api_keys WHERE tenant_id = $1)
  AND NOT EXISTS (SELECT FROM pauses WHERE tenant_id = $1)";
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
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id, before_id)
VALUES ($1, $2, $3, coalesce($4, (SELECT organization_id FROM tenants WHERE id = $3)), $5, $6)
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
FROM removals
WHERE id < CASE WHEN $1::uuid IS NULL THEN 9223372036854775807 ELSE (SELECT r.id FROM removals r WHERE r.public_id = $1) END
ORDER BY id DESC LIMIT $2";
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
    ("removals.empty_events", EMPTY_EVENTS),
    ("removals.empty_events_kept", EMPTY_EVENTS_KEPT),
    ("removals.empty_replies", EMPTY_REPLIES),
    ("removals.walk_ready", WALK_READY),
    ("removals.walk_retry", WALK_RETRY),
    ("removals.walk_ready_ordered", WALK_READY_ORDERED),
    ("removals.walk_dead_letters", WALK_DEAD_LETTERS),
    ("removals.walk_attempts", WALK_ATTEMPTS),
    ("removals.of_event", OF_EVENT),
    ("removals.close", CLOSE),
    ("removals.reclass", RECLASS),
    ("removals.empty_attempts", EMPTY_ATTEMPTS),
    ("removals.live_of_endpoint", LIVE_OF_ENDPOINT),
    ("removals.wipe_endpoint", WIPE_ENDPOINT),
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
