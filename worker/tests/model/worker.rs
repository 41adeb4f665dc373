//! A worker process: the real scheduler in a simulated shell, as `engine` is its real one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use shared::ids::{EndpointKey, Incarnation, Slot};
use shared::runtime::clock::{BootTime, DatabaseClock};
use uuid::Uuid;
use worker::job::{Job, Record};
use worker::loader::Question;
use worker::scheduler::{Chore, Effect, Input, Now, Scheduler, SchedulerSettings};

use crate::check::Mutation;
use crate::commands::CommandsLoop;
use crate::lease::LeaseLoop;
use crate::loader::LoaderLoop;
use crate::recorder::RecorderLoop;
use crate::store::{Answer, Statement, short};
use crate::transitions::TransitionsLoop;
use crate::world::{CallId, Event, Life, MARGIN, MILLI, Micros, SECOND, TTL, World};

/// Permits of a worker.
pub(crate) const MOST_IN_FLIGHT: usize = 10;
/// Few rows and bytes in memory, so that these bounds are met.
const MOST_LOADED: usize = 14;
const MOST_LOADED_BYTES: usize = 2_500;

/// Who waits for an answer or a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Lease,
    Loads,
    Scans,
    Recorder,
    Commands,
    Transitions,
    /// The charge of a suspect, before it is sent.
    Suspect,
}

pub(crate) struct Process {
    pub(crate) life: u64,
    pub(crate) alive: bool,
    pub(crate) frozen_until: Micros,
    pub(crate) boot: Duration,
    pub(crate) scheduler: Scheduler,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) turn_due: bool,
    /// When it last looked for requests that are out for long.
    pub(crate) looked_at: BootTime,
    pub(crate) draining: bool,
    /// When it was last asked to give up slots.
    pub(crate) leaves_since: BootTime,
    /// Hears notifications.
    pub(crate) listens: bool,
    /// What the heartbeat lists.
    pub(crate) in_flight: Vec<Uuid>,
    /// As the test knows it: who this process is and until when it may start requests.
    pub(crate) lease_known: (Option<Incarnation>, BootTime),
    pub(crate) lease: LeaseLoop,
    pub(crate) loads: LoaderLoop,
    pub(crate) scans: LoaderLoop,
    pub(crate) recorder: RecorderLoop,
    pub(crate) commands: CommandsLoop,
    pub(crate) transitions: TransitionsLoop,
    chores: VecDeque<Chore>,
    chore_out: bool,
    suspects: Vec<(CallId, Box<Job>)>,
    mutation: Mutation,
}

impl Process {
    pub(crate) fn new(boot: Duration, mutation: Mutation) -> Self {
        Self {
            life: 0,
            alive: false,
            frozen_until: 0,
            boot,
            scheduler: Scheduler::new(settings(mutation)),
            clock: Arc::new(DatabaseClock::new()),
            inbox: VecDeque::new(),
            turn_due: false,
            looked_at: BootTime(Duration::ZERO),
            draining: false,
            leaves_since: BootTime(Duration::ZERO),
            listens: false,
            in_flight: Vec::new(),
            lease_known: (None, BootTime(Duration::ZERO)),
            lease: LeaseLoop::default(),
            loads: LoaderLoop::default(),
            scans: LoaderLoop::default(),
            recorder: RecorderLoop::default(),
            commands: CommandsLoop::default(),
            transitions: TransitionsLoop::default(),
            chores: VecDeque::new(),
            chore_out: false,
            suspects: Vec::new(),
            mutation,
        }
    }
}

fn settings(mutation: Mutation) -> SchedulerSettings {
    let endless = mutation == Mutation::EndlessLease;
    SchedulerSettings {
        max_in_flight: MOST_IN_FLIGHT,
        max_loaded: MOST_LOADED,
        max_loaded_bytes: MOST_LOADED_BYTES,
        lease_ttl: if endless {
            Duration::from_secs(86_400)
        } else {
            TTL
        },
        lease_margin: MARGIN,
    }
}

