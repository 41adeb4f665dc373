//! The maintenance job: partitions of the coming days, then retention (`shared::store::retention`).

use std::time::Duration;

use shared::runtime::clock::{BootTime, boot_time};
use shared::store::leases::Lease;
use shared::store::retention::{self, Report, RetentionSettings};
use shared::store::{Role, Session, StoreError, partitions};

use super::Job;

/// Days of partitions are made ahead, so this may fail for a week before anybody notices.
const EVERY: Duration = Duration::from_secs(600);
/// Looking for kept events that nobody owes reads all live rows and dead letters.
const SWEEP_EVERY: Duration = Duration::from_secs(6 * 3_600);

/// See the module.
pub(super) struct Maintenance {
    retention: RetentionSettings,
    swept_at: Option<BootTime>,
}

impl Maintenance {
    pub(super) const fn new(retention: RetentionSettings) -> Self {
        Self {
            retention,
            swept_at: None,
        }
    }

    fn sweep_is_due(&self) -> bool {
        self.swept_at
            .is_none_or(|at| boot_time().since(at) >= SWEEP_EVERY)
    }
}

impl Job for Maintenance {
    const NAME: &'static str = "maintenance";
    const ROLE: Role = Role::Maintenance;

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let now = partitions::database_time(session).await?;
        partitions::ensure(session, now, partitions::DAYS_AHEAD).await?;
        let mut report = retention::run(session, lease, &self.retention, now).await?;
        if self.sweep_is_due() {
            report.kept_deleted = retention::sweep_kept(session, lease).await?;
            self.swept_at = Some(boot_time());
        }
        if report != Report::default() {
            tracing::info!(
                partitions.dropped = report.dropped.len(),
                partitions.waiting = report.waiting.len(),
                events.kept = report.kept,
                events.kept_deleted = report.kept_deleted,
                dead_letters.deleted = report.dead_letters,
                replays.deleted = report.replays,
                idempotency_keys.deleted = report.idempotency_keys,
                notices.deleted = report.notices,
                audit_log.deleted = report.audit_log,
                "forgot what was past its retention"
            );
        }
        Ok(EVERY)
    }
}
