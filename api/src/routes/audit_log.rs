//! `GET /v1/audit-log` and `GET /v1/admin/audit-log`: who changed what of the configuration.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::ids::{
    AuditId, EndpointId, EventId, KeyId, OrganizationId, RemovalId, TenantId, created_at,
};
use shared::store::audit_log::{self as store, Entry, Filter, Viewer};
use shared::store::tenants;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{App, json as reply};
use crate::auth::{Readers, Scope};
use crate::instant::Instant;
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::paging::{List, PageParams, Query, RangeParams};
use crate::problem::ApiError;

/// The parameters that both paths know.
const KNOWN: [&str; 6] = ["action", "object_id", "since", "until", "limit", "cursor"];

/// A change of the configuration.
#[derive(Serialize, ToSchema)]
pub(super) struct AuditEntry {
    #[schema(value_type = schema::AuditId)]
    id: AuditId,
    created_at: Instant,
    actor: AuditActor,
    #[schema(example = "endpoint.updated")]
    action: String,
    object: AuditObject,
    /// Names of the fields that were given; never values.
    changed: Vec<String>,
    #[schema(required, value_type = Option<schema::TenantId>)]
    tenant_id: Option<TenantId>,
    #[schema(required, value_type = Option<schema::OrganizationId>)]
    organization_id: Option<OrganizationId>,
    /// `X-Request-Id` of the request.
    #[schema(required)]
    request_id: Option<String>,
}

/// Who made it.
#[derive(Serialize, ToSchema)]
struct AuditActor {
    /// `key`, `admin` or `command_line`.
    #[serde(rename = "type")]
    kind: &'static str,
    #[schema(required, value_type = Option<schema::KeyId>)]
    key_id: Option<KeyId>,
    /// The first characters of the key.
    #[schema(required)]
    key_hint: Option<String>,
}

/// What it was made to.
#[derive(Serialize, ToSchema)]
struct AuditObject {
    #[serde(rename = "type")]
    #[schema(example = "endpoint")]
    kind: String,
    #[schema(required, example = "ep_01kb9h2v3cfzqt9m6w8x5y7r2n")]
    id: Option<String>,
}

/// List changes
///
/// Of a tenant's configuration; with an organization's key and `Postrider-Tenant: *` its own and all of its
/// tenants'. With `action` or `object_id` a page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/audit-log", tag = "Audit log", operation_id = "listAuditLog", security(("key" = ["read"])),
    params(
        ("action" = Option<String>, Query, description = "Only this action", example = "endpoint.updated"),
        ("object_id" = Option<String>, Query, description = "Only changes of this object"),
        RangeParams, PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<AuditEntry>, example = json!(example::list(example::audit_entry()))),
        Refused<(refused::Key, refused::Query,)>,
    )
)]
pub(super) async fn list(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let viewer = match app.auth.readers(&request, Scope::Read).await? {
        Readers::Tenant(tenant) => Viewer::Tenant(tenant),
        Readers::Organization(organization) => Viewer::Organization(organization),
    };
    let query = Query::parse(&request, &KNOWN)?;
    page(&app, &query, viewer).await
}

/// List everybody's changes
///
/// With `action` or `object_id` a page may hold fewer than `limit`, or none, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/admin/audit-log", tag = "Administration", operation_id = "listAllAuditLog", security(("admin" = [])),
    params(
        ("action" = Option<String>, Query, description = "Only this action", example = "endpoint.updated"),
        ("object_id" = Option<String>, Query, description = "Only changes of this object"),
        ("tenant_id" = Option<schema::TenantId>, Query, description = "Only this tenant's"),
        ("organization_id" = Option<schema::OrganizationId>, Query, description = "Only this organization's and its tenants'"),
        RangeParams, PageParams,
    ),
    responses(
        (status = 200, description = "Newest first", body = List<AuditEntry>, example = json!(example::list(example::audit_entry()))),
        Refused<(refused::AdminToken, refused::Query, refused::Id,)>,
    )
)]
pub(super) async fn list_all(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let known: Vec<&str> = KNOWN
        .into_iter()
        .chain(["tenant_id", "organization_id"])
        .collect();
    let query = Query::parse(&request, &known)?;
    let tenant: Option<TenantId> = query.id("tenant_id")?;
    let organization: Option<OrganizationId> = query.id("organization_id")?;
    let client = app.client().await?;
    let viewer = match (tenant, organization) {
        (Some(id), _) => {
            let found = tenants::find(&**client, None, id.0).await?;
            Viewer::Tenant(found.ok_or_else(|| ApiError::not_found("tenant"))?.key)
        }
        (None, Some(id)) => {
            let found = tenants::find_organization(&**client, id.0).await?;
            let found = found.ok_or_else(|| ApiError::not_found("organization"))?;
            Viewer::Organization(found.key)
        }
        (None, None) => Viewer::Operator,
    };
    drop(client);
    page(&app, &query, viewer).await
}

async fn page(app: &App, query: &Query, viewer: Viewer) -> Result<HttpResponse, ApiError> {
    let page = query.page()?;
    let filter = Filter {
        range: query.id_range(page.before)?,
        action: query.get("action"),
        object: query.get("object_id").map(public_uuid),
    };
    let client = app.client().await?;
    let found = store::page(&**client, viewer, filter, page.fetch()).await?;
    drop(client);
    let (rows, next) = page.found(found, |row| row.id);
    let data = rows.into_iter().map(AuditEntry::from).collect();
    reply(StatusCode::OK, &List::new(data, next))
}

/// The id inside a public one; what is no id is nobody's.
fn public_uuid(text: &str) -> Uuid {
    let endpoint = text.parse::<EndpointId>().map(|id| id.0).ok();
    endpoint
        .or_else(|| text.parse::<KeyId>().map(|id| id.0).ok())
        .or_else(|| text.parse::<TenantId>().map(|id| id.0).ok())
        .or_else(|| text.parse::<OrganizationId>().map(|id| id.0).ok())
        .or_else(|| text.parse::<EventId>().map(|id| id.0).ok())
        .or_else(|| text.parse::<RemovalId>().map(|id| id.0).ok())
        .unwrap_or(Uuid::nil())
}

fn public_id(kind: &str, id: Uuid) -> String {
    match kind {
        "endpoint" => EndpointId(id).to_string(),
        "key" => KeyId(id).to_string(),
        "tenant" => TenantId(id).to_string(),
        "organization" => OrganizationId(id).to_string(),
        "event" => EventId(id).to_string(),
        _ => id.to_string(),
    }
}

impl From<Entry> for AuditEntry {
    fn from(entry: Entry) -> Self {
        let (key_id, key_hint) = entry.key.unzip();
        Self {
            id: AuditId(entry.id),
            created_at: created_at(entry.id).into(),
            actor: AuditActor {
                kind: entry.actor.name(),
                key_id: key_id.map(KeyId),
                key_hint,
            },
            object: AuditObject {
                id: entry.object_id.map(|id| public_id(&entry.object_type, id)),
                kind: entry.object_type,
            },
            action: entry.action,
            changed: entry.changed,
            tenant_id: entry.tenant.map(TenantId),
            organization_id: entry.organization.map(OrganizationId),
            request_id: entry.request_id,
        }
    }
}
