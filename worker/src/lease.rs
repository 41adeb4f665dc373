//! The lease: this process's life in the eyes of the others, and which slots it owns.
//!
//! One loop per process, on a connection of its own, apart from recording: a slow record never costs
//! a lease. Each life has a new id (incarnation); once it was declared dead, nothing of it counts.
//!
//! # Invariants
//! - D3 the instant a renewal is *sent* bounds when sends may start; the fence in the database decides.
//! - What to do is decided in [`crate::tenure`], which compares with the database at each renewal: an
//!   answer that was lost on the way is no slot lost, and none held twice.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shared::fail_point;
use shared::ids::{Incarnation, SLOT_COUNT, Slot};
use shared::runtime::clock::{DatabaseClock, boot_time};
use shared::runtime::jitter;
use shared::store::pool::within;
use shared::store::slots::Handed;
use shared::store::{Database, Role, Session, StoreError, slots};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::admission::TakeOver;
use crate::metrics;
use crate::scheduler::{Input, Leaving, Taken};
use crate::tenure::{Balance, Tenure};
use crate::transitions::Changes;

/// One statement of the lease; short, so that a hung connection is replaced while the lease lives.
const STATEMENT_BUDGET: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What this process owns, for the tasks that ask the database about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownerships {
    /// The current life, if one has begun.
    pub incarnation: Option<Incarnation>,
    /// Its slots.
    pub slots: HashSet<Slot>,
}

/// See the module.
pub struct Lease {
    /// The database.
    pub database: Database,
    /// Host and process id, for people.
    pub name: String,
    /// How long a lease lasts.
    pub ttl: Duration,
    /// Corrected by each renewal.
    pub clock: Arc<DatabaseClock>,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
    /// Slots that the engine gives up; nothing of them is on the wire.
    pub releases: mpsc::Receiver<Vec<Leaving>>,
    /// What changed about endpoints and is not stored yet: a slot is not handed over before.
    pub changes: Arc<Changes>,
    /// Deliveries on the wire for a while, kept by the engine.
    pub in_flight: Arc<Mutex<Vec<Uuid>>>,
    /// What is owned, for the others.
    pub owned: watch::Sender<Ownerships>,
    /// Something changed about workers or slots: look now.
    pub wake: Arc<tokio::sync::Notify>,
}

/// Why a life ended.
enum End {
    /// Declared dead: begin another.
    Lost,
    /// Shutdown, and everything handed over.
    Left,
}

impl Lease {
    /// Lives until `drain` was asked for and all slots are handed over, or until `stop`.
    pub async fn run(mut self, drain: CancellationToken, stop: CancellationToken) {
        loop {
            let end = tokio::select! {
                end = self.live(&drain) => end,
                () = stop.cancelled() => return,
            };
            match end {
                End::Left => return,
                End::Lost => {
                    metrics::LEASE_LOST.inc();
                    tracing::warn!("this worker was declared dead; it starts again under a new id");
                }
            }
        }
    }

    async fn live(&mut self, drain: &CancellationToken) -> End {
        let incarnation = Incarnation(Uuid::new_v4());
        let mut session = self.begin(incarnation).await;
        let mut tenure = Tenure::new(self.ttl, boot_time());
        let mut pause = FIRST_PAUSE;
        loop {
            let step = self
                .step(&mut session, incarnation, &mut tenure, drain)
                .await;
            match step {
                Ok(None) => pause = FIRST_PAUSE,
                Ok(Some(end)) => {
                    self.forget().await;
                    return end;
                }
                Err(error) => {
                    tracing::warn!(%error, "the lease could not be renewed; connecting again");
                    // A database that takes connections and refuses statements gets no storm of them.
                    tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    session = self.reconnect().await;
                    tenure.connected(boot_time());
                    continue;
                }
            }
            self.wait(&mut session, incarnation, &mut tenure, drain)
                .await;
        }
    }

    /// Connects and joins under a new id.
    async fn begin(&self, incarnation: Incarnation) -> Session {
        loop {
            let session = self.reconnect().await;
            let sent = boot_time();
            let joining = slots::join(&session, incarnation, &self.name, self.ttl);
            match within(STATEMENT_BUDGET, joining).await {
                Ok(now) => {
                    fail_point!("worker.joined");
                    self.clock.measured(sent, boot_time(), now);
                    self.tell(Input::Born(incarnation)).await;
                    self.tell(Input::Renewed { sent_at: sent }).await;
                    self.owned
                        .send_modify(|owned| owned.incarnation = Some(incarnation));
                    announce(&session).await;
                    tracing::info!(worker.incarnation = %incarnation.0, "a worker joined");
                    return session;
                }
                Err(error) => tracing::warn!(%error, "cannot join; trying again"),
            }
            tokio::time::sleep(LONGEST_PAUSE).await;
        }
    }

