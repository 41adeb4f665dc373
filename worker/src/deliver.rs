//! One attempt, top to bottom: the function a reviewer must read.
//!
//! No database connection is held here (D7): the job came with everything it needs, and the outcome
//! goes to the recorder, which batches.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use shared::domain::attempt::{Outcome, Phases};
use shared::domain::delivery::Kind;
use shared::domain::trace::{SpanId, TraceContext};
use shared::fail_point;
use shared::ids::{DeliveryId, EventId, created_at};
use shared::policy::backoff::UnitInterval;
use shared::policy::classify::{Response, SendError, SendResult, Verdict};
use shared::policy::decide::{Progress, decide};
use shared::policy::payload::FieldPath;
use shared::policy::redaction;
use shared::runtime::clock::{BootTime, DatabaseClock, boot_time, wall_time};
use shared::runtime::jitter;
use shared::runtime::traces::Traces;
use tokio::sync::mpsc;
use tracing::field::display;

use crate::attempt_span::attempt_span;
use crate::job::{AttemptFacts, EventData, Job, Observed, Record};
use crate::metrics;
use crate::sender::{OutboundRequest, Sender, Stamp, Timings, headers_for};

/// What every attempt needs.
pub struct Context {
    /// Makes the request.
    pub sender: Sender,
    /// Stamps the attempt.
    pub clock: Arc<DatabaseClock>,
    /// To the recorder; has room for every permit there is.
    pub records: mpsc::Sender<Record>,
    /// Where attempts are recorded as spans.
    pub traces: Traces,
}

/// Makes one attempt and hands its outcome to the recorder. Whatever happens, a panic included, a
/// record is made: otherwise the permit would never come back.
pub async fn deliver(context: Arc<Context>, job: Box<Job>) {
    fail_point!("worker.admitted");
    let started = boot_time();
    let event = job.row.event.clone();
    let parent = event.as_ref().and_then(|event| event.trace);
    let span = parent.map(|parent| parent.child(SpanId::from_random(jitter::bytes())));
    let endpoint = job.endpoint.id;
    let sent = match event {
        Some(event) => {
            let sending = attempt(&context.sender, &job, &event, span);
            match AssertUnwindSafe(sending).catch_unwind().await {
                Ok(sent) => sent,
                Err(_panic) => internal("a panic while sending"),
            }
        }
        None => internal("the event is gone"),
    };
    fail_point!("worker.answered");
    let took = (started, boot_time());
    let record = conclude(&context.clock, *job, took, sent, jitter::draw());
    if let Some((span, parent)) = span.zip(parent)
        && context.traces.records(&span)
        && let Some(span) =
            attempt_span(&record, endpoint, (span, parent.span), took.1.since(took.0))
    {
        context.traces.record(span);
    }
    if context.records.send(record).await.is_err() {
        tracing::error!(
            "the recorder has ended; an outcome is lost and its delivery will be repeated"
        );
    }
}

async fn attempt(
    sender: &Sender,
    job: &Job,
    event: &EventData,
    span: Option<TraceContext>,
) -> (SendResult, Timings) {
    let request = match request(job, event, span) {
        Ok(request) => request,
        Err(error) => return (Err(error), Timings::default()),
    };
    let (mut sent, timings) = sender.send(request).await;
    if let Ok(response) = &mut sent {
        hide(&job.endpoint.settings.redact, &event.payload, response);
    }
    (sent, timings)
}

fn request(
    job: &Job,
    event: &EventData,
    span: Option<TraceContext>,
) -> Result<OutboundRequest, SendError> {
    let target = &job.endpoint.target;
    let (shape, own) = target.destination()?;
    let (event_id, delivery_id) = (EventId(job.row.event_id), DeliveryId(job.row.id));
    let shaped = shape.shape(&event.payload, (event_id, &event.event_type, delivery_id))?;
    let stamp = Stamp {
        event_id,
        event_type: &event.event_type,
        delivery_id,
        attempt: job.row.attempts_made.saturating_add(1),
        // The timestamp is taken when the request starts: receivers refuse old ones.
        started_at: wall_time(),
        keys: &target.keys,
        body: &shaped.body,
        content_type: shaped.content_type,
        trace: span.filter(|_| job.endpoint.settings.trace_context),
    };
    let headers = headers_for(&stamp, &shaped.url, own)?;
    Ok(OutboundRequest {
        method: shaped.method,
        url: shaped.url.into_owned(),
        headers,
        body: shaped.body,
        timeout: job.endpoint.settings.timeout(),
        // What may have been sent already, or was not taken: its connection shall not be the reason again.
        fresh: job.row.attempts_made > job.row.attempts_charged,
        identity: target.identity.clone(),
    })
}

/// Hides what nobody is to see in what the receiver says: what is not stored cannot be shown.
fn hide(redact: &[String], payload: &[u8], response: &mut Response) {
    if redact.is_empty() || response.excerpt.is_empty() {
        return;
    }
    let fields: Vec<FieldPath> = redact.iter().filter_map(|path| path.parse().ok()).collect();
    let hidden = redaction::hide_values(&response.excerpt, payload, &fields).into_owned();
    response.excerpt = hidden.into();
}

