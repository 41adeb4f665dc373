//! Since when the oldest delivery waits, and for what: of some slots, or of a tenant.
//!
//! # Invariants
//! - Bounded: some probes per endpoint that has anything waiting and per line ([`MOST_LINES`] of an endpoint), however
//!   many rows wait.
//! - S3: what is asked for a tenant names it.
//!
//! # What holds a delivery back
//! The queues say what waits, and `endpoint_runtime` says which breakers are open. That a receiver wants to be left
//! alone (`Retry-After`) is known to the slot's owner only; here it is seen by the last attempt, which was refused
//! with 429 or 503 and is to be repeated later.

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::StoreError;
use crate::ids::{Slot, TenantKey, created_at};

/// Lines of one ordered endpoint that are looked at.
const MOST_LINES: i32 = 1_000;
/// An endpoint with a rate limit that was sent to this long ago, in seconds, waits for its limit and for nothing else.
const PACED_WITHIN: f64 = 120.0;

/// The oldest by reason, out of the first rows of endpoints (`n`, `t`) and of lines (`l`). Per endpoint one probe of
/// `endpoints_pkey`, of `endpoint_runtime_pkey` and of `attempts_endpoint`, per line one of `ready_ordered_pkey` and of
/// `dead_letters_order`. Rows that a pause holds back have another slot. No lock.
///
/// Since when a row waits: one that was not tried since its id ($2 is now), another since it was due. `g` is what waits in
/// an endpoint's lines: rows that may go by their place, rows behind them, and rows behind a dead letter. $3 is
/// [`PACED_WITHIN`], $4 [`MOST_LINES`].
macro_rules! oldest {
    ($first:literal) => {
        concat!(
            "
WITH RECURSIVE ",
            $first,
            "
g AS (
  SELECT l.slot, l.endpoint_id, h.behind, h.held, (array_agg(h.id ORDER BY h.id) FILTER (WHERE h.due_at IS NULL))[1] AS id,
         min(h.due_at) AS due_at
  FROM l CROSS JOIN LATERAL (
    SELECT l.id, l.due_at, false AS behind, EXISTS (
      SELECT FROM dead_letters d WHERE d.endpoint_id = l.endpoint_id AND d.order_key = l.order_key
        AND d.replayed_as IS NULL AND d.order_seq < l.order_seq) AS held
    WHERE coalesce(l.due_at <= $2, true)
    UNION ALL
    (SELECT r.id, NULL, true, false FROM ready_ordered r
     WHERE r.slot = l.slot AND r.endpoint_id = l.endpoint_id AND r.order_key = l.order_key
     ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id OFFSET 1 LIMIT 1)) h
  GROUP BY l.slot, l.endpoint_id, h.behind, h.held),
w AS (
  SELECT slot, endpoint_id, id, NULL::timestamptz AS due_at, false AS behind, false AS held FROM n
  UNION ALL SELECT slot, endpoint_id, NULL, due_at, false, false FROM t WHERE due_at <= $2
  UNION ALL SELECT slot, endpoint_id, id, due_at, behind, held FROM g)
SELECT x.reason, (array_agg(x.id ORDER BY x.id) FILTER (WHERE x.id IS NOT NULL))[1], min(x.due_at)
FROM (
  SELECT w.id, w.due_at, CASE WHEN e.broken THEN 2 WHEN e.limited THEN 3 WHEN w.behind OR w.held AND e.blocks THEN 4 ELSE 1 END AS reason
  FROM w CROSS JOIN LATERAL (
    SELECT coalesce(r.breaker, 0) <> 0 AS broken, coalesce(e.settings->>'on_dead_letter' = 'block', false) AS blocks,
           coalesce(r.parked_until > $2, false)
           OR coalesce(e.settings ? 'rate_limit' AND a.started_at >= $2 - $3::float8 * interval '1 s', false)
           OR coalesce(a.status IN (429, 503), false) AND (
             EXISTS (SELECT FROM retry q WHERE q.tenant_id = a.tenant_id AND q.id = a.delivery_id AND q.due_at > $2)
             OR EXISTS (SELECT FROM ready_ordered q WHERE q.tenant_id = a.tenant_id AND q.id = a.delivery_id AND q.due_at > $2))
           AS limited
    FROM endpoints e
    LEFT JOIN endpoint_runtime r ON r.endpoint_id = e.id
    LEFT JOIN LATERAL (
      SELECT a.tenant_id, a.delivery_id, a.started_at, a.status FROM attempts a
      WHERE a.endpoint_id = e.id AND a.started_at >= $2 - interval '1 day'
      ORDER BY a.endpoint_id DESC, a.started_at DESC LIMIT 1) a ON true
    WHERE e.id = w.endpoint_id AND e.slot = w.slot AND e.state = 1 OFFSET 0) e) x
GROUP BY x.reason"
        )
    };
}

/// Loose index scans: of `ready_pkey` and `retry_pkey` one probe per endpoint, of `ready_ordered_pkey` one per line.
const OLDEST_OF_SLOTS: &str = oldest!(
    "n AS (
  SELECT w.slot, f.endpoint_id, f.id FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.id FROM ready r WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f
  UNION ALL
  SELECT n.slot, f.endpoint_id, f.id FROM n CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.id FROM ready r WHERE r.slot = n.slot AND r.endpoint_id > n.endpoint_id
    ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f),
