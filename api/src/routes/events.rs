//! Events: publish and read.

use std::borrow::Cow;

use actix_web::http::{StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Serialize, Serializer};
use shared::domain::idempotency::wrong_external_id;
use shared::domain::trace::TraceContext;
use shared::ids::{DeliveryId, EndpointId, EventId, created_at};
use shared::policy::payload::FieldPath;
use shared::policy::redaction::hide_fields;
use shared::runtime::clock::boot_time;
use shared::store::aliases;
use shared::store::deliveries as delivery_store;
use shared::store::events::{self as store, Event};
use tracing::field::display;
use utoipa::ToSchema;

use super::delivery_document::Delivery;
use super::{App, event_body, json as reply, organization_lists, path_id};
use crate::auth::{Readers, Scope};
use crate::idempotency;
use crate::ingest::{Accepted, NewEvent, Refusal};
use crate::instant::Instant;
use crate::metrics;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query, RangeParams};
use crate::problem::{ApiError, Kind};
use crate::request_id;
use crate::trace_context::Publishing;

/// How often an event may be checked because its type's schema changed meanwhile.
pub(super) const MOST_CHECKS: u32 = 5;

/// Publish an event
///
/// Durable when this answers 202: the event and one delivery for each matching endpoint. The payload is kept
/// and sent byte for byte.
#[utoipa::path(
    post, path = "/v1/events", tag = "Events", operation_id = "publishEvent",
    security(("key" = ["events:write"])),
    request_body(content = event_body::Body<'_>, example = json!({
        "type": "order.created", "payload": {"id": 1, "total": "49.90"}, "channels": ["eu"],
    })),
    responses(
        (status = 202, description = "Stored, with the first 100 deliveries", body = Published<'_>, example = json!(example::published())),
        Refused<(refused::Key, refused::Once, refused::Body, refused::Limit, refused::Storage, refused::Queue, refused::Quota)>,
    )
)]
// D2
pub(super) async fn publish(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let started = boot_time();
    let caller = app.auth.tenant(&request, Scope::EventsWrite).await?;
    let most = app.config.max_payload;
    let body =
        crate::json::read(&request, payload, most.saturating_add(event_body::ENVELOPE)).await?;
    let key = idempotency::key(&request, &body)?;
    let publishing = Publishing::begin(&app, &request, started);
    let rules = event_body::Rules {
        tenant: caller.tenant,
        keyed: key.is_some(),
        most_bytes: most,
        now: app.clock.now(),
        trace: publishing.context(),
    };
    let mut event = event_body::parse(&body, &body, rules, "")?;
    event.idempotency.extend(key);
    let (event_type, external_id) = (event.event_type.clone(), event.external_id.clone());
    let quota = (caller.tenant, caller.limits);
    let reserved = app.quotas.reserve(quota, 1, app.clock.now()).await?;
    let accepted = submit(&app, event).await;
    let accepted = accepted.inspect_err(|error| publishing.refused(&app, error))?;
    if let Some(reserved) = reserved {
        reserved.keep(1);
    }
    publishing.accepted(&app, accepted.id);
    log_accepted(&request, &accepted, publishing.context());
    metrics::EVENTS_ACCEPTED.inc();
    metrics::INGEST_SECONDS.observe(boot_time().since(started).as_secs_f64());
    let mut reply = Vec::with_capacity(512);
    let written = serde_json::to_writer(
        &mut reply,
        &Published::new(&accepted, &event_type, external_id.as_deref()),
    );
    if let Err(error) = written {
        tracing::error!(%error, "a reply cannot be written");
        return Err(ApiError::new(Kind::Internal, "the event was accepted"));
    }
    Ok(HttpResponse::build(StatusCode::ACCEPTED)
        .insert_header((
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        ))
        .body(reply))
}

