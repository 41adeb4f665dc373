//! `GET /v1/endpoints/{id}/health`: how an endpoint fares.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::ids::EndpointId;
use shared::policy::breaker::lowered_threshold;
use shared::store::endpoint_health::{self as store, Health};
use shared::store::stats::{self, EndpointStats};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::{App, endpoints, json as reply, path_id};
use crate::auth::Scope;
use crate::instant::Instant;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::problem::ApiError;

/// Get an endpoint's health
///
/// How it fares: its breaker and its latest results.
#[utoipa::path(
    get, path = "/v1/endpoints/{id}/health", tag = "Endpoints", operation_id = "getEndpointHealth",
    security(("key" = ["read"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id")),
    responses(
        (status = 200, description = "Its breaker and its latest results", body = EndpointHealth, example = json!({
            "state": "open", "consecutive_failures": 10, "failure_threshold": 10, "opened_at": example::CREATED,
            "cooldown_seconds": 300, "next_probe_at": example::LATER, "failing_since": example::CREATED,
            "p50_ms": 85.5, "p95_ms": 412.95, "p99_ms": 1180.0, "sample_count": 5210, "slow": false, "degrading": false,
            "last_success_at": null, "last_failure_at": example::CREATED,
        })),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(crate) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: EndpointId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&client, tenant, id.0).await?;
    let measured = stats::find(&**client, tenant, id.0).await?;
    drop(client);
    let health = found.ok_or_else(endpoints::missing)?;
    reply(
        StatusCode::OK,
        &EndpointHealth::new(&health, measured.as_ref(), app.clock.now()),
    )
}

/// How an endpoint fares.
#[derive(Serialize, ToSchema)]
struct EndpointHealth {
    state: BreakerState,
    consecutive_failures: u16,
    /// How many failures in a row open the breaker.
    failure_threshold: u16,
    #[schema(required)]
    opened_at: Option<Instant>,
    /// How long it stays open before a probe.
    #[schema(required)]
    cooldown_seconds: Option<u64>,
    #[schema(required)]
    next_probe_at: Option<Instant>,
    #[schema(required)]
    failing_since: Option<Instant>,
    /// Milliseconds under which half of its requests of the last 24 hours took; failed ones count as well.
    #[schema(required)]
    p50_ms: Option<f64>,
    #[schema(required)]
    p95_ms: Option<f64>,
    #[schema(required)]
    p99_ms: Option<f64>,
    sample_count: u64,
    /// Its 95th percentile is above 2 s.
    slow: bool,
    /// Its 95th percentile is three times that of the day before, or more.
    degrading: bool,
    #[schema(required)]
    last_success_at: Option<Instant>,
    #[schema(required)]
    last_failure_at: Option<Instant>,
}

/// Whether requests flow, none do, or one probe does.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl EndpointHealth {
    fn new(health: &Health, measured: Option<&EndpointStats>, now: OffsetDateTime) -> Self {
        let runtime = &health.runtime;
        let percentiles = measured.and_then(|it| it.computed.percentiles);
        Self {
            state: state(health, now),
            consecutive_failures: health.consecutive_failures,
            failure_threshold: lowered_threshold(health.settings.breaker.failures, runtime.p95_ms),
            opened_at: runtime.opened_at.map(Instant),
            cooldown_seconds: runtime.opened_at.map(|_open| runtime.cooldown.as_secs()),
            next_probe_at: runtime.next_probe_at.map(Instant),
            failing_since: runtime.failing_since.map(Instant),
            p50_ms: percentiles.map(|it| it.p50_ms),
            p95_ms: percentiles.map(|it| it.p95_ms),
            p99_ms: percentiles.map(|it| it.p99_ms),
            sample_count: measured.map_or(0, |it| it.computed.samples),
            slow: measured.is_some_and(|it| it.slow_since.is_some()),
            degrading: measured.is_some_and(|it| it.degrading_since.is_some()),
            last_success_at: health.last_success_at.map(Instant),
            last_failure_at: health.last_failure_at.map(Instant),
        }
    }
}

/// Half-open is not stored: a breaker whose probe is due is shown as such, whether it is already on
/// the wire or not.
fn state(health: &Health, now: OffsetDateTime) -> BreakerState {
    let runtime = &health.runtime;
    match (runtime.opened_at, runtime.next_probe_at) {
        (None, _) => BreakerState::Closed,
        (Some(_), Some(probe_at)) if now < probe_at => BreakerState::Open,
        (Some(_), _) => BreakerState::HalfOpen,
    }
}
