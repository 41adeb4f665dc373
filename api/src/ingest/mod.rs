//! Ingest: from a validated event to a durable one, in batches.
//!
//! ```text
//! request → Queue (bounded in number and bytes) → Writer → one statement, one commit → each request's reply
//! ```
//! A writer takes whatever queued during its previous commit; there is no timer, so a lone request
//! waits for nothing and a thousand share one commit.
//!
//! Events with an ordering key and an ordered endpoint have a queue and a writer of their own
//! ([`Lane::Ordered`]): they wait for the locks of their keys, and nobody else should. Whether an
//! event is one of them is known when it is planned, so a writer may hand it over to the other lane.
//! Events that happen once ([`Lane::Keyed`]) have theirs as well: they may wait for another process
//! that has the same key in its hands.
//!
//! # Invariants
//! - D1, D2: a request is answered only after the commit that holds its event and deliveries.
//! - Bounded: what waits (queued or being written) is limited in number, bytes and age; above that the
//!   answer is 503 at once, never a queue that grows.

pub(crate) mod configuration;
pub(crate) mod hints;
mod intake;
mod staged;
pub(crate) mod writer;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shared::domain::delivery::Status;
use shared::domain::idempotency::{IdempotencyKey, KeySpace};
use shared::domain::order::OrderKey;
use shared::domain::trace::TraceContext;
use shared::ids::TenantKey;
use shared::runtime::clock::{BootTime, boot_time};
use time::OffsetDateTime;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

pub(crate) use self::intake::Intake;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewEvent {
    pub(crate) tenant: TenantKey,
    pub(crate) event_type: Box<str>,
    /// Byte for byte what came in (P1).
    pub(crate) payload: Bytes,
    pub(crate) channels: Vec<String>,
    pub(crate) deliver_before: Option<OffsetDateTime>,
    /// Its order among the tenant's events of the same key, at endpoints that ask for it.
    pub(crate) order_key: Option<OrderKey>,
    /// The tenant's own id of it.
    pub(crate) external_id: Option<Box<str>>,
    /// Under which keys it happens once.
    pub(crate) idempotency: Vec<IdempotencyKey>,
    /// Where it stands in a trace.
    pub(crate) trace: Option<TraceContext>,
    /// The version of its type's schema that its payload fits.
    pub(crate) checked: Option<i64>,
    /// The version of its tenant's configuration that it must be planned with, at least.
    pub(crate) configuration: i64,
    /// The id that it may be stored under already, or is known by elsewhere; otherwise a writer gives it one.
    pub(crate) id: Option<Uuid>,
    /// It was accepted before, on local disk: it is stored even where its type has a schema by now.
    pub(crate) from_journal: bool,
}

/// An event that was not checked against the schema of its type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unchecked {
    pub(crate) event: NewEvent,
    /// The version of the schema that its type has.
    pub(crate) version: i64,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Plain, Self::Keyed, Self::Ordered];
}

impl NewEvent {
    /// Where it goes before it is planned.
    const fn first_lane(&self) -> Lane {
        match self.order_key {
            Some(_) => Lane::Ordered,
            None => self.lane_without_order(),
        }
    }

    /// Where it goes if no endpoint of its fan-out keeps an order.
    const fn lane_without_order(&self) -> Lane {
        if self.idempotency.is_empty() && self.external_id.is_none() {
            Lane::Plain
        } else {
            Lane::Keyed
        }
    }
}

/// Which writers an event goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Most events.
    Plain,
    /// Events that have a key of idempotency.
    Keyed,
    /// Events that have a place in the order of an endpoint.
    Ordered,
}

/// An event that is durable.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) id: Uuid,
    /// Not known of one that is durable on local disk only: its fan-out is made when it is replayed.
    pub(crate) delivery_count: Option<usize>,
    /// The first [`MOST_LISTED`].
    pub(crate) deliveries: Vec<AcceptedDelivery>,
}

impl Accepted {
    /// An event that is durable on local disk ([`crate::journal`]).
    pub(crate) const fn local(id: Uuid) -> Self {
        Self {
            id,
            delivery_count: None,
            deliveries: Vec::new(),
        }
    }

    /// Whether it is durable on local disk only.
    pub(crate) const fn is_local(&self) -> bool {
        self.delivery_count.is_none()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptedDelivery {
    pub(crate) id: Uuid,
    /// The endpoint's public id.
    pub(crate) endpoint: Uuid,
    pub(crate) status: Status,
}

/// Why an event was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// As much waits already as may wait.
    QueueFull,
    /// What waits has waited so long that one more would hardly be in time.
    Stalled,
    /// The database did not take it in time; whether it will be delivered is unknown.
    Late,
    /// The journal holds as much as it may.
    JournalFull,
    /// The journal cannot be written.
    JournalFailed,
    /// The event would go to this many endpoints.
    FanOut(usize),
    /// Its type has a schema: it comes back to be checked against that.
    Unchecked(Box<Unchecked>),
    /// The tenant has as many event types as it may have.
    Types,
    /// The tenant's endpoints change faster than they can be read.
    Restless,
    /// Its `deliver_before` is over.
    TooLate,
    /// Another body was sent under the same key.
    Mismatch(KeySpace),
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
    /// Given once and kept: a resubmission must not make a second event.
    id: Option<Uuid>,
    /// The newest version of the tenant's configuration that a writer planned it with.
    planned_with: i64,
    /// How often it was sent back for another plan, or to the other lane.
    rounds: u8,
    since: BootTime,
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

/// The queues of all lanes. Each has its own limits, so that none fills another's.
#[derive(Debug)]
pub(crate) struct Queues {
    plain: Queue,
    keyed: Queue,
    ordered: Queue,
}

impl Queues {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            plain: Queue::new(deadline),
            keyed: Queue::new(deadline),
            ordered: Queue::new(deadline),
        }
    }

