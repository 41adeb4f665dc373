//! What a statement takes from its snapshot.

use std::collections::BTreeMap;
use std::rc::Rc;

use shared::ids::{EndpointKey, Incarnation, Slot};
use shared::store::queue::Want;
use shared::store::slots::Census;
use time::OffsetDateTime;
use uuid::Uuid;
use worker::job::Ownership;
use worker::scheduler::{Found, LoadRequest};

use super::{
    Answer, CLOSE_LIMIT, Endpoint, Live, Outcome, SLOTS, SlotRow, Snapshot, Statement, Store, View,
    answer_row, is_enabled, ran_out,
};
use crate::check::Mutation;

impl Store {
    pub(super) fn snapshot(&mut self, statement: &Statement, now: OffsetDateTime) -> Snapshot {
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
            Statement::Record(_, outcomes) => Snapshot::Record {
                fenced: outcomes
                    .iter()
                    .map(|outcome| self.fence(outcome.owner))
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
            Statement::Expire {
                owner,
                endpoint,
                older_than,
                except,
            } => self.expiring(*owner, *endpoint, (*older_than, except)),
            Statement::Revive {
                owner,
                endpoint,
                window,
                ids,
            } => self.reviving(*owner, *endpoint, (window, ids.len())),
            Statement::MakeDue(me, id, _) => {
                let slot = self.live.get(id).map(|row| row.slot);
                let mine = |slot: Slot| self.slot(slot).owner == Some(*me);
                Snapshot::Owned(slot.is_some_and(mine) && self.workers.contains_key(me))
            }
            read => self.read(read),
        }
    }

    /// Of a statement that only reads.
    fn read(&mut self, statement: &Statement) -> Snapshot {
        match statement {
            Statement::Scan(slots) => Snapshot::Answer(Answer::Found(self.scan(slots))),
            Statement::Configs(keys) => {
                let found = keys.iter().filter_map(|key| self.endpoints.get(key));
                let with_runtime = |endpoint: &Endpoint| {
                    let runtime = self.runtime.get(&endpoint.key).cloned();
                    (endpoint.clone(), runtime.unwrap_or_default())
                };
                Snapshot::Answer(Answer::Endpoints(found.map(with_runtime).collect()))
            }
            Statement::Load {
                wants,
                requests,
                due_by,
            } => Snapshot::Answer(self.load(wants, requests, *due_by)),
            Statement::Lines { wants, due_by } => Snapshot::Answer(self.lines(wants, *due_by)),
            Statement::Commands(slots) => {
                let all = self
                    .commands
                    .values()
                    .filter(|command| slots.contains(&command.slot));
                Snapshot::Answer(Answer::Commands(all.take(5).copied().collect()))
            }
            Statement::Outages(slots, taken_at) => {
                Snapshot::Answer(Answer::Outages(self.outages(slots, *taken_at)))
            }
            Statement::Awake(slots) => Snapshot::Answer(Answer::Awake(self.awake_in(slots))),
            Statement::History(keys) => Snapshot::Answer(Answer::History(self.history(keys))),
            _ => Snapshot::Nothing,
        }
    }

    pub(crate) fn slot(&self, slot: Slot) -> SlotRow {
        self.slots[usize::try_from(slot.0).unwrap()]
    }

    pub(super) fn slot_mut(&mut self, slot: Slot) -> &mut SlotRow {
        &mut self.slots[usize::try_from(slot.0).unwrap()]
    }

    /// Whether this ownership is the current one.
    pub(crate) fn owns(&self, owner: Ownership) -> bool {
        let row = self.slot(owner.slot);
        row.owner == Some(owner.incarnation)
            && row.epoch == owner.epoch
            && self.workers.contains_key(&owner.incarnation)
    }

    pub(super) fn is_unfenced(&self) -> bool {
        matches!(self.mutation, Mutation::NoFence | Mutation::SnapshotFence)
    }

    /// The fence of a record.
    pub(super) fn fence(&self, owner: Ownership) -> bool {
        match self.mutation {
            Mutation::NoFence => true,
            Mutation::SnapshotFence => self.slot(owner.slot).epoch == owner.epoch,
            _ => self.holds(owner),
        }
    }

    pub(super) fn holds(&self, owner: Ownership) -> bool {
        let row = self.slot(owner.slot);
        row.owner == Some(owner.incarnation) && row.epoch == owner.epoch
    }

    pub(super) fn find(&self, outcome: &Outcome) -> Option<u64> {
        let row = self.live.get(&outcome.delivery)?;
        (row.made == outcome.before).then_some(row.version)
    }

