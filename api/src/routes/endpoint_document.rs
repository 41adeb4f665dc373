//! An endpoint as a JSON document: what clients write and what they are shown.
//!
//! A create is the reading of a document, a change is the reading of the current document after an
//! RFC 7396 merge: so both have the same rules, and `null` means the default.
//!
//! What lies encrypted in the database ([`opened`]) is write-only; the URL and the metadata are shown to those
//! alone who may read.

use serde_json::{Map, Value};
use shared::domain::endpoint::{EndpointState, is_type_pattern};
use shared::domain::postback::EndpointKind;
use shared::policy::address::{AddressRules, parse_endpoint_url, unicode_form, vet_literal};
use shared::policy::headers::{MAX_HEADERS, Together, check_name, check_value};
use shared::policy::postback::{TemplateError, UrlTemplate};
use shared::sealed_parts::Headers;
use shared::sealing::MasterKeys;
use shared::store::endpoint_secrets::About;
use shared::store::endpoints::{Endpoint, EndpointDraft};
use uuid::Uuid;

mod opened;
mod postback;
mod settings;
mod shown;
mod signature;

pub(super) use self::opened::{Opened, open};
use self::shown::READ_ONLY;
pub(super) use self::shown::{
    CreatedEndpoint, Document, EndpointPatch, NewEndpoint, has_read_only,
};
use super::event_body::wrong_channels;
use crate::json::Fields;
use crate::problem::ApiError;

/// Stands for a header value or a key.
const HIDDEN: &str = "***";
const MOST_DESCRIPTION: usize = 1_024;
const MOST_PATTERNS: usize = 100;
/// As much of a header's name as an error repeats.
const MOST_NAME_SHOWN: usize = 64;
const MOST_METADATA_BYTES: usize = 16 << 10;

/// What reading a document needs to know of the process.
pub(super) struct Rules<'a> {
    pub(super) address: &'a AddressRules,
    pub(super) https_only: bool,
    pub(super) longest_timeout_ms: u32,
    pub(super) longest_age_seconds: u32,
    pub(super) keys: &'a MasterKeys,
}

/// Reads a document that describes the endpoint with this public id. `current`: what is sealed of it now,
/// for values that are hidden, and the endpoint itself unless it is being made.
pub(super) fn read(
    mut fields: Fields,
    id: Uuid,
    current: (&Opened, Option<&Endpoint>),
    rules: &Rules<'_>,
) -> Result<EndpointDraft, ApiError> {
    let settings = settings::read(&mut fields, rules);
    let url = url(&mut fields, settings.kind, rules);
    let description = fields
        .short_text("description", MOST_DESCRIPTION)
        .unwrap_or_default();
    let event_types = patterns(&mut fields);
    let channels = fields.texts("channels", usize::MAX).unwrap_or_default();
    if let Some(detail) = wrong_channels(&channels) {
        fields.wrong("channels", detail);
    }
    let enabled = fields.bool("enabled").unwrap_or(true);
    let ordered = fields.bool("ordered").unwrap_or(false);
    let sealed = Opened {
        headers: headers(&mut fields, &current.0.headers),
        client_certificate: opened::client_certificate(&mut fields, current.0),
    };
    let metadata = metadata(&mut fields);
    let what_to_do = match current.1 {
        None => "is read-only: leave it out",
        Some(_) => "is read-only, and not what it is now: leave it out, or read the endpoint again",
    };
    fields.refuse(&READ_ONLY, what_to_do);
    let rotate =
        "cannot be set: it is made here, and POST /v1/endpoints/{id}/secret/rotate makes another";
    fields.refuse(&["secret"], rotate);
    fields.finish()?;
    Ok(EndpointDraft {
        state: if enabled {
            EndpointState::Enabled
        } else {
            EndpointState::Disabled
        },
        url,
        description,
        event_types,
        channels,
        ordered,
        settings,
        sealed_headers: sealed.seal_headers(current, id, rules.keys),
        sealed_client_certificate: sealed.seal_client_certificate(current, id, rules.keys),
        metadata,
    })
}

/// Names of the fields that a change made different; none of an endpoint that was deleted.
pub(super) fn changed(before: &Endpoint, after: &Endpoint) -> Vec<String> {
    if after.draft.state == EndpointState::Deleted {
        return Vec::new();
    }
    let writable = |endpoint| Document::new(endpoint, None, &[], About::default()).writable();
    let (was, mut is) = (writable(before), writable(after));
    is.retain(|name, value| was.get(name) != Some(value));
    let mut names: Vec<String> = is.into_iter().map(|(name, _)| name).collect();
    // What did not change keeps its seal.
    if before.draft.sealed_headers != after.draft.sealed_headers {
        names.push("headers".to_owned());
    }
    if before.draft.sealed_client_certificate != after.draft.sealed_client_certificate {
        names.push(opened::CLIENT_CERTIFICATE.to_owned());
    }
    names.sort();
    names
}

