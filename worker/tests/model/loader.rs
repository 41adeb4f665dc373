//! The loader of a process, as in `worker::loader`; its answers are put together by the code under test.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::endpoint::{Backoff, BreakerSettings, EndpointSettings};
use shared::ids::{EndpointId, EndpointKey, Epoch, Slot, TenantKey, lower_bound};
use shared::store::endpoint_runtime::Runtime;
use shared::store::queue::{Lines, Row};
use time::OffsetDateTime;
use uuid::Uuid;
use worker::endpoint_config::{EndpointConfig, SharedConfig, Target};
use worker::lines;
use worker::loader::{Known, Question, answers, failure, wants};
use worker::scheduler::{Chore, Found, Input, LoadRequest, Revive};

use crate::check::Mutation;
use crate::order::is_ordered;
use crate::store::{Answer, Endpoint, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, MILLI, Micros, SECOND, World};

/// Charged to a delivery at most.
pub(crate) const MAX_ATTEMPTS: u16 = 4;
/// Short, so that it opens and closes many times in a run.
pub(crate) const BREAKER: BreakerSettings = BreakerSettings {
    failures: 3,
    cooldown_seconds: 3,
    max_cooldown_seconds: 12,
};

const READ_BUDGET: Micros = 8 * SECOND;

#[derive(Default)]
pub(crate) struct LoaderLoop {
    questions: VecDeque<Question>,
    current: Option<Question>,
    asked: CallId,
    began: Micros,
    configs: Option<HashMap<EndpointKey, SharedConfig>>,
    /// The rows of a load that still waits for attempts, the endpoints of a scan for those that are awake.
    rows: Option<(Vec<Row>, Vec<Row>)>,
    lines: Option<Lines>,
    found: Option<Vec<Found>>,
    due_by: Option<OffsetDateTime>,
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
            Question::Chore(chore) => self.chore(index, chore),
            Question::Load(requests) => {
                let unknown = requests.iter().filter(|request| request.config);
                Statement::Configs(unknown.map(|request| request.endpoint).collect())
            }
        };
        self.loader(index, task).current = Some(question);
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
                return self.ask_awake(index, task, slots, found);
            }
            (Question::Scan(slots), Some(Answer::Awake(awake))) => {
                let found = self.loader(index, task).found.take().unwrap_or_default();
                let found = with_awake(found, awake);
                Input::Scanned { slots, found, took }
            }
            (Question::Chore(chore), Some(answer)) => {
                match chore_done(chore, answer, self.mutation) {
                    Ok(input) => input,
                    Err(chore) => return self.loader_pauses(index, task, Question::Chore(chore)),
                }
            }
            (Question::Load(requests), Some(Answer::Endpoints(found))) => {
                return self.ask_rows(index, task, requests, &found);
            }
            (Question::Load(requests), Some(Answer::Rows(ready, retry))) => {
                self.loader(index, task).rows = Some((ready, retry));
                if requests.iter().any(|request| request.lines.is_some()) {
                    return self.ask_lines(index, task, requests);
                }
                match self.ask_history(index, task, requests) {
                    Some(requests) => self.answers(index, task, &requests, HashMap::new()),
                    None => return,
                }
            }
            (Question::Load(requests), Some(Answer::Lines(lines))) => {
                self.loader(index, task).lines = Some(lines);
                match self.ask_history(index, task, requests) {
                    Some(requests) => self.answers(index, task, &requests, HashMap::new()),
                    None => return,
                }
            }
            (Question::Load(requests), Some(Answer::History(history))) => {
                self.answers(index, task, &requests, history)
            }
            (question, _) => return self.loader_pauses(index, task, question),
        };
        self.input(index, input);
        self.next_question(index, task);
    }

    fn answers(
        &mut self,
        index: usize,
        task: Task,
        requests: &[LoadRequest],
        history: HashMap<EndpointKey, Vec<(Outcome, OffsetDateTime)>>,
    ) -> Input {
        let loader = self.loader(index, task);
        let configs = loader.configs.take().unwrap_or_default();
        let rows = loader.rows.take().unwrap_or_default();
        let in_line = loader.lines.take().unwrap_or_default();
        let now = loader.due_by.unwrap();
        let (asked, _) = lines::wants(requests, &configs);
        let mut answers = answers(requests, Known { configs, history }, rows, now);
        lines::hand_out(&mut answers, requests, (&asked, in_line), now);
        Input::Loaded(answers)
    }

    /// Heads of lines come in a later statement than the other rows.
    fn ask_lines(&mut self, index: usize, task: Task, requests: Vec<LoadRequest>) {
        let loader = self.loader(index, task);
        let none = HashMap::new();
        let configs = loader.configs.as_ref().unwrap_or(&none);
        let (_, wants) = lines::wants(&requests, configs);
        let due_by = loader.due_by.unwrap();
        loader.current = Some(Question::Load(requests));
        self.loader_asks(index, task, Statement::Lines { wants, due_by });
    }

    /// Attempts come last; gives the requests back if none are wanted.
    fn ask_history(
        &mut self,
        index: usize,
        task: Task,
        requests: Vec<LoadRequest>,
    ) -> Option<Vec<LoadRequest>> {
        let asked = requests.iter().filter(|request| request.history);
        let asked: Vec<_> = asked.map(|request| request.endpoint).collect();
        if asked.is_empty() {
            return Some(requests);
        }
        self.loader(index, task).current = Some(Question::Load(requests));
        self.loader_asks(index, task, Statement::History(asked));
        None
    }

    /// Rows were found; who must be looked after without any comes in a later statement.
    fn ask_awake(
        &mut self,
        index: usize,
        task: Task,
        slots: Vec<(Slot, Epoch)>,
        found: Vec<Found>,
    ) {
        let numbers = slots.iter().map(|(slot, _)| *slot).collect();
        let loader = self.loader(index, task);
        loader.found = Some(found);
        loader.current = Some(Question::Scan(slots));
        self.loader_asks(index, task, Statement::Awake(numbers));
    }

    fn chore(&mut self, index: usize, chore: &Chore) -> Statement {
        match chore {
            Chore::Close(close) => Statement::Close {
                owner: close.owner,
                endpoint: close.endpoint,
                reason: close.reason,
                except: close.except.clone(),
            },
            Chore::Revive(revive) => self.revive(index, revive),
            Chore::FindOutages { slots, taken_at } => {
                let slots = slots.iter().map(|(slot, _)| *slot);
                Statement::Outages(slots.collect(), *taken_at)
            }
            Chore::Park(park) => unreachable!("nothing is paused here: {park:?}"),
            Chore::Expire(expire) => Statement::Expire {
                owner: expire.owner,
                endpoint: expire.endpoint,
                older_than: lower_bound(expire.older_than),
                except: expire.except.clone(),
            },
        }
    }

    fn revive(&mut self, index: usize, revive: &Revive) -> Statement {
        let boot = self.boot_time(index);
        let now = self.processes[index].clock.at(boot);
        let mut ids: Vec<Uuid> = (0..revive.count).map(|_| self.new_id(now)).collect();
        ids.sort_unstable();
        Statement::Revive {
            owner: revive.owner,
            endpoint: revive.endpoint,
            window: revive.window,
            ids,
        }
    }

    /// The configuration was read, the rows come in a later statement.
    fn ask_rows(
        &mut self,
        index: usize,
        task: Task,
        requests: Vec<LoadRequest>,
        found: &[(Endpoint, Runtime)],
    ) {
        let boot = self.boot_time(index);
        let now = self.processes[index].clock.at(boot);
        let configs = found
            .iter()
            .map(|(endpoint, runtime)| (endpoint.key, Arc::new(config(endpoint, runtime))));
        let loader = self.loader(index, task);
        loader.configs = Some(configs.collect());
        loader.rows = None;
        loader.lines = None;
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

fn with_awake(found: Vec<Found>, awake: Vec<(Slot, EndpointKey, TenantKey)>) -> Vec<Found> {
    let mut found: BTreeMap<EndpointKey, Found> =
        found.into_iter().map(|it| (it.endpoint, it)).collect();
    for (slot, endpoint, tenant) in awake {
        let new = Found {
            slot,
            endpoint,
            tenant,
            ready: false,
            next_due: None,
            lines: false,
            awake: false,
        };
        found.entry(endpoint).or_insert(new).awake = true;
    }
    found.into_values().collect()
}

/// Limits differ by endpoint, so that each of them is met somewhere.
fn config(endpoint: &Endpoint, runtime: &Runtime) -> EndpointConfig {
    let key = endpoint.key.0;
    let settings = EndpointSettings {
        timeout_ms: 2_000,
        max_attempts: MAX_ATTEMPTS,
        backoff: Backoff::doubling(1, 4),
        max_in_flight: u16::try_from(key % 3 + 1).unwrap(),
        max_age_seconds: if key % 4 == 0 { 20 } else { 3_600 },
        rate_limit: endpoint.rate_limit,
        breaker: BREAKER,
        ..EndpointSettings::default()
    };
    EndpointConfig {
        key: endpoint.key,
        id: EndpointId(Uuid::from_u128(u128::try_from(key).unwrap())),
        version: endpoint.version,
        state: endpoint.state,
        settings,
        ordered: is_ordered(endpoint.key),
        runtime: runtime.clone(),
        locked: false,
        target: Target::none(),
    }
}

/// What the scheduler is told; the chore again, if that is no answer to it.
fn chore_done(chore: Chore, answer: Answer, mutation: Mutation) -> Result<Input, Chore> {
    Ok(match (chore, answer) {
        (Chore::Close(close), Answer::Closed(closed)) => Input::Closed {
            slot: close.owner.slot,
            epoch: close.owner.epoch,
            endpoint: close.endpoint,
            more: closed.is_some_and(|count| count > 0),
        },
        (Chore::Expire(expire), Answer::Closed(expired)) => Input::Expired {
            slot: expire.owner.slot,
            epoch: expire.owner.epoch,
            endpoint: expire.endpoint,
            more: expired.is_some_and(|count| count > 0),
        },
        (Chore::Revive(revive), Answer::Revived(deliveries)) => Input::Revived {
            slot: revive.owner.slot,
            epoch: revive.owner.epoch,
            endpoint: revive.endpoint,
            deliveries,
        },
        (Chore::FindOutages { slots, .. }, Answer::Outages(found)) => Input::Outages {
            slots,
            found: Some(if mutation == Mutation::OutagesForgotten {
                Vec::new()
            } else {
                found
            }),
        },
        (chore, _) => return Err(chore),
    })
}
