//! Dead letters: deliveries that are no longer tried, and what they have in common.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::domain::attempt::Outcome;
use shared::domain::delivery::{DeadLetterClass, Kind as DeliveryKind};
use shared::ids::{DeliveryId, EndpointId, EventId, created_at};
use shared::policy::dead_letters::{Pattern, advice, pattern};
use shared::store::dead_letters::{self as store, DeadLetter, Filter, Group, MOST_ENDPOINTS};
use shared::store::endpoints;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{App, json as reply, path_id};
use crate::auth::Scope;
use crate::instant::Instant;
use crate::paging::{List, Query};
use crate::problem::{ApiError, Kind, Problem};

/// Hours that an analysis looks back, at most: as long as dead letters are kept by default.
const MOST_HOURS: i64 = 90 * 24;
const DEFAULT_HOURS: i64 = 24;

/// A tenant's dead letters, newest first. A page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "Dead letters", operation_id = "listDeadLetters",
    params(
        ("endpoint_id" = Option<String>, Query, description = "Only of this endpoint"),
        ("class" = Option<String>, Query, description = "Only of this class", example = "transient"),
        ("event_type" = Option<String>, Query, description = "Only of events of this type", example = "order.created"),
        ("since" = Option<String>, Query, description = "From then on, by the delivery's `created_at`"),
        ("until" = Option<String>, Query, description = "Until then, excluded"),
        ("limit" = Option<u32>, Query, description = "1 to 250", example = 50),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = DeadLetterList),
        (status = "4XX", description = "See `type`", body = Problem<'_>, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let known = &[
        "endpoint_id",
        "class",
        "event_type",
        "since",
        "until",
        "limit",
        "cursor",
    ];
    let query = Query::parse(&request, known)?;
    let page = query.page()?;
    let endpoint: Option<EndpointId> = query.id("endpoint_id")?;
    let class = query.get("class").map(class).transpose()?;
    let range = query.id_range(page.before)?;
    let client = app.client().await?;
    let endpoint = match endpoint {
        None => None,
        Some(id) => {
            let found = endpoints::key(&**client, tenant, id.0).await?;
            Some(found.ok_or_else(|| ApiError::not_found("endpoint"))?)
        }
    };
    let filter = Filter {
        range,
        endpoint,
        class,
        event_type: query.get("event_type"),
    };
    let mut found = store::page(&**client, tenant, filter, page.fetch()).await?;
    drop(client);
    let next = page.cut(&mut found.rows, |row| row.id);
    let next = next.or_else(|| found.seen_to.map(|seen_to| page.cursor(seen_to)));
    let rows = found.rows.into_iter();
    let list = List::new(rows.map(DeadLetterDocument::new).collect(), next);
    reply(StatusCode::OK, &list)
}

