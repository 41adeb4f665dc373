//! Transitions: what changed about endpoints, stored and told outside of the path of any delivery.
//!
//! The engine puts a [`Change`] into [`Changes`] and goes on; one task writes it down, in batches: first the
//! states, then who is disabled, then who is told. What cannot be written is put back under what has changed
//! since, and tried again.
//!
//! # Invariants
//! - D3: a state is saved under the fence; of a change whose owner is stale nothing else follows either.
//!   Disabling is decided by the attempts in the database, whoever asks.
//! - A slot is handed over only once the states that changed under it are saved ([`Changes::settled`]), or its
//!   next owner would start from older ones and look no further.
//! - A notice that cannot be told delays no state, no other notice and no delivery.

mod changes;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use shared::domain::notice::NoticeKind;
use shared::fail_point;
use shared::ids::{EndpointKey, Incarnation};
use shared::policy::notice;
use shared::runtime::clock::DatabaseClock;
use shared::runtime::jitter;
use shared::store::endpoint_runtime::{self, Save};
use shared::store::notices::{self, Notice, Published};
use shared::store::pool::within;
use shared::store::{Database, Role, Session, StoreError, commands, notify};
use tokio_util::sync::CancellationToken;

pub use self::changes::{Change, Changes, DisableFailing};
pub use shared::policy::notice::Facts;

/// Changes in one batch: a state each in one statement, and then some statements for each notice.
const BATCH: usize = 500;
const STATEMENT_BUDGET: Duration = Duration::from_secs(5);
/// While the database is away: doubled from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How far back the last attempts are looked at for an endpoint that works.
const LOOK_BACK: Duration = Duration::from_secs(86_400);

/// See the module.
pub struct Transitions {
    /// The database.
    pub database: Database,
    /// From the engine.
    pub changes: Arc<Changes>,
    /// For words about how long.
    pub clock: Arc<DatabaseClock>,
}

impl Transitions {
    /// Writes until [`Changes::close`] and all is written, or until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = self.write_all() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn write_all(&self) {
        let mut session = None;
        let mut pause = FIRST_PAUSE;
        while let Some(mut batch) = self.changes.take(BATCH).await {
            let written = self.write(&mut session, &mut batch).await;
            self.changes.left(batch);
            match written {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "what changed about endpoints could not be written; trying again");
                    session = None;
                    tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Writes changes, and takes out of them what is written. An error is worth another try.
    async fn write(
        &self,
        session: &mut Option<Session>,
        batch: &mut Vec<Change>,
    ) -> Result<(), StoreError> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.database.connect(Role::Worker).await?),
        };
        fail_point!("worker.breaker_saving");
        save(session, batch).await?;
        fail_point!("worker.breaker_saved");
        self.changes.saved();
        let mut failed = Ok(());
        for change in batch.iter_mut() {
            if let Err(error) = self.follow_up(session, change).await {
                // Where another is in the way, the next one may pass; without a connection none does.
                let away = !matches!(error, StoreError::Contention(_));
                failed = Err(error);
                if away {
                    break;
                }
            }
        }
        batch.retain(|change| !change.is_nothing());
        failed
    }

    async fn follow_up(
        &self,
        session: &mut Session,
        change: &mut Change,
    ) -> Result<(), StoreError> {
        self.disable(session, change).await?;
        tell(session, change, self.clock.now()).await
    }

    async fn disable(&self, session: &Session, change: &mut Change) -> Result<(), StoreError> {
        let Some(DisableFailing {
            version,
            failing_since,
        }) = change.disable
        else {
            return Ok(());
        };
        let days = (self.clock.now() - failing_since).whole_days();
        let reason = format!("every request has failed for {days} days");
        let endpoint = (change.endpoint, version);
        let disabling =
            commands::disable_failing(session, endpoint, change.tenant, failing_since, &reason);
        let disabled = again_if_transient(within(STATEMENT_BUDGET, disabling).await, change)?;
        change.disable = None;
        if disabled == Some(true) {
            tracing::warn!(
                endpoint.key = change.endpoint.0,
                "an endpoint was disabled: {reason}"
            );
            notify::commands(&**session).await;
            let facts = Facts {
                failing_since: Some(failing_since),
                ..Facts::default()
            };
            change.tell(NoticeKind::EndpointDisabled, facts);
        }
        Ok(())
    }
}

