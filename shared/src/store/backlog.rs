//! How many deliveries wait, per endpoint and tenant, and which endpoints turn new ones away for it.
//!
//! Not the decision (that is the worker's backlog job) and not the turning away: ingest reads
//! `endpoints.backlog_full` with the rest of the configuration and makes `closed` rows instead.
//!
//! # Why the heap is read and no index
//! Counted by index, each row costs a visit to the heap until VACUUM has been there: a million rows
//! at 20,000 endpoints took 7 times as long as reading the table in the order of its pages (and 2.4
//! times as long right after VACUUM). Ranges of pages bound each statement, and need no plan that a
//! stale statistic could spoil. A row that moves while we count is missed or counted twice; the
//! limits have 20 % of hysteresis.

use std::collections::HashMap;

use tokio_postgres::Client;

use super::StoreError;
use super::leases::{Lease, fenced};
use crate::domain::endpoint::EndpointSettings;
use crate::ids::{EndpointKey, TenantKey};

/// Pages (8 KiB) of a queue per statement: some 350,000 rows, under a tenth of a second.
const PAGES: i64 = 4_096;
/// Ids per look-up.
const LOOK_UP_BATCH: usize = 5_000;
/// Endpoints per update.
const UPDATE_BATCH: usize = 1_000;

/// How large a queue is. Reads no rows.
const SIZE: &str =
    "SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::int8";
/// A range of pages (TID range scan), whatever the planner believes of the table: how many wait, and how many of them
/// were tried.
const COUNT_READY: &str = "
SELECT tenant_id, endpoint_id, count(*), 0::int8 FROM ready
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid GROUP BY tenant_id, endpoint_id";
/// As [`COUNT_READY`].
const COUNT_RETRY: &str = "
SELECT tenant_id, endpoint_id, count(*), count(*) FROM retry
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid GROUP BY tenant_id, endpoint_id";
/// As [`COUNT_READY`].
const COUNT_ORDERED: &str = "
SELECT tenant_id, endpoint_id, count(*), count(due_at) FROM ready_ordered
WHERE ctid >= $1::text::tid AND ctid < $2::text::tid GROUP BY tenant_id, endpoint_id";
/// By primary key. `max_pending` is absent where it is the program's default ($3).
const OVER_LIMIT: &str = "
SELECT e.tenant_id, e.id FROM unnest($1::int8[], $2::int8[]) w(endpoint_id, waiting)
JOIN endpoints e ON e.id = w.endpoint_id
WHERE e.state = 1 AND NOT e.backlog_full
  AND w.waiting > coalesce((e.settings->>'max_pending')::int8, $3)";
/// Index endpoints_backlog_full.
const FULL: &str = "
SELECT tenant_id, id, coalesce((settings->>'max_pending')::int8, $1)
FROM endpoints WHERE backlog_full";
/// By primary key.
const TENANT_LIMITS: &str = "SELECT id, max_pending::int8 FROM tenants WHERE id = ANY ($1)";
/// Index endpoints_tenant.
const ENDPOINTS_OF: &str =
    "SELECT id FROM endpoints WHERE tenant_id = $1 AND state = 1 AND NOT backlog_full ORDER BY id";
/// By primary keys. Locks endpoints and then their tenant, as every change of an endpoint does.
/// Not a change of the endpoint's version: what is sent, and how, stays as it is.
const SET_FULL: &str = fenced!(
    ", changed AS (
       UPDATE endpoints SET backlog_full = $6
       WHERE tenant_id = $4 AND id = ANY ($5) AND backlog_full <> $6 AND EXISTS (SELECT FROM mine)
       RETURNING 1),
     done AS MATERIALIZED (SELECT count(*) AS changed FROM changed),
     raised AS (
       UPDATE tenants SET config_version = config_version + 1
       WHERE id = $4 AND (SELECT changed FROM done) > 0)
     SELECT (SELECT changed FROM done) FROM mine"
);

/// See [`super::statements`].
pub const STATEMENTS: &[(&str, &str)] = &[
    ("backlog.size", SIZE),
    ("backlog.count_ready", COUNT_READY),
    ("backlog.count_retry", COUNT_RETRY),
    ("backlog.count_ordered", COUNT_ORDERED),
    ("backlog.over_limit", OVER_LIMIT),
    ("backlog.full", FULL),
    ("backlog.tenant_limits", TENANT_LIMITS),
    ("backlog.endpoints_of", ENDPOINTS_OF),
    ("backlog.set_full", SET_FULL),
];

/// What waits, at the time of a count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// By endpoint; absent means none.
    pub endpoints: HashMap<EndpointKey, i64>,
    /// By tenant: the sum of its endpoints.
    pub tenants: HashMap<TenantKey, i64>,
    /// In all: waiting for their first attempt.
    pub pending: i64,
    /// In all: waiting for another attempt.
    pub failed: i64,
}

/// An endpoint that turns new deliveries away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullEndpoint {
    /// Whose it is.
    pub tenant: TenantKey,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// How many deliveries may wait.
    pub max_pending: i64,
}

