//! The loader, the recorder and the commands of a process, as in the modules of those names.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::domain::endpoint::{Backoff, EndpointSettings};
use shared::ids::{EndpointId, EndpointKey, Incarnation, Slot};
use shared::policy::decide::Decision;
use shared::store::commands::{Command, Verb};
use uuid::Uuid;
use worker::endpoint_config::{EndpointConfig, SharedConfig, Target};
use worker::job::Record;
use worker::loader::{Question, answers, failure};
use worker::scheduler::{Input, LoadRequest, Recorded};

use crate::receiver::FlightKey;
use crate::store::{Answer, Endpoint, Outcome, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MILLI, Micros, SECOND, World};

const READ_BUDGET: Micros = 8 * SECOND;
const RECORD_BUDGET: Micros = 8 * SECOND;
const COMMAND_BUDGET: Micros = 5 * SECOND;

#[derive(Default)]
pub(crate) struct LoaderLoop {
    questions: VecDeque<Question>,
    current: Option<Question>,
    asked: CallId,
    began: Micros,
    configs: Option<HashMap<EndpointKey, SharedConfig>>,
    due_by: Option<time::OffsetDateTime>,
    pausing: bool,
}

#[derive(Default)]
pub(crate) struct RecorderLoop {
    pub(crate) queue: VecDeque<Record>,
    /// Since when the batch at hand is tried.
    pub(crate) since: Option<Micros>,
    lives: VecDeque<(Incarnation, Vec<Record>)>,
    asked: CallId,
    stage: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Writing,
    Clearing,
    Disabling,
}

impl RecorderLoop {
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lives.is_empty()
    }
}

#[derive(Default)]
pub(crate) struct CommandsLoop {
    asked: CallId,
    timer: u64,
    found: Vec<Command>,
    next: usize,
    incarnation: Option<Incarnation>,
    stage: CommandStage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum CommandStage {
    #[default]
    Idle,
    Reading,
    MakingDue,
    Removing,
}

// ## The loader

impl World {
    fn loader(&mut self, index: usize, task: Task) -> &mut LoaderLoop {
        match task {
            Task::Scans => &mut self.processes[index].scans,
            _ => &mut self.processes[index].loads,
        }
    }

    pub(crate) fn ask(&mut self, index: usize, task: Task, question: Question) {
        let loader = self.loader(index, task);
        loader.questions.push_back(question);
        assert!(loader.questions.len() <= 4, "a question finds no room");
        self.next_question(index, task);
    }

    fn next_question(&mut self, index: usize, task: Task) {
        let now = self.now;
        let loader = self.loader(index, task);
        if loader.current.is_some() {
            return;
        }
        let Some(question) = loader.questions.pop_front() else {
            return;
        };
        loader.began = now;
        loader.configs = None;
        let statement = match &question {
            Question::Scan(slots) => Statement::Scan(slots.iter().map(|(slot, _)| *slot).collect()),
            Question::Close(close) => Statement::Close {
                owner: close.owner,
                endpoint: close.endpoint,
                reason: close.reason,
                except: close.except.clone(),
            },
            Question::Load(requests) => {
                let unknown = requests.iter().filter(|request| request.config);
                Statement::Configs(unknown.map(|request| request.endpoint).collect())
            }
        };
        loader.current = Some(question);
        self.loader_asks(index, task, statement);
    }

    fn loader_asks(&mut self, index: usize, task: Task, statement: Statement) {
        let call = self.call(index, task, statement, READ_BUDGET);
        self.loader(index, task).asked = call;
    }

    pub(crate) fn loader_hears(
        &mut self,
        index: usize,
        task: Task,
        call: CallId,
        answer: Option<Answer>,
    ) {
        let took = Duration::from_micros(self.now - self.loader(index, task).began);
        if self.loader(index, task).asked != call {
            return;
        }
        let Some(question) = self.loader(index, task).current.take() else {
            return;
        };
        let input = match (question, answer) {
            (Question::Scan(slots), Some(Answer::Found(found))) => {
                Input::Scanned { slots, found, took }
            }
            (Question::Close(close), Some(Answer::Closed(closed))) => Input::Closed {
                slot: close.owner.slot,
                epoch: close.owner.epoch,
                endpoint: close.endpoint,
                more: closed.is_some_and(|count| count > 0),
            },
            (Question::Load(requests), Some(Answer::Endpoints(found))) => {
                return self.ask_rows(index, task, requests, &found);
            }
            (Question::Load(requests), Some(Answer::Rows(ready, retry))) => {
                let loader = self.loader(index, task);
                let configs = loader.configs.take().unwrap_or_default();
                let now = loader.due_by.unwrap();
                Input::Loaded(answers(&requests, configs, (ready, retry), now))
            }
            (question, _) => return self.loader_pauses(index, task, question),
        };
        self.input(index, input);
        self.next_question(index, task);
    }

    /// The configuration was read, the rows come in a later statement.
    fn ask_rows(
        &mut self,
        index: usize,
        task: Task,
        requests: Vec<LoadRequest>,
        found: &[Endpoint],
    ) {
        let boot = self.boot_time(index);
        let now = self.processes[index].clock.at(boot);
        let configs = found
            .iter()
            .map(|endpoint| (endpoint.key, Arc::new(config(endpoint))));
        let loader = self.loader(index, task);
        loader.configs = Some(configs.collect());
        loader.due_by = Some(now);
        loader.current = Some(Question::Load(requests.clone()));
        self.loader_asks(index, task, Statement::Load(requests, now));
    }