impl World {
    /// The program starts.
    pub(crate) fn start(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.alive {
            return;
        }
        let next = process.life + 1;
        *process = Process {
            life: next,
            alive: true,
            ..Process::new(process.boot, process.mutation)
        };
        self.counts.lives += 1;
        self.tell(|| format!("w{index} starts"));
        let life = (index, next);
        self.after(MILLI, Event::Tick(life));
        let listens = self.chance.between(1, 50) * MILLI;
        self.after(listens, Event::Listens(life));
        self.connect_lease(index);
        self.poll_commands(index);
    }

    pub(crate) fn drain(&mut self, index: usize) {
        if !self.processes[index].alive || self.processes[index].draining {
            return;
        }
        self.tell(|| format!("w{index} drains"));
        self.processes[index].draining = true;
        self.input(index, Input::Drain);
        self.wake_lease(index);
    }

    // ## The engine

    /// Something for the scheduler; its turn comes soon.
    pub(crate) fn input(&mut self, index: usize, input: Input) {
        let process = &mut self.processes[index];
        // SIGTERM is noticed beside the inbox, not behind it.
        if matches!(input, Input::Drain) {
            process.inbox.push_front(input);
        } else {
            process.inbox.push_back(input);
        }
        if !std::mem::replace(&mut process.turn_due, true) {
            let life = (index, process.life);
            let delay = if self.chance.happens(20) {
                50 * MILLI
            } else {
                self.chance.between(20, 800)
            };
            self.after(delay, Event::Turn(life));
        }
    }

    pub(crate) fn tick(&mut self, life: Life) {
        let delay = self.chance.between(20, 60) * MILLI;
        self.after(delay, Event::Tick(life));
        let boot = self.boot_time(life.0);
        let process = &mut self.processes[life.0];
        let behind = process
            .recorder
            .since
            .is_some_and(|since| self.now - since > 5 * SECOND);
        process.inbox.push_back(Input::RecordingBehind(behind));
        process.inbox.push_back(Input::Tick);
        process.looked_at = boot;
        let before = BootTime(boot.0.saturating_sub(Duration::from_millis(500)));
        process.in_flight = process.scheduler.in_flight_since(before);
        process.in_flight.sort_unstable();
        self.turn(life.0);
    }

    pub(crate) fn turn(&mut self, index: usize) {
        let boot = self.boot_time(index);
        let process = &mut self.processes[index];
        process.turn_due = false;
        let now = Now {
            boot,
            database: process.clock.at(boot),
        };
        for input in std::mem::take(&mut process.inbox) {
            if is_chore_done(&input) {
                self.processes[index].chore_out = false;
            }
            if let Input::Recorded(records) = &input {
                let keys = self.keys_of(index, records);
                for key in keys {
                    self.acknowledged(key);
                }
            }
            if let Input::Release { .. } | Input::Drain = &input {
                self.processes[index].leaves_since = boot;
                self.see_leaving(index);
            }
            self.processes[index].scheduler.handle(input, now);
        }
        for effect in self.processes[index].scheduler.effects(now) {
            self.execute(index, effect);
        }
        self.next_chore(index);
        self.end_drain(index);
    }

    fn execute(&mut self, index: usize, effect: Effect) {
        match effect {
            Effect::Send(job) => {
                self.check_policy(index, &job);
                if job.suspect {
                    self.charge(index, job);
                } else {
                    self.send(index, job);
                }
            }
            Effect::Load(requests) => self.ask(index, Task::Loads, Question::Load(requests)),
            Effect::Scan(slots) => self.ask(index, Task::Scans, Question::Scan(slots)),
            Effect::Settle(record) => self.hand_to_recorder(index, *record),
            Effect::Chore(chore) => {
                let waiting = &mut self.processes[index].chores;
                match chore {
                    Chore::Close(_) | Chore::Expire(_) | Chore::Park(_) => waiting.push_back(chore),
                    Chore::Revive(_) | Chore::FindOutages { .. } => waiting.push_front(chore),
                }
            }
            Effect::Change(change) => {
                self.see_change(&change);
                self.put_change(index, *change);
            }
            Effect::Release(slots) => self.give_up(index, slots),
        }
    }

