//! What a tenant has under way, in one row: counted when somebody asks, and no further than [`MOST_COUNTED`].
//!
//! # Invariants
//! - S3: every statement names the tenant.
//! - Bounded, however much there is: counts look at [`MOST_COUNTED`] rows and one more, the last hour's attempts at
//!   [`MOST_ATTEMPTS`]; the rest is one probe per endpoint.

use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{StoreError, oldest};
use crate::ids::{TenantKey, created_at};

/// The largest count; a count of so many is a lower bound.
pub const MOST_COUNTED: u64 = 10_000;
/// Attempts of the last hour that are looked at, the latest of each endpoint.
const MOST_ATTEMPTS: i64 = 20_000;
/// Dead letters that are looked at: those that were replayed do not count.
const MOST_DEAD_LETTERS: i64 = 50_000;

/// Indexes: `ready_by_id`, `retry_by_id`, `ready_ordered_by_id`, `dead_letters_pkey` from its end. $2: one more than
/// is counted; $3: dead letters to look at.
const COUNTS: &str = "
WITH flying AS MATERIALIZED (SELECT DISTINCT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
r AS MATERIALIZED (SELECT id FROM ready WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT $2),
t AS MATERIALIZED (SELECT id FROM retry WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT $2),
o AS MATERIALIZED (SELECT id, due_at FROM ready_ordered WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT $2),
d AS MATERIALIZED (SELECT replayed_as FROM dead_letters WHERE tenant_id = $1 ORDER BY tenant_id DESC, id DESC LIMIT $3),
f AS MATERIALIZED (
  SELECT f.id FROM flying f WHERE EXISTS (SELECT FROM ready x WHERE x.tenant_id = $1 AND x.id = f.id)
    OR EXISTS (SELECT FROM retry x WHERE x.tenant_id = $1 AND x.id = f.id)
    OR EXISTS (SELECT FROM ready_ordered x WHERE x.tenant_id = $1 AND x.id = f.id))
SELECT
  (SELECT count(*) FROM r WHERE NOT id IN (SELECT id FROM f)) + (SELECT count(*) FROM o WHERE due_at IS NULL AND NOT id IN (SELECT id FROM f)),
  (SELECT count(*) FROM t WHERE NOT id IN (SELECT id FROM f)) + (SELECT count(*) FROM o WHERE due_at IS NOT NULL AND NOT id IN (SELECT id FROM f)),
  (SELECT count(*) FROM f),
  (SELECT count(*) FROM d WHERE replayed_as IS NULL),
  (SELECT count(*) FROM d) >= $3,
  (SELECT count(*) FROM o) >= $2";

/// Index: `endpoints_tenant`, then `attempts_endpoint` from its end per endpoint.
const LAST_HOUR: &str = "
SELECT count(*) FILTER (WHERE final_status = 3), count(*) FILTER (WHERE outcome <> 1),
       (avg(total_ms) FILTER (WHERE final_status = 3))::float8, count(*)
FROM (
  SELECT a.final_status, a.outcome, a.total_ms FROM endpoints e CROSS JOIN LATERAL (
    SELECT a.final_status, a.outcome, a.total_ms FROM attempts a
    WHERE a.endpoint_id = e.id AND a.started_at >= $2 AND a.applied ORDER BY a.endpoint_id DESC, a.started_at DESC LIMIT $3) a
  WHERE e.tenant_id = $1 LIMIT $3) x";

/// The oldest delivery that is not final. Indexes: `ready_by_id`, `retry_by_id`, `ready_ordered_by_id`.
const OLDEST: &str = "
SELECT id FROM (
  (SELECT id FROM ready WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 1)
  UNION ALL (SELECT id FROM retry WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 1)
  UNION ALL (SELECT id FROM ready_ordered WHERE tenant_id = $1 ORDER BY tenant_id, id LIMIT 1)) x
ORDER BY id LIMIT 1";

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("pipeline::counts", COUNTS),
    ("pipeline::last_hour", LAST_HOUR),
    ("pipeline::oldest", OLDEST),
];

/// So many, or at least so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// [`MOST_COUNTED`] at most.
    pub count: u64,
    /// There may be more.
    pub is_lower_bound: bool,
}

impl Count {
    fn of(found: i64, more: bool) -> Self {
        let found = u64::try_from(found).unwrap_or(0);
        Self {
            count: found.min(MOST_COUNTED),
            is_lower_bound: more || found > MOST_COUNTED,
        }
    }
}

/// What a tenant has under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pipeline {
    /// Waiting for their first attempt.
    pub pending: Count,
    /// Waiting for another one.
    pub awaiting_retry: Count,
    /// On the wire.
    pub in_flight: Count,
    /// No longer tried, and not replayed.
    pub dead_letter: Count,
    /// Delivered in the last hour.
    pub delivered_last_hour: Count,
    /// Attempts of the last hour that failed.
    pub failed_last_hour: Count,
    /// Mean time of the attempts that delivered in the last hour, in milliseconds.
    pub avg_delivery_ms: Option<f64>,
    /// When the oldest delivery that is not final was made.
    pub oldest_pending: Option<OffsetDateTime>,
    /// Since when the oldest one waits that nothing holds back.
    pub oldest_admissible: Option<OffsetDateTime>,
}

/// Counts what a tenant has under way, as of `now`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn of_tenant(
    client: &impl GenericClient,
    tenant: TenantKey,
    now: OffsetDateTime,
) -> Result<Pipeline, StoreError> {
    let one_more = i64::try_from(MOST_COUNTED).unwrap_or(i64::MAX) + 1;
    let params: [&(dyn ToSql + Sync); 3] = [&tenant.0, &one_more, &MOST_DEAD_LETTERS];
    let counts = client.query_one(COUNTS, &params).await?;
    let more_dead: bool = counts.try_get(4)?;
    let more_in_lines: bool = counts.try_get(5)?;
    let hour_ago = now - time::Duration::HOUR;
    let params: [&(dyn ToSql + Sync); 3] = [&tenant.0, &hour_ago, &MOST_ATTEMPTS];
    let hour = client.query_one(LAST_HOUR, &params).await?;
    let more_attempts = hour.try_get::<_, i64>(3)? >= MOST_ATTEMPTS;
    let first = client.query_opt(OLDEST, &[&tenant.0]).await?;
    let first: Option<Uuid> = first.map(|row| row.try_get(0)).transpose()?;
    let waiting = oldest::of_tenant(client, tenant, now).await?;
    Ok(Pipeline {
        pending: Count::of(counts.try_get(0)?, more_in_lines),
        awaiting_retry: Count::of(counts.try_get(1)?, more_in_lines),
        in_flight: Count::of(counts.try_get(2)?, false),
        dead_letter: Count::of(counts.try_get(3)?, more_dead),
        delivered_last_hour: Count::of(hour.try_get(0)?, more_attempts),
        failed_last_hour: Count::of(hour.try_get(1)?, more_attempts),
        avg_delivery_ms: hour.try_get(2)?,
        oldest_pending: first.map(created_at),
        oldest_admissible: waiting.admissible,
    })
}
