//! Limits of a tenant or an organization, for the operator: what is set, what holds, and what is used.

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use shared::domain::audit::Object;
use shared::domain::limits::Limits;
use shared::ids::{OrganizationId, TenantId, TenantKey};
use shared::store::{limits as store, tenants};
use tokio_postgres::GenericClient;
use utoipa::ToSchema;
use uuid::Uuid;

use super::admin_document::{KeyRateDocument, NewKeyRate, OwnerKind};
use super::keys::key_rate;
use super::{App, json as reply, path_id};
use crate::audit::{self, Change};
use crate::json::{self, Fields};
use crate::openapi::example;
use crate::openapi::refused::{self, Refused};
use crate::problem::ApiError;

/// The most that a quota may be.
const MOST: u32 = 4_000_000_000;

/// Limits. What is null is not set here: the next level (organization, operator) decides.
#[derive(Serialize, ToSchema)]
pub(super) struct LimitSet {
    #[schema(required)]
    rate_limit: Option<KeyRateDocument>,
    #[schema(required)]
    max_endpoints: Option<u32>,
    #[schema(required)]
    max_event_types: Option<u32>,
    /// In a day of UTC.
    #[schema(required)]
    events_per_day: Option<u32>,
    /// In a calendar month of UTC.
    #[schema(required)]
    events_per_month: Option<u32>,
    /// Of an organization only.
    #[schema(required)]
    max_tenants: Option<u32>,
}

/// Limits to be set.
#[derive(ToSchema)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
struct NewLimits {
    rate_limit: Option<NewKeyRate>,
    #[schema(minimum = 0, maximum = 4_000_000_000_u32)]
    max_endpoints: Option<u32>,
    #[schema(minimum = 0, maximum = 4_000_000_000_u32)]
    max_event_types: Option<u32>,
    #[schema(minimum = 0, maximum = 4_000_000_000_u32)]
    events_per_day: Option<u32>,
    #[schema(minimum = 0, maximum = 4_000_000_000_u32)]
    events_per_month: Option<u32>,
    /// Of an organization only.
    #[schema(minimum = 0, maximum = 4_000_000_000_u32)]
    max_tenants: Option<u32>,
}

impl From<Limits> for LimitSet {
    fn from(limits: Limits) -> Self {
        Self {
            rate_limit: limits.rate_limit.map(Into::into),
            max_endpoints: limits.max_endpoints,
            max_event_types: limits.max_event_types,
            events_per_day: limits.events_per_day,
            events_per_month: limits.events_per_month,
            max_tenants: limits.max_tenants,
        }
    }
}

/// Limits of a tenant or organization.
#[derive(Serialize, ToSchema)]
#[schema(as = Limits)]
pub(super) struct LimitsReply {
    /// What is set here.
    set: LimitSet,
    /// What holds, with what the organization and the operator say.
    effective: LimitSet,
    usage: Usage,
}

/// What is used. Events are counted only while a quota is set, and known with a delay of some seconds.
#[derive(Serialize, ToSchema)]
struct Usage {
    #[schema(required)]
    endpoints: Option<i64>,
    #[schema(required)]
    event_types: Option<i64>,
    #[schema(required)]
    events_today: Option<i64>,
    #[schema(required)]
    events_this_month: Option<i64>,
    #[schema(required)]
    tenants: Option<i64>,
}

/// Whose limits.
#[derive(Clone, Copy)]
enum Owner {
    Tenant(TenantKey, Uuid),
    Organization(i32, Uuid),
}

/// Get limits
#[utoipa::path(
    get, path = "/v1/admin/{owner}/{id}/limits", tag = "Administration", operation_id = "getLimits", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose limits"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
    ),
    responses(
        (status = 200, description = "What is set, what holds, what is used", body = LimitsReply, example = json!(example::limits())),
        Refused<(refused::AdminToken, refused::Id,)>,
    )
)]
pub(super) async fn show(app: App, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let client = app.client().await?;
    let owner = owner(&**client, &request).await?;
    reply(StatusCode::OK, &read(&app, &**client, owner).await?)
}

