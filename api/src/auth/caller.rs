//! On whose behalf a request is made.

use shared::domain::limits::{KeyRate, Limits};
use shared::ids::TenantKey;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Scope;

/// A tenant on whose behalf a request is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantKey,
    /// Whether its key has [`Scope::Read`] too, whatever the request itself needs.
    pub(crate) reads: bool,
    /// With which key.
    pub(crate) key: KeyRef,
    /// What the tenant may.
    pub(crate) limits: Limits,
}

/// An organization on whose behalf a request is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrganizationCaller {
    pub(crate) organization: i32,
    /// With which key.
    pub(crate) key: KeyRef,
    pub(super) scopes: u8,
    /// What the organization and its tenants may.
    pub(crate) limits: Limits,
    /// When its key ends.
    pub(crate) expires_at: Option<OffsetDateTime>,
    /// How fast its key may be used, wherever that is set.
    pub(crate) rate: Option<KeyRate>,
    /// ... if it is set for the key alone.
    pub(crate) own_rate: Option<KeyRate>,
}

impl OrganizationCaller {
    /// Whether its key may do this too.
    pub(crate) const fn has(&self, scope: Scope) -> bool {
        self.scopes & scope.bit() != 0
    }
}

/// Whom a list is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Readers {
    /// One tenant.
    Tenant(TenantKey),
    /// All tenants of an organization.
    Organization(i32),
}

/// A key as the audit log names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRef {
    pub(crate) id: Uuid,
    hint: [u8; 10],
}

impl KeyRef {
    pub(super) fn new(id: Uuid, text: &str) -> Self {
        let mut hint = [b' '; 10];
        for (to, from) in hint.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        Self { id, hint }
    }

    /// The first characters of its text.
    pub(crate) fn hint(&self) -> &str {
        std::str::from_utf8(&self.hint)
            .unwrap_or_default()
            .trim_end()
    }
}
