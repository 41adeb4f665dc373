//! The database as far as a worker sees it: the tables, and the statements of `shared::store` with the
//! semantics that PostgreSQL gives them under READ COMMITTED.
//!
//! A statement has three moments. It *begins*: takes its snapshot. It *locks*: waits for what is in
//! its way. It *commits*: what it writes is seen from then on. Between them, anything else happens.
//!
//! - A read answers from its snapshot, however late the answer arrives.
//! - Rows to change are found in the snapshot; one that was changed since (`version`, as `ctid` in the
//!   SQL) is not hit.
//! - `FOR KEY SHARE` on a worker's row conflicts with its DELETE and with FOR UPDATE, not with its
//!   renewal; who waited finds the row gone.

mod life;
mod lines;
mod policy;
mod snapshot;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use shared::domain::attempt::Outcome as AttemptOutcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass, Kind};
use shared::domain::endpoint::{EndpointState, RateLimit};
use shared::domain::order::OrderKey;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::policy::decide::Decision;
use shared::store::commands::{Command, Verb};
use shared::store::endpoint_runtime::{Recovery, Runtime};
use shared::store::queue::{LineWant, Lines, Row, Want};
use shared::store::slots::{Census, Handed, Taken};
use time::OffsetDateTime;
use uuid::Uuid;
use worker::job::Ownership;
use worker::scheduler::{Found, LoadRequest};

use crate::check::{Invariant, Mutation, Violation};

/// How many slots there are here; few, so that they are fought for.
pub(crate) const SLOTS: i16 = 6;
/// Rows that one closing takes of each table; few, so that it takes several.
const CLOSE_LIMIT: usize = 3;

#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) expires_at: OffsetDateTime,
    pub(crate) in_flight: Vec<Uuid>,
    pub(crate) draining: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotRow {
    pub(crate) owner: Option<Incarnation>,
    pub(crate) epoch: Epoch,
    /// The epoch that was handed over in order.
    pub(crate) released: Option<Epoch>,
    /// When it was last taken from the dead.
    pub(crate) emptied_at: Option<OffsetDateTime>,
}

/// A row of `ready` (no due time) or `retry`; of `ready_ordered`, if it stands in a line.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) id: Uuid,
    pub(crate) event_id: Uuid,
    pub(crate) tenant: TenantKey,
    pub(crate) slot: Slot,
    pub(crate) endpoint: EndpointKey,
    pub(crate) made: u16,
    pub(crate) charged: u16,
    pub(crate) due: Option<OffsetDateTime>,
    /// The line that it stands in, and its place there; 0: drawn when it is stored.
    pub(crate) order: Option<(OrderKey, i64)>,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) first_at: Option<OffsetDateTime>,
    pub(crate) version: u64,
    /// When it was accepted, for the check of closings.
    pub(crate) since: OffsetDateTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Final {
    Delivered,
    Dead(DeadLetterClass),
    Closed(CloseReason),
}

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) key: EndpointKey,
    pub(crate) tenant: TenantKey,
    pub(crate) slot: Slot,
    pub(crate) state: EndpointState,
    pub(crate) version: i32,
    pub(crate) rate_limit: Option<RateLimit>,
    /// When it was last seen not enabled; now, if it is not.
    pub(crate) off_until: Option<OffsetDateTime>,
}

/// A row of `dead_letters`.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetter {
    pub(crate) row: Live,
    pub(crate) class: DeadLetterClass,
    pub(crate) dead_at: OffsetDateTime,
    pub(crate) replayed_as: Option<Uuid>,
    /// When its owner heard of it.
    pub(crate) known_at: Option<OffsetDateTime>,
    /// Held by a statement that makes it live again.
    locked: bool,
}

/// A row of `attempts`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) endpoint: EndpointKey,
    pub(crate) delivery: Uuid,
    pub(crate) number: u16,
    pub(crate) started_at: OffsetDateTime,
    pub(crate) outcome: AttemptOutcome,
    pub(crate) applied: bool,
}

/// What a record says about one delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) owner: Ownership,
    pub(crate) endpoint: EndpointKey,
    pub(crate) delivery: Uuid,
    pub(crate) outcome: AttemptOutcome,
    pub(crate) started_at: Option<OffsetDateTime>,
    pub(crate) before: u16,
    pub(crate) made: u16,
    pub(crate) charged: u16,
    pub(crate) decision: Decision,
}

