//! All routes, in one table, and what they share.

mod admin;
pub(crate) mod audit_log;
mod deliveries;
mod endpoint_document;
pub(crate) mod endpoint_health;
mod endpoint_secrets;
mod endpoints;
mod event_body;
mod events;
mod health;
pub(crate) mod limits;
mod organization_lists;
pub(crate) mod removals;

use std::sync::Arc;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::{StatusCode, header};
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource};
use serde::Serialize;
use shared::runtime::clock::DatabaseClock;
use utoipa::OpenApi as _;

use crate::auth::Auth;
use crate::config::Config;
use crate::connections::Connections;
use crate::ingest::Queues;
use crate::problem::{ApiError, Kind};
use crate::quotas::Quotas;
use crate::{openapi, patience};

/// What every handler can reach.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) connections: Connections,
    pub(crate) auth: Arc<Auth>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) health: Arc<crate::health::Health>,
    pub(crate) slots: endpoints::NextSlot,
    pub(crate) quotas: Arc<Quotas>,
}

pub(crate) use endpoints::NextSlot;

impl State {
    /// See [`Connections::get`].
    async fn client(&self) -> Result<deadpool_postgres::Client, ApiError> {
        Ok(self.connections.get().await?)
    }
}

/// Handlers take the request apart themselves: every refusal is a problem of ours.
type App = web::Data<State>;

/// Every path there is.
pub(crate) fn configure(app: &mut ServiceConfig) {
    app.service(
        path("/v1/events", "GET, POST")
            .route(web::get().to(events::list))
            .route(web::post().to(events::publish)),
    )
    .service(path("/v1/events/{id}", "GET").route(web::get().to(events::show)))
    .service(
        path("/v1/events/{id}/payload", "GET, DELETE")
            .route(web::get().to(events::payload))
            .route(web::delete().to(removals::expunge_event)),
    )
    .service(path("/v1/events/{id}/deliveries", "GET").route(web::get().to(events::deliveries)))
    .service(path("/v1/deliveries", "GET").route(web::get().to(deliveries::list)))
    .service(path("/v1/deliveries/{id}", "GET").route(web::get().to(deliveries::show)))
    .service(path("/v1/deliveries/{id}/attempts", "GET").route(web::get().to(deliveries::attempts)))
    .service(path("/v1/deliveries/{id}/cancel", "POST").route(web::post().to(deliveries::cancel)))
    .service(path("/v1/deliveries/{id}/retry", "POST").route(web::post().to(deliveries::retry)))
    .service(
        path("/v1/endpoints", "GET, POST")
            .route(web::get().to(endpoints::list))
            .route(web::post().to(endpoints::create)),
    )
    .service(
        path("/v1/endpoints/{id}", "GET, PATCH, DELETE")
            .route(web::get().to(endpoints::show))
            .route(web::patch().to(endpoints::change))
            .route(web::delete().to(endpoints::delete)),
    )
    .service(path("/v1/endpoints/{id}/health", "GET").route(web::get().to(endpoint_health::show)))
    .service(path("/v1/endpoints/{id}/enable", "POST").route(web::post().to(endpoints::enable)))
    .service(path("/v1/endpoints/{id}/disable", "POST").route(web::post().to(endpoints::disable)))
    .service(
        path("/v1/endpoints/{id}/secret/rotate", "POST")
            .route(web::post().to(endpoint_secrets::rotate)),
    )
    .service(
        path("/v1/endpoints/{id}/secret/revoke", "POST")
            .route(web::post().to(endpoint_secrets::revoke)),
    )
    .service(path("/.well-known/jwks.json", "GET").route(web::get().to(endpoint_secrets::key_set)))
    .configure(operations)
    .service(path("/openapi.json", "GET").route(web::get().to(document)))
    .service(path("/health/live", "GET").route(web::get().to(health::live)))
    .service(path("/health/ready", "GET").route(web::get().to(health::ready)))
    .default_service(web::route().to(nothing_here));
}

