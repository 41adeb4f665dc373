//! Organizations and tenants: who is who.
//!
//! # Invariants
//! - S3: an organization sees its own tenants only; every look-up on its behalf has its key in the
//!   statement.

use time::OffsetDateTime;
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::StoreError;
use super::new_id::new_id;
use crate::ids::TenantKey;

const CREATE_ORGANIZATION: &str = "
INSERT INTO organizations (public_id, name) VALUES ($1, $2) RETURNING id, public_id, name, created_at";

const FIND_ORGANIZATION: &str = "SELECT id, public_id, name, created_at FROM organizations WHERE public_id = $1 AND deleted_at IS NULL";

/// Uses `organizations_public_id_key`.
const LIST_ORGANIZATIONS: &str = "
SELECT id, public_id, name, created_at FROM organizations
WHERE deleted_at IS NULL AND public_id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') ORDER BY public_id DESC LIMIT $2";

const CREATE_TENANT: &str = "
WITH made AS (
  INSERT INTO tenants (public_id, organization_id, external_id, name) VALUES ($1, $2, $3, $4)
  RETURNING id, public_id, organization_id, external_id, name, created_at)
SELECT t.id, t.public_id, o.public_id, t.external_id, t.name, t.created_at
FROM made t LEFT JOIN organizations o ON o.id = t.organization_id";

const FIND_TENANT: &str = "
SELECT t.id, t.public_id, o.public_id, t.external_id, t.name, t.created_at
FROM tenants t LEFT JOIN organizations o ON o.id = t.organization_id
WHERE t.public_id = $1 AND ($2::int4 IS NULL OR t.organization_id = $2) AND t.deleted_at IS NULL AND o.deleted_at IS NULL";

const PUBLIC_ID: &str = "SELECT public_id FROM tenants WHERE id = $1 AND deleted_at IS NULL";

/// Uses `tenants_organization_id_external_id_key`.
const FIND_BY_EXTERNAL_ID: &str = "SELECT id, public_id FROM tenants WHERE organization_id = $1 AND external_id = $2 AND deleted_at IS NULL";

/// A parallel first use makes one tenant: the loser of the race finds the winner's. None of an organization
/// that was deleted.
const ENSURE_BY_EXTERNAL_ID: &str = "
INSERT INTO tenants (public_id, organization_id, external_id, name)
SELECT $1::uuid, o.id, $3::text, $3::text FROM organizations o WHERE o.id = $2::int4 AND o.deleted_at IS NULL
ON CONFLICT (organization_id, external_id) DO NOTHING";

/// Uses `tenants_public_id_key`.
const LIST: &str = "
SELECT t.id, t.public_id, o.public_id, t.external_id, t.name, t.created_at
FROM tenants t LEFT JOIN organizations o ON o.id = t.organization_id
WHERE t.deleted_at IS NULL AND t.public_id < coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
ORDER BY t.public_id DESC LIMIT $2";

/// Sorts an organization's tenants: no index has them in this order. Uses `tenants_organization`.
const LIST_OF_ORGANIZATION: &str = "
SELECT t.id, t.public_id, o.public_id, t.external_id, t.name, t.created_at
FROM tenants t JOIN organizations o ON o.id = t.organization_id
WHERE t.organization_id = $1 AND t.deleted_at IS NULL
  AND (t.public_id < coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')) IS TRUE
ORDER BY t.public_id DESC LIMIT $3";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("tenants.create_organization", CREATE_ORGANIZATION),
    ("tenants.find_organization", FIND_ORGANIZATION),
    ("tenants.list_organizations", LIST_ORGANIZATIONS),
    ("tenants.create", CREATE_TENANT),
    ("tenants.find", FIND_TENANT),
    ("tenants.find_by_external_id", FIND_BY_EXTERNAL_ID),
    ("tenants.ensure_by_external_id", ENSURE_BY_EXTERNAL_ID),
    ("tenants.public_id", PUBLIC_ID),
    ("tenants.list", LIST),
    ("tenants.list_of_organization", LIST_OF_ORGANIZATION),
];

/// A SaaS company.
#[derive(Debug, Clone)]
pub struct Organization {
    /// The key inside.
    pub key: i32,
    /// The public id.
    pub id: Uuid,
    /// For people.
    pub name: String,
    /// Made at.
    pub created_at: OffsetDateTime,
}

/// One receiver side.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// The key inside.
    pub key: TenantKey,
    /// The public id.
    pub id: Uuid,
    /// The public id of its organization; `None`: it stands alone.
    pub organization: Option<Uuid>,
    /// The organization's own name for it.
    pub external_id: Option<String>,
    /// For people.
    pub name: String,
    /// Made at.
    pub created_at: OffsetDateTime,
}

