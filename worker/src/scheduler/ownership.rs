//! Which slots are ours, and what is forgotten when one is not any more.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use shared::ids::{Epoch, Slot};
use shared::runtime::clock::BootTime;
use uuid::Uuid;

use super::endpoint::Endpoint;
use super::slots::{HandedOver, Taken};
use super::{Now, Scheduler, size};
use crate::admission::Gate;

impl Scheduler {
    pub(super) fn renewed(&mut self, sent_at: BootTime) {
        let length = self
            .settings
            .lease_ttl
            .saturating_sub(self.settings.lease_margin);
        self.may_start_until = self.may_start_until.max(sent_at.after(length));
    }

    pub(super) fn acquired(&mut self, slots: Vec<Taken>, suspects: HashMap<Uuid, u16>, now: Now) {
        for taken in slots {
            self.forget_endpoints_of(&HashSet::from([taken.slot]));
            self.slots.acquire(taken.slot, taken.how, now.boot);
        }
        self.suspects = suspects.into_iter().collect();
        self.set_suspects_aside(now);
        // They were on their way here when the shutdown began.
        if self.draining {
            self.leave(usize::MAX, now);
        }
    }

    /// What has become suspect while it waited for its turn goes with the other suspects, alone.
    fn set_suspects_aside(&mut self, now: Now) {
        let (endpoints, suspects) = (&self.endpoints, &self.suspects);
        let waits = |found: &Endpoint| found.lanes.iter().any(|it| suspects.contains_key(&it.id));
        let found = endpoints.iter().filter(|(_, found)| waits(found));
        let mut keys: Vec<_> = found.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        for key in keys {
            self.unload(key, now);
            self.consider(key, now);
        }
    }

    /// Not ours any more: handed over, or lost.
    pub(super) fn released(&mut self, slots: &[(Slot, Epoch)]) {
        let gone = slots
            .iter()
            .filter(|(slot, epoch)| self.slots.released(*slot, *epoch));
        let gone: HashSet<Slot> = gone.map(|(slot, _)| *slot).collect();
        self.forget_endpoints_of(&gone);
    }

    pub(super) fn forget_everything(&mut self) {
        self.incarnation = None;
        self.may_start_until = BootTime(Duration::ZERO);
        self.slots.clear();
        self.endpoints.clear();
        self.buckets.clear();
        self.slow_permits = 0;
        self.send_turns.clear();
        self.slow_turns.clear();
        self.load_turns.clear();
        self.due.clear();
        self.suspects.clear();
        self.suspect_queue.clear();
        self.suspect_out = None;
        (self.loaded_rows, self.loaded_bytes) = (0, 0);
        // `in_flight` stays: those requests are on the wire and hold permits until they are recorded.
    }

    pub(super) fn leave(&mut self, count: usize, now: Now) {
        let leaving: HashSet<Slot> = self.slots.choose_leaving(count).into_iter().collect();
        if leaving.is_empty() {
            return;
        }
        // Nothing starts there any more, so the buckets stand still.
        for endpoint in self.endpoints.values() {
            let undecided =
                endpoint.outage.is_some() || endpoint.gate.as_ref().is_some_and(Gate::is_undecided);
            if undecided
                && leaving.contains(&endpoint.slot)
                && let Some(taken) = self.slots.taken(endpoint.slot)
            {
                self.slots.leave_doubt(endpoint.slot, taken.epoch);
            }
            let Some(gate) = endpoint
                .gate
                .as_ref()
                .filter(|_| leaving.contains(&endpoint.slot))
            else {
                continue;
            };
            let (bucket, parked_until) = gate.hand_over(now.database);
            if (bucket, parked_until) != (None, None) {
                let handed_over = HandedOver {
                    endpoint: endpoint.key,
                    tenant: endpoint.tenant,
                    bucket,
                    parked_until,
                };
                self.slots.hand_over(endpoint.slot, handed_over);
            }
        }
        for (key, (slot, tenant, position)) in &self.buckets {
            if leaving.contains(slot) {
                let handed_over = HandedOver {
                    endpoint: *key,
                    tenant: *tenant,
                    bucket: Some(*position),
                    parked_until: None,
                };
                self.slots.hand_over(*slot, handed_over);
            }
        }
        self.forget_endpoints_of(&leaving);
    }

    pub(super) fn forget_endpoints_of(&mut self, slots: &HashSet<Slot>) {
        if slots.is_empty() {
            return;
        }
        self.buckets.retain(|_, (slot, _, _)| !slots.contains(slot));
        let (rows, bytes) = (&mut self.loaded_rows, &mut self.loaded_bytes);
        let slow_permits = &mut self.slow_permits;
        self.endpoints.retain(|_, endpoint| {
            let leaves = slots.contains(&endpoint.slot);
            if leaves {
                *rows -= endpoint.lanes.len();
                *bytes -= endpoint.lanes.iter().map(size).sum::<usize>();
                if endpoint.counted_slow {
                    *slow_permits = slow_permits.saturating_sub(endpoint.permits);
                }
            }
            !leaves
        });
        let endpoints = &self.endpoints;
        self.suspect_queue
            .retain(|(endpoint, _)| endpoints.contains_key(endpoint));
    }
}
