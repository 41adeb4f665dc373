//! Who is calling, and what they may do.
//!
//! - `caller`: who that can be · `keys`: which keys exist, remembered for a moment · `scope`: what they may do · `rate`: how fast ·
//!   `failures`: who tries keys that do not exist · here: on whose behalf a request is made.
//!
//! # Invariants
//! - S3: a caller is one tenant; an organization's key reaches that organization's tenants only,
//!   and any other tenant looks to it like one that does not exist.
//! - S2: keys are never logged; the admin token is compared in constant time.

mod caller;
mod failures;
mod keys;
mod rate;
mod scope;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use actix_web::http::header;
use actix_web::{HttpMessage as _, HttpRequest};
use shared::domain::limits::Limits;
use shared::ids::{TenantId, TenantKey};
use shared::runtime::clock::{BootTime, DatabaseClock, boot_time};
use shared::store::keys::{KeyOwner, hash};
use shared::store::replies::KeyHolder;
use shared::store::{StoreError, limits as limits_store, tenants};
use subtle::ConstantTimeEq;
use time::OffsetDateTime;

pub(crate) use self::caller::{Caller, KeyRef, OrganizationCaller, Readers};
pub(crate) use self::keys::{BELIEVED, Belief};
use self::keys::{Keys, Known, MOST_ENTRIES};
pub(crate) use self::rate::Remaining;
pub(crate) use self::scope::Scope;
use crate::connections::Connections;
use crate::problem::{ApiError, Kind};

/// The longest name that an organization may have for a tenant.
pub(crate) const MOST_EXTERNAL_ID: usize = 128;

/// The header by which an organization's key names the tenant.
const TENANT_HEADER: &str = "Postrider-Tenant";

/// What names every tenant of an organization, where that is possible.
const EVERY_TENANT: &str = "*";

/// A change of a tenant is looked for from so much before the last look: its transaction may have begun
/// that long before it committed.
const LATE_COMMIT: time::Duration = time::Duration::seconds(20);

/// A tenant that an organization's key named.
#[derive(Debug, Clone, Copy)]
struct Selected {
    tenant: TenantKey,
    own: Limits,
}

/// Knows callers. Shared by all requests of a process.
pub(crate) struct Auth {
    connections: Connections,
    admin_token: Option<String>,
    keys: Arc<Keys>,
    /// By organization and selector (`tnt_…`, `ext:…`). A tenant never changes hands; when its limits
    /// change or it is deleted, it is forgotten here ([`Auth::forget_changed`]).
    tenants: RwLock<HashMap<(i32, Box<str>), Selected>>,
    looked: Mutex<Looked>,
}

/// How far changes of tenants are known.
#[derive(Debug, Clone, Copy)]
struct Looked {
    /// The database's time of the last look.
    until: OffsetDateTime,
    /// When that was.
    at: BootTime,
}

impl Auth {
    pub(crate) fn new(
        connections: Connections,
        clock: Arc<DatabaseClock>,
        admin_token: Option<String>,
        default: Limits,
        belief: Belief,
    ) -> Arc<Self> {
        Arc::new(Self {
            keys: Keys::new(connections.clone(), clock, default, belief),
            connections,
            admin_token,
            tenants: RwLock::default(),
            looked: Mutex::new(Looked {
                until: OffsetDateTime::UNIX_EPOCH,
                at: boot_time(),
            }),
        })
    }

