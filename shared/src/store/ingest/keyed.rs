//! Ingest of events that have a key, of order, of idempotency, or both: one transaction of a few
//! statements.
//!
//! **Order.** The order of a key is the order in which its events are acknowledged, whichever process
//! does it. Ids cannot say it (two clocks 40 ms apart invert half of a client's pairs), nor can a
//! sequence alone: a number drawn first may be committed last. So a transaction takes the lock of each
//! of its keys, and draws its numbers in a *later statement*: whoever has the lock sees all that was
//! committed under it before, and draws higher numbers.
//!
//! **Idempotency.** [`CLAIM`] inserts a row for each key that stands for nothing yet, and waits for
//! whoever inserts the same one just now. The *later statement* sees all that was committed meanwhile,
//! and knows by the rows' event ids which events are the first of all their keys: those are inserted,
//! the others are answered by what their keys stand for. Claims that came to nothing are taken back.
//!
//! # Invariants
//! - No deadlock: order locks in ascending order, then key rows in ascending order, then all else.
//! - The locks are held to the end of the commit: rows of an order key become visible in the order of
//!   their numbers, so a worker never sees a successor first.
//! - A key and its event commit together: a crash leaves both or neither.
//! - A row is taken back only if this very transaction claimed it: what an earlier submission, whose
//!   acknowledgement was lost, has committed stays.
//! - All statements are sent at once, and the transaction is never left open by a lost client for
//!   longer than `idle_in_transaction_session_timeout`.

use time::OffsetDateTime;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::batch::KeyColumns;
use super::{Batch, CALL_BUDGET, Ingest, Inserted, inserted};
use crate::domain::idempotency::KeySpace;
use crate::store::StoreError;
use crate::store::pool::within;

/// At most so many events with an order key in one batch: each locks a key, and the server's table of
/// locks has room for some 6,000 by default, over all processes.
pub const MOST_ORDERED: usize = 200;

/// The isolation that the last statement's snapshot depends on, whatever the database's default.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Ascending: `OFFSET 0` keeps the sort below the locks. Each lock is held to the end of the commit.
pub(super) const LOCK_KEYS: &str = "
SELECT pg_advisory_xact_lock(h) FROM (SELECT DISTINCT h FROM unnest($1::int8[]) AS u(h) WHERE h IS NOT NULL ORDER BY h OFFSET 0) x";

