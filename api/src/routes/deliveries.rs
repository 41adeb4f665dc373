//! Deliveries: read, retry now, cancel.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};
use shared::domain::attempt::{KEPT_OF_FAILURE, kept_of_response};
use shared::domain::delivery::Status;
use shared::ids::{DeliveryId, EndpointId, EventId, TenantKey, created_at};
use shared::store::attempts::{self as attempt_store, Attempt};
use shared::store::deliveries::{self as store, Delivery, Filter};
use shared::store::{endpoints, notify};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use super::{App, json as reply, organization_lists, path_id, refuse_idempotency_key};
use crate::auth::{Readers, Scope};
use crate::paging::{List, Query};
use crate::problem::{ApiError, Kind};

/// `GET /v1/deliveries`
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let readers = app.auth.readers(&request, Scope::Read).await?;
    let known = &["status", "endpoint_id", "since", "until", "limit", "cursor"];
    let query = Query::parse(&request, known)?;
    let page = query.page()?;
    let status = query.get("status").map(status).transpose()?;
    let tenant = match readers {
        Readers::Tenant(tenant) => tenant,
        Readers::Organization(all) => {
            return organization_lists::deliveries(&app, all, &query, status).await;
        }
    };
    let endpoint: Option<EndpointId> = query.id("endpoint_id")?;
    let range = query.id_range(page.before)?;
    let mut client = app.client().await?;
    // One snapshot for the page and its rows: a delivery that moves meanwhile is shown as found.
    let snapshot = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let endpoint = match endpoint {
        None => None,
        Some(id) => Some(
            endpoints::key(&*snapshot, tenant, id.0)
                .await?
                .ok_or_else(|| ApiError::not_found("endpoint"))?
                .0,
        ),
    };
    let filter = Filter {
        range,
        endpoint,
        status,
    };
    let mut ids = store::page(&*snapshot, tenant, filter, page.fetch()).await?;
    let next = page.cut(&mut ids, |id| *id);
    let rows = store::by_ids(&*snapshot, tenant, &ids).await?;
    snapshot.commit().await?;
    drop(client);
    let data = rows.into_iter().map(document).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// `GET /v1/deliveries/{id}`
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let found = find(&app, tenant, id.0).await?;
    reply(StatusCode::OK, &document(found))
}

/// `GET /v1/deliveries/{id}/attempts`
pub(super) async fn attempts(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let before = page.before.map_or((i16::MAX, i64::MAX), attempt_position);
    let client = app.client().await?;
    if store::by_ids(&**client, tenant, &[id.0]).await?.is_empty() {
        return Err(missing());
    }
    let rows = attempt_store::list(&**client, tenant, id.0, before, page.fetch()).await?;
    drop(client);
    reply(StatusCode::OK, &page.reply(rows, attempt_cursor, attempt))
}

/// `POST /v1/deliveries/{id}/cancel`: a waiting delivery becomes `cancelled`.
pub(super) async fn cancel(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    refuse_idempotency_key(&request)?;
    let client = app.client().await?;
    let cancelled = store::cancel(&**client, tenant, id.0).await?;
    drop(client);
    let found = find(&app, tenant, id.0).await?;
    if !cancelled {
        return Err(not_now(&found, "cancelled"));
    }
    reply(StatusCode::OK, &document(found))
}

/// `POST /v1/deliveries/{id}/retry`: a waiting delivery is due now.
pub(super) async fn retry(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    refuse_idempotency_key(&request)?;
    let found = find(&app, tenant, id.0).await?;
    if found.status == Status::InFlight || found.status.is_final() {
        return Err(not_now(&found, "retried"));
    }
    let client = app.client().await?;
    if !store::retry(&**client, tenant, id.0).await? {
        let detail = "the delivery has just ended; look at it again";
        return Err(ApiError::new(Kind::Conflict, detail));
    }
    notify::commands(&**client).await;
    drop(client);
    reply(StatusCode::ACCEPTED, &document(found))
}

async fn find(app: &App, tenant: TenantKey, id: Uuid) -> Result<Delivery, ApiError> {
    let client = app.client().await?;
    let mut found = store::by_ids(&**client, tenant, &[id]).await?;
    found.pop().ok_or_else(missing)
}

