//! Spans in the words of OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Wire, Status};
use time::OffsetDateTime;

use super::{PublicId, Side, Span, Value};
use crate::ids::{DeliveryId, EndpointId, EventId};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The request that carries these spans.
pub(super) fn request(service: &str, spans: &[Span]) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", service.to_owned()),
            text("service.version", VERSION.to_owned()),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "postrider".to_owned(),
        version: VERSION.to_owned(),
        ..InstrumentationScope::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans: spans.iter().map(wire).collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    }
}

fn wire(span: &Span) -> Wire {
    let kind = match span.side {
        Side::Server => SpanKind::Server,
        Side::Client => SpanKind::Client,
    };
    Wire {
        trace_id: span.context.trace.to_bytes().to_vec(),
        span_id: span.context.span.to_bytes().to_vec(),
        parent_span_id: span
            .parent
            .map(|id| id.to_bytes().to_vec())
            .unwrap_or_default(),
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.started),
        end_time_unix_nano: nanos(span.ended),
        attributes: span.attributes.iter().map(attribute).collect(),
        status: span.failed.then(|| Status {
            code: StatusCode::Error.into(),
            ..Status::default()
        }),
        ..Wire::default()
    }
}

fn attribute((name, value): &(&'static str, Value)) -> KeyValue {
    match value {
        Value::Word(word) => text(name, (*word).to_owned()),
        Value::Id(PublicId::Event(id)) => text(name, EventId(*id).to_string()),
        Value::Id(PublicId::Delivery(id)) => text(name, DeliveryId(*id).to_string()),
        Value::Id(PublicId::Endpoint(id)) => text(name, EndpointId(*id).to_string()),
        Value::Number(number) => pair(name, Any::IntValue(*number)),
    }
}

fn text(name: &str, value: String) -> KeyValue {
    pair(name, Any::StringValue(value))
}

fn pair(name: &str, value: Any) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn nanos(at: OffsetDateTime) -> u64 {
    u64::try_from(at.unix_timestamp_nanos()).unwrap_or(0)
}
