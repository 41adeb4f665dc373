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

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use shared::domain::delivery::{CloseReason, DeadLetterClass, Kind};
use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey};
use shared::policy::decide::Decision;
use shared::store::commands::{Command, Verb};
use shared::store::queue::Row;
use shared::store::slots::Census;
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
}

/// A row of `ready` (no due time) or `retry`.
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
    pub(crate) bytes: usize,
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
    /// When it was last seen not enabled; now, if it is not.
    pub(crate) off_until: Option<OffsetDateTime>,
}

/// What a record says about one delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) owner: Ownership,
    pub(crate) delivery: Uuid,
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
    Release(Incarnation, Vec<(Slot, Epoch)>),
    Leave(Incarnation),
    Suspects,
    ChargeSuspect(Uuid),
    ClearSuspects(Vec<Uuid>),
    Record(Incarnation, Vec<Outcome>),
    Disable(EndpointKey),
    Scan(Vec<Slot>),
    Configs(Vec<EndpointKey>),
    Load(Vec<LoadRequest>, OffsetDateTime),
    Close {
        owner: Ownership,
        endpoint: EndpointKey,
        reason: CloseReason,
        except: Vec<Uuid>,
    },
    Commands(Vec<Slot>),
    MakeDue(Incarnation, Uuid, OffsetDateTime),
    RemoveCommands(Incarnation, Vec<i64>),
}

