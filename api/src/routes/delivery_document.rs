//! Deliveries and attempts as clients see them.

use serde::Serialize;
use shared::domain::attempt::{KEPT_OF_FAILURE, Outcome, kept_of_response};
use shared::domain::delivery::{CloseReason, DeadLetterClass, Status, WaitingFor};
use shared::ids::{DeliveryId, EndpointId, EventId, ReplayId, created_at};
use shared::store::attempts as attempt_store;
use shared::store::deliveries as store;
use std::net::IpAddr;
use utoipa::ToSchema;

use crate::instant::Instant;
use crate::openapi::schema;

/// One event to one endpoint.
#[derive(Serialize, ToSchema)]
pub(super) struct Delivery {
    #[schema(value_type = schema::DeliveryId)]
    id: DeliveryId,
    #[schema(value_type = schema::EventId)]
    event_id: EventId,
    #[schema(value_type = schema::EndpointId)]
    endpoint_id: EndpointId,
    #[schema(value_type = schema::DeliveryStatus)]
    status: Status,
    created_at: Instant,
    /// Requests made.
    attempt_count: i16,
    /// How many of them may be charged to it.
    max_attempts: u16,
    #[schema(required)]
    next_attempt_at: Option<Instant>,
    /// What it waits for, if for more than its turn: `paused` by the operator, the endpoint's `breaker`, its place in
    /// `order`, or the time of its `retry`. A rate limit shows as null: only the worker knows it.
    #[schema(required, value_type = Option<schema::DeliveryWaitingFor>)]
    waiting_for: Option<WaitingFor>,
    /// When the breaker lets a probe through, if it waits for that.
    #[schema(required)]
    next_probe_at: Option<Instant>,
    #[schema(required)]
    delivered_at: Option<Instant>,
    #[schema(required)]
    ended_at: Option<Instant>,
    /// Of the last attempt that counts, as the two below.
    #[schema(required)]
    last_error: Option<String>,
    #[schema(required)]
    last_status_code: Option<i16>,
    #[schema(required)]
    last_response_ms: Option<i32>,
    #[schema(required, value_type = Option<schema::DeliveryCloseReason>)]
    close_reason: Option<CloseReason>,
    #[schema(required, value_type = Option<schema::DeliveryDeadLetterClass>)]
    dead_letter_class: Option<DeadLetterClass>,
    #[schema(required)]
    dead_letter_reason: Option<String>,
    /// Of a replay: the delivery that is sent again.
    #[schema(required, value_type = Option<schema::DeliveryId>)]
    replay_of: Option<DeliveryId>,
    /// Of a replay of several: which.
    #[schema(required, value_type = Option<schema::ReplayId>)]
    replay_id: Option<ReplayId>,
}

impl Delivery {
    pub(super) fn new(delivery: store::Delivery) -> Self {
        let last = delivery.last;
        let (dead_letter_class, why) = delivery.dead_letter.unzip();
        Self {
            id: DeliveryId(delivery.id),
            event_id: EventId(delivery.event),
            endpoint_id: EndpointId(delivery.endpoint),
            status: delivery.status,
            created_at: Instant(created_at(delivery.id)),
            attempt_count: delivery.attempts_made,
            max_attempts: delivery.max_attempts,
            next_attempt_at: delivery.next_attempt_at.map(Instant),
            waiting_for: delivery.waiting_for,
            next_probe_at: delivery.next_probe_at.map(Instant),
            delivered_at: delivery.delivered_at.map(Instant),
            ended_at: delivery.delivered_at.or(delivery.ended_at).map(Instant),
            last_status_code: last.as_ref().and_then(|last| last.status_code),
            last_response_ms: last.as_ref().map(|last| last.total_ms),
            last_error: last.and_then(error),
            close_reason: delivery.close_reason,
            dead_letter_class,
            dead_letter_reason: why.flatten(),
            replay_of: delivery.replay.and_then(|it| it.of).map(DeliveryId),
            replay_id: delivery.replay.and_then(|it| it.by).map(ReplayId),
        }
    }
}

