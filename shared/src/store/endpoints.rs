//! Endpoints as the API changes and shows them.
//!
//! Not here: how ingest ([`super::ingest`]) and workers read them.
//!
//! # Invariants
//! - Every change raises `tenants.config_version` in its own transaction (exact fan-out) and leaves
//!   a command for the slot's owner. Rows are locked in the order endpoint, tenant.
//! - An endpoint that is enabled again starts with a probe (B1).
//! - S3: every statement names the tenant; an endpoint of another one is not found.
//! - S2: secrets and header values come in and go out sealed.

use serde_json::Value;
use time::OffsetDateTime;
use tokio_postgres::types::{Json, ToSql};
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::{StoreError, endpoint_secrets, removals};
use crate::domain::endpoint::{EndpointSettings, EndpointState};
use crate::ids::{EndpointKey, Slot, TenantKey};

/// The most endpoints of one tenant that are not deleted.
pub const MAX_ENDPOINTS: i64 = 10_000;

/// The verb of a command that makes the slot's owner read the endpoint again.
const RELOAD: i16 = 1;

/// Nothing is inserted at the limit; parallel requests may exceed it by their number.
const CREATE: &str = "
INSERT INTO endpoints (public_id, tenant_id, slot, state, url, description, event_types, channels, settings, sealed_headers, metadata, ordered, sealed_client_certificate)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, $14
WHERE (SELECT count(*) FROM endpoints e WHERE e.tenant_id = $2 AND e.state <> 3) < $12
RETURNING id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate";

/// Locks the tenant's row for the rest of the transaction.
const RAISE_VERSION: &str = "UPDATE tenants SET config_version = config_version + 1 WHERE id = $1";

const COMMAND: &str =
    "INSERT INTO commands (slot, tenant_id, endpoint_id, verb) VALUES ($1, $2, $3, $4)";

/// Uses `endpoints_public_id_key`.
const FIND: &str = "
SELECT id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate
FROM endpoints WHERE public_id = $1 AND tenant_id = $2 AND state <> 3";

/// [`FIND`] that locks the row.
const FIND_FOR_UPDATE: &str = "
SELECT id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate
FROM endpoints WHERE public_id = $1 AND tenant_id = $2 AND state <> 3 FOR UPDATE";

/// Deleted ones too: their deliveries can still be read. Uses `endpoints_public_id_key`.
const KEY: &str = "SELECT id FROM endpoints WHERE public_id = $1 AND tenant_id = $2";

/// Newest first, after the endpoint with the public id $2. Uses `endpoints_tenant`; rows are compared so that no walk is
/// through everybody's.
const LIST: &str = "
SELECT id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate
FROM endpoints
WHERE tenant_id >= $1 AND state <> 3
  AND (tenant_id, id) < ($1, CASE WHEN $2::uuid IS NULL THEN 9223372036854775807 ELSE (SELECT c.id FROM endpoints c WHERE c.public_id = $2 AND c.tenant_id = $1) END)
ORDER BY tenant_id DESC, id DESC LIMIT $3";

const UPDATE: &str = "
UPDATE endpoints SET version = version + 1, updated_at = now(), state = $2, state_reason = $3, url = $4, description = $5,
  event_types = $6, channels = $7, settings = $8, sealed_headers = $9, metadata = $10, ordered = $11, sealed_client_certificate = $12
WHERE id = $1
RETURNING id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate";

/// For what is kept beside the row: its secrets.
const RAISE: &str = "
UPDATE endpoints SET version = version + 1, updated_at = now() WHERE id = $1
RETURNING id, public_id, slot, version, state, url, description, event_types, channels, settings, sealed_headers, metadata, created_at, updated_at, ordered, sealed_client_certificate";

/// Which URL an endpoint has from this version on: attempts name the version.
const KEEP_URL: &str = "INSERT INTO endpoint_urls (endpoint_id, version, url) VALUES ($1, $2, $3)";

