//! What the scheduler knows of one endpoint: its loaded rows, what is on the wire, what to load next.
//!
//! # Invariants
//! - A delivery is in `known` from the moment its row is loaded until its record is acknowledged,
//!   and in `tombstones` from then until the load that was under way meanwhile has been processed:
//!   such a load may still show the row (its snapshot is older than the record). There is at most one
//!   load under way per endpoint, so this is exact. Without it a healthy worker sends twice.
//! - Every way in (hint, scan, retry timer) ends in [`Endpoint::insert_if_absent`].

use std::collections::VecDeque;

use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointKey, Slot, TenantKey};
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{LoadedEndpoint, Now, Set};
use crate::endpoint_config::SharedConfig;
use crate::job::LiveRow;

/// Loads look back this far before the cursor, because commit order is not id order: two API
/// processes, or two batches, stamp ids in one order and commit in another, as far apart as a commit
/// takes. Too short, and rows wait for the scan (seconds, measured at 50 ms under full load); too long,
/// and each load walks over more of what was just recorded. What is later still is found by the scan.
pub(super) const CURSOR_TRAIL_MS: u128 = 1_000;

/// Payload bytes in memory for one endpoint, beyond what is on the wire.
const MOST_BYTES_AHEAD: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) key: EndpointKey,
    pub(super) slot: Slot,
    pub(super) tenant: TenantKey,
    pub(super) config: Option<SharedConfig>,
    /// The configuration changed, or was never read: nothing is sent until it has been.
    pub(super) config_stale: bool,
    /// Loaded and waiting for a turn, oldest first.
    pub(super) queue: VecDeque<(LiveRow, BootTime)>,
    pub(super) known: Set<Uuid>,
    tombstones: Set<Uuid>,
    /// Sent and not yet recorded.
    pub(super) in_flight: usize,
    /// `ready` rows up to here have been loaded; nil: start from the beginning.
    cursor: Uuid,
    pub(super) more_ready: bool,
    /// The earliest retry that is known of.
    pub(super) next_due: Option<OffsetDateTime>,
    pub(super) load_out: bool,
    /// The load under way reads the configuration as well.
    pub(super) config_asked: bool,
    hinted_during_load: bool,
    rewound_during_load: bool,
    stale_during_load: bool,
    due_during_load: Option<OffsetDateTime>,
    /// Waits for a turn to load, or to send.
    pub(super) in_load_turns: bool,
    pub(super) in_send_turns: bool,
    /// Its live rows are being closed.
    pub(super) closing: bool,
    /// Not before this: its configuration could not be read.
    pub(super) load_not_before: BootTime,
    pub(super) last_active: BootTime,
}

impl Endpoint {
    pub(super) fn new(key: EndpointKey, slot: Slot, tenant: TenantKey, now: BootTime) -> Self {
        Self {
            key,
            slot,
            tenant,
            config: None,
            config_stale: true,
            queue: VecDeque::new(),
            known: Set::default(),
            tombstones: Set::default(),
            in_flight: 0,
            cursor: Uuid::nil(),
            more_ready: false,
            next_due: None,
            load_out: false,
            config_asked: false,
            hinted_during_load: false,
            rewound_during_load: false,
            stale_during_load: false,
            due_during_load: None,
            in_load_turns: false,
            in_send_turns: false,
            closing: false,
            load_not_before: BootTime(std::time::Duration::ZERO),
            last_active: now,
        }
    }

    /// There may be `ready` rows behind the cursor.
    pub(super) fn hinted(&mut self) {
        self.more_ready = true;
        self.hinted_during_load |= self.load_out;
    }

