//! Commands: what the API asks of the owner of a slot, executed here and removed under the fence.
//!
//! Polled each second and woken by a hint, so that a deletion, a new limit or a revoked secret holds
//! within two seconds.

use std::sync::Arc;
use std::time::Duration;

use shared::ids::{Incarnation, Slot};
use shared::runtime::clock::DatabaseClock;
use shared::store::commands::{self, Command, Verb};
use shared::store::pool::within;
use shared::store::{Database, Role, Session, StoreError};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::lease::Ownerships;
use crate::scheduler::Input;

const POLL: Duration = Duration::from_secs(1);
const BUDGET: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Clone)]
pub struct Commands {
    /// The database.
    pub database: Database,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
    /// What is owned now.
    pub owned: watch::Receiver<Ownerships>,
    /// Set by the listener.
    pub wake: Arc<Notify>,
    /// For "now".
    pub clock: Arc<DatabaseClock>,
}

impl Commands {
    /// Executes commands until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut session = None;
        loop {
            if let Err(error) = self.step(&mut session).await {
                tracing::warn!(%error, "commands could not be read; trying again");
                session = None;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = self.wake.notified() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn step(&self, session: &mut Option<Session>) -> Result<(), StoreError> {
        let owned = self.owned.borrow().clone();
        let Some(incarnation) = owned.incarnation.filter(|_| !owned.slots.is_empty()) else {
            return Ok(());
        };
        let session = match session {
            Some(session) => session,
            None => session.insert(self.database.connect(Role::Worker).await?),
        };
        let slots: Vec<Slot> = owned.slots.into_iter().collect();
        let found = within(BUDGET, commands::pending(session, &slots)).await?;
        let mut done = Vec::with_capacity(found.len());
        for command in found {
            self.execute(session, incarnation, &command).await?;
            done.push(command.id);
        }
        if !done.is_empty() {
            within(BUDGET, commands::remove(session, incarnation, &done)).await?;
        }
        Ok(())
    }

    async fn execute(
        &self,
        session: &Session,
        incarnation: Incarnation,
        command: &Command,
    ) -> Result<(), StoreError> {
        let (slot, endpoint, tenant) = (command.slot, command.endpoint, command.tenant);
        let input = match command.verb {
            Verb::Reload => Input::Reload { slot, endpoint },
            Verb::RetryNow(delivery) => {
                let now = self.clock.now();
                let making_due = commands::make_due(session, incarnation, (tenant, delivery), now);
                within(BUDGET, making_due).await?;
                Input::RetriesDue {
                    slot,
                    endpoint,
                    tenant,
                }
            }
        };
        let told = self.engine.send(input).await;
        told.map_err(|_closed| StoreError::Other("the engine has ended".to_owned()))
    }
}