/// What ties a request to the deliveries that workers log.
pub(super) fn log_accepted(
    request: &HttpRequest,
    accepted: &Accepted,
    trace: Option<TraceContext>,
) {
    let event = EventId(accepted.id);
    let trace = trace.map(|context| display(context.trace));
    tracing::debug!(request.id = request_id::of(request), event.id = %event, trace.id = trace, deliveries = accepted.delivery_count, local = accepted.is_local(), "an event was accepted");
}

/// Hands an event to the writers, and checks it when its type has a schema.
async fn submit(app: &App, mut event: NewEvent) -> Result<Accepted, ApiError> {
    app.schemas.check_ahead(&mut event);
    for _round in 0..MOST_CHECKS {
        match app.intake.submit(event).await {
            Err(Refusal::Unchecked(unchecked)) => {
                event = app.schemas.check(*unchecked, "").await?;
            }
            Ok(accepted) => return Ok(accepted),
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Err(refused(Refusal::Restless))
}

/// List events
///
/// With `channel` a page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/events", tag = "Events", operation_id = "listEvents", security(("key" = ["read"])),
    params(
        ("type" = Option<String>, Query, description = "Only of this type", example = "order.created"),
        ("external_id" = Option<schema::EventExternalId>, Query, description = "Only what you named so"),
        ("channel" = Option<schema::Channel>, Query, description = "Only on this channel"),
        RangeParams, PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<Document>,
         example = json!(example::list(example::event()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let readers = app.auth.readers(&request, Scope::Read).await?;
    let query = Query::parse(
        &request,
        &[
            "type",
            "external_id",
            "channel",
            "since",
            "until",
            "limit",
            "cursor",
        ],
    )?;
    let tenant = match readers {
        Readers::Tenant(tenant) => tenant,
        Readers::Organization(all) => return organization_lists::events(&app, all, &query).await,
    };
    for (name, wrong) in [
        (
            "external_id",
            wrong_external_id as fn(&str) -> Option<String>,
        ),
        ("channel", |text| {
            event_body::wrong_channels(&[text.to_owned()])
        }),
    ] {
        if let Some(detail) = query.get(name).and_then(wrong) {
            let detail = format!("`{name}` {detail}");
            return Err(ApiError::new(Kind::InvalidParameter, detail));
        }
    }
    let page = query.page()?;
    let range = query.id_range(page.before)?;
    let client = app.client().await?;
    let filter = store::Filter {
        event_type: query.get("type"),
        external_id: query.get("external_id"),
    };
    let (rows, next) = match query.get("channel") {
        None => {
            let mut rows = store::page(&**client, tenant, filter, range, page.fetch()).await?;
            let next = page.cut(&mut rows, |row| row.id);
            (rows, next)
        }
        Some(channel) => {
            let read = async |range, limit| {
                let rows = store::page(&**client, tenant, filter, range, limit).await?;
                let fits = |row: &Event| row.channels.iter().any(|it| it == channel);
                Ok(rows
                    .into_iter()
                    .map(|row| {
                        let fits = fits(&row);
                        (row, fits)
                    })
                    .collect())
            };
            page.sift(range, read, |row: &Event| row.id).await?
        }
    };
    drop(client);
    let data = rows.into_iter().map(Document::new).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// Get an event
#[utoipa::path(
    get, path = "/v1/events/{id}", tag = "Events", operation_id = "getEvent", security(("key" = ["read"])),
    params(("id" = schema::EventId, Path, description = "The event's id")),
    responses(
        (status = 200, description = "The event without its payload", body = Document,
         example = json!(example::event())),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EventId = path_id(&request, "id")?;
    let client = app.client().await?;
    let mut found = store::find(&**client, tenant, id.0)
        .await?
        .map(Document::new);
    if found.is_none()
        && let Some(of) = aliases::find(&**client, tenant, id.0).await?
    {
        found = store::find(&**client, tenant, of)
            .await?
            .map(|event| Document::alias(id, event));
    }
    drop(client);
    reply(StatusCode::OK, &found.ok_or_else(missing)?)
}

/// Get an event's payload
///
/// The bytes that came in, but for what the endpoints it went to want hidden.
#[utoipa::path(
    get, path = "/v1/events/{id}/payload", tag = "Events", operation_id = "getEventPayload",
    security(("key" = ["read"])),
    params(("id" = schema::EventId, Path, description = "The event's id")),
    responses(
        (status = 200, description = "The payload", body = serde_json::Value,
         example = json!({"id": 1, "total": "49.90"})),
        Refused<(refused::Key, refused::Id, refused::Gone)>,
    )
)]
// P1
pub(super) async fn payload(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EventId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::payload(&**client, tenant, id.0).await?;
    let redacted = store::redacted(&**client, tenant, id.0).await?;
    drop(client);
    let payload = found.ok_or_else(missing)?;
    // No JSON text is empty.
    if payload.is_empty() {
        let detail = "the payload of this event was expunged; it cannot be read or sent again";
        return Err(ApiError::new(Kind::Expunged, detail));
    }
    let hidden: Vec<FieldPath> = redacted.iter().filter_map(|it| it.parse().ok()).collect();
    let shown = match hide_fields(&payload, &hidden) {
        Cow::Borrowed(_) => payload,
        Cow::Owned(shown) => shown,
    };
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(shown))
}

/// List an event's deliveries
///
/// Those that were made when it was accepted.
#[utoipa::path(
    get, path = "/v1/events/{id}/deliveries", tag = "Events", operation_id = "listEventDeliveries",
    security(("key" = ["read"])),
    params(("id" = schema::EventId, Path, description = "The event's id"), PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Delivery>,
         example = json!(example::list(example::delivery()))),
        Refused<(refused::Key, refused::Id, refused::Query)>,
    )
)]
pub(super) async fn deliveries(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EventId = path_id(&request, "id")?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let before = page.before.unwrap_or(uuid::Uuid::max());
    let client = app.client().await?;
    let mut ids = store::deliveries(&**client, tenant, id.0, before, page.fetch())
        .await?
        .ok_or_else(missing)?;
    // By the ids, not by the rows found: the history of some may have been dropped.
    let next = page.cut(&mut ids, |id| *id);
    let rows = delivery_store::by_ids(&**client, tenant, &ids).await?;
    drop(client);
    let data = rows.into_iter().map(Delivery::new).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

fn missing() -> ApiError {
    ApiError::not_found("event")
}

/// An event without its payload.
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
pub(super) struct Document {
    #[schema(value_type = schema::EventId)]
    id: EventId,
    #[schema(required)]
    external_id: Option<String>,
    #[serde(rename = "type")]
    event_type: String,
    channels: Vec<String>,
    created_at: Instant,
    #[schema(required)]
    deliver_before: Option<Instant>,
    payload_bytes: i32,
    /// How many deliveries were made when it was accepted.
    delivery_count: i32,
    /// Its `Idempotency-Key` or `external_id` stood for this event already, which another server had accepted: all else
    /// here is of that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::EventId>)]
    duplicate_of: Option<EventId>,
}

impl Document {
    pub(super) fn new(event: Event) -> Self {
        Self {
            id: EventId(event.id),
            external_id: event.external_id,
            event_type: event.event_type,
            channels: event.channels,
            created_at: Instant(created_at(event.id)),
            deliver_before: event.deliver_before.map(Instant),
            payload_bytes: event.payload_bytes,
            delivery_count: event.delivery_count,
            duplicate_of: None,
        }
    }

    /// The event that this id stands for.
    fn alias(id: EventId, event: Event) -> Self {
        let duplicate_of = Some(EventId(event.id));
        Self {
            id,
            duplicate_of,
            ..Self::new(event)
        }
    }
}

/// An event that is stored, and the first of its deliveries.
#[derive(Serialize, ToSchema)]
#[schema(as = PublishedEvent)]
pub(super) struct Published<'a> {
    #[schema(value_type = schema::EventId)]
    id: EventId,
    #[schema(required)]
    external_id: Option<&'a str>,
    #[serde(rename = "type")]
    #[schema(example = "order.created")]
    event_type: &'a str,
    created_at: Instant,
    /// `null` while it is durable on the server's own disk only.
    #[schema(required)]
    delivery_count: Option<usize>,
    /// The first 100; `null` while it is durable on the server's own disk only.
    #[serde(serialize_with = "listed")]
    #[schema(value_type = Option<Vec<PublishedDelivery>>, required, max_items = 100)]
    deliveries: &'a Accepted,
    /// `local`: the database is away, the event is durable on the server's own disk, and its deliveries are made when
    /// the database is back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Durability>)]
    durability: Option<Durability>,
}

