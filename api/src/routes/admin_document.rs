//! Organizations, tenants and keys as clients write and see them.

use serde::{Deserialize, Serialize};
use shared::domain::limits::KeyRate;
use shared::ids::{KeyId, OrganizationId, TenantId};
use shared::store::keys::KeyInfo;
use shared::store::tenants as store;
use utoipa::ToSchema;

use crate::instant::Instant;
use crate::openapi::schema;

/// Whose keys.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(
    dead_code,
    reason = "it is for the documentation: the path is read by its text"
)]
pub(super) enum OwnerKind {
    Tenants,
    Organizations,
}

/// An organization to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct NewOrganization {
    #[schema(value_type = schema::Name)]
    name: String,
}

/// A tenant to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct NewTenant {
    #[schema(value_type = schema::Name)]
    name: String,
    #[schema(value_type = Option<schema::OrganizationId>)]
    organization_id: Option<OrganizationId>,
    /// The organization's own name for it.
    #[schema(value_type = Option<schema::ExternalId>)]
    external_id: Option<String>,
}

/// A tenant to be made by its organization.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct NewOwnTenant {
    #[schema(value_type = schema::Name)]
    name: String,
    /// The organization's own name for it.
    #[schema(value_type = Option<schema::ExternalId>)]
    external_id: Option<String>,
}

/// A key to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct NewKey {
    #[schema(value_type = Option<schema::OptionalName>)]
    name: Option<String>,
    /// In the future; without it the key lives until it is revoked.
    #[schema(value_type = Option<Instant>)]
    expires_at: Option<String>,
    /// `tenants:write` is for organizations. All that the owner may have if absent.
    #[schema(value_type = Option<Vec<schema::KeyScope>>, min_items = 1, max_items = 7)]
    scopes: Option<Vec<String>>,
    rate_limit: Option<NewKeyRate>,
}

/// What is to change of a key. `null` takes an end or a rate away.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct KeyPatch {
    #[schema(value_type = Option<schema::OptionalName>)]
    name: Option<String>,
    #[schema(value_type = Option<Instant>)]
    expires_at: Option<String>,
    rate_limit: Option<NewKeyRate>,
}

/// How fast a key may be used, in each API process. Each event of a batch counts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "for the documentation; bodies are read field by field"
)]
pub(super) struct NewKeyRate {
    #[schema(minimum = 1, maximum = 1_000_000)]
    per_second: u32,
    /// At once after a quiet time; twice the rate without it.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<u32>,
}

/// How fast a key may be used.
#[derive(Serialize, ToSchema)]
#[schema(as = KeyRateLimit)]
pub(super) struct KeyRateDocument {
    per_second: u32,
    burst: u32,
}

impl From<KeyRate> for KeyRateDocument {
    fn from(rate: KeyRate) -> Self {
        Self {
            per_second: rate.per_second,
            burst: rate.burst,
        }
    }
}

/// A company with tenants.
#[derive(Serialize, ToSchema)]
pub(super) struct Organization {
    #[schema(value_type = schema::OrganizationId)]
    id: OrganizationId,
    name: String,
    created_at: Instant,
}

impl Organization {
    pub(super) fn new(organization: store::Organization) -> Self {
        Self {
            id: OrganizationId(organization.id),
            name: organization.name,
            created_at: Instant(organization.created_at),
        }
    }
}

/// One receiver side: it owns endpoints, events and deliveries.
#[derive(Serialize, ToSchema)]
pub(super) struct Tenant {
    #[schema(value_type = schema::TenantId)]
    id: TenantId,
    #[schema(required, value_type = Option<schema::OrganizationId>)]
    organization_id: Option<OrganizationId>,
    #[schema(required)]
    external_id: Option<String>,
    name: String,
    created_at: Instant,
}

impl Tenant {
    pub(super) fn new(tenant: store::Tenant) -> Self {
        Self {
            id: TenantId(tenant.id),
            organization_id: tenant.organization.map(OrganizationId),
            external_id: tenant.external_id,
            name: tenant.name,
            created_at: Instant(tenant.created_at),
        }
    }
}

/// A key, without its text.
#[derive(Serialize, ToSchema)]
pub(super) struct Key {
    #[schema(value_type = schema::KeyId)]
    id: KeyId,
    /// Its first characters, to tell keys apart.
    hint: String,
    name: String,
    #[schema(value_type = Vec<schema::KeyScope>)]
    scopes: Vec<String>,
    created_at: Instant,
    #[schema(required)]
    expires_at: Option<Instant>,
    #[schema(required)]
    revoked_at: Option<Instant>,
    /// To the minute.
    #[schema(required)]
    last_used_at: Option<Instant>,
    #[schema(required)]
    rate_limit: Option<KeyRateDocument>,
}

impl Key {
    pub(super) fn new(info: KeyInfo) -> Self {
        Self {
            id: KeyId(info.id),
            hint: info.hint,
            name: info.name,
            scopes: info.scopes,
            created_at: Instant(info.created_at),
            expires_at: info.expires_at.map(Instant),
            revoked_at: info.revoked_at.map(Instant),
            last_used_at: info.last_used_at.map(Instant),
            rate_limit: info.rate.map(KeyRateDocument::from),
        }
    }
}

/// A key that was just made.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedKey<'a> {
    #[serde(flatten)]
    info: Key,
    /// The key itself, in this reply and no other.
    key: &'a str,
}

impl<'a> CreatedKey<'a> {
    pub(super) fn new(info: KeyInfo, key: &'a str) -> Self {
        Self {
            info: Key::new(info),
            key,
        }
    }
}
