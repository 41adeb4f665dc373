//! All routes, in one table, and what they share.

mod admin;
mod admin_document;
mod deliveries;
mod delivery_document;
mod documentation;
mod endpoint_document;
mod endpoint_health;
mod endpoint_secrets;
mod endpoints;
mod etag;
mod event_body;
mod events;
mod health;

use std::sync::Arc;

use actix_web::http::{Method, StatusCode, header};
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource};
use deadpool_postgres::Pool;
use serde::Serialize;
use shared::runtime::clock::DatabaseClock;
use shared::store::StoreError;

use crate::auth::Auth;
use crate::config::Config;
use crate::ingest::Queues;
use crate::problem::{ApiError, Kind};

/// What every handler can reach.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) auth: Arc<Auth>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) health: Arc<crate::health::Health>,
    pub(crate) slots: endpoints::NextSlot,
}

pub(crate) use admin::MOST_NAME;
pub(crate) use endpoints::NextSlot;

impl State {
    /// A connection of the pool. Give it back before anything but the database is waited for.
    async fn client(&self) -> Result<deadpool_postgres::Client, ApiError> {
        Ok(self.pool.get().await.map_err(StoreError::from)?)
    }
}

/// Handlers take the request apart themselves: every refusal is a problem of ours.
type App = web::Data<State>;

/// The one table of routes: paths and handlers for the server, and operations for the document. A handler
/// without a `utoipa::path` does not compile here, and one whose annotation says something else fails a test.
macro_rules! routes {
    ($($path:literal: $first:ident $($handler:ident)::+ $(, $method:ident $($other:ident)::+)*;)+) => {
        /// Every path there is.
        pub(crate) fn configure(app: &mut ServiceConfig) {
            $(app.service(
                path($path, concat!(stringify!($first) $(, ", ", stringify!($method))*))
                    .route(web::method(Method::$first).to($($handler)::+))
                    $(.route(web::method(Method::$method).to($($other)::+)))*,
            );)+
            app.default_service(web::route().to(nothing_here));
        }

        /// Every operation there is.
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+ $(, $($other)::+)*),+))]
        pub(crate) struct Operations;

        /// Every path with its methods.
        #[cfg(test)]
        pub(crate) const TABLE: &[(&str, &[&str])] =
            &[$(($path, &[stringify!($first) $(, stringify!($method))*])),+];
    };
}

routes! {
    "/v1/events": GET events::list, POST events::publish;
    "/v1/events/{id}": GET events::show;
    "/v1/events/{id}/payload": GET events::payload;
    "/v1/events/{id}/deliveries": GET events::deliveries;
    "/v1/deliveries": GET deliveries::list;
    "/v1/deliveries/{id}": GET deliveries::show;
    "/v1/deliveries/{id}/attempts": GET deliveries::attempts;
    "/v1/deliveries/{id}/cancel": POST deliveries::cancel;
    "/v1/deliveries/{id}/retry": POST deliveries::retry;
    "/v1/endpoints": GET endpoints::list, POST endpoints::create;
    "/v1/endpoints/{id}": GET endpoints::show, PATCH endpoints::change, DELETE endpoints::delete;
    "/v1/endpoints/{id}/health": GET endpoint_health::show;
    "/v1/endpoints/{id}/enable": POST endpoints::enable;
    "/v1/endpoints/{id}/disable": POST endpoints::disable;
    "/v1/endpoints/{id}/secret/rotate": POST endpoint_secrets::rotate;
    "/v1/endpoints/{id}/secret/revoke": POST endpoint_secrets::revoke;
    "/.well-known/jwks.json": GET endpoint_secrets::key_set;
    "/v1/tenants": GET admin::own_tenants, POST admin::create_own_tenant;
    "/v1/admin/organizations": GET admin::organizations, POST admin::create_organization;
    "/v1/admin/tenants": GET admin::tenants, POST admin::create_tenant;
    "/v1/admin/{owner}/{id}/keys": GET admin::keys, POST admin::create_key;
    "/v1/admin/{owner}/{id}/keys/{key}": DELETE admin::revoke_key;
    "/openapi.json": GET documentation::document;
    "/docs": GET documentation::page;
    "/docs/{file}": GET documentation::file;
    "/health/live": GET health::live;
    "/health/ready": GET health::ready;
}

/// A path that answers other methods with 405 and what it does allow.
fn path(pattern: &str, allow: &'static str) -> Resource {
    web::resource(pattern).default_service(
        web::route()
            .to(move || async move { Err::<HttpResponse, _>(ApiError::not_allowed(allow)) }),
    )
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