    fn next_chore(&mut self, index: usize) {
        if self.processes[index].chore_out {
            return;
        }
        if let Some(chore) = self.processes[index].chores.pop_front() {
            self.processes[index].chore_out = true;
            self.ask(index, Task::Scans, Question::Chore(chore));
        }
    }

    /// A process that drained and left ends, and is started again like any other.
    fn end_drain(&mut self, index: usize) {
        let process = &self.processes[index];
        let over = process.draining && process.scheduler.sent() == 0 && process.lease.has_left();
        if over && process.recorder.is_idle() && process.transitions.is_idle() {
            self.tell(|| format!("w{index} has drained"));
            self.end_life(index);
        }
    }

    // ## Suspects

    fn charge(&mut self, index: usize, job: Box<Job>) {
        let left = job.start_before.since(self.boot_time(index));
        let budget = u64::try_from(left.as_micros()).unwrap().min(5 * SECOND);
        let statement = Statement::ChargeSuspect(job.row.id);
        let call = self.call(index, Task::Suspect, statement, budget.saturating_sub(1));
        self.processes[index].suspects.push((call, job));
    }

    fn charged(&mut self, index: usize, call: CallId) {
        let suspects = &mut self.processes[index].suspects;
        if let Some(at) = suspects.iter().position(|(id, _)| *id == call) {
            let (_, job) = suspects.remove(at);
            if self.boot_time(index) < job.start_before {
                return self.send(index, job);
            }
            let (owner, endpoint, delivery) = (job.owner, job.endpoint.key, job.row.id);
            self.policy.off_the_wire(owner, delivery);
            self.tell(|| format!("w{index} does not send {}, it is too late", short(delivery)));
            self.input(
                index,
                Input::NotSent {
                    owner,
                    endpoint,
                    delivery,
                },
            );
        }
    }

    // ## Who hears what

    pub(crate) fn hear(&mut self, index: usize, task: Task, call: CallId, answer: Option<Answer>) {
        match task {
            Task::Lease => self.lease_hears(index, call, answer),
            Task::Loads | Task::Scans => self.loader_hears(index, task, call, answer),
            Task::Recorder => self.recorder_hears(index, call, answer),
            Task::Commands => self.commands_hear(index, call, answer),
            Task::Transitions => self.transitions_hear(index, call, answer),
            Task::Suspect => self.charged(index, call),
        }
    }

    pub(crate) fn timer(&mut self, index: usize, task: Task, number: u64) {
        match task {
            Task::Lease => self.lease_timer(index, number),
            Task::Loads | Task::Scans => self.loader_timer(index, task),
            Task::Recorder => self.recorder_timer(index),
            Task::Commands => self.commands_timer(index, number),
            Task::Transitions => self.transitions_timer(index),
            Task::Suspect => {}
        }
    }

    pub(crate) fn hint(&mut self, index: usize, pairs: Vec<(Slot, EndpointKey)>) {
        if self.processes[index].listens {
            self.input(index, Input::Hint(pairs));
        }
    }

    /// The listening connection is (back) there.
    pub(crate) fn listens(&mut self, index: usize) {
        if self.faults.database_away || self.faults.cut_off[index] {
            let life = (index, self.processes[index].life);
            let delay = self.chance.between(100, 1_000) * MILLI;
            self.after(delay, Event::Listens(life));
            return;
        }
        self.processes[index].listens = true;
        self.input(index, Input::ScanAll);
        self.wake_commands(index);
    }

    pub(crate) fn hand_to_recorder(&mut self, index: usize, record: Record) {
        self.processes[index].recorder.queue.push_back(record);
        self.record_next(index);
    }
}

/// The answer to a chore: the next one may be asked.
const fn is_chore_done(input: &Input) -> bool {
    matches!(
        input,
        Input::Closed { .. }
            | Input::Revived { .. }
            | Input::Expired { .. }
            | Input::Outages { .. }
    )
}
