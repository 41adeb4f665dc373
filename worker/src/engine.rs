//! The engine: the thin shell around the [`Scheduler`](crate::scheduler). One task; it waits for
//! what happens, asks the scheduler what to do, and hands that to those who do it. It never waits for
//! any of them: everything it hands out is bounded by permits or by one question at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shared::runtime::clock::{BootTime, DatabaseClock, boot_time};
use shared::runtime::spawn_driver;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::deliver::{Context, deliver};
use crate::job::{Job, Record};
use crate::loader::Question;
use crate::metrics;
use crate::recorder::RecordLag;
use crate::scheduler::{Chore, Effect, Input, Leaving, Now, Scheduler};
use crate::suspects::Suspects;
use crate::transitions::Changes;

/// How often it is looked around at least.
const TICK: Duration = Duration::from_millis(20);
/// How exact due times are.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// What is on the wire this long is listed in the heartbeat, and shown as `in_flight`.
const LISTED_AFTER: Duration = Duration::from_millis(500);
/// No request starts while an outcome has been waiting this long to be recorded.
const MOST_RECORD_LAG: Duration = Duration::from_secs(5);

/// See the module.
pub struct Engine {
    /// The state machine.
    pub scheduler: Scheduler,
    /// What happens.
    pub inputs: mpsc::Receiver<Input>,
    /// Rows and configurations; room for all loads under way.
    pub loads: mpsc::Sender<Question>,
    /// Scans, and closing; room for one of each.
    pub scans: mpsc::Sender<Question>,
    /// Slots to give up; room for all of them.
    pub releases: mpsc::Sender<Vec<Leaving>>,
    /// For outcomes without a request; has room for every permit.
    pub records: mpsc::Sender<Record>,
    /// For requests.
    pub context: Arc<Context>,
    /// For requests that may kill us.
    pub suspects: Arc<Suspects>,
    /// Estimated database time.
    pub clock: Arc<DatabaseClock>,
    /// What the heartbeat lists.
    pub in_flight: Arc<Mutex<Vec<Uuid>>>,
    /// When that was written.
    pub listed_at: BootTime,
    /// Watched.
    pub lag: Arc<RecordLag>,
    /// Chores that somebody waits for, and the others; one at a time.
    pub urgent: VecDeque<Chore>,
    /// See `urgent`.
    pub chores: VecDeque<Chore>,
    /// Counts turns.
    pub chore_turn: u8,
    /// One is under way.
    pub chore_out: bool,
    /// What changed about endpoints, to be stored and told.
    pub changes: Arc<Changes>,
}

impl Engine {
    /// Runs until `drain` was asked for and everything is recorded and handed over, or until `stop`.
    pub async fn run(mut self, drain: CancellationToken, stop: CancellationToken) {
        self.work(drain, stop).await;
        self.changes.close();
    }

    async fn work(&mut self, drain: CancellationToken, stop: CancellationToken) {
        let mut inputs = Vec::with_capacity(256);
        let mut draining = false;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                count = self.inputs.recv_many(&mut inputs, 256) => if count == 0 { return },
                () = tokio::time::sleep_until(next) => {
                    self.tick(&mut inputs);
                    next = Instant::now() + TICK;
                }
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    inputs.push(Input::Drain);
                }
                () = stop.cancelled() => return,
            }
            self.turn(&mut inputs);
            next = next.min(Instant::now() + self.pause());
            if draining && self.scheduler.sent() == 0 && self.scheduler.owned() == 0 {
                tracing::debug!("the engine has drained");
                return;
            }
        }
    }

    fn tick(&mut self, inputs: &mut Vec<Input>) {
        let lag = self.lag.lag();
        metrics::RECORD_LAG.set(lag.as_secs_f64());
        inputs.push(Input::RecordingBehind(lag > MOST_RECORD_LAG));
        inputs.push(Input::Tick);
        let now = boot_time();
        if now.since(self.listed_at) < TICK {
            return;
        }
        self.listed_at = now;
        let listed_before = BootTime(now.0.saturating_sub(LISTED_AFTER));
        if let Ok(mut listed) = self.in_flight.lock() {
            *listed = self.scheduler.in_flight_since(listed_before);
        }
    }

    fn turn(&mut self, inputs: &mut Vec<Input>) {
        let boot = boot_time();
        let now = Now {
            boot,
            database: self.clock.at(boot),
        };
        for input in inputs.drain(..) {
            if is_chore_done(&input) {
                self.chore_out = false;
            }
            self.scheduler.handle(input, now);
        }
        for effect in self.scheduler.effects(now) {
            self.execute(effect);
        }
        self.next_chore();
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Send(job) => self.send(job),
            Effect::Load(requests) => ask(&self.loads, Question::Load(requests)),
            Effect::Scan(slots) => ask(&self.scans, Question::Scan(slots)),
            Effect::Settle(record) => {
                if self.records.try_send(*record).is_err() {
                    tracing::error!(
                        "the recorder has no room for an outcome; the delivery stays as it is"
                    );
                }
            }
            Effect::Chore(chore) if chore.is_urgent() => self.urgent.push_back(chore),
            Effect::Chore(chore) => self.chores.push_back(chore),
            Effect::Change(change) => self.changes.put(*change),
            Effect::Release(slots) => {
                if self.releases.try_send(slots).is_err() {
                    tracing::error!("slots could not be handed over; their lease will run out");
                }
            }
        }
    }

    fn send(&self, job: Box<Job>) {
        let context = Arc::clone(&self.context);
        if job.suspect {
            spawn_driver(Arc::clone(&self.suspects).deliver(context, job));
        } else {
            spawn_driver(deliver(context, job));
        }
    }

    fn next_chore(&mut self) {
        if self.chore_out {
            return;
        }
        // Every fourth turn the other way round, so that none waits for ever.
        self.chore_turn = self.chore_turn.wrapping_add(1);
        let chore = if self.chore_turn.is_multiple_of(4) {
            self.chores.pop_front().or_else(|| self.urgent.pop_front())
        } else {
            self.urgent.pop_front().or_else(|| self.chores.pop_front())
        };
        if let Some(chore) = chore {
            self.chore_out = true;
            ask(&self.scans, Question::Chore(chore));
        }
    }

    /// Until what is due next, at most a tick.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        self.scheduler.next_due().map_or(TICK, |due| {
            Duration::try_from(due - now)
                .unwrap_or_default()
                .clamp(SHORTEST_PAUSE, TICK)
        })
    }
}

/// The answer to a chore: the next one may be asked.
const fn is_chore_done(input: &Input) -> bool {
    matches!(
        input,
        Input::Closed { .. }
            | Input::Revived { .. }
            | Input::Expired { .. }
            | Input::Parked { .. }
            | Input::Outages { .. }
    )
}

fn ask(questions: &mpsc::Sender<Question>, question: Question) {
    if questions.try_send(question).is_err() {
        tracing::error!("a question of the scheduler found no room; is the loader alive?");
    }
}
