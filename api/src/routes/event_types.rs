//! Types of events: what a tenant says of them, and the schemas that their payloads must fit.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use shared::domain::audit::Object;
use shared::policy::event_schema::MOST_BYTES;
use shared::store::Found;
use shared::store::event_types::{self as store, EventType};
use utoipa::ToSchema;
use uuid::Uuid;

use super::event_body::wrong_type;
use super::{App, json as reply};
use crate::audit;
use crate::auth::Scope;
use crate::instant::Instant;
use crate::json::{self, Fields};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::{ApiError, FieldError, Kind};
use crate::schemas::Compiled;

/// For the audit log: types have no ids.
const OBJECT: Object = Object {
    kind: "event_type",
    id: None,
};
/// The longest description, in characters.
const MOST_DESCRIPTION: usize = 1_024;

/// List event types
///
/// Those that were declared, and those that events have. A page may hold fewer than `limit`, or none, and still have a
/// `next_cursor`.
#[utoipa::path(
    get, path = "/v1/event-types", tag = "Event types", operation_id = "listEventTypes", security(("key" = ["read"])),
    params(PageParams),
    responses(
        (status = 200, description = "The last made first", body = List<EventTypeDocument>, example = json!(example::list(example::event_type()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let before = page.before.map_or(i32::MAX, row);
    let client = app.client().await?;
    let found = store::page(&**client, tenant, before, page.fetch()).await?;
    drop(client);
    let found = Found {
        rows: found.rows,
        seen_to: found.seen_to.map(cursor),
    };
    let (rows, next) = page.found(found, |row| cursor(row.id));
    let data = rows.into_iter().map(EventTypeDocument::from).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// Get an event type
#[utoipa::path(
    get, path = "/v1/event-types/{type}", tag = "Event types", operation_id = "getEventType", security(("key" = ["read"])),
    params(("type" = schema::EventTypeName, Path, description = "Its name")),
    responses(
        (status = 200, description = "The type", body = EventTypeDocument, example = json!(example::event_type())),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let client = app.client().await?;
    let found = store::find(&**client, tenant, name(&request)?).await?;
    drop(client);
    let found = found.ok_or_else(missing)?;
    reply(StatusCode::OK, &EventTypeDocument::from(found))
}

/// Declare an event type
///
/// Sets its description and schema. Events of it whose payload does not fit the schema are refused from then on.
#[utoipa::path(
    put, path = "/v1/event-types/{type}", tag = "Event types", operation_id = "putEventType", security(("key" = ["endpoints:write"])),
    params(("type" = schema::EventTypeName, Path, description = "Its name")),
    request_body(content = EventTypeBody, example = json!({
        "description": "A customer has ordered",
        "schema": {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}},
    })),
    responses(
        (status = 200, description = "The type as it is now", body = EventTypeDocument, example = json!(example::event_type())),
        Refused<(refused::Key, refused::Id, refused::Body, refused::Limit)>,
    )
)]
pub(super) async fn declare(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::EndpointsWrite).await?;
    let tenant = caller.tenant;
    let name = name(&request)?;
    let body = json::read(&request, payload, json::MOST_BYTES).await?;
    let (description, schema) = read(&body)?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let declared = store::declare(
        &*transaction,
        tenant,
        name,
        description.as_deref(),
        schema.as_deref(),
    )
    .await?;
    let Some(declared) = declared else {
        let most = shared::store::ingest::MAX_TYPES;
        let detail = format!("the tenant has used {most} event types, which is the limit");
        return Err(ApiError::new(Kind::LimitReached, detail));
    };
    if !declared.is_new && declared.changed.is_empty() {
        transaction.rollback().await?;
        let found = store::find(&**client, tenant, name).await?;
        let found = found.ok_or_else(missing)?;
        return reply(StatusCode::OK, &EventTypeDocument::from(found));
    }
    let (action, changed) = ("event_type.declared", &declared.changed);
    audit::record(&*transaction, (&request, caller), action, OBJECT, changed).await?;
    transaction.commit().await?;
    drop(client);
    reply(
        StatusCode::OK,
        &EventTypeDocument::from(declared.event_type),
    )
}

