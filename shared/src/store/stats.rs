//! How fast endpoints answer: percentiles of a day, computed from the attempts.
//!
//! Every attempt is a sample, whoever made it and whatever came of it: a timeout with its real duration, one of a
//! fenced worker too. Those of test events are none. Not here: when they are computed, and which endpoints are
//! kept in memory (the worker's `jobs::stats`); the percentiles' definition (`policy::percentiles`). How endpoints are
//! judged by them is in [`judging`], what is shown of them in [`reading`].
//!
//! # Invariants
//! - The window is `[since, until)` by the start of the attempt, `since` at a full minute.
//! - D3: what is written is fenced by the job's lease, but for `postrider stats run --once`, which writes what the
//!   job would write.
//! - S3: what a tenant reads names the tenant.

pub(super) mod judging;
pub(super) mod reading;

use std::collections::HashMap;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::leases::Lease;
use super::{StoreError, test_sends};
use crate::ids::{EndpointKey, TenantKey, lower_bound};
use crate::policy::percentiles::{FRACTIONS, Minute, Percentiles};
use crate::policy::slowness::WINDOW;

pub use judging::{Judged, ToJudge, flag, to_judge};
pub use reading::{EndpointStats, MOST_ROWS, Slowest, find, page, slow, slowest};

/// Test events in one window whose attempts are left out; those beyond count as samples.
const MOST_TESTS: i64 = 10_000;
/// Endpoints with an attempt in a span of time: one probe of `attempts_endpoint` for each endpoint and partition.
const ACTIVE: &str = "
SELECT e.id, e.tenant_id FROM endpoints e CROSS JOIN LATERAL (
  SELECT FROM attempts a WHERE a.endpoint_id = e.id AND a.started_at >= $1 AND a.started_at < $2
  ORDER BY a.endpoint_id, a.started_at LIMIT 1) a
WHERE e.state <> 3 ORDER BY e.id";

/// Endpoints whose percentiles are of before: samples leave the window also where none come. Reads the table.
const STALE: &str = "
SELECT s.endpoint_id, s.tenant_id FROM endpoint_stats s
WHERE s.computed_at < $1 AND s.samples > 0 ORDER BY s.endpoint_id";

/// Which endpoints got test events, and which these are. By `event_types_tenant_id_name_key` (all of it: there are as
/// many rows as tenants have types) and `events_type`.
const TESTS: &str = "
SELECT e.fan_endpoint[1], e.id FROM event_types t CROSS JOIN LATERAL (
  SELECT e.fan_endpoint, e.id FROM events e WHERE e.tenant_id = t.tenant_id AND e.type_id = t.id AND e.id >= $2 OFFSET 0) e
WHERE t.name = $1 LIMIT $3";

