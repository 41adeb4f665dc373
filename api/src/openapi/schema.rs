//! Schemas of what `shared` defines: it does not know OpenAPI. Patterns and names come from there.

use std::borrow::Cow;

use serde_json::json;
use shared::domain::attempt::Outcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass, Kind, Status, WaitingFor};
use shared::domain::idempotency;
use shared::domain::replay::{NotReplayable, ReplayStatus};
use shared::ids;
use shared::policy::payload::MOST_PATH;
use utoipa::openapi::schema::{AdditionalProperties, Array, Object, OneOf, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::auth::{MOST_EXTERNAL_ID, Scope};
use crate::routes::MOST_NAME;

/// A type that stands for a schema and nothing else.
macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident = $schema:expr;)+) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    Schema::from($schema).into()
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    stringify!($name).into()
                }
            }
        )+
    };
}

schemas! {
    EventId = id(ids::EventId::PREFIX);
    DeliveryId = id(ids::DeliveryId::PREFIX);
    EndpointId = id(ids::EndpointId::PREFIX);
    TenantId = id(ids::TenantId::PREFIX);
    OrganizationId = id(ids::OrganizationId::PREFIX);
    KeyId = id(ids::KeyId::PREFIX);
    ReplayId = id(ids::ReplayId::PREFIX);
    RemovalId = id(ids::RemovalId::PREFIX);
    AuditId = id(ids::AuditId::PREFIX);
    /// Not `Status`: the document has one name space.
    DeliveryStatus = names(
        Status::ALL.iter().map(|it| it.name()),
        "How a delivery stands. `failed` waits for its next attempt; `delivered`, `dead_letter`, `cancelled` \
         and `skipped` are final.",
    );
    AttemptOutcome = names(
        Outcome::ALL.iter().map(|it| it.name()),
        "What came of an attempt: a class, so that a program can react to it.",
    );
    DeliveryCloseReason = names(
        CloseReason::ALL.iter().map(|it| it.name()),
        "Why a delivery was closed without being delivered or dead.",
    );
    DeliveryWaitingFor = names(
        WaitingFor::ALL.iter().map(|it| it.name()),
        "What a delivery waits for that is neither on the wire nor final.",
    );
    DeliveryDeadLetterClass = names(
        DeadLetterClass::ALL.iter().map(|it| it.name()),
        "What kind of failure ended a delivery: decides who should look.",
    );
    ReplayState = names(
        ReplayStatus::ALL.iter().map(|it| it.name()),
        "`failed` is through a fault of ours.",
    );
    NotReplayableReason = names(
        NotReplayable::ALL.iter().map(|it| it.name()),
        "Why an event could not be sent again.",
    );
    DeliveryKind = names(Kind::ALL.iter().map(|it| it.name()), "Why a delivery exists.");
    DeadLetterPattern = names(
        ["burst", "auth_or_throttle", "slow_drip"].into_iter(),
        "How the dead letters of an endpoint came: `auth_or_throttle`: at least half were answered with 401, 403, 407 \
         or 429; `burst`: five or more, of which 80 % died within a quarter of an hour; `slow_drip`: neither.",
    );
    /// How a delivery can have ended.
    EndedStatus = names(
        Status::ALL.iter().filter(|it| it.is_final()).map(|it| it.name()),
        "How a delivery has ended.",
    );
    /// The name of a channel: at most 128 bytes.
    Channel = text(1, 128, NO_CONTROL);
    Description = text(0, 1_024, NO_CONTROL);
    EventTypeName = text(1, 128, r"^[a-zA-Z0-9._-]{1,128}$");
    /// A JSON Schema (2020-12): an object, or `true` or `false`.
    JsonSchema = Object::builder()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Boolean]))
        .description(Some("A JSON Schema (2020-12)"))
        .build();
    /// An event type, or a prefix like `order.*`.
    EventTypePattern = text(1, 128, r"^[a-zA-Z0-9._-]+(\.\*)?$");
    /// Of an answer: not 410 and 429, which have a meaning of their own.
    RetryStatus = whole(300, 599, "Not 410 and 429");
    /// A name that says something.
    Name = text(1, MOST_NAME, r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$");
    OptionalName = text(0, MOST_NAME, NO_CONTROL);
    /// No space at either end.
    ExternalId = text(0, MOST_EXTERNAL_ID, r"^([^\s\u0000-\u001f\u007f-\u009f]([^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f])?)?$");
    /// Your own name for an event.
    EventExternalId = text(1, idempotency::MOST_EXTERNAL_ID, NO_CONTROL);
    /// For `If-Match`.
    StrongTags = text(1, 512, r#"^(\*|"[!#-+\--~]*"(, ?"[!#-+\--~]*"){0,15})$"#);
    /// For `If-None-Match`.
    Tags = text(1, 512, r#"^(\*|(W/)?"[!#-+\--~]*"(, ?(W/)?"[!#-+\--~]*"){0,15})$"#);
    KeyScope = names(Scope::ALL.iter().map(|it| it.name()), "What a key may do.");
    EndpointBackoff = backoff();
    EndpointRateLimit = Object::builder()
        .schema_type(Type::Object)
        .property("per_second", Object::builder().schema_type(Type::Number).minimum(Some(0.000_1)).maximum(Some(10_000)))
        .property("burst", whole(1, 10_000, "Requests at once after a quiet time; what comes in a second if absent"))
        .required("per_second")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .description(Some("How fast the endpoint may be sent to; null: as fast as it answers"))
        .build();
    EndpointBreaker = Object::builder()
        .schema_type(Type::Object)
        .property("failures", whole(1, 1_000, "Failures in a row that open it"))
        .property("cooldown_seconds", whole(1, 86_400, "From its opening to the first probe"))
        .property("max_cooldown_seconds", whole(1, 86_400, "The longest wait between probes"))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .description(Some("When the endpoint's breaker opens, and how long it stays so"))
        .build();
    EndpointHeaders = Object::builder()
        .schema_type(Type::Object)
        .additional_properties(Some(Object::builder().schema_type(Type::String)))
        .description(Some("The endpoint's own headers. Values are shown as `***`, which stands for what is there"))
        .build();
    EndpointSignature = names(
        ["standard", "stripe", "none"].into_iter(),
        "Which header carries the signature, and in which form",
    );
    EndpointOnDeadLetter = names(
        ["release", "block"].into_iter(),
        "What a dead letter does to those behind it with the same ordering key",
    );
    EndpointSigning = signing();
    PostbackOrWebhook = names(
        ["webhook", "postback"].into_iter(),
        "What the endpoint's requests carry: the payload, or fields of it in the URL or a form",
    );
    EndpointMethod = names(
        ["POST", "GET", "PUT"].into_iter(),
        "`GET` is for postbacks only, and their default",
    );
    EndpointOnMissingField = names(
        ["fail", "empty"].into_iter(),
        "What becomes of a postback whose payload lacks a field of its template",
    );
    /// A way to a field of the payload: `order.items.0.id`.
    Path = text(1, MOST_PATH, r"^[a-zA-Z0-9_$-]+(\.[a-zA-Z0-9_$-]+){0,7}$");
}

/// No control characters.
pub(crate) const NO_CONTROL: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

/// An id's text: a TypeID.
fn id(prefix: &str) -> Object {
    Object::builder()
        .schema_type(Type::String)
        .pattern(Some(format!("^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$")))
        .examples([json!(example_id(prefix))])
        .build()
}

/// The id that examples use.
pub(crate) fn example_id(prefix: &str) -> String {
    format!("{prefix}_01kb9h2v3cfzqt9m6w8x5y7r2n")
}

fn text(least: usize, most: usize, pattern: &str) -> Object {
    Object::builder()
        .schema_type(Type::String)
        .min_length(Some(least))
        .max_length(Some(most))
        .pattern(Some(pattern))
        .build()
}

fn whole(least: u32, most: u32, description: &str) -> Object {
    Object::builder()
        .schema_type(Type::Integer)
        .minimum(Some(least))
        .maximum(Some(most))
        .description(Some(description))
        .build()
}

fn names<'a>(names: impl Iterator<Item = &'a str>, description: &str) -> Object {
    Object::builder()
        .schema_type(Type::String)
        .enum_values(Some(names.map(str::to_owned)))
        .description(Some(description))
        .build()
}

fn backoff() -> OneOf {
    let doubling = Object::builder()
        .schema_type(Type::Object)
        .property(
            "base_seconds",
            whole(1, 3_600, "Doubled with every attempt made"),
        )
        .property(
            "max_seconds",
            whole(1, 86_400, "The most that the bound grows to"),
        )
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        .description(Some(
            "The delay before attempt n + 1 is uniform between 0 and min(base · 2ⁿ, max)",
        ));
    let preset = names(
        ["fast", "standard-webhooks"].into_iter(),
        "`fast` is five attempts in a quarter of an hour, `standard-webhooks` ten in three days",
    );
    OneOf::builder()
        .item(doubling)
        .item(preset)
        .description(Some("The delays between the attempts of a delivery"))
        .default(Some(json!("fast")))
        .build()
}

fn signing() -> Array {
    let scheme = names(
        ["v1", "v1a"].into_iter(),
        "`v1` is HMAC-SHA256, `v1a` Ed25519",
    );
    Array::builder()
        .items(scheme)
        .min_items(Some(1))
        .max_items(Some(2))
        .unique_items(true)
        .description(Some(
            "The schemes that sign, where `signature` is `standard`",
        ))
        .build()
}
