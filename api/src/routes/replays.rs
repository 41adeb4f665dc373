//! Replays: events sent again because somebody asks for it, in the background.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use shared::domain::delivery::{DeadLetterClass, Status};
use shared::domain::endpoint::EndpointState;
use shared::domain::replay::{NotReplayable, ReplayFilter};
use shared::ids::{DeliveryId, EndpointId, EndpointKey, ReplayId, TenantKey, new_v7};
use shared::policy::replay::{DEFAULT_PER_SECOND, LEAST_PER_SECOND, MOST_PER_SECOND};
use shared::store::endpoints::{self as endpoint_store, Endpoint};
use shared::store::replays::{self as store, Ask, Created, Replay};
use uuid::Uuid;

use super::replay_document::{DeadLetterReplay, EndpointReplay, ReplayDocument};
use super::{App, endpoints, json as reply, path_id};
use crate::auth::Scope;
use crate::json::{Fields, MOST_BYTES};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::{ApiError, Kind};

/// Deliveries that one request may name.
const MOST_IDS: usize = 1_000;
/// What is sent again unless the request says otherwise: what was not delivered and nobody cancelled.
const DEFAULT_STATUSES: [Status; 2] = [Status::DeadLetter, Status::Skipped];

/// Replay an endpoint's events
///
/// Sends old events again in the background: what was not delivered in a time, or (`missing`) what the endpoint
/// never had.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/replay", tag = "Replays", operation_id = "replayEndpoint", security(("key" = ["replay"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id")),
    request_body(content = EndpointReplay, example = json!({"since": "2026-11-29T00:00:00Z", "status": ["dead_letter", "skipped"]})),
    responses(
        (status = 202, description = "It runs in the background", body = ReplayDocument, example = json!(example::replay())),
        Refused<(refused::Key, refused::Id, refused::Post, refused::Body, refused::State, refused::Limit)>,
    )
)]
pub(super) async fn of_endpoint(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: EndpointId = path_id(&request, "id")?;
    let body = crate::json::read(&request, payload, MOST_BYTES).await?;
    let mut fields = Fields::parse(&body)?;
    let missing = fields.bool("missing").unwrap_or(false);
    let statuses = statuses(&mut fields);
    let filter = ReplayFilter {
        statuses: statuses.unwrap_or_else(|| DEFAULT_STATUSES.to_vec()),
        missing,
        ..time(&mut fields)
    };
    if filter.statuses.is_empty() && !missing {
        fields.wrong("status", "must name a status, or `missing` must be true");
    }
    let per_second = rate(&mut fields);
    fields.finish()?;
    let client = app.client().await?;
    let found = endpoint_store::find(&**client, tenant, id.0).await?;
    drop(client);
    let endpoint: Endpoint = found.ok_or_else(endpoints::missing)?;
    if endpoint.draft.state != EndpointState::Enabled {
        return Err(not_replayable(NotReplayable::EndpointDisabled));
    }
    let key = Some(endpoint.key);
    start(&app, tenant, key, filter, per_second).await
}

/// Replay dead letters
///
/// Sends dead letters again in the background, of one endpoint or of all.
#[utoipa::path(
    post, path = "/v1/dead-letters/replay", tag = "Dead letters", operation_id = "replayDeadLetters", security(("key" = ["replay"])),
    request_body(content = DeadLetterReplay, example = json!({"class": ["transient"], "since": "2026-11-29T00:00:00Z"})),
    responses(
        (status = 202, description = "It runs in the background", body = ReplayDocument, example = json!(example::replay())),
        Refused<(refused::Key, refused::Post, refused::Body, refused::State, refused::Limit)>,
    )
)]
pub(super) async fn of_dead_letters(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let body = crate::json::read(&request, payload, MOST_BYTES).await?;
    let mut fields = Fields::parse(&body)?;
    let endpoint: Option<EndpointId> = parsed(&mut fields, "endpoint_id");
    let filter = ReplayFilter {
        statuses: vec![Status::DeadLetter],
        classes: classes(&mut fields),
        event_type: fields.short_text("event_type", 128),
        deliveries: ids(&mut fields),
        ..time(&mut fields)
    };
    let per_second = rate(&mut fields);
    fields.finish()?;
    let key = match endpoint {
        None => None,
        Some(id) => {
            let client = app.client().await?;
            Some(endpoints::key(&**client, tenant, id).await?)
        }
    };
    start(&app, tenant, key, filter, per_second).await
}

/// List replays
#[utoipa::path(
    get, path = "/v1/replays", tag = "Replays", operation_id = "listReplays", security(("key" = ["read"])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<ReplayDocument>, example = json!(example::list(example::replay()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let before = page.before.unwrap_or(Uuid::max());
    let client = app.client().await?;
    let rows = store::list(&**client, tenant, before, page.fetch()).await?;
    drop(client);
    let list: List<ReplayDocument> = page.reply(rows, |row| row.id, ReplayDocument::new);
    reply(StatusCode::OK, &list)
}

/// Get a replay
///
/// What was asked for, and how far it has come.
#[utoipa::path(
    get, path = "/v1/replays/{id}", tag = "Replays", operation_id = "getReplay", security(("key" = ["read"])),
    params(("id" = schema::ReplayId, Path, description = "The replay's id")),
    responses(
        (status = 200, description = "The replay", body = ReplayDocument, example = json!(example::replay())),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Read).await?.tenant;
    let id: ReplayId = path_id(&request, "id")?;
    let found = find(&app, tenant, id.0).await?;
    reply(StatusCode::OK, &ReplayDocument::new(found))
}

/// Cancel a replay
///
/// No more deliveries are made, and those that were not sent yet are cancelled.
#[utoipa::path(
    post, path = "/v1/replays/{id}/cancel", tag = "Replays", operation_id = "cancelReplay", security(("key" = ["replay"])),
    params(("id" = schema::ReplayId, Path, description = "The replay's id")),
    responses(
        (status = 200, description = "It is stopped", body = ReplayDocument, example = json!(example::replay())),
        Refused<(refused::Key, refused::Id, refused::Post, refused::State)>,
    )
)]
pub(super) async fn cancel(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let tenant = app.auth.tenant(&request, Scope::Replay).await?.tenant;
    let id: ReplayId = path_id(&request, "id")?;
    let client = app.client().await?;
    let cancelled = store::cancel(&**client, tenant, id.0).await?;
    drop(client);
    let found = find(&app, tenant, id.0).await?;
    if !cancelled {
        let detail = format!("it is {}, so there is nothing to stop", found.status.name());
        return Err(ApiError::new(Kind::Conflict, detail));
    }
    reply(StatusCode::OK, &ReplayDocument::new(found))
}

