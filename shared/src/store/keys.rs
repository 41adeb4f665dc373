//! API keys: made once, shown once, stored as a hash.
//!
//! # Invariants
//! - S2: the text of a key exists in the reply that creates it and nowhere else; [`NewKey`] does
//!   not print it.
//! - S3: a key belongs to one tenant or one organization; every look-up returns which.

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Json;
use uuid::Uuid;

use super::StoreError;
use super::new_id::new_id;
use crate::domain::limits::{KeyRate, Limits};
use crate::ids::TenantKey;
use crate::runtime::jitter;

/// The hash that a key is found by.
pub type KeyHash = [u8; 32];

/// Characters of a key that may be shown to tell keys apart: the prefix and six of its 43.
const HINT_LENGTH: usize = 10;

/// Uses `api_keys_hash_key`. A key of a tenant or organization that was deleted is none.
const FIND: &str = "
SELECT k.public_id, k.scopes, k.tenant_id, t.public_id, k.organization_id, k.hint, k.rate_limit, coalesce(t.limits, '{}'), coalesce(o.limits, '{}'),
  k.expires_at
FROM api_keys k LEFT JOIN tenants t ON t.id = k.tenant_id
LEFT JOIN organizations o ON o.id = coalesce(k.organization_id, t.organization_id)
WHERE k.hash = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
  AND t.deleted_at IS NULL AND o.deleted_at IS NULL";

const CREATE: &str = "
INSERT INTO api_keys (public_id, tenant_id, organization_id, hash, hint, name, scopes, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING public_id, hint, name, scopes, created_at, expires_at, revoked_at, last_used_at, rate_limit";

/// The keys that `$which` names, newest first, those after $2. An owner's keys are few: they are sorted.
macro_rules! list {
    ($which:literal) => {
        concat!(
            "
SELECT public_id, hint, name, scopes, created_at, expires_at, revoked_at, last_used_at, rate_limit
FROM (SELECT * FROM api_keys WHERE ",
            $which,
            " OFFSET 0) k WHERE public_id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY public_id DESC LIMIT $3"
        )
    };
}

/// Uses `api_keys_tenant`.
const LIST_OF_TENANT: &str = list!("tenant_id = $1");
/// Uses `api_keys_organization`.
const LIST_OF_ORGANIZATION: &str = list!("organization_id = $1");

/// Uses `api_keys_public_id_key`.
const FOR_UPDATE: &str = "
SELECT public_id, hint, name, scopes, created_at, expires_at, revoked_at, last_used_at, rate_limit
FROM api_keys WHERE public_id = $3 AND (tenant_id = $1 OR organization_id = $2) FOR UPDATE";

const UPDATE: &str = "
UPDATE api_keys SET name = $2, expires_at = $3, rate_limit = $4 WHERE public_id = $1
RETURNING public_id, hint, name, scopes, created_at, expires_at, revoked_at, last_used_at, rate_limit";

const REVOKE: &str = "
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())
WHERE public_id = $1 AND (tenant_id = $2 OR organization_id = $3)";

/// In the order of ids: two processes that note the same keys cannot block each other for ever.
const TOUCH: &str = "
UPDATE api_keys SET last_used_at = now()
WHERE id IN (SELECT id FROM api_keys WHERE public_id = ANY($1) ORDER BY id FOR UPDATE)";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("keys.find", FIND),
    ("keys.create", CREATE),
    ("keys.list_of_tenant", LIST_OF_TENANT),
    ("keys.list_of_organization", LIST_OF_ORGANIZATION),
    ("keys.for_update", FOR_UPDATE),
    ("keys.update", UPDATE),
    ("keys.revoke", REVOKE),
    ("keys.touch", TOUCH),
];

/// Whom a key speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOwner {
    /// One tenant: the key inside and the public id.
    Tenant(TenantKey, Uuid),
    /// A SaaS company; each request names its tenant.
    Organization(i32),
}

/// A key that is valid now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// The public id.
    pub id: Uuid,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Whom it speaks for.
    pub owner: KeyOwner,
    /// Its first characters.
    pub hint: String,
    /// How fast it may be used, if that is set for this key, its tenant or its organization.
    pub rate: Option<KeyRate>,
    /// ... for this key.
    pub own_rate: Option<KeyRate>,
    /// When it ends.
    pub expires_at: Option<OffsetDateTime>,
    /// What its tenant may, or its organization's tenants.
    pub limits: Limits,
}

/// Whom a new key will speak for, by the keys inside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerKey {
    /// `tenants.id`.
    Tenant(TenantKey),
    /// `organizations.id`.
    Organization(i32),
}

impl OwnerKey {
    const fn columns(self) -> (Option<i32>, Option<i32>) {
        match self {
            Self::Tenant(tenant) => (Some(tenant.0), None),
            Self::Organization(organization) => (None, Some(organization)),
        }
    }

    /// What a key of this owner begins with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Tenant(_) => "prk_",
            Self::Organization(_) => "pro_",
        }
    }
}

/// A key as people see it: without its text.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// The public id.
    pub id: Uuid,
    /// Its first characters.
    pub hint: String,
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<String>,
    /// Made at.
    pub created_at: OffsetDateTime,
    /// Invalid from.
    pub expires_at: Option<OffsetDateTime>,
    /// Revoked at.
    pub revoked_at: Option<OffsetDateTime>,
    /// Used last, to the minute.
    pub last_used_at: Option<OffsetDateTime>,
    /// How fast it may be used, if that is set for this key.
    pub rate: Option<KeyRate>,
}

/// The text of a key that was just made.
pub struct NewKey(String);

