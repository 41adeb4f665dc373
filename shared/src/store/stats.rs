//! How fast endpoints answer: percentiles of a day, computed from the attempts.
//!
//! Every attempt is a sample, whoever made it and whatever came of it: a timeout with its real duration, one of a
//! fenced worker too. Those of test events are none. Not here: when they are computed, and which endpoints are
//! kept in memory (the worker's `jobs::stats`); the percentiles' definition (`policy::percentiles`).
//!
//! # Invariants
//! - The window is `[since, until)` by the start of the attempt, `since` at a full minute.
//! - D3: what is written is fenced by the job's lease, but for `postrider stats run --once`, which writes what the
//!   job would write.
//! - S3: what a tenant reads names the tenant.

use std::collections::HashMap;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, Row};
use uuid::Uuid;

use super::leases::Lease;
use super::{StoreError, test_sends};
use crate::ids::{EndpointKey, TenantKey, lower_bound};
use crate::policy::percentiles::{FRACTIONS, Minute, Percentiles};
use crate::policy::slowness::{ENOUGH_SAMPLES, Measured, WINDOW};

/// Test events in one window whose attempts are left out; those beyond count as samples.
const MOST_TESTS: i64 = 10_000;
/// Rows of one page of a list.
pub const MOST_ROWS: i64 = 250;

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

/// What is judged, by the primary keys: endpoints after $1, with their percentile at the hour $2.
const TO_JUDGE: &str = "
SELECT s.endpoint_id, s.tenant_id, e.slot, s.samples, s.p95_ms, h.samples, h.p95_ms,
       s.slow_since, s.degrading_since, r.p95_ms IS NOT NULL AS lowered
FROM (SELECT * FROM endpoint_stats s WHERE s.endpoint_id > $1 ORDER BY s.endpoint_id LIMIT $3) s
JOIN endpoints e ON e.id = s.endpoint_id
LEFT JOIN endpoint_stats_hours h ON h.hour = $2 AND h.endpoint_id = s.endpoint_id
LEFT JOIN endpoint_runtime r ON r.endpoint_id = s.endpoint_id
WHERE e.state <> 3 ORDER BY s.endpoint_id";

/// By primary key.
const FLAG: &str = "
UPDATE endpoint_stats s SET
  slow_since = CASE WHEN u.slow THEN coalesce(s.slow_since, $1) END,
  degrading_since = CASE WHEN u.degrading THEN coalesce(s.degrading_since, $1) END
FROM unnest($2::int8[], $3::bool[], $4::bool[]) u(endpoint_id, slow, degrading) WHERE s.endpoint_id = u.endpoint_id";

/// Tells the owners of endpoints that their breaker opens sooner (a percentile) or not any more (null). By primary
/// key; the owner's own columns are left alone.
const LOWER: &str = "
WITH u AS (SELECT * FROM unnest($1::int8[], $2::int4[], $3::int2[], $4::int4[]) u(endpoint_id, tenant_id, slot, p95_ms)),
r AS (
  INSERT INTO endpoint_runtime (endpoint_id, tenant_id, slot, p95_ms)
  SELECT endpoint_id, tenant_id, slot, p95_ms FROM u ORDER BY endpoint_id
  ON CONFLICT (endpoint_id) DO UPDATE SET p95_ms = excluded.p95_ms)
INSERT INTO commands (slot, tenant_id, endpoint_id, verb) SELECT slot, tenant_id, endpoint_id, 1 FROM u";

/// The columns that [`endpoint_stats`] reads.
macro_rules! columns {
    () => {
        "e.id, e.public_id, s.computed_at, s.since, s.samples, s.p50_ms, s.p95_ms, s.p99_ms, s.slow_since, s.degrading_since"
    };
}

/// Newest endpoints first. Indexes: `endpoints_tenant` backwards, `endpoint_stats_pkey`.
const PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM endpoints e JOIN endpoint_stats s ON s.endpoint_id = e.id
WHERE e.tenant_id = $1 AND e.state <> 3
  AND e.id < coalesce((SELECT b.id FROM endpoints b WHERE b.public_id = $2 AND b.tenant_id = $1), 9223372036854775807)
ORDER BY e.tenant_id DESC, e.id DESC LIMIT $3"
);

/// The slowest first. Index: `endpoint_stats_tenant`, all of the tenant's.
const SLOW: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM endpoint_stats s JOIN endpoints e ON e.id = s.endpoint_id
WHERE s.tenant_id = $1 AND s.samples >= $2 AND s.p95_ms > $3 AND e.tenant_id = $1 AND e.state <> 3
ORDER BY s.p95_ms DESC, e.id DESC LIMIT $4"
);

