//! Jobs: work for the whole installation that one worker does at a time.
//!
//! - [`maintenance`]: partitions ahead, retention behind.
//! - [`pauses`]: what was held back and is not any more goes back to its owners.
//! - [`replays`]: what people ask to be sent again.
//! - [`removal`]: deleted tenants and expunged payloads.
//! - [`stats`]: how fast endpoints answer, and which are slow.
//! - [`backlog`]: which endpoints have so much waiting that new deliveries are turned away.
//! - [`gauges`]: what is shown of the whole installation.
//!
//! Every worker runs every job's loop; who holds the job's lease does a step, the others ask again.
//!
//! # Invariants
//! - D3: a step is fenced by lease and epoch (`shared::store::leases`). A new life of this process
//!   (incarnation) takes its leases anew.
//! - D7: nothing here waits for anything but the database.

mod backlog;
mod gauges;
mod maintenance;
mod pauses;
mod removal;
mod replays;
pub(crate) mod stats;
#[cfg(test)]
mod tests;

use std::time::Duration;

use shared::ids::Incarnation;
use shared::runtime::Supervisor;
use shared::store::leases::{self, Lease};
use shared::store::pool::within;
use shared::store::retention::RetentionSettings;
use shared::store::{Database, Role, Session, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease::Ownerships;
use crate::metrics::{INSTALLATION, JOB_STEP_SECONDS, Standing};

/// How often a worker that does not hold a lease asks for it: a job may pause this long when its
/// leader dies, after the worker was declared dead.
const STANDBY: Duration = Duration::from_secs(10);
/// The pause after a failed step. The database may be away: others need it more.
const AFTER_ERROR: Duration = Duration::from_secs(10);
/// At shutdown, giving a lease back is a courtesy: it ends with the worker's life anyhow.
const RELEASE_BUDGET: Duration = Duration::from_secs(1);

/// Starts the loop of one job.
type Start = fn(Jobs, &mut Supervisor);

/// Every job.
const LOOPS: &[Start] = &[
    |jobs, supervisor| {
        jobs.start(supervisor, |jobs| {
            maintenance::Maintenance::new(jobs.retention)
        })
    },
    |jobs, supervisor| jobs.start(supervisor, |_| removal::Remove),
    |jobs, supervisor| jobs.start(supervisor, |_| pauses::Resume),
    |jobs, supervisor| jobs.start(supervisor, |_| stats::Stats::default()),
    |jobs, supervisor| jobs.start(supervisor, |_| replays::Replays::default()),
    |jobs, supervisor| {
        jobs.start(supervisor, |jobs| backlog::Backlog {
            installation: INSTALLATION.clone(),
            standing: jobs.standing.clone(),
        });
    },
    |jobs, supervisor| {
        jobs.start(supervisor, |jobs| {
            gauges::Gauges::new(INSTALLATION.clone(), jobs.standing.clone())
        });
    },
];

/// How many jobs there are; each loop keeps a connection of its own.
pub(crate) const JOBS: usize = LOOPS.len();

/// The names of their leases.
pub const NAMES: [&str; JOBS] = [
    maintenance::Maintenance::NAME,
    removal::Remove::NAME,
    pauses::Resume::NAME,
    stats::Stats::NAME,
    replays::Replays::NAME,
    backlog::Backlog::NAME,
    gauges::Gauges::NAME,
];

/// What is done while a lease is held.
trait Job: Send {
    /// The name of the lease.
    const NAME: &'static str;
    /// What its connection is for.
    const ROLE: Role;

    /// There is a new connection: what was prepared on the last one is gone.
    fn connected(&mut self) {}

    /// One step; returns the pause until the next one.
    fn step(
        &mut self,
        session: &mut Session,
        lease: &Lease,
    ) -> impl Future<Output = Result<Duration, StoreError>> + Send;
}

/// What the jobs need. Cheap to clone.
#[derive(Clone)]
pub struct Jobs {
    database: Database,
    standing: Standing,
    retention: RetentionSettings,
}

impl Jobs {
    /// Jobs of the worker whose lives are in `standing`.
    pub(crate) fn new(
        database: &Database,
        standing: Standing,
        retention: RetentionSettings,
    ) -> Self {
        Self {
            database: database.clone(),
            standing,
            retention,
        }
    }

    /// Starts every job's loop.
    pub fn supervise(&self, supervisor: &mut Supervisor) {
        for start in LOOPS {
            start(self.clone(), supervisor);
        }
    }

    /// Starts the loop of a job that is made by `make`, also when it has to be started again.
    fn start<J: Job + 'static>(self, supervisor: &mut Supervisor, make: fn(&Self) -> J) {
        // The series begins with 0.
        JOB_STEP_SECONDS.with_label_values(&[J::NAME]);
        supervisor.start(J::NAME, move |shutdown| {
            let jobs = self.clone();
            let job = make(&jobs);
            jobs.lead(job, shutdown)
        });
    }

    /// Does a job whenever its lease is ours, until shutdown.
    async fn lead<J: Job>(mut self, mut job: J, shutdown: CancellationToken) {
        let mut leader = Leader::default();
        loop {
            let incarnation = self.standing.owned.borrow_and_update().incarnation;
            let turn = leader.turn(&self.database, incarnation, &mut job);
            let pause = tokio::select! {
                result = turn => result.unwrap_or_else(|error| {
                    tracing::warn!(job = J::NAME, error.kind = error.kind(), %error, "a job's step failed");
                    leader = Leader::default();
                    AFTER_ERROR
                }),
                // What the step was doing is undone, or finished by the next leader.
                () = shutdown.cancelled() => return,
            };
            let next = next_turn(&mut self.standing.owned, incarnation, pause);
            tokio::select! {
                () = next => {}
                () = shutdown.cancelled() => return leader.leave().await,
            }
        }
    }
}

