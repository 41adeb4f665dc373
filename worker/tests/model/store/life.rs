//! The life of a statement: begin, lock, commit or roll back.

use shared::ids::Incarnation;
use time::OffsetDateTime;
use worker::job::Ownership;

use super::{Answer, Execution, Snapshot, Statement, Store, ran_out};
use crate::check::Mutation;

impl Store {
    pub(crate) fn begin(&mut self, statement: Statement, now: OffsetDateTime) -> Execution {
        let snapshot = self.snapshot(&statement, now);
        let none = None;
        Execution {
            statement,
            snapshot,
            shares: none,
            excludes: vec![],
            updates: none,
            began: now,
            at: now,
        }
    }

    /// Takes the locks; `false`: something is in the way, ask again when anything committed.
    pub(crate) fn lock(&mut self, execution: &mut Execution, now: OffsetDateTime) -> bool {
        execution.at = now;
        match &execution.statement {
            Statement::Record(..) if self.is_unfenced() => true,
            Statement::Record(me, _)
            | Statement::Close {
                owner: Ownership {
                    incarnation: me, ..
                },
                ..
            }
            | Statement::Expire {
                owner: Ownership {
                    incarnation: me, ..
                },
                ..
            }
            | Statement::Revive {
                owner: Ownership {
                    incarnation: me, ..
                },
                ..
            }
            | Statement::Save(me, _)
            | Statement::MakeDue(me, ..)
            | Statement::RemoveCommands(me, _) => {
                if !self.workers.contains_key(me) {
                    return true;
                }
                let locks = self.locks.entry(*me).or_default();
                if locks.exclusive {
                    return false;
                }
                locks.shares += 1;
                execution.shares = Some(*me);
                self.look_again(execution);
                self.hold_dead_letters(execution);
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
            Statement::Release(me, ..) | Statement::Reclaim(me, _) | Statement::Leave(me) => {
                let me = *me;
                !self.workers.contains_key(&me) || self.exclude(execution, me)
            }
            Statement::DeclareDead(_) => self.lock_the_dead(execution, now),
            _ => true,
        }
    }

    /// SHARE on the slot: a row that was changed since the snapshot is read again.
    pub(super) fn look_again(&self, execution: &mut Execution) {
        if let Statement::Close { owner, .. } | Statement::Expire { owner, .. } =
            &execution.statement
            && let Snapshot::Closing { fenced, .. } = &mut execution.snapshot
        {
            *fenced &= self.holds(*owner);
        }
    }

    pub(super) fn exclude(&mut self, execution: &mut Execution, worker: Incarnation) -> bool {
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
    pub(super) fn lock_the_dead(&mut self, execution: &mut Execution, now: OffsetDateTime) -> bool {
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

    pub(super) fn unlock(&mut self, execution: &Execution) {
        self.let_go_of_dead_letters(&execution.snapshot);
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
        self.unlock(&execution);
        let snapshot = std::mem::replace(&mut execution.snapshot, Snapshot::Nothing);
        self.write(&execution, snapshot, now)
    }
}
