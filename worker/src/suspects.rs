//! Suspects: deliveries that were in flight when a worker died. Each goes alone, and its death is
//! charged before it is sent, so that one that kills us at once is counted as well (architecture §4.8).

use std::sync::Arc;
use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::store::pool::within;
use shared::store::{Database, Role, slots};

use crate::deliver::{Context, deliver};
use crate::job::Job;

const BUDGET: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Suspects {
    /// Connected for each suspect: they are rare.
    pub database: Database,
}

impl Suspects {
    /// Charges the death, then delivers. If the charge cannot be written while the lease lasts, it is sent
    /// all the same: a delivery must not wait for ever on a suspicion.
    pub async fn deliver(self: Arc<Self>, context: Arc<Context>, job: Box<Job>) {
        let charging = async {
            let session = self.database.connect(Role::Worker).await?;
            slots::charge_suspect(&session, job.row.id).await
        };
        let budget = BUDGET.min(job.start_before.since(boot_time()));
        if let Err(error) = within(budget, charging).await {
            tracing::warn!(%error, "a suspect could not be charged before it is sent");
        }
        deliver(context, job).await;
    }
}
