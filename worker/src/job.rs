//! What travels through a worker: a loaded row, the job of sending it, and the record of what came of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::Kind;
use shared::domain::order::OrderKey;
use shared::domain::trace::TraceContext;
use shared::ids::{EndpointKey, Epoch, Incarnation, Slot, TenantKey, created_at};
use shared::policy::decide::Decision;
use shared::runtime::clock::BootTime;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::endpoint_config::SharedConfig;

/// A live row of `ready`, `retry` or `ready_ordered` with its event.
#[derive(Debug, Clone)]
pub struct LiveRow {
    /// The delivery.
    pub id: Uuid,
    /// Its event.
    pub event_id: Uuid,
    /// Whose it is.
    pub tenant: TenantKey,
    /// Requests made so far; the next one has this number plus one.
    pub attempts_made: u16,
    /// How many of them were charged (D4).
    pub attempts_charged: u16,
    /// Why it exists.
    pub kind: Kind,
    /// When it was due, if that was not at once.
    pub due_at: Option<OffsetDateTime>,
    /// When its first attempt started, if one was made.
    pub first_at: Option<OffsetDateTime>,
    /// It stands in the line of this key.
    pub order: Option<OrderKey>,
    /// `None` when the event is gone, which is our fault: class *internal*.
    pub event: Option<Arc<EventData>>,
}

/// What is sent. Never in a log.
pub struct EventData {
    /// `order.created`
    pub event_type: String,
    /// The bytes that came in (P1).
    pub payload: Bytes,
    /// The event's own end of life.
    pub deliver_before: Option<OffsetDateTime>,
    /// Where it stands in a trace.
    pub trace: Option<TraceContext>,
}

impl LiveRow {
    /// Since when it could have been sent.
    #[must_use]
    pub fn waits_since(&self) -> OffsetDateTime {
        self.due_at.unwrap_or_else(|| created_at(self.id))
    }
}

impl std::fmt::Debug for EventData {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("EventData")
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// Which life of which slot something belongs to: the fence (D3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ownership {
    /// The worker's life.
    pub incarnation: Incarnation,
    /// The share of the endpoints.
    pub slot: Slot,
    /// The number of the take-over.
    pub epoch: Epoch,
}

/// One request to make.
#[derive(Debug)]
pub struct Job {
    /// Under which ownership it was admitted.
    pub owner: Ownership,
    /// The endpoint as it was when admitted.
    pub endpoint: SharedConfig,
    /// What to send.
    pub row: LiveRow,
    /// It was in flight when a worker died: the death is charged to it before it is sent.
    pub suspect: bool,
    /// It asks whether the endpoint is back: its breaker is open.
    pub probe: bool,
    /// The lease as it was when admitted: the request does not start later than this.
    pub start_before: BootTime,
}

/// What is written about a delivery: the attempt, if there was one, and where the delivery goes.
#[derive(Debug)]
pub struct Record {
    /// Under which ownership it was sent; a stale one changes nothing (D3).
    pub owner: Ownership,
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// The delivery.
    pub delivery: Uuid,
    /// Its event.
    pub event_id: Uuid,
    /// Whose it is.
    pub tenant: TenantKey,
    /// It stands in a line: its row is in `ready_ordered`.
    pub in_line: bool,
    /// Attempts made before this one.
    pub attempts_before: u16,
    /// Attempts charged, this one included if it is.
    pub attempts_charged: u16,
    /// What was observed.
    pub outcome: Outcome,
    /// What follows.
    pub decision: Decision,
    /// The request, unless none was made (expired, internal).
    pub attempt: Option<AttemptFacts>,
    /// In words, for the dead letter or the attempt; no secret, payload or address part of a URL.
    pub note: Option<String>,
    /// See [`Job::suspect`]: cleared of suspicion once this is recorded.
    pub suspect: bool,
    /// What the request says about its endpoint, if one was made.
    pub observed: Option<Observed>,
}

/// What one request says about its endpoint: for breaker, limits and recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// What happened.
    pub outcome: Outcome,
    /// When it started; estimated database time.
    pub started_at: OffsetDateTime,
    /// How long it took.
    pub took: Duration,
    /// It ended at its deadline.
    pub timed_out: bool,
    /// How long the receiver asks to be left alone (429 and 503 only).
    pub retry_after: Option<Duration>,
    /// It exhausted the delivery's ladder, which began at this instant.
    pub exhausted: Option<OffsetDateTime>,
    /// See [`Job::probe`].
    pub probe: bool,
    /// It carried an operational event: nobody is told what became of that.
    pub notice: bool,
}

/// The facts of one HTTP request.
#[derive(Debug)]
pub struct AttemptFacts {
    /// Estimated database time.
    pub started_at: OffsetDateTime,
    /// Which version of the endpoint.
    pub endpoint_version: i32,
    /// HTTP status, if an answer began.
    pub status: Option<u16>,
    /// How long its parts took.
    pub phases: Phases,
    /// Milliseconds from started to ended.
    pub total_ms: i32,
    /// The address that was sent to, or the last one dialled in vain.
    pub addr: Option<IpAddr>,
    /// Every address dialled, in order.
    pub dialled: Vec<IpAddr>,
    /// The beginning of the answer's body.
    pub response: Bytes,
}
