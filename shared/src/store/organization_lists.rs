//! Lists across an organization's tenants: newest first, a page at a time.
//!
//! No index has the organization: one more on `events` or on the queues would be paid for by every
//! event. A page costs one probe of the tenant's index per tenant (the *heads*), then rows of those
//! tenants only whose head is among the newest: what comes first in a merge of n sorted lists lies in the
//! n lists with the newest heads. Events and deliveries are read a day at a time, which is one partition.
//! With 10,000 tenants that is 10,000 probes of some microseconds per day and table: 30 ms for events or
//! endpoints, 250 ms for deliveries, which lie in six tables.
//!
//! # Invariants
//! - S3: tenants come from `tenants.organization_id`, and every row from one of them.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::deliveries::{self, Delivery};
use super::endpoints::{self, Endpoint};
use super::events::{self, Event, IdRange};
use super::{Reader, StoreError};
use crate::domain::delivery::Status;
use crate::ids::created_at;

/// A row and the public id of its tenant.
pub type Owned<T> = (Uuid, T);

/// Uses `tenants_organization`, then `endpoints_tenant` per tenant.
const ENDPOINTS: &str = "
WITH start AS MATERIALIZED (
  SELECT coalesce((SELECT e.id FROM endpoints e JOIN tenants t ON t.id = e.tenant_id WHERE e.public_id = $2 AND t.organization_id = $1), 9223372036854775807) AS id),
heads AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.public_id, h.id FROM start CROSS JOIN tenants t CROSS JOIN LATERAL (
    SELECT e.id FROM endpoints e WHERE e.tenant_id = t.id AND e.id < start.id AND e.state <> 3
    ORDER BY e.tenant_id DESC, e.id DESC LIMIT 1) h
  WHERE t.organization_id = $1 AND t.deleted_at IS NULL ORDER BY h.id DESC LIMIT $3)
SELECT e.id, e.public_id, e.slot, e.version, e.state, e.url, e.description, e.event_types, e.channels, e.settings, e.sealed_headers, e.metadata, e.created_at, e.updated_at, e.ordered, e.sealed_client_certificate, h.public_id
FROM start CROSS JOIN heads h CROSS JOIN LATERAL (
  SELECT * FROM endpoints e WHERE e.tenant_id = h.tenant_id AND e.id < start.id AND e.state <> 3
  ORDER BY e.tenant_id DESC, e.id DESC LIMIT $3) e
ORDER BY e.id DESC LIMIT $3";

/// The events of the `page` that `$with` makes.
macro_rules! events {
    ($with:literal) => {
        concat!(
            $with,
            "SELECT e.id, t.name, e.channels, e.deliver_before, octet_length(e.payload), cardinality(e.fan_delivery), e.external_id, p.public_id
FROM page p CROSS JOIN LATERAL (
  SELECT * FROM events e WHERE e.tenant_id = p.tenant_id AND e.id = p.id AND e.id >= $2 AND e.id < $3 OFFSET 0) e
JOIN event_types t ON t.id = e.type_id
ORDER BY e.id DESC"
        )
    };
}

/// Uses `tenants_organization`, then `events_pkey` of the range's partition per tenant.
const EVENTS: &str = events!(
    "
WITH heads AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.public_id, h.id FROM tenants t CROSS JOIN LATERAL (
    SELECT e.id FROM events e WHERE e.tenant_id = t.id AND e.id >= $2 AND e.id < $3
    ORDER BY e.tenant_id DESC, e.id DESC LIMIT 1) h
  WHERE t.organization_id = $1 AND t.deleted_at IS NULL ORDER BY h.id DESC LIMIT $4),
page AS MATERIALIZED (
  SELECT h.tenant_id, h.public_id, e.id FROM heads h CROSS JOIN LATERAL (
    SELECT e.id FROM events e WHERE e.tenant_id = h.tenant_id AND e.id >= $2 AND e.id < $3
    ORDER BY e.tenant_id DESC, e.id DESC LIMIT $4) e
  ORDER BY e.id DESC LIMIT $4)
"
);

/// The same for one type. Uses `event_types_tenant_id_name_key` and `events_type` per tenant.
const EVENTS_OF_TYPE: &str = events!(
    "
WITH heads AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.public_id, ty.id AS type_id, h.id FROM tenants t
  JOIN event_types ty ON ty.tenant_id = t.id AND ty.name = $5 CROSS JOIN LATERAL (
    SELECT e.id FROM events e WHERE e.tenant_id = t.id AND e.type_id = ty.id AND e.id >= $2 AND e.id < $3
    ORDER BY e.tenant_id DESC, e.type_id DESC, e.id DESC LIMIT 1) h
  WHERE t.organization_id = $1 AND t.deleted_at IS NULL ORDER BY h.id DESC LIMIT $4),
