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

use shared::domain::attempt::Outcome;
use shared::domain::delivery::CloseReason;
use shared::domain::order::OrderKey;
use shared::domain::pause::Pauses;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::runtime::clock::BootTime;
use shared::store::endpoint_runtime::Recovery;
use time::OffsetDateTime;
use uuid::Uuid;

use self::endpoint::Endpoint;
pub use self::ordered::LinesRequest;
use self::share::InFlight;
use self::slots::OwnedSlots;
pub use self::slots::{Leaving, Taken};
use self::turns::Turns;
use crate::admission::{Admission, Position};
use crate::endpoint_config::SharedConfig;
use crate::job::{Job, LiveRow, Observed, Ownership, Record};
use crate::metrics;
use crate::transitions::Change;

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

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A new life begins under this id; it owns nothing yet.
    Born(Incarnation),
    /// Slots were taken; `suspects` were in flight when a worker died, with the number of deaths.
    Acquired {
        slots: Vec<Taken>,
        suspects: HashMap<Uuid, u16>,
    },
    /// The lease was renewed by a statement sent at this instant.
    Renewed { sent_at: BootTime },
    /// This incarnation was declared dead: forget everything.
    LeaseLost,
    /// Hand over up to this many slots, idle ones first.
    Release { count: usize },
    /// Hand over all slots: shutdown.
    Drain,
    /// Slots were handed over.
    Released(Vec<(Slot, Epoch)>),
    /// Endpoints with new `ready` rows.
    Hint(Vec<(Slot, EndpointKey)>),
    /// A scan, started after the previous one ended, found these endpoints.
    Scanned {
        slots: Vec<(Slot, Epoch)>,
        found: Vec<Found>,
        took: Duration,
    },
    /// A scan could not be made.
    ScanFailed(Vec<(Slot, Epoch)>),
    /// The answer to one [`Effect::Load`].
    Loaded(Vec<LoadedEndpoint>),
    /// One [`Effect::Load`] could not be answered.
    LoadFailed(Vec<LoadRequest>),
    /// Records were acknowledged.
    Recorded(Vec<Recorded>),
    /// A request was not made after all: the lease had run out before it could start.
    NotSent {
        owner: Ownership,
        endpoint: EndpointKey,
        delivery: Uuid,
    },
    /// The endpoint changed.
    Reload { slot: Slot, endpoint: EndpointKey },
    /// Retries of the endpoint may be due now (their due time was changed).
    RetriesDue {
        slot: Slot,
        endpoint: EndpointKey,
        tenant: TenantKey,
    },
    /// Live rows of a disabled or deleted endpoint were closed; `more`: not all.
    Closed {
        slot: Slot,
        epoch: Epoch,
        endpoint: EndpointKey,
        more: bool,
    },
    /// The answer to one [`Effect::Revive`]: the new deliveries; `None`: it could not be answered.
    Revived {
        slot: Slot,
        epoch: Epoch,
        endpoint: EndpointKey,
        deliveries: Option<Vec<Uuid>>,
    },
    /// The answer to one [`Effect::Expire`]. `more`: not all that are too old.
    Expired {
        slot: Slot,
        epoch: Epoch,
        endpoint: EndpointKey,
        more: bool,
    },
    /// Endpoints of slots that were taken from a dead owner, with dead letters of an outage, the first of
    /// which died then, and a breaker that is not stored as open; `None`: it could not be found out.
    Outages {
        slots: Vec<(Slot, Epoch)>,
        found: Option<Vec<(Slot, EndpointKey, TenantKey, OffsetDateTime)>>,
    },
    /// The answer to one [`Effect::Park`]; whether it was done.
    Parked {
        slot: Slot,
        epoch: Epoch,
        endpoint: EndpointKey,
        done: bool,
    },
    /// What operators hold back was read, and has changed.
    Pauses(Pauses),
    /// Recording lags too far behind for sending to go on, or has caught up.
    RecordingBehind(bool),
    /// Hints may have been lost (the listening connection is new): scan at once.
    ScanAll,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug)]
