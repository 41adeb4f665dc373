//! How an endpoint fares, for its tenant's eyes: what its owner stored of it and what its last
//! attempts say. Nothing decides by this; the owner knows more, and sooner.
//!
//! # Invariants
//! - S3: the endpoint is found by its tenant; one of another tenant is not found.

use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::Json;
use uuid::Uuid;

use super::StoreError;
use super::endpoint_runtime::{self, PastAttempt, Runtime, runtime_columns};
use crate::domain::attempt::Outcome;
use crate::domain::endpoint::EndpointSettings;
use crate::ids::{EndpointKey, TenantKey};
use crate::policy::breaker::Signal;

/// So many of its last attempts are looked at.
pub const LAST_ATTEMPTS: i64 = 1_000;

/// By `endpoints_public_id_key` and `endpoint_runtime_pkey`. No lock.
const FIND: &str = concat!(
    "SELECT e.id, e.settings, ",
    runtime_columns!(),
    "
FROM endpoints e LEFT JOIN endpoint_runtime r ON r.endpoint_id = e.id
WHERE e.public_id = $1 AND e.tenant_id = $2 AND e.state <> 3"
);

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[("endpoint_health::find", FIND)];

/// How an endpoint fares.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// Its limits, the breaker's among them.
    pub settings: EndpointSettings,
    /// What its owner stored.
    pub runtime: Runtime,
    /// Failures at the end of its attempts, since it was enabled last.
    pub consecutive_failures: u16,
    /// The start of the last delivered one among its last [`LAST_ATTEMPTS`] attempts.
    pub last_success_at: Option<OffsetDateTime>,
    /// The start of the last one among them that failed or was refused.
    pub last_failure_at: Option<OffsetDateTime>,
}

/// How an endpoint of a tenant fares; `None` without such an endpoint.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &Client,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Health>, StoreError> {
    let Some(row) = client.query_opt(FIND, &[&id, &tenant.0]).await? else {
        return Ok(None);
    };
    let key = EndpointKey(row.try_get(0)?);
    let Json(settings) = row.try_get(1)?;
    let runtime = endpoint_runtime::read(&row, 2)?;
    let start = OffsetDateTime::UNIX_EPOCH;
    let found = endpoint_runtime::history(client, &[key], start, LAST_ATTEMPTS).await?;
    let attempts = found.into_iter().flat_map(|(_, attempts)| attempts);
    let attempts: Vec<PastAttempt> = attempts.collect();
    let last = |wanted: &[Outcome]| {
        let mut newest_first = attempts.iter();
        newest_first
            .find(|(outcome, _)| wanted.contains(outcome))
            .map(|(_, started_at)| *started_at)
    };
    Ok(Some(Health {
        settings,
        consecutive_failures: run_of_failures(&attempts, runtime.enabled_at),
        last_success_at: last(&[Outcome::Delivered]),
        last_failure_at: last(&[
            Outcome::Transient,
            Outcome::Misconfigured,
            Outcome::Permanent,
            Outcome::Gone,
        ]),
        runtime,
    }))
}

/// The failures since the last success, as the breaker counts them.
fn run_of_failures(newest_first: &[PastAttempt], enabled_at: Option<OffsetDateTime>) -> u16 {
    let run = newest_first
        .iter()
        .take_while(|(_, started_at)| enabled_at.is_none_or(|enabled| *started_at >= enabled))
        .map(|(outcome, _)| Signal::of(*outcome))
        .take_while(|signal| *signal != Signal::Success)
        .filter(|signal| *signal == Signal::Failure)
        .count();
    u16::try_from(run).unwrap_or(u16::MAX)
}