/// Why a delivery cannot be retried or cancelled as it stands.
fn not_now(delivery: &Delivery, verb: &str) -> ApiError {
    let detail = match delivery.status {
        Status::InFlight => {
            format!("its request is on the wire; it can be {verb} when that has ended")
        }
        Status::Delivered | Status::DeadLetter | Status::Cancelled | Status::Skipped => format!(
            "it is {}, which is final; sending it again is a replay, which comes with a later version",
            delivery.status.name()
        ),
        Status::Pending | Status::Failed => {
            "its request has just begun or ended; look at it again".to_owned()
        }
    };
    ApiError::new(Kind::Conflict, detail)
}

fn missing() -> ApiError {
    ApiError::not_found("delivery")
}

fn status(name: &str) -> Result<Status, ApiError> {
    Status::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Status::ALL.iter().map(|status| status.name()).collect();
        let detail = format!("`status` must be one of: {}", names.join(", "));
        ApiError::new(Kind::InvalidParameter, detail)
    })
}

/// A delivery as clients see it.
pub(super) fn document(delivery: Delivery) -> Value {
    let last = delivery.last.as_ref();
    let error = last.and_then(|last| match &last.error {
        Some(error) => Some(error.clone()),
        None if last.outcome == shared::domain::attempt::Outcome::Delivered => None,
        None => Some(last.outcome.name().to_owned()),
    });
    let (class, why) = delivery.dead_letter.unzip();
    json!({
        "id": DeliveryId(delivery.id),
        "event_id": EventId(delivery.event),
        "endpoint_id": EndpointId(delivery.endpoint),
        "status": delivery.status,
        "created_at": instant(created_at(delivery.id)),
        "attempt_count": delivery.attempts_made,
        "max_attempts": delivery.max_attempts,
        "next_attempt_at": delivery.next_attempt_at.map(instant),
        "delivered_at": delivery.delivered_at.map(instant),
        "ended_at": delivery.delivered_at.or(delivery.ended_at).map(instant),
        "last_error": error,
        "last_status_code": last.and_then(|last| last.status_code),
        "last_response_ms": last.map(|last| last.total_ms),
        "close_reason": delivery.close_reason,
        "dead_letter_class": class,
        "dead_letter_reason": why.flatten(),
    })
}

fn attempt(attempt: Attempt) -> Value {
    let [queue, dns, connect, tls, first_byte] = attempt.phases_us;
    let truncated = is_truncated(&attempt);
    json!({
        "number": attempt.number,
        "started_at": instant(attempt.started_at),
        "outcome": attempt.outcome,
        "status_code": attempt.status_code,
        "response_ms": attempt.total_ms,
        "timings_us": {
            "queue": queue,
            "dns": dns,
            "connect": connect,
            "tls": tls,
            "first_byte": first_byte,
        },
        "url": attempt.url,
        "address": attempt.address,
        "addresses_dialled": attempt.dialled,
        "error": attempt.error,
        "response": attempt.response.map(|body| String::from_utf8_lossy(&body).into_owned()),
        "response_truncated": truncated,
        "endpoint_version": attempt.endpoint_version,
        "applied": attempt.applied,
        "final_status": attempt.final_status,
    })
}

/// Whether the receiver may have answered more than is kept. A response of exactly that length cannot be told
/// from a longer one.
fn is_truncated(attempt: &Attempt) -> bool {
    let status = attempt.status_code.and_then(|it| u16::try_from(it).ok());
    let kept = status.map_or(KEPT_OF_FAILURE, kept_of_response);
    attempt
        .response
        .as_ref()
        .is_some_and(|body| body.len() >= kept)
}

/// Attempts have no id of their own: number and epoch, packed, are their place in a list.
fn attempt_cursor(attempt: &Attempt) -> Uuid {
    let number = u64::try_from(attempt.number).unwrap_or(0);
    let epoch = u64::try_from(attempt.epoch).unwrap_or(0);
    Uuid::from_u64_pair(number, epoch)
}

fn attempt_position(cursor: Uuid) -> (i16, i64) {
    let (number, epoch) = cursor.as_u64_pair();
    (
        i16::try_from(number).unwrap_or(i16::MAX),
        i64::try_from(epoch).unwrap_or(i64::MAX),
    )
}

fn instant(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