t AS (
  SELECT w.slot, f.endpoint_id, f.due_at FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.due_at FROM retry r WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f
  UNION ALL
  SELECT t.slot, f.endpoint_id, f.due_at FROM t CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.due_at FROM retry r WHERE r.slot = t.slot AND r.endpoint_id > t.endpoint_id
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f),
l AS (
  SELECT w.slot, f.*, 1 AS nth FROM unnest($1::int2[]) w(slot) CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.order_key, r.order_seq, r.id, r.due_at FROM ready_ordered r
    WHERE r.slot = w.slot ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f
  UNION ALL
  SELECT l.slot, f.*, CASE WHEN f.endpoint_id = l.endpoint_id THEN l.nth + 1 ELSE 1 END FROM l CROSS JOIN LATERAL (
    SELECT r.endpoint_id, r.order_key, r.order_seq, r.id, r.due_at FROM ready_ordered r
    WHERE r.slot = l.slot AND (r.endpoint_id, r.order_key)
      > (l.endpoint_id, CASE WHEN l.nth < $4 THEN l.order_key ELSE 9223372036854775807 END)
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f),"
);

/// Index: `endpoints_tenant`; then as in [`OLDEST_OF_SLOTS`], per endpoint of the tenant.
const OLDEST_OF_TENANT: &str = oldest!(
    "n AS (
  SELECT e.slot, e.id AS endpoint_id, f.id FROM endpoints e CROSS JOIN LATERAL (
    SELECT r.id FROM ready r WHERE r.slot = e.slot AND r.endpoint_id = e.id ORDER BY r.slot, r.endpoint_id, r.id LIMIT 1) f
  WHERE e.tenant_id = $1),
t AS (
  SELECT e.slot, e.id AS endpoint_id, f.due_at FROM endpoints e CROSS JOIN LATERAL (
    SELECT r.due_at FROM retry r WHERE r.slot = e.slot AND r.endpoint_id = e.id
    ORDER BY r.slot, r.endpoint_id, r.due_at, r.id LIMIT 1) f
  WHERE e.tenant_id = $1),
l AS (
  SELECT e.slot, e.id AS endpoint_id, f.*, 1 AS nth FROM endpoints e CROSS JOIN LATERAL (
    SELECT r.order_key, r.order_seq, r.id, r.due_at FROM ready_ordered r WHERE r.slot = e.slot AND r.endpoint_id = e.id
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f
  WHERE e.tenant_id = $1
  UNION ALL
  SELECT l.slot, l.endpoint_id, f.*, l.nth + 1 FROM l CROSS JOIN LATERAL (
    SELECT r.order_key, r.order_seq, r.id, r.due_at FROM ready_ordered r
    WHERE r.slot = l.slot AND r.endpoint_id = l.endpoint_id AND r.order_key > l.order_key AND l.nth < $4
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f),"
);

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("oldest.of_slots", OLDEST_OF_SLOTS),
    ("oldest.of_tenant", OLDEST_OF_TENANT),
];

/// Since when the oldest delivery waits, by what it waits for. Not what a pause or a disabled endpoint holds back, nor
/// what is to be tried again later and is not due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Oldest {
    /// Nothing holds it back.
    pub admissible: Option<OffsetDateTime>,
    /// Its endpoint's breaker is not closed.
    pub breaker: Option<OffsetDateTime>,
    /// Its endpoint's rate limit, or the receiver asked to be left alone.
    pub rate_limited: Option<OffsetDateTime>,
    /// One before it with the same ordering key, or that one's dead letter.
    pub ordered: Option<OffsetDateTime>,
}

impl Oldest {
    /// The older of both, for each reason.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let older = |one: Option<OffsetDateTime>, two| one.into_iter().chain(two).min();
        Self {
            admissible: older(self.admissible, other.admissible),
            breaker: older(self.breaker, other.breaker),
            rate_limited: older(self.rate_limited, other.rate_limited),
            ordered: older(self.ordered, other.ordered),
        }
    }
}

/// Since when the oldest delivery of these slots waits, as of `now`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn of_slots(
    client: &impl GenericClient,
    slots: &[Slot],
    now: OffsetDateTime,
) -> Result<Oldest, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let params: [&(dyn ToSql + Sync); 4] = [&slots, &now, &PACED_WITHIN, &MOST_LINES];
    read(&client.query(OLDEST_OF_SLOTS, &params).await?)
}

/// Since when the oldest delivery of a tenant waits, as of `now`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn of_tenant(
    client: &impl GenericClient,
    tenant: TenantKey,
    now: OffsetDateTime,
) -> Result<Oldest, StoreError> {
    let params: [&(dyn ToSql + Sync); 4] = [&tenant.0, &now, &PACED_WITHIN, &MOST_LINES];
    read(&client.query(OLDEST_OF_TENANT, &params).await?)
}

fn read(rows: &[Row]) -> Result<Oldest, StoreError> {
    let mut oldest = Oldest::default();
    for row in rows {
        let made: Option<Uuid> = row.try_get(1)?;
        let due: Option<OffsetDateTime> = row.try_get(2)?;
        let since = made.map(created_at).into_iter().chain(due).min();
        match row.try_get::<_, i32>(0)? {
            2 => oldest.breaker = since,
            3 => oldest.rate_limited = since,
            4 => oldest.ordered = since,
            _ => oldest.admissible = since,
        }
    }
    Ok(oldest)
}
