//! All routes, in one table, and what they share.

mod admin;
mod admin_document;
mod audit_log;
mod dead_letters;
mod deliveries;
mod delivery_document;
mod documentation;
mod endpoint_document;
mod endpoint_health;
mod endpoint_secrets;
mod endpoint_test;
mod endpoints;
mod etag;
mod event_batch;
mod event_body;
mod event_types;
mod events;
mod health;
mod keys;
mod limits;
mod organization_lists;
mod own_keys;
mod removals;
mod replay_document;
mod replays;
mod stats;
mod template_fields;

use std::sync::Arc;

use actix_web::http::{Method, StatusCode, header};
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource};
use serde::Serialize;
use shared::runtime::clock::DatabaseClock;
use shared::runtime::traces::Traces;

use crate::auth::Auth;
use crate::config::Config;
use crate::connections::Connections;
use crate::idempotency;
use crate::ingest::Intake;
use crate::patience;
use crate::problem::{ApiError, Kind};
use crate::quotas::Quotas;
use crate::schemas::Schemas;

/// What every handler can reach.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) connections: Connections,
    pub(crate) auth: Arc<Auth>,
    pub(crate) intake: Intake,
    pub(crate) schemas: Schemas,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) health: Arc<crate::health::Health>,
    pub(crate) slots: endpoints::NextSlot,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) traces: Traces,
}

pub(crate) use admin::MOST_NAME;
pub(crate) use endpoint_test::SLACK as TEST_SLACK;
pub(crate) use endpoints::NextSlot;

impl State {
    /// A connection ([`Connections::get`]). Give it back before anything but the database is waited for.
    pub(crate) async fn client(&self) -> Result<shared::store::Pooled, ApiError> {
        Ok(self.connections.get().await?)
    }
}

/// Handlers take the request apart themselves: every refusal is a problem of ours.
type App = web::Data<State>;

/// What a kind of path does besides its handlers.
macro_rules! kind {
    // Its POSTs happen once when they have an `Idempotency-Key`.
    (path $resource:expr) => {
        $resource
            .wrap(from_fn(patience::wait))
            .wrap(from_fn(idempotency::once))
    };
    // The same where a POST has a deadline of its own.
    (slow_path $resource:expr) => {
        $resource
            .wrap(from_fn(patience::wait_unless_posted))
            .wrap(from_fn(idempotency::once))
    };
    // Events see to both themselves.
    (event_path $resource:expr) => {
        $resource.wrap(from_fn(patience::wait_unless_posted))
    };
}

/// The one table of routes: paths and handlers for the server, and operations for the document. A handler
/// without a `utoipa::path` does not compile here, and one whose annotation says something else fails a test.
macro_rules! routes {
    ($($how:ident $path:literal: $first:ident $($handler:ident)::+ $(, $method:ident $($other:ident)::+)*;)+) => {
        /// Every path there is.
        pub(crate) fn configure(app: &mut ServiceConfig) {
            $(app.service(kind!($how
                resource($path, concat!(stringify!($first) $(, ", ", stringify!($method))*))
                    .route(web::method(Method::$first).to($($handler)::+))
                    $(.route(web::method(Method::$method).to($($other)::+)))*
            ));)+
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
    event_path "/v1/events": GET events::list, POST events::publish;
    event_path "/v1/events/batch": POST event_batch::publish;
    path "/v1/events/{id}": GET events::show;
    path "/v1/events/{id}/payload": GET events::payload, DELETE removals::expunge_event;
    path "/v1/events/{id}/deliveries": GET events::deliveries;
    path "/v1/event-types": GET event_types::list;
    path "/v1/event-types/{type}": GET event_types::show, PUT event_types::declare, DELETE event_types::take_back;
    path "/v1/deliveries": GET deliveries::list;
    path "/v1/deliveries/{id}": GET deliveries::show;
    path "/v1/deliveries/{id}/attempts": GET deliveries::attempts;
    path "/v1/deliveries/{id}/cancel": POST deliveries::cancel;
    path "/v1/deliveries/{id}/retry": POST deliveries::retry;
    path "/v1/endpoints": GET endpoints::list, POST endpoints::create;
    path "/v1/endpoints/{id}": GET endpoints::show, PATCH endpoints::change, DELETE endpoints::delete;
    path "/v1/endpoints/{id}/health": GET endpoint_health::show;
    path "/v1/endpoints/{id}/enable": POST endpoints::enable;
    path "/v1/endpoints/{id}/disable": POST endpoints::disable;
    slow_path "/v1/endpoints/{id}/test": POST endpoint_test::send;
    path "/v1/endpoints/{id}/replay": POST replays::of_endpoint;
    path "/v1/dead-letters": GET dead_letters::list;
    path "/v1/dead-letters/analysis": GET dead_letters::analysis;
    path "/v1/dead-letters/replay": POST replays::of_dead_letters;
    path "/v1/dead-letters/{id}": GET dead_letters::show;
    path "/v1/replays": GET replays::list;
    path "/v1/replays/{id}": GET replays::show;
    path "/v1/replays/{id}/cancel": POST replays::cancel;
    path "/v1/endpoints/{id}/secret/rotate": POST endpoint_secrets::rotate;
    path "/v1/endpoints/{id}/secret/revoke": POST endpoint_secrets::revoke;
    path "/.well-known/jwks.json": GET endpoint_secrets::key_set;
    path "/v1/tenants": GET admin::own_tenants, POST admin::create_own_tenant;
    path "/v1/tenants/{id}": GET removals::own_tenant, DELETE removals::delete_own_tenant;
    path "/v1/tenants/{id}/keys": GET own_keys::list, POST own_keys::create;
    path "/v1/tenants/{id}/keys/{key}": PATCH own_keys::change, DELETE own_keys::revoke;
    path "/v1/stats/endpoints": GET stats::endpoints;
    path "/v1/stats/slow-endpoints": GET stats::slow;
    path "/v1/stats/pipeline": GET stats::pipeline;
    path "/v1/expunge": POST removals::expunge;
    path "/v1/removals/{id}": GET removals::show;
    path "/v1/audit-log": GET audit_log::list;
    path "/v1/admin/organizations": GET admin::organizations, POST admin::create_organization;
    path "/v1/admin/tenants": GET admin::tenants, POST admin::create_tenant;
    path "/v1/admin/{owner}/{id}/keys": GET keys::list, POST keys::create;
    path "/v1/admin/{owner}/{id}/keys/{key}": PATCH keys::change, DELETE keys::revoke;
    path "/v1/admin/{owner}/{id}/limits": GET limits::show, PUT limits::set;
    path "/v1/admin/tenants/{id}": DELETE removals::delete_tenant;
    path "/v1/admin/tenants/{id}/expunge": POST removals::expunge_tenant;
    path "/v1/admin/organizations/{id}": DELETE removals::delete_organization;
    path "/v1/admin/removals": GET removals::list;
    path "/v1/admin/removals/{id}": GET removals::show_any;
    path "/v1/admin/audit-log": GET audit_log::list_all;
    path "/openapi.json": GET documentation::document;
    path "/docs": GET documentation::page;
    path "/docs/{file}": GET documentation::file;
    path "/health/live": GET health::live;
    path "/health/ready": GET health::ready;
}

/// A path: other methods are answered 405 with what it does allow.
fn resource(pattern: &str, allow: &'static str) -> Resource {
    let not_allowed = move || async move { Err::<HttpResponse, _>(ApiError::not_allowed(allow)) };
    web::resource(pattern).default_service(web::route().to(not_allowed))
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
