//! Dead letters: deliveries that are no longer tried, and what they have in common.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::domain::attempt::Outcome;
use shared::domain::delivery::{DeadLetterClass, Kind as DeliveryKind};
use shared::ids::{DeliveryId, EndpointId, EventId, created_at};
use shared::policy::dead_letters::{Pattern, advice, pattern};
use shared::store::dead_letters::{self as store, DeadLetter, Filter, Group, MOST_ENDPOINTS};
use shared::store::snapshot;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{App, endpoints, json as reply, path_id};
use crate::auth::Scope;
use crate::instant::Instant;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query, RangeParams};
use crate::problem::{ApiError, Kind};

/// Hours that an analysis looks back, at most: as long as dead letters are kept by default.
const MOST_HOURS: i64 = 90 * 24;
const DEFAULT_HOURS: i64 = 24;

/// List dead letters
///
/// A page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "Dead letters", operation_id = "listDeadLetters", security(("key" = ["read"])),
    params(
        ("endpoint_id" = Option<schema::EndpointId>, Query, description = "Only of this endpoint"),
        ("class" = Option<schema::DeliveryDeadLetterClass>, Query, description = "Only of this class"),
        ("event_type" = Option<String>, Query, description = "Only of events of this type", example = "order.created"),
        RangeParams, PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<DeadLetterDocument>, example = json!(example::list(example::dead_letter()))),
        Refused<(refused::Key, refused::Query, refused::Id)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
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
        Some(id) => Some(endpoints::key(&**client, tenant, id).await?),
    };
    let filter = Filter {
        range,
        endpoint,
        class,
        event_type: query.get("event_type"),
    };
    let found = store::page(&**client, tenant, filter, page.fetch()).await?;
    drop(client);
    let (rows, next) = page.found(found, |row| row.id);
    let data = rows.into_iter().map(DeadLetterDocument::new).collect();
    let list = List::new(data, next);
    reply(StatusCode::OK, &list)
}

/// Get a dead letter
#[utoipa::path(
    get, path = "/v1/dead-letters/{id}", tag = "Dead letters", operation_id = "getDeadLetter", security(("key" = ["read"])),
    params(("id" = schema::DeliveryId, Path, description = "The delivery's id")),
    responses(
        (status = 200, description = "The dead letter", body = DeadLetterDocument, example = json!(example::dead_letter())),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
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

/// Analyse dead letters
///
/// What those of the last hours that were not replayed have in common, for each endpoint, and what to do.
#[utoipa::path(
    get, path = "/v1/dead-letters/analysis", tag = "Dead letters", operation_id = "analyseDeadLetters", security(("key" = ["read"])),
    params(("hours" = Option<i64>, Query, description = "How far to look back", minimum = 1, maximum = 2160, example = 24)),
    responses(
        (status = 200, description = "A row for each endpoint, the most dead letters first", body = Analysis, example = json!({
            "hours": 24, "data": [{
                "endpoint_id": example::ENDPOINT, "endpoint_url": "https://receiver.example/hooks", "dead_count": 120,
                "dead_count_is_lower_bound": false, "primary_error": "transient", "primary_status_code": 503,
                "primary_class": "transient", "first_dead": example::CREATED, "last_dead": example::LATER,
                "avg_attempts": 5.0, "pattern": "burst", "advice": "The receiver was down for a while: replay them.",
            }],
            "internal": [], "endpoint_count": 1, "endpoint_count_is_lower_bound": false,
        })),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn analysis(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
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
    let mut client = app.client().await?;
    let snapshot = snapshot(&mut client).await?;
    let groups = store::analysis(&snapshot, tenant, since).await?;
    snapshot.commit().await?;
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

/// A delivery that is no longer tried.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetter)]
struct DeadLetterDocument {
    /// The delivery's id.
    #[schema(value_type = schema::DeliveryId)]
    id: DeliveryId,
    #[schema(value_type = schema::EventId)]
    event_id: EventId,
    #[schema(value_type = schema::EndpointId)]
    endpoint_id: EndpointId,
    /// `null` when the event is past its retention.
    #[schema(required)]
    event_type: Option<String>,
    #[schema(value_type = schema::DeliveryKind)]
    kind: DeliveryKind,
    #[schema(value_type = schema::DeliveryDeadLetterClass)]
    class: DeadLetterClass,
    /// In words.
    #[schema(required)]
    reason: Option<String>,
    /// Equal for what broke in the same way.
    #[schema(required)]
    fingerprint: Option<String>,
    #[schema(required, value_type = Option<schema::AttemptOutcome>)]
    last_outcome: Option<Outcome>,
    #[schema(required)]
    last_status_code: Option<i16>,
    attempt_count: i16,
    created_at: Instant,
    dead_at: Instant,
    /// The delivery that sends its event again; the latest, if it was asked for more than once.
    #[schema(required, value_type = Option<schema::DeliveryId>)]
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
#[schema(as = DeadLetterAnalysis)]
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
#[schema(as = DeadLetterAnalysisRow)]
struct AnalysisRow {
    #[schema(value_type = schema::EndpointId)]
    endpoint_id: EndpointId,
    endpoint_url: String,
    dead_count: u64,
    /// There are more; the rest of the row is of the latest of them.
    dead_count_is_lower_bound: bool,
    /// What went wrong with most of them, in words.
    #[schema(required)]
    primary_error: Option<String>,
    #[schema(required)]
    primary_status_code: Option<i16>,
    #[schema(value_type = schema::DeliveryDeadLetterClass)]
    primary_class: DeadLetterClass,
    first_dead: Instant,
    last_dead: Instant,
    avg_attempts: f64,
    /// `auth_or_throttle`: at least half were answered with 401, 403, 407 or 429. `burst`: five or more, of which
    /// 80 % died within a quarter of an hour. `slow_drip`: neither.
    #[schema(value_type = schema::DeadLetterPattern)]
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
