//! Who is calling, and what they may do.
//!
//! - `keys`: which keys exist, remembered for a moment · `scope`: what they may do · here: on whose
//!   behalf a request is made.
//!
//! # Invariants
//! - S3: a caller is one tenant; an organization's key reaches that organization's tenants only,
//!   and any other tenant looks to it like one that does not exist.
//! - S2: keys are never logged; the admin token is compared in constant time.

mod keys;
mod scope;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use actix_web::HttpRequest;
use actix_web::http::header;
use deadpool_postgres::Pool;
use shared::ids::{TenantId, TenantKey};
use shared::store::keys::{KeyOwner, hash};
use shared::store::replies::KeyHolder;
use shared::store::{StoreError, tenants};
use subtle::ConstantTimeEq;

use self::keys::{Keys, Known, MOST_ENTRIES};
pub(crate) use self::scope::Scope;
use crate::problem::{ApiError, Kind};

/// The longest name that an organization may have for a tenant.
pub(crate) const MOST_EXTERNAL_ID: usize = 128;

/// The header by which an organization's key names the tenant.
const TENANT_HEADER: &str = "Postrider-Tenant";

/// A tenant on whose behalf a request is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantKey,
    /// Whether its key has [`Scope::Read`] too, whatever the request itself needs.
    pub(crate) reads: bool,
}

/// Knows callers. Shared by all requests of a process.
pub(crate) struct Auth {
    pool: Pool,
    admin_token: Option<String>,
    keys: Arc<Keys>,
    /// By organization and selector (`tnt_…`, `ext:…`). A tenant never changes hands.
    tenants: RwLock<HashMap<(i32, Box<str>), TenantKey>>,
}

