//! The OpenAPI 3.1 document, generated from the handlers' own annotations and from the types of what they
//! read and write: nothing is written beside the code.
//!
//! Its operations are those of [`crate::routes`]' table. What any of them may be refused with follows from its
//! parts ([`refused`]); what is the same for all of them is added here ([`Common`]).
//!
//! `docs/openapi.json` is a copy that a test keeps equal.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use actix_web::web::Bytes;
use shared::domain::idempotency::MOST_KEY_BYTES;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{Object, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Ref, RefOr, Response};
use utoipa::{Modify, OpenApi};

use crate::problem::{FieldError, Problem};
use crate::routes::Operations;

pub(crate) mod example;
pub(crate) mod refused;
pub(crate) mod schema;

/// Security schemes.
const KEY: &str = "key";
const ORGANIZATION: &str = "organization";
const ADMIN: &str = "admin";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Postrider",
        description = "Outbound webhooks and postbacks: post events, and they are delivered, signed and retried.\n\n\
                       Errors are problems (RFC 9457) with a stable `type`. Lists are newest first and are walked \
                       with `cursor`. Instants are RFC 3339 in UTC. A path answers methods that it does not have \
                       with 405 and `Allow`."
    ),
    components(schemas(
        Problem<'_>, FieldError, schema::EventId, schema::DeliveryId, schema::EndpointId, schema::KeyId,
        schema::TenantId, schema::OrganizationId, schema::ReplayId, schema::RemovalId, schema::EventTypeName,
        schema::EventExternalId, schema::DeliveryStatus, schema::DeliveryDeadLetterClass, schema::StrongTags, schema::Tags
    )),
    tags(
        (name = "Events", description = "What happened: published once, delivered to every matching endpoint"),
        (name = "Event types", description = "What is known of types of events, and the schemas of their payloads"),
        (name = "Deliveries", description = "One event to one endpoint, and each attempt"),
        (name = "Endpoints", description = "Where to, what, and within which limits"),
        (name = "Replays", description = "Old events, sent again in the background"),
        (name = "Dead letters", description = "Deliveries that are no longer tried"),
        (name = "Statistics", description = "How fast endpoints answer, and what is under way"),
        (name = "Audit log", description = "Who changed what of the configuration"),
        (name = "Tenants", description = "For organizations: the tenants of their own"),
        (name = "Administration", description = "For the operator"),
        (name = "Operation", description = "For load balancers"),
        (name = "Documentation", description = "This document"),
    ),
    modifiers(&Keys)
)]
struct Frame;

/// The document as it is served. It is the same as long as the process lives.
pub(crate) fn served() -> Bytes {
    static SERVED: LazyLock<Bytes> = LazyLock::new(|| {
        let text = serde_json::to_vec(&document());
        // What cannot fail: the document is maps, lists and texts.
        text.unwrap_or_default().into()
    });
    SERVED.clone()
}

fn document() -> utoipa::openapi::OpenApi {
    let mut document = Frame::openapi();
    document.merge(Operations::openapi());
    Common.modify(&mut document);
    document
}

/// How a request says who sends it.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, description) in [
            (
                KEY,
                "A tenant's key (`prk_…`), or an organization's (`pro_…`) together with `Postrider-Tenant`. The \
                 scopes are those that the key must have.",
            ),
            (ORGANIZATION, "An organization's key (`pro_…`)"),
            (ADMIN, "The operator's token, POSTRIDER_ADMIN_TOKEN"),
        ] {
            let bearer = HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some(description))
                .build();
            components.add_security_scheme(name, SecurityScheme::Http(bearer));
        }
    }
}

/// What is the same for many operations: headers, and refusals.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let mut shared = BTreeMap::new();
        for item in document.paths.paths.values_mut() {
            if let Some(post) = &mut item.post {
                let parameters = post.parameters.get_or_insert_default();
                parameters.push(idempotency_key().into());
            }
        }
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            if takes_key(operation) {
                let parameters = operation.parameters.get_or_insert_default();
                parameters.push(tenant_header().into());
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response {
                    add_headers(status, response);
                }
            }
            share_refusals(operation, &mut shared);
        }
        let components = document.components.get_or_insert_default();
        components.responses.append(&mut shared);
    }
}

/// Refusals that are the same stand in the document once.
fn share_refusals(operation: &mut Operation, shared: &mut BTreeMap<String, RefOr<Response>>) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(refusal) = response else {
            continue;
        };
        let Some(content) = refusal.content.get("application/problem+json") else {
            continue;
        };
        let RefOr::T(content) = content else {
            continue;
        };
        let types: Vec<&str> = content.examples.keys().map(String::as_str).collect();
        let name = format!("{status}.{}", types.join("."));
        let reference = Ref::from_response_name(&name);
        shared.insert(name, std::mem::replace(response, reference.into()));
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
        &mut item.patch,
    ]
    .into_iter()
    .flatten()
}

fn takes_key(operation: &Operation) -> bool {
    let mut schemes = operation.security.iter().flatten();
    schemes.any(|scheme| serde_json::to_value(scheme).is_ok_and(|scheme| scheme.get(KEY).is_some()))
}

fn idempotency_key() -> Parameter {
    let text = Object::builder()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(MOST_KEY_BYTES))
        .pattern(Some("^[!-~]([ -~]*[!-~])?$"));
    ParameterBuilder::new()
        .name("Idempotency-Key")
        .parameter_in(ParameterIn::Header)
        .description(Some(
            "For 24 hours the same key with the same body gets the same reply, and happens once",
        ))
        .schema(Some(text))
        .build()
}

fn tenant_header() -> Parameter {
    let text = Object::builder().schema_type(Type::String).pattern(Some(
        "^(\\*|tnt_[0-7][0-9a-hjkmnp-tv-z]{25}|ext:[^ \\x00-\\x1f\\x7f]([^\\x00-\\x1f\\x7f]{0,126}[^ \\x00-\\x1f\\x7f])?)$",
    ));
    ParameterBuilder::new()
        .name("Postrider-Tenant")
        .parameter_in(ParameterIn::Header)
        .description(Some(
            "With an organization's key: the tenant, by its id or by `ext:` and the organization's own name for it (UTF-8); `*` for all of them, in lists of \
             endpoints, events and deliveries, whose rows then have a `tenant_id`",
        ))
        .schema(Some(text))
        .build()
}

fn add_headers(status: &str, response: &mut Response) {
    let mut add = |name: &str, description: &str, kind: Type| {
        let header = HeaderBuilder::new()
            .description(Some(description))
            .schema(Some(Object::with_type(kind)))
            .build();
        response.headers.insert(name.to_owned(), header.into());
    };
    let request_id = "The request's own `X-Request-Id` if it is sane, else a new one";
    add("X-Request-Id", request_id, Type::String);
    match status {
        "401" => add("WWW-Authenticate", "`Bearer`", Type::String),
        "503" => add("Retry-After", "Seconds to wait", Type::Integer),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
