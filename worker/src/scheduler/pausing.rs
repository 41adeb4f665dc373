//! What an operator holds back: a tenant's deliveries at their gates, a type of event by its rows.
//!
//! A tenant that is paused has nothing in memory, as one that waits for its bucket. A type cannot be seen
//! before its rows are loaded, among others that may go: such a row is put aside in the database
//! (`shared::store::pauses`), a few at a time as they are met.
//!
//! # Invariants
//! - D4 a delivery that is held back has made no attempt.
//! - At most one question per endpoint is out, and nothing is loaded meanwhile.

use std::time::Duration;

use shared::domain::pause::Pauses;
use shared::ids::EndpointKey;

use super::{Chore, Effect, Now, Park, Scheduler};
use crate::admission::DeferReason;
use crate::job::LiveRow;
use crate::metrics;

/// What stands in line is looked at this often, so that it goes this soon after the pause has ended.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Whether this row waits because of its type.
pub(super) fn is_paused(pauses: &Pauses, row: &LiveRow, now: Now) -> bool {
    let of_type = |event_type| pauses.of_type(row.tenant, event_type, now.database);
    let event = row.event.as_ref();
    event.is_some_and(|event| of_type(&event.event_type).is_some())
}

impl Scheduler {
    /// What is held back has changed.
    pub(super) fn paused(&mut self, pauses: Pauses, now: Now) {
        self.pauses = pauses;
        let mut keys: Vec<_> = self.endpoints.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.pause(key);
            let pauses = &self.pauses;
            let rows = self.endpoints.get(&key).map(|it| it.lanes.iter());
            // What is in memory already is met again when it is loaded again.
            if rows.is_some_and(|mut rows| rows.any(|row| is_paused(pauses, row, now))) {
                self.unload(key, now);
            }
            self.consider(key, now);
        }
    }

    /// Tells an endpoint's gate what is held back of its tenant, which may have come to be known just now.
    pub(super) fn pause(&mut self, key: EndpointKey) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        if let Some(gate) = &mut endpoint.gate {
            gate.pause(self.pauses.of_tenant(endpoint.tenant));
        }
    }

    /// Puts aside what was met.
    pub(super) fn park(&mut self, key: EndpointKey, now: Now) {
        let owner = self.owner_of(key);
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        if endpoint.parking.is_empty() {
            return;
        }
        let Some(owner) = owner else {
            return self.parked(key, false, now);
        };
        let deliveries: Vec<_> = endpoint.parking.iter().map(|row| row.id).collect();
        let reason = DeferReason::Paused.name();
        let count = u64::try_from(deliveries.len()).unwrap_or(u64::MAX);
        metrics::DEFERRED.with_label_values(&[reason]).inc_by(count);
        self.effects.push(Effect::Chore(Chore::Park(Park {
            owner,
            endpoint: key,
            tenant: endpoint.tenant,
            deliveries,
            look_again: now.database + LOOK_AGAIN,
        })));
    }

    /// It was done, or could not be: then any load meets the rows again.
    pub(super) fn parked(&mut self, key: EndpointKey, done: bool, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        for row in std::mem::take(&mut endpoint.parking) {
            if done {
                let again = row.order.map(|_| now.database + LOOK_AGAIN);
                endpoint.recorded(row.id, again, now.boot);
            } else {
                endpoint.not_sent(row.id, now);
            }
        }
        let due = endpoint.next_due;
        self.wake_at(due, key, now);
        self.consider(key, now);
    }
}
