//! Who is slow and who degrades, as it is stored, and whose breaker opens sooner for it.
//!
//! # Invariants
//! - D3: what is written is fenced by the job's lease, as in [`super`].

use time::OffsetDateTime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::{Whose, begin};
use crate::ids::{EndpointKey, TenantKey};
use crate::policy::slowness::Measured;
use crate::store::StoreError;
use crate::store::leases::Lease;

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

/// See [`super::super::statements`].
pub(in crate::store) const STATEMENTS: &[(&str, &str)] = &[
    ("stats::to_judge", TO_JUDGE),
    ("stats::flag", FLAG),
    ("stats::lower", LOWER),
];

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
