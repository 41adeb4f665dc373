//! What a statement writes when it commits, and what must hold then.

use std::collections::BTreeSet;
use std::rc::Rc;

use shared::domain::delivery::{CloseReason, DeadLetterClass};
use shared::domain::endpoint::EndpointState;
use shared::ids::{Epoch, Incarnation, Slot};
use shared::policy::decide::Decision;
use shared::store::slots::{Handed, Taken};
use time::OffsetDateTime;
use uuid::Uuid;
use worker::job::Ownership;

use super::{
    Answer, Endpoint, Execution, Final, Live, Outcome, Snapshot, Statement, Store, View, Worker,
    final_of, is_enabled, short,
};
use crate::check::{Invariant, Mutation, Violation};

impl Store {
    pub(super) fn write(
        &mut self,
        run: &Execution,
        snapshot: Snapshot,
        now: OffsetDateTime,
    ) -> Answer {
        match (&run.statement, snapshot) {
            (_, Snapshot::Answer(answer)) => answer,
            (Statement::Record(me, outcomes), Snapshot::Record { fenced, found }) => {
                let locked = run.shares == Some(*me);
                self.record(outcomes, (&fenced, &found), locked, run.began)
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
            ) => self.take(*me, (&candidates, &workers), run.at),
            (Statement::Close { owner, reason, .. }, Snapshot::Closing { fenced, rows }) => {
                let fenced = fenced && run.shares.is_some();
                self.close(*owner, *reason, (fenced, &rows), now)
            }
            (Statement::Expire { owner, .. }, Snapshot::Closing { fenced, rows }) => {
                let fenced = fenced && run.shares.is_some();
                self.expire(*owner, (fenced, &rows), run.began)
            }
            (
                Statement::Revive {
                    owner,
                    endpoint,
                    ids,
                    ..
                },
                Snapshot::Reviving { fenced, picked },
            ) => {
                let fenced = fenced && run.shares.is_some();
                self.make_live(*owner, *endpoint, (fenced, &picked), ids)
            }
            (Statement::Save(_, states), _) => {
                self.save(states, run.shares.is_some());
                Answer::Done
            }
            (Statement::MakeDue(_, id, at), Snapshot::Owned(mine)) => {
                if mine && run.shares.is_some() {
                    self.make_due(*id, *at);
                }
                Answer::Done
            }
            (statement, _) => self.write_simple(statement, run.at, run.shares.is_some()),
        }
    }