#[derive(Debug, Clone)]
pub(crate) enum Statement {
    Connect,
    Join(Incarnation),
    Renew(Incarnation, Vec<Uuid>),
    Drain(Incarnation),
    DeclareDead(Incarnation),
    Census(Incarnation),
    Acquire(Incarnation, usize),
    Reclaim(Incarnation, Vec<(Slot, Epoch)>),
    /// With the slots that are handed over in doubt.
    Release(Incarnation, Vec<(Slot, Epoch)>, Vec<Handed>, Vec<Slot>),
    Leave(Incarnation),
    Suspects,
    ChargeSuspect(Uuid),
    ClearSuspects(Vec<Uuid>),
    Record(Incarnation, Vec<Outcome>),
    /// Unless its version is another by now.
    Disable(EndpointKey, i32),
    Scan(Vec<Slot>),
    Configs(Vec<EndpointKey>),
    Load {
        wants: Vec<Want>,
        requests: Vec<LoadRequest>,
        due_by: OffsetDateTime,
    },
    Lines {
        wants: Vec<LineWant>,
        due_by: OffsetDateTime,
    },
    Close {
        owner: Ownership,
        endpoint: EndpointKey,
        reason: CloseReason,
        except: Vec<Uuid>,
    },
    Expire {
        owner: Ownership,
        endpoint: EndpointKey,
        older_than: Uuid,
        except: Vec<Uuid>,
    },
    /// What changed about endpoints.
    Save(Incarnation, Vec<Saved>),
    Revive {
        owner: Ownership,
        endpoint: EndpointKey,
        window: Recovery,
        ids: Vec<Uuid>,
    },
    Outages(Vec<Slot>, OffsetDateTime),
    Awake(Vec<Slot>),
    History(Vec<EndpointKey>),
    Commands(Vec<Slot>),
    MakeDue(Incarnation, Uuid, OffsetDateTime),
    RemoveCommands(Incarnation, Vec<i64>),
}

#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Time(Option<OffsetDateTime>),
    Census(Census),
    Taken(Vec<Taken>),
    Suspects(HashMap<Uuid, u16>),
    Found(Vec<Found>),
    Endpoints(Vec<(Endpoint, Runtime)>),
    /// Records that changed something.
    Applied(Vec<Uuid>),
    Rows(Vec<Row>, Vec<Row>),
    Lines(Lines),
    /// How many were closed; `None`: not the owner, or the endpoint is enabled.
    Closed(Option<usize>),
    Commands(Vec<Command>),
    /// The new deliveries; `None`: not the owner.
    Revived(Option<Vec<Uuid>>),
    /// Endpoints that somebody must look after.
    Awake(Vec<(Slot, EndpointKey, TenantKey)>),
    /// Endpoints with an outage that nobody stored, and when the first of its dead letters died.
    Outages(Vec<Outage>),
    History(HashMap<EndpointKey, Vec<(AttemptOutcome, OffsetDateTime)>>),
}

pub(crate) type Outage = (Slot, EndpointKey, TenantKey, OffsetDateTime);

/// A state of an endpoint that is to be stored.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) owner: Ownership,
    pub(crate) endpoint: EndpointKey,
    pub(crate) runtime: Runtime,
}

/// What a statement took from its snapshot.
#[derive(Debug)]
enum Snapshot {
    Nothing,
    Answer(Answer),
    Record {
        fenced: Vec<bool>,
        found: Vec<Option<u64>>,
    },
    Dying {
        candidates: Vec<Incarnation>,
        next: usize,
        live: View,
    },
    Free {
        candidates: Vec<(Slot, Epoch)>,
        workers: BTreeSet<Incarnation>,
    },
    Closing {
        fenced: bool,
        rows: Vec<(Uuid, u64)>,
    },
    Owned(bool),
    Reviving {
        fenced: bool,
        picked: Vec<Uuid>,
    },
}

type View = Rc<BTreeMap<Uuid, Live>>;

/// A statement under way.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) statement: Statement,
    snapshot: Snapshot,
    shares: Option<Incarnation>,
    excludes: Vec<Incarnation>,
    updates: Option<Incarnation>,
    /// `now()`: when its snapshot was taken.
    began: OffsetDateTime,
    /// `clock_timestamp()`: when it had its locks.
    at: OffsetDateTime,
}

#[derive(Debug, Default)]
struct Locks {
    shares: usize,
    updating: bool,
    exclusive: bool,
}

