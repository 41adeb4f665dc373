//! Closing: the live rows of an endpoint that takes deliveries no more.

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::Statements;
use crate::domain::delivery::CloseReason;
use crate::ids::{EndpointKey, Epoch, Incarnation, Slot};
use crate::store::StoreError;

/// Live rows of one endpoint, 1,000 of each table at a time, into `closed`. Locks and fence as in [`RECORD`], and
/// SHARE on the slot: one that is handed over meanwhile is not ours any more. Not if the endpoint is
/// enabled (again): a snapshot that shows what was accepted for it since shows its new state as well.
pub(super) const CLOSE: &str = "
WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 FOR KEY SHARE),
ok AS MATERIALIZED (
  SELECT s.slot FROM slots s JOIN me ON me.id = s.owner WHERE s.slot = $2 AND s.epoch = $3
    AND NOT EXISTS (SELECT 1 FROM endpoints e WHERE e.id = $4 AND e.state = 1)
  FOR SHARE OF s),
c1 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id <> ALL ($5::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1000) r),
c2 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM retry r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id <> ALL ($5::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1000) r),
c3 AS MATERIALIZED (
  SELECT r.c FROM ok CROSS JOIN LATERAL (
    SELECT ctid AS c FROM ready_ordered r WHERE r.slot = ok.slot AND r.endpoint_id = $4 AND r.id <> ALL ($5::uuid[])
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1000) r),
d1 AS (DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT c FROM c1)) RETURNING tenant_id, id, endpoint_id, event_id, attempts_made),
d2 AS (DELETE FROM retry WHERE ctid = ANY (ARRAY(SELECT c FROM c2)) RETURNING tenant_id, id, endpoint_id, event_id, attempts_made),
d3 AS (DELETE FROM ready_ordered WHERE ctid = ANY (ARRAY(SELECT c FROM c3)) RETURNING tenant_id, id, endpoint_id, event_id, attempts_made),
cl AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason, attempts_made)
  SELECT tenant_id, id, endpoint_id, event_id, $6, $7, attempts_made FROM (SELECT * FROM d1 UNION ALL SELECT * FROM d2 UNION ALL SELECT * FROM d3) d
  RETURNING 1)
SELECT (SELECT count(*) FROM cl), (SELECT count(*) FROM ok)";

/// Closes up to 3,000 live rows of an endpoint, but for `except` (on the wire). Returns how many.
///
/// # Errors
/// [`StoreError::NotOwner`] when the slot is not this incarnation's any more, or the endpoint takes
/// deliveries.
pub async fn close(
    client: &Client,
    sql: &Statements,
    (incarnation, slot, epoch): (Incarnation, Slot, Epoch),
    (endpoint, reason): (EndpointKey, CloseReason),
    except: &[Uuid],
) -> Result<u64, StoreError> {
    let (status, code) = (reason.status().code(), reason.code());
    let params: [&(dyn ToSql + Sync); 7] = [
        &incarnation.0,
        &slot.0,
        &epoch.0,
        &endpoint.0,
        &except,
        &status,
        &code,
    ];
    let row = client.query_one(&sql.close, &params).await?;
    if row.try_get::<_, i64>(1)? == 0 {
        return Err(StoreError::NotOwner);
    }
    Ok(u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0))
}
