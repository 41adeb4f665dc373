//! Dead letters as the API shows them: one by one, and together per endpoint.
//!
//! # Invariants
//! - S3: every statement names the tenant.
//! - Bounded: a page looks at [`STRETCH`] rows at most and may hold fewer than were asked for; the analysis looks at
//!   [`MOST_ENDPOINTS`] endpoints and [`MOST_SAMPLED`] dead letters of each.

use std::time::Duration;

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::deliveries::code;
use super::events::IdRange;
use super::{Found, Reader, StoreError};
use crate::domain::attempt::Outcome;
use crate::domain::delivery::{DeadLetterClass, Kind};
use crate::ids::{EndpointKey, TenantKey};
use crate::policy::dead_letters::{AUTH_OR_THROTTLE, BURST_WITHIN, Sample};

/// Rows that one page looks at.
const STRETCH: i64 = 2_000;
/// The same where the event of each is looked up for its type.
const STRETCH_OF_TYPE: i64 = 800;
/// Endpoints in one analysis: those with the latest dead letters.
pub const MOST_ENDPOINTS: i64 = 100;
/// Dead letters of one endpoint in one analysis: the latest. Enough for a share of them, and 20,000 rows in all.
pub const MOST_SAMPLED: i64 = 200;

/// The page from the rows `seen`, and how far was looked.
macro_rules! page {
    ($seen:literal) => {
        concat!(
            "WITH seen AS MATERIALIZED (",
            $seen,
            " LIMIT $4)
SELECT m.count, m.last, x.* FROM (SELECT count(*) AS count, (array_agg(id ORDER BY id))[1] AS last FROM seen) m
LEFT JOIN LATERAL (
  SELECT s.id, s.event_id, p.public_id, s.name, s.class, s.reason, s.fingerprint, s.outcome, s.status, s.attempts_made, s.kind,
         s.dead_at, s.replayed_as
  FROM (
    SELECT s.*, t.name FROM (SELECT * FROM seen WHERE $6::int2 IS NULL OR class = $6 ORDER BY id DESC OFFSET 0) s
    LEFT JOIN LATERAL (
      SELECT e.type_id FROM events e WHERE e.tenant_id = s.tenant_id AND e.id = s.event_id
      UNION ALL SELECT e.type_id FROM events_kept e WHERE e.tenant_id = s.tenant_id AND e.id = s.event_id LIMIT 1) e ON true
    LEFT JOIN LATERAL (SELECT t.name FROM event_types t WHERE t.id = e.type_id OFFSET 0) t ON true
    WHERE $7::text IS NULL OR t.name = $7 LIMIT $5) s
  CROSS JOIN LATERAL (SELECT p.public_id FROM endpoints p WHERE p.id = s.endpoint_id OFFSET 0) p
  ORDER BY s.id DESC) x ON true"
        )
    };
}

/// Newest first by the delivery's id. Index: `dead_letters_pkey` backwards.
const PAGE: &str = page!(
    "SELECT d.* FROM dead_letters d WHERE d.tenant_id = $1 AND d.id >= $2 AND d.id < $3 ORDER BY d.tenant_id DESC, d.id DESC"
);

/// The same of one endpoint ($8). Index: `dead_letters_endpoint` backwards.
const PAGE_OF_ENDPOINT: &str = page!(
    "SELECT d.* FROM dead_letters d WHERE d.tenant_id = $1 AND d.endpoint_id = $8 AND d.id >= $2 AND d.id < $3
     ORDER BY d.endpoint_id DESC, d.id DESC"
);

/// Indexes: `endpoints_tenant` with one probe of `dead_letters_open` per endpoint, then `dead_letters_open` backwards for
/// each that has any.
const ANALYSIS: &str = "
WITH open AS MATERIALIZED (
  SELECT e.id, e.public_id, e.url, l.dead_at FROM endpoints e CROSS JOIN LATERAL (
    SELECT d.dead_at FROM dead_letters d WHERE d.endpoint_id = e.id AND d.dead_at >= $2 AND d.replayed_as IS NULL
    ORDER BY d.endpoint_id DESC, d.dead_at DESC LIMIT 1) l
  WHERE e.tenant_id = $1 ORDER BY l.dead_at DESC LIMIT $3),
sample AS MATERIALIZED (
  SELECT o.id AS endpoint_id, d.class = 5 AS internal, d.* FROM open o CROSS JOIN LATERAL (
    SELECT d.class, d.outcome, d.status, d.reason, d.attempts_made, d.dead_at FROM dead_letters d
    WHERE d.endpoint_id = o.id AND d.dead_at >= $2 AND d.replayed_as IS NULL
    ORDER BY d.endpoint_id DESC, d.dead_at DESC LIMIT $4) d),
sums AS (
  SELECT endpoint_id, internal, count(*) AS count, avg(attempts_made)::float8 AS attempts, min(dead_at) AS first, max(dead_at) AS last,
         count(*) FILTER (WHERE class = 4 OR status = ANY ($6)) AS refused, max(near) AS busiest
  FROM (
    SELECT s.*, count(*) OVER (PARTITION BY endpoint_id, internal ORDER BY dead_at
                               RANGE BETWEEN ($5::float8 * interval '1 s') PRECEDING AND CURRENT ROW) AS near
    FROM sample s) x
  GROUP BY endpoint_id, internal),
tops AS (
  SELECT DISTINCT ON (endpoint_id, internal) endpoint_id, internal, class, outcome, status, reason FROM (
    SELECT endpoint_id, internal, class, outcome, status, reason, count(*) AS count FROM sample
    GROUP BY endpoint_id, internal, class, outcome, status, reason) y
  ORDER BY endpoint_id, internal, count DESC, class)
