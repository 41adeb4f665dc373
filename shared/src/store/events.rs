//! Events as the API shows them.
//!
//! # Invariants
//! - S3: every statement names the tenant.
//! - P1: the payload is read as it was stored.

use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::StoreError;
use crate::ids::TenantKey;

/// Newest first, ids from $2 (included) to $3 (excluded). Uses `events_pkey`.
const PAGE: &str = "
SELECT e.id, t.name, e.channels, e.deliver_before, octet_length(e.payload), cardinality(e.fan_delivery), e.external_id
FROM events e JOIN event_types t ON t.id = e.type_id
WHERE e.tenant_id = $1 AND e.id >= $2 AND e.id < $3
ORDER BY e.id DESC LIMIT $4";

/// The same for one type. Uses `events_type`.
const PAGE_OF_TYPE: &str = "
SELECT e.id, t.name, e.channels, e.deliver_before, octet_length(e.payload), cardinality(e.fan_delivery), e.external_id
FROM event_types t CROSS JOIN LATERAL (
  SELECT e.* FROM events e
  WHERE e.tenant_id = $1 AND e.type_id = t.id AND e.id >= $2 AND e.id < $3
  ORDER BY e.id DESC LIMIT $4) e
WHERE t.tenant_id = $1 AND t.name = $5
ORDER BY e.id DESC LIMIT $4";

/// The same with one external id, and of one type if $6 names one. Uses `events_external`.
const PAGE_OF_EXTERNAL_ID: &str = "
SELECT e.id, t.name, e.channels, e.deliver_before, octet_length(e.payload), cardinality(e.fan_delivery), e.external_id
FROM events e JOIN event_types t ON t.id = e.type_id
WHERE e.tenant_id = $1 AND e.external_id = $5 AND e.id >= $2 AND e.id < $3 AND ($6::text IS NULL OR t.name = $6)
ORDER BY e.id DESC LIMIT $4";

/// Uses `events_pkey` and `events_kept_pkey`.
const FIND: &str = "
SELECT e.id, t.name, e.channels, e.deliver_before, octet_length(e.payload), cardinality(e.fan_delivery), e.external_id
FROM (SELECT * FROM events WHERE tenant_id = $1 AND id = $2
      UNION ALL SELECT * FROM events_kept WHERE tenant_id = $1 AND id = $2) e
JOIN event_types t ON t.id = e.type_id LIMIT 1";

/// Uses `events_pkey` and `events_kept_pkey`.
const PAYLOAD: &str = "
SELECT payload FROM events WHERE tenant_id = $1 AND id = $2
UNION ALL SELECT payload FROM events_kept WHERE tenant_id = $1 AND id = $2 LIMIT 1";

/// Which fields of its payload the endpoints that an event went to want hidden, also those that it was sent to
/// later. Uses `events_pkey`, `events_kept_pkey`, `endpoints_pkey`, `endpoints_tenant` and `replayed_event`.
const REDACTED: &str = "
SELECT DISTINCT r.path
FROM (SELECT unnest(fan_endpoint) AS id FROM events WHERE tenant_id = $1 AND id = $2
      UNION ALL SELECT unnest(fan_endpoint) FROM events_kept WHERE tenant_id = $1 AND id = $2
      UNION ALL SELECT e.id FROM endpoints e WHERE e.tenant_id = $1 AND e.settings ? 'redact'
        AND EXISTS (SELECT FROM replayed r WHERE r.endpoint_id = e.id AND r.event_id = $2)) f
CROSS JOIN LATERAL (SELECT * FROM endpoints p WHERE p.id = f.id AND p.tenant_id = $1 OFFSET 0) p
CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(p.settings -> 'redact', '[]')) AS r(path)";

