//! Keys of an organization's tenants, managed with its own key: [`super::keys`] under paths of its own.

use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};

use super::admin_document::{CreatedKey, Key, KeyPatch, NewKey};
use super::{App, keys};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams};
use crate::problem::ApiError;

/// List the keys of one's own tenant
#[utoipa::path(
    get, path = "/v1/tenants/{id}/keys", tag = "Tenants", operation_id = "listOwnTenantKeys", security(("organization" = ["keys:write"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id"), PageParams),
    responses(
        (status = 200, description = "Newest first", body = List<Key>, example = json!(example::list(example::key()))),
        Refused<(refused::OrganizationKey, refused::Query, refused::Id)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    keys::list(app, request).await
}

/// Create a key of one's own tenant
///
/// It may do no more than the key that makes it.
#[utoipa::path(
    post, path = "/v1/tenants/{id}/keys", tag = "Tenants", operation_id = "createOwnTenantKey", security(("organization" = ["keys:write"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id")),
    request_body(content = Option<NewKey>, example = json!({"name": "portal", "scopes": ["read"]})),
    responses(
        (status = 201, description = "Made", body = CreatedKey<'_>, example = json!(example::created_key())),
        Refused<(refused::OrganizationKey, refused::Post, refused::Body, refused::Id)>,
    )
)]
pub(super) async fn create(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    keys::create(app, request, payload).await
}

/// Change a key of one's own tenant
#[utoipa::path(
    patch, path = "/v1/tenants/{id}/keys/{key}", tag = "Tenants", operation_id = "changeOwnTenantKey", security(("organization" = ["keys:write"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id"), ("key" = schema::KeyId, Path, description = "The key's id")),
    request_body(content = KeyPatch, example = json!({"name": "old portal"})),
    responses(
        (status = 200, description = "As it is now", body = Key, example = json!(example::key())),
        Refused<(refused::OrganizationKey, refused::Id, refused::Body)>,
    )
)]
pub(super) async fn change(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    keys::change(app, request, payload).await
}

/// Revoke a key of one's own tenant
///
/// Refused everywhere within two seconds.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}/keys/{key}", tag = "Tenants", operation_id = "revokeOwnTenantKey", security(("organization" = ["keys:write"])),
    params(("id" = schema::TenantId, Path, description = "The tenant's id"), ("key" = schema::KeyId, Path, description = "The key's id")),
    responses(
        (status = 204, description = "Revoked, now or before"),
        Refused<(refused::OrganizationKey, refused::Id)>,
    )
)]
pub(super) async fn revoke(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    keys::revoke(app, request).await
}