    async fn reconnect(&self) -> Session {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.database.connect(Role::Worker).await {
                Ok(session) => return session,
                Err(error) => tracing::warn!(%error, "no connection for the lease; trying again"),
            }
            tokio::time::sleep(pause.mul_f64(0.5 + jitter::fraction())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Renews, buries the dead, takes or gives up slots.
    async fn step(
        &mut self,
        session: &mut Session,
        incarnation: Incarnation,
        tenure: &mut Tenure,
        drain: &CancellationToken,
    ) -> Result<Option<End>, StoreError> {
        if !self.renew(session, incarnation, tenure).await? {
            return Ok(Some(End::Lost));
        }
        if drain.is_cancelled() {
            within(STATEMENT_BUDGET, slots::drain(session, incarnation)).await?;
            if tenure.held().is_empty() {
                fail_point!("worker.leaving");
                within(STATEMENT_BUDGET, slots::leave(session, incarnation)).await?;
                announce(session).await;
                return Ok(Some(End::Left));
            }
            return Ok(None);
        }
        if tenure.may_declare_dead(boot_time()) {
            let dead = within(STATEMENT_BUDGET, slots::declare_dead(session, incarnation)).await?;
            if dead > 0 {
                fail_point!("worker.dead_declared");
                tracing::warn!(dead, "workers whose lease ran out were declared dead");
            }
        }
        self.rebalance(session, incarnation, tenure).await?;
        Ok(None)
    }

    async fn renew(
        &self,
        session: &Session,
        incarnation: Incarnation,
        tenure: &mut Tenure,
    ) -> Result<bool, StoreError> {
        let in_flight = self
            .in_flight
            .lock()
            .map(|ids| ids.clone())
            .unwrap_or_default();
        // Taken before the statement is sent: the lease runs from here, whatever the network does.
        let sent_at = boot_time();
        let renewing = slots::renew(session, incarnation, self.ttl, &in_flight);
        let Some(now) = within(STATEMENT_BUDGET, renewing).await? else {
            return Ok(false);
        };
        self.clock.measured(sent_at, boot_time(), now);
        tenure.renewed(sent_at);
        self.tell(Input::Renewed { sent_at }).await;
        Ok(true)
    }

    async fn rebalance(
        &self,
        session: &mut Session,
        incarnation: Incarnation,
        tenure: &mut Tenure,
    ) -> Result<(), StoreError> {
        let census = within(STATEMENT_BUDGET, slots::census(session, incarnation)).await?;
        tenure.first_death_in(census.first_death_in, boot_time());
        let differences = tenure.compare(&census.mine);
        if !differences.lost.is_empty() {
            tracing::warn!(slots = differences.lost.len(), "slots were lost");
            self.publish(tenure);
            self.tell(Input::Released(differences.lost)).await;
        }
        if !differences.unknown.is_empty() {
            let taking = slots::reclaim(session, incarnation, &differences.unknown);
            let slots = within(STATEMENT_BUDGET, taking).await?;
            self.took(session, tenure, slots).await?;
        }
        let all = usize::try_from(SLOT_COUNT).unwrap_or(0);
        let balance = tenure.balance(all, census.workers, census.free);
        let owned = metrics::SLOTS.with_label_values(&["owned"]);
        owned.set(gauge(tenure.held().len()));
        let unowned = metrics::SLOTS.with_label_values(&["unowned"]);
        unowned.set(gauge(census.free));
        match balance {
            Balance::Keep => {}
            Balance::Release(count) => self.tell(Input::Release { count }).await,
            Balance::Acquire(count) => {
                let taking = slots::acquire(session, incarnation, count);
                let slots = within(STATEMENT_BUDGET, taking).await?;
                fail_point!("worker.slots_taken");
                self.took(session, tenure, slots).await?;
            }
        }
        Ok(())
    }

    /// Slots are ours. Only now, in a later statement, is anything of them read.
    async fn took(
        &self,
        session: &Session,
        tenure: &mut Tenure,
        taken: Vec<slots::Taken>,
    ) -> Result<(), StoreError> {
        if taken.is_empty() {
            return Ok(());
        }
        let slots: Vec<_> = taken.iter().map(|it| (it.slot, it.epoch)).collect();
        let unclean = taken.iter().filter(|it| !it.clean).count();
        let suspects = within(STATEMENT_BUDGET, slots::suspects(session)).await?;
        tracing::info!(
            slots = slots.len(),
            unclean,
            suspects = suspects.len(),
            "slots were taken"
        );
        tenure.took(&slots);
        self.publish(tenure);
        let slots = taken.iter().map(taken_over).collect();
        self.tell(Input::Acquired { slots, suspects }).await;
        Ok(())
    }

    fn publish(&self, tenure: &Tenure) {
        let slots = tenure.held().keys().copied().collect();
        self.owned.send_modify(|owned| owned.slots = slots);
    }

    /// Until the next renewal; hands over what the engine gives up meanwhile.
    async fn wait(
        &mut self,
        session: &mut Session,
        incarnation: Incarnation,
        tenure: &mut Tenure,
        drain: &CancellationToken,
    ) {
        let draining = drain.is_cancelled();
        let renewal = tokio::time::sleep(tenure.pause(boot_time()));
        tokio::select! {
            () = renewal => {}
            () = self.wake.notified() => {}
            () = drain.cancelled(), if !draining => {}
            slots = self.releases.recv() => {
                // None: the engine has drained and ended. Nothing is on the wire, so all may go.
                let all = || tenure.held().iter().map(|(slot, epoch)| Leaving {
                    slot: *slot,
                    epoch: *epoch,
                    endpoints: Vec::new(),
                    doubtful: false,
                }).collect();
                let slots = slots.unwrap_or_else(all);
                self.release(session, incarnation, tenure, slots).await;
            }
        }
    }

    async fn release(
        &self,
        session: &mut Session,
        incarnation: Incarnation,
        tenure: &mut Tenure,
        leaving: Vec<Leaving>,
    ) {
        let endpoints: Vec<Handed> = leaving.iter().flat_map(handed_over).collect();
        let doubtful = leaving.iter().filter(|it| it.doubtful).map(|it| it.slot);
        let mut doubtful: Vec<Slot> = doubtful.collect();
        let slots = leaving.iter().map(|it| (it.slot, it.epoch)).collect();
        let leaving = tenure.still_held(slots);
        let slots: Vec<Slot> = leaving.iter().map(|(slot, _)| *slot).collect();
        if !self.changes.settled(&slots, STATEMENT_BUDGET).await {
            tracing::warn!("slots are handed over before all that changed in them is stored");
            doubtful.clone_from(&slots);
        }
        fail_point!("worker.slots_releasing");
        let releasing = slots::release(session, incarnation, &leaving, &endpoints, &doubtful);
        match within(STATEMENT_BUDGET, releasing).await {
            Ok(_) => announce(session).await,
            // Whether they are still ours is seen at the next renewal, which then takes them anew.
            Err(error) => tracing::warn!(%error, "slots could not be handed over"),
        }
        fail_point!("worker.slots_released");
        tenure.gave(&leaving);
        self.publish(tenure);
        tracing::info!(slots = leaving.len(), "slots were handed over");
        self.tell(Input::Released(leaving)).await;
    }

    async fn forget(&self) {
        self.owned.send_replace(Ownerships::default());
        self.tell(Input::LeaseLost).await;
    }

    async fn tell(&self, input: Input) {
        if self.engine.send(input).await.is_err() {
            tracing::debug!("the engine has ended");
        }
    }
}

/// Tells the other workers to look at the slots now; without it they look within two seconds.
async fn announce(session: &Session) {
    if let Err(error) = within(
        STATEMENT_BUDGET,
        session.batch_execute("NOTIFY postrider_slots"),
    )
    .await
    {
        tracing::debug!(%error, "the other workers could not be told");
    }
}

fn taken_over(taken: &slots::Taken) -> Taken {
    Taken {
        slot: taken.slot,
        how: TakeOver {
            epoch: taken.epoch,
            clean: taken.clean,
            emptied_at: taken.emptied_at,
        },
    }
}

fn handed_over(leaving: &Leaving) -> impl Iterator<Item = Handed> {
    leaving.endpoints.iter().map(|endpoint| Handed {
        endpoint: endpoint.endpoint,
        slot: leaving.slot,
        epoch: leaving.epoch,
        tenant: endpoint.tenant,
        tat: endpoint.bucket.map(|(position, _)| position),
        version: endpoint.bucket.map_or(0, |(_, version)| version),
        parked_until: endpoint.parked_until,
    })
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
