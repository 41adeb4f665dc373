//! Organizations, tenants and keys: for the operator (`/v1/admin`, admin token), and an
//! organization's own tenants (`/v1/tenants`, its key).
//!
//! # Invariants
//! - S2: the text of a key is in the reply that creates it and nowhere else.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use shared::ids::{KeyId, OrganizationId, TenantId};
use shared::store::StoreError;
use shared::store::keys::{self, OwnerKey};
use shared::store::tenants as store;

use super::admin_document::{
    CreatedKey, Key, NewKey, NewOrganization, NewOwnTenant, NewTenant, Organization, OwnerKind,
    Tenant,
};
use super::{App, json as reply, path_id};
use crate::auth::{MOST_EXTERNAL_ID, Scope};
use crate::json::{self, Fields};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::{ApiError, Kind};

pub(crate) const MOST_NAME: usize = 256;

/// Create an organization
#[utoipa::path(
    post, path = "/v1/admin/organizations", tag = "Administration", operation_id = "createOrganization", security(("admin" = [])),
    request_body(content = NewOrganization, example = json!({"name": "Example Shops"})),
    responses(
        (status = 201, description = "Made", body = Organization, example = json!(example::organization())),
        Refused<(refused::AdminToken, refused::Post, refused::Body)>,
    )
)]
pub(super) async fn create_organization(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let mut fields = body(&request, payload).await?;
    let name = fields.required_text("name", MOST_NAME);
    fields.finish()?;
    let client = app.client().await?;
    let made = store::create_organization(&**client, &name).await?;
    reply(StatusCode::CREATED, &Organization::new(made))
}

/// List organizations
#[utoipa::path(
    get, path = "/v1/admin/organizations", tag = "Administration", operation_id = "listOrganizations", security(("admin" = [])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Organization>,
         example = json!(example::list(example::organization()))),
        Refused<(refused::AdminToken, refused::Query)>,
    )
)]
pub(super) async fn organizations(
    app: App,
    request: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list_organizations(&**client, page.before, page.fetch()).await?;
    reply(
        StatusCode::OK,
        &page.reply(rows, |row| row.id, Organization::new),
    )
}

/// Create a tenant
///
/// Of an organization, or of none.
#[utoipa::path(
    post, path = "/v1/admin/tenants", tag = "Administration", operation_id = "createTenant", security(("admin" = [])),
    request_body(content = NewTenant, example = json!({"name": "Shop 42"})),
    responses(
        (status = 201, description = "Made", body = Tenant, example = json!(example::tenant())),
        Refused<(refused::AdminToken, refused::Post, refused::Body, refused::Id, refused::State)>,
    )
)]
pub(super) async fn create_tenant(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let mut fields = body(&request, payload).await?;
    let organization: Option<OrganizationId> = match fields.text("organization_id") {
        None => None,
        Some(text) => text
            .parse()
            .map_err(|error: shared::ids::InvalidId| {
                fields.wrong("organization_id", error.to_string());
            })
            .ok(),
    };
    let (name, external_id) = names(&mut fields);
    if external_id.is_some() && organization.is_none() {
        fields.wrong("external_id", "needs an organization_id");
    }
    fields.finish()?;
    let client = app.client().await?;
    let organization = match organization {
        None => None,
        Some(id) => Some(
            store::find_organization(&**client, id.0)
                .await?
                .ok_or_else(|| ApiError::not_found("organization"))?
                .key,
        ),
    };
    let made = store::create(&**client, organization, external_id.as_deref(), &name)
        .await
        .map_err(taken)?;
    reply(StatusCode::CREATED, &Tenant::new(made))
}

/// List tenants
#[utoipa::path(
    get, path = "/v1/admin/tenants", tag = "Administration", operation_id = "listTenants", security(("admin" = [])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Tenant>,
         example = json!(example::list(example::tenant()))),
        Refused<(refused::AdminToken, refused::Query)>,
    )
)]
pub(super) async fn tenants(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, None, page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, Tenant::new))
}

/// Create a tenant of one's own
///
/// With an organization's key.
#[utoipa::path(
    post, path = "/v1/tenants", tag = "Tenants", operation_id = "createOwnTenant", security(("organization" = ["tenants:write"])),
    request_body(content = NewOwnTenant, example = json!({"name": "Shop 42", "external_id": "shop-42"})),
    responses(
        (status = 201, description = "Made", body = Tenant, example = json!(example::tenant())),
        Refused<(refused::OrganizationKey, refused::Post, refused::Body, refused::State)>,
    )
)]
pub(super) async fn create_own_tenant(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let organization = app.auth.organization(&request, Scope::TenantsWrite).await?;
    let mut fields = body(&request, payload).await?;
    let (name, external_id) = names(&mut fields);
    fields.finish()?;
    let client = app.client().await?;
    let made = store::create(&**client, Some(organization), external_id.as_deref(), &name)
        .await
        .map_err(taken)?;
    reply(StatusCode::CREATED, &Tenant::new(made))
}

/// List one's own tenants
///
/// With an organization's key.
#[utoipa::path(
    get, path = "/v1/tenants", tag = "Tenants", operation_id = "listOwnTenants", security(("organization" = ["read"])),
    params(PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Tenant>,
         example = json!(example::list(example::tenant()))),
        Refused<(refused::OrganizationKey, refused::Query)>,
    )
)]
pub(super) async fn own_tenants(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let organization = app.auth.organization(&request, Scope::Read).await?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, Some(organization), page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, Tenant::new))
}

