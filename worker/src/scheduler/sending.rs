//! Sending: who may start a request now, what ends without one, and permits that come back.

use shared::domain::attempt::Outcome;
use shared::domain::delivery::DeadLetterClass;
use shared::ids::{EndpointKey, created_at};
use shared::policy::decide::Decision;
use shared::runtime::clock::BootTime;
use uuid::Uuid;

use super::{Effect, Now, Recorded, Scheduler, size};
use crate::admission::{Admission, admit};
use crate::endpoint_config::SharedConfig;
use crate::job::{Job, LiveRow, Ownership, Record};

/// An id that was in flight in three workers that died is not sent a fourth time.
const DEADLY: u16 = 3;

impl Scheduler {
    pub(super) fn may_start(&self, now: Now) -> bool {
        self.incarnation.is_some()
            && now.boot < self.may_start_until
            && !self.recording_behind
            && self.in_flight.len() < self.settings.max_in_flight
    }

    pub(super) fn dispatch(&mut self, now: Now) {
        self.dispatch_suspect(now);
        while self.may_start(now) {
            let Some(key) = self.send_turns.next() else {
                return;
            };
            let Some(endpoint) = self.endpoints.get_mut(&key) else {
                continue;
            };
            endpoint.in_send_turns = false;
            let Some(config) = endpoint.config.clone().filter(|_| !endpoint.config_stale) else {
                continue;
            };
            match admit(&config, endpoint.in_flight) {
                Admission::Defer(_) => continue,
                Admission::Send => {}
            }
            let Some((row, loaded_at)) = endpoint.queue.pop_front() else {
                continue;
            };
            self.loaded_rows -= 1;
            self.loaded_bytes -= size(&row);
            self.start(key, &config, (row, loaded_at), now);
            self.consider(key, now);
        }
    }

    /// What was in flight when a worker died goes alone, so that if it kills us too, it is known.
    pub(super) fn dispatch_suspect(&mut self, now: Now) {
        if self.suspect_out.is_some() || !self.may_start(now) {
            return;
        }
        // Others may wait behind one whose endpoint cannot take it now.
        let admitted = |(key, _, _): &(EndpointKey, LiveRow, BootTime)| {
            let endpoint = self
                .endpoints
                .get(key)
                .filter(|endpoint| endpoint.enabled())?;
            let config = endpoint.config.clone()?;
            let admission = admit(&config, endpoint.in_flight);
            (admission == Admission::Send).then_some(config)
        };
        let found = self
            .suspect_queue
            .iter()
            .enumerate()
            .find_map(|(at, waiting)| Some((at, admitted(waiting)?)));
        let Some((at, config)) = found else {
            return;
        };
        if let Some((key, row, loaded_at)) = self.suspect_queue.remove(at) {
            let id = row.id;
            let owner = self.start(key, &config, (row, loaded_at), now);
            self.suspect_out = owner.map(|owner| (owner, id));
        }
    }

    /// Under which ownership it was started, if it was.
    pub(super) fn start(
        &mut self,
        key: EndpointKey,
        config: &SharedConfig,
        (row, loaded_at): (LiveRow, BootTime),
        now: Now,
    ) -> Option<Ownership> {
        let endpoint = self.endpoints.get_mut(&key)?;
        let owner = Ownership {
            incarnation: self.incarnation?,
            slot: endpoint.slot,
            epoch: self.slots.working(endpoint.slot)?,
        };
        endpoint.in_flight += 1;
        self.slots.started(owner.slot);
        self.in_flight.insert((owner, row.id), now.boot);
        let deaths = self.suspects.get(&row.id).copied();
        let effect = match end_without_sending(config, &row, deaths.unwrap_or(0), now) {
            Some((outcome, class, note)) => {
                let decision = Decision::DeadLetter(class);
                let what = (outcome, decision, note);
                let suspect = deaths.is_some();
                Effect::Settle(Box::new(Record {
                    suspect,
                    ..settlement(owner, key, &row, what)
                }))
            }
            None => Effect::Send(Box::new(Job {
                owner,
                endpoint: config.clone(),
                row,
                loaded_at,
                suspect: deaths.is_some(),
                start_before: self.may_start_until,
            })),
        };
        self.effects.push(effect);
        Some(owner)
    }

    pub(super) fn settle_expired(&mut self, key: EndpointKey, now: Now) {
        while self.may_start(now) {
            let Some(endpoint) = self.endpoints.get_mut(&key) else {
                return;
            };
            let Some(config) = endpoint.config.clone() else {
                return;
            };
            let is_expired = |(row, _): &(LiveRow, BootTime)| expired(&config, row, now);
            if !endpoint.queue.front().is_some_and(is_expired) {
                return;
            }
            let Some((row, loaded_at)) = endpoint.queue.pop_front() else {
                return;
            };
            self.loaded_rows -= 1;
            self.loaded_bytes -= size(&row);
            self.start(key, &config, (row, loaded_at), now);
        }
    }

    /// A delivery is off the wire. Whether what it was sent under is still ours.
    pub(super) fn permit_returned(&mut self, owner: Ownership, delivery: Uuid) -> bool {
        self.in_flight.remove(&(owner, delivery));
        if self.suspect_out == Some((owner, delivery)) {
            self.suspect_out = None;
        }
        self.slots.ended(owner.slot, owner.epoch);
        self.incarnation == Some(owner.incarnation) && self.slots.works(owner.slot, owner.epoch)
    }

    pub(super) fn recorded(&mut self, records: Vec<Recorded>, now: Now) {
        for record in records {
            if !self.permit_returned(record.owner, record.delivery) {
                continue;
            }
            self.suspects.remove(&record.delivery);
            let key = record.endpoint;
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                endpoint.recorded(record.delivery, record.next_due, now.boot);
                if let Some(due) = endpoint.next_due {
                    self.due.insert((due, key));
                }
            }
            self.consider(key, now);
        }
    }
}

fn expired(config: &SharedConfig, row: &LiveRow, now: Now) -> bool {
    let too_old = now.database - created_at(row.id) > config.settings.max_age();
    let deadline = row.event.as_ref().and_then(|event| event.deliver_before);
    too_old || deadline.is_some_and(|deadline| deadline <= now.database)
}

/// Why a delivery ends here, if it does.
fn end_without_sending(
    config: &SharedConfig,
    row: &LiveRow,
    deaths: u16,
    now: Now,
) -> Option<(Outcome, DeadLetterClass, &'static str)> {
    if deaths >= DEADLY {
        let note = "in flight in three workers that died; not sent again";
        return Some((Outcome::Internal, DeadLetterClass::Internal, note));
    }
    if expired(config, row, now) {
        let note = "older than max_age_seconds or deliver_before allows";
        return Some((Outcome::Expired, DeadLetterClass::Expired, note));
    }
    if row.event.is_none() {
        let note = "the event is gone; retention must keep what is owed";
        return Some((Outcome::Internal, DeadLetterClass::Internal, note));
    }
    None
}

fn settlement(
    owner: Ownership,
    endpoint: EndpointKey,
    row: &LiveRow,
    (outcome, decision, note): (Outcome, Decision, &str),
) -> Record {
    Record {
        owner,
        endpoint,
        delivery: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        attempts_before: row.attempts_made,
        attempts_charged: row.attempts_charged,
        outcome,
        decision,
        attempt: None,
        note: Some(note.to_owned()),
        suspect: false,
    }
}
