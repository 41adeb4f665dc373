//! What the scheduler knows of one endpoint: its loaded rows, what is on the wire, what to load next.
//!
//! # Invariants
//! - A delivery is in `known` from the moment its row is loaded until its record is acknowledged,
//!   and in `tombstones` from then until the load that was under way meanwhile has been processed:
//!   such a load may still show the row (its snapshot is older than the record). There is at most one
//!   load under way per endpoint, so this is exact. Without it a healthy worker sends twice.
//! - Every way in (hint, scan, retry timer) ends in [`Endpoint::insert_if_absent`]; for rows that stand in
//!   line, only if nothing of their key is known (`super::ordered`).

use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointKey, Slot, TenantKey, lower_bound};
use shared::runtime::clock::BootTime;
use shared::store::endpoint_runtime::Recovery;
use time::OffsetDateTime;
use uuid::Uuid;

use super::lanes::{Lane, Lanes};
use super::ordered::Lines;
use super::share::Pace;
use super::{LinesRequest, LoadRequest, LoadedEndpoint, Now, Set};
use crate::admission::{Admission, DeferReason, Gate};
use crate::endpoint_config::SharedConfig;
use crate::job::LiveRow;
use crate::lines::blocks;

/// Loads look back this far before the cursor, because commit order is not id order: two API
/// processes, or two batches, stamp ids in one order and commit in another, as far apart as a commit
/// takes. Too short, and rows wait for the scan (seconds, measured at 50 ms under full load); too long,
/// and each load walks over more of what was just recorded. What is later still is found by the scan.
pub(super) const CURSOR_TRAIL_MS: u128 = 1_000;

/// Payload bytes in memory for one endpoint, beyond what is on the wire.
const MOST_BYTES_AHEAD: usize = 256 << 10;
/// Rows in memory for one endpoint, beyond what is on the wire: half of what is loaded at a time.
const MOST_AHEAD: usize = 64;
/// Who may not send for longer than this has nothing in memory: that is for those who may (O1).
const LONG_WAIT: time::Duration = time::Duration::SECOND;

/// What came in since an outage ended, beside the backlog that it left: loaded from its own cursor, so
/// that a new event does not wait for the backlog's end.
#[derive(Debug)]
struct Fresh {
    from: Uuid,
    cursor: Uuid,
    more: bool,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) key: EndpointKey,
    pub(super) slot: Slot,
    pub(super) tenant: TenantKey,
    pub(super) config: Option<SharedConfig>,
    /// The configuration changed, or was never read: nothing is sent until it has been.
    pub(super) config_stale: bool,
    /// Whether it may send; known once its configuration is.
    pub(super) gate: Option<Gate>,
    /// Loaded and waiting for a turn.
    pub(super) lanes: Lanes,
    pub(super) known: Set<Uuid>,
    tombstones: Set<Uuid>,
    /// Sent and not yet recorded.
    pub(super) in_flight: usize,
    /// Permits that its requests in flight hold.
    pub(super) permits: usize,
    /// Of these, replays.
    pub(super) replays_in_flight: usize,
    /// How fast it answers, and which share its permits are counted in.
    pub(super) pace: Pace,
    pub(super) counted_slow: bool,
    /// Dead letters that were made live again and have not been tried yet.
    pub(super) revived: Set<Uuid>,
    /// A question about it is out: dead letters to make live, rows that are too old.
    pub(super) reviving: Option<Recovery>,
    pub(super) expiring: bool,
    /// All that an outage left is live again: nothing to ask for while some of it was not tried.
    pub(super) all_revived: bool,
    /// Some of it was, since the last recovery ended.
    pub(super) has_revived: bool,
    /// Its probe is due and there was nothing to probe with.
    pub(super) nothing_to_probe: bool,
    /// It has dead letters of an outage whose owner died before its breaker was stored as open; the first
    /// died then.
    pub(super) outage: Option<OffsetDateTime>,
    pub(super) told: Told,
    /// `ready` rows up to here have been loaded; nil: start from the beginning.
    cursor: Uuid,
    pub(super) more_ready: bool,
    fresh: Option<Fresh>,
    pub(super) lines: Lines,
    /// Bytes of the payload that was loaded last.
    last_payload: usize,
    /// The earliest retry that is known of.
    pub(super) next_due: Option<OffsetDateTime>,
    pub(super) load_out: bool,
    /// The load under way reads the configuration as well.
    pub(super) config_asked: bool,
    hinted_since_load: bool,
    hinted_during_load: bool,
    rewound_during_load: bool,
    stale_during_load: bool,
    due_during_load: Option<OffsetDateTime>,
    /// Waits for a turn to load, or to send.
    pub(super) in_load_turns: bool,
    pub(super) in_send_turns: bool,
    /// Its live rows are being closed.
    pub(super) closing: bool,
    /// Its rows that are on their way aside: an operator holds back their type of event.
    pub(super) parking: Vec<LiveRow>,
    /// Not before this: its configuration could not be read.
    pub(super) load_not_before: BootTime,
    pub(super) last_active: BootTime,
}

