//! What changed about endpoints, written beside everything else, as in `worker::transitions`.

use std::collections::BTreeMap;

use shared::ids::{EndpointKey, Incarnation, Slot};
use worker::transitions::Change;

use crate::store::{Answer, Saved, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MILLI, Micros, SECOND, World};

const SAVE_BUDGET: Micros = 5 * SECOND;

#[derive(Default)]
pub(crate) struct TransitionsLoop {
    /// Of each endpoint the latest.
    waiting: BTreeMap<EndpointKey, Change>,
    batch: Vec<Change>,
    /// Whose states are being saved.
    life: Option<Incarnation>,
    asked: CallId,
    pausing: bool,
}

impl TransitionsLoop {
    /// Whether every state that changed under these slots is saved.
    pub(crate) fn is_settled(&self, slots: &[Slot]) -> bool {
        let all = self.waiting.values().chain(&self.batch);
        let mut unsaved = all.filter(|change| change.runtime.is_some());
        !unsaved.any(|change| slots.contains(&change.owner.slot))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.batch.is_empty()
    }
}

/// A change, and what an earlier one left to be done.
fn after(earlier: Change, mut change: Change) -> Change {
    if earlier.owner == change.owner {
        change.runtime = change.runtime.or(earlier.runtime);
        change.disable = change.disable.or(earlier.disable);
        change.notices.extend(earlier.notices);
    }
    change
}

impl World {
    pub(crate) fn put_change(&mut self, index: usize, change: Change) {
        let waiting = &mut self.processes[index].transitions.waiting;
        let change = match waiting.remove(&change.endpoint) {
            Some(earlier) => after(earlier, change),
            None => change,
        };
        waiting.insert(change.endpoint, change);
        self.next_changes(index);
    }

    fn next_changes(&mut self, index: usize) {
        let it = &mut self.processes[index].transitions;
        if !it.batch.is_empty() || it.pausing {
            return;
        }
        it.batch = std::mem::take(&mut it.waiting).into_values().collect();
        self.save_changes(index);
    }

    /// The states of one life after the other; then what follows from them.
    fn save_changes(&mut self, index: usize) {
        let it = &mut self.processes[index].transitions;
        let unsaved = it.batch.iter().find(|change| change.runtime.is_some());
        let Some(life) = unsaved.map(|change| change.owner.incarnation) else {
            let notices = it.batch.drain(..).map(|change| change.notices.len());
            let notices: usize = notices.sum();
            self.counts.notices += u64::try_from(notices).unwrap();
            self.wake_hand_over(index);
            if !self.processes[index].transitions.waiting.is_empty() {
                self.next_changes(index);
            }
            return;
        };
        it.life = Some(life);
        let of_it = it.batch.iter().filter(|it| it.owner.incarnation == life);
        let states = of_it.filter_map(|change| {
            Some(Saved {
                owner: change.owner,
                endpoint: change.endpoint,
                runtime: change.runtime.clone()?,
            })
        });
        let statement = Statement::Save(life, states.collect());
        let call = self.call(index, Task::Transitions, statement, SAVE_BUDGET);
        self.processes[index].transitions.asked = call;
    }

    pub(crate) fn transitions_hear(&mut self, index: usize, call: CallId, answer: Option<Answer>) {
        let it = &mut self.processes[index].transitions;
        if it.asked != call {
            return;
        }
        if answer.is_some() {
            let life = it.life.take();
            let of_it = |change: &&mut Change| Some(change.owner.incarnation) == life;
            it.batch
                .iter_mut()
                .filter(of_it)
                .for_each(|change| change.runtime = None);
            return self.save_changes(index);
        }
        // Put back under what has changed since.
        for earlier in std::mem::take(&mut it.batch) {
            let change = match it.waiting.remove(&earlier.endpoint) {
                Some(later) => after(earlier, later),
                None => earlier,
            };
            it.waiting.insert(change.endpoint, change);
        }
        it.pausing = true;
        let life = (index, self.processes[index].life);
        let pause = self.chance.between(25, 1_000) * MILLI;
        self.after(pause, Event::Timer(life, Task::Transitions, 0));
    }

    pub(crate) fn transitions_timer(&mut self, index: usize) {
        self.processes[index].transitions.pausing = false;
        self.next_changes(index);
    }
}