fn error(last: store::LastAttempt) -> Option<String> {
    match last.error {
        Some(error) => Some(error),
        None if last.outcome == Outcome::Delivered => None,
        None => Some(last.outcome.name().to_owned()),
    }
}

/// One HTTP request, and what came of it.
#[derive(Serialize, ToSchema)]
pub(super) struct Attempt {
    /// From 1.
    number: i16,
    started_at: Instant,
    #[schema(value_type = schema::AttemptOutcome)]
    outcome: Outcome,
    /// Null without an answer.
    #[schema(required)]
    status_code: Option<i16>,
    /// From the look-up of the name to the last byte.
    response_ms: i32,
    timings_us: Timings,
    /// Where it went.
    #[schema(required)]
    url: Option<String>,
    /// The address that was sent to, or the last one dialled in vain.
    #[schema(required, value_type = Option<String>, examples("203.0.113.7", "2001:db8::1"))]
    address: Option<IpAddr>,
    /// In order, where it was more than one.
    #[schema(required, value_type = Option<Vec<String>>)]
    addresses_dialled: Option<Vec<IpAddr>>,
    #[schema(required)]
    error: Option<String>,
    /// The beginning of the answer's body.
    #[schema(required)]
    response: Option<String>,
    response_truncated: bool,
    endpoint_version: i32,
    /// Whether it counts: not if it was made by a worker that had lost the endpoint.
    applied: bool,
    /// Set on the attempt that ended the delivery.
    #[schema(required, value_type = Option<schema::DeliveryStatus>)]
    final_status: Option<Status>,
}

/// Microseconds of each part; null where it did not happen or did not end.
#[derive(Serialize, ToSchema)]
#[schema(as = AttemptTimings)]
struct Timings {
    /// From due to started.
    #[schema(required)]
    queue: Option<i32>,
    #[schema(required)]
    dns: Option<i32>,
    #[schema(required)]
    connect: Option<i32>,
    #[schema(required)]
    tls: Option<i32>,
    /// From started to the head of the answer.
    #[schema(required)]
    first_byte: Option<i32>,
}

impl Attempt {
    pub(super) fn new(attempt: attempt_store::Attempt) -> Self {
        let [queue, dns, connect, tls, first_byte] = attempt.phases_us;
        let response_truncated = is_truncated(&attempt);
        Self {
            number: attempt.number,
            started_at: Instant(attempt.started_at),
            outcome: attempt.outcome,
            status_code: attempt.status_code,
            response_ms: attempt.total_ms,
            timings_us: Timings {
                queue,
                dns,
                connect,
                tls,
                first_byte,
            },
            url: attempt.url,
            address: attempt.address,
            addresses_dialled: attempt.dialled,
            error: attempt.error,
            response: attempt
                .response
                .map(|body| String::from_utf8_lossy(&body).into_owned()),
            response_truncated,
            endpoint_version: attempt.endpoint_version,
            applied: attempt.applied,
            final_status: attempt.final_status,
        }
    }
}

impl Attempt {
    /// What a key without the scope `read` is shown: neither where it went nor what was answered.
    pub(super) fn without_what_readers_see(self) -> Self {
        Self {
            url: None,
            address: None,
            addresses_dialled: None,
            response: None,
            ..self
        }
    }
}

/// Whether the receiver may have answered more than is kept. A response of exactly that length cannot be told
/// from a longer one.
fn is_truncated(attempt: &attempt_store::Attempt) -> bool {
    let status = attempt.status_code.and_then(|it| u16::try_from(it).ok());
    let kept = status.map_or(KEPT_OF_FAILURE, kept_of_response);
    attempt
        .response
        .as_ref()
        .is_some_and(|body| body.len() >= kept)
}
