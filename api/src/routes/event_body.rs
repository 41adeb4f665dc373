//! The body of `POST /v1/events`, and each item of a batch: one pass on the way in, and a second, slow one that explains what
//! was wrong with a body that did not pass.
//!
//! # Invariants
//! - P1: the payload's bytes are a slice of the body that came in; nothing is parsed and printed again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use shared::domain::idempotency::{IdempotencyKey, wrong_external_id};
use shared::domain::order::{OrderKey, wrong_key};
use shared::domain::trace::TraceContext;
use shared::ids::TenantKey;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::ingest::NewEvent;
use crate::instant::Instant;
use crate::json::{self, NOT_AN_INSTANT, depth, malformed};
use crate::openapi::schema;
use crate::problem::{ApiError, FieldError, Kind};

/// The deepest nesting of a payload: deeper ones overflow the stacks of the receivers' parsers.
const MOST_DEPTH: usize = 128;
/// The longest event type and channel, in bytes.
const MOST_NAME: usize = 128;
/// The most channels of one event.
const MOST_CHANNELS: usize = 32;
/// What the fields around the payload may take of a body.
pub(crate) const ENVELOPE: usize = 64 << 10;

/// An event to be published.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewEvent)]
pub(super) struct Body<'a> {
    /// What endpoints choose by. Types that begin with `postrider.` are reserved.
    #[serde(borrow, rename = "type")]
    #[schema(
        pattern = r"^(?!postrider\.)[a-zA-Z0-9._-]{1,128}$",
        example = "order.created"
    )]
    event_type: Cow<'a, str>,
    /// Any JSON value, nested at most 128 deep; 256 KiB unless the operator says otherwise.
    #[serde(borrow)]
    #[schema(value_type = Value)]
    payload: &'a RawValue,
    /// Each has at most 128 bytes.
    #[serde(default)]
    #[schema(value_type = Option<Vec<schema::Channel>>, max_items = 32)]
    channels: Option<Vec<String>>,
    /// Not delivered any more from then on. In the future.
    #[serde(default)]
    #[schema(value_type = Option<Instant>)]
    deliver_before: Option<String>,
    /// For endpoints with `ordered`: what has the same key is delivered in the order of its events. As a channel's name.
    #[serde(borrow, default)]
    #[schema(value_type = Option<schema::Channel>)]
    ordering_key: Option<Cow<'a, str>>,
    /// Your own name for the event: for 24 hours another one of that name is the same event.
    #[serde(borrow, default)]
    #[schema(value_type = Option<schema::EventExternalId>)]
    external_id: Option<Cow<'a, str>>,
}

/// What an event is checked against, besides itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) tenant: TenantKey,
    /// It has a key of its request: it may have been accepted before.
    pub(crate) keyed: bool,
    /// The operator's limit on a payload.
    pub(crate) most_bytes: usize,
    /// The database's time.
    pub(crate) now: OffsetDateTime,
    /// Where the request stands in a trace.
    pub(crate) trace: Option<TraceContext>,
}

/// Reads and checks an event: `json`, a part of the body that came in. Errors point into `base`.
pub(crate) fn parse(
    body: &Bytes,
    json: &[u8],
    rules: Rules,
    base: &str,
) -> Result<NewEvent, ApiError> {
    let Rules {
        tenant,
        keyed,
        most_bytes,
        now,
        trace,
    } = rules;
    if json.trim_ascii_start().first() == Some(&b'[') {
        // serde would take a list for a struct's fields in their order.
        return Err(no_object(base));
    }
    let parsed: Body<'_> =
        serde_json::from_slice(json).map_err(|error| explain(json, &error, base))?;
    let payload = parsed.payload.get().as_bytes();
    if payload.len() > most_bytes {
        let detail = format!(
            "the payload has {} bytes; at most {most_bytes} are allowed",
            payload.len()
        );
        return Err(ApiError::new(Kind::PayloadTooLarge, detail));
    }
    let mut errors = Vec::new();
    let mut check = |pointer: &str, problem: Option<String>| {
        if let Some(detail) = problem {
            errors.push(FieldError {
                pointer: format!("{base}{pointer}"),
                detail,
            });
        }
    };
    let channels = parsed.channels.as_deref().unwrap_or_default();
    check("/type", wrong_type(&parsed.event_type));
    check("/payload", too_deep(payload));
    check("/channels", wrong_channels(channels));
    // With a key the writer decides: the same event may have been accepted in time.
    let keyed = keyed || parsed.external_id.is_some();
    let deliver_before = match parsed.deliver_before.as_deref().map(instant).transpose() {
        Ok(at) if !keyed && at.is_some_and(|at| at <= now) => {
            check("/deliver_before", Some(OVER.to_owned()));
            at
        }
        Ok(at) => at,
        Err(detail) => {
            check("/deliver_before", Some(detail));
            None
        }
    };
    let ordering_key = parsed.ordering_key.as_deref();
    check("/ordering_key", ordering_key.and_then(wrong_key));
    let external_id = parsed.external_id.as_deref();
    check("/external_id", external_id.and_then(wrong_external_id));
    if !errors.is_empty() {
        return Err(ApiError::fields(errors));
    }
    Ok(NewEvent {
        tenant,
        payload: body.slice_ref(payload),
        deliver_before,
        order_key: ordering_key.map(|text| OrderKey::new(tenant, text)),
        idempotency: external_id
            .map(|id| once(id, &parsed, payload))
            .into_iter()
            .collect(),
        external_id: external_id.map(Box::from),
        event_type: parsed.event_type.into(),
        channels: parsed.channels.unwrap_or_default(),
        trace,
        checked: None,
        configuration: 0,
        id: None,
        from_journal: false,
    })
}