/// Percentiles by PostgreSQL, of endpoints with at most $4 − 1 samples; of others only that they have more. `$but`
/// leaves samples out. Index: `attempts_endpoint`, of which it needs nothing but the entries unless `$but` asks.
macro_rules! percentiles {
    ($but:literal) => {
        concat!(
            "SELECT u.id, s.samples, s.found FROM unnest($1::int8[]) u(id) CROSS JOIN LATERAL (
  SELECT count(*) AS samples, percentile_cont($5::float8[]) WITHIN GROUP (ORDER BY x.total_ms) AS found FROM (
    SELECT a.total_ms FROM attempts a WHERE a.endpoint_id = u.id AND a.started_at >= $2 AND a.started_at < $3 ",
            $but,
            " LIMIT $4) x) s"
        )
    };
}
const PERCENTILES: &str = percentiles!("");
const PERCENTILES_WITHOUT: &str = percentiles!("AND NOT a.event_id = ANY ($6)");

/// Counts per minute and millisecond of one endpoint. Index: `attempts_endpoint`.
macro_rules! counts {
    ($but:literal) => {
        concat!(
            "SELECT floor(date_part('epoch', a.started_at) / 60)::int8 AS minute, a.total_ms, count(*)
FROM attempts a WHERE a.endpoint_id = $1 AND a.started_at >= $2 AND a.started_at < $3 ",
            $but,
            " GROUP BY 1, 2"
        )
    };
}
const COUNTS: &str = counts!("");
const COUNTS_WITHOUT: &str = counts!("AND NOT a.event_id = ANY ($4)");

/// How many attempts there are, for a look whether all of them are counted. Index: `attempts_endpoint`.
const SAMPLES: &str = "
SELECT count(*) FROM attempts a WHERE a.endpoint_id = $1 AND a.started_at >= $2 AND a.started_at < $3";

/// By primary key. An older result never replaces a newer one.
const PUT: &str = "
INSERT INTO endpoint_stats (endpoint_id, tenant_id, computed_at, since, samples, p50_ms, p95_ms, p99_ms)
SELECT u.endpoint_id, u.tenant_id, $1, $2, u.samples, u.p50, u.p95, u.p99
FROM unnest($3::int8[], $4::int4[], $5::int8[], $6::float8[], $7::float8[], $8::float8[]) u(endpoint_id, tenant_id, samples, p50, p95, p99)
ORDER BY u.endpoint_id
ON CONFLICT (endpoint_id) DO UPDATE SET tenant_id = excluded.tenant_id, computed_at = excluded.computed_at, since = excluded.since,
  samples = excluded.samples, p50_ms = excluded.p50_ms, p95_ms = excluded.p95_ms, p99_ms = excluded.p99_ms
WHERE endpoint_stats.computed_at <= excluded.computed_at";

/// Keeps what there is as that of an hour ($1). Reads the table, once an hour.
const KEEP_HOUR: &str = "
INSERT INTO endpoint_stats_hours (hour, endpoint_id, samples, p50_ms, p95_ms, p99_ms)
SELECT $1, endpoint_id, samples, p50_ms, p95_ms, p99_ms FROM endpoint_stats WHERE samples > 0 AND p95_ms IS NOT NULL
ON CONFLICT DO NOTHING";

/// Reads the table, once an hour.
const FORGET_HOURS: &str = "DELETE FROM endpoint_stats_hours WHERE hour < $1";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("stats::active", ACTIVE),
    ("stats::stale", STALE),
    ("stats::tests", TESTS),
    ("stats::percentiles", PERCENTILES),
    ("stats::percentiles_without", PERCENTILES_WITHOUT),
    ("stats::counts", COUNTS),
    ("stats::counts_without", COUNTS_WITHOUT),
    ("stats::samples", SAMPLES),
    ("stats::put", PUT),
    ("stats::keep_hour", KEEP_HOUR),
    ("stats::forget_hours", FORGET_HOURS),
];

/// A span of time: `since` included, `until` not.
pub type Span = (OffsetDateTime, OffsetDateTime);

/// An endpoint and whose it is.
pub type Whose = (EndpointKey, TenantKey);

/// Test events by the endpoint that they went to: their attempts are no samples.
pub type Tests = HashMap<EndpointKey, Vec<Uuid>>;

/// What an endpoint's samples say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Computed {
    /// How many there are.
    pub samples: u64,
    /// `None` without samples.
    pub percentiles: Option<Percentiles>,
}

/// Endpoints with attempts in a span.
///
/// # Errors
/// Any [`StoreError`].
pub async fn active(client: &Client, (since, until): Span) -> Result<Vec<Whose>, StoreError> {
    whose(&client.query(ACTIVE, &[&since, &until]).await?)
}

/// Endpoints with samples whose percentiles were computed before an instant.
///
/// # Errors
/// Any [`StoreError`].
pub async fn stale(client: &Client, before: OffsetDateTime) -> Result<Vec<Whose>, StoreError> {
    whose(&client.query(STALE, &[&before]).await?)
}

fn whose(rows: &[Row]) -> Result<Vec<Whose>, StoreError> {
    rows.iter()
        .map(|row| Ok((EndpointKey(row.try_get(0)?), TenantKey(row.try_get(1)?))))
        .collect()
}

/// Test events whose attempts may have started since an instant.
///
/// # Errors
/// Any [`StoreError`].
pub async fn tests(client: &Client, since: OffsetDateTime) -> Result<Tests, StoreError> {
    // A test is tried once, soon: none that is older than another window is still under way.
    let first = lower_bound(since - WINDOW);
    let rows = client
        .query(TESTS, &[&test_sends::EVENT_TYPE, &first, &MOST_TESTS])
        .await?;
    let mut tests = Tests::new();
    for row in rows {
        if let Some(endpoint) = row.try_get::<_, Option<i64>>(0)? {
            let events = tests.entry(EndpointKey(endpoint)).or_default();
            events.push(row.try_get(1)?);
        }
    }
    Ok(tests)
}