    /// The tenant that a request speaks for, if its key may do this.
    pub(crate) async fn tenant(
        &self,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<Caller, ApiError> {
        let known = self.keys.key(bearer(request)?, request).await?;
        known.require(scope)?;
        take_one(&known, request)?;
        self.caller(request, &known).await
    }

    /// Whose keys of idempotency a request uses, and what its key may, as a text of no meaning. Counts the request
    /// against its key's limit: one that is refused for that claims nothing.
    pub(crate) async fn holder(
        &self,
        request: &HttpRequest,
    ) -> Result<(KeyHolder, String), ApiError> {
        if request.path().starts_with("/v1/admin/") {
            self.admin(request)?;
            return Ok((KeyHolder::Operator, String::new()));
        }
        let known = self.keys.key(bearer(request)?, request).await?;
        take_one(&known, request)?;
        let holder = match known.owner {
            KeyOwner::Organization(organization) if request.path().starts_with("/v1/tenants") => {
                KeyHolder::Organization(organization)
            }
            KeyOwner::Organization(_) | KeyOwner::Tenant(..) => {
                KeyHolder::Tenant(self.caller(request, &known).await?.tenant.0)
            }
        };
        Ok((holder, known.scopes_text()))
    }

    /// Counts further events against the limit of the request's key: one is counted already.
    pub(crate) async fn charge(&self, request: &HttpRequest, events: u32) -> Result<(), ApiError> {
        let known = self.keys.key(bearer(request)?, request).await?;
        take(&known, request, events.saturating_sub(1))
    }

    /// One tenant, or with an organization's key and `Postrider-Tenant: *` all of its tenants.
    pub(crate) async fn readers(
        &self,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<Readers, ApiError> {
        let known = self.keys.key(bearer(request)?, request).await?;
        known.require(scope)?;
        take_one(&known, request)?;
        match known.owner {
            KeyOwner::Organization(organization)
                if tenant_header(request)? == Some(EVERY_TENANT) =>
            {
                Ok(Readers::Organization(organization))
            }
            KeyOwner::Organization(_) | KeyOwner::Tenant(..) => {
                Ok(Readers::Tenant(self.caller(request, &known).await?.tenant))
            }
        }
    }

    async fn caller(&self, request: &HttpRequest, known: &Known) -> Result<Caller, ApiError> {
        let selector = tenant_header(request)?;
        let (tenant, limits) = match known.owner {
            KeyOwner::Tenant(tenant, id) => {
                if selector.is_some_and(|selector| selector != TenantId(id).to_string()) {
                    let detail =
                        format!("this key speaks for one tenant; leave {TENANT_HEADER} out");
                    return Err(ApiError::new(Kind::MissingScope, detail));
                }
                (tenant, known.limits)
            }
            KeyOwner::Organization(organization) => {
                let selector = selector.ok_or_else(|| {
                    let detail = format!(
                        "an organization's key names the tenant: \
                         `{TENANT_HEADER}: tnt_…` or `ext:` and your own name for it"
                    );
                    ApiError::new(Kind::InvalidParameter, detail)
                })?;
                if selector == EVERY_TENANT {
                    let detail = format!(
                        "`{TENANT_HEADER}: *` is for GET of /v1/endpoints, /v1/events, /v1/deliveries, \
                         /v1/audit-log and /v1/removals/{{id}}; name one tenant here"
                    );
                    return Err(ApiError::new(Kind::InvalidParameter, detail));
                }
                let selected = self.select(organization, selector, known);
                let selected = self.connections.bounded(selected).await?;
                (selected.tenant, selected.own.or(known.limits))
            }
        };
        Ok(Caller {
            tenant,
            reads: known.has(Scope::Read),
            key: known.key,
            limits,
        })
    }

    /// The organization that a request speaks for, if its key may do this.
    pub(crate) async fn organization(
        &self,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<OrganizationCaller, ApiError> {
        let known = self.keys.key(bearer(request)?, request).await?;
        match known.owner {
            KeyOwner::Organization(organization) => {
                known.require(scope)?;
                take_one(&known, request)?;
                Ok(OrganizationCaller {
                    organization,
                    key: known.key,
                    scopes: known.scopes,
                    limits: known.limits,
                    expires_at: known.expires_at,
                    rate: known.rate.as_ref().map(|rate| rate.limit),
                    own_rate: known.own_rate,
                })
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
        let given = bearer(request)?;
        let is_token = bool::from(hash(given).ct_eq(&hash(token)));
        // Not the hash of a key: a tenant's key that was sent here by mistake stays good where it belongs.
        let tried = hash(&["admin ", given].concat());
        let peer = keys::peer(request);
        self.keys.may_try(&tried, peer)?;
        if is_token {
            return Ok(());
        }
        self.keys.failed(tried, peer, boot_time());
        Err(unauthorized("this is not the admin token"))
    }

    /// Forgets tenants that changed since the last call; all of them when that could not be found out
    /// for as long as a key is believed.
    pub(crate) async fn forget_changed(&self) -> Result<(), StoreError> {
        let looked = *self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = boot_time();
        let changed = async {
            let client = self.connections.try_get().await?;
            limits_store::changed(&**client, looked.until - LATE_COMMIT).await
        };
        let (until, changed) = match changed.await {
            Ok(changed) => changed,
            Err(error) => {
                if !self.keys.is_believed(asked.since(looked.at)) {
                    self.write_tenants().clear();
                }
                return Err(error);
            }
        };
        if !changed.is_empty() {
            self.write_tenants()
                .retain(|_, selected| !changed.contains(&selected.tenant));
        }
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Looked { until, at: asked };
        Ok(())
    }

    fn write_tenants(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<(i32, Box<str>), Selected>> {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner)
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
    ) -> Result<Selected, ApiError> {
        let cache_key = (organization, Box::from(selector));
        if let Some(tenant) = self
            .tenants
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&cache_key)
        {
            return Ok(*tenant);
        }
        // Read before the tenant: what changes after this is found by the next look.
        let looked = self
            .looked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .until;
        let missing = || ApiError::not_found("tenant");
        let tenant = match selector.strip_prefix("ext:") {
            Some(name) => {
                if let Some(wrong) = wrong_external_id(name) {
                    let detail =
                        format!("after `ext:` comes your name for a tenant, which {wrong}");
                    return Err(ApiError::new(Kind::InvalidParameter, detail));
                }
                let client = self.connections.get().await?;
                match tenants::find_by_external_id(&**client, organization, name).await? {
                    Some(found) => found.0,
                    None if known.has(Scope::TenantsWrite) => {
                        make_room(&client, organization, known.limits).await?;
                        tenants::ensure_by_external_id(&**client, organization, name)
                            .await?
                            .0
                    }
                    None => return Err(missing()),
                }
            }
            None => {
                let id: TenantId = selector.parse().map_err(|error| {
                    let detail = format!(
                        "{TENANT_HEADER}: {error}; your own name for a tenant comes after `ext:`"
                    );
                    ApiError::new(Kind::InvalidParameter, detail)
                })?;
                let client = self.connections.get().await?;
                tenants::find(&**client, Some(organization), id.0)
                    .await?
                    .ok_or_else(missing)?
                    .key
            }
        };
        let client = self.connections.get().await?;
        let found = limits_store::of_tenant(&**client, tenant).await?;
        drop(client);
        let (own, _of_organization) = found.ok_or_else(missing)?;
        let selected = Selected { tenant, own };
        let now = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if now.until == looked {
            let mut tenants = self.write_tenants();
            if tenants.len() >= MOST_ENTRIES {
                tenants.clear();
            }
            tenants.insert(cache_key, selected);
        }
        drop(now);
        Ok(selected)
    }
}

/// Refuses a new tenant where an organization has as many as it may have. Parallel requests may exceed
/// that by their number.
pub(crate) async fn make_room(
    client: &shared::store::Pooled,
    organization: i32,
    limits: Limits,
) -> Result<(), ApiError> {
    let Some(most) = limits.max_tenants else {
        return Ok(());
    };
    if limits_store::count_tenants(&***client, organization, i64::from(most)).await?
        < i64::from(most)
    {
        return Ok(());
    }
    let detail = format!("the organization has {most} tenants, which is its limit");
    Err(ApiError::new(Kind::LimitReached, detail))
}

/// Counts a request against its key's limit: once, also when it is tried again (`crate::patience`) or was counted
/// before its idempotency key was claimed.
fn take_one(known: &Known, request: &HttpRequest) -> Result<(), ApiError> {
    if known.rate.is_some() && request.extensions().contains::<Remaining>() {
        return Ok(());
    }
    take(known, request, 1)
}

/// Counts against a key's limit, and remembers for the reply what is left.
fn take(known: &Known, request: &HttpRequest, count: u32) -> Result<(), ApiError> {
    let Some(rate) = &known.rate else {
        return Ok(());
    };
    if count == 0 {
        return Ok(());
    }
    let (remaining, taken) = rate.take(count);
    request.extensions_mut().insert(remaining);
    taken
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
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_not_utf8| {
        let detail = format!("{TENANT_HEADER} must be UTF-8");
        ApiError::new(Kind::InvalidParameter, detail)
    })?;
    Ok(Some(text.trim()))
}

/// What is wrong with an organization's own name for a tenant, if anything. Whatever is right can stand in a header.
pub(crate) fn wrong_external_id(name: &str) -> Option<String> {
    let is_right = (1..=MOST_EXTERNAL_ID).contains(&name.chars().count())
        && !name.chars().any(char::is_control)
        && name.trim() == name;
    (!is_right).then(|| {
        format!(
            "must have 1 to {MOST_EXTERNAL_ID} characters, no control characters, and no space at either end"
        )
    })
}

fn unauthorized(detail: &'static str) -> ApiError {
    ApiError::new(Kind::Unauthorized, detail)
}
