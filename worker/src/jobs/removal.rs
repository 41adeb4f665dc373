//! The removal job: deletes what deleted tenants left, and expunges payloads, in small batches
//! (`shared::store::removals`). It works a quarter of the time at most, so delivery goes on as before.

use std::time::Duration;

use shared::runtime::clock::boot_time;
use shared::store::leases::Lease;
use shared::store::removals::{self, Progress};
use shared::store::{Role, Session, StoreError, notify};

use super::Job;

/// How often to look while there is nothing to remove.
const EVERY_IDLE: Duration = Duration::from_secs(1);
/// After a batch, a pause of so many times as long as it took.
const REST: u32 = 3;

/// See the module.
pub(super) struct Remove;

impl Job for Remove {
    const NAME: &'static str = "removal";
    // Hot tables, whose statistics may be of when they were empty: no sequential scans.
    const ROLE: Role = Role::Worker;

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let began = boot_time();
        match removals::advance(session, lease).await? {
            Progress::Idle => return Ok(EVERY_IDLE),
            Progress::Stopped => notify::commands(&**session).await,
            Progress::Batch => {}
        }
        Ok(boot_time().since(began) * REST)
    }
}
