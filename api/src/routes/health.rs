//! Health, on the API's own address as well: load balancers look there.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use serde_json::json;

use super::{App, json as reply};
use crate::problem::{ApiError, Kind};

pub(super) async fn live() -> Result<HttpResponse, ApiError> {
    reply(StatusCode::OK, &json!({"status": "live"}))
}

pub(super) async fn ready(app: App) -> Result<HttpResponse, ApiError> {
    match app.health.ready() {
        Ok(()) => reply(StatusCode::OK, &json!({"status": "ready"})),
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
