//! Expiry: what is too old to be sent, behind an open breaker too. The life of a delivery is bounded (D8).

use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::record::fingerprint;
use crate::domain::attempt::Outcome;
use crate::domain::delivery::DeadLetterClass;
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot};
use crate::store::StoreError;

/// Live rows of one endpoint into `dead_letters`, up to 1,000 of each table and cause. Locks and fence
/// as in `CLOSE`.
///
/// By age: `ready_pkey` is in the order of ids, so what is not old costs nothing. `retry_pkey` and
/// `ready_ordered_pkey` hold the id behind other columns: the endpoint's entries are walked, but no row is
/// visited for it (1M entries: 60 ms; an endpoint may have 100k). `retry_by_id` would be in order, but walks
/// what the tenant's other endpoints have waiting. By date: the three partial indexes.
pub(super) const EXPIRE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT s.slot FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = $2 AND s.epoch = $3 FOR SHARE OF s),
c1 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id < $5 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1000) r
  UNION ALL
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.deliver_before <= $6 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.deliver_before LIMIT 1000) r),
c2 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM retry r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id < $5 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1000) r
  UNION ALL
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM retry r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.deliver_before <= $6 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.deliver_before LIMIT 1000) r),
c3 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready_ordered r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id < $5 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1000) r
  UNION ALL
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready_ordered r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.deliver_before <= $6 AND r.id <> ALL ($7::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.deliver_before LIMIT 1000) r),
d1 AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT c FROM c1))
  RETURNING tenant_id, id, endpoint_id, event_id, attempts_made, kind, deliver_before, NULL::int2 AS status, NULL::int8 AS order_key, NULL::int8 AS order_seq),
d2 AS (DELETE FROM retry WHERE ctid = ANY (ARRAY(SELECT c FROM c2))
  RETURNING tenant_id, id, endpoint_id, event_id, attempts_made, kind, deliver_before, last_status, NULL::int8, NULL::int8),
d3 AS (DELETE FROM ready_ordered WHERE ctid = ANY (ARRAY(SELECT c FROM c3))
  RETURNING tenant_id, id, endpoint_id, event_id, attempts_made, kind, deliver_before, NULL::int2, order_key, order_seq),
dd AS (
  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind, root_id,
                            order_key, order_seq)
  SELECT tenant_id, id, endpoint_id, event_id, $8, $9, status,
         CASE WHEN deliver_before <= $6 THEN 'its deliver_before passed before it was delivered'
              ELSE 'it was older than the endpoint''s max_age_seconds allow' END,
         $10::int8 + coalesce(status, 0), attempts_made, kind,
         CASE WHEN kind = 0 THEN id ELSE coalesce(
           (SELECT d.root_id FROM dead_letters d WHERE d.tenant_id = g.tenant_id AND d.replayed_as = g.id LIMIT 1), id) END,
         order_key, order_seq
  FROM (SELECT * FROM d1 UNION ALL SELECT * FROM d2 UNION ALL SELECT * FROM d3) g RETURNING 1)
SELECT (SELECT count(*) FROM dd), (SELECT count(*) FROM ok)";

/// Makes dead letters of class *expired* of an endpoint's live rows that were made before `older_than`
/// (ids below it), or whose own end of life is `now` or earlier, but for `except` (on the wire). Returns
/// how many: some thousands at most, so call again until there are none.
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more (D3).
pub async fn expire(
    client: &Client,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    endpoint: EndpointKey,
    (older_than, now): (Uuid, OffsetDateTime),
    except: &[Uuid],
) -> Result<u64, StoreError> {
    let (class, outcome) = (DeadLetterClass::Expired, Outcome::Expired);
    let params: [&(dyn ToSql + Sync); 10] = [
        &incarnation.0,
        &slot.0,
        &epoch.0,
        &endpoint.0,
        &older_than,
        &now,
        &except,
        &class.code(),
        &outcome.code(),
        &fingerprint(class, outcome, None),
    ];
    let row = client.query_one(EXPIRE, &params).await?;
    if row.try_get::<_, i64>(1)? == 0 {
        return Err(StoreError::NotOwner);
    }
    Ok(u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0))
}
