//! The scheduler: what this worker owns, what is loaded, whose turn it is. The heart of a worker.
//!
//! A plain state machine: [`Scheduler::handle`] takes what happened, [`Scheduler::effects`] gives back
//! what to do. It reads no clock, draws no chance, waits for nothing; `crate::engine` is the thin shell
//! that connects it to the database and the network, and `tests/model` drives this same code through
//! crashes, pauses and late answers with a simulated clock and store.
//!
//! # Invariants
//! - D3 nothing starts under a lease that may have run out (`may_start_until`); whether a result counts
//!   is decided by the fence in the database, never here.
//! - D8 a row that is not in memory is found again by the scan of its slot, by whoever owns it.
//! - O1 turns go round tenants, then endpoints; an endpoint holds at most its limit of permits, those that
//!   are slow at most half of all together (see [`share`]), and a permit comes back when the outcome is
//!   *recorded*, so sent-but-unrecorded is bounded.
//! - B1, R1 nothing is sent but by admission of the endpoint's gate (`crate::admission`).
//! - No row is sent twice by a healthy worker (tombstones, see [`endpoint`]).

mod closing;
mod endpoint;
mod finding;
mod gating;
mod lanes;
mod loading;
mod messages;
mod ordered;
mod ownership;
mod pausing;
mod recovering;
mod sending;
mod share;
mod slots;
mod turns;

#[cfg(test)]
mod ordered_tests;
#[cfg(test)]
mod pausing_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use shared::domain::pause::Pauses;
use shared::ids::{EndpointKey, Incarnation, Slot, TenantKey};
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;
use uuid::Uuid;

use self::endpoint::Endpoint;
pub use self::messages::{
    Chore, Close, Effect, Expire, Found, Input, LoadRequest, LoadedEndpoint, Park, Recorded, Revive,
};
pub use self::ordered::LinesRequest;
use self::share::InFlight;
use self::slots::OwnedSlots;
pub use self::slots::{Leaving, Taken};
use self::turns::Turns;
use crate::admission::{Admission, Position};
use crate::job::{LiveRow, Ownership};
use crate::metrics;

/// Hashed without chance, so that all the scheduler does follows from what it is told: a run of the
/// model can be repeated. The keys are ours, nobody can choose them to collide.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
/// See [`Map`].
type Set<K> = HashSet<K, BuildHasherDefault<DefaultHasher>>;

/// Bounds of one worker.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerSettings {
    /// Permits: requests sent and not yet recorded, all endpoints together. A large payload takes several.
    pub max_in_flight: usize,
    /// Rows in memory, sent or not.
    pub max_loaded: usize,
    /// Payload bytes in memory; exceeded by at most one load.
    pub max_loaded_bytes: usize,
    /// How long a lease lasts from the moment its renewal was sent.
    pub lease_ttl: Duration,
    /// A send starts only while this much of the lease is left.
    pub lease_margin: Duration,
}

/// The two clocks, as read by the caller.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Leases and waits.
    pub boot: BootTime,
    /// Due times and ages: estimated database time.
    pub database: OffsetDateTime,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    incarnation: Option<Incarnation>,
    may_start_until: BootTime,
    recording_behind: bool,
    slots: OwnedSlots,
    endpoints: Map<EndpointKey, Box<Endpoint>>,
    send_turns: Turns,
    /// Those of slow endpoints, while their share of the permits is used up.
    slow_turns: Turns,
    load_turns: Turns,
    due: BTreeSet<(OffsetDateTime, EndpointKey)>,
    /// By ownership as well: after a lease was lost, a delivery can be on the wire a second time.
    in_flight: Map<(Ownership, Uuid), InFlight>,
    /// Permits that they hold.
    permits_held: usize,
    /// The same in the order of their starts, until they are overdue.
    starts: VecDeque<(BootTime, (Ownership, Uuid))>,
    /// Permits that slow endpoints hold.
    slow_permits: usize,
    /// Positions of buckets that are not full, of endpoints that are forgotten otherwise (R1).
    buckets: Map<EndpointKey, (Slot, TenantKey, Position)>,
    loaded_rows: usize,
    loaded_bytes: usize,
    loads_out: usize,
    /// Endpoints in the next load: halved when one fails, for it may have been too much.
    load_batch: usize,
    /// What a payload has, smoothed: how many rows fit into what is left of the bytes.
    usual_payload: usize,
    suspects: Map<Uuid, u16>,
    suspect_queue: VecDeque<(EndpointKey, LiveRow)>,
    suspect_out: Option<(Ownership, Uuid)>,
    /// What operators hold back.
    pauses: Pauses,
    draining: bool,
    swept_at: BootTime,
    effects: Vec<Effect>,
}

