//! The backlog job: an endpoint or tenant with more deliveries waiting than it may have turns new
//! ones away (they become `skipped`, reason `backlog_full`, replayable) until under 80 % of it wait.
//!
//! Between two looks a backlog may grow past its limit: by what comes in in that time, no more. What was counted is also
//! shown (`postrider_deliveries`).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use shared::ids::{EndpointKey, TenantKey};
use shared::runtime::clock::boot_time;
use shared::store::backlog::{self, FullEndpoint, Waiting};
use shared::store::leases::Lease;
use shared::store::{Role, Session, StoreError};

use super::Job;
use crate::metrics::{Gauge, Installation, Standing, Value};

/// How often to look.
const EVERY: Duration = Duration::from_secs(10);
/// Looking takes at most a twentieth of the time, however many deliveries wait.
const SHARE: u32 = 20;
/// Percent of a limit under which new deliveries are taken again. Right at the limit the answer would
/// change with every look, and each change makes all API processes read the configuration again.
const CLEAR_UNDER: i64 = 80;

/// See the module.
pub(super) struct Backlog {
    pub(super) installation: Installation,
    pub(super) standing: Standing,
}

impl Job for Backlog {
    const NAME: &'static str = "backlog";
    const ROLE: Role = Role::Worker;

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let before = boot_time();
        let waiting = look(session, lease).await?;
        let pause = EVERY.max(boot_time().since(before) * SHARE);
        let count = |status, count: i64| {
            Value::count(Gauge::Deliveries, status, u64::try_from(count).unwrap_or(0))
        };
        let values = vec![
            count("pending", waiting.pending),
            count("failed", waiting.failed),
        ];
        self.installation.show(lease, &self.standing, values, pause);
        Ok(pause)
    }
}

/// Counts once and changes what has to change.
pub(super) async fn look(session: &Session, lease: &Lease) -> Result<Waiting, StoreError> {
    let waiting = backlog::count_waiting(session).await?;
    let limits = backlog::tenant_limits(session, &waiting).await?;
    let full_tenants = tenants_over(&waiting, &limits);

    let clear = to_clear(&waiting, &limits, backlog::full_endpoints(session).await?);
    for (tenant, endpoints) in clear {
        change(session, lease, tenant, &endpoints, false).await?;
    }
    for (tenant, endpoints) in by_tenant(backlog::over_limit(session, &waiting).await?) {
        change(session, lease, tenant, &endpoints, true).await?;
    }
    for tenant in full_tenants {
        let endpoints = backlog::accepting_endpoints(session, tenant).await?;
        change(session, lease, tenant, &endpoints, true).await?;
    }
    Ok(waiting)
}

async fn change(
    session: &Session,
    lease: &Lease,
    tenant: TenantKey,
    endpoints: &[EndpointKey],
    full: bool,
) -> Result<(), StoreError> {
    let changed = backlog::set_full(session, lease, tenant, endpoints, full).await?;
    if changed > 0 {
        tracing::warn!(
            tenant.key = tenant.0,
            endpoints = changed,
            full,
            "a backlog passed a limit: new deliveries to these endpoints are skipped while full"
        );
    }
    Ok(())
}

fn tenants_over(waiting: &Waiting, limits: &HashMap<TenantKey, i64>) -> HashSet<TenantKey> {
    waiting
        .tenants
        .iter()
        .filter(|(tenant, count)| limits.get(tenant).is_some_and(|limit| *count > limit))
        .map(|(tenant, _count)| *tenant)
        .collect()
}

/// Full endpoints that have room again, and whose tenant has.
fn to_clear(
    waiting: &Waiting,
    limits: &HashMap<TenantKey, i64>,
    full: Vec<FullEndpoint>,
) -> HashMap<TenantKey, Vec<EndpointKey>> {
    let tenant_has_room = |tenant: &TenantKey| {
        let waits = waiting.tenants.get(tenant).copied().unwrap_or(0);
        limits
            .get(tenant)
            .is_none_or(|limit| has_room(waits, *limit))
    };
    by_tenant(
        full.into_iter()
            .filter(|full| {
                let waits = waiting.endpoints.get(&full.endpoint).copied().unwrap_or(0);
                has_room(waits, full.max_pending) && tenant_has_room(&full.tenant)
            })
            .map(|full| (full.tenant, full.endpoint)),
    )
}

/// Nothing waiting is always room: a limit of 1 has no 80 %.
const fn has_room(waiting: i64, limit: i64) -> bool {
    waiting == 0 || waiting.saturating_mul(100) < limit.saturating_mul(CLEAR_UNDER)
}

fn by_tenant(
    endpoints: impl IntoIterator<Item = (TenantKey, EndpointKey)>,
) -> HashMap<TenantKey, Vec<EndpointKey>> {
    let mut tenants: HashMap<TenantKey, Vec<EndpointKey>> = HashMap::new();
    for (tenant, endpoint) in endpoints {
        tenants.entry(tenant).or_default().push(endpoint);
    }
    tenants
}