/// The current document, with a merge patch applied (RFC 7396).
pub(super) fn merged(current: &Endpoint, opened: &Opened, patch: Map<String, Value>) -> Fields {
    let mut document = Document::new(current, Some(opened), &[], About::default()).writable();
    // A `null` takes away what is there; for a field that cannot be there it stays, to be refused.
    let unknown: Vec<String> = patch
        .keys()
        .filter(|name| !document.contains_key(*name))
        .cloned()
        .collect();
    // A method goes with the kind, and a number of attempts that nobody chose with the backoff.
    if patch
        .get("kind")
        .is_some_and(|kind| document.get("kind") != Some(kind))
    {
        document.remove("method");
    }
    let settings = &current.draft.settings;
    if patch.contains_key("backoff") && settings.max_attempts == settings.backoff.default_attempts()
    {
        document.remove("max_attempts");
    }
    merge(&mut document, patch.clone());
    for name in unknown {
        document.entry(name).or_insert(Value::Null);
    }
    Fields::from_map(document).sent(patch)
}

fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match (value, target.get_mut(&name)) {
            (Value::Null, _) => {
                target.remove(&name);
            }
            (Value::Object(inner), Some(Value::Object(existing))) => merge(existing, inner),
            (Value::Object(inner), _) => {
                let mut fresh = Map::new();
                merge(&mut fresh, inner);
                target.insert(name, Value::Object(fresh));
            }
            (other, _) => {
                target.insert(name, other);
            }
        }
    }
}

fn url(fields: &mut Fields, kind: EndpointKind, rules: &Rules<'_>) -> String {
    let Some(text) = fields.text("url") else {
        // A wrong type has been noted; an absent one has not.
        fields.required("url");
        return String::new();
    };
    // What is kept, and a URL of the same origin to be judged.
    let parsed = match kind {
        EndpointKind::Webhook => parse_endpoint_url(&text, rules.https_only)
            .map(|url| (url.to_string(), url))
            .map_err(|error| error.to_string()),
        EndpointKind::Postback => UrlTemplate::parse(&text, rules.https_only)
            .and_then(|it| Ok((it.to_string(), it.example().map_err(TemplateError::Url)?)))
            .map_err(|error| error.to_string()),
    };
    match parsed {
        Ok((kept, url)) => {
            if let Err(reason) = vet_literal(&url, rules.address) {
                fields.wrong("url", reason.to_string());
            }
            kept
        }
        Err(error) => {
            fields.wrong("url", error);
            String::new()
        }
    }
}

/// The URL as people write it; nothing where that is the same, or where the stored one is of before
/// today's rules.
fn url_unicode(stored: &str) -> Option<String> {
    unicode_form(&parse_endpoint_url(stored, false).ok()?)
}

fn patterns(fields: &mut Fields) -> Vec<String> {
    let patterns = fields
        .texts("event_types", MOST_PATTERNS)
        .unwrap_or_default();
    if !patterns.iter().all(|pattern| is_type_pattern(pattern)) {
        fields.wrong(
            "event_types",
            "each is an event type (1 to 128 of a-z A-Z 0-9 . _ -) or a prefix like `order.*`",
        );
    }
    patterns
}

fn headers(fields: &mut Fields, current: &Headers) -> Headers {
    let Some(given) = fields.object("headers") else {
        return Vec::new();
    };
    if given.len() > MAX_HEADERS {
        fields.wrong(
            "headers",
            format!("must have at most {MAX_HEADERS} entries"),
        );
        return Vec::new();
    }
    let mut headers = Vec::with_capacity(given.len());
    let mut together = Together::default();
    for (name, value) in given {
        let read = header_value(&name, &value, current).and_then(|value| {
            together
                .add(&name, &value)
                .map_err(|error| error.to_string())?;
            Ok(value)
        });
        match read {
            Ok(value) => headers.push((name, value)),
            Err(detail) => {
                let shown: String = name.chars().take(MOST_NAME_SHOWN).collect();
                fields.wrong("headers", format!("`{shown}` {detail}"));
            }
        }
    }
    headers
}

fn header_value(name: &str, value: &Value, current: &Headers) -> Result<String, String> {
    check_name(name).map_err(|error| error.to_string())?;
    let Value::String(value) = value else {
        return Err("must have a string as its value".to_owned());
    };
    let value = if value == HIDDEN {
        let known = current.iter().find(|(known, _)| known == name);
        let (_, value) =
            known.ok_or_else(|| format!("has no value yet that `{HIDDEN}` could stand for"))?;
        value
    } else {
        value
    };
    check_value(value).map_err(|error| error.to_string())?;
    Ok(value.clone())
}

fn metadata(fields: &mut Fields) -> Value {
    let map = fields.object("metadata").unwrap_or_default();
    let value = Value::Object(map);
    if value.to_string().len() > MOST_METADATA_BYTES {
        let detail = format!("must have at most {MOST_METADATA_BYTES} bytes");
        fields.wrong("metadata", detail);
    } else if has_nul(&value) {
        fields.wrong("metadata", "must not contain U+0000");
    }
    value
}

/// Whether a text in it holds the one character that PostgreSQL's `jsonb` refuses.
fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(has_nul),
        Value::Object(map) => map
            .iter()
            .any(|(name, value)| name.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
