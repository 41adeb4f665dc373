//! Deletion: tenants, organizations, payloads. What stops at once has stopped when this answers; the rows go in
//! the background, and the reply says where to look how far that is.
//!
//! # Invariants
//! - S3: a tenant expunges its own payloads, an organization deletes its own tenants; whatever else does not exist.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::domain::audit::Object;
use shared::ids::{EndpointId, EventId, OrganizationId, RemovalId, TenantId};
use shared::store::removals::{self as store, Kind, Removal};
use shared::store::{notify, tenants};
use utoipa::ToSchema;

use super::admin_document::Tenant;
use super::{App, admin, json as reply, path_id};
use crate::audit::{self, Change};
use crate::auth::{Readers, Scope};
use crate::instant::Instant;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::ApiError;

/// Something that is being removed.
#[derive(Serialize, ToSchema)]
#[schema(as = Removal)]
pub(super) struct RemovalReply {
    #[schema(value_type = schema::RemovalId)]
    id: RemovalId,
    /// `tenant`, `organization`, `payloads` (of a tenant), `payload` (of one event) or `endpoint` (what is secret of a deleted one).
    kind: &'static str,
    /// Of the tenant, organization, event or endpoint.
    #[schema(example = "tnt_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    object_id: String,
    /// `running` or `done`.
    status: &'static str,
    /// Rows that were removed or emptied so far.
    rows_done: i64,
    created_at: Instant,
    #[schema(required)]
    finished_at: Option<Instant>,
}

impl From<Removal> for RemovalReply {
    fn from(removal: Removal) -> Self {
        let object = removal.object;
        Self {
            id: RemovalId(removal.id),
            kind: removal.kind.name(),
            object_id: match removal.kind {
                Kind::Tenant | Kind::Payloads => TenantId(object).to_string(),
                Kind::Organization => OrganizationId(object).to_string(),
                Kind::Payload => EventId(object).to_string(),
                Kind::Endpoint => EndpointId(object).to_string(),
            },
            status: if removal.finished_at.is_some() {
                "done"
            } else {
                "running"
            },
            rows_done: removal.rows_done,
            created_at: removal.created_at.into(),
            finished_at: removal.finished_at.map(Into::into),
        }
    }
}

/// Get one of one's own tenants
#[utoipa::path(
    get, path = "/v1/tenants/{id}", tag = "Tenants", operation_id = "getOwnTenant", security(("organization" = ["read"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id")),
    responses(
        (status = 200, description = "The tenant", body = Tenant, example = json!(example::tenant())),
        Refused<(refused::OrganizationKey, refused::Id,)>,
    )
)]
pub(super) async fn own_tenant(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.organization(&request, Scope::Read).await?;
    let tenant = admin::own_tenant(&app, &request, caller.organization).await?;
    reply(StatusCode::OK, &Tenant::new(tenant))
}

/// Delete one of one's own tenants
///
/// With all that is its own.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}", tag = "Tenants", operation_id = "deleteOwnTenant", security(("organization" = ["data:delete"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id")),
    responses(
        (status = 202, description = "Its keys are refused within two seconds and nothing more is sent; its rows are being removed", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::OrganizationKey, refused::Id,)>,
    )
)]
pub(super) async fn delete_own_tenant(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.organization(&request, Scope::DataDelete).await?;
    let id: TenantId = path_id(&request, "id")?;
    delete(
        &app,
        &request,
        Some(caller.organization),
        (id, caller.into()),
    )
    .await
}

/// Delete a tenant
///
/// With all that is its own.
#[utoipa::path(
    delete, path = "/v1/admin/tenants/{id}", tag = "Administration", operation_id = "deleteTenant", security(("admin" = [])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id")),
    responses(
        (status = 202, description = "Its keys are refused within two seconds and nothing more is sent; its rows are being removed", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::AdminToken, refused::Id,)>,
    )
)]
pub(super) async fn delete_tenant(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let id: TenantId = path_id(&request, "id")?;
    delete(&app, &request, None, (id, Change::by_admin(None, None))).await
}

async fn delete(
    app: &App,
    request: &HttpRequest,
    organization: Option<i32>,
    (id, by): (TenantId, Change),
) -> Result<HttpResponse, ApiError> {
    let missing = || ApiError::not_found("tenant");
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let found = tenants::find(&*transaction, organization, id.0).await?;
    let tenant = found.ok_or_else(missing)?;
    let begun = store::begin_tenant(&transaction, (tenant.key, tenant.id)).await?;
    let removal = begun.ok_or_else(missing)?;
    let (by, object) = (by.of_tenant(tenant.key), Object::new("tenant", tenant.id));
    audit::record(&*transaction, (request, by), "tenant.deleted", object, &[]).await?;
    transaction.commit().await?;
    notify::commands(&**client).await;
    reply(StatusCode::ACCEPTED, &RemovalReply::from(removal))
}

/// Delete an organization
///
/// With all of its tenants.
#[utoipa::path(
    delete, path = "/v1/admin/organizations/{id}", tag = "Administration", operation_id = "deleteOrganization", security(("admin" = [])),
    params(("id" = schema::OrganizationId, Path, description = "The organization's id")),
    responses(
        (status = 202, description = "Its keys and its tenants' are refused within two seconds; its rows are being removed", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::AdminToken, refused::Id,)>,
    )
)]
pub(super) async fn delete_organization(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let id: OrganizationId = path_id(&request, "id")?;
    let missing = || ApiError::not_found("organization");
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let found = tenants::find_organization(&*transaction, id.0).await?;
    let organization = found.ok_or_else(missing)?.key;
    let begun = store::begin_organization(&transaction, (organization, id.0)).await?;
    let removal = begun.ok_or_else(missing)?;
    let by = Change::by_admin(None, Some(organization));
    let object = Object::new("organization", id.0);
    let action = "organization.deleted";
    audit::record(&*transaction, (&request, by), action, object, &[]).await?;
    transaction.commit().await?;
    reply(StatusCode::ACCEPTED, &RemovalReply::from(removal))
}

