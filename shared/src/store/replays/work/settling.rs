//! What became of the deliveries that a replay made.

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Held, Statements, StoreError, Sums};
use crate::domain::delivery::CloseReason;

/// Deliveries whose place is looked up in one turn: all that may be outstanding at an endpoint, twice.
const MOST_SETTLED: i64 = 2_000;

/// Where the deliveries are that replays made for an endpoint: 1 waiting, 4 waiting for another attempt, 5 dead,
/// 7 closed; 3 when it is nowhere, which is where a delivered one is. Index: `replay_outstanding_pkey`, the
/// `…_by_id` indexes and primary keys. No lock.
pub(super) const SETTLE: &str = "
SELECT o.delivery_id, o.replay_id, CASE
    WHEN EXISTS (SELECT FROM ready r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 1
    WHEN EXISTS (SELECT FROM retry r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 4
    WHEN EXISTS (SELECT FROM ready_ordered r WHERE r.tenant_id = $2 AND r.id = o.delivery_id) THEN 1
    WHEN EXISTS (SELECT FROM dead_letters d WHERE d.tenant_id = $2 AND d.id = o.delivery_id) THEN 5
    WHEN EXISTS (SELECT FROM closed c WHERE c.tenant_id = $2 AND c.id = o.delivery_id) THEN 7
    ELSE 3 END::int2
FROM (SELECT * FROM replay_outstanding WHERE endpoint_id = $1 ORDER BY endpoint_id, replay_id, delivery_id LIMIT $3) o";

pub(super) const FORGET: &str = "
DELETE FROM replay_outstanding WHERE endpoint_id = $1 AND replay_id = $2 AND delivery_id = ANY ($3)";

/// Closes what was never tried, and asks the owner to drop what it has in memory. Indexes: the `…_by_id`.
pub(super) const STOP: &str = "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
o AS MATERIALIZED (
  SELECT delivery_id AS id FROM replay_outstanding WHERE endpoint_id = $1 AND replay_id = $2
    AND NOT delivery_id IN (SELECT id FROM flying)),
a AS (DELETE FROM ready WHERE tenant_id = $3 AND id = ANY (ARRAY(SELECT id FROM o)) AND attempts_made = 0
      RETURNING id, event_id),
b AS (DELETE FROM ready_ordered WHERE tenant_id = $3 AND id = ANY (ARRAY(SELECT id FROM o)) AND attempts_made = 0
      RETURNING id, event_id),
gone AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
  SELECT $3, id, $1, event_id, $4, $5 FROM (SELECT * FROM a UNION ALL SELECT * FROM b) x RETURNING 1)
INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT $6, $3, $1, 1 WHERE EXISTS (SELECT FROM gone)";

/// Looks where the deliveries are, and counts those of this part that have ended.
pub(super) async fn settle(
    transaction: &Transaction<'_>,
    sql: &Statements,
    held: &Held,
    sums: &mut Sums,
) -> Result<(), StoreError> {
    let part = held.part;
    let params: [&(dyn ToSql + Sync); 3] = [&part.endpoint.0, &held.tenant.0, &MOST_SETTLED];
    let mut ended: Vec<Uuid> = Vec::new();
    for row in transaction.query(&sql.settle, &params).await? {
        let own = row.try_get::<_, i32>(1)? == part.replay.0;
        let place: i16 = row.try_get(2)?;
        match (place, own) {
            (1 | 4, _) => {
                sums.waiting += usize::from(place == 1);
                sums.outstanding += 1;
                sums.own += usize::from(own);
                continue;
            }
            (_, false) => continue,
            (3, true) => sums.done += 1,
            (5, true) => sums.failed += 1,
            (_, true) => sums.skipped += 1,
        }
        ended.push(row.try_get(0)?);
    }
    sums.settled = ended.len();
    if !ended.is_empty() {
        let params: [&(dyn ToSql + Sync); 3] = [&part.endpoint.0, &part.replay.0, &ended];
        transaction.execute(FORGET, &params).await?;
    }
    Ok(())
}

/// Cancels what was made and never tried.
pub(super) async fn stop(transaction: &Transaction<'_>, held: &Held) -> Result<bool, StoreError> {
    let reason = CloseReason::Cancelled;
    let (status, code) = (reason.status().code(), reason.code());
    let params: [&(dyn ToSql + Sync); 6] = [
        &held.part.endpoint.0,
        &held.part.replay.0,
        &held.tenant.0,
        &status,
        &code,
        &held.slot.0,
    ];
    Ok(transaction.execute(STOP, &params).await? > 0)
}
