//! Endpoints: create, read, list, change, delete, enable, disable.

use std::sync::atomic::{AtomicU32, Ordering};

use actix_web::http::{StatusCode, header};
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use deadpool_postgres::Transaction;
use serde::Serialize;
use serde_json::{Map, Value};
use shared::domain::audit::Object;
use shared::domain::endpoint::EndpointState;
use shared::ids::{EndpointId, EndpointKey, SLOT_COUNT, Slot, TenantKey, new_v7};
use shared::runtime::jitter;
use shared::store::endpoint_secrets::{self as secret_store, About};
use shared::store::endpoints::{self as store, Endpoint, EndpointDraft};
use shared::store::{limits, notify};
use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::endpoint_document::{
    self as document, CreatedEndpoint, Document, EndpointPatch, NewEndpoint, Rules,
};
use super::etag::{self, Condition};
use super::{
    App, State, endpoint_secrets as secrets, json as reply, organization_lists, path_id,
    template_fields,
};
use crate::audit;
use crate::auth::{Caller, Readers, Scope};
use crate::json::{self, Fields};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::{ApiError, Kind};

/// Hands out slots in turn, from a random one: endpoints made by one process spread evenly.
#[derive(Debug)]
pub(crate) struct NextSlot(AtomicU32);

/// From one slot to the next. Odd, so that all of them come round; and far, because a worker takes slots that
/// lie together: a few endpoints would all be one worker's.
const STRIDE: u32 = 97;

impl NextSlot {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(
            u32::try_from(jitter::below(SLOT_COUNT.unsigned_abs().into())).unwrap_or(0),
        ))
    }

    fn take(&self) -> Slot {
        let next =
            self.0.fetch_add(STRIDE, Ordering::Relaxed) % u32::from(SLOT_COUNT.unsigned_abs());
        Slot(i16::try_from(next).unwrap_or(0))
    }
}

fn rules(state: &State) -> Rules<'_> {
    let days_kept = state.config.events_retention;
    Rules {
        address: &state.config.address_rules,
        https_only: state.config.https_only,
        longest_timeout_ms: u32::try_from(state.config.longest_timeout.as_millis())
            .unwrap_or(u32::MAX),
        longest_age_seconds: u32::try_from(days_kept.as_secs().saturating_sub(2 * 86_400))
            .unwrap_or(u32::MAX),
        keys: &state.config.master_keys,
    }
}

fn shown(state: &State, endpoint: &Endpoint, public_keys: &[String], about: About) -> Document {
    let opened = document::open(endpoint, &state.config.master_keys);
    Document::new(endpoint, opened.as_ref(), public_keys, about)
}

/// [`shown`], with the public keys read, as far as the caller may see it.
async fn read_and_shown(
    state: &State,
    client: &impl GenericClient,
    endpoint: &Endpoint,
    caller: Caller,
) -> Result<Document, ApiError> {
    let mut keys = secrets::public_keys(client, std::slice::from_ref(endpoint)).await?;
    let keys = keys.remove(&endpoint.key).unwrap_or_default();
    let mut about = secret_store::about(client, &[endpoint.key]).await?;
    let about = about.remove(&endpoint.key).unwrap_or_default();
    let document = shown(state, endpoint, &keys, about);
    Ok(if caller.reads {
        document
    } else {
        document.without_what_readers_see()
    })
}

