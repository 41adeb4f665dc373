//! `GET /v1/endpoints/{id}/health`: how an endpoint fares.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};
use shared::ids::EndpointId;
use shared::policy::breaker::{SLOW_MS, lowered_threshold};
use shared::store::endpoint_health::{self as store, Health};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{App, json as reply, path_id};
use crate::auth::Scope;
use crate::problem::ApiError;

pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EndpointId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&client, tenant, id.0).await?;
    drop(client);
    let health = found.ok_or_else(|| ApiError::not_found("endpoint"))?;
    reply(StatusCode::OK, &document(&health, app.clock.now()))
}

fn document(health: &Health, now: OffsetDateTime) -> Value {
    let runtime = &health.runtime;
    let cooldown = runtime.opened_at.map(|_open| runtime.cooldown.as_secs());
    json!({
        "state": state(health, now),
        "consecutive_failures": health.consecutive_failures,
        "failure_threshold": lowered_threshold(health.settings.breaker.failures, runtime.p95_ms),
        "opened_at": runtime.opened_at.map(instant),
        "cooldown_seconds": cooldown,
        "next_probe_at": runtime.next_probe_at.map(instant),
        "failing_since": runtime.failing_since.map(instant),
        // Percentiles come with the statistics; their job writes the 95th for the breaker.
        "p50_ms": null,
        "p95_ms": runtime.p95_ms,
        "p99_ms": null,
        "sample_count": 0,
        "slow": runtime.p95_ms.is_some_and(|p95| p95 > SLOW_MS),
        "last_success_at": health.last_success_at.map(instant),
        "last_failure_at": health.last_failure_at.map(instant),
    })
}

/// Half-open is not stored: a breaker whose probe is due is shown as such, whether it is already on
/// the wire or not.
fn state(health: &Health, now: OffsetDateTime) -> &'static str {
    let runtime = &health.runtime;
    match (runtime.opened_at, runtime.next_probe_at) {
        (None, _) => "closed",
        (Some(_), Some(probe_at)) if now < probe_at => "open",
        (Some(_), _) => "half_open",
    }
}

fn instant(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
