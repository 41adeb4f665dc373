//! Attempts as the API shows them. Workers write them (`record`); nobody changes them.
//!
//! # Invariants
//! - S3: the statement names the tenant.

use std::net::IpAddr;

use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::StoreError;
use super::deliveries::{code, earliest_attempt};
use crate::domain::attempt::Outcome;
use crate::domain::delivery::Status;
use crate::ids::TenantKey;

/// One delivery's attempts, newest first, those before ($4, $5), each with the URL that its version of
/// the endpoint had. Uses `attempts_pkey` and `endpoint_urls_pkey`.
const LIST: &str = "
SELECT a.no, a.epoch, a.started_at, a.endpoint_version, a.total_ms, a.queue_us, a.dns_us, a.connect_us, a.tls_us, a.ttfb_us,
       a.outcome, a.status, a.final_status, a.applied, a.addr, a.response, a.error, u.url, a.dialled
FROM attempts a
LEFT JOIN LATERAL (
  SELECT u.url FROM endpoint_urls u WHERE u.endpoint_id = a.endpoint_id AND u.version <= a.endpoint_version
  ORDER BY u.version DESC LIMIT 1) u ON true
WHERE a.tenant_id = $1 AND a.delivery_id = $2 AND a.started_at >= $3 AND (a.no, a.epoch) < ($4, $5)
ORDER BY a.no DESC, a.epoch DESC LIMIT $6";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[("attempts.list", LIST)];

/// One HTTP request.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// From 1.
    pub number: i16,
    /// Of the slot's owner that made it.
    pub epoch: i64,
    /// Database time, estimated by the worker.
    pub started_at: OffsetDateTime,
    /// Which version of the endpoint.
    pub endpoint_version: i32,
    /// Milliseconds, DNS to last byte.
    pub total_ms: i32,
    /// Microseconds of each phase: waiting, DNS, connect, TLS, first byte.
    pub phases_us: [Option<i32>; 5],
    /// Its class.
    pub outcome: Outcome,
    /// HTTP status, if there was a response.
    pub status_code: Option<i16>,
    /// Set on the attempt that ended the delivery.
    pub final_status: Option<Status>,
    /// Whether it counts.
    pub applied: bool,
    /// The address that was sent to, or the last one dialled in vain.
    pub address: Option<IpAddr>,
    /// Every address that was dialled, in order, where it was more than one.
    pub dialled: Option<Vec<IpAddr>>,
    /// The beginning of the response's body.
    pub response: Option<Vec<u8>>,
    /// What went wrong, in words.
    pub error: Option<String>,
    /// Where it went.
    pub url: Option<String>,
}

/// One delivery's attempts, newest first, those before this number and epoch.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
    before: (i16, i64),
    limit: i64,
) -> Result<Vec<Attempt>, StoreError> {
    let from = earliest_attempt(id);
    client
        .query(LIST, &[&tenant.0, &id, &from, &before.0, &before.1, &limit])
        .await?
        .iter()
        .map(attempt)
        .collect()
}

fn attempt(row: &tokio_postgres::Row) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        number: row.try_get(0)?,
        epoch: row.try_get(1)?,
        started_at: row.try_get(2)?,
        endpoint_version: row.try_get(3)?,
        total_ms: row.try_get(4)?,
        phases_us: [
            row.try_get(5)?,
            row.try_get(6)?,
            row.try_get(7)?,
            row.try_get(8)?,
            row.try_get(9)?,
        ],
        outcome: Outcome::try_from(row.try_get::<_, i16>(10)?)?,
        status_code: row.try_get(11)?,
        final_status: code(row.try_get(12)?)?,
        applied: row.try_get(13)?,
        address: row.try_get(14)?,
        response: row.try_get(15)?,
        error: row.try_get(16)?,
        url: row.try_get(17)?,
        dialled: row.try_get(18)?,
    })
}