pub(crate) struct Store {
    pub(crate) workers: BTreeMap<Incarnation, Worker>,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) suspects: BTreeMap<Uuid, u16>,
    pub(crate) live: BTreeMap<Uuid, Live>,
    pub(crate) finals: BTreeMap<Uuid, Final>,
    pub(crate) endpoints: BTreeMap<EndpointKey, Endpoint>,
    pub(crate) commands: BTreeMap<i64, Command>,
    pub(crate) runtime: BTreeMap<EndpointKey, Runtime>,
    /// The order of what was saved last.
    pub(super) saved: BTreeMap<EndpointKey, (Epoch, i64)>,
    pub(crate) dead_letters: BTreeMap<Uuid, DeadLetter>,
    pub(crate) attempts: Vec<Attempt>,
    /// Requests charged to the deliveries of an event.
    charged: BTreeMap<Uuid, u16>,
    /// Dead letters that were made live again.
    pub(crate) revived: u64,
    /// Where each delivery that stood in a line stood.
    pub(crate) places: BTreeMap<Uuid, (OrderKey, i64)>,
    /// Attempts whose record changed something: delivery, number.
    pub(crate) applied: BTreeSet<(Uuid, u16)>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) ttl: std::time::Duration,
    locks: BTreeMap<Incarnation, Locks>,
    versions: u64,
    mutation: Mutation,
    /// Only for mutations: what earlier snapshots saw.
    seen: BTreeMap<(EndpointKey, Epoch), View>,
    before_take_over: BTreeMap<(Slot, Epoch), View>,
    at_death: BTreeMap<Incarnation, View>,
}

impl Store {
    pub(crate) fn new(mutation: Mutation, ttl: std::time::Duration) -> Self {
        let slot = SlotRow {
            owner: None,
            epoch: Epoch(0),
            released: None,
            emptied_at: None,
        };
        Self {
            workers: BTreeMap::new(),
            slots: vec![slot; usize::try_from(SLOTS).unwrap()],
            suspects: BTreeMap::new(),
            live: BTreeMap::new(),
            finals: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            commands: BTreeMap::new(),
            runtime: BTreeMap::new(),
            saved: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
            attempts: Vec::new(),
            charged: BTreeMap::new(),
            revived: 0,
            places: BTreeMap::new(),
            applied: BTreeSet::new(),
            violations: Vec::new(),
            ttl,
            locks: BTreeMap::new(),
            versions: 0,
            mutation,
            seen: BTreeMap::new(),
            before_take_over: BTreeMap::new(),
            at_death: BTreeMap::new(),
        }
    }
    /// The endpoint's row, and the command that tells its owner, in one commit.
    pub(crate) fn change_endpoint(
        &mut self,
        key: EndpointKey,
        to: EndpointState,
        now: OffsetDateTime,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&key) else {
            return;
        };
        let enabled_again = !is_enabled(endpoint) && to == EndpointState::Enabled;
        if !is_enabled(endpoint) {
            endpoint.off_until = Some(now);
        }
        endpoint.state = to;
        endpoint.version += 1;
        let (slot, tenant) = (endpoint.slot, endpoint.tenant);
        if enabled_again {
            self.start_with_probe(key, now);
        }
        self.command(slot, tenant, key, Verb::Reload);
    }

    pub(crate) fn command(
        &mut self,
        slot: Slot,
        tenant: TenantKey,
        endpoint: EndpointKey,
        verb: Verb,
    ) {
        self.versions += 1;
        let id = i64::try_from(self.versions).unwrap();
        self.commands.insert(
            id,
            Command {
                id,
                slot,
                tenant,
                endpoint,
                verb,
            },
        );
    }

    /// Compare-and-delete, unless a living worker lists it as under way.
    pub(crate) fn cancel(&mut self, id: Uuid, now: OffsetDateTime) -> bool {
        let lists = |row: &&Worker| row.expires_at > now && row.in_flight.contains(&id);
        if self.workers.values().any(|row| lists(&row)) || self.live.remove(&id).is_none() {
            return false;
        }
        if let Some(text) = self.end(id, Some(Final::Closed(CloseReason::Cancelled))) {
            self.violations.push(Violation {
                invariant: Invariant::Final,
                text,
            });
        }
        true
    }
}

pub(crate) fn is_enabled(endpoint: &Endpoint) -> bool {
    endpoint.state == EndpointState::Enabled
}

fn ran_out(row: &Worker, now: OffsetDateTime) -> bool {
    row.expires_at < now - time::Duration::SECOND
}

fn answer_row(want: usize, row: &Live, due_by: OffsetDateTime) -> Row {
    let due = row.due.is_none_or(|due| due <= due_by);
    Row {
        want,
        id: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        attempts_made: row.made,
        attempts_charged: row.charged,
        kind: row.kind,
        due_at: row.due,
        first_at: row.first_at,
        event: due.then(|| ("model.event".to_owned(), vec![b'x'; row.bytes], None)),
        trace: None,
    }
}

fn final_of(decision: Decision) -> Option<Final> {
    match decision {
        Decision::Complete => Some(Final::Delivered),
        Decision::RetryAt(_) => None,
        Decision::DeadLetter(class) => Some(Final::Dead(class)),
        Decision::Close(reason) | Decision::DisableEndpoint(reason) => Some(Final::Closed(reason)),
    }
}

/// The end of an id: enough to tell deliveries apart in a trace.
pub(crate) fn short(id: Uuid) -> String {
    format!("d{}", id.as_u128() & 0xffff)
}