/// The deliveries of an event, newest first, ids below $3. Uses `events_pkey` and `events_kept_pkey`.
const DELIVERIES: &str = "
SELECT ARRAY(SELECT d.id FROM unnest(e.fan_delivery) AS d(id) WHERE d.id < $3 ORDER BY d.id DESC LIMIT $4)
FROM (SELECT fan_delivery FROM events WHERE tenant_id = $1 AND id = $2
      UNION ALL SELECT fan_delivery FROM events_kept WHERE tenant_id = $1 AND id = $2) e LIMIT 1";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("events.page", PAGE),
    ("events.page_of_type", PAGE_OF_TYPE),
    ("events.page_of_external_id", PAGE_OF_EXTERNAL_ID),
    ("events.find", FIND),
    ("events.payload", PAYLOAD),
    ("events.redacted", REDACTED),
    ("events.deliveries", DELIVERIES),
];

/// An event without its payload.
#[derive(Debug, Clone)]
pub struct Event {
    /// UUIDv7; `created_at` is in it.
    pub id: Uuid,
    /// Its type.
    pub event_type: String,
    /// Its channels.
    pub channels: Vec<String>,
    /// Too late after this.
    pub deliver_before: Option<OffsetDateTime>,
    /// The size of its payload in bytes.
    pub payload_bytes: i32,
    /// How many deliveries were made when it was accepted.
    pub delivery_count: i32,
    /// The tenant's own id of it.
    pub external_id: Option<String>,
}

/// Which events a list is of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Those of this type.
    pub event_type: Option<&'a str>,
    /// Those with this external id.
    pub external_id: Option<&'a str>,
}

/// A range of ids: from the first (included) to the second (excluded).
pub type IdRange = (Uuid, Uuid);

/// A tenant's events in a range of ids, newest first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn page(
    client: &impl GenericClient,
    tenant: TenantKey,
    filter: Filter<'_>,
    range: IdRange,
    limit: i64,
) -> Result<Vec<Event>, StoreError> {
    let (from, to) = range;
    let rows = match (filter.external_id, filter.event_type) {
        (Some(external_id), event_type) => {
            client
                .query(
                    PAGE_OF_EXTERNAL_ID,
                    &[&tenant.0, &from, &to, &limit, &external_id, &event_type],
                )
                .await?
        }
        (None, None) => client.query(PAGE, &[&tenant.0, &from, &to, &limit]).await?,
        (None, Some(name)) => {
            client
                .query(PAGE_OF_TYPE, &[&tenant.0, &from, &to, &limit, &name])
                .await?
        }
    };
    rows.iter().map(event).collect()
}

/// Finds an event of a tenant.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Event>, StoreError> {
    let row = client.query_opt(FIND, &[&tenant.0, &id]).await?;
    row.as_ref().map(event).transpose()
}

/// The bytes that came in.
///
/// # Errors
/// Any [`StoreError`].
pub async fn payload(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Option<Vec<u8>>, StoreError> {
    let row = client.query_opt(PAYLOAD, &[&tenant.0, &id]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Paths of the payload's fields that the endpoints which an event went to want hidden.
///
/// # Errors
/// Any [`StoreError`].
pub async fn redacted(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Vec<String>, StoreError> {
    let rows = client.query(REDACTED, &[&tenant.0, &id]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// The deliveries that were made when the event was accepted, newest first, those below `before`;
/// `None` when there is no such event.
///
/// # Errors
/// Any [`StoreError`].
pub async fn deliveries(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: Uuid,
    before: Uuid,
    limit: i64,
) -> Result<Option<Vec<Uuid>>, StoreError> {
    let row = client
        .query_opt(DELIVERIES, &[&tenant.0, &id, &before, &limit])
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

pub(super) fn event(row: &tokio_postgres::Row) -> Result<Event, StoreError> {
    Ok(Event {
        id: row.try_get(0)?,
        event_type: row.try_get(1)?,
        channels: row.try_get::<_, Option<_>>(2)?.unwrap_or_default(),
        deliver_before: row.try_get(3)?,
        payload_bytes: row.try_get(4)?,
        delivery_count: row.try_get(5)?,
        external_id: row.try_get(6)?,
    })
}