/// Create a key
///
/// The only reply that holds its text. Without `scopes` it may do everything that its owner may.
#[utoipa::path(
    post, path = "/v1/admin/{owner}/{id}/keys", tag = "Administration", operation_id = "createKey", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose keys"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
    ),
    request_body(content = Option<NewKey>, example = json!({"name": "backend", "scopes": ["events:write"]})),
    responses(
        (status = 201, description = "Made", body = CreatedKey<'_>, example = json!(example::created_key())),
        Refused<(refused::AdminToken, refused::Post, refused::Body, refused::Id)>,
    )
)]
pub(super) async fn create_key(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let mut fields = body(&request, payload).await?;
    let name = fields.short_text("name", MOST_NAME).unwrap_or_default();
    let expires_at = fields.instant("expires_at");
    let scopes = fields.texts("scopes", Scope::ALL.len());
    let owner = owner(&app, &request).await?;
    let scopes = scopes.unwrap_or_else(|| default_scopes(owner));
    check_scopes(&mut fields, owner, &scopes);
    if expires_at.is_some_and(|at| at <= app.clock.now()) {
        fields.wrong("expires_at", "must be in the future");
    }
    fields.finish()?;
    let client = app.client().await?;
    let (info, key) = keys::create(&**client, owner, &name, &scopes, expires_at).await?;
    let created = CreatedKey::new(info, key.reveal());
    reply(StatusCode::CREATED, &created)
}

/// List keys
#[utoipa::path(
    get, path = "/v1/admin/{owner}/{id}/keys", tag = "Administration", operation_id = "listKeys", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose keys"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"), PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<Key>, example = json!(example::list(example::key()))),
        Refused<(refused::AdminToken, refused::Query, refused::Id)>,
    )
)]
pub(super) async fn keys(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let owner = owner(&app, &request).await?;
    let client = app.client().await?;
    let rows = keys::list(&**client, owner, page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, Key::new))
}

/// Revoke a key
///
/// Refused everywhere within two seconds.
#[utoipa::path(
    delete, path = "/v1/admin/{owner}/{id}/keys/{key}", tag = "Administration", operation_id = "revokeKey", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose keys"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
        ("key" = schema::KeyId, Path, description = "The key's id"),
    ),
    responses(
        (status = 204, description = "Revoked, now or before"),
        Refused<(refused::AdminToken, refused::Id)>,
    )
)]
pub(super) async fn revoke_key(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let id: KeyId = path_id(&request, "key")?;
    let owner = owner(&app, &request).await?;
    let client = app.client().await?;
    if !keys::revoke(&**client, owner, id.0).await? {
        return Err(ApiError::not_found("key"));
    }
    Ok(HttpResponse::NoContent().finish())
}

async fn body(request: &HttpRequest, payload: Payload) -> Result<Fields, ApiError> {
    Fields::parse(&json::read(request, payload, json::MOST_BYTES).await?)
}

fn names(fields: &mut Fields) -> (String, Option<String>) {
    let external_id = fields
        .short_text("external_id", MOST_EXTERNAL_ID)
        .filter(|text| !text.is_empty());
    let name = fields.required_text("name", MOST_NAME);
    (name, external_id)
}

/// Whom the path names.
async fn owner(app: &App, request: &HttpRequest) -> Result<OwnerKey, ApiError> {
    match request.match_info().get("owner") {
        Some("tenants") => {
            let id: TenantId = path_id(request, "id")?;
            let client = app.client().await?;
            let found = store::find(&**client, None, id.0).await?;
            let tenant = found.ok_or_else(|| ApiError::not_found("tenant"))?;
            Ok(OwnerKey::Tenant(tenant.key))
        }
        Some("organizations") => {
            let id: OrganizationId = path_id(request, "id")?;
            let client = app.client().await?;
            let found = store::find_organization(&**client, id.0).await?;
            let organization = found.ok_or_else(|| ApiError::not_found("organization"))?;
            Ok(OwnerKey::Organization(organization.key))
        }
        _ => Err(ApiError::not_found("owner of keys")),
    }
}

fn default_scopes(owner: OwnerKey) -> Vec<String> {
    Scope::ALL
        .into_iter()
        .filter(|scope| may_have(owner, *scope))
        .map(|scope| scope.name().to_owned())
        .collect()
}

fn may_have(owner: OwnerKey, scope: Scope) -> bool {
    matches!(owner, OwnerKey::Organization(_)) || scope != Scope::TenantsWrite
}

fn check_scopes(fields: &mut Fields, owner: OwnerKey, scopes: &[String]) {
    let legal = default_scopes(owner);
    if scopes.is_empty() || scopes.iter().any(|scope| !legal.contains(scope)) {
        fields.wrong("scopes", format!("must be some of: {}", legal.join(", ")));
    }
}

fn taken(error: StoreError) -> ApiError {
    if matches!(error, StoreError::Conflict(_)) {
        let detail = "the organization has a tenant with this external_id";
        return ApiError::new(Kind::Conflict, detail);
    }
    error.into()
}