/// An endpoint that is enabled again: its breaker is open and its probe due, what it did before counts
/// no more. The owner learns of it by the command. By `endpoint_runtime_pkey`.
const START_WITH_PROBE: &str = "
INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, breaker, opened_at, cooldown, next_probe_at, enabled_at)
VALUES ($1, $2, $3, 1, now(), $4::float8 * interval '1 s', now(), now())
ON CONFLICT (endpoint_id) DO UPDATE SET
  slot = excluded.slot, tenant_id = excluded.tenant_id, breaker = excluded.breaker, opened_at = excluded.opened_at,
  cooldown = excluded.cooldown, next_probe_at = excluded.next_probe_at, failing_since = NULL, refusing_since = NULL,
  recover_from = NULL, recover_until = NULL, recover_refused = NULL, parked_until = NULL, enabled_at = excluded.enabled_at";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("endpoints.create", CREATE),
    ("endpoints.raise_version", RAISE_VERSION),
    ("endpoints.command", COMMAND),
    ("endpoints.find", FIND),
    ("endpoints.key", KEY),
    ("endpoints.find_for_update", FIND_FOR_UPDATE),
    ("endpoints.list", LIST),
    ("endpoints.update", UPDATE),
    ("endpoints.raise", RAISE),
    ("endpoints.keep_url", KEEP_URL),
    ("endpoints.start_with_probe", START_WITH_PROBE),
];

/// What can be changed of an endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointDraft {
    /// Whether it takes deliveries.
    pub state: EndpointState,
    /// Where to, as parsed by `policy::address`.
    pub url: String,
    /// For people.
    pub description: String,
    /// Patterns; empty: all.
    pub event_types: Vec<String>,
    /// Empty: all.
    pub channels: Vec<String>,
    /// FIFO per ordering key.
    pub ordered: bool,
    /// Limits and backoff.
    pub settings: EndpointSettings,
    /// Own headers, sealed under `headers:<public id>`.
    pub sealed_headers: Option<Vec<u8>>,
    /// The certificate and key for mutual TLS, sealed under `client_certificate:<public id>`.
    pub sealed_client_certificate: Option<Vec<u8>>,
    /// The tenant's own notes: a JSON object.
    pub metadata: Value,
}

/// An endpoint as stored.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The key inside.
    pub key: EndpointKey,
    /// The public id.
    pub id: Uuid,
    /// Its share of the workers.
    pub slot: Slot,
    /// Raised by every change.
    pub version: i32,
    /// What can be changed.
    pub draft: EndpointDraft,
    /// Made at.
    pub created_at: OffsetDateTime,
    /// Changed last at.
    pub updated_at: OffsetDateTime,
}

/// Makes an endpoint with its first secret; `None` at [`MAX_ENDPOINTS`].
///
/// # Errors
/// Any [`StoreError`].
pub async fn create(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    id: Uuid,
    slot: Slot,
    new: (&EndpointDraft, &[u8]),
) -> Result<Option<Endpoint>, StoreError> {
    let (draft, sealed_secret) = new;
    let row = transaction
        .query_opt(
            CREATE,
            &[
                &id,
                &tenant.0,
                &slot.0,
                &draft.state.code(),
                &draft.url,
                &draft.description,
                &draft.event_types,
                &draft.channels,
                &Json(&draft.settings),
                &draft.sealed_headers,
                &draft.metadata,
                &MAX_ENDPOINTS,
                &draft.ordered,
                &draft.sealed_client_certificate,
            ],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let endpoint = read(&row)?;
    endpoint_secrets::add_secret(transaction, endpoint.key, sealed_secret).await?;
    keep_url(transaction, &endpoint).await?;
    transaction.execute(RAISE_VERSION, &[&tenant.0]).await?;
    Ok(Some(endpoint))
}

/// Finds an endpoint of a tenant that is not deleted.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Endpoint>, StoreError> {
    let row = client.query_opt(FIND, &[&id, &tenant.0]).await?;
    row.as_ref().map(read).transpose()
}

/// The key of an endpoint of a tenant, deleted ones included.
///
/// # Errors
/// Any [`StoreError`].
pub async fn key(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<EndpointKey>, StoreError> {
    let row = client.query_opt(KEY, &[&id, &tenant.0]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.map(EndpointKey))
}

/// The same as [`find`], locked until the transaction ends.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find_for_update(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Endpoint>, StoreError> {
    let row = transaction
        .query_opt(FIND_FOR_UPDATE, &[&id, &tenant.0])
        .await?;
    row.as_ref().map(read).transpose()
}

