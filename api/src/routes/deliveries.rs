//! Deliveries: read, retry now, cancel.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use shared::domain::delivery::Status;
use shared::ids::{DeliveryId, EndpointId, TenantKey};
use shared::store::attempts::{self as attempt_store, Attempt as StoredAttempt};
use shared::store::deliveries::{self as store, Delivery as Stored, Filter};
use shared::store::replays::{self, Retried};
use shared::store::{notify, snapshot};
use uuid::Uuid;

use super::delivery_document::{Attempt, Delivery};
use super::{App, endpoints, json as reply, organization_lists, path_id};
use crate::auth::{Readers, Scope};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query, RangeParams};
use crate::problem::{ApiError, Kind};

/// List deliveries
///
/// A page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/deliveries", tag = "Deliveries", operation_id = "listDeliveries", security(("key" = ["read"])),
    params(
        ("status" = Option<schema::DeliveryStatus>, Query, description = "Only those that stand so"),
        ("endpoint_id" = Option<schema::EndpointId>, Query, description = "Only to this endpoint"),
        ("event_type" = Option<String>, Query, description = "Only of events of this type", example = "order.created"),
        RangeParams, PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<Delivery>, example = json!(example::list(example::delivery()))),
        Refused<(refused::Key, refused::Query, refused::Id)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let readers = app.auth.readers(&request, Scope::Read).await?;
    let known = &[
        "status",
        "endpoint_id",
        "event_type",
        "since",
        "until",
        "limit",
        "cursor",
    ];
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
    let snapshot = snapshot(&mut client).await?;
    let endpoint = match endpoint {
        None => None,
        Some(id) => Some(endpoints::key(&*snapshot, tenant, id).await?),
    };
    let filter = Filter {
        range,
        endpoint,
        status,
        event_type: query.get("event_type"),
    };
    let found = store::page(&snapshot, tenant, filter, page.fetch()).await?;
    let (ids, next) = page.found(found, |id| *id);
    let rows = store::by_ids(&snapshot, tenant, &ids).await?;
    snapshot.commit().await?;
    drop(client);
    let data = rows.into_iter().map(Delivery::new).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// Get a delivery
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", tag = "Deliveries", operation_id = "getDelivery", security(("key" = ["read"])),
    params(("id" = schema::DeliveryId, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "How it stands", body = Delivery, example = json!(example::delivery())),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let found = find(&app, tenant, id.0).await?;
    reply(StatusCode::OK, &Delivery::new(found))
}

/// List a delivery's attempts
#[utoipa::path(
    get, path = "/v1/deliveries/{id}/attempts", tag = "Deliveries", operation_id = "listAttempts", security(("key" = ["read"])),
    params(("id" = schema::DeliveryId, Path, description = "The delivery's id"), PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Attempt>, example = json!(example::list(example::attempt()))),
        Refused<(refused::Key, refused::Id, refused::Query)>,
    )
)]
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
    reply(
        StatusCode::OK,
        &page.reply(rows, attempt_cursor, Attempt::new),
    )
}

/// Cancel a delivery
///
/// A waiting delivery becomes `cancelled`. One that is on the wire or final does not: 409.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", tag = "Deliveries", operation_id = "cancelDelivery", security(("key" = ["replay"])),
    params(("id" = schema::DeliveryId, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "Cancelled", body = Delivery, example = json!(example::delivery())),
        Refused<(refused::Key, refused::Id, refused::Post, refused::State)>,
    )
)]
pub(super) async fn cancel(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let client = app.client().await?;
    let cancelled = store::cancel(&**client, tenant, id.0).await?;
    drop(client);
    let found = find(&app, tenant, id.0).await?;
    if !cancelled {
        return Err(not_now(&found, "cancelled"));
    }
    reply(StatusCode::OK, &Delivery::new(found))
}

/// Retry a delivery now
///
/// A waiting delivery is due now. One that has ended is final: its event is sent again as a new delivery, which is
/// what the reply shows. One that is on the wire: 409.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", tag = "Deliveries", operation_id = "retryDelivery", security(("key" = ["replay"])),
    params(("id" = schema::DeliveryId, Path, description = "The delivery's id")),
    responses(
        (status = 202, description = "Will be sent", body = Delivery, example = json!(example::delivery())),
        Refused<(refused::Key, refused::Id, refused::Post, refused::State, refused::Replay)>,
    )
)]
pub(super) async fn retry(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let found = find(&app, tenant, id.0).await?;
    if found.status == Status::InFlight {
        return Err(not_now(&found, "retried"));
    }
    if found.status.is_final() {
        let again = again(&app, tenant, id.0).await?;
        return reply(StatusCode::ACCEPTED, &Delivery::new(again));
    }
    let client = app.client().await?;
    if !store::retry(&**client, tenant, id.0).await? {
        let detail = "the delivery has just ended; look at it again";
        return Err(ApiError::new(Kind::Conflict, detail));
    }
    notify::commands(&**client).await;
    drop(client);
    reply(StatusCode::ACCEPTED, &Delivery::new(found))
}

/// A final state is final (D6): the event goes to the endpoint once more as a new delivery.
async fn again(app: &App, tenant: TenantKey, id: Uuid) -> Result<Stored, ApiError> {
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let now = app.clock.now();
    let retried = replays::again(&transaction, tenant, id, now).await?;
    let Retried::As(again, slot, endpoint) = retried else {
        return Err(match retried {
            Retried::Not(reason) => super::replays::not_replayable(reason),
            Retried::NotFinal | Retried::As(..) => missing(),
        });
    };
    transaction.commit().await?;
    notify::hint(&**client, &format!("{}:{}", slot.0, endpoint.0)).await;
    drop(client);
    find(app, tenant, again).await
}

async fn find(app: &App, tenant: TenantKey, id: Uuid) -> Result<Stored, ApiError> {
    let client = app.client().await?;
    let mut found = store::by_ids(&**client, tenant, &[id]).await?;
    found.pop().ok_or_else(missing)
}

/// Why a delivery cannot be retried or cancelled as it stands.
fn not_now(delivery: &Stored, verb: &str) -> ApiError {
    let detail = match delivery.status {
        Status::InFlight => {
            format!("its request is on the wire; it can be {verb} when that has ended")
        }
        Status::Delivered | Status::DeadLetter | Status::Cancelled | Status::Skipped => format!(
            "it is {}, which is final; `POST …/retry` sends its event again as a new delivery",
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

/// Attempts have no id of their own: number and epoch, packed, are their place in a list.
fn attempt_cursor(attempt: &StoredAttempt) -> Uuid {
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
