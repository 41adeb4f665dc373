//! Ingest of events that have a place in an order: one transaction of two statements.
//!
//! The order of a key is the order in which its events are acknowledged, whichever process does it.
//! Ids cannot say it (two clocks 40 ms apart invert half of a client's pairs), nor can a sequence
//! alone: a number drawn first may be committed last. So a transaction takes the lock of each of its
//! keys, and draws its numbers in a *later statement*: whoever has the lock sees all that was
//! committed under it before, and draws higher numbers.
//!
//! # Invariants
//! - No deadlock: the locks of a batch are taken in ascending order, before anything else.
//! - The lock is held to the end of the commit: rows of a key become visible in the order of their
//!   numbers, so a worker never sees a successor first.
//! - All four statements are sent at once, and the transaction is never left open by a lost client
//!   for longer than `idle_in_transaction_session_timeout`.

use tokio_postgres::types::ToSql;

use super::{Batch, CALL_BUDGET, Ingest, Inserted, inserted};
use crate::store::StoreError;
use crate::store::pool::within;

/// At most so many events in one batch: each locks a key, and the server's table of locks has room
/// for some 6,000 by default, over all processes.
pub const MOST_ORDERED: usize = 200;

/// The isolation that the second statement's snapshot depends on, whatever the database's default.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Ascending: `OFFSET 0` keeps the sort below the locks. Each lock is held to the end of the commit.
pub(super) const LOCK_KEYS: &str = "
SELECT pg_advisory_xact_lock(h) FROM (SELECT DISTINCT h FROM unnest($1::int8[]) AS u(h) ORDER BY h OFFSET 0) x";

/// As [`super::INSERT`], with numbers in the order of the batch, and with the deliveries to ordered
/// endpoints in `ready_ordered`. An event that is not inserted leaves a gap.
pub(super) const INSERT_ORDERED: &str = "
WITH ev AS MATERIALIZED (
  SELECT x.*, nextval('order_seq') AS order_seq FROM (
    SELECT * FROM unnest($1::uuid[], $2::int4[], $3::int4[], $4::timestamptz[], $5::text[], $6::bytea[], $7::int4[], $8::int4[], $18::int8[])
      WITH ORDINALITY AS u(id, tenant_id, type_id, deliver_before, channels, payload, first, last, order_key, ord)
    ORDER BY ord OFFSET 0) x),
ver AS MATERIALIZED (
  SELECT t.id FROM unnest($15::int4[], $16::int8[]) AS v(id, version)
  CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.id = v.id AND t.config_version = v.version OFFSET 0) t),
fresh AS MATERIALIZED (
  SELECT * FROM (SELECT ev.*, ev.tenant_id IN (SELECT id FROM ver) AS known FROM ev OFFSET 0) x WHERE known),
made AS (
  INSERT INTO events (id, tenant_id, type_id, deliver_before, order_key, order_seq, channels, payload, fan_endpoint, fan_delivery)
  SELECT id, tenant_id, type_id, deliver_before, order_key, order_seq, string_to_array(channels, E'\\x1f'), payload,
         ($10::int8[])[first:last], ($12::uuid[])[first:last]
  FROM fresh ON CONFLICT DO NOTHING RETURNING id),
put AS MATERIALIZED (
  SELECT * FROM (
    SELECT d.*, d.event_id IN (SELECT id FROM made) AS put,
           (ARRAY(SELECT order_seq FROM ev ORDER BY ord))[d.event_ord] AS order_seq
    FROM unnest($9::uuid[], $10::int8[], $11::int2[], $12::uuid[], $13::int2[], $14::int4[], $17::timestamptz[], $19::int8[], $20::int4[])
      AS d(event_id, endpoint_id, slot, id, reason, tenant_id, deliver_before, order_key, event_ord) OFFSET 0) x WHERE put),
live AS (
  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id, deliver_before)
  SELECT slot, tenant_id, endpoint_id, id, event_id, deliver_before FROM put WHERE reason = 0 AND order_key IS NULL),
lined_up AS (
  INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id, deliver_before)
  SELECT slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id, deliver_before
  FROM put WHERE reason = 0 AND order_key IS NOT NULL),
skipped AS (
  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
  SELECT tenant_id, id, endpoint_id, event_id, 7, reason FROM put WHERE reason <> 0)
SELECT clock_timestamp(),
       ARRAY(SELECT ord::int4 FROM ev WHERE NOT tenant_id IN (SELECT id FROM ver)),
       ARRAY(SELECT ord::int4 FROM fresh WHERE NOT id IN (SELECT id FROM made))";

impl Ingest {
    /// Inserts a batch whose events all have an order key; when this returns `Ok` it is durable (D2).
    ///
    /// # Errors
    /// As [`Ingest::insert`], and [`StoreError::Contention`] when another process holds a key for
    /// longer than the lock timeout.
    pub async fn insert_ordered(&self, batch: &Batch<'_>) -> Result<Inserted, StoreError> {
        let (tenants, versions): (Vec<i32>, Vec<i64>) = batch.versions.iter().unzip();
        debug_assert_eq!(
            batch.order.keys.len(),
            batch.ids.len(),
            "not an ordered batch"
        );
        let keys: [&(dyn ToSql + Sync); 1] = [&batch.order.keys];
        let mut columns = batch.columns(&tenants, &versions).to_vec();
        columns.extend([
            &batch.order.keys as &(dyn ToSql + Sync),
            &batch.order.delivery_keys,
            &batch.order.delivery_positions,
        ]);
        let transaction = async {
            // Polled in this order, so sent in this order, and at once. After a failed statement the
            // server skips the others, and COMMIT rolls back *successfully*: so each answer counts.
            let (begun, locked, row, committed) = futures_util::join!(
                self.session.batch_execute(BEGIN),
                self.session.query(&self.lock_keys, &keys),
                self.session.query_one(&self.insert_ordered, &columns),
                self.session.batch_execute("COMMIT"),
            );
            begun?;
            locked?;
            let row = row?;
            committed?;
            Ok::<_, tokio_postgres::Error>(row)
        };
        inserted(&within(CALL_BUDGET, transaction).await?)
    }
}