/// When something was last said about an endpoint, so that it is not said with every attempt.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) dead_letter: Option<OffsetDateTime>,
    pub(super) misconfigured: Option<OffsetDateTime>,
    pub(super) disabling: Option<OffsetDateTime>,
}

impl Endpoint {
    /// On the heap: a map of 100,000 of them that grows would hold them twice.
    pub(super) fn new(key: EndpointKey, slot: Slot, tenant: TenantKey, now: BootTime) -> Box<Self> {
        Box::new(Self {
            key,
            slot,
            tenant,
            config: None,
            config_stale: true,
            gate: None,
            lanes: Lanes::default(),
            known: Set::default(),
            tombstones: Set::default(),
            in_flight: 0,
            permits: 0,
            replays_in_flight: 0,
            pace: Pace::default(),
            // Not known to be quick.
            counted_slow: true,
            revived: Set::default(),
            reviving: None,
            expiring: false,
            all_revived: false,
            has_revived: false,
            nothing_to_probe: false,
            outage: None,
            told: Told::default(),
            cursor: Uuid::nil(),
            more_ready: false,
            fresh: None,
            lines: Lines::default(),
            last_payload: 0,
            next_due: None,
            load_out: false,
            config_asked: false,
            hinted_since_load: false,
            hinted_during_load: false,
            rewound_during_load: false,
            stale_during_load: false,
            due_during_load: None,
            in_load_turns: false,
            in_send_turns: false,
            closing: false,
            parking: Vec::new(),
            load_not_before: BootTime(std::time::Duration::ZERO),
            last_active: now,
        })
    }

    /// There may be `ready` rows behind the cursor.
    pub(super) fn hinted(&mut self) {
        self.more_ready = true;
        self.nothing_to_probe = false;
        if let Some(fresh) = &mut self.fresh {
            fresh.more = true;
        }
        self.lines.hinted();
        self.hinted_since_load = true;
        self.hinted_during_load |= self.load_out;
    }

    /// The scan saw rows: start from the beginning, in case one committed behind the cursor.
    pub(super) fn scanned(&mut self, ready: bool, next_due: Option<OffsetDateTime>) {
        if ready {
            self.cursor = Uuid::nil();
            self.rewound_during_load |= self.load_out;
            if let Some(fresh) = &mut self.fresh {
                fresh.cursor = fresh.from;
            }
            self.hinted();
        }
        self.due(next_due);
    }

    /// A retry is due at this instant.
    pub(super) fn due(&mut self, at: Option<OffsetDateTime>) {
        self.next_due = earliest(self.next_due, at);
        if self.load_out {
            self.due_during_load = earliest(self.due_during_load, at);
        }
    }

    /// Anything about the endpoint changed.
    pub(super) fn changed(&mut self) {
        self.config_stale = true;
        self.stale_during_load |= self.load_out;
    }

    fn limit(&self) -> usize {
        self.config
            .as_ref()
            .map_or(10, |config| usize::from(config.settings.max_in_flight))
    }

    /// Replays hold at most half of what the endpoint may have on the wire, and at least one; they leave half of
    /// its bucket, unless they were passed often.
    pub(super) fn replays_allowed(&self, now: Now) -> bool {
        let (Some(gate), Some(config)) = (&self.gate, &self.config) else {
            return false;
        };
        gate.allows_replay(config, self.replays_in_flight)
            && self.replay_token_at().is_none_or(|at| at <= now.database)
    }

    /// When replays that wait have a token, if they wait for one.
    pub(super) fn replay_token_at(&self) -> Option<OffsetDateTime> {
        if !self.lanes.replay_waits() || self.lanes.replay_is_overdue() {
            return None;
        }
        self.gate.as_ref()?.replay_token_at()
    }

