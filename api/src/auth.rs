//! Who is calling, and what they may do.
//!
//! Keys are looked up by their hash and remembered. A remembered key is believed for [`FRESH`],
//! asked about again in the background before that ends, and, when the database is away, believed
//! for [`BELIEVED`] in all: an outage of a minute locks nobody out.
//!
//! # Invariants
//! - A revocation holds within two seconds while the database answers.
//! - S3: a caller is one tenant; an organization's key reaches that organization's tenants only,
//!   and any other tenant looks to it like one that does not exist.
//! - S2: keys are never logged; the admin token is compared in constant time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header;
use arc_swap::ArcSwap;
use deadpool_postgres::Pool;
use shared::ids::{TenantId, TenantKey};
use shared::runtime::clock::{BootTime, boot_time};
use shared::runtime::spawn_driver;
use shared::store::keys::{self, FoundKey, KeyHash, KeyOwner};
use shared::store::pool::within;
use shared::store::{StoreError, tenants};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::problem::{ApiError, Kind};

/// How long a key is believed without asking. With the time that asking takes, under two seconds.
const FRESH: Duration = Duration::from_millis(1_500);
/// From this age on, the next use asks again in the background.
const AGEING: Duration = Duration::from_millis(750);
/// How long a key is believed while the database cannot be asked.
const BELIEVED: Duration = Duration::from_secs(60);
/// After a failure to ask, the pause before the next attempt: an outage is not a storm of lookups.
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// How long one look-up may take.
const LOOKUP_BUDGET: Duration = Duration::from_secs(2);
/// How long a key that does not exist is refused without asking.
const REFUSED: Duration = Duration::from_secs(1);
/// The most entries of each cache; at the limit it starts anew.
const MOST_ENTRIES: usize = 20_000;
/// The longest name that an organization may have for a tenant.
pub(crate) const MOST_EXTERNAL_ID: usize = 128;

/// The header by which an organization's key names the tenant.
const TENANT_HEADER: &str = "Postrider-Tenant";

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    EventsWrite,
    EndpointsWrite,
    Read,
    Replay,
    TenantsWrite,
}

impl Scope {
    pub(crate) const ALL: [Self; 5] = [
        Self::EventsWrite,
        Self::EndpointsWrite,
        Self::Read,
        Self::Replay,
        Self::TenantsWrite,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::EventsWrite => "events:write",
            Self::EndpointsWrite => "endpoints:write",
            Self::Read => "read",
            Self::Replay => "replay",
            Self::TenantsWrite => "tenants:write",
        }
    }

    const fn bit(self) -> u8 {
        match self {
            Self::EventsWrite => 1,
            Self::EndpointsWrite => 2,
            Self::Read => 4,
            Self::Replay => 8,
            Self::TenantsWrite => 16,
        }
    }
}

/// A tenant on whose behalf a request is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantKey,
}

/// A key that is known, and since when.
#[derive(Debug)]
struct Known {
    owner: KeyOwner,
    scopes: u8,
    /// When the question was sent whose answer this is.
    confirmed: BootTime,
}

impl Known {
    fn new(found: &FoundKey, confirmed: BootTime) -> Self {
        let scopes = Scope::ALL
            .into_iter()
            .filter(|scope| found.scopes.iter().any(|name| name == scope.name()))
            .fold(0, |bits, scope| bits | scope.bit());
        Self {
            owner: found.owner,
            scopes,
            confirmed,
        }
    }

    fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes & scope.bit() != 0 {
            return Ok(());
        }
        Err(ApiError::new(
            Kind::MissingScope,
            format!("this needs a key with the scope `{}`", scope.name()),
        ))
    }
}

#[derive(Debug)]
struct Entry {
    id: Uuid,
    known: ArcSwap<Known>,
    /// Held by the one request that asks again; when it last failed.
    asking: tokio::sync::Mutex<Option<BootTime>>,
    used: AtomicBool,
}

/// Knows keys. Shared by all requests of a process.
pub(crate) struct Auth {
    pool: Pool,
    admin_token: Option<String>,
    keys: RwLock<HashMap<KeyHash, Arc<Entry>>>,
    refused: Mutex<HashMap<KeyHash, BootTime>>,
    /// By organization and selector (`tnt_…`, `ext:…`). A tenant never changes hands.
    tenants: RwLock<HashMap<(i32, Box<str>), TenantKey>>,
}

