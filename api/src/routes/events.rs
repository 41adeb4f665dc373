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
use utoipa::ToSchema;

use super::deliveries as delivery_routes;
use super::{App, event_body, json as reply, path_id};
use crate::auth::Scope;
use crate::idempotency;
use crate::ingest::{Accepted, NewEvent, Refusal};
use crate::metrics;
use crate::paging::{List, Query};
use crate::problem::{ApiError, Kind};

/// How often an event may be checked because its type's schema changed meanwhile.
pub(super) const MOST_CHECKS: u32 = 5;

/// `POST /v1/events`: one event, durable when this answers 202 (D2).
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
    let rules = event_body::Rules {
        tenant: caller.tenant,
        keyed: key.is_some(),
        most_bytes: most,
        now: app.clock.now(),
    };
    let mut event = event_body::parse(&body, &body, rules, "")?;
    event.idempotency.extend(key);
    let (event_type, external_id) = (event.event_type.clone(), event.external_id.clone());
    let accepted = submit(&app, event).await?;
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

/// Hands an event to the writers, and checks it when its type has a schema.
async fn submit(app: &App, mut event: NewEvent) -> Result<Accepted, ApiError> {
    app.schemas.check_ahead(&mut event);
    for _round in 0..MOST_CHECKS {
        match app.queues.submit(event).await {
            Err(Refusal::Unchecked(unchecked)) => {
                event = app.schemas.check(*unchecked, "").await?;
            }
            Ok(accepted) => return Ok(accepted),
            Err(refusal) => return Err(refused(refusal)),
        }
    }
    Err(refused(Refusal::Restless))
}

/// `GET /v1/events`
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let query = Query::parse(
        &request,
        &["type", "external_id", "since", "until", "limit", "cursor"],
    )?;
    let page = query.page()?;
    let range = query.id_range(page.before)?;
    let client = app.client().await?;
    let filter = store::Filter {
        event_type: query.get("type"),
        external_id: query.get("external_id"),
    };
    let rows = store::page(&**client, tenant, filter, range, page.fetch()).await?;
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
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(found.ok_or_else(missing)?))
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

fn document(event: Event) -> Value {
    json!({
        "id": EventId(event.id),
        "external_id": event.external_id,
        "type": event.event_type,
        "channels": event.channels,
        "created_at": created_at(event.id).format(&Rfc3339).unwrap_or_default(),
        "deliver_before": event.deliver_before.map(|at| at.format(&Rfc3339).unwrap_or_default()),
        "payload_bytes": event.payload_bytes,
        "delivery_count": event.delivery_count,
    })
}

/// The body of a 202.
#[derive(Serialize, ToSchema)]
pub(super) struct Published<'a> {
    #[schema(value_type = String, example = "evt_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    id: EventId,
    external_id: Option<&'a str>,
    #[serde(rename = "type")]
    #[schema(example = "order.created")]
    event_type: &'a str,
    #[schema(format = DateTime)]
    created_at: String,
    delivery_count: usize,
    /// The first 100.
    #[serde(serialize_with = "listed")]
    #[schema(value_type = Vec<NewDelivery>)]
    deliveries: &'a Accepted,
}

/// A delivery of an event that was accepted.
#[derive(Serialize, ToSchema)]
struct NewDelivery {
    #[schema(value_type = String, example = "dlv_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    id: DeliveryId,
    #[schema(value_type = String, example = "ep_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    endpoint_id: EndpointId,
    /// `pending`, or `skipped` when the endpoint is disabled or has too much waiting.
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
            created_at: created_at(accepted.id).format(&Rfc3339).unwrap_or_default(),
            delivery_count: accepted.delivery_count,
            deliveries: accepted,
        }
    }
}

fn listed<S: Serializer>(accepted: &&Accepted, out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(accepted.deliveries.iter().map(|delivery| NewDelivery {
        id: DeliveryId(delivery.id),
        endpoint_id: EndpointId(delivery.endpoint),
        status: delivery.status.name(),
    }))
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
        Refusal::FanOut(count) => ApiError::new(
            Kind::LimitReached,
            format!(
                "the event would go to {count} endpoints; at most {} are allowed",
                crate::ingest::MOST_FAN_OUT
            ),
        ),
        Refusal::Types => ApiError::new(
            Kind::LimitReached,
            format!(
                "the tenant has used {} event types, which is the limit",
                shared::store::ingest::MAX_TYPES
            ),
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