/// Create an endpoint
///
/// Its reply is the only one that holds the secret.
#[utoipa::path(
    post, path = "/v1/endpoints", tag = "Endpoints", operation_id = "createEndpoint", security(("key" = ["endpoints:write"])),
    request_body(content = NewEndpoint, example = json!({
        "url": "https://receiver.example/hooks", "event_types": ["order.*"], "description": "Orders of the shop",
    })),
    responses(
        (status = 201, description = "Made", body = CreatedEndpoint, headers(("ETag" = String, description = "Its version, for `If-Match` and `If-None-Match`")), example = json!(example::created_endpoint())),
        Refused<(refused::Key, refused::Post, refused::Body, refused::Limit)>,
    )
)]
pub(super) async fn create(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::EndpointsWrite).await?;
    let body = json::read(&request, payload, json::MOST_BYTES).await?;
    let id = new_v7(app.clock.now());
    let nothing = (&document::Opened::default(), None);
    let draft = document::read(Fields::parse(&body)?, id, nothing, &rules(&app))?;
    let (secret, sealed) = secrets::new_secret(&app, id);

    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    make_room(&*transaction, caller).await?;
    template_fields::check(&transaction, caller.tenant, &draft).await?;
    let made = store::create(
        &transaction,
        caller.tenant,
        id,
        app.slots.take(),
        (&draft, &sealed),
    )
    .await?;
    let Some(endpoint) = made else {
        let detail = format!("a tenant has at most {} endpoints", store::MAX_ENDPOINTS);
        return Err(ApiError::new(Kind::LimitReached, detail));
    };
    secrets::ensure_pair(&app, &transaction, &endpoint).await?;
    let object = Object::new("endpoint", id);
    audit::record(
        &*transaction,
        (&request, caller),
        "endpoint.created",
        object,
        &[],
    )
    .await?;
    transaction.commit().await?;

    let created = CreatedEndpoint {
        endpoint: read_and_shown(&app, &**client, &endpoint, caller).await?,
        secret: secret.reveal(),
    };
    let version = created.endpoint.version;
    tagged(StatusCode::CREATED, &created, version)
}

/// Refuses a new endpoint where the tenant has as many as it may have. Parallel requests may exceed that by
/// their number.
async fn make_room(client: &impl GenericClient, caller: Caller) -> Result<(), ApiError> {
    let Some(most) = caller.limits.max_endpoints else {
        return Ok(());
    };
    if limits::count_endpoints(client, caller.tenant).await? < i64::from(most) {
        return Ok(());
    }
    let detail = format!("the tenant has {most} endpoints, which is its limit");
    Err(ApiError::new(Kind::LimitReached, detail))
}

/// List endpoints
#[utoipa::path(
    get, path = "/v1/endpoints", tag = "Endpoints", operation_id = "listEndpoints", security(("key" = ["read"])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Document>,
         example = json!(example::list(example::endpoint()))),
        Refused<(refused::Key, refused::Query)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let readers = app.auth.readers(&request, Scope::Read).await?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let tenant = match readers {
        Readers::Tenant(tenant) => tenant,
        Readers::Organization(all) => return organization_lists::endpoints(&app, all, page).await,
    };
    let client = app.client().await?;
    let mut rows = store::list(&**client, tenant, page.before, page.fetch()).await?;
    let next = page.cut(&mut rows, |row| row.id);
    let data = documents(&app, &**client, &rows).await?;
    drop(client);
    reply(StatusCode::OK, &List::new(data, next))
}

/// Endpoints as clients see them.
pub(super) async fn documents(
    state: &State,
    client: &impl GenericClient,
    endpoints: &[Endpoint],
) -> Result<Vec<Document>, ApiError> {
    let keys = secrets::public_keys(client, endpoints).await?;
    let shown_keys: Vec<_> = endpoints.iter().map(|row| row.key).collect();
    let about = secret_store::about(client, &shown_keys).await?;
    let show = |row: &Endpoint| {
        let keys = keys.get(&row.key).map_or(&[][..], Vec::as_slice);
        let about = about.get(&row.key).cloned().unwrap_or_default();
        shown(state, row, keys, about)
    };
    Ok(endpoints.iter().map(show).collect())
}

/// Get an endpoint
#[utoipa::path(
    get, path = "/v1/endpoints/{id}", tag = "Endpoints", operation_id = "getEndpoint", security(("key" = ["read"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id"),
        ("If-None-Match" = Option<schema::Tags>, Header, description = "Only if this is not its version any more")),
    responses(
        (status = 200, description = "The endpoint", body = Document,
         headers(("ETag" = String, description = "Its version, for `If-Match` and `If-None-Match`")), example = json!(example::endpoint())),
        (status = 304, description = "It is that version still"),
        Refused<(refused::Key, refused::Id)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::Read).await?;
    let id: EndpointId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, caller.tenant, id.0).await?;
    let endpoint = found.ok_or_else(missing)?;
    if etag::is_known(&request, endpoint.version)? {
        let mut reply = HttpResponse::NotModified();
        return Ok(reply
            .insert_header((header::ETAG, etag::header(endpoint.version)))
            .finish());
    }
    let document = read_and_shown(&app, &**client, &endpoint, caller).await?;
    tagged(StatusCode::OK, &document, document.version)
}