/// A tenant's endpoints, newest first, those after `before`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    tenant: TenantKey,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Endpoint>, StoreError> {
    client
        .query(LIST, &[&tenant.0, &before, &limit])
        .await?
        .iter()
        .map(read)
        .collect()
}

/// Changes an endpoint that was locked by [`find_for_update`], and tells its slot's owner. Call
/// [`super::notify::commands`] after the commit.
///
/// # Errors
/// Any [`StoreError`].
pub async fn update(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: &Endpoint,
    draft: &EndpointDraft,
) -> Result<Endpoint, StoreError> {
    let reason: Option<&str> = match draft.state {
        EndpointState::Enabled => None,
        EndpointState::Disabled | EndpointState::Deleted => Some("by the tenant"),
    };
    let row = transaction
        .query_one(
            UPDATE,
            &[
                &endpoint.key.0,
                &draft.state.code(),
                &reason,
                &draft.url,
                &draft.description,
                &draft.event_types,
                &draft.channels,
                &Json(&draft.settings),
                &draft.sealed_headers,
                &draft.metadata,
                &draft.ordered,
                &draft.sealed_client_certificate,
            ],
        )
        .await?;
    let changed = read(&row)?;
    if draft.url != endpoint.draft.url {
        keep_url(transaction, &changed).await?;
    }
    let enabled = |draft: &EndpointDraft| draft.state == EndpointState::Enabled;
    if enabled(draft) && !enabled(&endpoint.draft) {
        start_with_probe(transaction, tenant, &changed).await?;
    }
    if draft.state == EndpointState::Deleted {
        removals::begin_endpoint(transaction, tenant, changed.id).await?;
    }
    announce(transaction, tenant, &changed).await?;
    Ok(changed)
}

/// Makes a new version of an endpoint that was locked by [`find_for_update`], of which something was
/// changed that is kept elsewhere, and tells its slot's owner. As after [`update`], call
/// [`super::notify::commands`].
///
/// # Errors
/// Any [`StoreError`].
pub async fn raise(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: &Endpoint,
) -> Result<Endpoint, StoreError> {
    let row = transaction.query_one(RAISE, &[&endpoint.key.0]).await?;
    let changed = read(&row)?;
    announce(transaction, tenant, &changed).await?;
    Ok(changed)
}

async fn announce(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: &Endpoint,
) -> Result<(), StoreError> {
    transaction.execute(RAISE_VERSION, &[&tenant.0]).await?;
    let params: [&(dyn ToSql + Sync); 4] = [&endpoint.slot.0, &tenant.0, &endpoint.key.0, &RELOAD];
    transaction.execute(COMMAND, &params).await?;
    Ok(())
}

async fn keep_url(transaction: &Transaction<'_>, endpoint: &Endpoint) -> Result<(), StoreError> {
    let params: [&(dyn ToSql + Sync); 3] =
        [&endpoint.key.0, &endpoint.version, &endpoint.draft.url];
    transaction.execute(KEEP_URL, &params).await?;
    Ok(())
}

async fn start_with_probe(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    endpoint: &Endpoint,
) -> Result<(), StoreError> {
    let cooldown = f64::from(endpoint.draft.settings.breaker.cooldown_seconds);
    let params: [&(dyn ToSql + Sync); 4] =
        [&endpoint.key.0, &endpoint.slot.0, &tenant.0, &cooldown];
    transaction.execute(START_WITH_PROBE, &params).await?;
    Ok(())
}

pub(super) fn read(row: &tokio_postgres::Row) -> Result<Endpoint, StoreError> {
    let Json(settings) = row.try_get(9)?;
    Ok(Endpoint {
        key: EndpointKey(row.try_get(0)?),
        id: row.try_get(1)?,
        slot: Slot(row.try_get(2)?),
        version: row.try_get(3)?,
        draft: EndpointDraft {
            state: EndpointState::try_from(row.try_get::<_, i16>(4)?)?,
            url: row.try_get(5)?,
            description: row.try_get(6)?,
            event_types: row.try_get(7)?,
            channels: row.try_get(8)?,
            settings,
            sealed_headers: row.try_get(10)?,
            metadata: row.try_get(11)?,
            ordered: row.try_get(14)?,
            sealed_client_certificate: row.try_get(15)?,
        },
        created_at: row.try_get(12)?,
        updated_at: row.try_get(13)?,
    })
}
