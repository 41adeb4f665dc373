//! What one worker tells of the whole installation: since when deliveries wait and for what, dead letters, breakers, the
//! database's horizon.
//!
//! Not here: how many deliveries wait, which the backlog job counts for its limits (`backlog`), and who is slow
//! (`stats`). Not a tenant's own figures (`pipeline`).
//!
//! # Invariants
//! - Bounded: [`oldest`] makes some probes per endpoint that has anything waiting and per line ([`MOST_LINES`] of an
//!   endpoint), however many rows wait; dead letters are counted in ranges of pages, as many as the caller has time for.
//! - Nothing of a tenant leaves: only counts and instants.
//!
//! # What holds a delivery back
//! The queues say what waits, and `endpoint_runtime` says which breakers are open. That a receiver wants to be left
//! alone (`Retry-After`) is known to the slot's owner only; here it is seen by the last attempt, which was refused
//! with 429 or 503 and is to be repeated later.

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::StoreError;
use crate::domain::delivery::DeadLetterClass;
use crate::ids::{Slot, created_at};

/// Lines of one ordered endpoint that are looked at.
const MOST_LINES: i32 = 1_000;
/// An endpoint with a rate limit that was sent to this long ago, in seconds, waits for its limit and for nothing else.
const PACED_WITHIN: f64 = 120.0;
/// Pages (8 KiB) of one range of dead letters: some 60,000 rows.
const RANGE_PAGES: i64 = 1_024;
/// How many classes there are.
pub const CLASSES: usize = DeadLetterClass::ALL.len();

/// Loose index scans: of `ready_pkey` and `retry_pkey` one probe per endpoint, of `ready_ordered_pkey` two per line, with
/// one of `dead_letters_order`; then per endpoint one of `endpoints_pkey`, of `endpoint_runtime_pkey` and of
/// `attempts_endpoint`. Rows that a pause holds back have another slot. No lock.
///
/// Since when a row waits: one that was not tried since its id ($2 is now), another since it was due. `n` and `t` are the
/// first rows of endpoints, `l` the first rows of lines, `g` what waits in an endpoint's lines: rows that may go by their
/// place, rows behind them, and rows behind a dead letter.
const OLDEST: &str = "
WITH RECURSIVE n AS (
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
    ORDER BY r.slot, r.endpoint_id, r.order_key, r.order_seq, r.id LIMIT 1) f),
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
GROUP BY x.reason";

/// Reads no rows.
const DEAD_LETTER_PAGES: &str =
    "SELECT pg_relation_size('dead_letters') / current_setting('block_size')::int8";

/// Those that were not replayed, in a range of pages (TID range scan, whatever the planner believes of the table).
const DEAD_LETTERS: &str = "
SELECT class, count(*) FROM dead_letters
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid AND replayed_as IS NULL GROUP BY class";

/// Enabled endpoints whose breaker is not closed, and those of them whose next probe is due. Index:
/// `endpoint_runtime_awake`, then `endpoints_pkey`.
const BREAKERS: &str = "
SELECT count(*), count(*) FILTER (WHERE coalesce(r.next_probe_at <= $1, true)) FROM endpoint_runtime r
CROSS JOIN LATERAL (SELECT FROM endpoints e WHERE e.id = r.endpoint_id AND e.state = 1 OFFSET 0) e
WHERE r.breaker <> 0";

/// Reads the table, in the order of its pages.
const ENABLED: &str = "SELECT count(*) FROM endpoints WHERE ctid >= '(0,0)'::tid AND state = 1";

/// Reads the table, which has a row per worker.
const IN_FLIGHT: &str =
    "SELECT coalesce(sum(cardinality(in_flight)), 0)::int8 FROM workers WHERE expires_at > now()";

/// Reads no table. What keeps VACUUM from cleaning this database: transactions and snapshots of sessions (not of VACUUM
/// itself), prepared transactions, replicas. A role without `pg_read_all_stats` sees its own sessions only, and the rest.
const HORIZON: &str = "
WITH s AS (
  SELECT greatest(age(backend_xmin), age(backend_xid)) AS age, xact_start AS began FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
    AND backend_type <> 'autovacuum worker' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  UNION ALL
  SELECT age(transaction), prepared FROM pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT age(xmin), NULL FROM pg_replication_slots WHERE xmin IS NOT NULL)
