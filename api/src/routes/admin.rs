//! Organizations, tenants and keys: for the operator (`/v1/admin`, admin token), and an
//! organization's own tenants (`/v1/tenants`, its key).
//!
//! # Invariants
//! - S2: the text of a key is in the reply that creates it and nowhere else.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use deadpool_postgres::Client;
use serde_json::{Value, json};
use shared::domain::audit::Object;
use shared::domain::limits::KeyRate;
use shared::ids::{KeyId, OrganizationId, TenantId};
use shared::store::StoreError;
use shared::store::keys::{self, KeyInfo, OwnerKey};
use shared::store::tenants::{self as store, Organization, Tenant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{App, json as reply, path_id, refuse_idempotency_key};
use crate::audit::{self, Change};
use crate::auth::{MOST_EXTERNAL_ID, OrganizationCaller, Scope, make_room};
use crate::json::{self, Fields};
use crate::paging::Query;
use crate::problem::{ApiError, Kind};

const MOST_NAME: usize = 256;
/// The fastest that a key may be limited to.
const MOST_RATE: u32 = 1_000_000;

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
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let made = store::create_organization(&*transaction, &name).await?;
    let by = Change::by_admin(None, Some(made.key));
    let object = Object::new("organization", made.id);
    let action = "organization.created";
    audit::record(&*transaction, (&request, by), action, object, &[]).await?;
    transaction.commit().await?;
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
    let mut client = app.client().await?;
    let organization = match organization {
        None => None,
        Some(id) => Some(
            store::find_organization(&**client, id.0)
                .await?
                .ok_or_else(|| ApiError::not_found("organization"))?
                .key,
        ),
    };
    let by = Change::by_admin(None, organization);
    let owner = (organization, external_id.as_deref());
    let made = make_tenant(&mut client, &request, by, owner, &name).await?;
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
    let caller = app.auth.organization(&request, Scope::TenantsWrite).await?;
    let mut fields = body(&request, payload).await?;
    let (name, external_id) = names(&mut fields);
    fields.finish()?;
    let mut client = app.client().await?;
    make_room(&client, caller.organization, caller.limits).await?;
    let owner = (Some(caller.organization), external_id.as_deref());
    let made = make_tenant(&mut client, &request, caller.into(), owner, &name).await?;
    reply(StatusCode::CREATED, &tenant(made))
}

async fn make_tenant(
    client: &mut Client,
    request: &HttpRequest,
    by: Change,
    (organization, external_id): (Option<i32>, Option<&str>),
    name: &str,
) -> Result<Tenant, ApiError> {
    let transaction = client.transaction().await?;
    let made = store::create(&*transaction, organization, external_id, name)
        .await
        .map_err(taken)?;
    let (by, object) = (by.of_tenant(made.key), Object::new("tenant", made.id));
    audit::record(&*transaction, (request, by), "tenant.created", object, &[]).await?;
    transaction.commit().await?;
    Ok(made)
}

/// `GET /v1/tenants`, with an organization's key.
pub(super) async fn own_tenants(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let organization = app
        .auth
        .organization(&request, Scope::Read)
        .await?
        .organization;
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
    let key_owner = KeyManager::of(&app, &request).await?;
    let owner = key_owner.owner;
    let mut fields = body(&request, payload).await?;
    let name = fields.short_text("name", MOST_NAME).unwrap_or_default();
    let expires_at = fields.instant("expires_at");
    let rate = key_rate(&mut fields);
    let scopes = fields.texts("scopes", Scope::ALL.len());
    let legal = key_owner.scopes();
    let scopes = scopes.unwrap_or_else(|| legal.clone());
    check_scopes(&mut fields, &legal, &scopes);
    if expires_at.is_some_and(|at| at <= app.clock.now()) {
        fields.wrong("expires_at", "must be in the future");
    }
    fields.finish()?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let (mut info, key) = keys::create(&*transaction, owner, &name, &scopes, expires_at).await?;
    if rate.is_some() {
        info.rate = rate;
        info = keys::update(&*transaction, &info).await?;
    }
    let object = Object::new("key", info.id);
    let by = key_owner.by;
    audit::record(&*transaction, (&request, by), "key.created", object, &[]).await?;
    transaction.commit().await?;
    let mut document = key_document(info);
    if let Some(map) = document.as_object_mut() {
        map.insert("key".to_owned(), json!(key.reveal()));
    }
    reply(StatusCode::CREATED, &document)
}

