//! Ingest: from a validated event to a durable one, in batches.
//!
//! ```text
//! request → Queue (bounded in number and bytes) → Writer → one statement, one commit → each request's reply
//! ```
//! A writer takes whatever queued during its previous commit; there is no timer, so a lone request
//! waits for nothing and a thousand share one commit.
//!
//! # Invariants
//! - D1, D2: a request is answered only after the commit that holds its event and deliveries.
//! - Bounded: what waits (queued or being written) is limited in number and bytes; above that the
//!   answer is 503 at once, never a queue that grows.

pub(crate) mod configuration;
pub(crate) mod hints;
mod staged;
pub(crate) mod writer;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shared::domain::delivery::Status;
use shared::ids::TenantKey;
use time::OffsetDateTime;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

/// The most requests that wait at once: ten seconds of the slowest database that still keeps up
/// with a few thousand events a second, and small beside [`MOST_BYTES`].
const MOST_WAITING: usize = 20_000;
/// The most bytes of payload that wait at once.
const MOST_BYTES: usize = 64 << 20;

/// The most deliveries of one event.
pub(crate) const MOST_FAN_OUT: usize = 1_000;
/// The most deliveries that a reply lists.
pub(crate) const MOST_LISTED: usize = 100;

/// An event that passed every check which needs no database.
#[derive(Debug)]
pub(crate) struct NewEvent {
    pub(crate) tenant: TenantKey,
    pub(crate) event_type: Box<str>,
    /// Byte for byte what came in (P1).
    pub(crate) payload: Bytes,
    pub(crate) channels: Vec<String>,
    pub(crate) deliver_before: Option<OffsetDateTime>,
}

/// An event that is durable.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) id: Uuid,
    pub(crate) delivery_count: usize,
    /// The first [`MOST_LISTED`].
    pub(crate) deliveries: Vec<AcceptedDelivery>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptedDelivery {
    pub(crate) id: Uuid,
    /// The endpoint's public id.
    pub(crate) endpoint: Uuid,
    pub(crate) status: Status,
}

/// Why an event was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As much waits already as may wait.
    QueueFull,
    /// The database did not take it in time; whether it will be delivered is unknown.
    Late,
    /// The event would go to this many endpoints.
    FanOut(usize),
    /// The tenant has as many event types as it may have.
    Types,
    /// The tenant's endpoints change faster than they can be read.
    Restless,
    /// The database refuses this row.
    NotStorable,
    /// A bug, or a schema that does not fit.
    Internal,
}

pub(crate) type Reply = Result<Accepted, Refusal>;

/// A request that waits for its event to be durable.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) event: NewEvent,
    pub(crate) reply: oneshot::Sender<Reply>,
    _room: Room,
}

/// What a waiting request takes of the limits; given back when it is answered or forgotten.
#[derive(Debug)]
struct Room {
    bytes: usize,
    taken: Arc<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.count.fetch_sub(1, Ordering::Relaxed);
        self.taken.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Between the requests and the writers.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    taken: Arc<Taken>,
    arrived: Notify,
    /// How long a request may wait for its reply.
    deadline: Duration,
    most_waiting: usize,
}

impl Queue {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            waiting: Mutex::default(),
            taken: Arc::default(),
            arrived: Notify::new(),
            deadline,
            most_waiting: MOST_WAITING,
        }
    }

    /// The same with another limit, for tests that fill it.
    pub(crate) fn with_most_waiting(mut self, most: usize) -> Self {
        self.most_waiting = most;
        self
    }

    /// Hands an event to a writer and waits until it is durable.
    pub(crate) async fn submit(&self, event: NewEvent) -> Reply {
        let room = self.room(event.payload.len())?;
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            event,
            reply,
            _room: room,
        };
        self.lock().push_back(waiting);
        self.arrived.notify_one();
        match tokio::time::timeout(self.deadline, answer).await {
            Ok(Ok(reply)) => reply,
            // The writer restarted, or the deadline passed: the client may send it again.
            Ok(Err(_)) | Err(_) => Err(Refusal::Late),
        }
    }

    /// Up to `most` requests, at once; empty when none waits.
    fn take(&self, most: usize) -> Vec<Waiting> {
        let mut waiting = self.lock();
        let count = most.min(waiting.len());
        let taken = waiting.drain(..count).collect();
        if !waiting.is_empty() {
            // Another writer may take the rest.
            self.arrived.notify_one();
        }
        taken
    }

    /// Waits until a request waits.
    async fn arrival(&self) {
        self.arrived.notified().await;
    }

    fn room(&self, bytes: usize) -> Result<Room, Refusal> {
        // Counted first and checked after: `Drop` gives it back when there is no room.
        let count = self.taken.count.fetch_add(1, Ordering::Relaxed);
        let total = self.taken.bytes.fetch_add(bytes, Ordering::Relaxed);
        let room = Room {
            bytes,
            taken: Arc::clone(&self.taken),
        };
        if count >= self.most_waiting || total + bytes > MOST_BYTES {
            return Err(Refusal::QueueFull);
        }
        Ok(room)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        // Nothing can panic while it is held; a poisoned queue would still be a good one.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(bytes: usize) -> NewEvent {
        NewEvent {
            tenant: TenantKey(1),
            event_type: "a".into(),
            payload: Bytes::from(vec![b' '; bytes]),
            channels: Vec::new(),
            deliver_before: None,
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_number_and_given_back_when_answered() {
        let queue = Queue::new(Duration::from_secs(5)).with_most_waiting(2);
        let (first, second, third, taken) = tokio::join!(
            queue.submit(event(1)),
            queue.submit(event(1)),
            queue.submit(event(1)),
            async {
                queue.arrival().await;
                let taken = queue.take(10);
                let count = taken.len();
                for waiting in taken {
                    waiting.reply.send(Err(Refusal::NotStorable)).unwrap();
                }
                count
            }
        );

        assert_eq!(first.unwrap_err(), Refusal::NotStorable);
        assert_eq!(second.unwrap_err(), Refusal::NotStorable);
        assert_eq!(third.unwrap_err(), Refusal::QueueFull);
        assert_eq!(taken, 2);
        assert_eq!(queue.taken.count.load(Ordering::Relaxed), 0);
        assert_eq!(queue.taken.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        let queue = Queue::new(Duration::from_secs(5));

        let reply = queue.submit(event(MOST_BYTES + 1)).await;

        assert_eq!(reply.unwrap_err(), Refusal::QueueFull);
        assert_eq!(queue.taken.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_request_is_told_after_its_deadline_that_nothing_is_known() {
        let queue = Queue::new(Duration::from_millis(20));

        let reply = queue.submit(event(1)).await;

        assert_eq!(reply.unwrap_err(), Refusal::Late);
    }
}