/// From what came of a request to the record of it. Pure but for logs and metrics; `tests/model`
/// makes its records with it as well.
#[must_use]
pub fn conclude(
    clock: &DatabaseClock,
    job: Job,
    (started, ended): (BootTime, BootTime),
    (result, timings): (SendResult, Timings),
    jitter: UnitInterval,
) -> Record {
    let now = clock.at(ended);
    let verdict = Verdict::of(&result, &job.endpoint.settings, now);
    let row = &job.row;
    let progress = Progress {
        attempts_made: row.attempts_made.saturating_add(1),
        attempts_charged: row.attempts_charged,
        created_at: created_at(row.id),
        deliver_before: row.event.as_ref().and_then(|event| event.deliver_before),
    };
    let mut decided = decide(&job.endpoint.settings, &progress, &verdict, now, jitter);
    if row.kind == Kind::Test {
        decided = decided.of_a_test();
    }
    let total = ended.since(started);
    let observed = Observed {
        outcome: verdict.outcome,
        started_at: clock.at(started),
        took: total,
        timed_out: matches!(result, Err(SendError::Timeout(_))),
        retry_after: asked_to_wait(&result, &verdict),
        exhausted: decided
            .exhausted
            .then(|| row.first_at.unwrap_or(clock.at(started))),
        probe: job.probe,
        notice: row.kind == Kind::Notice,
    };
    // Estimated database time on both sides; a delivery may look younger than it is by their error.
    let waited = Duration::try_from(clock.at(started) - row.waits_since()).unwrap_or_default();
    log(&job, verdict.outcome, &result, total);
    measure(
        verdict.outcome,
        (waited, &timings, total),
        (now - progress.created_at).as_seconds_f64(),
    );
    let (status, response, note) = facts(result);
    Record {
        owner: job.owner,
        endpoint: job.endpoint.key,
        delivery: row.id,
        event_id: row.event_id,
        tenant: row.tenant,
        in_line: row.order.is_some(),
        attempts_before: row.attempts_made,
        attempts_charged: decided.charged,
        outcome: verdict.outcome,
        decision: decided.decision,
        attempt: Some(AttemptFacts {
            started_at: clock.at(started),
            endpoint_version: job.endpoint.version,
            status,
            phases: phases(waited, &timings),
            total_ms: i32::try_from(total.as_millis()).unwrap_or(i32::MAX),
            addr: timings.addr,
            dialled: timings.dialled,
            response,
        }),
        note: note.or(decided.reason.map(str::to_owned)),
        suspect: job.suspect,
        // What is nobody's fault says nothing about the endpoint; a probe has to end either way.
        observed: (job.probe || !decided.forgiven).then_some(observed),
    }
}

fn phases(queued: Duration, timings: &Timings) -> Phases {
    Phases {
        queue_us: Some(micros(queued)),
        dns_us: timings.dns.map(micros),
        connect_us: timings.connect.map(micros),
        tls_us: timings.tls.map(micros),
        first_byte_us: timings.first_byte.map(micros),
    }
}

/// How long the whole endpoint is to be left alone: what an overloaded receiver asks for.
fn asked_to_wait(result: &SendResult, verdict: &Verdict) -> Option<Duration> {
    let overloaded = |status| matches!(status, 429 | 503);
    let answer = result.as_ref().ok();
    answer
        .filter(|answer| overloaded(answer.status))
        .and(verdict.retry_after)
}

fn facts(result: SendResult) -> (Option<u16>, Bytes, Option<String>) {
    match result {
        Ok(response) => {
            let note = response.note().map(Cow::into_owned);
            (Some(response.status), response.excerpt, note)
        }
        Err(error) => (
            None,
            Bytes::new(),
            Some(error.to_string().replace('\0', "\u{fffd}")),
        ),
    }
}

fn measure(
    outcome: Outcome,
    (waited, timings, total): (Duration, &Timings, Duration),
    lag_seconds: f64,
) {
    let parts = [
        Some(waited),
        timings.dns,
        timings.connect,
        timings.tls,
        timings.first_byte,
        Some(total),
    ];
    for (phase, took) in metrics::PHASES.into_iter().zip(parts) {
        if let Some(took) = took {
            metrics::ATTEMPT_SECONDS
                .with_label_values(&[phase])
                .observe(took.as_secs_f64());
        }
    }
    if outcome == Outcome::Delivered {
        metrics::DELIVERY_LAG.observe(lag_seconds.max(0.0));
    }
}

/// One line per attempt: debug when it succeeded, info when not. Ids and classes, nothing else (S2).
fn log(job: &Job, outcome: Outcome, result: &SendResult, total: Duration) {
    let error = result.as_ref().err().map(SendError::kind);
    let status = result.as_ref().ok().map(|response| response.status);
    let delivery = DeliveryId(job.row.id);
    let event = EventId(job.row.event_id);
    let number = job.row.attempts_made.saturating_add(1);
    let trace = job.row.event.as_ref().and_then(|event| event.trace);
    let trace = trace.map(|context| display(context.trace));
    if outcome == Outcome::Delivered {
        tracing::debug!(delivery.id = %delivery, event.id = %event, endpoint.id = %job.endpoint.id, attempt.number = number, trace.id = trace, outcome.kind = outcome.name(), status, total_ms = total.as_millis(), "an attempt succeeded");
    } else {
        tracing::info!(delivery.id = %delivery, event.id = %event, endpoint.id = %job.endpoint.id, attempt.number = number, trace.id = trace, outcome.kind = outcome.name(), status, error.kind = error, total_ms = total.as_millis(), "an attempt failed");
    }
}

fn internal(reason: &'static str) -> (SendResult, Timings) {
    (Err(SendError::Internal(reason)), Timings::default())
}

fn micros(length: Duration) -> i32 {
    i32::try_from(length.as_micros()).unwrap_or(i32::MAX)
}