/// Delete an event type
///
/// Removes its description and schema. The type itself is there as long as events have it.
#[utoipa::path(
    delete, path = "/v1/event-types/{type}", tag = "Event types", operation_id = "deleteEventType", security(("key" = ["endpoints:write"])),
    params(("type" = schema::EventTypeName, Path, description = "Its name")),
    responses(
        (status = 204, description = "It has no schema any more"),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn take_back(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::EndpointsWrite).await?;
    let tenant = caller.tenant;
    let name = name(&request)?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    store::find(&*transaction, tenant, name)
        .await?
        .ok_or_else(missing)?;
    store::take_back(&*transaction, tenant, name).await?;
    let action = "event_type.deleted";
    audit::record(&*transaction, (&request, caller), action, OBJECT, &[]).await?;
    transaction.commit().await?;
    Ok(HttpResponse::NoContent().finish())
}

/// The name in the path.
fn name(request: &HttpRequest) -> Result<&str, ApiError> {
    let name = request.match_info().get("type").unwrap_or_default();
    match wrong_type(name) {
        None => Ok(name),
        Some(detail) => {
            let detail = format!("the name of a type {detail}");
            Err(ApiError::new(Kind::InvalidParameter, detail))
        }
    }
}

/// Description, and the schema as it was written.
fn read(body: &[u8]) -> Result<(Option<String>, Option<String>), ApiError> {
    if body.trim_ascii().is_empty() {
        // It would take away what is there.
        let detail = "a body is needed; send {} to take description and schema away";
        return Err(ApiError::new(Kind::MalformedJson, detail));
    }
    let mut fields = Fields::parse(body)?;
    let description = fields.short_text("description", MOST_DESCRIPTION);
    let schema = fields.take("schema");
    fields.refuse(
        &["type", "created_at", "updated_at"],
        "is read-only: leave it out",
    );
    fields.finish()?;
    let Some(schema) = schema else {
        return Ok((description, None));
    };
    let wrong = |error: FieldError| {
        ApiError::fields(vec![FieldError {
            pointer: format!("/schema{}", error.pointer),
            detail: error.detail,
        }])
    };
    Compiled::new(&schema).map_err(wrong)?;
    let written = written(body).unwrap_or_else(|| schema.to_string());
    if written.len() > MOST_BYTES {
        let detail = format!("has more than {MOST_BYTES} bytes");
        let pointer = String::new();
        return Err(wrong(FieldError { pointer, detail }));
    }
    if written.contains("\\u0000") {
        let detail = "must not contain U+0000".to_owned();
        let pointer = String::new();
        return Err(wrong(FieldError { pointer, detail }));
    }
    Ok((description, Some(written)))
}

/// The bytes of the field `schema`: the order of its names is the tenant's.
fn written(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Written<'a> {
        #[serde(borrow)]
        schema: &'a RawValue,
    }
    let written: Written<'_> = serde_json::from_slice(body).ok()?;
    Some(written.schema.get().to_owned())
}

fn missing() -> ApiError {
    ApiError::not_found("event type")
}

/// A row as the id that cursors are made of.
fn cursor(row: i32) -> Uuid {
    Uuid::from_u128(u128::from(row.unsigned_abs()))
}

fn row(cursor: Uuid) -> i32 {
    i32::try_from(cursor.as_u128()).unwrap_or(i32::MAX)
}

/// What a tenant says of a type of event; what is absent is removed.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `read` reads")]
struct EventTypeBody {
    #[schema(value_type = Option<schema::Description>)]
    description: Option<String>,
    /// JSON Schema 2020-12, at most 64 KiB, without references to other documents or to itself.
    #[schema(value_type = Option<schema::JsonSchema>)]
    schema: Option<Value>,
}

/// A type of event.
#[derive(Serialize, ToSchema)]
#[schema(as = EventType)]
struct EventTypeDocument {
    #[serde(rename = "type")]
    #[schema(example = "order.created")]
    name: String,
    #[schema(required)]
    description: Option<String>,
    /// JSON Schema that payloads must fit; `null`: any.
    #[schema(required, value_type = Option<schema::JsonSchema>)]
    schema: Option<Box<RawValue>>,
    created_at: Instant,
    updated_at: Instant,
}

impl From<EventType> for EventTypeDocument {
    fn from(from: EventType) -> Self {
        Self {
            name: from.name,
            description: from.description,
            schema: from
                .schema
                .and_then(|text| RawValue::from_string(text).ok()),
            created_at: Instant(from.created_at),
            updated_at: Instant(from.updated_at),
        }
    }
}