#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Time(Option<OffsetDateTime>),
    Count(usize),
    Census(Census),
    Slots(Vec<(Slot, Epoch)>),
    Suspects(HashMap<Uuid, u16>),
    Found(Vec<Found>),
    Endpoints(Vec<Endpoint>),
    Rows(Vec<Row>, Vec<Row>),
    /// How many were closed; `None`: not the owner, or the endpoint is enabled.
    Closed(Option<usize>),
    Commands(Vec<Command>),
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
        };
        Self {
            workers: BTreeMap::new(),
            slots: vec![slot; usize::try_from(SLOTS).unwrap()],
            suspects: BTreeMap::new(),
            live: BTreeMap::new(),
            finals: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            commands: BTreeMap::new(),
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

    // ## The life of a statement

    pub(crate) fn begin(&mut self, statement: Statement, now: OffsetDateTime) -> Execution {
        let snapshot = self.snapshot(&statement, now);
        let none = None;
        Execution {
            statement,
            snapshot,
            shares: none,
            excludes: vec![],
            updates: none,
            at: now,
        }
    }

    /// Takes the locks; `false`: something is in the way, ask again when anything committed.
    pub(crate) fn lock(&mut self, execution: &mut Execution, now: OffsetDateTime) -> bool {
        execution.at = now;
        match &execution.statement {
            Statement::Record(me, _)
            | Statement::Close {
                owner: Ownership {
                    incarnation: me, ..
                },
                ..
            }
            | Statement::MakeDue(me, ..)
            | Statement::RemoveCommands(me, _) => {
                if self.is_unfenced() || !self.workers.contains_key(me) {
                    return true;
                }
                let locks = self.locks.entry(*me).or_default();
                if locks.exclusive {
                    return false;
                }
                locks.shares += 1;
                execution.shares = Some(*me);
                self.look_again(execution);
                true
            }
            Statement::Renew(me, _) | Statement::Drain(me) => {
                let locks = self.locks.entry(*me).or_default();
                if locks.exclusive || locks.updating {
                    return false;
                }
                locks.updating = true;
                execution.updates = Some(*me);
                true
            }
            Statement::Release(me, _) | Statement::Reclaim(me, _) | Statement::Leave(me) => {
                let me = *me;
                !self.workers.contains_key(&me) || self.exclude(execution, me)
            }
            Statement::DeclareDead(_) => self.lock_the_dead(execution, now),
            _ => true,
        }
    }

    /// SHARE on the slot: a row that was changed since the snapshot is read again.
    fn look_again(&self, execution: &mut Execution) {
        if let Statement::Close { owner, .. } = &execution.statement
            && let Snapshot::Closing { fenced, .. } = &mut execution.snapshot
        {
            *fenced &= self.fence(owner.incarnation, *owner);
        }
    }

    fn exclude(&mut self, execution: &mut Execution, worker: Incarnation) -> bool {
        let waits = self.mutation != Mutation::DeathDoesNotWait;
        let locks = self.locks.entry(worker).or_default();
        if locks.exclusive || locks.updating || (waits && locks.shares > 0) {
            return false;
        }
        locks.exclusive = true;
        execution.excludes.push(worker);
        true
    }

    /// One row after the other, holding those it has; one that was renewed meanwhile is let live.
    fn lock_the_dead(&mut self, execution: &mut Execution, now: OffsetDateTime) -> bool {
        loop {
            let Snapshot::Dying {
                candidates, next, ..
            } = &mut execution.snapshot
            else {
                return true;
            };
            let Some(worker) = candidates.get(*next).copied() else {
                return true;
            };
            *next += 1;
            if !self.exclude(execution, worker) {
                let Snapshot::Dying { next, .. } = &mut execution.snapshot else {
                    return true;
                };
                *next -= 1;
                return false;
            }
            if !self
                .workers
                .get(&worker)
                .is_some_and(|row| ran_out(row, now))
            {
                execution.excludes.retain(|held| *held != worker);
                self.locks.entry(worker).or_default().exclusive = false;
            }
        }
    }

    fn unlock(&mut self, execution: &Execution) {
        if let Some(me) = execution.shares {
            self.locks.entry(me).or_default().shares -= 1;
        }
        if let Some(me) = execution.updates {
            self.locks.entry(me).or_default().updating = false;
        }
        for worker in &execution.excludes {
            self.locks.entry(*worker).or_default().exclusive = false;
        }
    }

    pub(crate) fn abort(&mut self, execution: &Execution) {
        self.unlock(execution);
    }

    pub(crate) fn commit(&mut self, mut execution: Execution, now: OffsetDateTime) -> Answer {
        let snapshot = std::mem::replace(&mut execution.snapshot, Snapshot::Nothing);
        let answer = self.write(&execution, snapshot, now);
        self.unlock(&execution);
        answer
    }

    // ## Snapshots

    fn snapshot(&mut self, statement: &Statement, now: OffsetDateTime) -> Snapshot {
        match statement {
            Statement::Census(me) => Snapshot::Answer(Answer::Census(self.census(*me, now))),
            Statement::Suspects => {
                let all = self
                    .suspects
                    .iter()
                    .map(|(id, deaths)| (*id, *deaths))
                    .collect();
                Snapshot::Answer(Answer::Suspects(all))
            }
            Statement::Scan(slots) => Snapshot::Answer(Answer::Found(self.scan(slots))),
            Statement::Configs(keys) => {
                let found = keys
                    .iter()
                    .filter_map(|key| self.endpoints.get(key))
                    .cloned();
                Snapshot::Answer(Answer::Endpoints(found.collect()))
            }
            Statement::Load(requests, due_by) => Snapshot::Answer(self.load(requests, *due_by)),
            Statement::Commands(slots) => {
                let all = self
                    .commands
                    .values()
                    .filter(|command| slots.contains(&command.slot));
                Snapshot::Answer(Answer::Commands(all.take(5).copied().collect()))
            }
            Statement::Record(me, outcomes) => Snapshot::Record {
                fenced: outcomes
                    .iter()
                    .map(|outcome| self.fence(*me, outcome.owner))
                    .collect(),
                found: outcomes.iter().map(|outcome| self.find(outcome)).collect(),
            },
            Statement::DeclareDead(me) => {
                let dead = self
                    .workers
                    .iter()
                    .filter(|(id, row)| *id != me && ran_out(row, now));
                Snapshot::Dying {
                    candidates: dead.map(|(id, _)| *id).collect(),
                    next: 0,
                    live: self.copy_for(Mutation::TakeOverSnapshot),
                }
            }
            Statement::Acquire(me, count) => self.free(*me, *count),
            Statement::Close {
                owner,
                endpoint,
                except,
                ..
            } => self.closing(*owner, *endpoint, except),
            Statement::MakeDue(me, id, _) => {
                let slot = self.live.get(id).map(|row| row.slot);
                let mine = |slot: Slot| self.slot(slot).owner == Some(*me);
                Snapshot::Owned(slot.is_some_and(mine) && self.workers.contains_key(me))
            }
            _ => Snapshot::Nothing,
        }
    }

    pub(crate) fn slot(&self, slot: Slot) -> SlotRow {
        self.slots[usize::try_from(slot.0).unwrap()]
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut SlotRow {
        &mut self.slots[usize::try_from(slot.0).unwrap()]
    }

    /// Whether this ownership is the current one.
    pub(crate) fn owns(&self, owner: Ownership) -> bool {
        let row = self.slot(owner.slot);
        row.owner == Some(owner.incarnation)
            && row.epoch == owner.epoch
            && self.workers.contains_key(&owner.incarnation)
    }

    fn is_unfenced(&self) -> bool {
        matches!(self.mutation, Mutation::NoFence | Mutation::SnapshotFence)
    }

    fn fence(&self, me: Incarnation, owner: Ownership) -> bool {
        let row = self.slot(owner.slot);
        match self.mutation {
            Mutation::NoFence => true,
            Mutation::SnapshotFence => row.epoch == owner.epoch,
            _ => row.owner == Some(me) && row.epoch == owner.epoch,
        }
    }

    fn find(&self, outcome: &Outcome) -> Option<u64> {
        let row = self.live.get(&outcome.delivery)?;
        (row.made == outcome.before).then_some(row.version)
    }

    fn census(&self, me: Incarnation, now: OffsetDateTime) -> Census {
        let living = self
            .workers
            .values()
            .filter(|row| row.expires_at > now && !row.draining);
        let mine = self.numbered().filter(|(_, row)| row.owner == Some(me));
        Census {
            workers: living.count(),
            free: self
                .numbered()
                .filter(|(_, row)| self.is_free(*row))
                .count(),
            mine: mine.map(|(slot, row)| (slot, row.epoch)).collect(),
        }
    }

    fn numbered(&self) -> impl Iterator<Item = (Slot, SlotRow)> + '_ {
        (0..SLOTS).map(|slot| (Slot(slot), self.slot(Slot(slot))))
    }

    fn is_free(&self, row: SlotRow) -> bool {
        row.owner
            .is_none_or(|owner| !self.workers.contains_key(&owner))
    }

    fn copy_for(&self, mutation: Mutation) -> View {
        if self.mutation == mutation {
            Rc::new(self.live.clone())
        } else {
            Rc::default()
        }
    }

    fn free(&self, me: Incarnation, count: usize) -> Snapshot {
        let free = self.numbered().filter(|(_, row)| self.is_free(*row));
        let alive = self.workers.contains_key(&me);
        let free = free.take(count).filter(|_| alive);
        Snapshot::Free {
            candidates: free.map(|(slot, row)| (slot, row.epoch)).collect(),
            workers: self.workers.keys().copied().collect(),
        }
    }

    fn scan(&self, slots: &[Slot]) -> Vec<Found> {
        let mut found: BTreeMap<EndpointKey, Found> = BTreeMap::new();
        for row in self.live.values().filter(|row| slots.contains(&row.slot)) {
            let entry = found.entry(row.endpoint).or_insert(Found {
                slot: row.slot,
                endpoint: row.endpoint,
                tenant: row.tenant,
                ready: false,
                next_due: None,
            });
            entry.ready |= row.due.is_none();
            entry.next_due = match (entry.next_due, row.due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        found.into_values().collect()
    }

    fn load(&mut self, requests: &[LoadRequest], due_by: OffsetDateTime) -> Answer {
        let (mut ready, mut retry) = (Vec::new(), Vec::new());
        for (want, request) in requests.iter().enumerate() {
            let older = self.older_snapshot(request);
            let view = older.as_deref().unwrap_or(&self.live);
            let mut rows: Vec<&Live> = view
                .values()
                .filter(|row| row.endpoint == request.endpoint)
                .collect();
            rows.sort_by_key(|row| (row.due, row.id));
            let fresh = rows
                .iter()
                .filter(|row| row.due.is_none() && row.id > request.cursor);
            ready.extend(
                fresh
                    .take(request.ready_limit)
                    .map(|row| answer_row(want, row, due_by)),
            );
            let failed = rows.iter().filter(|row| row.due.is_some());
            retry.extend(
                failed
                    .take(request.retry_limit)
                    .map(|row| answer_row(want, row, due_by)),
            );
        }
        Answer::Rows(ready, retry)
    }

    /// The snapshot that a mutation answers from.
    fn older_snapshot(&mut self, request: &LoadRequest) -> Option<View> {
        match self.mutation {
            Mutation::StaleLoads => {
                let now = Rc::new(self.live.clone());
                self.seen.insert((request.endpoint, request.epoch), now)
            }
            Mutation::TakeOverSnapshot => {
                let first = self
                    .seen
                    .insert((request.endpoint, request.epoch), Rc::default());
                let view = self.before_take_over.get(&(request.slot, request.epoch));
                view.filter(|_| first.is_none()).cloned()
            }
            _ => None,
        }
    }

    fn closing(&self, owner: Ownership, endpoint: EndpointKey, except: &[Uuid]) -> Snapshot {
        let enabled = self.endpoints.get(&endpoint).is_some_and(is_enabled);
        let asked = self.mutation == Mutation::BlindClosing || !enabled;
        let rows = self.live.values().filter(|row| row.endpoint == endpoint);
        let rows = rows.filter(|row| !except.contains(&row.id));
        let (ready, retry): (Vec<&Live>, Vec<&Live>) = rows.partition(|row| row.due.is_none());
        let some = |rows: Vec<&Live>| {
            rows.into_iter()
                .take(CLOSE_LIMIT)
                .map(|row| (row.id, row.version))
                .collect::<Vec<_>>()
        };
        Snapshot::Closing {
            fenced: asked && self.fence(owner.incarnation, owner),
            rows: [some(ready), some(retry)].concat(),
        }
    }

    // ## Writes

    fn write(&mut self, run: &Execution, snapshot: Snapshot, now: OffsetDateTime) -> Answer {
        match (&run.statement, snapshot) {
            (_, Snapshot::Answer(answer)) => answer,
            (Statement::Record(me, outcomes), Snapshot::Record { fenced, found }) => {
                let locked = run.shares == Some(*me);
                self.record(outcomes, &fenced, &found, locked)
            }
            (Statement::DeclareDead(me), Snapshot::Dying { live, .. }) => {
                self.bury(*me, &run.excludes, live)
            }
            (
                Statement::Acquire(me, _),
                Snapshot::Free {
                    candidates,
                    workers,
                },
            ) => self.take(*me, &candidates, &workers),
            (Statement::Close { owner, reason, .. }, Snapshot::Closing { fenced, rows }) => {
                let fenced = fenced && (run.shares.is_some() || self.is_unfenced());
                self.close(*owner, *reason, (fenced, &rows), now)
            }
            (Statement::MakeDue(_, id, at), Snapshot::Owned(mine)) => {
                if mine && (run.shares.is_some() || self.is_unfenced()) {
                    self.make_due(*id, *at);
                }
                Answer::Done
            }
            (statement, _) => {
                let fenced = run.shares.is_some() || self.is_unfenced();
                self.write_simple(statement, run.at, fenced)
            }
        }
    }

    fn write_simple(&mut self, statement: &Statement, at: OffsetDateTime, fenced: bool) -> Answer {
        match statement {
            Statement::Join(me) => {
                let expires_at = at + self.ttl;
                let row = self.workers.entry(*me).or_insert(Worker {
                    expires_at,
                    in_flight: vec![],
                    draining: false,
                });
                row.expires_at = row.expires_at.max(expires_at);
                Answer::Time(Some(at))
            }
            Statement::Renew(me, in_flight) => {
                let expires_at = at + self.ttl;
                let row = self.workers.get_mut(me);
                Answer::Time(row.map(|row| {
                    row.expires_at = expires_at;
                    row.in_flight.clone_from(in_flight);
                    at
                }))
            }
            Statement::Drain(me) => {
                if let Some(row) = self.workers.get_mut(me) {
                    row.draining = true;
                }
                Answer::Done
            }
            Statement::Reclaim(me, slots) => Answer::Slots(self.compare_and_set(*me, slots, true)),
            Statement::Release(me, slots) => Answer::Slots(self.compare_and_set(*me, slots, false)),
            Statement::Leave(me) => {
                self.workers.remove(me);
                Answer::Done
            }
            Statement::ChargeSuspect(id) => {
                if let Some(deaths) = self.suspects.get_mut(id) {
                    *deaths += 1;
                }
                Answer::Done
            }
            Statement::ClearSuspects(ids) => {
                self.suspects.retain(|id, _| !ids.contains(id));
                Answer::Done
            }
            Statement::Disable(endpoint) => {
                if self.endpoints.get(endpoint).is_some_and(is_enabled) {
                    self.change_endpoint(*endpoint, EndpointState::Disabled, at);
                }
                Answer::Done
            }
            Statement::RemoveCommands(me, ids) => {
                let slots = self.slots.clone();
                let mine = |slot: Slot| slots[usize::try_from(slot.0).unwrap()].owner == Some(*me);
                self.commands
                    .retain(|id, row| !(fenced && ids.contains(id) && mine(row.slot)));
                Answer::Done
            }
            _ => Answer::Done,
        }
    }

    fn record(
        &mut self,
        outcomes: &[Outcome],
        fenced: &[bool],
        found: &[Option<u64>],
        locked: bool,
    ) -> Answer {
        let unfenced = self.is_unfenced();
        let mut applied = 0;
        for ((outcome, fenced), found) in outcomes.iter().zip(fenced).zip(found) {
            if !fenced || !(locked || unfenced) {
                continue;
            }
            let row = self.live.get(&outcome.delivery).cloned();
            let hit = found.is_some() && row.as_ref().map(|row| row.version) == *found;
            if !hit && self.mutation != Mutation::RecordsRepeat {
                continue;
            }
            if let Some(row) = row.filter(|_| hit) {
                self.live.remove(&row.id);
                self.check_fence("a record", outcome.owner, row.id);
                self.applied.insert((row.id, outcome.made));
                self.follow(&row, outcome);
                applied += 1;
            } else if let Decision::RetryAt(_) = outcome.decision {
                // Only the mutation comes here: the outcome counts although its row is gone.
                let text = format!("the outcome of {} counts twice", short(outcome.delivery));
                self.violations.push(Violation {
                    invariant: Invariant::Final,
                    text,
                });
            } else if let Some(text) = self.end(outcome.delivery, final_of(outcome.decision)) {
                self.violations.push(Violation {
                    invariant: Invariant::Final,
                    text,
                });
            }
        }
        Answer::Count(applied)
    }

    /// Where a delivery goes after an applied record.
    fn follow(&mut self, row: &Live, outcome: &Outcome) {
        if let Decision::RetryAt(at) = outcome.decision {
            let (made, charged) = (outcome.made, outcome.charged);
            let row = Live {
                made,
                charged,
                due: Some(at),
                version: 0,
                ..row.clone()
            };
            self.insert_live(row);
        } else if let Some(text) = self.end(row.id, final_of(outcome.decision)) {
            self.violations.push(Violation {
                invariant: Invariant::Final,
                text,
            });
        }
    }

    pub(crate) fn insert_live(&mut self, mut row: Live) {
        self.versions += 1;
        row.version = self.versions;
        let twice = self.live.contains_key(&row.id) || self.finals.contains_key(&row.id);
        if twice {
            let text = format!("{} is live although it is in another place", short(row.id));
            self.violations.push(Violation {
                invariant: Invariant::Final,
                text,
            });
        }
        self.live.insert(row.id, row);
    }

    /// Makes a delivery final; what is wrong with that, if anything.
    #[must_use]
    pub(crate) fn end(&mut self, id: Uuid, to: Option<Final>) -> Option<String> {
        let to = to?;
        let live = self.live.contains_key(&id);
        let before = self.finals.insert(id, to);
        let problem = live || before.is_some();
        problem.then(|| format!("{} becomes {to:?}, was {before:?}, live: {live}", short(id)))
    }

    fn check_fence(&mut self, what: &str, owner: Ownership, id: Uuid) {
        if !self.owns(owner) {
            let row = self.slot(owner.slot);
            let text = format!(
                "{what} of a stale owner {owner:?} changed {}; {row:?}",
                short(id)
            );
            self.violations.push(Violation {
                invariant: Invariant::Fence,
                text,
            });
        }
    }

    fn bury(&mut self, me: Incarnation, dead: &[Incarnation], view: View) -> Answer {
        for worker in dead {
            let in_flight = self.workers.remove(worker).map(|row| row.in_flight);
            for id in in_flight.unwrap_or_default() {
                self.suspects.entry(id).or_insert(1);
            }
        }
        self.at_death.remove(&me);
        if !dead.is_empty() {
            self.at_death.insert(me, view);
        }
        Answer::Count(dead.len())
    }

    fn take(
        &mut self,
        me: Incarnation,
        candidates: &[(Slot, Epoch)],
        workers: &BTreeSet<Incarnation>,
    ) -> Answer {
        let blind = self.mutation == Mutation::BlindTakeOver;
        let mut taken = Vec::new();
        for (slot, epoch) in candidates {
            let row = self.slot_mut(*slot);
            let seems_free = blind && row.owner.is_none_or(|owner| !workers.contains(&owner));
            if row.epoch == *epoch || seems_free {
                row.owner = Some(me);
                row.epoch = Epoch(row.epoch.0 + 1);
                taken.push((*slot, row.epoch));
            }
        }
        if let Some(view) = self.at_death.remove(&me) {
            let views = taken.iter().map(|slot| (*slot, Rc::clone(&view)));
            self.before_take_over.extend(views);
        }
        Answer::Slots(taken)
    }

    fn compare_and_set(
        &mut self,
        me: Incarnation,
        slots: &[(Slot, Epoch)],
        keep: bool,
    ) -> Vec<(Slot, Epoch)> {
        let mut changed = Vec::new();
        for (slot, epoch) in slots {
            let row = self.slot_mut(*slot);
            if row.owner == Some(me) && row.epoch == *epoch {
                if keep {
                    row.epoch = Epoch(row.epoch.0 + 1);
                } else {
                    row.owner = None;
                }
                changed.push((*slot, row.epoch));
            }
        }
        changed
    }

    fn close(
        &mut self,
        owner: Ownership,
        reason: CloseReason,
        (fenced, rows): (bool, &[(Uuid, u64)]),
        now: OffsetDateTime,
    ) -> Answer {
        if !fenced {
            return Answer::Closed(None);
        }
        let mut closed = 0;
        for (id, version) in rows {
            let Some(row) = self
                .live
                .get(id)
                .filter(|row| row.version == *version)
                .cloned()
            else {
                continue;
            };
            self.live.remove(id);
            self.check_fence("a closing", owner, *id);
            let off = self.endpoints.get(&row.endpoint).and_then(|endpoint| {
                if is_enabled(endpoint) {
                    endpoint.off_until
                } else {
                    Some(now)
                }
            });
            if off.is_none_or(|off| off < row.since) {
                let text = format!("{} was closed: {reason:?}, though enabled", short(*id));
                self.violations.push(Violation {
                    invariant: Invariant::Closed,
                    text,
                });
            }
            if let Some(text) = self.end(*id, Some(Final::Closed(reason))) {
                self.violations.push(Violation {
                    invariant: Invariant::Final,
                    text,
                });
            }
            closed += 1;
        }
        Answer::Closed(Some(closed))
    }

    fn make_due(&mut self, id: Uuid, at: OffsetDateTime) {
        if let Some(row) = self
            .live
            .get_mut(&id)
            .filter(|row| row.due.is_some_and(|due| due > at))
        {
            self.versions += 1;
            row.due = Some(at);
            row.version = self.versions;
        }
    }

    // ## What the API does

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
        if !is_enabled(endpoint) {
            endpoint.off_until = Some(now);
        }
        endpoint.state = to;
        endpoint.version += 1;
        let (slot, tenant) = (endpoint.slot, endpoint.tenant);
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
        kind: Kind::Live,
        due_at: row.due,
        event: due.then(|| ("model.event".to_owned(), vec![b'x'; row.bytes], None)),
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