/// Set limits
///
/// What is left out or null is not set here any more. Holds everywhere within two seconds.
#[utoipa::path(
    put, path = "/v1/admin/{owner}/{id}/limits", tag = "Administration", operation_id = "setLimits", security(("admin" = [])),
    params(
        ("owner" = inline(OwnerKind), Path, description = "Whose limits"),
        ("id" = String, Path, description = "The owner's id", pattern = "^(tnt|org)_[0-7][0-9a-hjkmnp-tv-z]{25}$"),
    ),
    request_body(content = NewLimits, example = json!({"rate_limit": {"per_second": 100, "burst": 200}, "events_per_day": 1_000_000})),
    responses(
        (status = 200, description = "What is set, what holds, what is used", body = LimitsReply, example = json!(example::limits())),
        Refused<(refused::AdminToken, refused::Id, refused::Body,)>,
    )
)]
pub(super) async fn set(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    app.auth.admin(&request)?;
    let body = json::read(&request, payload, json::MOST_BYTES).await?;
    let mut fields = Fields::parse(&body)?;
    let organization = request.match_info().get("owner") == Some("organizations");
    let limits = Limits {
        rate_limit: key_rate(&mut fields),
        max_endpoints: fields.number("max_endpoints", 0, MOST),
        max_event_types: fields.number("max_event_types", 0, MOST),
        events_per_day: fields.number("events_per_day", 0, MOST),
        events_per_month: fields.number("events_per_month", 0, MOST),
        max_tenants: fields
            .number("max_tenants", 0, MOST)
            .filter(|_| organization),
    };
    fields.finish()?;
    let mut client = app.client().await?;
    let transaction = client.transaction().await?;
    let owner = owner(&*transaction, &request).await?;
    let (before, by, object) = match owner {
        Owner::Tenant(tenant, id) => {
            let before = store::set_tenant(&*transaction, tenant, &limits).await?;
            let object = Object::new("tenant", id);
            (before, Change::by_admin(Some(tenant), None), object)
        }
        Owner::Organization(organization, id) => {
            let before = store::set_organization(&*transaction, organization, &limits).await?;
            let object = Object::new("organization", id);
            (before, Change::by_admin(None, Some(organization)), object)
        }
    };
    let names = before.different(limits);
    if names.is_empty() {
        transaction.rollback().await?;
    } else {
        audit::record(&*transaction, (&request, by), "limits.set", object, &names).await?;
        transaction.commit().await?;
    }
    reply(StatusCode::OK, &read(&app, &**client, owner).await?)
}

async fn owner(client: &impl GenericClient, request: &HttpRequest) -> Result<Owner, ApiError> {
    match request.match_info().get("owner") {
        Some("tenants") => {
            let id: TenantId = path_id(request, "id")?;
            let found = tenants::find(client, None, id.0).await?;
            let tenant = found.ok_or_else(|| ApiError::not_found("tenant"))?;
            Ok(Owner::Tenant(tenant.key, id.0))
        }
        Some("organizations") => {
            let id: OrganizationId = path_id(request, "id")?;
            let found = tenants::find_organization(client, id.0).await?;
            let organization = found.ok_or_else(|| ApiError::not_found("organization"))?;
            Ok(Owner::Organization(organization.key, id.0))
        }
        _ => Err(ApiError::not_found("owner of limits")),
    }
}

async fn read(
    app: &App,
    client: &impl GenericClient,
    owner: Owner,
) -> Result<LimitsReply, ApiError> {
    let default = app.config.limits;
    match owner {
        Owner::Tenant(tenant, _) => {
            let found = store::of_tenant(client, tenant).await?;
            let (own, organization) = found.ok_or_else(|| ApiError::not_found("tenant"))?;
            let effective = own.or(organization).or(default);
            let today = app.clock.now().date();
            let events = store::events(client, &[(tenant, today)]).await?;
            let events = events.first().copied().filter(|_| effective.count_events());
            Ok(LimitsReply {
                set: own.into(),
                effective: Limits {
                    max_tenants: None,
                    ..effective
                }
                .into(),
                usage: Usage {
                    endpoints: Some(store::count_endpoints(client, tenant).await?),
                    event_types: Some(store::count_event_types(client, tenant).await?),
                    events_today: events.map(|events| events.0),
                    events_this_month: events.map(|events| events.1),
                    tenants: None,
                },
            })
        }
        Owner::Organization(organization, _) => {
            let own = store::of_organization(client, organization).await?;
            let tenants = store::count_tenants(client, organization, i64::from(MOST)).await?;
            Ok(LimitsReply {
                set: own.into(),
                effective: own.or(default).into(),
                usage: Usage {
                    endpoints: None,
                    event_types: None,
                    events_today: None,
                    events_this_month: None,
                    tenants: Some(tenants),
                },
            })
        }
    }
}
