//! Commands: what the API asks of the owner of a slot, executed here and removed under the fence.
//!
//! What operators hold back ([`Pauses`]) is read with them, as a whole: there is little of it.
//!
//! Polled each second and woken by a hint, so that a deletion, a new limit or a revoked secret holds
//! within two seconds.

use std::sync::Arc;
use std::time::Duration;

use shared::domain::pause::Pauses;
use shared::fail_point;
use shared::ids::{Incarnation, Slot};
use shared::runtime::clock::DatabaseClock;
use shared::store::commands::{self, Command, Verb};
use shared::store::pool::within;
use shared::store::{Database, Role, Session, StoreError, pauses};
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

/// What is kept between two looks.
#[derive(Default)]
struct Looking {
    session: Option<Session>,
    /// What the engine was told last.
    told: Option<Pauses>,
}

impl Commands {
    /// Executes commands until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut looking = Looking::default();
        loop {
            if let Err(error) = self.step(&mut looking).await {
                tracing::warn!(%error, "commands could not be read; trying again");
                looking.session = None;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = self.wake.notified() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn step(&self, looking: &mut Looking) -> Result<(), StoreError> {
        let owned = self.owned.borrow().clone();
        let Some(incarnation) = owned.incarnation else {
            return Ok(());
        };
        let session = match &mut looking.session {
            Some(session) => session,
            none => none.insert(self.database.connect(Role::Worker).await?),
        };
        // Also without a slot: when one comes, what is held back in it has to be known.
        let pauses = within(BUDGET, pauses::read(session)).await?;
        if looking.told.as_ref() != Some(&pauses) {
            // What was held back before this task began is no change.
            if looking.told.is_some() {
                tracing::info!(
                    pauses = pauses.0.len(),
                    "what operators hold back has changed: `postrider pause list` shows it"
                );
            }
            self.tell(Input::Pauses(pauses.clone())).await?;
            looking.told = Some(pauses);
        }
        if owned.slots.is_empty() {
            return Ok(());
        }
        let slots: Vec<Slot> = owned.slots.into_iter().collect();
        let found = within(BUDGET, commands::pending(session, &slots)).await?;
        let mut done = Vec::with_capacity(found.len());
        for command in found {
            self.execute(session, incarnation, &command).await?;
            done.push(command.id);
        }
        if !done.is_empty() {
            fail_point!("worker.command_done");
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
        self.tell(input).await
    }

    async fn tell(&self, input: Input) -> Result<(), StoreError> {
        let told = self.engine.send(input).await;
        told.map_err(|_closed| StoreError::Other("the engine has ended".to_owned()))
    }
}
