//! An attempt as a span: what its record says, from its start to its end.

use shared::domain::attempt::Outcome;
use shared::domain::trace::{SpanId, TraceContext};
use shared::ids::EndpointId;
use shared::runtime::clock::{BootTime, DatabaseClock};
use shared::runtime::traces::{PublicId, Side, Span, Value};

use crate::job::Record;

/// The span of an attempt that ended just now. `parent` is what its event belongs to.
pub(crate) fn attempt_span(
    record: &Record,
    endpoint: EndpointId,
    (context, parent): (TraceContext, SpanId),
    clock: &DatabaseClock,
    (started, ended): (BootTime, BootTime),
) -> Span {
    let id = |name, id| (name, Value::Id(id));
    let number = |name, number: i64| (name, Value::Number(number));
    let mut attributes = vec![
        id("delivery.id", PublicId::Delivery(record.delivery)),
        id("event.id", PublicId::Event(record.event_id)),
        id("endpoint.id", PublicId::Endpoint(endpoint.0)),
        number("attempt.number", i64::from(record.attempts_before) + 1),
        ("outcome", Value::Word(record.outcome.name())),
    ];
    if let Some(facts) = &record.attempt {
        let status = facts.status.map(i64::from);
        let phases = &facts.phases;
        let more = [
            ("http.response.status_code", status),
            ("timings_us.queue", phases.queue_us.map(i64::from)),
            ("timings_us.dns", phases.dns_us.map(i64::from)),
            ("timings_us.connect", phases.connect_us.map(i64::from)),
            ("timings_us.tls", phases.tls_us.map(i64::from)),
            ("timings_us.first_byte", phases.first_byte_us.map(i64::from)),
        ];
        attributes.extend(more.into_iter().filter_map(|(name, value)| Some(number(name, value?))));
    }
    Span {
        name: "attempt",
        side: Side::Client,
        context,
        parent: Some(parent),
        started: clock.at(started),
        ended: clock.at(ended),
        failed: record.outcome != Outcome::Delivered,
        attributes,
    }
}