/// By `endpoints_public_id_key` and primary key.
const FIND: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM endpoints e JOIN endpoint_stats s ON s.endpoint_id = e.id
WHERE e.public_id = $2 AND e.tenant_id = $1 AND e.state <> 3"
);

/// The slowest over all tenants (no flag needed), if that was computed within the hour. Reads the table in the order of
/// its pages, then endpoints by primary key: of those that are being removed a row may still be there.
const SLOWEST: &str = "
SELECT e.public_id, s.p95_ms FROM (
  SELECT endpoint_id, p95_ms FROM endpoint_stats WHERE ctid >= '(0,0)'::tid AND samples >= $1 AND p95_ms IS NOT NULL
    AND computed_at >= now() - interval '1 h'
  ORDER BY p95_ms DESC, endpoint_id LIMIT 5 * $2::int8) s
CROSS JOIN LATERAL (SELECT e.public_id FROM endpoints e WHERE e.id = s.endpoint_id AND e.state <> 3 OFFSET 0) e
ORDER BY s.p95_ms DESC, s.endpoint_id LIMIT $2";

/// How many are flagged, read in the same way.
const FLAGGED: &str = "
SELECT count(*) FILTER (WHERE s.slow_since IS NOT NULL), count(*) FILTER (WHERE s.degrading_since IS NOT NULL)
FROM (SELECT * FROM endpoint_stats WHERE ctid >= '(0,0)'::tid AND (slow_since IS NOT NULL OR degrading_since IS NOT NULL) OFFSET 0) s
CROSS JOIN LATERAL (SELECT FROM endpoints e WHERE e.id = s.endpoint_id AND e.state <> 3 OFFSET 0) e";

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
    ("stats::to_judge", TO_JUDGE),
    ("stats::flag", FLAG),
    ("stats::lower", LOWER),
    ("stats::page", PAGE),
    ("stats::slow", SLOW),
    ("stats::find", FIND),
    ("stats::slowest", SLOWEST),
    ("stats::flagged", FLAGGED),
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

/// What an endpoint is judged by, and how it was judged before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ToJudge {
    /// Which, and whose.
    pub whose: Whose,
    /// `endpoints.slot`
    pub slot: i16,
    /// The last 24 hours; `None` without samples.
    pub today: Option<Measured>,
    /// The 24 hours before.
    pub before: Option<Measured>,
    /// Since when it is flagged as slow.
    pub slow_since: Option<OffsetDateTime>,
    /// Since when it is flagged as degrading.
    pub degrading_since: Option<OffsetDateTime>,
    /// Its breaker opens sooner.
    pub lowered: bool,
}

/// Endpoints to judge, those after one, at most so many; compared with how they were at `hour`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn to_judge(
    client: &Client,
    after: EndpointKey,
    hour: OffsetDateTime,
    limit: i64,
) -> Result<Vec<ToJudge>, StoreError> {
    let measured =
        |row: &Row, samples: usize, p95: usize| -> Result<Option<Measured>, StoreError> {
            let found: (Option<i64>, Option<f64>) = (row.try_get(samples)?, row.try_get(p95)?);
            Ok(found.0.zip(found.1).map(|(samples, p95_ms)| Measured {
                samples: u64::try_from(samples).unwrap_or(0),
                p95_ms,
            }))
        };
    let read = |row: &Row| {
        Ok(ToJudge {
            whose: (EndpointKey(row.try_get(0)?), TenantKey(row.try_get(1)?)),
            slot: row.try_get(2)?,
            today: measured(row, 3, 4)?,
            before: measured(row, 5, 6)?,
            slow_since: row.try_get(7)?,
            degrading_since: row.try_get(8)?,
            lowered: row.try_get(9)?,
        })
    };
    let rows = client.query(TO_JUDGE, &[&after.0, &hour, &limit]).await?;
    rows.iter().map(read).collect()
}

/// How an endpoint is judged now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// What was looked at.
    pub of: ToJudge,
    /// Flagged as slow.
    pub slow: bool,
    /// Flagged as degrading.
    pub degrading: bool,
    /// Its breaker is to open sooner, with this percentile in milliseconds.
    pub lowered: Option<i32>,
}