    fn loader_pauses(&mut self, index: usize, task: Task, question: Question) {
        let loader = self.loader(index, task);
        loader.current = Some(question);
        loader.asked = 0;
        loader.pausing = true;
        let life = (index, self.processes[index].life);
        let pause = self.chance.between(100, 300) * MILLI;
        self.after(pause, Event::Timer(life, task, 0));
    }

    pub(crate) fn loader_timer(&mut self, index: usize, task: Task) {
        let loader = self.loader(index, task);
        if !std::mem::take(&mut loader.pausing) {
            return;
        }
        let Some(question) = loader.current.take() else {
            return;
        };
        self.input(index, failure(question));
        self.next_question(index, task);
    }
}

/// Limits differ by endpoint, so that each of them is met somewhere.
fn config(endpoint: &Endpoint) -> EndpointConfig {
    let key = endpoint.key.0;
    let settings = EndpointSettings {
        timeout_ms: 2_000,
        max_attempts: 4,
        backoff: Backoff {
            base_seconds: 1,
            max_seconds: 4,
        },
        max_in_flight: u16::try_from(key % 3 + 1).unwrap(),
        max_age_seconds: if key % 4 == 0 { 20 } else { 3_600 },
        ..EndpointSettings::default()
    };
    EndpointConfig {
        key: endpoint.key,
        id: EndpointId(Uuid::from_u128(u128::try_from(key).unwrap())),
        version: endpoint.version,
        state: endpoint.state,
        settings,
        locked: false,
        target: Target {
            url: None,
            headers: http::HeaderMap::new(),
            secrets: Vec::new(),
        },
    }
}

// ## The recorder

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
            match recorder.lives.iter_mut().find(|(other, _)| *other == life) {
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
            (Stage::Writing, Some(_)) => self.clear_suspects(index),
            (Stage::Clearing, _) => self.disable(index),
            (Stage::Disabling, _) => self.recorded(index),
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
        let suspects = records.iter().filter(|record| record.suspect);
        let ids: Vec<Uuid> = suspects.map(|record| record.delivery).collect();
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
        let gone = records
            .iter()
            .find(|record| matches!(record.decision, Decision::DisableEndpoint(_)));
        let Some(endpoint) = gone.map(|record| record.endpoint) else {
            return self.recorded(index);
        };
        recorder.stage = Stage::Disabling;
        self.recorder_asks(index, Statement::Disable(endpoint));
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
        delivery: record.delivery,
        before: record.attempts_before,
        made: record.attempts_before + u16::from(record.attempt.is_some()),
        charged: record.attempts_charged,
        decision: record.decision,
    }
}

// ## Commands

impl World {
    pub(crate) fn poll_commands(&mut self, index: usize) {
        let lease = &self.processes[index].lease;
        let slots: Vec<Slot> = lease.owned.iter().copied().collect();
        let incarnation = lease.incarnation();
        if incarnation.is_none() || slots.is_empty() {
            return self.commands_rest(index);
        }
        let commands = &mut self.processes[index].commands;
        commands.incarnation = incarnation;
        commands.stage = CommandStage::Reading;
        self.commands_ask(index, Statement::Commands(slots));
    }

    fn commands_ask(&mut self, index: usize, statement: Statement) {
        let call = self.call(index, Task::Commands, statement, COMMAND_BUDGET);
        self.processes[index].commands.asked = call;
    }

    fn commands_rest(&mut self, index: usize) {
        let number = self.number();
        let commands = &mut self.processes[index].commands;
        commands.stage = CommandStage::Idle;
        commands.timer = number;
        let life = (index, self.processes[index].life);
        self.after(SECOND, Event::Timer(life, Task::Commands, number));
    }

    pub(crate) fn commands_timer(&mut self, index: usize, number: u64) {
        let commands = &self.processes[index].commands;
        if commands.timer == number && commands.stage == CommandStage::Idle {
            self.poll_commands(index);
        }
    }

    pub(crate) fn wake_commands(&mut self, index: usize) {
        let timer = self.processes[index].commands.timer;
        self.commands_timer(index, timer);
    }

    pub(crate) fn commands_hear(&mut self, index: usize, call: CallId, answer: Option<Answer>) {
        let commands = &mut self.processes[index].commands;
        if commands.asked != call {
            return;
        }
        match (commands.stage, answer) {
            (CommandStage::Reading, Some(Answer::Commands(found))) if !found.is_empty() => {
                commands.found = found;
                commands.next = 0;
                self.execute_commands(index);
            }
            (CommandStage::MakingDue, Some(_)) => {
                let command = commands.found[commands.next];
                commands.next += 1;
                let (slot, endpoint, tenant) = (command.slot, command.endpoint, command.tenant);
                self.input(
                    index,
                    Input::RetriesDue {
                        slot,
                        endpoint,
                        tenant,
                    },
                );
                self.execute_commands(index);
            }
            _ => self.commands_rest(index),
        }
    }

    fn execute_commands(&mut self, index: usize) {
        let boot = self.boot_time(index);
        let process = &mut self.processes[index];
        let me = process.commands.incarnation.unwrap();
        let Some(command) = process.commands.found.get(process.commands.next).copied() else {
            let done = process
                .commands
                .found
                .iter()
                .map(|command| command.id)
                .collect();
            process.commands.stage = CommandStage::Removing;
            return self.commands_ask(index, Statement::RemoveCommands(me, done));
        };
        match command.verb {
            Verb::Reload => {
                process.commands.next += 1;
                let (slot, endpoint) = (command.slot, command.endpoint);
                self.input(index, Input::Reload { slot, endpoint });
                self.execute_commands(index);
            }
            Verb::RetryNow(delivery) => {
                process.commands.stage = CommandStage::MakingDue;
                let now = process.clock.at(boot);
                self.commands_ask(index, Statement::MakeDue(me, delivery, now));
            }
        }
    }
}