/// Saves the states of a batch; leaves of a change whose owner is stale nothing.
async fn save(session: &Session, batch: &mut [Change]) -> Result<(), StoreError> {
    let lives: HashSet<Incarnation> = batch.iter().map(|it| it.owner.incarnation).collect();
    for life in lives {
        let of_this_life = |change: &&mut Change| change.owner.incarnation == life;
        let mut changes: Vec<&mut Change> = batch.iter_mut().filter(of_this_life).collect();
        match save_all(session, life, &changes).await {
            Ok(saved) => settle(&mut changes, &saved),
            Err(error) if error.is_transient() => return Err(error),
            // Something is wrong with one of them: each by itself, so that it holds up no other.
            Err(_) => {
                for change in &mut changes {
                    let alone = std::slice::from_mut(change);
                    let saving = save_all(session, life, alone).await;
                    match again_if_transient(saving, change)? {
                        Some(saved) => settle(std::slice::from_mut(change), &saved),
                        None => change.runtime = None,
                    }
                }
            }
        }
    }
    Ok(())
}

async fn save_all(
    session: &Session,
    life: Incarnation,
    changes: &[&mut Change],
) -> Result<HashSet<EndpointKey>, StoreError> {
    let states: Vec<Save<'_>> = changes
        .iter()
        .filter_map(|change| {
            Some(Save {
                slot: change.owner.slot,
                epoch: change.owner.epoch,
                endpoint: change.endpoint,
                tenant: change.tenant,
                runtime: change.runtime.as_ref()?,
            })
        })
        .collect();
    if states.is_empty() {
        return Ok(HashSet::new());
    }
    let saving = endpoint_runtime::save_all(session, life, &states);
    let saved = within(STATEMENT_BUDGET, saving).await?;
    Ok(saved.into_iter().collect())
}

/// Takes the states that were saved out of their changes, and empties those of stale owners.
fn settle(changes: &mut [&mut Change], saved: &HashSet<EndpointKey>) {
    for change in changes {
        if change.runtime.take().is_some() && !saved.contains(&change.endpoint) {
            tracing::info!(
                endpoint.key = change.endpoint.0,
                "a change of an endpoint came too late: its slot has another owner"
            );
            change.forget();
        }
    }
}

/// Tells what is to be told of an endpoint, and takes it out of the change.
async fn tell(
    session: &mut Session,
    change: &mut Change,
    now: time::OffsetDateTime,
) -> Result<(), StoreError> {
    while let Some((kind, facts)) = change.notices.last().copied() {
        let notice = Notice {
            endpoint: change.endpoint,
            tenant: change.tenant,
            kind,
            window: notice::window(kind),
            since: facts.failing_since.unwrap_or(now - LOOK_BACK),
            payload: notice::payload(kind, &facts),
        };
        let publishing = notices::publish(session, &notice);
        let published = again_if_transient(within(STATEMENT_BUDGET, publishing).await, change)?;
        if let Some(Published::Sent(event, endpoints)) = published {
            let event = shared::ids::EventId(event);
            tracing::info!(endpoint.key = change.endpoint.0, event.id = %event, endpoints, "told: {}", kind.name());
        }
        change.notices.pop();
    }
    Ok(())
}

/// `None`: it failed in a way that another try does not heal, and is given up.
fn again_if_transient<T>(
    result: Result<T, StoreError>,
    change: &Change,
) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_transient() => Err(error),
        Err(error) => {
            tracing::error!(endpoint.key = change.endpoint.0, %error, "a part of what changed about an endpoint cannot be written and is left out");
            Ok(None)
        }
    }
}
