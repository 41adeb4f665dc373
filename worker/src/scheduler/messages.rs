//! What the scheduler is told and what it asks for.

use std::collections::HashMap;
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

use super::ordered::LinesRequest;
use super::slots::{Leaving, Taken};
use crate::endpoint_config::SharedConfig;
use crate::job::{Job, LiveRow, Observed, Ownership, Record};
use crate::transitions::Change;

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
    /// The answer to one [`Chore::Revive`]: the new deliveries; `None`: it could not be answered.
    Revived {
        slot: Slot,
        epoch: Epoch,
        endpoint: EndpointKey,
        deliveries: Option<Vec<Uuid>>,
    },
    /// The answer to one [`Chore::Expire`]. `more`: not all that are too old.
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
    /// The answer to one [`Chore::Park`]; whether it was done.
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
    /// Ask the database for a change, when it has time for one.
    Chore(Chore),
    /// Give up these slots; nothing of them is on the wire.
    Release(Vec<Leaving>),
    /// Store what changed about an endpoint, and tell who wants to know.
    Change(Box<Change>),
}

/// A change that is asked of the database, one at a time, so that a mass deletion does not delay scans. At
/// most one of a kind per endpoint is under way.
#[derive(Debug)]
pub enum Chore {
    /// Close live rows of a disabled or deleted endpoint, but for those on the wire.
    Close(Close),
    /// Make dead letters live again: those of an outage that is over, or one to probe with.
    Revive(Revive),
    /// End live rows that are too old, but for those on the wire.
    Expire(Expire),
    /// Put live rows out of the way of those that may go.
    Park(Park),
    /// Was the owner of these slots killed before it could store that a breaker opened? What was delivered
    /// since they were taken says nothing about that.
    FindOutages {
        /// Which slots.
        slots: Vec<(Slot, Epoch)>,
        /// When they were taken.
        taken_at: OffsetDateTime,
    },
}

impl Chore {
    /// Whether somebody waits for it.
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        !matches!(self, Self::Expire(_))
    }
}

/// See [`Chore::Close`].
#[derive(Debug)]
pub struct Close {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Why.
    pub reason: CloseReason,
    /// On the wire.
    pub except: Vec<Uuid>,
}

/// See [`Chore::Revive`].
#[derive(Debug)]
pub struct Revive {
    /// The fence.
    pub owner: Ownership,
    /// Whose dead letters.
    pub endpoint: EndpointKey,
    /// When they died.
    pub window: Recovery,
    /// At most so many.
    pub count: usize,
}

/// See [`Chore::Expire`].
#[derive(Debug)]
pub struct Expire {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Made before this.
    pub older_than: OffsetDateTime,
    /// On the wire.
    pub except: Vec<Uuid>,
}

/// See [`Chore::Park`].
#[derive(Debug)]
pub struct Park {
    /// The fence.
    pub owner: Ownership,
    /// Whose rows.
    pub endpoint: EndpointKey,
    /// Whose endpoint.
    pub tenant: TenantKey,
    /// Which.
    pub deliveries: Vec<Uuid>,
    /// When those in line are looked at again.
    pub look_again: OffsetDateTime,
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