    /// The scan saw rows: start from the beginning, in case one committed behind the cursor.
    pub(super) fn scanned(&mut self, ready: bool, next_due: Option<OffsetDateTime>) {
        if ready {
            self.cursor = Uuid::nil();
            self.rewound_during_load |= self.load_out;
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

    pub(super) fn limit(&self) -> usize {
        self.config
            .as_ref()
            .map_or(10, |config| usize::from(config.settings.max_in_flight))
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

    /// Whether a load would help now. Rows are loaded on demand, at most twice the limit ahead.
    pub(super) fn wants_load(&self, boot: BootTime, now: OffsetDateTime) -> bool {
        if self.load_out || boot < self.load_not_before {
            return false;
        }
        if self.config_stale {
            return true;
        }
        self.enabled()
            && !self.closing
            && self.queue.len() < self.ahead()
            && (self.more_ready || self.retry_due(now))
    }

    /// How many rows are worth having in memory ahead of their turn: the limit, less of large payloads,
    /// so that a stuck endpoint does not fill the memory that all share (O1).
    fn ahead(&self) -> usize {
        let (row, _) = match self.queue.front() {
            Some(front) => front,
            None => return self.limit(),
        };
        let payload = row.event.as_ref().map_or(0, |event| event.payload.len());
        self.limit().min(MOST_BYTES_AHEAD / payload.max(1)).max(1)
    }

    /// The cursor to load from, how many new rows to ask for, and how many known ones will come with them.
    pub(super) fn load_from(&self) -> (Uuid, usize, usize) {
        let wanted = (2 * self.ahead()).saturating_sub(self.queue.len());
        let trail = CURSOR_TRAIL_MS << 80;
        let cursor = Uuid::from_u128(self.cursor.as_u128().saturating_sub(trail));
        (cursor, wanted, self.known.len())
    }

    /// Takes in the result of a load. Returns the rows that were not known.
    ///
    /// Rows are kept only with a configuration that is up to date: otherwise they would sit in memory
    /// that the load of the configuration may need. That load brings them again.
    pub(super) fn loaded(&mut self, result: LoadedEndpoint, now: Now) -> Vec<LiveRow> {
        self.load_out = false;
        if let Some(config) = result.config {
            self.config = Some(config);
            self.config_stale = self.stale_during_load;
        }
        let kept = !self.config_stale;
        self.more_ready = result.more_ready || self.hinted_during_load || !kept;
        if result.retries_read {
            self.next_due = earliest(result.next_due, self.due_during_load);
            self.due((!kept).then_some(now.database));
        }
        let mut fresh = Vec::with_capacity(result.rows.len());
        for row in result.rows.into_iter().filter(|_| kept) {
            if row.attempts_made == 0 && !self.rewound_during_load {
                self.cursor = self.cursor.max(row.id);
            }
            if self.insert_if_absent(row.id) {
                fresh.push(row);
            }
        }
        self.load_ended();
        self.last_active = now.boot;
        fresh
    }

    /// A load that brought nothing: the database is away, or the answer came too late.
    pub(super) fn load_failed(&mut self, again_at: BootTime) {
        self.load_out = false;
        self.more_ready = true;
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
        self.tombstones.clear();
    }

    fn insert_if_absent(&mut self, id: Uuid) -> bool {
        !self.tombstones.contains(&id) && self.known.insert(id)
    }

    /// The record of a delivery was acknowledged.
    pub(super) fn recorded(&mut self, id: Uuid, next_due: Option<OffsetDateTime>, now: BootTime) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.forget(id);
        self.due(next_due);
        self.last_active = now;
    }

    /// It was admitted, but no request was made: any load finds it again.
    pub(super) fn not_sent(&mut self, id: Uuid, now: Now) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.known.remove(&id);
        self.scanned(true, Some(now.database));
    }

    /// A row that is not ours to send any more; a load under way may still show it.
    fn forget(&mut self, id: Uuid) {
        self.known.remove(&id);
        if self.load_out {
            self.tombstones.insert(id);
        }
    }

    /// Drops what is loaded and not sent; the rows stay in the database, and any load finds them again.
    pub(super) fn unload(&mut self, now: Now) -> VecDeque<(LiveRow, BootTime)> {
        let dropped = std::mem::take(&mut self.queue);
        for (row, _) in &dropped {
            self.dropped(row, now);
        }
        dropped
    }

    /// A loaded row is not kept.
    pub(super) fn dropped(&mut self, row: &LiveRow, now: Now) {
        self.known.remove(&row.id);
        if row.attempts_made == 0 {
            self.scanned(true, None);
        } else {
            self.due(Some(now.database));
        }
    }

    /// All live rows were closed.
    pub(super) fn nothing_left(&mut self) {
        self.more_ready = false;
        self.next_due = None;
    }

    /// Nothing loaded, on the wire or expected: can be forgotten until a hint or scan names it.
    pub(super) fn is_idle(&self) -> bool {
        self.known.is_empty()
            && self.in_flight == 0
            && !self.load_out
            && !self.more_ready
            && !self.closing
            && self.next_due.is_none()
    }
}

fn earliest(a: Option<OffsetDateTime>, b: Option<OffsetDateTime>) -> Option<OffsetDateTime> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}