impl Scheduler {
    /// A scheduler that owns nothing yet.
    #[must_use]
    pub fn new(settings: SchedulerSettings) -> Self {
        let zero = BootTime(Duration::ZERO);
        Self {
            settings,
            incarnation: None,
            may_start_until: zero,
            recording_behind: false,
            slots: OwnedSlots::default(),
            endpoints: Map::default(),
            send_turns: Turns::default(),
            slow_turns: Turns::default(),
            load_turns: Turns::default(),
            due: BTreeSet::new(),
            in_flight: Map::default(),
            starts: VecDeque::new(),
            permits_held: 0,
            slow_permits: 0,
            buckets: Map::default(),
            loaded_rows: 0,
            loaded_bytes: 0,
            loads_out: 0,
            load_batch: loading::LOAD_BATCH,
            usual_payload: loading::FIRST_PAYLOAD,
            suspects: Map::default(),
            suspect_queue: VecDeque::new(),
            suspect_out: None,
            pauses: Pauses::default(),
            draining: false,
            swept_at: zero,
            effects: Vec::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, input: Input, now: Now) {
        match input {
            Input::Born(incarnation) => self.incarnation = Some(incarnation),
            Input::Acquired { slots, suspects } => self.acquired(slots, suspects, now),
            Input::Renewed { sent_at } => self.renewed(sent_at),
            Input::LeaseLost => self.forget_everything(),
            Input::Release { count } => self.leave(count.min(slots::MOST_MOVED), now),
            Input::Drain => {
                self.draining = true;
                self.leave(usize::MAX, now);
            }
            Input::Released(slots) => self.released(&slots),
            Input::Hint(pairs) => self.hinted(&pairs, now),
            Input::Scanned { slots, found, took } => self.scanned(&slots, found, took, now),
            Input::ScanFailed(slots) => self.slots.scanned(&slots, Duration::ZERO, now.boot),
            Input::Loaded(results) => self.loaded(results, now),
            Input::LoadFailed(requests) => self.load_failed(&requests, now),
            Input::Recorded(records) => self.recorded(&records, now),
            Input::NotSent {
                owner,
                endpoint,
                delivery,
            } => {
                self.not_sent(owner, endpoint, delivery, now);
            }
            Input::Reload { slot, endpoint } => self.reload(slot, endpoint, now),
            Input::RetriesDue {
                slot,
                endpoint,
                tenant,
            } => {
                self.retries_due(slot, endpoint, tenant, now);
            }
            Input::Closed {
                slot,
                epoch,
                endpoint,
                more,
            } if self.slots.works(slot, epoch) => self.closed(endpoint, more, now),
            Input::Revived {
                slot,
                epoch,
                endpoint,
                deliveries,
            } if self.slots.works(slot, epoch) => self.revived(endpoint, deliveries, now),
            Input::Expired {
                slot,
                epoch,
                endpoint,
                more,
            } if self.slots.works(slot, epoch) => self.expired(endpoint, more, now),
            Input::Parked {
                slot,
                epoch,
                endpoint,
                done,
            } if self.slots.works(slot, epoch) => self.parked(endpoint, done, now),
            Input::Closed { .. }
            | Input::Revived { .. }
            | Input::Expired { .. }
            | Input::Parked { .. } => {}
            Input::Pauses(pauses) => self.paused(pauses, now),
            Input::Outages { slots, found } => self.outages(&slots, found, now),
            Input::RecordingBehind(behind) => self.recording_behind = behind,
            Input::ScanAll => self.slots.scan_all(now.boot),
            Input::Tick => self.tick(now),
        }
    }

    /// What is to be done now, in order.
    pub fn effects(&mut self, now: Now) -> Vec<Effect> {
        self.work(now);
        std::mem::take(&mut self.effects)
    }

    /// Deliveries on the wire since before this instant, at most 2,000: for the heartbeat.
    #[must_use]
    pub fn in_flight_since(&self, before: BootTime) -> Vec<Uuid> {
        let old = self
            .in_flight
            .iter()
            .filter(|(_, flight)| flight.started <= before);
        old.map(|((_, id), _)| *id).take(2_000).collect()
    }

    /// How many slots are owned, those being handed over included.
    #[must_use]
    pub fn owned(&self) -> usize {
        self.slots.len()
    }

    /// How many deliveries are sent and not yet recorded.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.in_flight.len()
    }