    pub(super) fn census(&self, me: Incarnation, now: OffsetDateTime) -> Census {
        let living = self
            .workers
            .values()
            .filter(|row| row.expires_at > now && !row.draining);
        let mine = self.numbered().filter(|(_, row)| row.owner == Some(me));
        let others = self.workers.iter().filter(|(id, _)| **id != me);
        let death = others
            .map(|(_, row)| row.expires_at + time::Duration::SECOND)
            .min();
        Census {
            first_death_in: death.map(|at| (at - now).try_into().unwrap_or_default()),
            workers: living.count(),
            free: self
                .numbered()
                .filter(|(_, row)| self.is_free(*row))
                .count(),
            mine: mine.map(|(slot, row)| (slot, row.epoch)).collect(),
        }
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (Slot, SlotRow)> + '_ {
        (0..SLOTS).map(|slot| (Slot(slot), self.slot(Slot(slot))))
    }

    pub(super) fn is_free(&self, row: SlotRow) -> bool {
        row.owner
            .is_none_or(|owner| !self.workers.contains_key(&owner))
    }

    pub(super) fn copy_for(&self, mutation: Mutation) -> View {
        if self.mutation == mutation {
            Rc::new(self.live.clone())
        } else {
            Rc::default()
        }
    }

    pub(super) fn free(&self, me: Incarnation, count: usize) -> Snapshot {
        let free = self.numbered().filter(|(_, row)| self.is_free(*row));
        let alive = self.workers.contains_key(&me);
        let free = free.take(count).filter(|_| alive);
        Snapshot::Free {
            candidates: free.map(|(slot, row)| (slot, row.epoch)).collect(),
            workers: self.workers.keys().copied().collect(),
        }
    }

    pub(super) fn scan(&self, slots: &[Slot]) -> Vec<Found> {
        let mut found: BTreeMap<EndpointKey, Found> = BTreeMap::new();
        for row in self.live.values().filter(|row| slots.contains(&row.slot)) {
            let entry = found.entry(row.endpoint).or_insert(Found {
                slot: row.slot,
                endpoint: row.endpoint,
                tenant: row.tenant,
                ready: false,
                next_due: None,
                awake: false,
                lines: false,
            });
            if row.order.is_some() {
                entry.lines = true;
                continue;
            }
            entry.ready |= row.due.is_none();
            entry.next_due = match (entry.next_due, row.due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        found.into_values().collect()
    }

    pub(super) fn load(
        &mut self,
        wants: &[Want],
        requests: &[LoadRequest],
        due_by: OffsetDateTime,
    ) -> Answer {
        let views: BTreeMap<EndpointKey, Option<View>> = requests
            .iter()
            .map(|request| (request.endpoint, self.older_snapshot(request)))
            .collect();
        let (mut ready, mut retry) = (Vec::new(), Vec::new());
        for (number, want) in wants.iter().enumerate() {
            let older = views.get(&want.endpoint).and_then(Option::as_deref);
            let view = older.unwrap_or(&self.live);
            let mut rows: Vec<&Live> = view
                .values()
                .filter(|row| row.endpoint == want.endpoint && row.order.is_none())
                .collect();
            rows.sort_by_key(|row| (row.due, row.id));
            let answer = |row: &&Live| answer_row(number, row, due_by);
            let limit = |limit: i64| usize::try_from(limit).unwrap();
            let untried = rows.iter().filter(|row| row.due.is_none());
            let untried = untried.filter(|row| row.id > want.cursor);
            ready.extend(untried.take(limit(want.ready_limit)).map(answer));
            let tried = rows.iter().filter(|row| row.due.is_some());
            retry.extend(tried.take(limit(want.retry_limit)).map(answer));
        }
        Answer::Rows(ready, retry)
    }

    /// The snapshot that a mutation answers from.
    pub(super) fn older_snapshot(&mut self, request: &LoadRequest) -> Option<View> {
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

    pub(super) fn closing(
        &self,
        owner: Ownership,
        endpoint: EndpointKey,
        except: &[Uuid],
    ) -> Snapshot {
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
            fenced: asked && self.holds(owner),
            rows: [some(ready), some(retry)].concat(),
        }
    }

    fn expiring(
        &self,
        owner: Ownership,
        endpoint: EndpointKey,
        (older_than, except): (Uuid, &[Uuid]),
    ) -> Snapshot {
        let old = |row: &&Live| row.endpoint == endpoint && row.id < older_than;
        let rows = self.live.values().filter(old);
        let rows = rows.filter(|row| !except.contains(&row.id));
        Snapshot::Closing {
            fenced: self.holds(owner),
            rows: rows
                .take(CLOSE_LIMIT)
                .map(|row| (row.id, row.version))
                .collect(),
        }
    }
}
