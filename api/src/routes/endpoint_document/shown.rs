//! The document that clients are shown, and from its schema those of what they send.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use shared::domain::endpoint::{Backoff, BreakerSettings, EndpointState, OnDeadLetter, RateLimit};
use shared::domain::postback::{EndpointKind, OnMissingField, RequestMethod};
use shared::domain::signature::{SignatureStyle, Signing};
use shared::ids::EndpointId;
use shared::store::endpoint_secrets::About;
use shared::store::endpoints::Endpoint;
use utoipa::openapi::schema::{AdditionalProperties, Object, OneOf, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::opened::{ClientCertificateShown, Opened};
use super::url_unicode;
use crate::instant::Instant;
use crate::openapi::schema;

/// What is shown and cannot be written.
pub(super) const READ_ONLY: [&str; 7] = [
    "id",
    "url_unicode",
    "public_keys",
    "secrets",
    "disabled_reason",
    "created_at",
    "updated_at",
];

/// Whether a patch has something that is shown and cannot be written.
pub(in crate::routes) fn has_read_only(patch: &Map<String, Value>) -> bool {
    READ_ONLY.iter().any(|name| patch.contains_key(*name))
}

/// Where events of a tenant go, which of them, and within which limits.
#[derive(Serialize, ToSchema)]
#[schema(as = Endpoint)]
pub(in crate::routes) struct Document {
    /// For its entity tag.
    #[serde(skip)]
    pub(in crate::routes) version: i32,
    #[schema(value_type = schema::EndpointId)]
    id: EndpointId,
    /// `http` or `https`. Left out, as `metadata`, for keys without the scope `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    url: Option<String>,
    /// The URL as people write it; left out where that is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    url_unicode: Option<String>,
    #[schema(value_type = schema::Description)]
    description: String,
    /// Event types and prefixes like `order.*`; none: all.
    #[schema(value_type = Vec<schema::EventTypePattern>, max_items = 100)]
    event_types: Vec<String>,
    /// None: all; else events that share at least one.
    #[schema(value_type = Vec<schema::Channel>, max_items = 32)]
    channels: Vec<String>,
    enabled: bool,
    /// Whether deliveries with the same ordering key are sent in order.
    ordered: bool,
    /// The tenant's own notes: at most 16 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    metadata: Option<Value>,
    /// Null if they cannot be opened with the keys that the server has.
    #[schema(required, value_type = Option<schema::EndpointHeaders>)]
    headers: Option<BTreeMap<String, &'static str>>,
    #[schema(required)]
    client_certificate: Option<ClientCertificateShown>,
    /// Milliseconds for a whole attempt.
    #[schema(minimum = 100)]
    timeout_ms: u32,
    /// How many attempts may be charged to a delivery.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: u16,
    #[schema(value_type = schema::EndpointBackoff)]
    backoff: Backoff,
    /// The most requests at the endpoint at once.
    #[schema(minimum = 1, maximum = 1000)]
    max_in_flight: u16,
    /// Older deliveries become dead letters.
    #[schema(minimum = 60)]
    max_age_seconds: u32,
    /// Deliveries above it are skipped.
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_pending: u32,
    #[schema(required, value_type = Option<schema::EndpointRateLimit>)]
    rate_limit: Option<RateLimit>,
    /// Statuses that are tried again though they would not be otherwise.
    #[schema(value_type = Vec<schema::RetryStatus>, max_items = 50)]
    retry_statuses: Vec<u16>,
    #[schema(value_type = schema::EndpointOnDeadLetter)]
    on_dead_letter: OnDeadLetter,
    /// Whether the dead letters of an outage are sent again when it is over.
    replay_on_recovery: bool,
    /// After so long without any success it is disabled; 0: never, else an hour at least.
    #[schema(minimum = 0, maximum = 2_592_000)]
    disable_after_seconds: u32,
    #[schema(value_type = schema::EndpointBreaker)]
    breaker: BreakerSettings,
    #[schema(value_type = schema::EndpointSignature)]
    signature: SignatureStyle,
    #[schema(value_type = schema::EndpointSigning)]
    signing: Signing,
    #[schema(value_type = schema::PostbackOrWebhook)]
    kind: EndpointKind,
    #[schema(value_type = schema::EndpointMethod)]
    method: RequestMethod,
    /// Of a postback: `name={field}&other={field}`, for its query or its form.
    #[schema(required, max_length = 8192)]
    template: Option<String>,
    #[schema(value_type = schema::EndpointOnMissingField)]
    on_missing_field: OnMissingField,
    /// Paths of the payload's fields that nobody is shown.
    #[schema(value_type = Vec<schema::Path>, max_items = 64)]
    redact: Vec<String>,
    /// Whether its requests carry a `traceparent`, where the event's request had one or the operator traces.
    trace_context: bool,
    /// `whpk_…`, the newest first; for receivers that verify `v1a`.
    public_keys: Vec<String>,
    /// The secrets that sign, without their texts; the current one, which has no end, first.
    secrets: Vec<SecretShown>,
    /// Why it is disabled, in words.
    #[schema(required)]
    disabled_reason: Option<String>,
    created_at: Instant,
    updated_at: Instant,
}

/// A secret's life.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointSecret)]
struct SecretShown {
    created_at: Instant,
    #[schema(required)]
    expires_at: Option<Instant>,
}

/// An endpoint that was just made.
#[derive(Serialize, ToSchema)]
pub(in crate::routes) struct CreatedEndpoint {
    #[serde(flatten)]
    #[schema(value_type = Document)]
    pub(in crate::routes) endpoint: Document,
    /// What receivers verify signatures with: in this reply and, when it is rotated, in that one.
    pub(in crate::routes) secret: String,
}

impl Document {
    pub(in crate::routes) fn new(
        endpoint: &Endpoint,
        opened: Option<&Opened>,
        public_keys: &[String],
        about: About,
    ) -> Self {
        let draft = &endpoint.draft;
        let settings = draft.settings.clone();
        Self {
            version: endpoint.version,
            id: EndpointId(endpoint.id),
            url: Some(draft.url.clone()),
            url_unicode: url_unicode(&draft.url),
            description: draft.description.clone(),
            event_types: draft.event_types.clone(),
            channels: draft.channels.clone(),
            enabled: draft.state == EndpointState::Enabled,
            ordered: draft.ordered,
            metadata: Some(draft.metadata.clone()),
            headers: opened.map(Opened::headers_shown),
            client_certificate: opened.and_then(Opened::client_certificate_shown),
            timeout_ms: settings.timeout_ms,
            max_attempts: settings.max_attempts,
            backoff: settings.backoff,
            max_in_flight: settings.max_in_flight,
            max_age_seconds: settings.max_age_seconds,
            max_pending: settings.max_pending,
            rate_limit: settings.rate_limit,
            retry_statuses: settings.retry_statuses,
            on_dead_letter: settings.on_dead_letter,
            replay_on_recovery: settings.replay_on_recovery,
            disable_after_seconds: settings.disable_after_seconds,
            breaker: settings.breaker,
            signature: settings.signature,
            signing: settings.signing,
            kind: settings.kind,
            method: settings.method,
            template: settings.template,
            on_missing_field: settings.on_missing_field,
            redact: settings.redact,
            trace_context: settings.trace_context,
            public_keys: public_keys.to_vec(),
            secrets: about
                .secrets
                .into_iter()
                .map(|(created_at, expires_at)| SecretShown {
                    created_at: Instant(created_at),
                    expires_at: expires_at.map(Instant),
                })
                .collect(),
            disabled_reason: about.disabled_reason,
            created_at: Instant(endpoint.created_at),
            updated_at: Instant(endpoint.updated_at),
        }
    }

    /// What a key without the scope `read` is shown, not even of what it has just written: a URL may be the
    /// receiver's credential, and metadata is whatever the tenant keeps there. Left out instead of replaced: a
    /// document that is sent back as it was shown changes nothing.
    pub(in crate::routes) fn without_what_readers_see(self) -> Self {
        Self {
            url: None,
            url_unicode: None,
            metadata: None,
            ..self
        }
    }

    /// Takes what cannot be written out of a patch, where it is as it is shown here. What is not stays, to be refused.
    pub(in crate::routes) fn take_read_only(&self, patch: &mut Map<String, Value>) {
        let Ok(Value::Object(shown)) = serde_json::to_value(self) else {
            return;
        };
        patch.retain(|name, value| {
            !READ_ONLY.contains(&name.as_str()) || shown.get(name) != Some(value)
        });
    }

    /// The fields that clients may write, with their values.
    pub(super) fn writable(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(self) else {
            return Map::new();
        };
        for name in READ_ONLY {
            fields.remove(name);
        }
        fields
    }
}

/// An endpoint to be made: what can be written of one.
pub(in crate::routes) struct NewEndpoint;

/// A merge patch of an endpoint (RFC 7396).
pub(in crate::routes) struct EndpointPatch;

impl PartialSchema for NewEndpoint {
    fn schema() -> RefOr<Schema> {
        request("An endpoint to be made. `null` is the default.", &["url"])
    }
}

impl ToSchema for NewEndpoint {
    fn name() -> Cow<'static, str> {
        "NewEndpoint".into()
    }
}