impl Auth {
    pub(crate) fn new(pool: Pool, admin_token: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            keys: Keys::new(pool.clone()),
            pool,
            admin_token,
            tenants: RwLock::default(),
        })
    }

    /// The tenant that a request speaks for, if its key may do this.
    pub(crate) async fn tenant(
        &self,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<Caller, ApiError> {
        let known = self.keys.key(bearer(request)?).await?;
        known.require(scope)?;
        let tenant = self.named(request, &known).await?;
        let reads = known.require(Scope::Read).is_ok();
        Ok(Caller { tenant, reads })
    }

    /// Whose keys of idempotency a request uses, and what its key may, as a text of no meaning.
    pub(crate) async fn holder(
        &self,
        request: &HttpRequest,
    ) -> Result<(KeyHolder, String), ApiError> {
        if request.path().starts_with("/v1/admin/") {
            self.admin(request)?;
            return Ok((KeyHolder::Operator, String::new()));
        }
        let known = self.keys.key(bearer(request)?).await?;
        let holder = match known.owner {
            KeyOwner::Organization(organization) if request.path() == "/v1/tenants" => {
                KeyHolder::Organization(organization)
            }
            KeyOwner::Organization(_) | KeyOwner::Tenant(..) => {
                KeyHolder::Tenant(self.named(request, &known).await?.0)
            }
        };
        Ok((holder, known.scopes()))
    }

    /// The tenant that a request names.
    async fn named(&self, request: &HttpRequest, known: &Known) -> Result<TenantKey, ApiError> {
        let selector = tenant_header(request)?;
        match known.owner {
            KeyOwner::Tenant(tenant, id) => {
                if selector.is_some_and(|selector| selector != TenantId(id).to_string()) {
                    let detail =
                        format!("this key speaks for one tenant; leave {TENANT_HEADER} out");
                    return Err(ApiError::new(Kind::MissingScope, detail));
                }
                Ok(tenant)
            }
            KeyOwner::Organization(organization) => {
                let selector = selector.ok_or_else(|| {
                    let detail = format!(
                        "an organization's key names the tenant: \
                         `{TENANT_HEADER}: tnt_…` or `ext:` and your own name for it"
                    );
                    ApiError::new(Kind::InvalidParameter, detail)
                })?;
                self.select(organization, selector, known).await
            }
        }
    }

    /// The organization that a request speaks for, if its key may do this.
    pub(crate) async fn organization(
        &self,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<i32, ApiError> {
        let known = self.keys.key(bearer(request)?).await?;
        match known.owner {
            KeyOwner::Organization(organization) => {
                known.require(scope)?;
                Ok(organization)
            }
            KeyOwner::Tenant(..) => Err(ApiError::new(
                Kind::MissingScope,
                "this needs an organization's key (`pro_…`)",
            )),
        }
    }

    /// Whether a request has the admin token.
    pub(crate) fn admin(&self, request: &HttpRequest) -> Result<(), ApiError> {
        let Some(token) = &self.admin_token else {
            return Err(ApiError::new(
                Kind::AdminDisabled,
                "set POSTRIDER_ADMIN_TOKEN (at least 16 characters) to use /v1/admin",
            ));
        };
        // Hashes have one length, so not even the token's length shows.
        let (given, expected) = (hash(bearer(request)?), hash(token));
        if bool::from(given.ct_eq(&expected)) {
            Ok(())
        } else {
            Err(unauthorized("this is not the admin token"))
        }
    }

    /// Notes in the database which keys were used since the last call.
    pub(crate) async fn note_used(&self) -> Result<(), StoreError> {
        self.keys.note_used().await
    }

    /// The tenant that an organization's request names; its own name for a new one makes it, if
    /// the key may.
    async fn select(
        &self,
        organization: i32,
        selector: &str,
        known: &Known,
    ) -> Result<TenantKey, ApiError> {
        let cache_key = (organization, Box::from(selector));
        if let Some(tenant) = self
            .tenants
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&cache_key)
        {
            return Ok(*tenant);
        }
        let missing = || ApiError::not_found("tenant");
        let tenant = match selector.strip_prefix("ext:") {
            Some(name) => {
                if name.is_empty() || name.chars().count() > MOST_EXTERNAL_ID {
                    let detail = format!("after `ext:` come 1 to {MOST_EXTERNAL_ID} characters");
                    return Err(ApiError::new(Kind::InvalidParameter, detail));
                }
                let client = self.pool.get().await.map_err(StoreError::from)?;
                if known.require(Scope::TenantsWrite).is_ok() {
                    tenants::ensure_by_external_id(&**client, organization, name)
                        .await?
                        .0
                } else {
                    tenants::find_by_external_id(&**client, organization, name)
                        .await?
                        .ok_or_else(missing)?
                        .0
                }
            }
            None => {
                let id: TenantId = selector.parse().map_err(|error| {
                    ApiError::new(Kind::InvalidParameter, format!("{TENANT_HEADER}: {error}"))
                })?;
                let client = self.pool.get().await.map_err(StoreError::from)?;
                tenants::find(&**client, Some(organization), id.0)
                    .await?
                    .ok_or_else(missing)?
                    .key
            }
        };
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= MOST_ENTRIES {
            tenants.clear();
        }
        tenants.insert(cache_key, tenant);
        Ok(tenant)
    }
}

fn bearer(request: &HttpRequest) -> Result<&str, ApiError> {
    request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        })
        .filter(|key| !key.is_empty())
        .ok_or_else(|| unauthorized("send `Authorization: Bearer` and a key"))
}

fn tenant_header(request: &HttpRequest) -> Result<Option<&str>, ApiError> {
    let Some(value) = request.headers().get(TENANT_HEADER) else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_not_ascii| {
        let detail = format!("{TENANT_HEADER} must be visible ASCII");
        ApiError::new(Kind::InvalidParameter, detail)
    })?;
    Ok(Some(text.trim()))
}

fn unauthorized(detail: &'static str) -> ApiError {
    ApiError::new(Kind::Unauthorized, detail)
}
