//! The recorder of a process, as in `worker::recorder`.

use std::collections::VecDeque;

use shared::ids::{EndpointKey, Incarnation, Slot};
use shared::policy::decide::Decision;
use uuid::Uuid;
use worker::job::Record;
use worker::scheduler::{Input, Recorded};

use crate::receiver::FlightKey;
use crate::store::{Answer, Outcome, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MILLI, Micros, SECOND, World};

const RECORD_BUDGET: Micros = 8 * SECOND;

#[derive(Default)]
pub(crate) struct RecorderLoop {
    pub(crate) queue: VecDeque<Record>,
    /// Since when the batch at hand is tried.
    pub(crate) since: Option<Micros>,
    /// By life, and whether their rows stand in a line: one statement each.
    lives: VecDeque<(Incarnation, Vec<Record>)>,
    asked: CallId,
    stage: Stage,
    /// Of the records at hand, those that changed something.
    applied: Vec<Uuid>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Writing,
    Clearing,
    Disabling(Slot, EndpointKey),
}

impl RecorderLoop {
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lives.is_empty()
    }
}

impl World {
    pub(crate) fn record_next(&mut self, index: usize) {
        let now = self.now;
        let recorder = &mut self.processes[index].recorder;
        if !recorder.lives.is_empty() || recorder.queue.is_empty() {
            return;
        }
        recorder.since = Some(now);
        for record in recorder.queue.drain(..) {
            let life = record.owner.incarnation;
            let alike = |(other, records): &&mut (Incarnation, Vec<Record>)| {
                *other == life && records.iter().all(|it| it.in_line == record.in_line)
            };
            match recorder.lives.iter_mut().find(alike) {
                Some((_, records)) => records.push(record),
                None => recorder.lives.push_back((life, vec![record])),
            }
        }
        self.write_records(index);
    }

    fn write_records(&mut self, index: usize) {
        let recorder = &mut self.processes[index].recorder;
        recorder.stage = Stage::Writing;
        let Some((life, records)) = recorder.lives.front() else {
            recorder.since = None;
            return self.record_next(index);
        };
        let statement = Statement::Record(*life, records.iter().map(outcome).collect());
        self.recorder_asks(index, statement);
    }

    fn recorder_asks(&mut self, index: usize, statement: Statement) {
        let call = self.call(index, Task::Recorder, statement, RECORD_BUDGET);
        self.processes[index].recorder.asked = call;
    }

    pub(crate) fn recorder_hears(&mut self, index: usize, call: CallId, answer: Option<Answer>) {
        if self.processes[index].recorder.asked != call {
            return;
        }
        let stage = self.processes[index].recorder.stage;
        match (stage, answer) {
            // Nobody knows whether it took effect: submitted again.
            (Stage::Writing, None) => {
                let life = (index, self.processes[index].life);
                let pause = self.chance.between(25, 1_000) * MILLI;
                self.after(pause, Event::Timer(life, Task::Recorder, 0));
            }
            (Stage::Writing, Some(Answer::Applied(applied))) => {
                self.processes[index].recorder.applied = applied;
                self.clear_suspects(index);
            }
            (Stage::Writing, Some(_)) => {}
            (Stage::Clearing, _) => self.disable(index),
            (Stage::Disabling(slot, endpoint), answer) => {
                if answer.is_some() {
                    self.input(index, Input::Reload { slot, endpoint });
                }
                self.recorded(index);
            }
        }
    }

    pub(crate) fn recorder_timer(&mut self, index: usize) {
        self.write_records(index);
    }

    fn clear_suspects(&mut self, index: usize) {
        let recorder = &mut self.processes[index].recorder;
        let Some((_, records)) = recorder.lives.front() else {
            return;
        };
        let applied = &recorder.applied;
        let cleared = |record: &&Record| record.suspect && applied.contains(&record.delivery);
        let ids: Vec<Uuid> = records
            .iter()
            .filter(cleared)
            .map(|record| record.delivery)
            .collect();
        if ids.is_empty() {
            return self.disable(index);
        }
        recorder.stage = Stage::Clearing;
        self.recorder_asks(index, Statement::ClearSuspects(ids));
    }

    fn disable(&mut self, index: usize) {
        let recorder = &mut self.processes[index].recorder;
        let Some((_, records)) = recorder.lives.front() else {
            return;
        };
        let applied = &recorder.applied;
        let gone = records.iter().find(|record| {
            matches!(record.decision, Decision::DisableEndpoint(_))
                && applied.contains(&record.delivery)
        });
        let Some(record) = gone else {
            return self.recorded(index);
        };
        let (slot, endpoint) = (record.owner.slot, record.endpoint);
        let version = record
            .attempt
            .as_ref()
            .map_or(0, |attempt| attempt.endpoint_version);
        recorder.stage = Stage::Disabling(slot, endpoint);
        self.recorder_asks(index, Statement::Disable(endpoint, version));
    }

    fn recorded(&mut self, index: usize) {
        let recorder = &mut self.processes[index].recorder;
        let Some((_, records)) = recorder.lives.pop_front() else {
            return;
        };
        let recorded = records.iter().map(|record| Recorded {
            owner: record.owner,
            endpoint: record.endpoint,
            delivery: record.delivery,
            next_due: match record.decision {
                Decision::RetryAt(at) => Some(at),
                _ => None,
            },
            observed: record.observed,
            dead: matches!(record.decision, Decision::DeadLetter(_)),
        });
        let input = Input::Recorded(recorded.collect());
        self.input(index, input);
        self.write_records(index);
    }

    /// The requests that these records are about.
    pub(crate) fn keys_of(&self, index: usize, records: &[Recorded]) -> Vec<FlightKey> {
        let life = (index, self.processes[index].life);
        let is_one = |key: &FlightKey| {
            records.iter().any(|record| {
                record.delivery == key.0
                    && record.owner.incarnation == key.1
                    && record.owner.epoch == key.2
            })
        };
        let flights = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.life == life);
        flights.map(|(key, _)| *key).filter(is_one).collect()
    }
}

fn outcome(record: &Record) -> Outcome {
    Outcome {
        owner: record.owner,
        endpoint: record.endpoint,
        delivery: record.delivery,
        outcome: record.outcome,
        started_at: record.attempt.as_ref().map(|attempt| attempt.started_at),
        before: record.attempts_before,
        made: record.attempts_before + u16::from(record.attempt.is_some()),
        charged: record.attempts_charged,
        decision: record.decision,
    }
}
