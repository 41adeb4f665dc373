//! Sending: who may start a request now, what ends without one, and permits that come back.

use shared::domain::attempt::Outcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::ids::{EndpointKey, created_at};
use shared::policy::decide::Decision;
use uuid::Uuid;

use super::endpoint::Endpoint;
use super::share::InFlight;
use super::{Effect, Now, Recorded, Scheduler, size};
use crate::admission::Admission;
use crate::endpoint_config::SharedConfig;
use crate::job::{Job, LiveRow, Ownership, Record};
use crate::metrics;

/// An id that was in flight in three workers that died is not sent a fourth time.
const DEADLY: u16 = 3;

impl Scheduler {
    pub(super) fn may_start(&self, now: Now) -> bool {
        self.incarnation.is_some()
            && now.boot < self.may_start_until
            && !self.recording_behind
            && self.permits_held < self.settings.max_in_flight
    }

    pub(super) fn dispatch(&mut self, now: Now) {
        self.dispatch_suspect(now);
        while self.may_start(now) {
            let Some(key) = self.next_turn() else {
                return;
            };
            self.take_turn(key, now);
        }
    }

    /// Whose turn it is. Slow endpoints wait aside while their share of the permits is used up.
    fn next_turn(&mut self) -> Option<EndpointKey> {
        if self.slow_have_room()
            && let Some(key) = self.slow_turns.next()
        {
            return Some(key);
        }
        loop {
            let key = self.send_turns.next()?;
            match self.endpoints.get(&key) {
                Some(endpoint) if endpoint.pace.is_slow() && !self.slow_have_room() => {
                    self.slow_turns.push(endpoint.tenant, key);
                }
                Some(_) | None => return Some(key),
            }
        }
    }

    fn take_turn(&mut self, key: EndpointKey, now: Now) {
        if let Some(endpoint) = self.endpoints.get_mut(&key) {
            endpoint.in_send_turns = false;
        }
        let Some(turn) = self.next_of(key, now) else {
            return;
        };
        let row = self
            .endpoints
            .get_mut(&key)
            .and_then(|endpoint| endpoint.lanes.pop(turn.replays));
        let Some(row) = row else {
            return;
        };
        self.loaded_rows -= 1;
        self.loaded_bytes -= size(&row);
        self.start(key, turn, row, now);
        self.consider(key, now);
    }

    /// What an endpoint does with its turn; `None`: nothing, and what it waits for brings it back.
    fn next_of(&mut self, key: EndpointKey, now: Now) -> Option<Turn> {
        let endpoint = self.endpoints.get(&key)?;
        let replays = endpoint.replays_allowed(now);
        let row = endpoint.lanes.peek(replays)?;
        let Some(turn) = self.turn_of(endpoint, row, replays, now) else {
            self.consider(key, now);
            return None;
        };
        let slow = endpoint.pace.is_slow();
        self.has_share(endpoint.permits, slow).then_some(turn)
    }

    /// What becomes of this row of an endpoint; `None`: nothing may be sent to it now.
    fn turn_of(&self, endpoint: &Endpoint, row: &LiveRow, replays: bool, now: Now) -> Option<Turn> {
        let admission = endpoint.admission(now)?;
        let config = endpoint.config.clone()?;
        let deaths = self.suspects.get(&row.id).copied();
        let ends = end_without_sending(&config, row, deaths.unwrap_or(0), now);
        let probe = match admission {
            // What ends without a request needs no admission, and is never the probe.
            _ if ends.is_some() => false,
            Admission::Send => false,
            Admission::Probe => true,
            Admission::Defer(_) => return None,
        };
        Some(Turn {
            config,
            replays,
            ends,
            probe,
        })
    }

    /// What was in flight when a worker died goes alone, so that if it kills us too, it is known.
    pub(super) fn dispatch_suspect(&mut self, now: Now) {
        if self.suspect_out.is_some() || !self.may_start(now) {
            return;
        }
        // Others may wait behind one whose endpoint cannot take it now.
        let admitted = |(key, row): &(EndpointKey, LiveRow)| {
            let endpoint = self.endpoints.get(key).filter(|it| it.enabled())?;
            self.turn_of(endpoint, row, true, now)
        };
        let found = self
            .suspect_queue
            .iter()
            .enumerate()
            .find_map(|(at, waiting)| Some((at, admitted(waiting)?)));
        let Some((at, turn)) = found else {
            return;
        };
        if let Some((key, row)) = self.suspect_queue.remove(at) {
            let id = row.id;
            let owner = self.start(key, turn, row, now);
            self.suspect_out = owner.map(|owner| (owner, id));
        }
    }