pub enum Effect {
    /// Which endpoints of these slots have live rows?
    Scan(Vec<(Slot, Epoch)>),
    /// Load rows, and configurations where asked, in one go.
    Load(Vec<LoadRequest>),
    /// Make this request, then record what came of it.
    Send(Box<Job>),
    /// Record a delivery that ends without a request.
    Settle(Box<Record>),
    /// Close live rows of a disabled or deleted endpoint, but for those on the wire.
    Close {
        owner: Ownership,
        endpoint: EndpointKey,
        reason: CloseReason,
        except: Vec<Uuid>,
    },
    /// Give up these slots; nothing of them is on the wire.
    Release(Vec<Leaving>),
    /// Store what changed about an endpoint, and tell who wants to know.
    Change(Box<Change>),
    /// Make dead letters live again: those of an outage that is over, or one to probe with.
    Revive {
        owner: Ownership,
        endpoint: EndpointKey,
        window: Recovery,
        count: usize,
    },
    /// End live rows that are too old, but for those on the wire.
    Expire {
        owner: Ownership,
        endpoint: EndpointKey,
        older_than: OffsetDateTime,
        except: Vec<Uuid>,
    },
    /// Put these rows out of the way of those that may go; those in line wait there until `look_again`.
    Park {
        owner: Ownership,
        endpoint: EndpointKey,
        tenant: TenantKey,
        deliveries: Vec<Uuid>,
        look_again: OffsetDateTime,
    },
    /// Was the owner of these slots killed before it could store that a breaker opened? What was delivered
    /// since they were taken says nothing about that.
    FindOutages {
        slots: Vec<(Slot, Epoch)>,
        taken_at: OffsetDateTime,
    },
}

/// An endpoint with live rows.
#[derive(Debug, Clone)]
pub struct Found {
    pub slot: Slot,
    pub endpoint: EndpointKey,
    pub tenant: TenantKey,
    /// It has rows in `ready`.
    pub ready: bool,
    /// Its earliest row in `retry`.
    pub next_due: Option<OffsetDateTime>,
    /// It has rows in `ready_ordered`.
    pub lines: bool,
    /// Its breaker is stored as open, or dead letters of an outage are being replayed.
    pub awake: bool,
}

/// What to load for one endpoint.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    pub slot: Slot,
    pub epoch: Epoch,
    pub endpoint: EndpointKey,
    /// `ready` rows after this id; 0 rows: none.
    pub cursor: Uuid,
    pub ready_limit: usize,
    /// Beside them, `ready` rows after another id: what came in since an outage ended.
    pub fresh: Option<(Uuid, usize)>,
    /// `retry` rows, the earliest first; 0: none.
    pub retry_limit: usize,
    /// Rows that stand in line.
    pub lines: Option<LinesRequest>,
    /// Read the configuration first.
    pub config: bool,
    /// Read the last attempts as well.
    pub history: bool,
}

/// What was loaded for one endpoint.
#[derive(Debug)]
pub struct LoadedEndpoint {
    pub slot: Slot,
    pub epoch: Epoch,
    pub endpoint: EndpointKey,
    /// Due rows, retries first, and heads of lines.
    pub rows: Vec<LiveRow>,
    /// As many `ready` rows as asked for: there may be more.
    pub more_ready: bool,
    /// The answer to [`LoadRequest::fresh`], and whether there may be more.
    pub fresh: Vec<LiveRow>,
    pub more_fresh: bool,
    /// How far a walk over lines came, if there was one; [`OrderKey::START`]: to the end.
    pub walked: Option<OrderKey>,
    /// `retry` was read, and `next_due` is the earliest row that was not handed out.
    pub retries_read: bool,
    pub next_due: Option<OffsetDateTime>,
    /// The configuration, if it was asked for and could be read.
    pub config: Option<SharedConfig>,
    /// The last attempts, the latest first, if they were asked for.
    pub history: Option<Vec<(Outcome, OffsetDateTime)>>,
}

/// One acknowledged record.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub owner: Ownership,
    pub endpoint: EndpointKey,
    pub delivery: Uuid,
    /// When its next attempt is due, if it has one and the record applied.
    pub next_due: Option<OffsetDateTime>,
    /// What the request said about its endpoint, if one was made.
    pub observed: Option<Observed>,
    /// It ended as a dead letter.
    pub dead: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    incarnation: Option<Incarnation>,
    may_start_until: BootTime,
    recording_behind: bool,
    slots: OwnedSlots,
    endpoints: Map<EndpointKey, Endpoint>,
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
    suspect_queue: VecDeque<(EndpointKey, LiveRow, BootTime)>,
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
            self.effects.push(Effect::FindOutages {
                slots,
                taken_at: taken_at.unwrap_or(now.database),
            });
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
        if self.endpoints.get(&key).is_some_and(Endpoint::may_revive) {
            self.revive(key, now);
        }
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        consider_load(endpoint, &mut self.load_turns, now);
        let has_next = endpoint.lanes.has_next(endpoint.replays_allowed());
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
            None | Some(Admission::Send | Admission::Probe) => {}
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