/// Tenants, keys, limits, the audit log, deletion.
fn operations(app: &mut ServiceConfig) {
    app.service(
        path("/v1/tenants", "GET, POST")
            .route(web::get().to(admin::own_tenants))
            .route(web::post().to(admin::create_own_tenant)),
    )
    .service(
        path("/v1/admin/organizations", "GET, POST")
            .route(web::get().to(admin::organizations))
            .route(web::post().to(admin::create_organization)),
    )
    .service(
        path("/v1/admin/tenants", "GET, POST")
            .route(web::get().to(admin::tenants))
            .route(web::post().to(admin::create_tenant)),
    )
    .service(
        path("/v1/admin/{owner}/{id}/keys", "GET, POST")
            .route(web::get().to(admin::keys))
            .route(web::post().to(admin::create_key)),
    )
    .service(
        path("/v1/admin/{owner}/{id}/keys/{key}", "PATCH, DELETE")
            .route(web::patch().to(admin::change_key))
            .route(web::delete().to(admin::revoke_key)),
    )
    .service(
        path("/v1/tenants/{id}/keys", "GET, POST")
            .route(web::get().to(admin::keys))
            .route(web::post().to(admin::create_key)),
    )
    .service(
        path("/v1/tenants/{id}/keys/{key}", "PATCH, DELETE")
            .route(web::patch().to(admin::change_key))
            .route(web::delete().to(admin::revoke_key)),
    )
    .service(
        path("/v1/admin/{owner}/{id}/limits", "GET, PUT")
            .route(web::get().to(limits::show))
            .route(web::put().to(limits::set)),
    )
    .service(
        path("/v1/tenants/{id}", "GET, DELETE")
            .route(web::get().to(removals::own_tenant))
            .route(web::delete().to(removals::delete_own_tenant)),
    )
    .service(
        path("/v1/admin/tenants/{id}", "DELETE").route(web::delete().to(removals::delete_tenant)),
    )
    .service(
        path("/v1/admin/organizations/{id}", "DELETE")
            .route(web::delete().to(removals::delete_organization)),
    )
    .service(
        path("/v1/admin/tenants/{id}/expunge", "POST")
            .route(web::post().to(removals::expunge_tenant)),
    )
    .service(path("/v1/expunge", "POST").route(web::post().to(removals::expunge)))
    .service(path("/v1/removals/{id}", "GET").route(web::get().to(removals::show)))
    .service(path("/v1/admin/removals", "GET").route(web::get().to(removals::list)))
    .service(path("/v1/admin/removals/{id}", "GET").route(web::get().to(removals::show_any)))
    .service(path("/v1/audit-log", "GET").route(web::get().to(audit_log::list)))
    .service(path("/v1/admin/audit-log", "GET").route(web::get().to(audit_log::list_all)));
}

/// A path that answers other methods with 405 and what it does allow, and waits for the database.
fn path(
    pattern: &str,
    allow: &'static str,
) -> Resource<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl MessageBody + use<>>,
        Error = actix_web::Error,
        InitError = (),
    > + use<>,
> {
    web::resource(pattern)
        .wrap(from_fn(patience::wait))
        .default_service(
            web::route()
                .to(move || async move { Err::<HttpResponse, _>(ApiError::not_allowed(allow)) }),
        )
}

/// `GET /openapi.json`
async fn document() -> Result<HttpResponse, ApiError> {
    json(StatusCode::OK, &openapi::Document::openapi())
}

async fn nothing_here() -> Result<HttpResponse, ApiError> {
    Err(ApiError::new(
        Kind::NotFound,
        "this path does not exist; the API is below /v1",
    ))
}

/// A JSON reply.
fn json<T: Serialize>(status: StatusCode, body: &T) -> Result<HttpResponse, ApiError> {
    let body = serde_json::to_vec(body).map_err(|error| {
        tracing::error!(%error, "a reply cannot be written");
        ApiError::new(Kind::Internal, "the cause is in the log of the server")
    })?;
    Ok(HttpResponse::build(status)
        .insert_header((header::CONTENT_TYPE, "application/json"))
        .body(body))
}

/// An id in the path. One that is malformed does not exist, but the client is told which it is.
fn path_id<T>(request: &HttpRequest, name: &str) -> Result<T, ApiError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text = request.match_info().get(name).unwrap_or_default();
    text.parse()
        .map_err(|error: T::Err| ApiError::new(Kind::InvalidParameter, error.to_string()))
}

/// Refuses what this version would otherwise silently ignore.
fn refuse_idempotency_key(request: &HttpRequest) -> Result<(), ApiError> {
    if request.headers().contains_key("Idempotency-Key") {
        return Err(ApiError::not_supported("", "the header `Idempotency-Key`"));
    }
    Ok(())
}
