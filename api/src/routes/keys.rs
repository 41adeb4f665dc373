//! Keys: the operator manages everybody's (`/v1/admin/…/keys`), an organization those of its own tenants
//! ([`super::own_keys`]).
//!
//! # Invariants
//! - S2: the text of a key is in the reply that creates it and nowhere else.
//! - A key that is made by a key may do no more than that one: no other scopes, not for longer, not faster.

use std::collections::HashSet;

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use shared::domain::audit::Object;
use shared::domain::limits::KeyRate;
use shared::ids::{KeyId, OrganizationId, TenantId};
use shared::store::keys::{self, KeyInfo, OwnerKey};
use shared::store::tenants as store;
use time::OffsetDateTime;

use super::admin::{MOST_NAME, body, own_tenant};
use super::admin_document::{CreatedKey, Key, KeyPatch, NewKey, OwnerKind};
use super::{App, json as reply, path_id};
use crate::audit::{self, Change};
use crate::auth::{OrganizationCaller, Scope};
use crate::json::Fields;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query};
use crate::problem::ApiError;

/// The fastest that a key may be limited to.
const MOST_RATE: u32 = 1_000_000;
/// What is shown of a key and cannot be written.
const READ_ONLY: [&str; 5] = ["id", "hint", "created_at", "revoked_at", "last_used_at"];

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
pub(super) async fn create(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let key_owner = KeyManager::of(&app, &request).await?;
    let owner = key_owner.owner;
    let mut fields = body(&request, payload).await?;
    let name = fields.short_text("name", MOST_NAME).unwrap_or_default();
    let expires_at = key_owner.end(&mut fields);
    let rate = key_owner.rate(&mut fields);
    let scopes = fields.texts("scopes", Scope::ALL.len());
    let legal = key_owner.scopes();
    let mut scopes = scopes.unwrap_or_else(|| legal.clone());
    let mut seen = HashSet::new();
    scopes.retain(|scope| seen.insert(scope.clone()));
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
    reply(StatusCode::CREATED, &CreatedKey::new(info, key.reveal()))
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
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let owner = KeyManager::of(&app, &request).await?.owner;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
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
pub(super) async fn revoke(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
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

/// Change a key
///
/// Its name, end and rate; holds everywhere within two seconds.
#[utoipa::path(
    patch, path = "/v1/admin/{owner}/{id}/keys/{key}", tag = "Administration", operation_id = "changeKey", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose keys"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
        ("key" = schema::KeyId, Path, description = "The key's id"),
    ),
    request_body(content = KeyPatch, example = json!({"name": "old backend", "rate_limit": {"per_second": 50, "burst": 100}})),
    responses(
        (status = 200, description = "As it is now", body = Key, example = json!(example::key())),
        Refused<(refused::AdminToken, refused::Id, refused::Body)>,
    )
)]
pub(super) async fn change(
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
    let expires_at = manager.end(&mut fields);
    let rate = manager.rate(&mut fields);
    fields.refuse(
        &["scopes"],
        "cannot be changed: make another key, and revoke this one",
    );
    fields.refuse(&READ_ONLY, "is read-only: leave it out");
    fields.finish()?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let found = keys::find_for_update(&*transaction, manager.owner, id.0).await?;
    let before = found.ok_or_else(|| ApiError::not_found("key"))?;
    let mut key = before.clone();
    key.name = name.unwrap_or(key.name);
    if given("expires_at") {
        key.expires_at = expires_at;
    }
    if given("rate_limit") {
        key.rate = rate;
    }
    let names = different(&before, &key);
    if names.is_empty() {
        transaction.rollback().await?;
        return reply(StatusCode::OK, &Key::new(before));
    }
    let changed = keys::update(&*transaction, &key).await?;
    let object = Object::new("key", id.0);
    audit::record(
        &*transaction,
        (&request, manager.by),
        "key.updated",
        object,
        &names,
    )
    .await?;
    transaction.commit().await?;
    reply(StatusCode::OK, &Key::new(changed))
}

/// Names of the fields that are others now.
fn different(before: &KeyInfo, after: &KeyInfo) -> Vec<&'static str> {
    [
        ("expires_at", before.expires_at != after.expires_at),
        ("name", before.name != after.name),
        ("rate_limit", before.rate != after.rate),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
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

    /// `expires_at`: no later than the end of the key that asks, which is also where none is given.
    fn end(&self, fields: &mut Fields) -> Option<OffsetDateTime> {
        let given = fields.instant("expires_at");
        let last = self.organization.and_then(|key| key.expires_at);
        if given.zip(last).is_some_and(|(given, last)| given > last) {
            let detail = "must not be later than the end of the key that this request is made with";
            fields.wrong("expires_at", detail);
        }
        given.or(last)
    }

    /// `rate_limit`: no faster than the key that asks may be used; where none is given, what is set for that key alone.
    fn rate(&self, fields: &mut Fields) -> Option<KeyRate> {
        let given = key_rate(fields);
        let most = self.organization.and_then(|key| key.rate);
        if let (Some(given), Some(most)) = (given, most)
            && !given.is_within(most)
        {
            let KeyRate { per_second, burst } = most;
            let detail = format!(
                "must be within the limit of the key that this request is made with: {per_second} per second, burst {burst}"
            );
            fields.wrong("rate_limit", detail);
        }
        given.or_else(|| self.organization.and_then(|key| key.own_rate))
    }
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
