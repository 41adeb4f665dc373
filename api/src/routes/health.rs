//! Health, on the API's own address as well: load balancers look there.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{App, json as reply};
use crate::openapi::refused::Refused;
use crate::problem::{ApiError, Kind};

/// How a process is.
#[derive(Serialize, ToSchema)]
struct Health {
    status: HealthStatus,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum HealthStatus {
    Live,
    Ready,
}

/// Is it alive?
#[utoipa::path(
    get, path = "/health/live", tag = "Operation", operation_id = "getLive", security(()),
    responses(
        (status = 200, description = "The process answers", body = Health, example = json!({"status": "live"})),
        Refused<()>,
    )
)]
pub(super) async fn live() -> Result<HttpResponse, ApiError> {
    let status = HealthStatus::Live;
    reply(StatusCode::OK, &Health { status })
}

/// Is it ready?
#[utoipa::path(
    get, path = "/health/ready", tag = "Operation", operation_id = "getReady", security(()),
    responses(
        (status = 200, description = "It can do its work", body = Health, example = json!({"status": "ready"})),
        Refused<()>,
    )
)]
pub(super) async fn ready(app: App) -> Result<HttpResponse, ApiError> {
    match app.health.ready() {
        Ok(()) => {
            let status = HealthStatus::Ready;
            reply(StatusCode::OK, &Health { status })
        }
        Err(why) => {
            // The address is public; the metrics address tells the cause.
            tracing::debug!(%why, "asked while not ready");
            Err(ApiError::new(
                Kind::Unavailable,
                "this process is not ready; /health/ready on the metrics address says why",
            ))
        }
    }
}