/// A row for each key that stands for nothing; of equal keys the first event's. Ascending, so that two
/// processes never wait for each other. Uses `idempotency_keys_pkey`; every row stays locked.
pub(super) const CLAIM: &str = "
INSERT INTO idempotency_keys AS k (tenant_id, key, body_hash, event_id, expires_at)
SELECT DISTINCT ON (u.tenant_id, u.key COLLATE \"C\") u.tenant_id, u.key, u.hash, u.event_id, now() + interval '24 h'
FROM unnest($1::int4[], $2::text[], $3::bytea[], $4::uuid[]) WITH ORDINALITY AS u(tenant_id, key, hash, event_id, ord)
ORDER BY u.tenant_id, u.key COLLATE \"C\", u.ord
ON CONFLICT (tenant_id, key) DO UPDATE
SET body_hash = excluded.body_hash, event_id = excluded.event_id, expires_at = excluded.expires_at, reply = NULL, claim = NULL
WHERE k.expires_at <= now()";

/// As [`super::INSERT`], with numbers in the order of the batch, with the deliveries to ordered
/// endpoints in `ready_ordered`, and without the events that are not the first of their keys. An event
/// that is not inserted leaves a gap in the numbers.
///
/// `held`: what each key stands for now. `lost`: events with a key that stands for another one; what
/// they claimed stands for nothing. `taken`: by the event, what answers instead of it: another event,
/// or a body that is not the same. `again`: its keys stand for events of this batch that are lost.
/// One whose `deliver_before` is over ($27) is answered by its keys, but not inserted.
/// Uses `idempotency_keys_pkey`.
pub(super) const INSERT_KEYED: &str = "
WITH ev AS MATERIALIZED (
  SELECT x.*, CASE WHEN x.order_key IS NOT NULL THEN nextval('order_seq') END AS order_seq FROM (
    SELECT * FROM unnest($1::uuid[], $2::int4[], $3::int4[], $4::timestamptz[], $5::text[], $6::bytea[], $7::int4[], $8::int4[], $18::bytea[], $19::int8[], $22::text[])
      WITH ORDINALITY AS u(id, tenant_id, type_id, deliver_before, channels, payload, first, last, trace_context, order_key, external_id, ord)
    ORDER BY ord OFFSET 0) x),
ver AS MATERIALIZED (
  SELECT t.id FROM unnest($15::int4[], $16::int8[]) AS v(id, version)
  CROSS JOIN LATERAL (SELECT t.id FROM tenants t WHERE t.id = v.id AND t.config_version = v.version OFFSET 0) t),
known AS MATERIALIZED (
  SELECT * FROM (SELECT ev.*, ev.tenant_id IN (SELECT id FROM ver) AS known FROM ev OFFSET 0) x WHERE known),
held AS MATERIALIZED (
  SELECT c.ord, c.key, k.event_id, k.same, k.event_id IS NOT DISTINCT FROM ($1::uuid[])[c.ord] AS mine,
         CASE WHEN k.now THEN k.place END AS claimed
  FROM unnest($23::int4[], $24::int4[], $25::text[], $26::bytea[]) AS c(ord, tenant_id, key, hash)
  CROSS JOIN LATERAL (
    SELECT k.ctid AS place, k.xmin = pg_current_xact_id()::xid AS now, k.event_id, k.body_hash = c.hash AS same
    FROM idempotency_keys k WHERE k.tenant_id = c.tenant_id AND k.key = c.key OFFSET 0) k),
others AS MATERIALIZED (
  SELECT ord, key, event_id, same AND event_id IS NOT NULL AS same FROM held WHERE NOT mine AND ord IN (SELECT ord FROM known)),
lost AS MATERIALIZED (SELECT ($1::uuid[])[ord] AS id FROM others),
taken AS MATERIALIZED (
  SELECT DISTINCT ON (ord) ord, event_id, key, same, open FROM (
    SELECT o.*, coalesce(o.event_id IN (SELECT id FROM lost), false) AS open FROM others o OFFSET 0) x
  ORDER BY ord, open, key COLLATE \"C\"),
again AS MATERIALIZED (SELECT ord FROM taken WHERE open),
fresh AS MATERIALIZED (
  SELECT * FROM (SELECT known.*, known.ord IN (SELECT ord FROM taken) AS taken FROM known OFFSET 0) x
  WHERE NOT taken AND (deliver_before IS NULL OR deliver_before > $27)),
made AS (
  INSERT INTO events (id, tenant_id, type_id, deliver_before, order_key, order_seq, external_id, channels, payload, fan_endpoint, fan_delivery, trace_context)
  SELECT id, tenant_id, type_id, deliver_before, order_key, order_seq, external_id, string_to_array(channels, E'\\x1f'), payload,
         ($10::int8[])[first:last], ($12::uuid[])[first:last], trace_context
  FROM fresh ON CONFLICT DO NOTHING RETURNING id),
put AS MATERIALIZED (
  SELECT * FROM (
    SELECT d.*, d.event_id IN (SELECT id FROM made) AS put,
           (ARRAY(SELECT order_seq FROM ev ORDER BY ord))[d.event_ord] AS order_seq
    FROM unnest($9::uuid[], $10::int8[], $11::int2[], $12::uuid[], $13::int2[], $14::int4[], $17::timestamptz[], $20::int8[], $21::int4[])
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
  SELECT tenant_id, id, endpoint_id, event_id, 7, reason FROM put WHERE reason <> 0),
settled AS MATERIALIZED (
  SELECT ord, event_id FROM taken WHERE same AND NOT ord IN (SELECT ord FROM again)),
taken_back AS (
  DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY(
    SELECT claimed FROM held WHERE mine AND claimed IS NOT NULL
      AND NOT ord IN (SELECT ord FROM fresh) AND NOT ord IN (SELECT ord FROM settled)))),
passed_on AS (
  UPDATE idempotency_keys k
  SET event_id = (SELECT s.event_id FROM held h JOIN settled s ON s.ord = h.ord WHERE h.mine AND h.claimed = k.ctid LIMIT 1)
  WHERE ctid = ANY (ARRAY(
    SELECT claimed FROM held WHERE mine AND claimed IS NOT NULL AND ord IN (SELECT ord FROM settled))))
SELECT clock_timestamp(),
       ARRAY(SELECT ord::int4 FROM ev WHERE NOT tenant_id IN (SELECT id FROM ver) OR ord IN (SELECT ord FROM again) ORDER BY ord),
       ARRAY(SELECT ord::int4 FROM fresh WHERE NOT id IN (SELECT id FROM made) ORDER BY ord),
       ARRAY(SELECT ord::int4 FROM settled ORDER BY ord),
       ARRAY(SELECT event_id FROM settled ORDER BY ord),
       ARRAY(SELECT ord::int4 FROM taken WHERE NOT same AND NOT ord IN (SELECT ord FROM again) ORDER BY ord),
       ARRAY(SELECT key FROM taken WHERE NOT same AND NOT ord IN (SELECT ord FROM again) ORDER BY ord),
       ARRAY(SELECT ord::int4 FROM known WHERE deliver_before <= $27 AND NOT ord IN (SELECT ord FROM taken) ORDER BY ord)";

impl Ingest {
    /// Inserts a batch made by [`Batch::keyed`]; when this returns `Ok` it is durable (D2).
    ///
    /// # Errors
    /// As [`Ingest::insert`], and [`StoreError::Contention`] when another process holds a key for
    /// longer than the lock timeout.
    pub async fn insert_keyed(
        &self,
        batch: &Batch<'_>,
        now: OffsetDateTime,
    ) -> Result<Inserted, StoreError> {
        let (tenants, versions): (Vec<i32>, Vec<i64>) = batch.versions.iter().unzip();
        let Some(keys) = &batch.keys else {
            return Err(StoreError::Other("a batch without keys".to_owned()));
        };
        let mut columns = batch.columns(&tenants, &versions).to_vec();
        columns.extend(keys.columns());
        columns.push(&now);
        let order: [&(dyn ToSql + Sync); 1] = [&keys.order_keys];
        let claims = keys.claim();
        let transaction = async {
            // Polled in this order, so sent in this order, and at once. After a failed statement the
            // server skips the others, and COMMIT rolls back *successfully*: so each answer counts.
            let (begun, locked, claimed, row, committed) = futures_util::join!(
                self.session.batch_execute(BEGIN),
                async {
                    if keys.order_keys.iter().any(Option::is_some) {
                        self.session.query(&self.lock_keys, &order).await?;
                    }
                    Ok::<_, tokio_postgres::Error>(())
                },
                async {
                    if !keys.claim_keys.is_empty() {
                        self.session.execute(&self.claim, &claims).await?;
                    }
                    Ok::<_, tokio_postgres::Error>(())
                },
                self.session.query_one(&self.insert_keyed, &columns),
                self.session.batch_execute("COMMIT"),
            );
            begun?;
            locked?;
            claimed?;
            let row = row?;
            committed?;
            Ok::<_, tokio_postgres::Error>(row)
        };
        settled(&within(CALL_BUDGET, transaction).await?)
    }
}

impl KeyColumns<'_> {
    /// The parameters of [`INSERT_KEYED`] that [`super::INSERT`] does not have, in their order.
    fn columns(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.order_keys,
            &self.delivery_keys,
            &self.delivery_positions,
            &self.external_ids,
            &self.claim_positions,
            &self.claim_tenants,
            &self.claim_keys,
            &self.claim_fingerprints,
        ]
    }

    /// The parameters of [`CLAIM`].
    fn claim(&self) -> [&(dyn ToSql + Sync); 4] {
        [
            &self.claim_tenants,
            &self.claim_keys,
            &self.claim_fingerprints,
            &self.claim_events,
        ]
    }
}

fn settled(row: &Row) -> Result<Inserted, StoreError> {
    let events: Vec<Uuid> = row.try_get(4)?;
    let keys: Vec<&str> = row.try_get(6)?;
    let spaces = keys.into_iter().filter_map(KeySpace::of);
    Ok(Inserted {
        replays: super::positions(row.try_get(3)?)
            .into_iter()
            .zip(events)
            .collect(),
        late: super::positions(row.try_get(7)?),
        mismatches: super::positions(row.try_get(5)?)
            .into_iter()
            .zip(spaces)
            .collect(),
        ..inserted(row)?
    })
}
