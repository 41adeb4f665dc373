//! An attempt as a span: what its record says, from its start to its end.

use std::time::Duration;

use shared::domain::attempt::Outcome;
use shared::domain::trace::{SpanId, TraceContext};
use shared::ids::EndpointId;
use shared::runtime::traces::{PublicId, Side, Span, Value};

use crate::job::Record;

/// The span of an attempt that took so long. `parent` is what its event belongs to.
pub(crate) fn attempt_span(
    record: &Record,
    endpoint: EndpointId,
    (context, parent): (TraceContext, SpanId),
    took: Duration,
) -> Option<Span> {
    let facts = record.attempt.as_ref()?;
    let id = |name, id| (name, Value::Id(id));
    let number = |name, number: i64| (name, Value::Number(number));
    let mut attributes = vec![
        id("delivery.id", PublicId::Delivery(record.delivery)),
        id("event.id", PublicId::Event(record.event_id)),
        id("endpoint.id", PublicId::Endpoint(endpoint.0)),
        number("attempt.number", i64::from(record.attempts_before) + 1),
        ("outcome", Value::Word(record.outcome.name())),
    ];
    let phases = &facts.phases;
    let more = [
        ("http.response.status_code", facts.status.map(i32::from)),
        ("timings_us.queue", phases.queue_us),
        ("timings_us.dns", phases.dns_us),
        ("timings_us.connect", phases.connect_us),
        ("timings_us.tls", phases.tls_us),
        ("timings_us.first_byte", phases.first_byte_us),
    ];
    let known = more
        .into_iter()
        .filter_map(|(name, value)| Some(number(name, value?.into())));
    attributes.extend(known);
    Some(Span {
        name: "attempt",
        side: Side::Client,
        context,
        parent: Some(parent),
        started: facts.started_at,
        ended: facts.started_at + took,
        failed: record.outcome != Outcome::Delivered,
        attributes,
    })
}
