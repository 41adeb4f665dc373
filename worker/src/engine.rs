//! The engine: the thin shell around the [`Scheduler`](crate::scheduler). One task; it waits for
//! what happens, asks the scheduler what to do, and hands that to those who do it. It never waits for
//! any of them: everything it hands out is bounded by permits or by one question at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shared::ids::{Epoch, Slot};
use shared::runtime::clock::{DatabaseClock, boot_time};
use shared::runtime::spawn_driver;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::deliver::{Context, deliver};
use crate::job::{Job, Record};
use crate::loader::{Close, Question};
use crate::recorder::RecordLag;
use crate::scheduler::{Effect, Input, Now, Scheduler};
use crate::suspects::Suspects;

/// How exact due times are.
const TICK: Duration = Duration::from_millis(20);
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
    pub releases: mpsc::Sender<Vec<(Slot, Epoch)>>,
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
    /// Watched.
    pub lag: Arc<RecordLag>,
    /// Waiting to be closed; one at a time, so that a mass deletion does not delay scans.
    pub closes: VecDeque<Close>,
    /// One is under way.
    pub closing: bool,
}

impl Engine {
    /// Runs until `drain` was asked for and everything is recorded and handed over, or until `stop`.
    pub async fn run(mut self, drain: CancellationToken, stop: CancellationToken) {
        let mut inputs = Vec::with_capacity(256);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut draining = false;
        loop {
            tokio::select! {
                count = self.inputs.recv_many(&mut inputs, 256) => if count == 0 { return },
                _ = tick.tick() => self.tick(&mut inputs),
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    inputs.push(Input::Drain);
                }
                () = stop.cancelled() => return,
            }
            self.turn(&mut inputs);
            if draining && self.scheduler.sent() == 0 && self.scheduler.owned() == 0 {
                tracing::debug!("the engine has drained");
                return;
            }
        }
    }

    fn tick(&self, inputs: &mut Vec<Input>) {
        inputs.push(Input::RecordingBehind(self.lag.lag() > MOST_RECORD_LAG));
        inputs.push(Input::Tick);
        let listed_before =
            shared::runtime::clock::BootTime(boot_time().0.saturating_sub(LISTED_AFTER));
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
            if matches!(input, Input::Closed { .. }) {
                self.closing = false;
            }
            self.scheduler.handle(input, now);
        }
        for effect in self.scheduler.effects(now) {
            self.execute(effect);
        }
        self.close_next();
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
            Effect::Close {
                owner,
                endpoint,
                reason,
                except,
            } => {
                self.closes.push_back(Close {
                    owner,
                    endpoint,
                    reason,
                    except,
                });
            }
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

    fn close_next(&mut self) {
        if self.closing {
            return;
        }
        if let Some(close) = self.closes.pop_front() {
            self.closing = true;
            ask(&self.scans, Question::Close(close));
        }
    }
}

fn ask(questions: &mpsc::Sender<Question>, question: Question) {
    if questions.try_send(question).is_err() {
        tracing::error!("a question of the scheduler found no room; is the loader alive?");
    }
}