/// Computes percentiles of endpoints in a span by PostgreSQL's `percentile_cont`; for one with more than `most`
/// samples `None`: too many to sort.
///
/// # Errors
/// Any [`StoreError`].
pub async fn percentiles(
    client: &Client,
    endpoints: &[EndpointKey],
    (since, until): Span,
    most: u64,
    tests: &[Uuid],
) -> Result<Vec<(EndpointKey, Option<Computed>)>, StoreError> {
    let keys: Vec<i64> = endpoints.iter().map(|key| key.0).collect();
    let fractions = FRACTIONS.to_vec();
    let limit = i64::try_from(most).unwrap_or(i64::MAX).saturating_add(1);
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&keys, &since, &until, &limit, &fractions];
    let statement = if tests.is_empty() {
        PERCENTILES
    } else {
        params.push(&tests);
        PERCENTILES_WITHOUT
    };
    let rows = client.query(statement, &params).await?;
    let read = |row: &Row| {
        let samples = count(row, 1)?;
        let found: Option<Vec<f64>> = row.try_get(2)?;
        let percentiles = found
            .map(<[f64; 3]>::try_from)
            .transpose()
            .map_err(|_others| StoreError::Decode("not three percentiles".to_owned()))?;
        let computed = Computed {
            samples,
            percentiles: percentiles.map(Into::into),
        };
        let key = EndpointKey(row.try_get(0)?);
        Ok((key, (samples <= most).then_some(computed)))
    };
    rows.iter().map(read).collect()
}

/// Counts the samples of an endpoint in a span, by minutes since 1970.
///
/// # Errors
/// Any [`StoreError`].
pub async fn minutes(
    client: &Client,
    endpoint: EndpointKey,
    (since, until): Span,
    tests: &[Uuid],
) -> Result<HashMap<i64, Minute>, StoreError> {
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&endpoint.0, &since, &until];
    let statement = if tests.is_empty() {
        COUNTS
    } else {
        params.push(&tests);
        COUNTS_WITHOUT
    };
    let mut minutes: HashMap<i64, Minute> = HashMap::new();
    for row in client.query(statement, &params).await? {
        let times = u32::try_from(row.try_get::<_, i64>(2)?)
            .map_err(|_beyond| StoreError::Decode("too many attempts in a minute".to_owned()))?;
        let minute = minutes.entry(row.try_get(0)?).or_default();
        minute.counts.push((row.try_get(1)?, times));
    }
    Ok(minutes)
}

/// How many attempts an endpoint has in a span, those of test events too.
///
/// # Errors
/// Any [`StoreError`].
pub async fn samples(
    client: &Client,
    endpoint: EndpointKey,
    (since, until): Span,
) -> Result<u64, StoreError> {
    let row = client
        .query_one(SAMPLES, &[&endpoint.0, &since, &until])
        .await?;
    count(&row, 0)
}

fn count(row: &Row, column: usize) -> Result<u64, StoreError> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
}

/// Stores what was computed of a span, unless something newer is stored.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is somebody else's (D3).
pub async fn put(
    client: &mut Client,
    lease: Option<&Lease>,
    (since, until): Span,
    results: &[(Whose, Computed)],
) -> Result<(), StoreError> {
    let of = |part: fn(Percentiles) -> f64| -> Vec<Option<f64>> {
        results
            .iter()
            .map(|(_, computed)| computed.percentiles.map(part))
            .collect()
    };
    let endpoints: Vec<i64> = results.iter().map(|((key, _), _)| key.0).collect();
    let tenants: Vec<i32> = results.iter().map(|((_, tenant), _)| tenant.0).collect();
    let samples = results.iter().map(|(_, computed)| computed.samples);
    let samples: Vec<i64> = samples
        .map(|samples| i64::try_from(samples).unwrap_or(i64::MAX))
        .collect();
    let (p50, p95, p99) = (of(|it| it.p50_ms), of(|it| it.p95_ms), of(|it| it.p99_ms));
    let params: [&(dyn ToSql + Sync); 8] = [
        &until, &since, &endpoints, &tenants, &samples, &p50, &p95, &p99,
    ];
    let transaction = begin(client, lease).await?;
    transaction.execute(PUT, &params).await?;
    Ok(transaction.commit().await?)
}

/// Keeps the present percentiles as those of a full hour, and forgets hours before `kept_since`.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is somebody else's (D3).
pub async fn keep_hour(
    client: &mut Client,
    lease: Option<&Lease>,
    hour: OffsetDateTime,
    kept_since: OffsetDateTime,
) -> Result<(), StoreError> {
    let transaction = begin(client, lease).await?;
    transaction.execute(KEEP_HOUR, &[&hour]).await?;
    transaction.execute(FORGET_HOURS, &[&kept_since]).await?;
    Ok(transaction.commit().await?)
}

async fn begin<'a>(
    client: &'a mut Client,
    lease: Option<&Lease>,
) -> Result<tokio_postgres::Transaction<'a>, StoreError> {
    let transaction = client.transaction().await?;
    if let Some(lease) = lease {
        super::leases::still_mine(&transaction, lease).await?;
    }
    Ok(transaction)
}