SELECT n.next, n.next - coalesce((SELECT max(age) FROM s), 0),
       coalesce(extract(epoch FROM clock_timestamp() - (SELECT min(began) FROM s)), 0)::float8
FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next) n";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("gauges.oldest", OLDEST),
    ("gauges.dead_letter_pages", DEAD_LETTER_PAGES),
    ("gauges.dead_letters", DEAD_LETTERS),
    ("gauges.breakers", BREAKERS),
    ("gauges.enabled", ENABLED),
    ("gauges.in_flight", IN_FLIGHT),
    ("gauges.horizon", HORIZON),
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
pub async fn oldest(
    client: &Client,
    slots: &[Slot],
    now: OffsetDateTime,
) -> Result<Oldest, StoreError> {
    let slots: Vec<i16> = slots.iter().map(|slot| slot.0).collect();
    let params: [&(dyn ToSql + Sync); 4] = [&slots, &now, &PACED_WITHIN, &MOST_LINES];
    let mut oldest = Oldest::default();
    for row in client.query(OLDEST, &params).await? {
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

/// How many ranges [`dead_letters`] counts.
///
/// # Errors
/// Any [`StoreError`].
pub async fn dead_letter_ranges(client: &Client) -> Result<usize, StoreError> {
    let pages: i64 = client.query_one(DEAD_LETTER_PAGES, &[]).await?.try_get(0)?;
    let ranges = u64::try_from(pages)
        .unwrap_or(0)
        .div_ceil(RANGE_PAGES.unsigned_abs());
    Ok(usize::try_from(ranges).unwrap_or(usize::MAX))
}

/// Dead letters in one range of the table that were not replayed, in the order of [`DeadLetterClass::ALL`].
///
/// # Errors
/// Any [`StoreError`].
pub async fn dead_letters(client: &Client, range: usize) -> Result<[u64; CLASSES], StoreError> {
    let first = i64::try_from(range)
        .unwrap_or(i64::MAX)
        .saturating_mul(RANGE_PAGES);
    let (from, to) = (
        format!("({first},0)"),
        format!("({},0)", first.saturating_add(RANGE_PAGES)),
    );
    let mut counts = [0; CLASSES];
    for row in client.query(DEAD_LETTERS, &[&from, &to]).await? {
        let class = DeadLetterClass::try_from(row.try_get::<_, i16>(0)?)?;
        let count = u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or(0);
        for (known, counted) in DeadLetterClass::ALL.iter().zip(&mut counts) {
            if *known == class {
                *counted = count;
            }
        }
    }
    Ok(counts)
}

/// Enabled endpoints by their breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breakers {
    /// Nothing is held back.
    pub closed: u64,
    /// Closed to all until a probe is due.
    pub open: u64,
    /// A probe is due or on the wire.
    pub half_open: u64,
}

/// Counts enabled endpoints by their breaker, as of `now`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn breakers(client: &Client, now: OffsetDateTime) -> Result<Breakers, StoreError> {
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    let row = client.query_one(BREAKERS, &[&now]).await?;
    let (not_closed, half_open) = (count(row.try_get(0)?), count(row.try_get(1)?));
    let enabled = count(client.query_one(ENABLED, &[]).await?.try_get(0)?);
    Ok(Breakers {
        closed: enabled.saturating_sub(not_closed),
        open: not_closed.saturating_sub(half_open),
        half_open,
    })
}

/// Deliveries that living workers list as on the wire: those under way for over 500 ms, at most 2,000 of a worker.
///
/// # Errors
/// Any [`StoreError`].
pub async fn in_flight(client: &Client) -> Result<u64, StoreError> {
    let count: i64 = client.query_one(IN_FLIGHT, &[]).await?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// How far back the database looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The transaction id that comes next.
    pub next: i64,
    /// VACUUM can clean what was deleted before this one.
    pub oldest: i64,
    /// How long the oldest transaction that this role may see has been open.
    pub open: Duration,
}

/// Reads the database's horizon.
///
/// # Errors
/// Any [`StoreError`].
pub async fn horizon(client: &Client) -> Result<Horizon, StoreError> {
    let row = client.query_one(HORIZON, &[]).await?;
    let open: f64 = row.try_get(2)?;
    Ok(Horizon {
        next: row.try_get(0)?,
        oldest: row.try_get(1)?,
        open: Duration::try_from_secs_f64(open).unwrap_or_default(),
    })
}
