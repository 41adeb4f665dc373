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
//! - O1 turns go round tenants, then endpoints; an endpoint holds at most its limit of permits, and
//!   a permit comes back when the outcome is *recorded*, so sent-but-unrecorded is bounded.
//! - No row is sent twice by a healthy worker (tombstones, see [`endpoint`]).

mod endpoint;
mod slots;
mod turns;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey, created_at};
use shared::policy::decide::Decision;
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;
use uuid::Uuid;

use self::endpoint::Endpoint;
use self::slots::OwnedSlots;
use self::turns::Turns;
use crate::admission::{Admission, admit};
use crate::endpoint_config::SharedConfig;
use crate::job::{Job, LiveRow, Ownership, Record};

/// An id that was in flight in three workers that died is not sent a fourth time.
const DEADLY: u16 = 3;
/// Endpoints in one load statement; with twice the default limit each, some 2,500 rows at most.
const LOAD_BATCH: usize = 128;
/// Rows in one load statement, so that it stays small and quick whatever the payloads.
const LOAD_ROWS: usize = 512;
/// Bytes that a payload is taken to have until some were seen.
const FIRST_PAYLOAD: usize = 1_024;
/// Load statements under way at once: one works while the other's rows are handed out.
const MOST_LOADS: usize = 2;
/// Endpoints that were idle this long are forgotten; a hint or scan brings them back.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// How long to wait before reading again what could not be read.
const LOAD_PAUSE: Duration = Duration::from_millis(500);

/// Hashed without chance, so that all the scheduler does follows from what it is told: a run of the
/// model can be repeated. The keys are ours, nobody can choose them to collide.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
/// See [`Map`].
type Set<K> = HashSet<K, BuildHasherDefault<DefaultHasher>>;

/// Bounds of one worker.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerSettings {
    /// Requests sent and not yet recorded, all endpoints together.
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
        slots: Vec<(Slot, Epoch)>,
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
    Release(Vec<(Slot, Epoch)>),
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
    /// `retry` rows, the earliest first; 0: none.
    pub retry_limit: usize,
    /// Read the configuration first.
    pub config: bool,
}

/// What was loaded for one endpoint.
#[derive(Debug)]
pub struct LoadedEndpoint {
    pub slot: Slot,
    pub epoch: Epoch,
    pub endpoint: EndpointKey,
    /// Due rows, retries first.
    pub rows: Vec<LiveRow>,
    /// As many `ready` rows as asked for: there may be more.
    pub more_ready: bool,
    /// `retry` was read, and `next_due` is the earliest row that was not handed out.
    pub retries_read: bool,
    pub next_due: Option<OffsetDateTime>,
    /// The configuration, if it was asked for and could be read.
    pub config: Option<SharedConfig>,
}

