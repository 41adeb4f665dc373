//! The pauses job: gives back what was parked for a pause that is over, and what is parked without one.
//!
//! A pause that is over is forgotten only some time later, and until then all that its tenant has parked is
//! given back again and again: a worker may learn late that it is over. What another pause still means is
//! parked again by its owner when it meets it.

use std::collections::HashSet;
use std::time::Duration;

use shared::domain::pause::{Pause, Pauses};
use shared::ids::{EndpointKey, TenantKey};
use shared::store::leases::Lease;
use shared::store::partitions::database_time;
use shared::store::pauses::Parked;
use shared::store::{Role, Session, StoreError, pauses};
use time::OffsetDateTime;

use super::Job;

/// How often to look while there is a pause, and while there is none.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_IDLE: Duration = Duration::from_secs(10);
/// How long a pause that is over is remembered. Workers read them every second, and one that cannot for
/// this long has lost its lease.
const REMEMBERED: time::Duration = time::Duration::seconds(30);
/// Statements in one step, each of some thousand rows: a shutdown does not wait for a long backlog.
const MOST_STATEMENTS: usize = 200;

/// See the module.
pub(super) struct Resume;

impl Job for Resume {
    const NAME: &'static str = "pauses";
    const ROLE: Role = Role::Worker;

    async fn step(
        &mut self,
        session: &mut Session,
        _lease: &Lease,
    ) -> Result<Duration, StoreError> {
        let pauses = pauses::read(session).await?;
        let now = database_time(session).await?;
        let parked = pauses::parked(session).await?;
        let given_back = give_back(session, &pauses, parked, now).await?;
        if given_back > 0 {
            tracing::info!(deliveries = given_back, "what was held back goes on");
        }
        let forgotten = pauses.over(now - REMEMBERED).map(|pause| pause.id);
        let forgotten: Vec<i64> = forgotten.collect();
        if !forgotten.is_empty() {
            pauses::forget(session, &forgotten, now - REMEMBERED).await?;
        }
        Ok(if pauses.0.is_empty() {
            EVERY_IDLE
        } else {
            EVERY
        })
    }
}

/// Not fenced: nobody owns what is parked, and what is moved twice is moved once.
async fn give_back(
    session: &Session,
    pauses: &Pauses,
    parked: Vec<Parked>,
    now: OffsetDateTime,
) -> Result<u64, StoreError> {
    if parked.is_empty() {
        return Ok(0);
    }
    let endpoints: Vec<EndpointKey> = parked.iter().map(|it| it.endpoint).collect();
    let not_enabled: HashSet<_> = pauses::not_enabled(session, &endpoints)
        .await?
        .into_iter()
        .collect();
    let over: Vec<&Pause> = pauses.over(now).collect();
    let is_over = |tenant: TenantKey| {
        over.iter()
            .any(|pause| pause.tenant.is_none_or(|it| it == tenant))
            || !pauses.has_types(tenant, now)
    };
    let mut given_back = 0;
    let mut statements = 0;
    for parked in &parked {
        if !is_over(parked.tenant) && !not_enabled.contains(&parked.endpoint) {
            continue;
        }
        while statements < MOST_STATEMENTS {
            statements += 1;
            match pauses::unpark(session, parked).await? {
                0 => break,
                some => given_back += some,
            }
        }
    }
    Ok(given_back)
}
