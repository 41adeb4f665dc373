//! Posts events at a fixed rate, come what may, and keeps the id of every one that was acknowledged.
//!
//! The load generator of `load-tests` runs for a planned time; a fault takes as long as it takes, so
//! this one posts until it is told to stop, and then waits for the last answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use load_tests::client::{Connection, request};
use shared::ids::EventId;
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::spawn_driver;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// What became of the events.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    /// The events whose 202 was received.
    pub(crate) accepted: Vec<Uuid>,
    /// Every other answer, and every broken connection.
    pub(crate) refused: Vec<String>,
    answers: Vec<Answered>,
}

/// When a post was made, how long its answer took, and whether it was a 202.
#[derive(Debug, Clone, Copy)]
struct Answered {
    posted: BootTime,
    took: Duration,
    accepted: bool,
}

impl From<Vec<Uuid>> for Posted {
    /// Of events that were published one by one.
    fn from(accepted: Vec<Uuid>) -> Self {
        Self {
            accepted,
            ..Self::default()
        }
    }
}

impl Posted {
    /// Nothing was refused; returns the acknowledged events.
    #[track_caller]
    pub(crate) fn all_accepted(self) -> Vec<Uuid> {
        self.nothing_refused();
        self.accepted
    }

    /// Something was posted, and nothing of it refused.
    #[track_caller]
    pub(crate) fn nothing_refused(&self) {
        let first = self.refused.first();
        assert!(
            self.refused.is_empty(),
            "{} of {} refused: {first:?}",
            self.refused.len(),
            self.accepted.len()
        );
        assert!(!self.accepted.is_empty(), "nothing was posted");
    }

    /// The longest time in which no post was accepted, as a publisher sees it: from a post that was
    /// refused to the next one that was not.
    pub(crate) fn error_window(&self) -> Duration {
        let mut answers = self.answers.clone();
        answers.sort_unstable_by_key(|it| it.posted);
        let (mut longest, mut since) = (Duration::ZERO, None);
        for answer in answers {
            let began = *since.get_or_insert(answer.posted);
            if answer.accepted {
                longest = longest.max(answer.posted.since(began));
                since = None;
            } else {
                longest = longest.max((answer.posted.after(answer.took)).since(began));
            }
        }
        longest
    }

    /// How long the slowest 202 took.
    pub(crate) fn slowest(&self) -> Duration {
        let accepted = self.answers.iter().filter(|it| it.accepted);
        accepted.map(|it| it.took).max().unwrap_or_default()
    }
}

/// A poster at work.
pub(crate) struct Poster {
    sent: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    stop: CancellationToken,
    task: JoinHandle<Posted>,
}

impl Poster {
    /// Posts an event of each of these types in turn, `per_second` of them.
    pub(crate) fn start<'t>(
        addr: SocketAddr,
        key: &str,
        per_second: u32,
        types: impl IntoIterator<Item = &'t str>,
    ) -> Self {
        let requests = types
            .into_iter()
            .map(|event_type| post(key, event_type))
            .collect();
        let stop = CancellationToken::new();
        let (sent, accepted) = (Arc::default(), Arc::default());
        let work = Work {
            requests,
            interval: Duration::from_secs(1) / per_second,
            idle: Arc::new(Idle {
                addr,
                connections: Mutex::default(),
            }),
            sent: Arc::clone(&sent),
            accepted: Arc::clone(&accepted),
        };
        let task = spawn_driver(work.run(stop.clone()));
        Self {
            sent,
            accepted,
            stop,
            task,
        }
    }

    /// How many were acknowledged so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many wait for their answer.
    pub(crate) fn waiting(&self) -> usize {
        let accepted = self.accepted();
        self.sent.load(Ordering::Relaxed) - accepted
    }

    /// Posts no more; returns when the last post was answered.
    pub(crate) async fn stop(self) -> Posted {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

/// A post of one event of this type.
pub(crate) fn post(key: &str, event_type: &str) -> Vec<u8> {
    let body = format!(r#"{{"type":"{event_type}","payload":{{"order":"A-17","total":120.5}}}}"#);
    request("POST", "/v1/events", Some(key), body.as_bytes())
}

/// When it was posted, how long the answer took, and the event's id or what was answered instead.
type Reply = (BootTime, Duration, Result<Uuid, String>);

struct Work {
    requests: Vec<Vec<u8>>,
    interval: Duration,
    idle: Arc<Idle>,
    sent: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Work {
    async fn run(self, stop: CancellationToken) -> Posted {
        let mut posted = Posted::default();
        let mut under_way = JoinSet::new();
        let mut due = tokio::time::interval(self.interval);
        for request in self.requests.iter().cycle() {
            if stop.run_until_cancelled(due.tick()).await.is_none() {
                break;
            }
            let idle = Arc::clone(&self.idle);
            let request = request.clone();
            self.sent.fetch_add(1, Ordering::Relaxed);
            under_way.spawn(async move {
                let posted = boot_time();
                let answer = idle.exchange(&request).await;
                (posted, boot_time().since(posted), answer)
            });
            while let Some(answer) = under_way.try_join_next() {
                self.count(&mut posted, answer.unwrap());
            }
        }
        while let Some(answer) = under_way.join_next().await {
            self.count(&mut posted, answer.unwrap());
        }
        posted
    }

    fn count(&self, into: &mut Posted, (posted, took, answer): Reply) {
        into.answers.push(Answered {
            posted,
            took,
            accepted: answer.is_ok(),
        });
        match answer {
            Ok(event) => {
                into.accepted.push(event);
                self.accepted.fetch_add(1, Ordering::Relaxed);
            }
            Err(refusal) => into.refused.push(refusal),
        }
    }
}

/// How long a connection waits for its next request: no server that is any good closes it before, and
/// one that is being closed takes a post with it.
const IDLE: Duration = Duration::from_secs(4);

/// Connections that wait for their next request, with the instant since when; as many are opened as
/// posts are under way.
struct Idle {
    addr: SocketAddr,
    connections: Mutex<Vec<(Instant, Connection)>>,
}

impl Idle {
    /// Posts; the id of the event, or what was answered instead.
    async fn exchange(&self, request: &[u8]) -> Result<Uuid, String> {
        let latest = self.connections.lock().unwrap().pop();
        let good = latest.filter(|(since, _)| since.elapsed() < IDLE);
        let mut connection = match good {
            Some((_, connection)) => connection,
            None => Connection::open(self.addr)
                .await
                .map_err(|error| format!("connect: {error}"))?,
        };
        let reply = connection
            .exchange(request)
            .await
            .map_err(|error| format!("broken: {error}"))?;
        let text = String::from_utf8_lossy(reply.body);
        if reply.status != 202 {
            return Err(format!("{}: {text}", reply.status));
        }
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let event: EventId = document["id"].as_str().unwrap().parse().unwrap();
        let mut connections = self.connections.lock().unwrap();
        connections.push((Instant::now(), connection));
        Ok(event.0)
    }
}