/// Change an endpoint
///
/// A JSON merge patch (RFC 7396); `null` resets to the default.
#[utoipa::path(
    patch, path = "/v1/endpoints/{id}", tag = "Endpoints", operation_id = "changeEndpoint", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id"),
        ("If-Match" = Option<schema::StrongTags>, Header, description = "Only if this is its version still")),
    request_body(content = EndpointPatch, example = json!({"description": "Orders", "rate_limit": null})),
    responses(
        (status = 200, description = "As it is now", body = Document,
         headers(("ETag" = String, description = "Its version, for `If-Match` and `If-None-Match`")), example = json!(example::endpoint())),
        Refused<(refused::Key, refused::Id, refused::Version, refused::Body)>,
    )
)]
pub(super) async fn change(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::EndpointsWrite).await?;
    let id: EndpointId = path_id(&request, "id")?;
    let condition = Condition::of(&request)?;
    let body = json::read(&request, payload, json::MOST_BYTES).await?;
    let patch = without_what_is_shown(&app, caller, id, patch(&body)?).await?;
    let action = "endpoint.updated";
    let document = update(&app, &request, (caller, id.0), action, |current| {
        condition.check(current.version)?;
        let opened = document::open(current, &app.config.master_keys).ok_or_else(|| {
            ApiError::new(
                Kind::Internal,
                "what is sealed of the endpoint cannot be opened",
            )
        })?;
        let fields = document::merged(current, &opened, patch);
        document::read(fields, current.id, (&opened, Some(current)), &rules(&app))
    })
    .await?;
    tagged(StatusCode::OK, &document, document.version)
}

/// Delete an endpoint
///
/// No attempt starts later than two seconds after the reply. What is pending becomes `cancelled`.
#[utoipa::path(
    delete, path = "/v1/endpoints/{id}", tag = "Endpoints", operation_id = "deleteEndpoint", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id"),
        ("If-Match" = Option<schema::StrongTags>, Header, description = "Only if this is its version still")),
    responses(
        (status = 204, description = "Deleted"),
        Refused<(refused::Key, refused::Id, refused::Version, refused::Post)>,
    )
)]
pub(super) async fn delete(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    set_state(&app, &request, EndpointState::Deleted).await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Enable an endpoint
///
/// Sends nothing by itself; what comes then starts with a probe.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/enable", tag = "Endpoints", operation_id = "enableEndpoint", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id"),
        ("If-Match" = Option<schema::StrongTags>, Header, description = "Only if this is its version still")),
    responses(
        (status = 200, description = "As it is now", body = Document,
         headers(("ETag" = String, description = "Its version, for `If-Match` and `If-None-Match`")), example = json!(example::endpoint())),
        Refused<(refused::Key, refused::Id, refused::Version, refused::Post)>,
    )
)]
pub(super) async fn enable(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let document = set_state(&app, &request, EndpointState::Enabled).await?;
    tagged(StatusCode::OK, &document, document.version)
}

/// Disable an endpoint
///
/// What is pending becomes `skipped`.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/disable", tag = "Endpoints", operation_id = "disableEndpoint", security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id"),
        ("If-Match" = Option<schema::StrongTags>, Header, description = "Only if this is its version still")),
    responses(
        (status = 200, description = "As it is now", body = Document,
         headers(("ETag" = String, description = "Its version, for `If-Match` and `If-None-Match`")), example = json!(example::endpoint())),
        Refused<(refused::Key, refused::Id, refused::Version, refused::Post)>,
    )
)]
pub(super) async fn disable(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let document = set_state(&app, &request, EndpointState::Disabled).await?;
    tagged(StatusCode::OK, &document, document.version)
}