    /// Asks the gate for one more request; `None` while it is not known.
    pub(super) fn admission(&self, now: Now) -> Option<Admission> {
        let config = self.config.as_ref().filter(|_| !self.config_stale)?;
        let gate = self.gate.as_ref()?;
        Some(gate.admit(config, self.in_flight, now.database))
    }

    /// An outage goes on, or its dead letters are being replayed.
    pub(super) fn may_revive(&self) -> bool {
        self.gate
            .as_ref()
            .is_some_and(|gate| gate.is_open() || gate.recovery().is_some())
    }

    /// Rows wait that may not be sent, for a reason that is not their number.
    pub(super) fn is_stuck(&self, now: Now) -> bool {
        let held_back = |reason| match reason {
            DeferReason::Breaker
            | DeferReason::RateLimited
            | DeferReason::Throttled
            | DeferReason::Paused
            | DeferReason::Locked => true,
            DeferReason::InFlight | DeferReason::NotEnabled => false,
        };
        let admission = self.admission(now);
        self.has_pending()
            && matches!(admission, Some(Admission::Defer(it)) if held_back(it.reason))
    }

    /// Whether it may not send for a while: what is loaded of it would only take room.
    pub(super) fn waits_long(&self, now: Now) -> bool {
        let Some(Admission::Defer(deferral)) = self.admission(now) else {
            return false;
        };
        match deferral.reason {
            DeferReason::RateLimited
            | DeferReason::Throttled
            | DeferReason::Paused
            | DeferReason::Locked => deferral
                .until
                .is_none_or(|until| until - now.database > LONG_WAIT),
            DeferReason::Breaker | DeferReason::InFlight | DeferReason::NotEnabled => false,
        }
    }

    /// It waits for an instant, with or without rows in memory.
    pub(super) fn may_wait(&self) -> bool {
        self.is_open() || self.has_pending()
    }

    /// Something waits that could be sent now.
    pub(super) fn has_due(&self, now: Now) -> bool {
        self.rows_wait(now) || !self.known.is_empty()
    }

    /// There may be rows in the database that could be sent now.
    fn rows_wait(&self, now: Now) -> bool {
        self.more_ready
            || self.lines.wants_load()
            || self.retry_due(now.database)
            || self.fresh.as_ref().is_some_and(|fresh| fresh.more)
    }

    pub(super) fn is_open(&self) -> bool {
        self.gate.as_ref().is_some_and(Gate::is_open)
    }

    pub(super) fn enabled(&self) -> bool {
        !self.config_stale
            && self
                .config
                .as_ref()
                .is_some_and(|config| config.state == EndpointState::Enabled)
    }

    pub(super) fn retry_due(&self, now: OffsetDateTime) -> bool {
        self.next_due.is_some_and(|due| due <= now)
    }

    /// Whether a load would help now. Rows are loaded on demand, at most twice the limit ahead; behind an
    /// open breaker none are, until its probe is due.
    pub(super) fn wants_load(&self, now: Now) -> bool {
        if self.load_out || now.boot < self.load_not_before {
            return false;
        }
        if self.config_stale || self.wants_history() {
            return true;
        }
        self.enabled()
            && !self.closing
            && self.parking.is_empty()
            && self.rows_wait(now)
            && !self.waits_long(now)
            && if self.is_open() {
                self.known.is_empty() && self.probe_due(now)
            } else {
                self.lanes.len() < self.ahead() || self.may_be_live()
            }
    }

    /// Something came in since the last load, and what is loaded are replays: these wait, for a token or their
    /// share, and what is new does not wait for them.
    fn may_be_live(&self) -> bool {
        self.hinted_since_load && self.lanes.live() < self.ahead() && self.wanted() > 0
    }

    pub(super) fn wants_history(&self) -> bool {
        self.gate.as_ref().is_some_and(Gate::wants_history)
    }

    /// Whether its breaker would let a probe through.
    pub(super) fn probe_due(&self, now: Now) -> bool {
        self.is_open() && self.admission(now) == Some(Admission::Probe)
    }