/// Stores how endpoints are judged since `now`, and tells the owners of those whose breaker changes. Call
/// [`super::notify::commands`] afterwards if it returns true.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is somebody else's (D3).
pub async fn flag(
    client: &mut Client,
    lease: Option<&Lease>,
    now: OffsetDateTime,
    judged: &[Judged],
) -> Result<bool, StoreError> {
    let endpoints: Vec<i64> = judged.iter().map(|it| it.of.whose.0.0).collect();
    let slow: Vec<bool> = judged.iter().map(|it| it.slow).collect();
    let degrading: Vec<bool> = judged.iter().map(|it| it.degrading).collect();
    let changed: Vec<&Judged> = judged
        .iter()
        .filter(|it| it.of.lowered != it.lowered.is_some())
        .collect();
    let transaction = begin(client, lease).await?;
    let params: [&(dyn ToSql + Sync); 4] = [&now, &endpoints, &slow, &degrading];
    transaction.execute(FLAG, &params).await?;
    if !changed.is_empty() {
        let endpoints: Vec<i64> = changed.iter().map(|it| it.of.whose.0.0).collect();
        let tenants: Vec<i32> = changed.iter().map(|it| it.of.whose.1.0).collect();
        let slots: Vec<i16> = changed.iter().map(|it| it.of.slot).collect();
        let p95: Vec<Option<i32>> = changed.iter().map(|it| it.lowered).collect();
        let params: [&(dyn ToSql + Sync); 4] = [&endpoints, &tenants, &slots, &p95];
        transaction.execute(LOWER, &params).await?;
    }
    transaction.commit().await?;
    Ok(!changed.is_empty())
}

/// An endpoint's statistics as the API shows them.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointStats {
    /// The endpoint.
    pub key: EndpointKey,
    /// Its public id.
    pub id: Uuid,
    /// When they were computed: the end of the window.
    pub computed_at: OffsetDateTime,
    /// The beginning of the window.
    pub since: OffsetDateTime,
    /// What was found.
    pub computed: Computed,
    /// Since when it is flagged as slow.
    pub slow_since: Option<OffsetDateTime>,
    /// Since when it is flagged as degrading.
    pub degrading_since: Option<OffsetDateTime>,
}

/// The statistics of a tenant's endpoints, newest endpoints first, those after the one with the public id `before`;
/// one that had no attempt yet is not among them.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl GenericClient,
    tenant: TenantKey,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<EndpointStats>, StoreError> {
    let rows = client.query(PAGE, &[&tenant.0, &before, &limit]).await?;
    rows.iter().map(endpoint_stats).collect()
}

/// A tenant's endpoints whose 95th percentile is above a threshold in milliseconds, the slowest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn slow(
    client: &impl GenericClient,
    tenant: TenantKey,
    threshold_ms: f64,
    limit: i64,
) -> Result<Vec<EndpointStats>, StoreError> {
    let enough = i64::try_from(ENOUGH_SAMPLES).unwrap_or(i64::MAX);
    let rows = client
        .query(SLOW, &[&tenant.0, &enough, &threshold_ms, &limit])
        .await?;
    rows.iter().map(endpoint_stats).collect()
}

/// The statistics of one endpoint of a tenant, if there are any.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    endpoint: Uuid,
) -> Result<Option<EndpointStats>, StoreError> {
    let row = client.query_opt(FIND, &[&tenant.0, &endpoint]).await?;
    row.as_ref().map(endpoint_stats).transpose()
}

fn endpoint_stats(row: &Row) -> Result<EndpointStats, StoreError> {
    let parts: [Option<f64>; 3] = [row.try_get(5)?, row.try_get(6)?, row.try_get(7)?];
    let percentiles = match parts {
        [Some(p50_ms), Some(p95_ms), Some(p99_ms)] => Some([p50_ms, p95_ms, p99_ms].into()),
        _ => None,
    };
    Ok(EndpointStats {
        key: EndpointKey(row.try_get(0)?),
        id: row.try_get(1)?,
        computed_at: row.try_get(2)?,
        since: row.try_get(3)?,
        computed: Computed {
            samples: count(row, 4)?,
            percentiles,
        },
        slow_since: row.try_get(8)?,
        degrading_since: row.try_get(9)?,
    })
}

/// The installation's slow endpoints.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Slowest {
    /// Public ids with their 95th percentile in milliseconds, the slowest first.
    pub endpoints: Vec<(Uuid, f64)>,
    /// How many are flagged as slow.
    pub slow: u64,
    /// How many are flagged as degrading.
    pub degrading: u64,
}

/// Over all tenants: the slowest endpoints, and how many are flagged.
///
/// # Errors
/// Any [`StoreError`].
pub async fn slowest(client: &Client, limit: i64) -> Result<Slowest, StoreError> {
    let enough = i64::try_from(ENOUGH_SAMPLES).unwrap_or(i64::MAX);
    let rows = client.query(SLOWEST, &[&enough, &limit]).await?;
    let endpoints: Result<Vec<(Uuid, f64)>, StoreError> = rows
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect();
    let flagged = client.query_one(FLAGGED, &[]).await?;
    Ok(Slowest {
        endpoints: endpoints?,
        slow: count(&flagged, 0)?,
        degrading: count(&flagged, 1)?,
    })
}
