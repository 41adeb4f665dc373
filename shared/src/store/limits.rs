//! Limits of organizations and tenants, and the count of events that quotas need.
//!
//! Counts are written by each API process once a second for the tenants that have a quota: one row per
//! tenant and day, never one update per event.
//!
//! # Invariants
//! - S3: every statement names the tenant or the organization.

use time::{Date, OffsetDateTime};
use tokio_postgres::types::Json;
use tokio_postgres::{GenericClient, Row};

use super::StoreError;
use crate::domain::limits::Limits;
use crate::ids::TenantKey;

/// The tenant's own, and its organization's.
const OF_TENANT: &str = "
SELECT t.limits, coalesce(o.limits, '{}') FROM tenants t LEFT JOIN organizations o ON o.id = t.organization_id
WHERE t.id = $1";
const OF_ORGANIZATION: &str = "SELECT limits FROM organizations WHERE id = $1";
/// Sets limits; which ones were there before.
macro_rules! set {
    ($table:literal, $more:literal) => {
        concat!(
            "
UPDATE ",
            $table,
            " t SET limits = $2",
            $more,
            "
FROM (SELECT id, limits FROM ",
            $table,
            " WHERE id = $1 FOR UPDATE) before
WHERE t.id = before.id RETURNING before.limits"
        )
    };
}

const SET_TENANT: &str = set!("tenants", ", changed_at = now()");
const SET_ORGANIZATION: &str = set!("organizations", "");

/// Uses `endpoints_tenant`; a tenant has at most 10,000.
const COUNT_ENDPOINTS: &str = "SELECT count(*) FROM endpoints WHERE tenant_id = $1 AND state <> 3";
/// Uses `event_types_tenant_id_name_key`.
const COUNT_EVENT_TYPES: &str = "SELECT count(*) FROM event_types WHERE tenant_id = $1";
/// Uses `tenants_organization`; stops at the limit.
const COUNT_TENANTS: &str = "
SELECT count(*) FROM (
  SELECT FROM tenants WHERE organization_id = $1 AND deleted_at IS NULL LIMIT $2) t";

/// In the order of keys: two processes cannot block each other for ever.
const ADD_EVENTS: &str = "
INSERT INTO event_counts (tenant_id, day, events)
SELECT * FROM unnest($1::int4[], $2::date[], $3::int8[]) AS u(tenant_id, day, events)
WHERE u.events <> 0 ORDER BY u.tenant_id, u.day
ON CONFLICT (tenant_id, day) DO UPDATE SET events = event_counts.events + excluded.events";
/// Of the day, and of its month. Uses `event_counts_pkey`.
const EVENTS: &str = "
SELECT u.ord, coalesce(sum(c.events) FILTER (WHERE c.day = u.day), 0)::int8, coalesce(sum(c.events), 0)::int8
FROM unnest($1::int4[], $2::date[]) WITH ORDINALITY AS u(tenant_id, day, ord)
LEFT JOIN LATERAL (
  SELECT c.day, c.events FROM event_counts c
  WHERE c.tenant_id = u.tenant_id AND c.day >= date_trunc('month', u.day::timestamp)::date AND c.day <= u.day OFFSET 0) c ON true
GROUP BY u.ord ORDER BY u.ord";

/// Tenants whose limits changed or that were deleted since, and the database's time. Uses `tenants_changed`.
const CHANGED: &str = "
SELECT now(), ARRAY(SELECT id FROM tenants WHERE changed_at >= $1 ORDER BY changed_at LIMIT 20000)";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("limits.of_tenant", OF_TENANT),
    ("limits.of_organization", OF_ORGANIZATION),
    ("limits.set_tenant", SET_TENANT),
    ("limits.set_organization", SET_ORGANIZATION),
    ("limits.count_endpoints", COUNT_ENDPOINTS),
    ("limits.count_event_types", COUNT_EVENT_TYPES),
    ("limits.count_tenants", COUNT_TENANTS),
    ("limits.add_events", ADD_EVENTS),
    ("limits.events", EVENTS),
    ("limits.changed", CHANGED),
];

/// A tenant's own limits, and those of its organization.
///
/// # Errors
/// Any [`StoreError`].
pub async fn of_tenant(
    client: &impl GenericClient,
    tenant: TenantKey,
) -> Result<Option<(Limits, Limits)>, StoreError> {
    let row = client.query_opt(OF_TENANT, &[&tenant.0]).await?;
    row.map(|row| {
        let (Json(own), Json(organization)) = (row.try_get(0)?, row.try_get(1)?);
        Ok((own, organization))
    })
    .transpose()
}

