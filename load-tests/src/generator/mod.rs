//! Posts events as fast as they are accepted (closed loop) or at a fixed rate (open loop).
//!
//! One thread, a connection per event under way. In the open loop a latency counts from the instant
//! that the event was *due*, whether or not a connection was free then: no coordinated omission.
//! In the closed loop, `backlog` bounds what is accepted and not yet received, so that the figure is
//! what the system sustains from end to end and not what its queue takes in.

mod backlog;
mod pace;
mod reply;
mod tally;
mod template;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

pub use self::tally::{Report, Tally};
use self::template::Template;
use crate::client::Connection;
use crate::payload::{self, Stamp};

/// The pause after a refusal or a broken connection: a client that hammers measures itself.
const PAUSE: Duration = Duration::from_millis(10);

/// Where events go, and as whom.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Target {
    pub path: String,
    /// The tenant's API key.
    pub key: Option<String>,
    /// The event's type; none: the bare payload is posted.
    pub event_type: Option<String>,
}

/// How fast.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// The next event when the last was answered, on each connection.
    Closed { backlog: Option<Backlog> },
    /// So many events per second, come what may.
    Open { per_second: f64 },
}

/// A bound on what is accepted and not yet received.
#[derive(Debug, Clone, Copy)]
pub struct Backlog {
    pub most: u32,
    /// Deliveries of each event.
    pub fan_out: u64,
    /// The receiver, which tells how many were received.
    pub receiver: SocketAddr,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    pub addr: SocketAddr,
    pub targets: Vec<Target>,
    pub connections: usize,
    pub pace: Pace,
    pub payload_bytes: usize,
    /// Events in one request; more than 1: the targets take batches.
    pub batch: usize,
    /// The most requests that are posted.
    pub most: Option<usize>,
    /// How many ordering keys there are, each always posted by the same connection, one event after
    /// the other; 0: none. Key k belongs to target k − 1, modulo the targets.
    pub keys: u32,
    /// Before the measured window.
    pub warmup: Duration,
    pub measured: Duration,
}

/// A generator at work. Its tasks share one thread, so the lock is never waited for.
#[derive(Debug)]
pub struct Generator {
    plan: Plan,
    templates: Vec<Template>,
    turn: AtomicUsize,
    /// Boot-clock nanoseconds.
    window: Range<u64>,
    tally: Mutex<Tally>,
}

impl Generator {
    /// Prepares the requests; the measured window begins `warmup` from now.
    #[must_use]
    pub fn new(plan: Plan) -> Arc<Self> {
        let nanos = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let from = payload::now_ns().saturating_add(nanos(plan.warmup));
        let window = from..from.saturating_add(nanos(plan.measured));
        Arc::new(Self {
            templates: plan
                .targets
                .iter()
                .map(|it| Template::new(it, plan.payload_bytes, (plan.keys > 0, plan.batch)))
                .collect(),
            turn: AtomicUsize::new(0),
            tally: Mutex::new(Tally::new(window.clone())),
            window,
            plan,
        })
    }

    /// The measured window, in boot-clock nanoseconds.
    #[must_use]
    pub fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// The counts so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the plan to its end: the last event is answered when this returns.
    pub async fn run(self: &Arc<Self>) {
        let mut connections = JoinSet::new();
        match self.plan.pace {
            Pace::Closed { backlog } => {
                let room = backlog.map(|bound| backlog::watch(bound, Arc::clone(self)));
                for number in 0..self.plan.connections {
                    let room = room.as_ref().map(backlog::Watch::room);
                    connections.spawn(closed_loop(Sender::new(self, number), room));
                }
                while connections.join_next().await.is_some() {}
            }
            Pace::Open { per_second } => {
                let due = pace::start(per_second, self.window.end);
                let due = Arc::new(tokio::sync::Mutex::new(due));
                for number in 0..self.plan.connections {
                    connections.spawn(open_loop(Sender::new(self, number), Arc::clone(&due)));
                }
                while connections.join_next().await.is_some() {}
            }
        }
    }

    fn over(&self) -> bool {
        self.enough() || payload::now_ns() >= self.window.end
    }

    /// Whether as many were posted as should be.
    fn enough(&self) -> bool {
        let posted = self.turn.load(Ordering::Relaxed);
        self.plan.most.is_some_and(|most| posted >= most)
    }
}

async fn closed_loop(mut sender: Sender, room: Option<Arc<Semaphore>>) {
    while !sender.generator.over() {
        if let Some(room) = &room {
            match room.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_closed) => return,
            }
            if sender.generator.over() {
                return;
            }
        }
        sender.send(payload::now_ns()).await;
    }
}

async fn open_loop(mut sender: Sender, due: Arc<tokio::sync::Mutex<mpsc::Receiver<u64>>>) {
    while !sender.generator.enough() {
        let next = due.lock().await.recv().await;
        match next {
            Some(due_ns) => sender.send(due_ns).await,
            None => return,
        }
    }
}

/// Sends one event after another over one connection, and opens another when that breaks.
#[derive(Debug)]
struct Sender {
    generator: Arc<Generator>,
    connection: Option<Connection>,
    request: Vec<u8>,
    /// Its own keys and the number of each one's next event.
    keys: Vec<(u32, u64)>,
    key_turn: usize,
}

impl Sender {
    fn new(generator: &Arc<Generator>, number: usize) -> Self {
        let own = (1..=generator.plan.keys)
            .skip(number)
            .step_by(generator.plan.connections.max(1));
        Self {
            generator: Arc::clone(generator),
            connection: None,
            request: Vec::new(),
            keys: own.map(|key| (key, 1)).collect(),
            key_turn: 0,
        }
    }

    /// Sends one event that is due at `due_ns`, and counts the reply.
    async fn send(&mut self, due_ns: u64) {
        let turn = self.generator.turn.fetch_add(1, Ordering::Relaxed);
        let (turn, key, number) = self.next_key().unwrap_or((turn, 0, 0));
        let templates = &self.generator.templates;
        let Some(template) = templates.get(turn % templates.len().max(1)) else {
            return;
        };
        let stamp = Stamp {
            sent_ns: due_ns,
            key,
            number,
        };
        template.fill(&mut self.request, stamp);
        if !self.exchange(due_ns).await {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The target's turn, the key and the number of the next event. A number is used once, whatever
    /// becomes of its event: it may have been accepted although the reply was lost.
    fn next_key(&mut self) -> Option<(usize, u32, u64)> {
        let length = self.keys.len();
        let (key, next) = self.keys.get_mut(self.key_turn)?;
        self.key_turn = (self.key_turn + 1) % length;
        let number = *next;
        *next += 1;
        Some((usize::try_from(*key).unwrap_or(1) - 1, *key, number))
    }

    /// Whether the event was accepted.
    async fn exchange(&mut self, due_ns: u64) -> bool {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => match Connection::open(self.generator.plan.addr).await {
                Ok(connection) => self.connection.insert(connection),
                Err(error) => {
                    self.generator.tally().broken(&error);
                    return false;
                }
            },
        };
        match connection.exchange(&self.request).await {
            Ok(reply) => {
                let accepted = self
                    .generator
                    .tally()
                    .reply(due_ns, payload::now_ns(), &reply);
                if !reply.keep_alive {
                    self.connection = None;
                }
                accepted
            }
            Err(error) => {
                self.generator.tally().broken(&error);
                self.connection = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