    /// The same with other limits, for tests that fill them.
    pub(crate) fn with_most_waiting(self, most: usize) -> Self {
        Self {
            plain: self.plain.with_most_waiting(most),
            keyed: self.keyed.with_most_waiting(most),
            ordered: self.ordered.with_most_waiting(most),
        }
    }

    /// Hands an event to a writer and waits until it is durable, for so long.
    pub(crate) async fn submit(&self, event: NewEvent, patience: Duration) -> Reply {
        self.of(event.first_lane()).submit(event, patience).await
    }

    /// Hands events to the writers and waits until each is durable or refused, for so long. All of them, or none
    /// when there is no room for one.
    pub(crate) async fn submit_all(
        &self,
        events: Vec<NewEvent>,
        patience: Duration,
    ) -> Result<Vec<Reply>, Refusal> {
        let mut answers = Vec::with_capacity(events.len());
        let mut waiting = Lane::ALL.map(|lane| (lane, Vec::new()));
        for event in events {
            let lane = event.first_lane();
            let (one, answer) = self.of(lane).admit(event)?;
            answers.push(answer);
            for (of, list) in &mut waiting {
                if *of == lane {
                    list.push(one);
                    break;
                }
            }
        }
        for (lane, list) in waiting {
            self.of(lane).put_all(list);
        }
        let deadline = tokio::time::Instant::now() + patience;
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            replies.push(match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) | Err(_) => Err(Refusal::Late),
            });
        }
        Ok(replies)
    }

    const fn of(&self, lane: Lane) -> &Queue {
        match lane {
            Lane::Plain => &self.plain,
            Lane::Keyed => &self.keyed,
            Lane::Ordered => &self.ordered,
        }
    }
}

/// Between the requests and the writers of a lane.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    taken: Arc<Taken>,
    arrived: Notify,
    /// How long a request may wait for its reply.
    deadline: Duration,
    most_waiting: usize,
}

impl Queue {
    fn new(deadline: Duration) -> Self {
        Self {
            waiting: Mutex::default(),
            taken: Arc::default(),
            arrived: Notify::new(),
            deadline,
            most_waiting: MOST_WAITING,
        }
    }

    fn with_most_waiting(mut self, most: usize) -> Self {
        self.most_waiting = most;
        self
    }

    async fn submit(&self, event: NewEvent, patience: Duration) -> Reply {
        let (waiting, answer) = self.admit(event)?;
        self.put(waiting);
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(reply)) => reply,
            // The writer restarted, or the deadline passed: the client may send it again.
            Ok(Err(_)) | Err(_) => Err(Refusal::Late),
        }
    }

    /// Takes room for an event, before it is put here.
    fn admit(&self, event: NewEvent) -> Result<(Waiting, oneshot::Receiver<Reply>), Refusal> {
        let room = self.room(event.payload.len())?;
        if self.oldest() > self.deadline / 2 {
            return Err(Refusal::Stalled);
        }
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            reply,
            id: event.id,
            planned_with: event.configuration,
            event,
            rounds: 0,
            since: boot_time(),
            _room: room,
        };
        Ok((waiting, answer))
    }

    /// Several at the end, next to one another.
    fn put_all(&self, waiting: Vec<Waiting>) {
        if !waiting.is_empty() {
            self.lock().extend(waiting);
            self.arrived.notify_one();
        }
    }

    /// One more at the end. It has its room already.
    fn put(&self, waiting: Waiting) {
        self.lock().push_back(waiting);
        self.arrived.notify_one();
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

    /// How long the first in the queue has waited.
    fn oldest(&self) -> Duration {
        let waiting = self.lock();
        let first = waiting.front().filter(|first| !first.reply.is_closed());
        first.map_or(Duration::ZERO, |first| boot_time().since(first.since))
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
            order_key: None,
            external_id: None,
            idempotency: Vec::new(),
            trace: None,
            checked: None,
            configuration: 0,
            id: None,
            from_journal: false,
        }
    }

    async fn submit(queue: &Queue, event: NewEvent) -> Reply {
        queue.submit(event, queue.deadline).await
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_number_and_given_back_when_answered() {
        let queue = Queue::new(Duration::from_secs(5)).with_most_waiting(2);
        let (first, second, third, taken) = tokio::join!(
            submit(&queue, event(1)),
            submit(&queue, event(1)),
            submit(&queue, event(1)),
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
    async fn what_waits_is_bounded_in_age_by_half_of_what_a_request_may_wait() {
        let queue = Queue::new(Duration::from_millis(400));
        let late = async {
            // By the clock: age is what is tested.
            tokio::time::sleep(Duration::from_millis(250)).await;
            submit(&queue, event(1)).await
        };

        let (first, second) = tokio::join!(submit(&queue, event(1)), late);

        assert_eq!(first.unwrap_err(), Refusal::Late);
        assert_eq!(second.unwrap_err(), Refusal::Stalled);
        assert_eq!(queue.taken.count.load(Ordering::Relaxed), 1, "the first's");
        // Nobody waits any more: the next one is let in.
        assert_eq!(submit(&queue, event(1)).await.unwrap_err(), Refusal::Late);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        let queue = Queue::new(Duration::from_secs(5));

        let reply = submit(&queue, event(MOST_BYTES + 1)).await;

        assert_eq!(reply.unwrap_err(), Refusal::QueueFull);
        assert_eq!(queue.taken.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_request_is_told_after_its_deadline_that_nothing_is_known() {
        let queue = Queue::new(Duration::from_millis(20));

        let reply = submit(&queue, event(1)).await;

        assert_eq!(reply.unwrap_err(), Refusal::Late);
    }
}