/// Counts what waits in `ready`, `retry` and `ready_ordered`.
///
/// # Errors
/// Those of the database.
pub async fn count_waiting(client: &Client) -> Result<Waiting, StoreError> {
    let mut waiting = Waiting::default();
    for (table, statement) in [
        ("ready", COUNT_READY),
        ("retry", COUNT_RETRY),
        ("ready_ordered", COUNT_ORDERED),
    ] {
        let pages: i64 = client.query_one(SIZE, &[&table]).await?.get(0);
        let statement = client.prepare(statement).await?;
        let mut from = 0;
        while from < pages {
            let to = from + PAGES;
            let rows = client
                .query(&statement, &[&format!("({from},0)"), &format!("({to},0)")])
                .await?;
            for row in rows {
                let (tenant, endpoint) = (TenantKey(row.get(0)), EndpointKey(row.get(1)));
                let count: i64 = row.get(2);
                *waiting.endpoints.entry(endpoint).or_default() += count;
                *waiting.tenants.entry(tenant).or_default() += count;
                let tried: i64 = row.get(3);
                waiting.failed += tried;
                waiting.pending += count - tried;
            }
            from = to;
        }
    }
    Ok(waiting)
}

/// Enabled endpoints that have more waiting than they may and do not turn new ones away yet.
///
/// # Errors
/// Those of the database.
pub async fn over_limit(
    client: &Client,
    waiting: &Waiting,
) -> Result<Vec<(TenantKey, EndpointKey)>, StoreError> {
    let default = i64::from(EndpointSettings::default().max_pending);
    let all: Vec<(i64, i64)> = waiting
        .endpoints
        .iter()
        .map(|(endpoint, count)| (endpoint.0, *count))
        .collect();
    let mut over = Vec::new();
    for batch in all.chunks(LOOK_UP_BATCH) {
        let (ids, counts): (Vec<i64>, Vec<i64>) = batch.iter().copied().unzip();
        let rows = client.query(OVER_LIMIT, &[&ids, &counts, &default]).await?;
        over.extend(
            rows.iter()
                .map(|row| (TenantKey(row.get(0)), EndpointKey(row.get(1)))),
        );
    }
    Ok(over)
}

/// Endpoints that turn new deliveries away.
///
/// # Errors
/// Those of the database.
pub async fn full_endpoints(client: &Client) -> Result<Vec<FullEndpoint>, StoreError> {
    let default = i64::from(EndpointSettings::default().max_pending);
    let rows = client.query(FULL, &[&default]).await?;
    Ok(rows
        .iter()
        .map(|row| FullEndpoint {
            tenant: TenantKey(row.get(0)),
            endpoint: EndpointKey(row.get(1)),
            max_pending: row.get(2),
        })
        .collect())
}

/// How many deliveries may wait, for the tenants that have any.
///
/// # Errors
/// Those of the database.
pub async fn tenant_limits(
    client: &Client,
    waiting: &Waiting,
) -> Result<HashMap<TenantKey, i64>, StoreError> {
    let all: Vec<i32> = waiting.tenants.keys().map(|tenant| tenant.0).collect();
    let mut limits = HashMap::with_capacity(all.len());
    for batch in all.chunks(LOOK_UP_BATCH) {
        for row in client.query(TENANT_LIMITS, &[&batch]).await? {
            limits.insert(TenantKey(row.get(0)), row.get(1));
        }
    }
    Ok(limits)
}

/// The enabled endpoints of a tenant that do not turn new deliveries away.
///
/// # Errors
/// Those of the database.
pub async fn accepting_endpoints(
    client: &Client,
    tenant: TenantKey,
) -> Result<Vec<EndpointKey>, StoreError> {
    let rows = client.query(ENDPOINTS_OF, &[&tenant.0]).await?;
    Ok(rows.iter().map(|row| EndpointKey(row.get(0))).collect())
}

/// Makes endpoints of one tenant turn new deliveries away, or take them again; with the tenant's
/// configuration version, so that the next event of any API process obeys. Returns how many changed.
///
/// # Errors
/// [`StoreError::NotOwner`] when the lease is lost; else those of the database.
pub async fn set_full(
    client: &Client,
    lease: &Lease,
    tenant: TenantKey,
    endpoints: &[EndpointKey],
    full: bool,
) -> Result<u64, StoreError> {
    let mut changed = 0;
    let mut ids: Vec<i64> = endpoints.iter().map(|endpoint| endpoint.0).collect();
    ids.sort_unstable();
    for batch in ids.chunks(UPDATE_BATCH) {
        let row = client
            .query_opt(
                SET_FULL,
                &[
                    &lease.name,
                    &lease.owner.0,
                    &lease.epoch.0,
                    &tenant.0,
                    &batch,
                    &full,
                ],
            )
            .await?;
        let count: i64 = row.ok_or(StoreError::NotOwner)?.get(0);
        changed += u64::try_from(count).unwrap_or(0);
    }
    Ok(changed)
}