    /// When something becomes due that is known of; due times are database time.
    #[must_use]
    pub fn next_due(&self) -> Option<OffsetDateTime> {
        self.due.first().map(|(due, _)| *due)
    }

    fn work(&mut self, now: Now) {
        self.dispatch(now);
        self.load(now);
        let slots = self.slots.next_scan(now.boot);
        if !slots.is_empty() {
            self.effects.push(Effect::Scan(slots));
        }
        let slots = self.slots.next_doubtful(now.boot);
        if !slots.is_empty() {
            let taken = slots.iter().filter_map(|(slot, _)| self.slots.taken(*slot));
            let taken_at = taken.filter_map(|it| it.emptied_at).min();
            self.effects.push(Effect::Chore(Chore::FindOutages {
                slots,
                taken_at: taken_at.unwrap_or(now.database),
            }));
        }
        let idle = self.slots.ready_to_release();
        if !idle.is_empty() {
            self.effects.push(Effect::Release(idle));
        }
    }

    /// Looks at an endpoint again at this instant, if that is yet to come.
    fn wake_at(&mut self, at: Option<OffsetDateTime>, key: EndpointKey, now: Now) {
        if let Some(at) = at.filter(|at| *at > now.database) {
            self.due.insert((at, key));
        }
    }

    /// Puts an endpoint into the turns that it can use.
    fn consider(&mut self, key: EndpointKey, now: Now) {
        if self.endpoints.get(&key).is_some_and(|it| it.may_revive()) {
            self.revive(key, now);
        }
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        consider_load(endpoint, &mut self.load_turns, now);
        let has_next = endpoint.lanes.has_next(endpoint.replays_allowed(now));
        if endpoint.in_send_turns || !(has_next || endpoint.may_wait()) {
            return;
        }
        match endpoint.admission(now) {
            Some(Admission::Send | Admission::Probe) if has_next => {
                endpoint.in_send_turns = true;
                self.send_turns.push(endpoint.tenant, key);
            }
            Some(Admission::Defer(deferral)) => {
                if deferral
                    .until
                    .is_some_and(|until| self.due.insert((until, key)))
                {
                    let reason = deferral.reason.name();
                    metrics::DEFERRED.with_label_values(&[reason]).inc();
                }
                if self
                    .endpoints
                    .get(&key)
                    .is_some_and(|it| it.waits_long(now))
                {
                    self.unload(key, now);
                }
            }
            None | Some(Admission::Send | Admission::Probe) => {
                let at = endpoint.replay_token_at();
                self.wake_at(at, key, now);
            }
        }
    }
}

fn consider_load(endpoint: &mut Endpoint, turns: &mut Turns, now: Now) {
    if !endpoint.in_load_turns && endpoint.wants_load(now) {
        endpoint.in_load_turns = true;
        turns.push(endpoint.tenant, endpoint.key);
    }
}

fn size(row: &LiveRow) -> usize {
    row.event.as_ref().map_or(0, |event| event.payload.len())
}
