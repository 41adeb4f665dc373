//! Statistics as they are shown: a tenant's endpoints, and the slowest of the installation.
//!
//! # Invariants
//! - S3: what a tenant reads names the tenant.

use time::OffsetDateTime;
use tokio_postgres::{Client, GenericClient, Row};
use uuid::Uuid;

use super::{Computed, count};
use crate::ids::{EndpointKey, TenantKey};
use crate::policy::slowness::ENOUGH_SAMPLES;
use crate::store::StoreError;

/// Rows of one page of a list.
pub const MOST_ROWS: i64 = 250;

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

/// See [`super::super::statements`].
pub(in crate::store) const STATEMENTS: &[(&str, &str)] = &[
    ("stats::page", PAGE),
    ("stats::slow", SLOW),
    ("stats::find", FIND),
    ("stats::slowest", SLOWEST),
    ("stats::flagged", FLAGGED),
];

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
