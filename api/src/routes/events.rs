//! Events: publish and read.

use actix_web::http::{StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use shared::ids::{DeliveryId, EndpointId, EventId, created_at};
use shared::runtime::clock::boot_time;
use shared::store::deliveries as delivery_store;
use shared::store::events::{self as store, Event};
use time::format_description::well_known::Rfc3339;

use super::deliveries as delivery_routes;
use super::{App, event_body, json as reply, organization_lists, path_id, refuse_idempotency_key};
use crate::auth::{Readers, Scope};
use crate::ingest::{Accepted, Refusal};
use crate::metrics;
use crate::paging::{List, Query};
use crate::problem::{ApiError, Kind};

/// `POST /v1/events`: one event, durable when this answers 202 (D2).
pub(super) async fn publish(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let started = boot_time();
    let caller = app.auth.tenant(&request, Scope::EventsWrite).await?;
    refuse_idempotency_key(&request)?;
    let most = app.config.max_payload;
    let body =
        crate::json::read(&request, payload, most.saturating_add(event_body::ENVELOPE)).await?;
    let event = event_body::parse(&body, caller.tenant, most, app.clock.now())?;
    let event_type = event.event_type.clone();
    let quota = (caller.tenant, caller.limits);
    let reserved = app.quotas.reserve(quota, 1, app.clock.now()).await?;
    let accepted = app.queues.submit(event).await.map_err(refused)?;
    if let Some(reserved) = reserved {
        reserved.keep(1);
    }
    metrics::EVENTS_ACCEPTED.inc();
    metrics::INGEST_SECONDS.observe(boot_time().since(started).as_secs_f64());
    let mut reply = Vec::with_capacity(512);
    let written = serde_json::to_writer(&mut reply, &Published::new(&accepted, &event_type));
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

/// `GET /v1/events`
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let readers = app.auth.readers(&request, Scope::Read).await?;
    let query = Query::parse(&request, &["type", "since", "until", "limit", "cursor"])?;
    let tenant = match readers {
        Readers::Tenant(tenant) => tenant,
        Readers::Organization(all) => return organization_lists::events(&app, all, &query).await,
    };
    let page = query.page()?;
    let range = query.id_range(page.before)?;
    let client = app.client().await?;
    let rows = store::page(&**client, tenant, query.get("type"), range, page.fetch()).await?;
    drop(client);
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, document))
}

/// `GET /v1/events/{id}`
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EventId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, tenant, id.0).await?;
    drop(client);
    reply(StatusCode::OK, &document(found.ok_or_else(missing)?))
}

/// `GET /v1/events/{id}/payload`: the bytes that came in (P1).
pub(super) async fn payload(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EventId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::payload(&**client, tenant, id.0).await?;
    drop(client);
    let payload = found.ok_or_else(missing)?;
    // No JSON text is empty.
    if payload.is_empty() {
        let detail = "the payload of this event was expunged; it cannot be read or sent again";
        return Err(ApiError::new(Kind::Expunged, detail));
    }
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(payload))
}

/// `GET /v1/events/{id}/deliveries`
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
    let data = rows.into_iter().map(delivery_routes::document).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

fn missing() -> ApiError {
    ApiError::not_found("event")
}

pub(super) fn document(event: Event) -> Value {
    json!({
        "id": EventId(event.id),
        "external_id": Value::Null,
        "type": event.event_type,
        "channels": event.channels,
        "created_at": created_at(event.id).format(&Rfc3339).unwrap_or_default(),
        "deliver_before": event.deliver_before.map(|at| at.format(&Rfc3339).unwrap_or_default()),
        "payload_bytes": event.payload_bytes,
        "delivery_count": event.delivery_count,
    })
}

/// The body of a 202.
#[derive(Serialize)]
struct Published<'a> {
    id: EventId,
    external_id: Option<&'a str>,
    #[serde(rename = "type")]
    event_type: &'a str,
    created_at: String,
    delivery_count: usize,
    #[serde(serialize_with = "listed")]
    deliveries: &'a Accepted,
}

#[derive(Serialize)]
struct Delivery {
    id: DeliveryId,
    endpoint_id: EndpointId,
    status: &'static str,
}

impl<'a> Published<'a> {
    fn new(accepted: &'a Accepted, event_type: &'a str) -> Self {
        Self {
            id: EventId(accepted.id),
            external_id: None,
            event_type,
            created_at: created_at(accepted.id).format(&Rfc3339).unwrap_or_default(),
            delivery_count: accepted.delivery_count,
            deliveries: accepted,
        }
    }
}

fn listed<S: Serializer>(accepted: &&Accepted, out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(accepted.deliveries.iter().map(|delivery| Delivery {
        id: DeliveryId(delivery.id),
        endpoint_id: EndpointId(delivery.endpoint),
        status: delivery.status.name(),
    }))
}

/// What a refusal of the writer says to the client.
fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::QueueFull => ApiError::new(
            Kind::Overloaded,
            "more events wait to be stored than may wait; nothing was stored",
        ),
        Refusal::Late => ApiError::new(
            Kind::Unavailable,
            "the database did not confirm the event in time; it may or may not be delivered",
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
        Refusal::Restless => ApiError::new(
            Kind::Overloaded,
            "the endpoints change faster than they can be read; nothing was stored",
        ),
        Refusal::NotStorable => ApiError::new(Kind::NotStorable, "the database refuses this event"),
        Refusal::Internal => ApiError::new(Kind::Internal, "the cause is in the log of the server"),
    }
}
