//! Suspects: deliveries that were in flight when a worker died. Each goes alone, and its death is
//! charged before it is sent, so that one that kills us at once is counted as well (architecture §4.8).

use std::sync::Arc;
use std::time::Duration;

use shared::fail_point;
use shared::runtime::clock::boot_time;
use shared::store::pool::within;
use shared::store::{Database, Role, slots};
use tokio::sync::mpsc;

use crate::deliver::{Context, deliver};
use crate::job::Job;
use crate::scheduler::Input;

const BUDGET: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Suspects {
    /// Connected for each suspect: they are rare.
    pub database: Database,
    /// To the engine.
    pub engine: mpsc::Sender<Input>,
}

impl Suspects {
    /// Charges the death, then delivers. If the charge cannot be written while the lease lasts, it is sent
    /// all the same: a delivery must not wait for ever on a suspicion.
    pub async fn deliver(self: Arc<Self>, context: Arc<Context>, job: Box<Job>) {
        let charging = async {
            let session = self.database.connect(Role::Worker).await?;
            slots::charge_suspect(&session, job.row.id).await
        };
        let before = job.start_before;
        let budget = BUDGET.min(before.since(boot_time()));
        if let Err(error) = within(budget, charging).await {
            tracing::warn!(%error, "a suspect could not be charged before it is sent");
        }
        fail_point!("worker.suspect_charged");
        if boot_time() < before {
            deliver(context, job).await;
            return;
        }
        // This process was stopped meanwhile, or the charge took all that was left of the lease.
        let not_sent = Input::NotSent {
            owner: job.owner,
            endpoint: job.endpoint.key,
            delivery: job.row.id,
        };
        if self.engine.send(not_sent).await.is_err() {
            tracing::debug!("the engine has ended");
        }
    }
}