/// One acknowledged record.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub owner: Ownership,
    pub endpoint: EndpointKey,
    pub delivery: Uuid,
    /// When its next attempt is due, if it has one and the record applied.
    pub next_due: Option<OffsetDateTime>,
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
    load_turns: Turns,
    due: BTreeSet<(OffsetDateTime, EndpointKey)>,
    /// By ownership as well: after a lease was lost, a delivery can be on the wire a second time.
    in_flight: Map<(Ownership, Uuid), BootTime>,
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
            load_turns: Turns::default(),
            due: BTreeSet::new(),
            in_flight: Map::default(),
            loaded_rows: 0,
            loaded_bytes: 0,
            loads_out: 0,
            load_batch: LOAD_BATCH,
            usual_payload: FIRST_PAYLOAD,
            suspects: Map::default(),
            suspect_queue: VecDeque::new(),
            suspect_out: None,
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
            Input::Renewed { sent_at } => {
                let length = self
                    .settings
                    .lease_ttl
                    .saturating_sub(self.settings.lease_margin);
                self.may_start_until = self.may_start_until.max(sent_at.after(length));
            }
            Input::LeaseLost => self.forget_everything(),
            Input::Release { count } => self.leave(count.min(slots::MOST_MOVED)),
            Input::Drain => {
                self.draining = true;
                self.leave(usize::MAX);
            }
            Input::Released(slots) => self.released(&slots),
            Input::Hint(pairs) => self.hinted(&pairs, now),
            Input::Scanned { slots, found, took } => self.scanned(&slots, found, took, now),
            Input::ScanFailed(slots) => self.slots.scanned(&slots, Duration::ZERO, now.boot),
            Input::Loaded(results) => self.loaded(results, now),
            Input::LoadFailed(requests) => self.load_failed(&requests, now),
            Input::Recorded(records) => self.recorded(records, now),
            Input::NotSent {
                owner,
                endpoint,
                delivery,
            } => {
                if self.permit_returned(owner, delivery)
                    && let Some(endpoint) = self.endpoints.get_mut(&endpoint)
                {
                    endpoint.not_sent(delivery, now);
                }
                self.consider(endpoint, now);
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
            } => {
                if self.slots.works(slot, epoch) {
                    self.closed(endpoint, more, now);
                }
            }
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
            .filter(|(_, started)| **started <= before);
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

    fn work(&mut self, now: Now) {
        self.dispatch(now);
        self.load(now);
        let slots = self.slots.next_scan(now.boot);
        if !slots.is_empty() {
            self.effects.push(Effect::Scan(slots));
        }
        let idle = self.slots.ready_to_release();
        if !idle.is_empty() {
            self.effects.push(Effect::Release(idle));
        }
    }

    // ## Ownership

    fn acquired(&mut self, slots: Vec<(Slot, Epoch)>, suspects: HashMap<Uuid, u16>, now: Now) {
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
    fn released(&mut self, slots: &[(Slot, Epoch)]) {
        let gone = slots
            .iter()
            .filter(|(slot, epoch)| self.slots.released(*slot, *epoch));
        let gone: HashSet<Slot> = gone.map(|(slot, _)| *slot).collect();
        self.forget_endpoints_of(&gone);
    }

    fn forget_everything(&mut self) {
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

    fn leave(&mut self, count: usize) {
        let leaving: HashSet<Slot> = self.slots.choose_leaving(count).into_iter().collect();
        self.forget_endpoints_of(&leaving);
    }

    fn forget_endpoints_of(&mut self, slots: &HashSet<Slot>) {
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

    // ## Finding work

    fn hinted(&mut self, pairs: &[(Slot, EndpointKey)], now: Now) {
        for (slot, key) in pairs {
            if self.slots.working(*slot).is_none() {
                continue;
            }
            // The tenant of an endpoint that is not known yet comes with its rows; until then it
            // takes its turn to load among the unknown.
            let endpoint = self
                .endpoints
                .entry(*key)
                .or_insert_with(|| Endpoint::new(*key, *slot, UNKNOWN_TENANT, now.boot));
            endpoint.hinted();
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }

    fn scanned(&mut self, slots: &[(Slot, Epoch)], found: Vec<Found>, took: Duration, now: Now) {
        self.slots.scanned(slots, took, now.boot);
        for found in found {
            let epoch = slots
                .iter()
                .find(|(slot, _)| *slot == found.slot)
                .map(|(_, epoch)| *epoch);
            if epoch.is_none() || self.slots.working(found.slot) != epoch {
                continue;
            }
            let endpoint = self.endpoints.entry(found.endpoint).or_insert_with(|| {
                Endpoint::new(found.endpoint, found.slot, found.tenant, now.boot)
            });
            endpoint.tenant = found.tenant;
            endpoint.scanned(found.ready, found.next_due);
            if let Some(due) = endpoint.next_due {
                self.due.insert((due, found.endpoint));
            }
            // Rows of an endpoint that takes none: it may be enabled again. Asked before they are closed.
            if !endpoint.config_stale && !endpoint.enabled() && !endpoint.closing {
                endpoint.changed();
            }
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }

    fn retries_due(&mut self, slot: Slot, key: EndpointKey, tenant: TenantKey, now: Now) {
        if self.slots.working(slot).is_none() {
            return;
        }
        let new = || Endpoint::new(key, slot, tenant, now.boot);
        let endpoint = self.endpoints.entry(key).or_insert_with(new);
        endpoint.due(Some(now.database));
        consider_load(endpoint, &mut self.load_turns, now);
    }

    fn reload(&mut self, slot: Slot, key: EndpointKey, now: Now) {
        let Some(endpoint) = self
            .endpoints
            .get_mut(&key)
            .filter(|found| found.slot == slot)
        else {
            return;
        };
        endpoint.changed();
        self.unload(key, now);
        self.consider(key, now);
    }

    /// Drops what is loaded of an endpoint and not sent.
    fn unload(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        for (row, _) in endpoint.unload(now) {
            self.loaded_rows -= 1;
            self.loaded_bytes -= size(&row);
        }
        self.suspect_queue.retain(|(waiting, row, _)| {
            if *waiting == key {
                endpoint.dropped(row, now);
            }
            *waiting != key
        });
    }

    fn tick(&mut self, now: Now) {
        while let Some((due, key)) = self
            .due
            .first()
            .copied()
            .filter(|(due, _)| *due <= now.database)
        {
            self.due.remove(&(due, key));
            if let Some(endpoint) = self.endpoints.get_mut(&key) {
                consider_load(endpoint, &mut self.load_turns, now);
            }
        }
        if now.boot.since(self.swept_at) >= FORGET_AFTER {
            self.swept_at = now.boot;
            self.sweep(now);
        }
    }

    /// Once a minute: ends deliveries that grew too old behind a stuck endpoint, forgets idle endpoints.
    fn sweep(&mut self, now: Now) {
        let keys: Vec<_> = self.endpoints.keys().copied().collect();
        for key in keys {
            self.settle_expired(key, now);
            self.unlock(key, now);
        }
        self.endpoints.retain(|_, endpoint| {
            !(endpoint.is_idle() && now.boot.since(endpoint.last_active) >= FORGET_AFTER)
        });
    }

    /// Reads a locked endpoint again.
    fn unlock(&mut self, key: EndpointKey, now: Now) {
        let endpoint = self.endpoints.get_mut(&key);
        let locked = |found: &&mut Endpoint| found.config.as_ref().is_some_and(|config| config.locked);
        if let Some(endpoint) = endpoint.filter(locked) {
            endpoint.changed();
            consider_load(endpoint, &mut self.load_turns, now);
        }
    }

    // ## Loading

    fn load(&mut self, now: Now) {
        while self.loads_out < MOST_LOADS && self.room_to_load() {
            let batch = self.next_loads(now);
            if batch.is_empty() {
                return;
            }
            self.loads_out += 1;
            self.effects.push(Effect::Load(batch));
        }
    }

    fn room_to_load(&self) -> bool {
        self.loaded_rows < self.settings.max_loaded
            && self.loaded_bytes < self.settings.max_loaded_bytes
    }

    /// How many rows may be asked for: what fits into the bytes that are left, if they are as usual.
    fn rows_to_load(&self) -> usize {
        let left = self
            .settings
            .max_loaded_bytes
            .saturating_sub(self.loaded_bytes);
        (left / self.usual_payload.max(1)).clamp(1, LOAD_ROWS)
    }

    fn next_loads(&mut self, now: Now) -> Vec<LoadRequest> {
        let mut batch = Vec::new();
        let mut rows = self.rows_to_load();
        while batch.len() < self.load_batch && rows > 0 {
            let Some(key) = self.load_turns.next() else {
                break;
            };
            let Some(endpoint) = self.endpoints.get_mut(&key) else {
                continue;
            };
            endpoint.in_load_turns = false;
            let Some(epoch) = self.slots.working(endpoint.slot) else {
                continue;
            };
            if !endpoint.wants_load(now.boot, now.database) {
                continue;
            }
            endpoint.load_out = true;
            endpoint.config_asked = endpoint.config_stale;
            let (cursor, fresh, known) = endpoint.load_from();
            let fresh = fresh.min(rows);
            rows -= fresh;
            // What is known comes back with the rest and must not use up the limit.
            let limit = fresh + known;
            batch.push(LoadRequest {
                slot: endpoint.slot,
                epoch,
                endpoint: key,
                cursor,
                ready_limit: if endpoint.more_ready { limit } else { 0 },
                retry_limit: if endpoint.retry_due(now.database) {
                    limit
                } else {
                    0
                },
                config: endpoint.config_stale,
            });
        }
        batch
    }

    fn loaded(&mut self, results: Vec<LoadedEndpoint>, now: Now) {
        self.loads_out = self.loads_out.saturating_sub(1);
        self.load_batch = (self.load_batch * 2).min(LOAD_BATCH);
        for result in results {
            let key = result.endpoint;
            if !self.slots.works(result.slot, result.epoch) {
                continue;
            }
            let Some(endpoint) = self.endpoints.get_mut(&key).filter(|found| found.load_out) else {
                continue;
            };
            let unreadable = endpoint.config_asked && result.config.is_none();
            let fresh = endpoint.loaded(result, now);
            if unreadable {
                endpoint.load_not_before = now.boot.after(LOAD_PAUSE);
                self.due.insert((now.database + LOAD_PAUSE, key));
            }
            for row in fresh {
                endpoint.tenant = row.tenant;
                if self.suspects.contains_key(&row.id) {
                    self.suspect_queue.push_back((key, row, now.boot));
                    continue;
                }
                self.loaded_rows += 1;
                self.loaded_bytes += size(&row);
                self.usual_payload = (self.usual_payload * 15 + size(&row)) / 16;
                endpoint.queue.push_back((row, now.boot));
            }
            if let Some(due) = endpoint.next_due {
                self.due.insert((due, key));
            }
            self.close_unless_enabled(key, now);
            self.consider(key, now);
        }
    }

    fn load_failed(&mut self, requests: &[LoadRequest], now: Now) {
        self.loads_out = self.loads_out.saturating_sub(1);
        self.load_batch = (requests.len() / 2).max(1);
        for request in requests {
            if self.slots.works(request.slot, request.epoch)
                && let Some(endpoint) = self.endpoints.get_mut(&request.endpoint)
            {
                endpoint.load_failed(now.boot.after(LOAD_PAUSE));
                self.due
                    .insert((now.database + LOAD_PAUSE, request.endpoint));
            }
        }
    }

    // ## Sending

    fn may_start(&self, now: Now) -> bool {
        self.incarnation.is_some()
            && now.boot < self.may_start_until
            && !self.recording_behind
            && self.in_flight.len() < self.settings.max_in_flight
    }

    fn dispatch(&mut self, now: Now) {
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
            self.start(key, &config, row, loaded_at, now);
            self.consider(key, now);
        }
    }

    /// What was in flight when a worker died goes alone, so that if it kills us too, it is known.
    fn dispatch_suspect(&mut self, now: Now) {
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
            let owner = self.start(key, &config, row, loaded_at, now);
            self.suspect_out = owner.map(|owner| (owner, id));
        }
    }

    /// Under which ownership it was started, if it was.
    fn start(
        &mut self,
        key: EndpointKey,
        config: &SharedConfig,
        row: LiveRow,
        loaded_at: BootTime,
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

    fn settle_expired(&mut self, key: EndpointKey, now: Now) {
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
            self.start(key, &config, row, loaded_at, now);
        }
    }

    /// A delivery is off the wire. Whether what it was sent under is still ours.
    fn permit_returned(&mut self, owner: Ownership, delivery: Uuid) -> bool {
        self.in_flight.remove(&(owner, delivery));
        if self.suspect_out == Some((owner, delivery)) {
            self.suspect_out = None;
        }
        self.slots.ended(owner.slot, owner.epoch);
        self.incarnation == Some(owner.incarnation) && self.slots.works(owner.slot, owner.epoch)
    }

    fn recorded(&mut self, records: Vec<Recorded>, now: Now) {
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

    // ## Closing what a disabled or deleted endpoint left behind

    fn close_unless_enabled(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get(&key) else {
            return;
        };
        if endpoint.config_stale || endpoint.closing || endpoint.load_out {
            return;
        }
        let reason = match endpoint.config.as_ref().map(|config| config.state) {
            Some(EndpointState::Disabled) => CloseReason::EndpointDisabled,
            Some(EndpointState::Deleted) => CloseReason::EndpointDeleted,
            Some(EndpointState::Enabled) | None => return,
        };
        self.unload(key, now);
        let (Some(incarnation), Some(endpoint)) = (self.incarnation, self.endpoints.get_mut(&key))
        else {
            return;
        };
        let slot = endpoint.slot;
        let Some(epoch) = self.slots.working(slot) else {
            return;
        };
        endpoint.closing = true;
        self.effects.push(Effect::Close {
            owner: Ownership {
                incarnation,
                slot,
                epoch,
            },
            endpoint: key,
            reason,
            except: endpoint.known.iter().copied().collect(),
        });
    }

    fn closed(&mut self, key: EndpointKey, more: bool, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        endpoint.closing = false;
        if more {
            self.close_unless_enabled(key, now);
        } else if !endpoint.enabled() {
            endpoint.nothing_left();
        }
        self.consider(key, now);
    }

    fn consider(&mut self, key: EndpointKey, now: Now) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        consider_load(endpoint, &mut self.load_turns, now);
        let sendable = endpoint.enabled()
            && !endpoint.in_send_turns
            && !endpoint.queue.is_empty()
            && endpoint.in_flight < endpoint.limit();
        if sendable {
            endpoint.in_send_turns = true;
            self.send_turns.push(endpoint.tenant, key);
        }
    }
}

/// Where endpoints wait whose tenant is not known before their first row is loaded.
const UNKNOWN_TENANT: TenantKey = TenantKey(0);

fn consider_load(endpoint: &mut Endpoint, turns: &mut Turns, now: Now) {
    if !endpoint.in_load_turns && endpoint.wants_load(now.boot, now.database) {
        endpoint.in_load_turns = true;
        turns.push(endpoint.tenant, endpoint.key);
    }
}

fn size(row: &LiveRow) -> usize {
    row.event.as_ref().map_or(0, |event| event.payload.len())
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
