//! The loader of a process, as in `worker::loader`; its answers are put together by the code under test.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::domain::endpoint::{Backoff, BreakerSettings, EndpointSettings};
use shared::ids::{EndpointId, EndpointKey, lower_bound};
use shared::store::endpoint_runtime::Runtime;
use uuid::Uuid;
use worker::endpoint_config::{EndpointConfig, SharedConfig, Target};
use worker::loader::{Known, Question, answers, failure, wants};
use worker::scheduler::{Input, LoadRequest};

use crate::store::{Answer, Endpoint, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MILLI, Micros, SECOND, World};

const READ_BUDGET: Micros = 8 * SECOND;

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
            Question::Revive(_) | Question::Outages(_) => Statement::Connect,
            Question::Expire(expire) => Statement::Expire {
                owner: expire.owner,
                endpoint: expire.endpoint,
                older_than: lower_bound(expire.older_than),
                except: expire.except.clone(),
            },
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
            (Question::Expire(expire), Some(Answer::Closed(expired))) => Input::Expired {
                slot: expire.owner.slot,
                epoch: expire.owner.epoch,
                endpoint: expire.endpoint,
                more: expired.is_some_and(|count| count > 0),
            },
            (Question::Revive(revive), Some(_)) => Input::Revived {
                slot: revive.owner.slot,
                epoch: revive.owner.epoch,
                endpoint: revive.endpoint,
                deliveries: Some(Vec::new()),
            },
            (Question::Outages(slots), Some(_)) => Input::Outages {
                slots,
                found: Some(Vec::new()),
            },
            (Question::Load(requests), Some(Answer::Endpoints(found))) => {
                return self.ask_rows(index, task, requests, &found);
            }
            (Question::Load(requests), Some(Answer::Rows(ready, retry))) => {
                let loader = self.loader(index, task);
                let configs = loader.configs.take().unwrap_or_default();
                let now = loader.due_by.unwrap();
                let history = requests.iter().filter(|request| request.history);
                let known = Known {
                    configs,
                    history: history.map(|it| (it.endpoint, Vec::new())).collect(),
                };
                Input::Loaded(answers(&requests, known, (ready, retry), now))
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
        let statement = Statement::Load {
            wants: wants(&requests),
            requests,
            due_by: now,
        };
        self.loader_asks(index, task, statement);
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
        backoff: Backoff::doubling(1, 4),
        max_in_flight: u16::try_from(key % 3 + 1).unwrap(),
        max_age_seconds: if key % 4 == 0 { 20 } else { 3_600 },
        breaker: BreakerSettings {
            failures: 3,
            cooldown_seconds: 3,
            max_cooldown_seconds: 12,
        },
        ..EndpointSettings::default()
    };
    EndpointConfig {
        key: endpoint.key,
        id: EndpointId(Uuid::from_u128(u128::try_from(key).unwrap())),
        version: endpoint.version,
        state: endpoint.state,
        settings,
        ordered: false,
        runtime: Runtime::default(),
        locked: false,
        target: Target {
            url: None,
            headers: http::HeaderMap::new(),
            secrets: Vec::new(),
        },
    }
}