    /// Under which ownership it was started, if it was.
    fn start(&mut self, key: EndpointKey, turn: Turn, row: LiveRow, now: Now) -> Option<Ownership> {
        let probe = turn.probe;
        let owner = self.owner_of(key)?;
        self.slots.started(owner.slot);
        let flight = InFlight::new(now.boot, key, probe, &row);
        self.permit_taken((owner, row.id), flight);
        let suspect = self.suspects.contains_key(&row.id);
        let effect = match turn.ends {
            Some(end) => Effect::Settle(Box::new(Record {
                suspect,
                ..settlement(owner, key, &row, end)
            })),
            None => {
                let gate = self.endpoints.get_mut(&key).and_then(|it| it.gate.as_mut());
                if let Some(gate) = gate {
                    gate.started(probe, now.database);
                }
                if probe {
                    let to = metrics::BREAKER_TRANSITIONS.with_label_values(&["half_open"]);
                    to.inc();
                }
                Effect::Send(Box::new(Job {
                    owner,
                    endpoint: turn.config,
                    row,
                    suspect,
                    probe,
                    start_before: self.may_start_until,
                }))
            }
        };
        self.effects.push(effect);
        Some(owner)
    }

    /// A delivery is off the wire: its flight, and whether what it was sent under is still ours.
    pub(super) fn permit_returned(
        &mut self,
        owner: Ownership,
        delivery: Uuid,
    ) -> (Option<InFlight>, bool) {
        let flight = self.permit_dropped((owner, delivery));
        if self.suspect_out == Some((owner, delivery)) {
            self.suspect_out = None;
        }
        self.slots.ended(owner.slot, owner.epoch);
        (flight, self.is_ours(owner))
    }

    /// Whether what was done under this ownership still counts: in this life, and in a slot that we have had
    /// since.
    pub(super) fn is_ours(&self, owner: Ownership) -> bool {
        self.incarnation == Some(owner.incarnation) && self.slots.works(owner.slot, owner.epoch)
    }

    pub(super) fn recorded(&mut self, records: &[Recorded], now: Now) {
        for record in records {
            let (flight, ours) = self.permit_returned(record.owner, record.delivery);
            if !ours {
                if record.observed.is_some_and(|it| it.exhausted.is_some()) {
                    let owner = record.owner;
                    self.slots.leave_doubt(owner.slot, owner.epoch);
                }
                continue;
            }
            self.suspects.remove(&record.delivery);
            let key = record.endpoint;
            if let Some(flight) = &flight {
                self.permit_freed(flight, record.observed.map(|observed| observed.took));
            }
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                endpoint.recorded(record.delivery, record.next_due, now.boot);
                let due = endpoint.next_due;
                self.wake_at(due, key, now);
            }
            self.observe(record, now);
            self.consider(key, now);
        }
    }
}

/// What an endpoint does with its turn.
struct Turn {
    config: SharedConfig,
    /// Whether a replay may have it.
    replays: bool,
    ends: Option<End>,
    probe: bool,
}

/// How a delivery ends without a request.
type End = (Outcome, Decision, Option<&'static str>);

fn expired(config: &SharedConfig, row: &LiveRow, now: Now) -> bool {
    let too_old = now.database - created_at(row.id) > config.settings.max_age();
    let deadline = row.event.as_ref().and_then(|event| event.deliver_before);
    too_old || deadline.is_some_and(|deadline| deadline <= now.database)
}

/// Why a delivery ends here, if it does.
fn end_without_sending(config: &SharedConfig, row: &LiveRow, deaths: u16, now: Now) -> Option<End> {
    let dead = |outcome, class, note| Some((outcome, Decision::DeadLetter(class), Some(note)));
    if deaths >= DEADLY {
        let note = "in flight in three workers that died; not sent again";
        return dead(Outcome::Internal, DeadLetterClass::Internal, note);
    }
    if expired(config, row, now) {
        let note = "older than max_age_seconds or deliver_before allows";
        return dead(Outcome::Expired, DeadLetterClass::Expired, note);
    }
    let Some(event) = &row.event else {
        let note = "the event is gone; retention must keep what is owed";
        return dead(Outcome::Internal, DeadLetterClass::Internal, note);
    };
    // An expunged payload is empty, which no JSON text is.
    let expunged = event.payload.is_empty();
    expunged.then_some((
        Outcome::Expired,
        Decision::Close(CloseReason::Expunged),
        None,
    ))
}

fn settlement(
    owner: Ownership,
    endpoint: EndpointKey,
    row: &LiveRow,
    (outcome, decision, note): End,
) -> Record {
    Record {
        owner,
        endpoint,
        delivery: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        in_line: row.order.is_some(),
        attempts_before: row.attempts_made,
        attempts_charged: row.attempts_charged,
        outcome,
        decision,
        attempt: None,
        note: note.map(str::to_owned),
        suspect: false,
        observed: None,
    }
}