/// Expunge an event's payload
///
/// The payload goes, and the captured responses of its attempts. The event stays, without them; what was not
/// delivered yet is cancelled (`expunged`), and it can never be sent again.
#[utoipa::path(
    delete, path = "/v1/events/{id}/payload", tag = "Events", operation_id = "expungeEventPayload", security(("key" = ["data:delete"])),
    params(("id" = schema::EventId, Path, description = "The event's id")),
    responses(
        (status = 202, description = "The payload is gone; its deliveries and responses follow", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::Key, refused::Id,)>,
    )
)]
pub(super) async fn expunge_event(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::DataDelete).await?;
    let id: EventId = path_id(&request, "id")?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let begun = store::begin_payload(&transaction, caller.tenant, id.0).await?;
    let removal = begun.ok_or_else(|| ApiError::not_found("event"))?;
    let object = Object::new("event", id.0);
    let action = "event.payload_expunged";
    audit::record(&*transaction, (&request, caller), action, object, &[]).await?;
    transaction.commit().await?;
    reply(StatusCode::ACCEPTED, &RemovalReply::from(removal))
}

/// Expunge all payloads
///
/// Of all events so far, with the captured responses of their attempts.
#[utoipa::path(
    post, path = "/v1/expunge", tag = "Events", operation_id = "expungePayloads", security(("key" = ["data:delete"])),
    responses(
        (status = 202, description = "They are being removed", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::Key, refused::Post,)>,
    )
)]
pub(super) async fn expunge(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let caller = app.auth.tenant(&request, Scope::DataDelete).await?;
    let client = app.client().await?;
    let found = tenants::public_id(&**client, caller.tenant).await?;
    drop(client);
    let id = found.ok_or_else(|| ApiError::not_found("tenant"))?;
    expunge_all(&app, &request, (caller.tenant, id), caller.into()).await
}

/// Expunge all payloads of a tenant
#[utoipa::path(
    post, path = "/v1/admin/tenants/{id}/expunge", tag = "Administration", operation_id = "expungePayloadsOfTenant", security(("admin" = [])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id")),
    responses(
        (status = 202, description = "They are being removed", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::AdminToken, refused::Id, refused::Post,)>,
    )
)]
pub(super) async fn expunge_tenant(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let id: TenantId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = tenants::find(&**client, None, id.0).await?;
    drop(client);
    let tenant = found.ok_or_else(|| ApiError::not_found("tenant"))?.key;
    let by = Change::by_admin(Some(tenant), None);
    expunge_all(&app, &request, (tenant, id.0), by).await
}

async fn expunge_all(
    app: &App,
    request: &HttpRequest,
    (tenant, id): (shared::ids::TenantKey, uuid::Uuid),
    by: Change,
) -> Result<HttpResponse, ApiError> {
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let now = app.clock.now();
    let removal = store::begin_payloads(&transaction, (tenant, id), now).await?;
    let (action, object) = ("tenant.payloads_expunged", Object::new("tenant", id));
    audit::record(&*transaction, (request, by), action, object, &[]).await?;
    transaction.commit().await?;
    reply(StatusCode::ACCEPTED, &RemovalReply::from(removal))
}

/// Get a removal
///
/// How far it is: a tenant's own, or with an organization's key and `Postrider-Tenant: *` one of its tenants'.
#[utoipa::path(
    get, path = "/v1/removals/{id}", tag = "Tenants", operation_id = "getRemoval", security(("key" = ["read"])),
    params(("id" = schema::RemovalId, Path, description = "The removal's id")),
    responses(
        (status = 200, description = "How far it is", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::Key, refused::Id,)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (tenant, organization) = match app.auth.readers(&request, Scope::Read).await? {
        Readers::Tenant(tenant) => (Some(tenant), None),
        Readers::Organization(organization) => (None, Some(organization)),
    };
    let id: RemovalId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, id.0, tenant, organization).await?;
    let removal = found.ok_or_else(|| ApiError::not_found("removal"))?;
    reply(StatusCode::OK, &RemovalReply::from(removal))
}

/// Get any removal
#[utoipa::path(
    get, path = "/v1/admin/removals/{id}", tag = "Administration", operation_id = "getAnyRemoval", security(("admin" = [])),
    params(("id" = schema::RemovalId, Path, description = "The removal's id")),
    responses(
        (status = 200, description = "How far it is", body = RemovalReply, example = json!(example::removal())),
        Refused<(refused::AdminToken, refused::Id,)>,
    )
)]
pub(super) async fn show_any(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let id: RemovalId = path_id(&request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, id.0, None, None).await?;
    let removal = found.ok_or_else(|| ApiError::not_found("removal"))?;
    reply(StatusCode::OK, &RemovalReply::from(removal))
}

/// List removals
#[utoipa::path(
    get, path = "/v1/admin/removals", tag = "Administration", operation_id = "listRemovals", security(("admin" = [])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<RemovalReply>, example = json!(example::list(example::removal()))),
        Refused<(refused::AdminToken, refused::Query,)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, page.before, page.fetch()).await?;
    drop(client);
    let list = page.reply(rows, |row| row.id, RemovalReply::from);
    reply(StatusCode::OK, &list)
}