impl PartialSchema for EndpointPatch {
    fn schema() -> RefOr<Schema> {
        let what = "What is to change of an endpoint: a merge patch (RFC 7396). `null` resets to the default.";
        request(what, &[])
    }
}

impl ToSchema for EndpointPatch {
    fn name() -> Cow<'static, str> {
        "EndpointPatch".into()
    }
}

/// The schema of a request, from that of the document: without what cannot be written; `null` for everything
/// but the URL.
fn request(description: &str, required: &[&str]) -> RefOr<Schema> {
    let mut named = Vec::new();
    Document::schemas(&mut named);
    let named: BTreeMap<String, RefOr<Schema>> = named.into_iter().collect();
    let RefOr::T(Schema::Object(mut document)) = Document::schema() else {
        return Document::schema();
    };
    document
        .properties
        .retain(|name, _| !READ_ONLY.contains(&name.as_str()));
    for (name, property) in &mut document.properties {
        let inlined = inline(property.clone(), &named);
        *property = if name == "url" {
            inlined
        } else {
            nullable(inlined)
        };
    }
    document.required = required.iter().map(ToString::to_string).collect();
    document.description = Some(description.to_owned());
    document.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    RefOr::T(Schema::Object(document))
}

/// A nested object, in which each field may be `null` as well, in the place of its name.
fn inline(schema: RefOr<Schema>, named: &BTreeMap<String, RefOr<Schema>>) -> RefOr<Schema> {
    match schema {
        RefOr::Ref(reference) => {
            let name = reference
                .ref_location
                .rsplit('/')
                .next()
                .unwrap_or_default();
            match named.get(name) {
                Some(found) => inline(found.clone(), named),
                None => RefOr::Ref(reference),
            }
        }
        RefOr::T(Schema::OneOf(mut choice)) => {
            choice.items.retain(|item| !is_null(item));
            for item in &mut choice.items {
                *item = inline(item.clone(), named);
            }
            match choice.items.as_slice() {
                [only] => only.clone(),
                _ => RefOr::T(Schema::OneOf(choice)),
            }
        }
        RefOr::T(Schema::Object(mut object)) => {
            for property in object.properties.values_mut() {
                *property = nullable(property.clone());
            }
            RefOr::T(Schema::Object(object))
        }
        other @ RefOr::T(_) => other,
    }
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if object.schema_type == SchemaType::Type(Type::Null))
}

fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    let null = Object::builder().schema_type(Type::Null);
    match schema {
        RefOr::T(Schema::OneOf(mut choice)) => {
            choice.items.push(null.into());
            RefOr::T(Schema::OneOf(choice))
        }
        other @ (RefOr::Ref(_) | RefOr::T(_)) => RefOr::T(Schema::OneOf(
            OneOf::builder().item(other).item(null).build(),
        )),
    }
}