/// After the pause, or at once when this process begins another life.
async fn next_turn(
    owned: &mut watch::Receiver<Ownerships>,
    incarnation: Option<Incarnation>,
    pause: Duration,
) {
    let another = owned.wait_for(|now| now.incarnation.is_some() && now.incarnation != incarnation);
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        Ok(_ownerships) = another => {}
    }
}

/// The connection of a job's loop, and its lease while it has it.
#[derive(Default)]
struct Leader {
    session: Option<Session>,
    lease: Option<Lease>,
}

impl Leader {
    async fn turn<J: Job>(
        &mut self,
        database: &Database,
        incarnation: Option<Incarnation>,
        job: &mut J,
    ) -> Result<Duration, StoreError> {
        let Some(incarnation) = incarnation else {
            self.lease = None;
            return Ok(STANDBY);
        };
        self.lease = self.lease.take().filter(|lease| lease.owner == incarnation);
        if self
            .session
            .as_ref()
            .is_none_or(|session| session.is_closed())
        {
            self.session = Some(database.connect(J::ROLE).await?);
            job.connected();
        }
        let Some(session) = self.session.as_mut() else {
            return Ok(STANDBY);
        };
        if self.lease.is_none() {
            self.lease = leases::acquire(session, J::NAME, incarnation).await?;
            if let Some(lease) = &self.lease {
                tracing::info!(
                    job = J::NAME,
                    epoch = lease.epoch.0,
                    "this worker does the job now"
                );
            }
        }
        match &self.lease {
            Some(lease) => {
                let _observed = JOB_STEP_SECONDS.with_label_values(&[J::NAME]).start_timer();
                job.step(session, lease).await
            }
            None => Ok(STANDBY),
        }
    }

    async fn leave(self) {
        let (Some(session), Some(lease)) = (self.session, self.lease) else {
            return;
        };
        // Before another process can show them.
        INSTALLATION.hide(lease.name);
        if let Err(error) = within(RELEASE_BUDGET, leases::release(&session, &lease)).await {
            tracing::debug!(job = lease.name, %error, "a job's lease ends with this worker's life");
        }
    }
}