impl std::fmt::Debug for NewKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("NewKey(…)")
    }
}

impl NewKey {
    /// 256 bits of chance, 43 characters of base64url after the prefix.
    #[must_use]
    pub fn generate(owner: OwnerKey) -> Self {
        use base64::Engine as _;
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let random: [u8; 32] = jitter::bytes();
        Self(format!(
            "{}{}",
            owner.prefix(),
            URL_SAFE_NO_PAD.encode(random)
        ))
    }

    /// The text, to be shown once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn hint(&self) -> String {
        self.0.chars().take(HINT_LENGTH).collect()
    }
}

/// The hash that the key with this text is stored under.
#[must_use]
pub fn hash(text: &str) -> KeyHash {
    Sha256::digest(text.as_bytes()).into()
}

/// Finds a key that is neither revoked nor expired.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    hash: &KeyHash,
) -> Result<Option<FoundKey>, StoreError> {
    let statement = client.prepare(FIND).await?;
    let Some(row) = client.query_opt(&statement, &[&hash.as_slice()]).await? else {
        return Ok(None);
    };
    let tenant: Option<i32> = row.try_get(2)?;
    let public: Option<Uuid> = row.try_get(3)?;
    let organization: Option<i32> = row.try_get(4)?;
    let owner = match (tenant, public, organization) {
        (Some(tenant), Some(public), None) => KeyOwner::Tenant(TenantKey(tenant), public),
        (None, None, Some(organization)) => KeyOwner::Organization(organization),
        _ => return Err(StoreError::Decode("a key without an owner".to_owned())),
    };
    let rate: Option<Json<KeyRate>> = row.try_get(6)?;
    let (Json(own), Json(of_organization)): (Json<Limits>, Json<Limits>) =
        (row.try_get(7)?, row.try_get(8)?);
    let limits = own.or(of_organization);
    let own_rate = rate.map(|Json(rate)| rate);
    Ok(Some(FoundKey {
        id: row.try_get(0)?,
        scopes: row.try_get(1)?,
        owner,
        hint: row.try_get(5)?,
        rate: own_rate.or(limits.rate_limit),
        own_rate,
        expires_at: row.try_get(9)?,
        limits,
    }))
}

/// Makes a key.
///
/// # Errors
/// Any [`StoreError`].
pub async fn create(
    client: &impl GenericClient,
    owner: OwnerKey,
    name: &str,
    scopes: &[String],
    expires_at: Option<OffsetDateTime>,
) -> Result<(KeyInfo, NewKey), StoreError> {
    let key = NewKey::generate(owner);
    let (tenant, organization) = owner.columns();
    let row = client
        .query_one(
            CREATE,
            &[
                &new_id(client).await?,
                &tenant,
                &organization,
                &hash(key.reveal()).as_slice(),
                &key.hint(),
                &name,
                &scopes,
                &expires_at,
            ],
        )
        .await?;
    Ok((info(&row)?, key))
}

/// The keys of an owner, newest first, those after `before`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    owner: OwnerKey,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<KeyInfo>, StoreError> {
    let (statement, owner) = match owner {
        OwnerKey::Tenant(tenant) => (LIST_OF_TENANT, tenant.0),
        OwnerKey::Organization(organization) => (LIST_OF_ORGANIZATION, organization),
    };
    client
        .query(statement, &[&owner, &before, &limit])
        .await?
        .iter()
        .map(info)
        .collect()
}

/// A key of this owner, locked until the transaction ends.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find_for_update(
    client: &impl GenericClient,
    owner: OwnerKey,
    id: Uuid,
) -> Result<Option<KeyInfo>, StoreError> {
    let (tenant, organization) = owner.columns();
    let row = client
        .query_opt(FOR_UPDATE, &[&tenant, &organization, &id])
        .await?;
    row.as_ref().map(info).transpose()
}

/// Changes a key that was locked by [`find_for_update`]: name, end and rate.
///
/// # Errors
/// Any [`StoreError`].
pub async fn update(client: &impl GenericClient, key: &KeyInfo) -> Result<KeyInfo, StoreError> {
    let row = client
        .query_one(
            UPDATE,
            &[&key.id, &key.name, &key.expires_at, &key.rate.map(Json)],
        )
        .await?;
    info(&row)
}

/// Revokes a key of this owner; whether there is one. Revoking twice keeps the first time.
///
/// # Errors
/// Any [`StoreError`].
pub async fn revoke(
    client: &impl GenericClient,
    owner: OwnerKey,
    id: Uuid,
) -> Result<bool, StoreError> {
    let (tenant, organization) = owner.columns();
    Ok(client
        .execute(REVOKE, &[&id, &tenant, &organization])
        .await?
        > 0)
}

/// Notes that keys were used just now.
///
/// # Errors
/// Any [`StoreError`].
pub async fn touch(client: &impl GenericClient, ids: &[Uuid]) -> Result<(), StoreError> {
    client.execute(TOUCH, &[&ids]).await?;
    Ok(())
}

fn info(row: &tokio_postgres::Row) -> Result<KeyInfo, StoreError> {
    Ok(KeyInfo {
        id: row.try_get(0)?,
        hint: row.try_get(1)?,
        name: row.try_get(2)?,
        scopes: row.try_get(3)?,
        created_at: row.try_get(4)?,
        expires_at: row.try_get(5)?,
        revoked_at: row.try_get(6)?,
        last_used_at: row.try_get(7)?,
        rate: row
            .try_get::<_, Option<Json<KeyRate>>>(8)?
            .map(|Json(rate)| rate),
    })
}