/// The key that an `external_id` is: it stands for the event, however its envelope was written.
fn once(external_id: &str, event: &Body<'_>, payload: &[u8]) -> IdempotencyKey {
    let mut parts = vec![
        event.event_type.as_bytes(),
        payload,
        event
            .deliver_before
            .as_deref()
            .unwrap_or_default()
            .as_bytes(),
        event.ordering_key.as_deref().unwrap_or_default().as_bytes(),
    ];
    let channels = event.channels.iter().flatten();
    parts.extend(channels.map(String::as_bytes));
    IdempotencyKey::of_external_id(external_id, &parts)
}

/// What is wrong with a `deliver_before` that is over.
pub(crate) const OVER: &str = "must be in the future";

/// What is wrong with an event type, if anything.
pub(crate) fn wrong_type(name: &str) -> Option<String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > MOST_NAME || !name.bytes().all(legal) {
        return Some(format!(
            "must be 1 to {MOST_NAME} of the characters a-z A-Z 0-9 . _ -"
        ));
    }
    name.starts_with("postrider.")
        .then(|| "types that begin with `postrider.` are reserved".to_owned())
}

/// What is wrong with a list of channels, if anything.
pub(crate) fn wrong_channels(channels: &[String]) -> Option<String> {
    if channels.len() > MOST_CHANNELS {
        return Some(format!("must have at most {MOST_CHANNELS} entries"));
    }
    channels
        .iter()
        .any(|name| name.is_empty() || name.len() > MOST_NAME || name.chars().any(char::is_control))
        .then(|| format!("each must have 1 to {MOST_NAME} bytes and no control characters"))
}

/// What is wrong with a payload's nesting, if anything.
pub(super) fn too_deep(payload: &[u8]) -> Option<String> {
    let depth = depth(payload);
    (depth > MOST_DEPTH).then(|| format!("is nested {depth} deep; at most {MOST_DEPTH} is allowed"))
}

fn instant(text: &str) -> Result<OffsetDateTime, String> {
    json::instant(text).ok_or_else(|| NOT_AN_INSTANT.to_owned())
}

fn no_object(base: &str) -> ApiError {
    let what = if base.is_empty() { "the body" } else { "it" };
    ApiError::fields(vec![FieldError {
        pointer: base.to_owned(),
        detail: format!("{what} must be a JSON object"),
    }])
}

/// Why a body is not an event: every field that is wrong, not only the first.
fn explain(body: &[u8], error: &serde_json::Error, base: &str) -> ApiError {
    if !error.is_data() {
        return malformed(error);
    }
    let fields: BTreeMap<String, &RawValue> = match serde_json::from_slice(body) {
        Ok(fields) => fields,
        Err(other) if other.is_data() => return no_object(base),
        Err(other) => return malformed(&other),
    };
    let mut errors = Vec::new();
    let mut wrong = |name: &str, detail: &str| {
        errors.push(FieldError {
            pointer: format!("{base}/{}", name.replace('~', "~0").replace('/', "~1")),
            detail: detail.to_owned(),
        });
    };
    for required in ["type", "payload"] {
        if !fields.contains_key(required) {
            wrong(required, "is required");
        }
    }
    for (name, raw) in &fields {
        let value: Value = match name.as_str() {
            "payload" => continue,
            _ => serde_json::from_str(raw.get()).unwrap_or(Value::Null),
        };
        match (name.as_str(), value) {
            ("type", Value::String(text)) => {
                if let Some(detail) = wrong_type(&text) {
                    wrong(name, &detail);
                }
            }
            ("type", _) => wrong(name, "must be a string"),
            ("deliver_before", Value::Null | Value::String(_)) => {}
            ("ordering_key", Value::Null) => {}
            ("ordering_key", Value::String(text)) => {
                if let Some(detail) = wrong_key(&text) {
                    wrong(name, &detail);
                }
            }
            ("external_id", Value::Null) => {}
            ("external_id", Value::String(text)) => {
                if let Some(detail) = wrong_external_id(&text) {
                    wrong(name, &detail);
                }
            }
            ("ordering_key" | "external_id", _) => wrong(name, "must be a string"),
            ("deliver_before", _) => wrong(name, "must be an RFC 3339 instant"),
            ("channels", Value::Null) => {}
            ("channels", Value::Array(items)) if items.iter().all(Value::is_string) => {}
            ("channels", _) => wrong(name, "must be a list of strings"),
            _ => wrong(name, "is not a known field"),
        }
    }
    if errors.is_empty() {
        // Such as the same field twice.
        errors.push(FieldError {
            pointer: base.to_owned(),
            detail: error.to_string(),
        });
    }
    ApiError::fields(errors)
}