async fn start(
    app: &App,
    tenant: TenantKey,
    endpoint: Option<EndpointKey>,
    filter: ReplayFilter,
    per_second: f64,
) -> Result<HttpResponse, ApiError> {
    let id = new_v7(app.clock.now());
    let ask = Ask {
        id,
        tenant,
        endpoint,
        filter,
        per_second,
    };
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    match store::create(&transaction, ask).await? {
        Created::Running => transaction.commit().await?,
        Created::Same(running) => {
            let detail = format!(
                "the same replay is running as {}; wait for its end, or cancel it",
                ReplayId(running)
            );
            return Err(ApiError::new(Kind::Conflict, detail));
        }
        Created::TooMany => {
            let detail = format!(
                "{} replays are running, which is the limit; wait for one to end, or cancel one",
                store::MOST_RUNNING
            );
            return Err(ApiError::new(Kind::LimitReached, detail));
        }
    }
    drop(client);
    let found = find(app, tenant, id).await?;
    reply(StatusCode::ACCEPTED, &ReplayDocument::new(found))
}

async fn find(app: &App, tenant: TenantKey, id: Uuid) -> Result<Replay, ApiError> {
    let client = app.client().await?;
    let found = store::find(&**client, tenant, id).await?;
    found.ok_or_else(|| ApiError::not_found("replay"))
}

/// Why something cannot be sent again, and what to do.
pub(super) fn not_replayable(reason: NotReplayable) -> ApiError {
    let (kind, detail) = match reason {
        NotReplayable::PayloadExpired => (
            Kind::NotReplayable,
            "its event is past its retention or its payload was expunged, so there is nothing left to send; publish a new event",
        ),
        NotReplayable::DeliverBeforePassed => (
            Kind::NotReplayable,
            "the event's own `deliver_before` has passed; publish a new event",
        ),
        NotReplayable::EndpointDisabled => (
            Kind::Conflict,
            "the endpoint is disabled; enable it first (`POST /v1/endpoints/{id}/enable`)",
        ),
        NotReplayable::EndpointDeleted => (
            Kind::Conflict,
            "the endpoint was deleted, so there is nowhere to send it",
        ),
    };
    ApiError::new(kind, detail)
}

/// `since` and `until`.
fn time(fields: &mut Fields) -> ReplayFilter {
    let (since, until) = (fields.instant("since"), fields.instant("until"));
    if since
        .zip(until)
        .is_some_and(|(since, until)| since >= until)
    {
        fields.wrong("until", "must be after `since`");
    }
    ReplayFilter {
        since,
        until,
        ..ReplayFilter::default()
    }
}

fn rate(fields: &mut Fields) -> f64 {
    let rate = fields.real("rate_per_second", LEAST_PER_SECOND, MOST_PER_SECOND);
    rate.unwrap_or(DEFAULT_PER_SECOND)
}

/// `None`: not given. What has not ended cannot be sent again.
fn statuses(fields: &mut Fields) -> Option<Vec<Status>> {
    let names = fields.texts("status", Status::ALL.len())?;
    let mut statuses = Vec::with_capacity(names.len());
    for name in names {
        match Status::from_name(&name).filter(|status| status.is_final()) {
            Some(status) => statuses.push(status),
            None => {
                let ended = Status::ALL.iter().filter(|status| status.is_final());
                let ended: Vec<_> = ended.map(|status| status.name()).collect();
                fields.wrong("status", format!("may have: {}", ended.join(", ")));
            }
        }
    }
    Some(statuses)
}

fn classes(fields: &mut Fields) -> Vec<DeadLetterClass> {
    let names = fields.texts("class", DeadLetterClass::ALL.len());
    let mut classes = Vec::new();
    for name in names.unwrap_or_default() {
        if let Some(class) = DeadLetterClass::from_name(&name) {
            classes.push(class);
        } else {
            let names: Vec<_> = DeadLetterClass::ALL.iter().map(|it| it.name()).collect();
            fields.wrong("class", format!("may have: {}", names.join(", ")));
        }
    }
    classes
}

fn ids(fields: &mut Fields) -> Vec<Uuid> {
    let texts = fields.texts("ids", MOST_IDS);
    let given = texts.is_some();
    let mut ids = Vec::new();
    for text in texts.unwrap_or_default() {
        match text.parse::<DeliveryId>() {
            Ok(id) => ids.push(id.0),
            Err(error) => fields.wrong("ids", error.to_string()),
        }
    }
    if given && ids.is_empty() {
        fields.wrong("ids", "must name a delivery, or be left out");
    }
    ids
}

fn parsed<T>(fields: &mut Fields, name: &str) -> Option<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let text = fields.text(name)?;
    text.parse()
        .map_err(|error: T::Err| fields.wrong(name, error.to_string()))
        .ok()
}