/// Where an event is durable, unless it is in the database.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Durability {
    Local,
}

/// A delivery that was just made.
#[derive(Serialize, ToSchema)]
struct PublishedDelivery {
    #[schema(value_type = schema::DeliveryId)]
    id: DeliveryId,
    #[schema(value_type = schema::EndpointId)]
    endpoint_id: EndpointId,
    #[schema(value_type = schema::DeliveryStatus)]
    status: &'static str,
}

impl<'a> Published<'a> {
    pub(super) fn new(
        accepted: &'a Accepted,
        event_type: &'a str,
        external_id: Option<&'a str>,
    ) -> Self {
        Self {
            id: EventId(accepted.id),
            external_id,
            event_type,
            created_at: Instant(created_at(accepted.id)),
            delivery_count: accepted.delivery_count,
            deliveries: accepted,
            durability: accepted.is_local().then_some(Durability::Local),
        }
    }
}

fn listed<S: Serializer>(accepted: &&Accepted, out: S) -> Result<S::Ok, S::Error> {
    if accepted.is_local() {
        return out.serialize_none();
    }
    out.collect_seq(
        accepted
            .deliveries
            .iter()
            .map(|delivery| PublishedDelivery {
                id: DeliveryId(delivery.id),
                endpoint_id: EndpointId(delivery.endpoint),
                status: delivery.status.name(),
            }),
    )
}