/// A reply with the version that it shows.
fn tagged<T: Serialize>(
    status: StatusCode,
    document: &T,
    version: i32,
) -> Result<HttpResponse, ApiError> {
    let mut response = reply(status, document)?;
    let tag = etag::header(version);
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

/// Which endpoint of which tenant a POST is to change, if its key may.
pub(super) async fn to_change(
    app: &App,
    request: &HttpRequest,
) -> Result<(Caller, EndpointId), ApiError> {
    let caller = app.auth.tenant(request, Scope::EndpointsWrite).await?;
    let id = path_id(request, "id")?;
    Ok((caller, id))
}

async fn set_state(
    app: &App,
    request: &HttpRequest,
    state: EndpointState,
) -> Result<Document, ApiError> {
    let (caller, id) = to_change(app, request).await?;
    let condition = Condition::of(request)?;
    let action = match state {
        EndpointState::Enabled => "endpoint.enabled",
        EndpointState::Disabled => "endpoint.disabled",
        EndpointState::Deleted => "endpoint.deleted",
    };
    update(app, request, (caller, id.0), action, |current| {
        condition.check(current.version)?;
        Ok(EndpointDraft {
            state,
            ..current.draft.clone()
        })
    })
    .await
}

/// The endpoint, locked until the transaction ends.
pub(super) async fn locked(
    transaction: &Transaction<'_>,
    tenant: TenantKey,
    id: Uuid,
) -> Result<Endpoint, ApiError> {
    let found = store::find_for_update(transaction, tenant, id).await?;
    found.ok_or_else(missing)
}

/// Changes an endpoint in one transaction, and shows it; to what it is already changes nothing at all.
async fn update(
    app: &App,
    request: &HttpRequest,
    (caller, id): (Caller, Uuid),
    action: &'static str,
    change: impl FnOnce(&Endpoint) -> Result<EndpointDraft, ApiError>,
) -> Result<Document, ApiError> {
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let current = locked(&transaction, caller.tenant, id).await?;
    let draft = change(&current)?;
    if draft == current.draft {
        transaction.rollback().await?;
        return read_and_shown(app, &**client, &current, caller).await;
    }
    if template_fields::concern(&current.draft, &draft) {
        template_fields::check(&transaction, caller.tenant, &draft).await?;
    }
    let endpoint = store::update(&transaction, caller.tenant, &current, &draft).await?;
    secrets::ensure_pair(app, &transaction, &endpoint).await?;
    let object = Object::new("endpoint", id);
    let names = document::changed(&current, &endpoint);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    audit::record(&*transaction, (request, caller), action, object, &names).await?;
    transaction.commit().await?;
    notify::commands(&**client).await;
    read_and_shown(app, &**client, &endpoint, caller).await
}

/// A patch without what only the server writes, where that is as the caller is shown it: so a document can be changed
/// and sent back as a whole.
async fn without_what_is_shown(
    app: &App,
    caller: Caller,
    id: EndpointId,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, ApiError> {
    if !document::has_read_only(&patch) {
        return Ok(patch);
    }
    let client = app.client().await?;
    let found = store::find(&**client, caller.tenant, id.0).await?;
    let shown = read_and_shown(app, &**client, &found.ok_or_else(missing)?, caller).await?;
    shown.take_read_only(&mut patch);
    Ok(patch)
}

fn patch(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match json::value(body)? {
        Value::Object(patch) => Ok(patch),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(ApiError::new(
                Kind::InvalidFields,
                "a merge patch is a JSON object",
            ))
        }
    }
}

/// The key of the endpoint that a filter names, deleted ones included.
pub(super) async fn key(
    client: &impl GenericClient,
    tenant: TenantKey,
    id: EndpointId,
) -> Result<EndpointKey, ApiError> {
    store::key(client, tenant, id.0).await?.ok_or_else(missing)
}

pub(super) fn missing() -> ApiError {
    ApiError::not_found("endpoint")
}