    pub(super) fn write_simple(
        &mut self,
        statement: &Statement,
        at: OffsetDateTime,
        fenced: bool,
    ) -> Answer {
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
            Statement::Reclaim(me, slots) => self.reclaim(*me, slots, at),
            Statement::Release(me, slots, handed, doubtful) => {
                self.release(*me, slots, handed);
                for slot in doubtful {
                    let row = self.slot_mut(*slot);
                    row.released = row.released.filter(|_| row.owner.is_some());
                }
                Answer::Done
            }
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
            Statement::Disable(key, version) => {
                let as_it_was = |found: &Endpoint| is_enabled(found) && found.version == *version;
                if self.endpoints.get(key).is_some_and(as_it_was) {
                    self.change_endpoint(*key, EndpointState::Disabled, at);
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

    pub(super) fn record(
        &mut self,
        outcomes: &[Outcome],
        (fenced, found): (&[bool], &[Option<u64>]),
        locked: bool,
        now: OffsetDateTime,
    ) -> Answer {
        let mut applied = Vec::new();
        let unfenced = self.is_unfenced();
        for ((outcome, fenced), found) in outcomes.iter().zip(fenced).zip(found) {
            let fenced_in = *fenced && (locked || unfenced);
            let row = self.live.get(&outcome.delivery).cloned();
            let hit = fenced_in && found.is_some() && row.as_ref().map(|row| row.version) == *found;
            self.keep_attempt(outcome, hit);
            if !fenced_in {
                continue;
            }
            let again = self.applied.contains(&(outcome.delivery, outcome.made));
            if let Some(row) = row.filter(|_| hit) {
                self.live.remove(&row.id);
                self.check_fence("a record", outcome.owner, row.id);
                self.applied.insert((row.id, outcome.made));
                self.follow(&row, outcome, now);
                applied.push(row.id);
            } else if !(again && self.mutation == Mutation::RecordsRepeat) {
            } else if let Decision::RetryAt(_) = outcome.decision {
                // Only the mutation comes here: the outcome counts although its row is gone.
                let text = format!("the outcome of {} counts twice", short(outcome.delivery));
                self.broken(Invariant::Final, text);
            } else {
                self.ends(outcome.delivery, final_of(outcome.decision));
            }
        }
        Answer::Applied(applied)
    }

    /// Where a delivery goes after an applied record.
    pub(super) fn follow(&mut self, row: &Live, outcome: &Outcome, now: OffsetDateTime) {
        self.charge(row, outcome);
        match outcome.decision {
            Decision::RetryAt(at) => {
                let row = Live {
                    made: outcome.made,
                    charged: outcome.charged,
                    due: Some(at),
                    first_at: row.first_at.or(outcome.started_at).or(Some(now)),
                    version: 0,
                    ..row.clone()
                };
                return self.insert_live(row);
            }
            Decision::DeadLetter(class) => self.bury_letter(row, class, now),
            _ => {}
        }
        self.ends(row.id, final_of(outcome.decision));
    }

    pub(crate) fn insert_live(&mut self, mut row: Live) {
        self.versions += 1;
        row.version = self.versions;
        // Under the lock of its key, to the end of the commit.
        if let Some((_, place @ 0)) = &mut row.order {
            *place = i64::try_from(self.versions).unwrap();
        }
        self.places.extend(row.order.map(|order| (row.id, order)));
        let twice = self.live.contains_key(&row.id) || self.finals.contains_key(&row.id);
        if twice {
            let text = format!("{} is live although it is in another place", short(row.id));
            self.broken(Invariant::Final, text);
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

    /// The same of a statement, where a problem is a violation.
    fn ends(&mut self, id: Uuid, to: Option<Final>) {
        if let Some(text) = self.end(id, to) {
            self.broken(Invariant::Final, text);
        }
    }

    pub(super) fn broken(&mut self, invariant: Invariant, text: String) {
        self.violations.push(Violation { invariant, text });
    }

    pub(super) fn check_fence(&mut self, what: &str, owner: Ownership, id: Uuid) {
        if !self.owns(owner) {
            let row = self.slot(owner.slot);
            let text = format!(
                "{what} of a stale owner {owner:?} changed {}; {row:?}",
                short(id)
            );
            self.broken(Invariant::Fence, text);
        }
    }

    pub(super) fn bury(&mut self, me: Incarnation, dead: &[Incarnation], view: View) -> Answer {
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
        Answer::Done
    }

    pub(super) fn take(
        &mut self,
        me: Incarnation,
        (candidates, workers): (&[(Slot, Epoch)], &BTreeSet<Incarnation>),
        now: OffsetDateTime,
    ) -> Answer {
        let blind = self.mutation == Mutation::BlindTakeOver;
        let mut taken = Vec::new();
        for (slot, epoch) in candidates {
            let row = self.slot_mut(*slot);
            let seems_free = blind && row.owner.is_none_or(|owner| !workers.contains(&owner));
            if row.epoch == *epoch || seems_free {
                let clean = row.epoch == Epoch(0) || row.released == Some(row.epoch);
                taken.push((*slot, clean));
            }
        }
        let taken: Vec<Taken> = taken
            .into_iter()
            .map(|(slot, clean)| self.taken_by(me, (slot, clean), now))
            .collect();
        if let Some(view) = self.at_death.remove(&me) {
            let views = taken
                .iter()
                .map(|it| ((it.slot, it.epoch), Rc::clone(&view)));
            self.before_take_over.extend(views);
        }
        Answer::Taken(taken)
    }

    fn reclaim(&mut self, me: Incarnation, slots: &[(Slot, Epoch)], now: OffsetDateTime) -> Answer {
        let mut taken = Vec::new();
        for (slot, epoch) in slots {
            let row = self.slot_mut(*slot);
            if row.owner == Some(me) && row.epoch == *epoch {
                taken.push(self.taken_by(me, (*slot, false), now));
            }
        }
        Answer::Taken(taken)
    }

    /// A slot changes hands.
    fn taken_by(
        &mut self,
        me: Incarnation,
        (slot, clean): (Slot, bool),
        now: OffsetDateTime,
    ) -> Taken {
        let mutation = self.mutation;
        let row = self.slot_mut(slot);
        row.owner = Some(me);
        row.epoch = Epoch(row.epoch.0 + 1);
        if !clean && mutation != Mutation::FullAfterCrash {
            row.emptied_at = Some(now);
        }
        Taken {
            slot,
            epoch: row.epoch,
            clean: clean || mutation == Mutation::AlwaysClean,
            at: now,
            emptied_at: row.emptied_at,
        }
    }

    fn release(&mut self, me: Incarnation, slots: &[(Slot, Epoch)], handed: &[Handed]) {
        for (slot, epoch) in slots {
            let row = self.slot_mut(*slot);
            if row.owner == Some(me) && row.epoch == *epoch {
                row.owner = None;
                row.released = Some(*epoch);
                let of_it = handed
                    .iter()
                    .filter(|it| (it.slot, it.epoch) == (*slot, *epoch));
                self.hand_over(of_it);
            }
        }
    }

    pub(super) fn close(
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
                self.broken(Invariant::Closed, text);
            }
            self.ends(*id, Some(Final::Closed(reason)));
            closed += 1;
        }
        Answer::Closed(Some(closed))
    }

    fn expire(
        &mut self,
        owner: Ownership,
        (fenced, rows): (bool, &[(Uuid, u64)]),
        now: OffsetDateTime,
    ) -> Answer {
        if !fenced {
            return Answer::Closed(None);
        }
        let mut expired = 0;
        for (id, version) in rows {
            let as_it_was = |row: &&Live| row.version == *version;
            let Some(row) = self.live.get(id).filter(as_it_was).cloned() else {
                continue;
            };
            self.live.remove(id);
            self.check_fence("an expiry", owner, *id);
            self.bury_letter(&row, DeadLetterClass::Expired, now);
            self.ends(*id, Some(Final::Dead(DeadLetterClass::Expired)));
            expired += 1;
        }
        Answer::Closed(Some(expired))
    }

    pub(super) fn make_due(&mut self, id: Uuid, at: OffsetDateTime) {
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
}