/// One dead letter.
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", tag = "Dead letters", operation_id = "getDeadLetter",
    params(("id" = String, Path, description = "The delivery's id", example = "dlv_01kb9h2v3cfzqt9m6w8x5y7r2n")),
    responses(
        (status = 200, description = "The dead letter", body = DeadLetterDocument),
        (status = "4XX", description = "See `type`", body = Problem<'_>, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: DeliveryId = path_id(&request, "id")?;
    let missing = || ApiError::not_found("dead letter");
    let after = id.0.as_u128().checked_add(1).ok_or_else(missing)?;
    let filter = Filter {
        range: (id.0, Uuid::from_u128(after)),
        ..Filter::default()
    };
    let client = app.client().await?;
    let found = store::page(&**client, tenant, filter, 1).await?;
    drop(client);
    let row = found.rows.into_iter().next().ok_or_else(missing)?;
    reply(StatusCode::OK, &DeadLetterDocument::new(row))
}

/// What the dead letters of the last hours that were not replayed have in common, per endpoint, and what to do.
#[utoipa::path(
    get, path = "/v1/dead-letters/analysis", tag = "Dead letters", operation_id = "analyseDeadLetters",
    params(("hours" = Option<u32>, Query, description = "How far to look back: 1 to 2,160", example = 24)),
    responses(
        (status = 200, description = "A row per endpoint, the most dead letters first", body = Analysis),
        (status = "4XX", description = "See `type`", body = Problem<'_>, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn analysis(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let query = Query::parse(&request, &["hours"])?;
    let hours = match query.get("hours") {
        None => DEFAULT_HOURS,
        Some(text) => text
            .parse()
            .ok()
            .filter(|hours| (1..=MOST_HOURS).contains(hours))
            .ok_or_else(|| {
                let detail = format!("`hours` must be a whole number from 1 to {MOST_HOURS}");
                ApiError::new(Kind::InvalidParameter, detail)
            })?,
    };
    let since = app.clock.now() - time::Duration::hours(hours);
    let client = app.client().await?;
    let groups = store::analysis(&**client, tenant, since).await?;
    drop(client);
    reply(StatusCode::OK, &Analysis::new(hours, groups))
}

fn class(name: &str) -> Result<DeadLetterClass, ApiError> {
    DeadLetterClass::from_name(name).ok_or_else(|| {
        let names: Vec<_> = DeadLetterClass::ALL.iter().map(|it| it.name()).collect();
        let detail = format!("`class` must be one of: {}", names.join(", "));
        ApiError::new(Kind::InvalidParameter, detail)
    })
}

/// A page of dead letters.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the shape of a page")]
struct DeadLetterList {
    data: Vec<DeadLetterDocument>,
    next_cursor: Option<String>,
}

/// A delivery that is no longer tried.
#[derive(Serialize, ToSchema)]
struct DeadLetterDocument {
    /// The delivery's id.
    #[schema(value_type = String, example = "dlv_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    id: DeliveryId,
    #[schema(value_type = String, example = "evt_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    event_id: EventId,
    #[schema(value_type = String, example = "ep_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    endpoint_id: EndpointId,
    /// `null` when the event is past its retention.
    event_type: Option<String>,
    /// `live`, `replay`, `auto_replay`, `test` or `notice`: why the delivery existed.
    #[schema(value_type = String, example = "live")]
    kind: DeliveryKind,
    /// `transient`, `misconfigured`, `permanent`, `throttled`, `internal`, `refused` or `expired`.
    #[schema(value_type = String, example = "transient")]
    class: DeadLetterClass,
    /// In words.
    reason: Option<String>,
    /// Equal for what broke in the same way.
    fingerprint: Option<String>,
    #[schema(value_type = Option<String>)]
    last_outcome: Option<Outcome>,
    last_status_code: Option<i16>,
    attempt_count: i16,
    created_at: Instant,
    dead_at: Instant,
    /// The delivery that sends its event again; the latest, if it was asked for more than once.
    #[schema(value_type = Option<String>)]
    replayed_as: Option<DeliveryId>,
}

impl DeadLetterDocument {
    fn new(row: DeadLetter) -> Self {
        Self {
            id: DeliveryId(row.id),
            event_id: EventId(row.event),
            endpoint_id: EndpointId(row.endpoint),
            event_type: row.event_type,
            kind: row.kind,
            class: row.class,
            reason: row.reason,
            // As text: a program that reads numbers as doubles would change it.
            fingerprint: row.fingerprint.map(|it| format!("{it:x}")),
            last_outcome: row.outcome,
            last_status_code: row.status_code,
            attempt_count: row.attempts_made,
            created_at: Instant(created_at(row.id)),
            dead_at: Instant(row.dead_at),
            replayed_as: row.replayed_as.map(DeliveryId),
        }
    }
}

/// What the dead letters of the last hours have in common.
#[derive(Serialize, ToSchema)]
struct Analysis {
    hours: i64,
    data: Vec<AnalysisRow>,
    /// Those that are our own fault, apart: the operator is told of them, and nothing is wrong with the endpoints.
    internal: Vec<AnalysisRow>,
    endpoint_count: usize,
    /// More endpoints have dead letters; these are those with the latest.
    endpoint_count_is_lower_bound: bool,
}

/// An endpoint's dead letters that were not replayed.
#[derive(Serialize, ToSchema)]
struct AnalysisRow {
    #[schema(value_type = String, example = "ep_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    endpoint_id: EndpointId,
    endpoint_url: String,
    dead_count: u64,
    /// There are more; the rest of the row is of the latest of them.
    dead_count_is_lower_bound: bool,
    /// What went wrong with most of them, in words.
    primary_error: Option<String>,
    primary_status_code: Option<i16>,
    #[schema(value_type = String, example = "transient")]
    primary_class: DeadLetterClass,
    first_dead: Instant,
    last_dead: Instant,
    avg_attempts: f64,
    /// `auth_or_throttle`: at least half were answered with 401, 403, 407 or 429. `burst`: five or more, of which
    /// 80 % died within a quarter of an hour. `slow_drip`: neither.
    #[schema(value_type = String, example = "burst")]
    pattern: Pattern,
    /// What a person may do about it.
    advice: &'static str,
}

impl Analysis {
    fn new(hours: i64, groups: Vec<Group>) -> Self {
        let mut ids: Vec<Uuid> = groups.iter().map(|group| group.endpoint).collect();
        ids.sort_unstable();
        ids.dedup();
        let (internal, data): (Vec<_>, Vec<_>) = groups.into_iter().partition(|it| it.internal);
        Self {
            hours,
            data: data.into_iter().map(AnalysisRow::new).collect(),
            internal: internal.into_iter().map(AnalysisRow::new).collect(),
            endpoint_count: ids.len(),
            endpoint_count_is_lower_bound: i64::try_from(ids.len())
                .is_ok_and(|count| count >= MOST_ENDPOINTS),
        }
    }
}

impl AnalysisRow {
    fn new(group: Group) -> Self {
        let pattern = pattern(group.sample);
        let error = group.reason.or_else(|| {
            let outcome = group.outcome.map(Outcome::name);
            outcome.map(str::to_owned)
        });
        Self {
            endpoint_id: EndpointId(group.endpoint),
            endpoint_url: group.url,
            dead_count: group.sample.count,
            dead_count_is_lower_bound: group.more,
            primary_error: error,
            primary_status_code: group.status_code,
            primary_class: group.class,
            first_dead: Instant(group.times.0),
            last_dead: Instant(group.times.1),
            avg_attempts: (group.average_attempts * 10.0).round() / 10.0,
            pattern,
            advice: advice(pattern, group.class, group.status_code),
        }
    }
}
