//! Ids of events that came to nothing, because their key stood for another event already.
//!
//! An API that accepts events on local disk gives an id before it can ask whether another process has accepted the same
//! key. Such an id stands for that event from then on.
//!
//! They are rows of `idempotency_keys`, under a key that no request can have: what deletes a tenant's keys and what
//! deletes those that expired finds them as well.
//!
//! # Invariants
//! - S3: every statement names the tenant.

use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::StoreError;
use crate::ids::TenantKey;

/// Again after a crash changes nothing. As long as events are kept by default. Uses `idempotency_keys_pkey`.
const ADD: &str = "
INSERT INTO idempotency_keys (tenant_id, key, body_hash, event_id, expires_at)
SELECT u.tenant_id, 'a:' || u.id, '', u.event_id, now() + interval '30 days'
FROM unnest($1::int4[], $2::uuid[], $3::uuid[]) AS u(tenant_id, id, event_id)
ORDER BY u.tenant_id, ('a:' || u.id) COLLATE \"C\"
ON CONFLICT DO NOTHING";

/// Uses `idempotency_keys_pkey`.
const FIND: &str = "SELECT event_id FROM idempotency_keys WHERE tenant_id = $1 AND key = 'a:' || $2::uuid AND expires_at > now()";

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[("aliases.add", ADD), ("aliases.find", FIND)];

/// An id that stands for another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    /// Whose both are.
    pub tenant: TenantKey,
    /// The id that was given.
    pub id: Uuid,
    /// The event that exists.
    pub of: Uuid,
}

/// Stores aliases.
///
/// # Errors
/// Any [`StoreError`].
pub async fn add(client: &impl GenericClient, aliases: &[Alias]) -> Result<(), StoreError> {
    let tenants: Vec<i32> = aliases.iter().map(|alias| alias.tenant.0).collect();
    let ids: Vec<Uuid> = aliases.iter().map(|alias| alias.id).collect();
    let events: Vec<Uuid> = aliases.iter().map(|alias| alias.of).collect();
    client.execute(ADD, &[&tenants, &ids, &events]).await?;
    Ok(())
}

/// The event that an id stands for, if it is an alias.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Uuid>, StoreError> {
    let row = client.query_opt(FIND, &[&tenant.0, &id]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
