//! Which slots are ours, and what is forgotten when one is not any more.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use shared::ids::{Epoch, Slot};
use shared::runtime::clock::BootTime;
use uuid::Uuid;

use super::{Now, Scheduler, size};

impl Scheduler {
    pub(super) fn acquired(
        &mut self,
        slots: Vec<(Slot, Epoch)>,
        suspects: HashMap<Uuid, u16>,
        now: Now,
    ) {
        for (slot, epoch) in slots {
            self.forget_endpoints_of(&HashSet::from([slot]));
            self.slots.acquire(slot, epoch, now.boot);
        }
        self.suspects = suspects.into_iter().collect();
        // They were on their way here when the shutdown began.
        if self.draining {
            self.leave(usize::MAX);
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
        self.send_turns.clear();
        self.load_turns.clear();
        self.due.clear();
        self.suspects.clear();
        self.suspect_queue.clear();
        self.suspect_out = None;
        (self.loaded_rows, self.loaded_bytes) = (0, 0);
        // `in_flight` stays: those requests are on the wire and hold permits until they are recorded.
    }

    pub(super) fn leave(&mut self, count: usize) {
        let leaving: HashSet<Slot> = self.slots.choose_leaving(count).into_iter().collect();
        self.forget_endpoints_of(&leaving);
    }

    pub(super) fn forget_endpoints_of(&mut self, slots: &HashSet<Slot>) {
        if slots.is_empty() {
            return;
        }
        let (rows, bytes) = (&mut self.loaded_rows, &mut self.loaded_bytes);
        self.endpoints.retain(|_, endpoint| {
            let leaves = slots.contains(&endpoint.slot);
            if leaves {
                *rows -= endpoint.queue.len();
                *bytes -= endpoint
                    .queue
                    .iter()
                    .map(|(row, _)| size(row))
                    .sum::<usize>();
            }
            !leaves
        });
        let endpoints = &self.endpoints;
        self.suspect_queue
            .retain(|(endpoint, _, _)| endpoints.contains_key(endpoint));
    }
}