impl Auth {
    pub(crate) fn new(pool: Pool, admin_token: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            pool,
            admin_token,
            keys: RwLock::default(),
            refused: Mutex::default(),
            tenants: RwLock::default(),
        })
    }

    /// The tenant that a request speaks for, if its key may do this.
    pub(crate) async fn tenant(
        self: &Arc<Self>,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<Caller, ApiError> {
        let known = self.key(bearer(request)?).await?;
        known.require(scope)?;
        let selector = tenant_header(request)?;
        let tenant = match known.owner {
            KeyOwner::Tenant(tenant, id) => {
                if selector.is_some_and(|selector| selector != TenantId(id).to_string()) {
                    let detail =
                        format!("this key speaks for one tenant; leave {TENANT_HEADER} out");
                    return Err(ApiError::new(Kind::MissingScope, detail));
                }
                tenant
            }
            KeyOwner::Organization(organization) => {
                let selector = selector.ok_or_else(|| {
                    let detail = format!(
                        "an organization's key names the tenant: \
                         `{TENANT_HEADER}: tnt_…` or `ext:` and your own name for it"
                    );
                    ApiError::new(Kind::InvalidParameter, detail)
                })?;
                self.select(organization, selector, &known).await?
            }
        };
        Ok(Caller { tenant })
    }

    /// The organization that a request speaks for, if its key may do this.
    pub(crate) async fn organization(
        self: &Arc<Self>,
        request: &HttpRequest,
        scope: Scope,
    ) -> Result<i32, ApiError> {
        let known = self.key(bearer(request)?).await?;
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
        let (given, expected) = (keys::hash(bearer(request)?), keys::hash(token));
        if bool::from(given.ct_eq(&expected)) {
            Ok(())
        } else {
            Err(unauthorized("this is not the admin token"))
        }
    }

    /// Notes in the database which keys were used since the last call.
    pub(crate) async fn note_used(&self) -> Result<(), StoreError> {
        let used: Vec<Uuid> = read(&self.keys)
            .values()
            .filter(|entry| entry.used.swap(false, Ordering::Relaxed))
            .map(|entry| entry.id)
            .collect();
        if used.is_empty() {
            return Ok(());
        }
        let client = self.pool.get().await?;
        keys::touch(&**client, &used).await
    }

    async fn key(self: &Arc<Self>, text: &str) -> Result<Arc<Known>, ApiError> {
        let hash = keys::hash(text);
        let entry = read(&self.keys).get(&hash).cloned();
        let Some(entry) = entry else {
            return self.first_use(hash).await;
        };
        entry.used.store(true, Ordering::Relaxed);
        let known = entry.known.load_full();
        let age = boot_time().since(known.confirmed);
        if age <= AGEING {
            return Ok(known);
        }
        if age > FRESH {
            return self.ask_again(hash, &entry).await;
        }
        if entry.asking.try_lock().is_ok() {
            let auth = Arc::clone(self);
            // Ends by itself: the look-up has a budget.
            drop(spawn_driver(async move {
                if let Err(error) = auth.ask_again(hash, &entry).await {
                    tracing::debug!(%error, "a key was not confirmed");
                }
            }));
        }
        Ok(known)
    }

    async fn first_use(&self, hash: KeyHash) -> Result<Arc<Known>, ApiError> {
        let refused = lock(&self.refused).get(&hash).copied();
        if refused.is_some_and(|at| boot_time().since(at) <= REFUSED) {
            return Err(unknown_key());
        }
        let asked = boot_time();
        let Some(found) = self.find(&hash).await? else {
            self.refuse(hash, asked);
            return Err(unknown_key());
        };
        let known = Arc::new(Known::new(&found, asked));
        let entry = Arc::new(Entry {
            id: found.id,
            known: ArcSwap::new(Arc::clone(&known)),
            asking: tokio::sync::Mutex::default(),
            used: AtomicBool::new(true),
        });
        let mut keys = write(&self.keys);
        if keys.len() >= MOST_ENTRIES {
            keys.clear();
        }
        keys.insert(hash, entry);
        Ok(known)
    }

    /// Asks the database about a known key, one request at a time; the others wait for its answer.
    async fn ask_again(&self, hash: KeyHash, entry: &Entry) -> Result<Arc<Known>, ApiError> {
        let mut failed = entry.asking.lock().await;
        let known = entry.known.load_full();
        let age = boot_time().since(known.confirmed);
        if age <= AGEING {
            return Ok(known);
        }
        let believed = age <= BELIEVED;
        if believed && failed.is_some_and(|at| boot_time().since(at) <= ASK_PAUSE) {
            return Ok(known);
        }
        let asked = boot_time();
        match self.find(&hash).await {
            Ok(Some(found)) => {
                let known = Arc::new(Known::new(&found, asked));
                entry.known.store(Arc::clone(&known));
                *failed = None;
                Ok(known)
            }
            Ok(None) => {
                write(&self.keys).remove(&hash);
                self.refuse(hash, asked);
                Err(unknown_key())
            }
            Err(error) if believed && error.is_transient() => {
                *failed = Some(boot_time());
                tracing::warn!(%error, "keys cannot be checked; the last answer counts");
                Ok(known)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn find(&self, hash: &KeyHash) -> Result<Option<FoundKey>, StoreError> {
        within(LOOKUP_BUDGET, async {
            let client = self.pool.get().await?;
            keys::find(&**client, hash).await
        })
        .await
    }

    fn refuse(&self, hash: KeyHash, asked: BootTime) {
        let mut refused = lock(&self.refused);
        if refused.len() >= MOST_ENTRIES {
            refused.clear();
        }
        refused.insert(hash, asked);
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
        if let Some(tenant) = read(&self.tenants).get(&cache_key) {
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
        let mut tenants = write(&self.tenants);
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

fn unknown_key() -> ApiError {
    unauthorized("this key does not exist, has expired or was revoked")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