    /// How many rows are worth having in memory ahead of their turn: the limit, less of large payloads,
    /// so that a stuck endpoint does not fill the memory that all share, and the rows of others do not come
    /// behind its megabytes in one load (O1).
    fn ahead(&self) -> usize {
        if self.gate.as_ref().is_some_and(Gate::is_slow_paced) {
            return 1;
        }
        self.limit()
            .min(MOST_AHEAD)
            .min(MOST_BYTES_AHEAD / self.last_payload.max(1))
            .max(1)
    }

    /// How many new rows to ask for, whatever the lane.
    pub(super) fn wanted(&self) -> usize {
        if self.is_open() {
            return usize::from(self.known.is_empty());
        }
        (2 * self.ahead()).saturating_sub(self.lanes.len())
    }

    /// What to ask for: at most `most` new rows of each kind. Known rows come back with the rest, and
    /// must not use up the limit.
    pub(super) fn ask(&mut self, most: usize, request: LoadRequest, now: Now) -> LoadRequest {
        self.load_out = true;
        self.hinted_since_load = false;
        self.config_asked = self.config_stale;
        let wanted = most.min(self.wanted());
        let limit = wanted + self.known.len();
        let retries = self.retry_due(now.database);
        let lines = self.lines.ask(wanted, retries, self.is_open());
        let block = self.config.as_ref().is_some_and(blocks);
        let trail =
            |cursor: Uuid| Uuid::from_u128(cursor.as_u128().saturating_sub(CURSOR_TRAIL_MS << 80));
        LoadRequest {
            cursor: trail(self.cursor),
            ready_limit: if self.more_ready { limit } else { 0 },
            fresh: self
                .fresh
                .as_ref()
                .filter(|fresh| fresh.more)
                .map(|fresh| (trail(fresh.cursor).max(fresh.from), limit)),
            retry_limit: if retries { limit } else { 0 },
            lines: lines.map(|lines| LinesRequest { block, ..lines }),
            config: self.config_stale,
            history: self.wants_history(),
            ..request
        }
    }

    /// An outage ended: what comes in from now on does not wait for the backlog's end.
    pub(super) fn begin_fresh(&mut self, now: OffsetDateTime) {
        let from = lower_bound(now);
        self.fresh = Some(Fresh {
            from,
            cursor: from,
            more: true,
        });
    }

    /// Takes in the result of a load. Returns the rows that were not known, with their lanes.
    ///
    /// Rows are kept only with a configuration that is up to date: otherwise they would sit in memory
    /// that the load of the configuration may need. That load brings them again.
    pub(super) fn loaded(&mut self, result: LoadedEndpoint, now: Now) -> Vec<(Lane, LiveRow)> {
        self.load_out = false;
        if let Some(config) = result.config {
            self.lines.configured(config.ordered);
            self.config = Some(config);
            self.config_stale = self.stale_during_load;
        }
        let kept = !self.config_stale;
        if let Some(to) = result.walked {
            self.lines.walked(to);
        }
        if !kept {
            self.lines.hinted();
        }
        self.more_ready = result.more_ready || self.hinted_during_load || !kept;
        if result.retries_read {
            self.next_due = earliest(result.next_due, self.due_during_load);
            self.due((!kept).then_some(now.database));
        } else {
            self.due(result.next_due);
        }
        let fresh_from = self.fresh.as_ref().map(|fresh| fresh.from);
        let mut new = Vec::with_capacity(result.rows.len() + result.fresh.len());
        if kept {
            for row in result.rows {
                let is_ready = row.attempts_made == 0 && row.order.is_none();
                if is_ready && !self.rewound_during_load {
                    self.cursor = self.cursor.max(row.id);
                }
                self.keep(row, fresh_from, &mut new);
            }
            for row in result.fresh {
                if let Some(fresh) = self.fresh.as_mut().filter(|_| !self.rewound_during_load) {
                    fresh.cursor = fresh.cursor.max(row.id);
                }
                self.keep(row, fresh_from, &mut new);
            }
        }
        if let Some(fresh) = &mut self.fresh {
            fresh.more = result.more_fresh || self.hinted_during_load || !kept;
        }
        // The backlog was read to its end: all that comes now is new.
        if kept && !self.more_ready {
            self.fresh = None;
            // Cancelled, or ended in another way. Of a line only the head is known.
            if !self.lines.in_use() {
                self.forget_revived();
            }
        }
        self.load_ended();
        self.last_active = now.boot;
        new
    }

    /// Forgets what was made live again and is not there any more, as far as can be seen.
    pub(super) fn forget_revived(&mut self) {
        self.revived.retain(|id| self.known.contains(id));
    }