/// `GET /v1/admin/{organizations|tenants}/{id}/keys`
pub(super) async fn keys(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let owner = KeyManager::of(&app, &request).await?.owner;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
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
    let manager = KeyManager::of(&app, &request).await?;
    let id: KeyId = path_id(&request, "key")?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    if !keys::revoke(&*transaction, manager.owner, id.0).await? {
        return Err(ApiError::not_found("key"));
    }
    let object = Object::new("key", id.0);
    audit::record(
        &*transaction,
        (&request, manager.by),
        "key.revoked",
        object,
        &[],
    )
    .await?;
    transaction.commit().await?;
    Ok(HttpResponse::NoContent().finish())
}

/// `PATCH /v1/admin/{organizations|tenants}/{id}/keys/{key}`: name, end and rate; holds everywhere within
/// two seconds.
pub(super) async fn change_key(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let manager = KeyManager::of(&app, &request).await?;
    let id: KeyId = path_id(&request, "key")?;
    let mut fields = body(&request, payload).await?;
    let names = fields.names();
    let given = |name: &str| names.iter().any(|given| given == name);
    let name = fields.short_text("name", MOST_NAME);
    let expires_at = fields.instant("expires_at");
    let rate = key_rate(&mut fields);
    fields.finish()?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let found = keys::find_for_update(&*transaction, manager.owner, id.0).await?;
    let mut key = found.ok_or_else(|| ApiError::not_found("key"))?;
    key.name = name.unwrap_or(key.name);
    if given("expires_at") {
        key.expires_at = expires_at;
    }
    if given("rate_limit") {
        key.rate = rate;
    }
    let changed = keys::update(&*transaction, &key).await?;
    let object = Object::new("key", id.0);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    audit::record(
        &*transaction,
        (&request, manager.by),
        "key.updated",
        object,
        &names,
    )
    .await?;
    transaction.commit().await?;
    reply(StatusCode::OK, &key_document(changed))
}

/// Who manages whose keys: the operator everybody's, an organization with the scope `keys:write` those of
/// its own tenants.
struct KeyManager {
    owner: OwnerKey,
    by: Change,
    /// `None`: the operator.
    organization: Option<OrganizationCaller>,
}

impl KeyManager {
    async fn of(app: &App, request: &HttpRequest) -> Result<Self, ApiError> {
        if request.path().starts_with("/v1/admin/") {
            app.auth.admin(request)?;
            let owner = owner(app, request).await?;
            let by = match owner {
                OwnerKey::Tenant(tenant) => Change::by_admin(Some(tenant), None),
                OwnerKey::Organization(organization) => Change::by_admin(None, Some(organization)),
            };
            return Ok(Self {
                owner,
                by,
                organization: None,
            });
        }
        let caller = app.auth.organization(request, Scope::KeysWrite).await?;
        let tenant = own_tenant(app, request, caller.organization).await?.key;
        Ok(Self {
            owner: OwnerKey::Tenant(tenant),
            by: Change::from(caller).of_tenant(tenant),
            organization: Some(caller),
        })
    }

    /// What a key made by it may do: no more than itself.
    fn scopes(&self) -> Vec<String> {
        let may = |scope: &Scope| {
            self.organization
                .is_none_or(|organization| organization.has(*scope))
                && may_have(self.owner, *scope)
        };
        let scopes = Scope::ALL.into_iter().filter(may);
        scopes.map(|scope| scope.name().to_owned()).collect()
    }
}

/// The tenant in the path, among those of an organization.
pub(super) async fn own_tenant(
    app: &App,
    request: &HttpRequest,
    organization: i32,
) -> Result<Tenant, ApiError> {
    let id: TenantId = path_id(request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, Some(organization), id.0).await?;
    found.ok_or_else(|| ApiError::not_found("tenant"))
}

/// `"rate_limit": {"per_second", "burst"}`.
pub(super) fn key_rate(fields: &mut Fields) -> Option<KeyRate> {
    fields
        .nested("rate_limit", |inner| {
            if !inner.names().iter().any(|name| name == "per_second") {
                inner.required("per_second");
            }
            let per_second = inner.number("per_second", 1, MOST_RATE)?;
            let burst = inner.number("burst", 1, MOST_RATE);
            Some(KeyRate {
                per_second,
                burst: burst.unwrap_or(per_second.saturating_mul(2)),
            })
        })
        .flatten()
}

async fn body(request: &HttpRequest, payload: Payload) -> Result<Fields, ApiError> {
    refuse_idempotency_key(request)?;
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

fn may_have(owner: OwnerKey, scope: Scope) -> bool {
    matches!(owner, OwnerKey::Organization(_))
        || !matches!(scope, Scope::TenantsWrite | Scope::KeysWrite)
}

fn check_scopes(fields: &mut Fields, legal: &[String], scopes: &[String]) {
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

pub(super) fn tenant(tenant: Tenant) -> Value {
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
        "rate_limit": info.rate,
    })
}

fn instant(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}