page AS MATERIALIZED (
  SELECT h.tenant_id, h.public_id, e.id FROM heads h CROSS JOIN LATERAL (
    SELECT e.id FROM events e WHERE e.tenant_id = h.tenant_id AND e.type_id = h.type_id AND e.id >= $2 AND e.id < $3
    ORDER BY e.tenant_id DESC, e.type_id DESC, e.id DESC LIMIT $4) e
  ORDER BY e.id DESC LIMIT $4)
"
);

/// Ids of deliveries, of all states or ($5) of one but `in_flight`. Per tenant the newest of each table, by the
/// `…_by_id` indexes and primary keys; tables of other states are not looked at (one-time filters).
const DELIVERIES: &str = "
WITH flying AS MATERIALIZED (SELECT unnest(in_flight) AS id FROM workers WHERE expires_at > now()),
heads AS MATERIALIZED (
  SELECT t.id AS tenant_id, t.public_id, h.id FROM tenants t CROSS JOIN LATERAL (
    SELECT x.id FROM (
      (SELECT id FROM ready WHERE ($5::int2 IS NULL OR $5 = 1) AND tenant_id = t.id AND id >= $2 AND id < $3
         AND ($5 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY tenant_id DESC, id DESC LIMIT 1)
      UNION ALL
      (SELECT id FROM ready_ordered WHERE ($5 IS NULL OR $5 IN (1, 4)) AND tenant_id = t.id AND id >= $2 AND id < $3
         AND ($5 IS NULL OR $5 = CASE WHEN due_at IS NULL THEN 1 ELSE 4 END AND NOT id IN (SELECT id FROM flying))
         ORDER BY tenant_id DESC, id DESC LIMIT 1)
      UNION ALL
      (SELECT id FROM retry WHERE ($5 IS NULL OR $5 = 4) AND tenant_id = t.id AND id >= $2 AND id < $3
         AND ($5 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY tenant_id DESC, id DESC LIMIT 1)
      UNION ALL
      (SELECT id FROM dead_letters WHERE ($5 IS NULL OR $5 = 5) AND tenant_id = t.id AND id >= $2 AND id < $3
         ORDER BY tenant_id DESC, id DESC LIMIT 1)
      UNION ALL
      (SELECT id FROM closed WHERE ($5 IS NULL OR $5 IN (6, 7)) AND tenant_id = t.id AND id >= $2 AND id < $3
         AND ($5 IS NULL OR status = $5) ORDER BY tenant_id DESC, id DESC LIMIT 1)
      UNION ALL
      (SELECT delivery_id FROM attempts WHERE ($5 IS NULL OR $5 = 3) AND tenant_id = t.id AND delivery_id >= $2 AND delivery_id < $3
         AND started_at >= $6 AND applied AND final_status = 3 ORDER BY tenant_id DESC, delivery_id DESC LIMIT 1)
    ) x ORDER BY x.id DESC LIMIT 1) h
  WHERE t.organization_id = $1 AND t.deleted_at IS NULL ORDER BY h.id DESC LIMIT $4)
SELECT h.tenant_id, h.public_id, x.id FROM heads h CROSS JOIN LATERAL (
  (SELECT id FROM ready WHERE ($5::int2 IS NULL OR $5 = 1) AND tenant_id = h.tenant_id AND id >= $2 AND id < $3
     AND ($5 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY tenant_id DESC, id DESC LIMIT $4)
  UNION ALL
  (SELECT id FROM ready_ordered WHERE ($5 IS NULL OR $5 IN (1, 4)) AND tenant_id = h.tenant_id AND id >= $2 AND id < $3
     AND ($5 IS NULL OR $5 = CASE WHEN due_at IS NULL THEN 1 ELSE 4 END AND NOT id IN (SELECT id FROM flying))
     ORDER BY tenant_id DESC, id DESC LIMIT $4)
  UNION ALL
  (SELECT id FROM retry WHERE ($5 IS NULL OR $5 = 4) AND tenant_id = h.tenant_id AND id >= $2 AND id < $3
     AND ($5 IS NULL OR NOT id IN (SELECT id FROM flying)) ORDER BY tenant_id DESC, id DESC LIMIT $4)
  UNION ALL
  (SELECT id FROM dead_letters WHERE ($5 IS NULL OR $5 = 5) AND tenant_id = h.tenant_id AND id >= $2 AND id < $3
     ORDER BY tenant_id DESC, id DESC LIMIT $4)
  UNION ALL
  (SELECT id FROM closed WHERE ($5 IS NULL OR $5 IN (6, 7)) AND tenant_id = h.tenant_id AND id >= $2 AND id < $3
     AND ($5 IS NULL OR status = $5) ORDER BY tenant_id DESC, id DESC LIMIT $4)
  UNION ALL
  (SELECT delivery_id FROM attempts WHERE ($5 IS NULL OR $5 = 3) AND tenant_id = h.tenant_id AND delivery_id >= $2 AND delivery_id < $3
     AND started_at >= $6 AND applied AND final_status = 3 ORDER BY tenant_id DESC, delivery_id DESC LIMIT $4)
) x(id)
ORDER BY x.id DESC LIMIT $4";

/// What living workers list, as far as it is the organization's and still live: each is looked for at each tenant, the newest
/// first, until the page is full.
const DELIVERIES_IN_FLIGHT: &str = "
WITH whose AS MATERIALIZED (SELECT id, public_id FROM tenants WHERE organization_id = $1 AND deleted_at IS NULL)
SELECT l.tenant_id, l.public_id, f.id FROM (
  SELECT id FROM (SELECT DISTINCT unnest(in_flight) AS id FROM workers WHERE expires_at > now()) f
  WHERE id >= $2 AND id < $3 ORDER BY id DESC OFFSET 0) f
CROSS JOIN LATERAL (
  SELECT l.tenant_id, t.public_id FROM whose t CROSS JOIN LATERAL (
    SELECT tenant_id FROM ready WHERE tenant_id = t.id AND id = f.id
    UNION ALL SELECT tenant_id FROM retry WHERE tenant_id = t.id AND id = f.id
    UNION ALL SELECT tenant_id FROM ready_ordered WHERE tenant_id = t.id AND id = f.id) l LIMIT 1) l
LIMIT $4";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("organization_lists.endpoints", ENDPOINTS),
    ("organization_lists.events", EVENTS),
    ("organization_lists.events_of_type", EVENTS_OF_TYPE),
    ("organization_lists.deliveries", DELIVERIES),
    (
        "organization_lists.deliveries_in_flight",
        DELIVERIES_IN_FLIGHT,
    ),
];

/// Endpoints that are not deleted, those after the one with the public id `before`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn endpoints(
    client: &impl Reader,
    organization: i32,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Owned<Endpoint>>, StoreError> {
    let rows = client
        .rows(ENDPOINTS, &[&organization, &before, &limit])
        .await?;
    let owned = |row: &Row| Ok((row.try_get(16)?, endpoints::read(row)?));
    rows.iter().map(owned).collect()
}

/// Events in a range of ids, which should lie within a day.
///
/// # Errors
/// Any [`StoreError`].
pub async fn events(
    client: &impl Reader,
    organization: i32,
    event_type: Option<&str>,
    (from, to): IdRange,
    limit: i64,
) -> Result<Vec<Owned<Event>>, StoreError> {
    let rows = match event_type {
        None => {
            let params: [&(dyn ToSql + Sync); 4] = [&organization, &from, &to, &limit];
            client.rows(EVENTS, &params).await?
        }
        Some(name) => {
            let params: [&(dyn ToSql + Sync); 5] = [&organization, &from, &to, &limit, &name];
            client.rows(EVENTS_OF_TYPE, &params).await?
        }
    };
    let owned = |row: &Row| Ok((row.try_get(7)?, events::event(row)?));
    rows.iter().map(owned).collect()
}

/// Deliveries in a range of ids, which should lie within a day.
///
/// # Errors
/// Any [`StoreError`].
pub async fn deliveries(
    client: &impl Reader,
    organization: i32,
    status: Option<Status>,
    (from, to): IdRange,
    limit: i64,
) -> Result<Vec<Owned<Delivery>>, StoreError> {
    let rows = if status == Some(Status::InFlight) {
        let params: [&(dyn ToSql + Sync); 4] = [&organization, &from, &to, &limit];
        client.rows(DELIVERIES_IN_FLIGHT, &params).await?
    } else {
        let status = status.map(Status::code);
        let since = deliveries::earliest_attempt(from);
        debug_assert!(since <= created_at(from), "no attempt before its delivery");
        let params: [&(dyn ToSql + Sync); 6] = [&organization, &from, &to, &limit, &status, &since];
        client.rows(DELIVERIES, &params).await?
    };
    let mut tenants: Vec<i32> = Vec::with_capacity(rows.len());
    let mut ids: Vec<Uuid> = Vec::with_capacity(rows.len());
    let mut owners = std::collections::HashMap::with_capacity(rows.len());
    for row in &rows {
        let id: Uuid = row.try_get(2)?;
        // While it moves from one table to another in two statements of ours it would be found twice; one
        // statement sees it once, so this is for an attempt that is recorded twice.
        if owners.insert(id, row.try_get::<_, Uuid>(1)?).is_none() {
            tenants.push(row.try_get(0)?);
            ids.push(id);
        }
    }
    let found = deliveries::by_tenants_and_ids(client, &tenants, &ids).await?;
    let owned = |delivery: Delivery| Some((owners.get(&delivery.id).copied()?, delivery));
    Ok(found.into_iter().filter_map(owned).collect())
}