/// An organization's limits.
///
/// # Errors
/// Any [`StoreError`].
pub async fn of_organization(
    client: &impl GenericClient,
    organization: i32,
) -> Result<Limits, StoreError> {
    let row = client.query_one(OF_ORGANIZATION, &[&organization]).await?;
    let Json(limits) = row.try_get(0)?;
    Ok(limits)
}

/// Sets a tenant's own limits; those of before.
///
/// # Errors
/// Any [`StoreError`].
pub async fn set_tenant(
    client: &impl GenericClient,
    tenant: TenantKey,
    limits: &Limits,
) -> Result<Limits, StoreError> {
    let row = client
        .query_opt(SET_TENANT, &[&tenant.0, &Json(limits)])
        .await?;
    before(row.as_ref())
}

/// Sets an organization's limits; those of before.
///
/// # Errors
/// Any [`StoreError`].
pub async fn set_organization(
    client: &impl GenericClient,
    organization: i32,
    limits: &Limits,
) -> Result<Limits, StoreError> {
    let row = client
        .query_opt(SET_ORGANIZATION, &[&organization, &Json(limits)])
        .await?;
    before(row.as_ref())
}

fn before(row: Option<&Row>) -> Result<Limits, StoreError> {
    let Some(row) = row else {
        return Ok(Limits::default());
    };
    Ok(row.try_get::<_, Json<Limits>>(0)?.0)
}

/// How many endpoints a tenant has.
///
/// # Errors
/// Any [`StoreError`].
pub async fn count_endpoints(
    client: &impl GenericClient,
    tenant: TenantKey,
) -> Result<i64, StoreError> {
    let row = client.query_one(COUNT_ENDPOINTS, &[&tenant.0]).await?;
    Ok(row.try_get(0)?)
}

/// How many types of events a tenant has used.
///
/// # Errors
/// Any [`StoreError`].
pub async fn count_event_types(
    client: &impl GenericClient,
    tenant: TenantKey,
) -> Result<i64, StoreError> {
    let row = client.query_one(COUNT_EVENT_TYPES, &[&tenant.0]).await?;
    Ok(row.try_get(0)?)
}

/// How many tenants an organization has, up to `most`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn count_tenants(
    client: &impl GenericClient,
    organization: i32,
    most: i64,
) -> Result<i64, StoreError> {
    let row = client
        .query_one(COUNT_TENANTS, &[&organization, &most])
        .await?;
    Ok(row.try_get(0)?)
}

/// Adds to the counts of tenants and days.
///
/// # Errors
/// Any [`StoreError`]; after a transient one it is not known whether they were added.
pub async fn add_events(
    client: &impl GenericClient,
    counts: &[(TenantKey, Date, i64)],
) -> Result<(), StoreError> {
    let tenants: Vec<i32> = counts.iter().map(|count| count.0.0).collect();
    let days: Vec<Date> = counts.iter().map(|count| count.1).collect();
    let events: Vec<i64> = counts.iter().map(|count| count.2).collect();
    client
        .execute(ADD_EVENTS, &[&tenants, &days, &events])
        .await?;
    Ok(())
}

/// Events of each of these days, and of its month up to it, in the order asked.
///
/// # Errors
/// Any [`StoreError`].
pub async fn events(
    client: &impl GenericClient,
    asked: &[(TenantKey, Date)],
) -> Result<Vec<(i64, i64)>, StoreError> {
    let tenants: Vec<i32> = asked.iter().map(|asked| asked.0.0).collect();
    let days: Vec<Date> = asked.iter().map(|asked| asked.1).collect();
    let rows = client.query(EVENTS, &[&tenants, &days]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(1)?, row.try_get(2)?)))
        .collect()
}

/// Tenants that changed since an instant, and the database's time. One that commits late may have an
/// older instant: ask again from somewhat before the last answer.
///
/// # Errors
/// Any [`StoreError`].
pub async fn changed(
    client: &impl GenericClient,
    since: OffsetDateTime,
) -> Result<(OffsetDateTime, Vec<TenantKey>), StoreError> {
    let row = client.query_one(CHANGED, &[&since]).await?;
    let tenants: Vec<i32> = row.try_get(1)?;
    Ok((
        row.try_get(0)?,
        tenants.into_iter().map(TenantKey).collect(),
    ))
}
