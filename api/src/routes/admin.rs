//! Organizations, tenants and keys: for the operator (`/v1/admin`, admin token), and an
//! organization's own tenants (`/v1/tenants`, its key).
//!
//! # Invariants
//! - S2: the text of a key is in the reply that creates it and nowhere else.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};
use shared::ids::{KeyId, OrganizationId, TenantId};
use shared::store::StoreError;
use shared::store::keys::{self, KeyInfo, OwnerKey};
use shared::store::tenants::{self as store, Organization, Tenant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{App, json as reply, path_id};
use crate::auth::{MOST_EXTERNAL_ID, Scope};
use crate::json::{self, Fields};
use crate::paging::Query;
use crate::problem::{ApiError, Kind};

const MOST_NAME: usize = 256;

/// `POST /v1/admin/organizations`
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
    reply(StatusCode::CREATED, &organization(made))
}

/// `GET /v1/admin/organizations`
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
        &page.reply(rows, |row| row.id, organization),
    )
}

/// `POST /v1/admin/tenants`
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
    reply(StatusCode::CREATED, &tenant(made))
}

/// `GET /v1/admin/tenants`
pub(super) async fn tenants(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, None, page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, tenant))
}

/// `POST /v1/tenants`, with an organization's key.
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
    reply(StatusCode::CREATED, &tenant(made))
}

/// `GET /v1/tenants`, with an organization's key.
pub(super) async fn own_tenants(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let organization = app.auth.organization(&request, Scope::Read).await?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, Some(organization), page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, tenant))
}

/// `POST /v1/admin/{organizations|tenants}/{id}/keys`: the only reply that holds the key.
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
    let mut document = key_document(info);
    if let Some(map) = document.as_object_mut() {
        map.insert("key".to_owned(), json!(key.reveal()));
    }
    reply(StatusCode::CREATED, &document)
}

/// `GET /v1/admin/{organizations|tenants}/{id}/keys`
pub(super) async fn keys(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let owner = owner(&app, &request).await?;
    let client = app.client().await?;
    let rows = keys::list(&**client, owner, page.before, page.fetch()).await?;
    reply(
        StatusCode::OK,
        &page.reply(rows, |row| row.id, key_document),
    )
}

/// `DELETE /v1/admin/{organizations|tenants}/{id}/keys/{key}`: refused everywhere within two
/// seconds.
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

fn organization(organization: Organization) -> Value {
    json!({
        "id": OrganizationId(organization.id),
        "name": organization.name,
        "created_at": instant(organization.created_at),
    })
}

fn tenant(tenant: Tenant) -> Value {
    json!({
        "id": TenantId(tenant.id),
        "organization_id": tenant.organization.map(OrganizationId),
        "external_id": tenant.external_id,
        "name": tenant.name,
        "created_at": instant(tenant.created_at),
    })
}

fn key_document(info: KeyInfo) -> Value {
    json!({
        "id": KeyId(info.id),
        "hint": info.hint,
        "name": info.name,
        "scopes": info.scopes,
        "created_at": instant(info.created_at),
        "expires_at": info.expires_at.map(instant),
        "revoked_at": info.revoked_at.map(instant),
        "last_used_at": info.last_used_at.map(instant),
    })
}

fn instant(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
