//! Organizations and tenants: for the operator (`/v1/admin`, admin token), and an organization's own tenants
//! (`/v1/tenants`, its key).

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use shared::domain::audit::Object;
use shared::ids::{OrganizationId, TenantId};
use shared::store::Pooled;
use shared::store::StoreError;
use shared::store::tenants as store;

use super::admin_document::{NewOrganization, NewOwnTenant, NewTenant, Organization, Tenant};
use super::{App, json as reply, path_id};
use crate::audit::{self, Change};
use crate::auth::{Scope, make_room, wrong_external_id};
use crate::json::{self, Fields};
use crate::openapi::example;
use crate::openapi::refused::{self, Refused};
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
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let made = store::create_organization(&*transaction, &name).await?;
    let by = Change::by_admin(None, Some(made.key));
    let object = Object::new("organization", made.id);
    let action = "organization.created";
    audit::record(&*transaction, (&request, by), action, object, &[]).await?;
    transaction.commit().await?;
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
    let caller = app.auth.organization(&request, Scope::TenantsWrite).await?;
    let mut fields = body(&request, payload).await?;
    let (name, external_id) = names(&mut fields);
    fields.finish()?;
    let mut client = app.client().await?;
    make_room(&client, caller.organization, caller.limits).await?;
    let owner = (Some(caller.organization), external_id.as_deref());
    let made = make_tenant(&mut client, &request, caller.into(), owner, &name).await?;
    reply(StatusCode::CREATED, &Tenant::new(made))
}

async fn make_tenant(
    client: &mut Pooled,
    request: &HttpRequest,
    by: Change,
    (organization, external_id): (Option<i32>, Option<&str>),
    name: &str,
) -> Result<store::Tenant, ApiError> {
    let transaction = client.transaction().await?;
    let made = store::create(&*transaction, organization, external_id, name)
        .await
        .map_err(taken)?;
    let (by, object) = (by.of_tenant(made.key), Object::new("tenant", made.id));
    audit::record(&*transaction, (request, by), "tenant.created", object, &[]).await?;
    transaction.commit().await?;
    Ok(made)
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
    let organization = app
        .auth
        .organization(&request, Scope::Read)
        .await?
        .organization;
    let page = Query::parse(&request, &["limit", "cursor"])?.page()?;
    let client = app.client().await?;
    let rows = store::list(&**client, Some(organization), page.before, page.fetch()).await?;
    reply(StatusCode::OK, &page.reply(rows, |row| row.id, Tenant::new))
}

/// The tenant in the path, among those of an organization.
pub(super) async fn own_tenant(
    app: &App,
    request: &HttpRequest,
    organization: i32,
) -> Result<store::Tenant, ApiError> {
    let id: TenantId = path_id(request, "id")?;
    let client = app.client().await?;
    let found = store::find(&**client, Some(organization), id.0).await?;
    found.ok_or_else(|| ApiError::not_found("tenant"))
}

pub(super) async fn body(request: &HttpRequest, payload: Payload) -> Result<Fields, ApiError> {
    Fields::parse(&json::read(request, payload, json::MOST_BYTES).await?)
}

fn names(fields: &mut Fields) -> (String, Option<String>) {
    let external_id = fields.text("external_id").filter(|text| !text.is_empty());
    if let Some(detail) = external_id.as_deref().and_then(wrong_external_id) {
        fields.wrong("external_id", detail);
    }
    let name = fields.required_text("name", MOST_NAME);
    (name, external_id)
}

fn taken(error: StoreError) -> ApiError {
    if matches!(error, StoreError::Conflict(_)) {
        let detail = "the organization has a tenant with this external_id";
        return ApiError::new(Kind::Conflict, detail);
    }
    error.into()
}
