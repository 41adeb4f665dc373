//! Statistics: how fast endpoints answer, which are slow, and what is under way.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::ids::EndpointId;
use shared::policy::slowness::SLOW_MS;
use shared::store::pipeline::{self, Count, Pipeline};
use shared::store::stats::{self as store, EndpointStats};
use utoipa::ToSchema;

use super::{App, json as reply};
use crate::auth::Scope;
use crate::instant::Instant;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::{ApiError, Kind};

/// No request takes longer; a threshold above it would find nothing.
const MOST_THRESHOLD_MS: u32 = 3_600_000;

/// List endpoints' statistics
///
/// Percentiles of the last 24 hours, computed every minute for endpoints with traffic. Newest endpoints first; one
/// without any attempt is not there. Failed requests count with the time that they took.
#[utoipa::path(
    get, path = "/v1/stats/endpoints", tag = "Statistics", operation_id = "listEndpointStats", security(("key" = ["read"])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest endpoints first", body = List<StatsDocument>, example = json!(example::list(example::endpoint_stats()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn endpoints(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::page(&**client, tenant, page.before, page.fetch()).await?;
    drop(client);
    reply(
        StatusCode::OK,
        &page.reply(rows, |row| row.id, StatsDocument::new),
    )
}

/// List slow endpoints
///
/// The slowest first, 250 at most: those with at least 20 attempts in 24 hours and a 95th percentile above the
/// threshold.
#[utoipa::path(
    get, path = "/v1/stats/slow-endpoints", tag = "Statistics", operation_id = "listSlowEndpoints", security(("key" = ["read"])),
    params(("p95_threshold_ms" = Option<u32>, Query, description = "Milliseconds; 2,000 unless it is given", maximum = 3_600_000)),
    responses(
        (status = 200, description = "The slowest first", body = List<StatsDocument>, example = json!(example::list(example::endpoint_stats()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn slow(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let query = Query::parse(&request, &["p95_threshold_ms"])?;
    let threshold = query.get("p95_threshold_ms").map(threshold).transpose()?;
    let client = app.client().await?;
    let rows = store::slow(
        &**client,
        tenant,
        threshold.unwrap_or(SLOW_MS),
        store::MOST_ROWS,
    )
    .await?;
    drop(client);
    let data = rows.into_iter().map(StatsDocument::new).collect();
    reply(StatusCode::OK, &List::new(data, None))
}

fn threshold(text: &str) -> Result<f64, ApiError> {
    let milliseconds: Option<u32> = text.parse().ok().filter(|ms| *ms <= MOST_THRESHOLD_MS);
    milliseconds.map(f64::from).ok_or_else(|| {
        let detail = format!("`p95_threshold_ms` must be 0 to {MOST_THRESHOLD_MS}");
        ApiError::new(Kind::InvalidParameter, detail)
    })
}

/// Get what is under way
///
/// Counted when asked, up to 10,000 each; of a larger one it is said that it is a lower bound.
#[utoipa::path(
    get, path = "/v1/stats/pipeline", tag = "Statistics", operation_id = "getPipeline", security(("key" = ["read"])),
    responses(
        (status = 200, description = "What is under way", body = PipelineDocument, example = json!({
            "pending": 12, "pending_is_lower_bound": false, "awaiting_retry": 3, "awaiting_retry_is_lower_bound": false,
            "in_flight": 1, "in_flight_is_lower_bound": false, "dead_letter": 2, "dead_letter_is_lower_bound": false,
            "delivered_last_hour": 10_000, "delivered_last_hour_is_lower_bound": true,
            "failed_last_hour": 7, "failed_last_hour_is_lower_bound": true,
            "oldest_pending": example::CREATED, "oldest_admissible": null, "avg_delivery_ms_last_hour": 84.2,
        })),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn pipeline(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    Query::parse(&request, &[])?;
    let client = app.client().await?;
    let found = pipeline::of_tenant(&**client, tenant, app.clock.now()).await?;
    drop(client);
    reply(StatusCode::OK, &PipelineDocument::new(&found))
}

/// How fast an endpoint answers.
#[derive(Serialize, ToSchema)]
struct StatsDocument {
    #[schema(value_type = schema::EndpointId)]
    endpoint_id: EndpointId,
    /// Milliseconds, interpolated between two attempts; null without attempts in the window.
    #[schema(required)]
    p50_ms: Option<f64>,
    #[schema(required)]
    p95_ms: Option<f64>,
    #[schema(required)]
    p99_ms: Option<f64>,
    sample_count: u64,
    /// Judged every 15 minutes: the 95th percentile is above 2 s.
    slow: bool,
    #[schema(required)]
    slow_since: Option<Instant>,
    /// Judged every 15 minutes: the 95th percentile is three times that of the day before, or more.
    degrading: bool,
    #[schema(required)]
    degrading_since: Option<Instant>,
    /// The window that the attempts began in.
    since: Instant,
    until: Instant,
}

impl StatsDocument {
    fn new(stats: EndpointStats) -> Self {
        let percentiles = stats.computed.percentiles;
        Self {
            endpoint_id: EndpointId(stats.id),
            p50_ms: percentiles.map(|it| it.p50_ms),
            p95_ms: percentiles.map(|it| it.p95_ms),
            p99_ms: percentiles.map(|it| it.p99_ms),
            sample_count: stats.computed.samples,
            slow: stats.slow_since.is_some(),
            slow_since: stats.slow_since.map(Instant),
            degrading: stats.degrading_since.is_some(),
            degrading_since: stats.degrading_since.map(Instant),
            since: Instant(stats.since),
            until: Instant(stats.computed_at),
        }
    }
}

/// What is under way.
#[derive(Serialize, ToSchema)]
struct PipelineDocument {
    /// Waiting for a first attempt.
    pending: u64,
    pending_is_lower_bound: bool,
    /// Waiting for another attempt.
    awaiting_retry: u64,
    awaiting_retry_is_lower_bound: bool,
    in_flight: u64,
    in_flight_is_lower_bound: bool,
    /// No longer tried, and not replayed.
    dead_letter: u64,
    dead_letter_is_lower_bound: bool,
    delivered_last_hour: u64,
    delivered_last_hour_is_lower_bound: bool,
    /// Attempts that failed.
    failed_last_hour: u64,
    failed_last_hour_is_lower_bound: bool,
    /// When the oldest delivery was made that is neither delivered nor given up.
    #[schema(required)]
    oldest_pending: Option<Instant>,
    /// Since when the oldest delivery waits that no breaker, limit, pause or order holds back.
    #[schema(required)]
    oldest_admissible: Option<Instant>,
    /// Of the attempts that delivered, in milliseconds; of the latest 20,000 at most.
    #[schema(required)]
    avg_delivery_ms_last_hour: Option<f64>,
}

impl PipelineDocument {
    fn new(found: &Pipeline) -> Self {
        let parts = |it: Count| (it.count, it.is_lower_bound);
        let (pending, pending_is_lower_bound) = parts(found.pending);
        let (awaiting_retry, awaiting_retry_is_lower_bound) = parts(found.awaiting_retry);
        let (in_flight, in_flight_is_lower_bound) = parts(found.in_flight);
        let (dead_letter, dead_letter_is_lower_bound) = parts(found.dead_letter);
        let (delivered_last_hour, delivered_last_hour_is_lower_bound) =
            parts(found.delivered_last_hour);
        let (failed_last_hour, failed_last_hour_is_lower_bound) = parts(found.failed_last_hour);
        Self {
            pending,
            pending_is_lower_bound,
            awaiting_retry,
            awaiting_retry_is_lower_bound,
            in_flight,
            in_flight_is_lower_bound,
            dead_letter,
            dead_letter_is_lower_bound,
            delivered_last_hour,
            delivered_last_hour_is_lower_bound,
            failed_last_hour,
            failed_last_hour_is_lower_bound,
            oldest_pending: found.oldest_pending.map(Instant),
            oldest_admissible: found.oldest_admissible.map(Instant),
            avg_delivery_ms_last_hour: found.avg_delivery_ms,
        }
    }
}
