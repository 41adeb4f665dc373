//! What one worker tells of the whole installation: dead letters, breakers, the database's horizon.
//!
//! Not here: since when deliveries wait and for what ([`super::oldest`]), how many deliveries wait, which the backlog job
//! counts for its limits (`backlog`), and who is slow (`stats`). Not a tenant's own figures (`pipeline`).
//!
//! # Invariants
//! - Bounded: dead letters are counted in ranges of pages, as many as the caller has time for.
//! - Nothing of a tenant leaves: only counts and instants.

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::Client;

use super::StoreError;
use crate::domain::delivery::DeadLetterClass;

/// Pages (8 KiB) of one range of dead letters: some 60,000 rows.
const RANGE_PAGES: i64 = 1_024;
/// How many classes there are.
pub const CLASSES: usize = DeadLetterClass::ALL.len();

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
    ("gauges.dead_letter_pages", DEAD_LETTER_PAGES),
    ("gauges.dead_letters", DEAD_LETTERS),
    ("gauges.breakers", BREAKERS),
    ("gauges.enabled", ENABLED),
    ("gauges.in_flight", IN_FLIGHT),
    ("gauges.horizon", HORIZON),
];

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