SELECT o.public_id, o.url, s.internal, s.count, s.attempts, s.first, s.last, s.refused, s.busiest, t.class, t.outcome, t.status, t.reason,
       sum(s.count) OVER (PARTITION BY o.id) >= $4
FROM open o JOIN sums s ON s.endpoint_id = o.id JOIN tops t ON t.endpoint_id = s.endpoint_id AND t.internal = s.internal
ORDER BY s.count DESC, s.last DESC";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("dead_letters.page", PAGE),
    ("dead_letters.page_of_endpoint", PAGE_OF_ENDPOINT),
    ("dead_letters.analysis", ANALYSIS),
];

/// Which dead letters of a tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Ids of deliveries from (included) and to (excluded).
    pub range: IdRange,
    /// Only of this endpoint.
    pub endpoint: Option<EndpointKey>,
    /// Only of this class.
    pub class: Option<DeadLetterClass>,
    /// Only of events of this type.
    pub event_type: Option<&'a str>,
}

/// A delivery that is no longer tried.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// The delivery.
    pub id: Uuid,
    /// Of which event.
    pub event: Uuid,
    /// To which endpoint, by its public id.
    pub endpoint: Uuid,
    /// The event's type, while the event is there.
    pub event_type: Option<String>,
    /// Who should look.
    pub class: DeadLetterClass,
    /// In words.
    pub reason: Option<String>,
    /// Equal for what broke in the same way.
    pub fingerprint: Option<i64>,
    /// Of the last attempt.
    pub outcome: Option<Outcome>,
    /// HTTP status of the last attempt.
    pub status_code: Option<i16>,
    /// Requests made.
    pub attempts_made: i16,
    /// Why the delivery existed.
    pub kind: Kind,
    /// When it was given up.
    pub dead_at: OffsetDateTime,
    /// The delivery that sends its event again.
    pub replayed_as: Option<Uuid>,
}

/// What an endpoint's open dead letters have in common: those of our own making apart.
#[derive(Debug, Clone)]
pub struct Group {
    /// The endpoint's public id.
    pub endpoint: Uuid,
    /// Where it is.
    pub url: String,
    /// Of our own making.
    pub internal: bool,
    /// How many, at least.
    pub sample: Sample,
    /// There are more than were looked at.
    pub more: bool,
    /// Requests made, on average.
    pub average_attempts: f64,
    /// When the first and the last of them died.
    pub times: (OffsetDateTime, OffsetDateTime),
    /// What most of them have.
    pub class: DeadLetterClass,
    /// See `class`.
    pub outcome: Option<Outcome>,
    /// See `class`.
    pub status_code: Option<i16>,
    /// See `class`.
    pub reason: Option<String>,
}

/// A tenant's dead letters, newest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl GenericClient,
    tenant: TenantKey,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Found<DeadLetter>, StoreError> {
    let class = filter.class.map(DeadLetterClass::code);
    let endpoint = filter.endpoint.map(|key| key.0);
    let stretch = if filter.event_type.is_some() {
        STRETCH_OF_TYPE
    } else {
        STRETCH
    };
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![
        &tenant.0,
        &filter.range.0,
        &filter.range.1,
        &stretch,
        &limit,
        &class,
        &filter.event_type,
    ];
    let statement = if let Some(endpoint) = &endpoint {
        params.push(endpoint);
        PAGE_OF_ENDPOINT
    } else {
        PAGE
    };
    let rows = client.query(statement, &params).await?;
    Found::in_stretch(&rows, stretch, dead_letter)
}

/// Its columns begin there.
fn dead_letter(row: &Row, at: usize) -> Result<DeadLetter, StoreError> {
    Ok(DeadLetter {
        id: row.try_get(at)?,
        event: row.try_get(at + 1)?,
        endpoint: row.try_get(at + 2)?,
        event_type: row.try_get(at + 3)?,
        class: DeadLetterClass::try_from(row.try_get::<_, i16>(at + 4)?)?,
        reason: row.try_get(at + 5)?,
        fingerprint: row.try_get(at + 6)?,
        outcome: code(row.try_get(at + 7)?)?,
        status_code: row.try_get(at + 8)?,
        attempts_made: row.try_get(at + 9)?,
        kind: Kind::try_from(row.try_get::<_, i16>(at + 10)?)?,
        dead_at: row.try_get(at + 11)?,
        replayed_as: row.try_get(at + 12)?,
    })
}

/// What the dead letters since an instant that were not replayed look like, per endpoint, the most first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn analysis(
    client: &impl Reader,
    tenant: TenantKey,
    since: OffsetDateTime,
) -> Result<Vec<Group>, StoreError> {
    let near = Duration::as_secs_f64(&BURST_WITHIN);
    let refused = AUTH_OR_THROTTLE.to_vec();
    let params: [&(dyn ToSql + Sync); 6] = [
        &tenant.0,
        &since,
        &MOST_ENDPOINTS,
        &MOST_SAMPLED,
        &near,
        &refused,
    ];
    let rows = client.rows(ANALYSIS, &params).await?;
    rows.iter().map(group).collect()
}

fn group(row: &Row) -> Result<Group, StoreError> {
    let count = |column: usize| -> Result<u64, StoreError> {
        Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
    };
    Ok(Group {
        endpoint: row.try_get(0)?,
        url: row.try_get(1)?,
        internal: row.try_get(2)?,
        sample: Sample {
            count: count(3)?,
            busiest: count(8)?,
            auth_or_throttle: count(7)?,
        },
        more: row.try_get(13)?,
        average_attempts: row.try_get(4)?,
        times: (row.try_get(5)?, row.try_get(6)?),
        class: DeadLetterClass::try_from(row.try_get::<_, i16>(9)?)?,
        outcome: code(row.try_get(10)?)?,
        status_code: row.try_get(11)?,
        reason: row.try_get(12)?,
    })
}