    fn keep(&mut self, row: LiveRow, fresh_from: Option<Uuid>, new: &mut Vec<(Lane, LiveRow)>) {
        if row.order.is_some_and(|key| self.lines.is_busy(key)) || !self.insert_if_absent(row.id) {
            return;
        }
        if let Some(key) = row.order {
            self.lines.take(key, row.id);
        }
        let is_new = row.attempts_made == 0 && fresh_from.is_some_and(|from| row.id >= from);
        let lane = match (Lane::is_replay(row.kind), is_new) {
            (true, _) => Lane::Replay,
            (false, true) => Lane::Fresh,
            (false, false) => Lane::Due,
        };
        self.last_payload = row.event.as_ref().map_or(0, |event| event.payload.len());
        new.push((lane, row));
    }

    /// A load that brought nothing: the database is away, or the answer came too late.
    pub(super) fn load_failed(&mut self, again_at: BootTime) {
        self.load_out = false;
        self.more_ready = true;
        self.lines.hinted();
        if let Some(fresh) = &mut self.fresh {
            fresh.more = true;
        }
        self.load_not_before = again_at;
        self.load_ended();
    }

    fn load_ended(&mut self) {
        self.config_asked = false;
        self.hinted_during_load = false;
        self.rewound_during_load = false;
        self.stale_during_load = false;
        self.due_during_load = None;
        // No load that started before these records is under way any more.
        self.tombstones = Set::default();
    }

    fn insert_if_absent(&mut self, id: Uuid) -> bool {
        !self.tombstones.contains(&id) && self.known.insert(id)
    }

    /// The record of a delivery was acknowledged.
    pub(super) fn recorded(&mut self, id: Uuid, next_due: Option<OffsetDateTime>, now: BootTime) {
        self.forget(id);
        match next_due {
            Some(_) => drop(self.lines.free(id)),
            None => self.lines.ended(id),
        }
        self.revived.remove(&id);
        self.due(next_due);
        self.last_active = now;
    }

    /// It was admitted, but no request was made: any load finds it again.
    pub(super) fn not_sent(&mut self, id: Uuid, now: Now) {
        self.unknown(id);
        self.lines.free(id);
        self.scanned(true, Some(now.database));
    }

    /// A row that is not ours to send any more; a load under way may still show it.
    fn forget(&mut self, id: Uuid) {
        self.unknown(id);
        if self.load_out {
            self.tombstones.insert(id);
        }
    }

    /// Takes a row out of `known`, which keeps no room when it is empty (as [`Lanes`]).
    fn unknown(&mut self, id: Uuid) {
        self.known.remove(&id);
        if self.known.is_empty() {
            self.known = Set::default();
        }
    }

    /// Drops what is loaded and not sent; the rows stay in the database, and any load finds them again.
    pub(super) fn unload(&mut self, now: Now) -> Vec<LiveRow> {
        let dropped = self.lanes.take_all();
        for row in &dropped {
            self.dropped(row, now);
        }
        dropped
    }

    /// A loaded row is not kept.
    pub(super) fn dropped(&mut self, row: &LiveRow, now: Now) {
        self.unknown(row.id);
        if self.lines.free(row.id).is_some() {
            self.lines.hinted();
        } else if row.attempts_made == 0 {
            self.scanned(true, None);
        } else {
            self.due(Some(now.database));
        }
    }

    /// All live rows were closed.
    pub(super) fn nothing_left(&mut self) {
        self.more_ready = false;
        self.fresh = None;
        self.lines.nothing_left();
        self.next_due = None;
    }

    /// Something waits in the database, due or not.
    pub(super) fn has_pending(&self) -> bool {
        self.more_ready
            || self.lines.wants_load()
            || self.next_due.is_some()
            || !self.known.is_empty()
    }

    /// Nothing loaded, on the wire or expected: can be forgotten until a hint or scan names it.
    pub(super) fn is_idle(&self) -> bool {
        self.known.is_empty()
            && self.in_flight == 0
            && !self.load_out
            && !self.more_ready
            && !self.lines.wants_load()
            && !self.closing
            && self.parking.is_empty()
            && self.reviving.is_none()
            && !self.expiring
            && self.outage.is_none()
            && self.next_due.is_none()
    }
}

fn earliest(a: Option<OffsetDateTime>, b: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}
