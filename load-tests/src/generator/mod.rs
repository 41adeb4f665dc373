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

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

pub use self::tally::{Report, Tally};
use crate::client::{Connection, request};
use crate::payload;

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
    /// Before the measured window.
    pub warmup: Duration,
    pub measured: Duration,
}

/// A request with a stamp to fill in.
#[derive(Debug)]
struct Template {
    bytes: Vec<u8>,
    stamp: Range<usize>,
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
                .map(|it| template(it, plan.payload_bytes))
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
                for _ in 0..self.plan.connections {
                    let room = room.as_ref().map(backlog::Watch::room);
                    connections.spawn(closed_loop(Arc::clone(self), room));
                }
                while connections.join_next().await.is_some() {}
            }
            Pace::Open { per_second } => {
                let due = pace::start(per_second, self.window.end);
                let due = Arc::new(tokio::sync::Mutex::new(due));
                for _ in 0..self.plan.connections {
                    connections.spawn(open_loop(Arc::clone(self), Arc::clone(&due)));
                }
                while connections.join_next().await.is_some() {}
            }
        }
    }

    fn over(&self) -> bool {
        payload::now_ns() >= self.window.end
    }
}

fn template(target: &Target, payload_bytes: usize) -> Template {
    let (payload, stamp) = payload::blank(payload_bytes);
    let (before, after) = match &target.event_type {
        Some(event_type) => (format!(r#"{{"type":"{event_type}","payload":"#), "}"),
        None => (String::new(), ""),
    };
    let body = [before.as_bytes(), &payload, after.as_bytes()].concat();
    let bytes = request("POST", &target.path, target.key.as_deref(), &body);
    let payload_at = bytes.len() - after.len() - payload.len();
    Template {
        bytes,
        stamp: payload_at + stamp.start..payload_at + stamp.end,
    }
}

async fn closed_loop(generator: Arc<Generator>, room: Option<Arc<Semaphore>>) {
    let mut sender = Sender::new(generator);
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

async fn open_loop(generator: Arc<Generator>, due: Arc<tokio::sync::Mutex<mpsc::Receiver<u64>>>) {
    let mut sender = Sender::new(generator);
    loop {
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
}

impl Sender {
    fn new(generator: Arc<Generator>) -> Self {
        Self {
            generator,
            connection: None,
            request: Vec::new(),
        }
    }

    /// Sends one event that is due at `due_ns`, and counts the reply.
    async fn send(&mut self, due_ns: u64) {
        let turn = self.generator.turn.fetch_add(1, Ordering::Relaxed);
        let templates = &self.generator.templates;
        let Some(template) = templates.get(turn % templates.len().max(1)) else {
            return;
        };
        self.request.clear();
        self.request.extend_from_slice(&template.bytes);
        if let Some(digits) = self.request.get_mut(template.stamp.clone()) {
            payload::write_stamp(digits, due_ns);
        }
        if !self.exchange(due_ns).await {
            tokio::time::sleep(PAUSE).await;
        }
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