/// Makes an organization.
///
/// # Errors
/// Any [`StoreError`].
pub async fn create_organization(
    client: &impl GenericClient,
    name: &str,
) -> Result<Organization, StoreError> {
    let row = client
        .query_one(CREATE_ORGANIZATION, &[&new_id(client).await?, &name])
        .await?;
    organization(&row)
}

/// Finds an organization by its public id.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find_organization(
    client: &impl GenericClient,
    id: Uuid,
) -> Result<Option<Organization>, StoreError> {
    let row = client.query_opt(FIND_ORGANIZATION, &[&id]).await?;
    row.as_ref().map(organization).transpose()
}

/// Organizations, newest first, those after `before`.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list_organizations(
    client: &impl GenericClient,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Organization>, StoreError> {
    client
        .query(LIST_ORGANIZATIONS, &[&before, &limit])
        .await?
        .iter()
        .map(organization)
        .collect()
}

/// Makes a tenant.
///
/// # Errors
/// [`StoreError::Conflict`] when the organization has one with this external id.
pub async fn create(
    client: &impl GenericClient,
    organization: Option<i32>,
    external_id: Option<&str>,
    name: &str,
) -> Result<Tenant, StoreError> {
    let row = client
        .query_one(
            CREATE_TENANT,
            &[&new_id(client).await?, &organization, &external_id, &name],
        )
        .await?;
    tenant(&row)
}

/// Finds a tenant by its public id; with `organization` only among that organization's.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find(
    client: &impl GenericClient,
    organization: Option<i32>,
    id: Uuid,
) -> Result<Option<Tenant>, StoreError> {
    let row = client.query_opt(FIND_TENANT, &[&id, &organization]).await?;
    row.as_ref().map(tenant).transpose()
}

/// A tenant's public id.
///
/// # Errors
/// Any [`StoreError`].
pub async fn public_id(
    client: &impl GenericClient,
    tenant: TenantKey,
) -> Result<Option<Uuid>, StoreError> {
    let row = client.query_opt(PUBLIC_ID, &[&tenant.0]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Finds a tenant by the organization's own name for it.
///
/// # Errors
/// Any [`StoreError`].
pub async fn find_by_external_id(
    client: &impl GenericClient,
    organization: i32,
    external_id: &str,
) -> Result<Option<(TenantKey, Uuid)>, StoreError> {
    let row = client
        .query_opt(FIND_BY_EXTERNAL_ID, &[&organization, &external_id])
        .await?;
    row.map(|row| Ok((TenantKey(row.try_get(0)?), row.try_get(1)?)))
        .transpose()
}

/// Finds a tenant by the organization's own name for it, or makes it, named like that.
///
/// # Errors
/// Any [`StoreError`].
pub async fn ensure_by_external_id(
    client: &impl GenericClient,
    organization: i32,
    external_id: &str,
) -> Result<(TenantKey, Uuid), StoreError> {
    if let Some(found) = find_by_external_id(client, organization, external_id).await? {
        return Ok(found);
    }
    client
        .execute(
            ENSURE_BY_EXTERNAL_ID,
            &[&new_id(client).await?, &organization, &external_id],
        )
        .await?;
    // A statement of its own: its snapshot sees what a parallel request has just made.
    find_by_external_id(client, organization, external_id)
        .await?
        .ok_or_else(|| StoreError::Contention("the tenant is being made".to_owned()))
}

/// Tenants, newest first, those after `before`; with `organization` only that organization's.
///
/// # Errors
/// Any [`StoreError`].
pub async fn list(
    client: &impl GenericClient,
    organization: Option<i32>,
    before: Option<Uuid>,
    limit: i64,
) -> Result<Vec<Tenant>, StoreError> {
    let rows = match organization {
        None => client.query(LIST, &[&before, &limit]).await?,
        Some(organization) => {
            let params: [&(dyn ToSql + Sync); 3] = [&organization, &before, &limit];
            client.query(LIST_OF_ORGANIZATION, &params).await?
        }
    };
    rows.iter().map(tenant).collect()
}

fn organization(row: &tokio_postgres::Row) -> Result<Organization, StoreError> {
    Ok(Organization {
        key: row.try_get(0)?,
        id: row.try_get(1)?,
        name: row.try_get(2)?,
        created_at: row.try_get(3)?,
    })
}

fn tenant(row: &tokio_postgres::Row) -> Result<Tenant, StoreError> {
    Ok(Tenant {
        key: TenantKey(row.try_get(0)?),
        id: row.try_get(1)?,
        organization: row.try_get(2)?,
        external_id: row.try_get(3)?,
        name: row.try_get(4)?,
        created_at: row.try_get(5)?,
    })
}