/// What a refusal of the writer says to the client.
pub(super) fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::QueueFull => ApiError::new(
            Kind::Overloaded,
            "more events wait to be stored than may wait; nothing was stored",
        ),
        Refusal::Stalled => ApiError::new(
            Kind::Overloaded,
            "the database has not taken events for a while; nothing was stored",
        ),
        Refusal::Late => ApiError::new(
            Kind::Unavailable,
            "the database did not confirm the event in time; it may or may not be delivered",
        ),
        Refusal::JournalFull => ApiError::new(
            Kind::Unavailable,
            "the database is away and as many events wait on the server's disk as may wait; nothing was stored",
        ),
        Refusal::JournalFailed => ApiError::new(
            Kind::Unavailable,
            "the database is away and the server's disk cannot be written; the event may or may not be delivered",
        ),
        Refusal::FanOut(count) => ApiError::new(
            Kind::LimitReached,
            format!(
                "the event would go to {count} endpoints; at most {} are allowed",
                crate::ingest::MOST_FAN_OUT
            ),
        ),
        Refusal::Types => ApiError::new(
            Kind::LimitReached,
            "the tenant has used as many event types as it may have",
        ),
        Refusal::Unchecked(_) | Refusal::Restless => ApiError::new(
            Kind::Overloaded,
            "the configuration changes faster than it can be read; nothing was stored",
        ),
        Refusal::TooLate => ApiError::field(
            Kind::InvalidFields,
            "/deliver_before",
            event_body::OVER.to_owned(),
        ),
        Refusal::Mismatch(space) => idempotency::mismatch(space),
        Refusal::NotStorable => ApiError::new(Kind::NotStorable, "the database refuses this event"),
        Refusal::Internal => ApiError::new(Kind::Internal, "the cause is in the log of the server"),
    }
}
