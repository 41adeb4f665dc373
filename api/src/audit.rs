//! The audit log as handlers use it: one line in the transaction of a change.
//!
//! ```ignore
//! audit::record(&*transaction, (&request, caller), "endpoint.updated", Object::new("endpoint", id), &fields).await?;
//! ```

use actix_web::HttpRequest;
use shared::domain::audit::{Actor, Object};
use shared::ids::TenantKey;
use shared::store::StoreError;
use shared::store::audit_log::{self, Author};
use tokio_postgres::GenericClient;

use crate::auth::{Caller, KeyRef, OrganizationCaller};
use crate::request_id;

/// Who changes something, and whose it is.
pub(crate) struct Change {
    key: Option<KeyRef>,
    tenant: Option<TenantKey>,
    organization: Option<i32>,
}

impl Change {
    /// By the operator, of a tenant or of an organization.
    pub(crate) const fn by_admin(tenant: Option<TenantKey>, organization: Option<i32>) -> Self {
        Self {
            key: None,
            tenant,
            organization,
        }
    }

    /// The same, of one of the organization's tenants.
    pub(crate) const fn of_tenant(self, tenant: TenantKey) -> Self {
        Self {
            tenant: Some(tenant),
            ..self
        }
    }
}

impl From<Caller> for Change {
    fn from(caller: Caller) -> Self {
        Self {
            key: Some(caller.key),
            tenant: Some(caller.tenant),
            organization: None,
        }
    }
}

impl From<OrganizationCaller> for Change {
    fn from(caller: OrganizationCaller) -> Self {
        Self {
            key: Some(caller.key),
            tenant: None,
            organization: Some(caller.organization),
        }
    }
}

/// Records a change: `changed` are names of fields, never values (S2).
pub(crate) async fn record(
    client: &impl GenericClient,
    (request, by): (&HttpRequest, impl Into<Change>),
    action: &'static str,
    object: Object,
    changed: &[&str],
) -> Result<(), StoreError> {
    let Change {
        key,
        tenant,
        organization,
    } = by.into();
    let author = Author {
        actor: key.map_or(Actor::Admin, |key| {
            Actor::Key(key.id, key.hint().to_owned())
        }),
        tenant,
        organization,
        request_id: request_id::of(request),
    };
    audit_log::record(client, &author, action, object, changed).await
}
