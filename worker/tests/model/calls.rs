//! Calls to the database: statements on their way, under way, and answers that come, come late, or
//! do not come.

use crate::store::{Answer, Statement};
use crate::worker::Task;
use crate::world::{Call, CallId, Event, MILLI, Micros, SECOND, World};

impl World {
    /// Sends a statement. The task hears of it once: its answer, or nothing within the budget.
    pub(crate) fn call(
        &mut self,
        process: usize,
        task: Task,
        statement: Statement,
        budget: Micros,
    ) -> CallId {
        let id = self.number();
        let life = (process, self.processes[process].life);
        self.tell(|| format!("w{process} {task:?} asks {id}: {statement:?}"));
        let call = Call {
            life,
            task,
            statement: Some(statement),
            execution: None,
            waits: false,
            answered: false,
        };
        self.calls.insert(id, call);
        let delay = self.network();
        self.after(delay, Event::Arrive(id));
        self.after(budget, Event::GiveUp(id));
        id
    }

    fn network(&mut self) -> Micros {
        match self.chance.below(1_000) {
            0..=1 if !self.faults.stopped => self.chance.between(MILLI, 15 * SECOND),
            0..=20 => self.chance.between(MILLI, 80 * MILLI),
            _ => self.chance.between(80, 900),
        }
    }

    fn unreachable(&self, call: &Call) -> bool {
        self.faults.database_away || self.faults.cut_off[call.life.0]
    }

    pub(crate) fn arrive(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else {
            return;
        };
        if self.unreachable(call) {
            // Refused at once, or no answer at all.
            if self.chance.happens(700) {
                let delay = self.chance.between(MILLI, 400 * MILLI);
                self.after(delay, Event::Answer(id, None));
            }
            return;
        }
        let now = self.database_time();
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let Some(statement) = call.statement.take() else {
            return;
        };
        call.execution = Some(self.store.begin(statement, now));
        call.waits = true;
        self.lock(id);
    }

    fn lock(&mut self, id: CallId) {
        let now = self.database_time();
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let Some(execution) = &mut call.execution else {
            return;
        };
        if !call.waits || !self.store.lock(execution, now) {
            return;
        }
        call.waits = false;
        let slow = match &execution.statement {
            Statement::Record(..) | Statement::Close { .. } => self.faults.slow_records_until,
            Statement::Load { .. }
            | Statement::Scan(_)
            | Statement::Configs(_)
            | Statement::Outages(..)
            | Statement::Awake(_)
            | Statement::History(_)
            | Statement::Revive { .. } => self.faults.slow_reads_until,
            _ => 0,
        };
        let delay = if slow > self.now {
            self.chance.between(MILLI, 20 * SECOND)
        } else {
            match self.chance.below(1_000) {
                0..=2 if !self.faults.stopped => self.chance.between(MILLI, 25 * SECOND),
                0..=30 => self.chance.between(MILLI, 300 * MILLI),
                _ => self.chance.between(100, 4_000),
            }
        };
        self.after(delay, Event::Commit(id));
    }

    pub(crate) fn commit(&mut self, id: CallId) {
        let now = self.database_time();
        let Some(execution) = self
            .calls
            .get_mut(&id)
            .and_then(|call| call.execution.take())
        else {
            return;
        };
        let answer = self.store.commit(execution, now);
        self.tell(|| format!("database commits {id}: {answer:?}"));
        if let Answer::Taken(slots) = &answer {
            self.counts.take_overs += u64::try_from(slots.len()).unwrap();
        }
        let lost = !self.faults.stopped && self.chance.happens(12);
        if lost {
            self.counts.lost_answers += 1;
            self.tell(|| format!("the answer to {id} is lost"));
        }
        if lost
            || self
                .calls
                .get(&id)
                .is_some_and(|call| self.unreachable(call))
        {
            let delay = self.chance.between(MILLI, 400 * MILLI);
            self.after(delay, Event::Answer(id, None));
        } else {
            let delay = self.network();
            self.after(delay, Event::Answer(id, Some(answer)));
        }
        self.unblock();
    }

    /// Something committed: whoever waits for a lock asks again, the oldest first.
    fn unblock(&mut self) {
        let waiting: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, call)| call.waits)
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.lock(id);
        }
    }

    /// An answer, or the end of patience; a second one is not heard. The statement may live on.
    pub(crate) fn answered(&mut self, id: CallId, answer: Option<Answer>) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let (life, task) = (call.life, call.task);
        let heard = !std::mem::replace(&mut call.answered, true);
        if heard && self.lives(life) {
            self.hear(life.0, task, id, answer);
        }
        let over = |call: &Call| call.execution.is_none() && call.statement.is_none();
        if self.calls.get(&id).is_some_and(over) {
            self.calls.remove(&id);
        }
    }

    /// The database goes away: what is under way commits or does not, and nobody hears which.
    pub(crate) fn database_leaves(&mut self) {
        self.faults.database_away = true;
        self.counts.outages += 1;
        let ids: Vec<CallId> = self.calls.keys().copied().collect();
        for id in ids {
            let now = self.database_time();
            let Some(call) = self.calls.get_mut(&id) else {
                continue;
            };
            let Some(execution) = call.execution.take() else {
                continue;
            };
            let waits = std::mem::take(&mut call.waits);
            if waits || self.chance.happens(500) {
                self.store.abort(&execution);
                self.tell(|| format!("database rolls back {id}"));
            } else {
                let answer = self.store.commit(execution, now);
                self.tell(|| format!("database commits {id} as it leaves: {answer:?}"));
            }
            let delay = self.chance.between(MILLI, 400 * MILLI);
            self.after(delay, Event::Answer(id, None));
        }
    }

    pub(crate) fn database_back(&mut self) {
        self.faults.database_away = false;
        if self.chance.happens(300) {
            self.database_ahead += i64::try_from(self.chance.below(2 * SECOND)).unwrap();
        }
        self.tell(|| "the database is back".to_owned());
        self.everyone_listens();
    }
}
