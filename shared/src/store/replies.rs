//! Replies that are given again: POSTs, other than of events, that carry a key.
//!
//! Not here: events, whose replies are rebuilt ([`super::ingest`]); sealing.
//!
//! # Invariants
//! - One at a time: a row with a claim is one that runs. It ends with its reply, is given up, or
//!   expires, when its process died.
//! - S3: every statement names the owner.

use std::time::Duration;

use tokio_postgres::GenericClient;
use uuid::Uuid;

use super::StoreError;
use crate::domain::idempotency::IdempotencyKey;
use crate::ids::TenantKey;

/// Uses `idempotency_keys_pkey`; waits for whoever inserts the same key.
const CLAIM: &str = "
INSERT INTO idempotency_keys AS k (tenant_id, key, body_hash, claim, expires_at)
VALUES ($1, $2, $3, $4, now() + $5::float8 * interval '1 s')
ON CONFLICT (tenant_id, key) DO UPDATE
SET body_hash = excluded.body_hash, claim = excluded.claim, expires_at = excluded.expires_at, event_id = NULL, reply = NULL
WHERE k.expires_at <= now()";

/// As [`CLAIM`], of a batch of events, each of which has its own key too: nothing runs out before.
const CLAIM_BATCH: &str = "
INSERT INTO idempotency_keys AS k (tenant_id, key, body_hash, expires_at)
VALUES ($1, $2, $3, now() + interval '24 h')
ON CONFLICT (tenant_id, key) DO UPDATE
SET body_hash = excluded.body_hash, expires_at = excluded.expires_at, event_id = NULL, reply = NULL, claim = NULL
WHERE k.expires_at <= now()";

/// Uses `idempotency_keys_pkey`.
const FIND: &str =
    "SELECT body_hash = $3, reply FROM idempotency_keys WHERE tenant_id = $1 AND key = $2";

/// Uses `idempotency_keys_pkey`. `event_id`: whose payload is in the reply, or what was answered to it.
const KEEP: &str = "
UPDATE idempotency_keys SET reply = $4, event_id = $5, claim = NULL, expires_at = now() + interval '24 h'
WHERE tenant_id = $1 AND key = $2 AND claim = $3";

/// Uses `idempotency_keys_pkey`.
const GIVE_UP: &str =
    "DELETE FROM idempotency_keys WHERE tenant_id = $1 AND key = $2 AND claim = $3";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("replies.claim", CLAIM),
    ("replies.claim_batch", CLAIM_BATCH),
    ("replies.find", FIND),
    ("replies.keep", KEEP),
    ("replies.give_up", GIVE_UP),
];

/// Whose keys: one of a tenant, of an organization's own requests, or of the operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHolder {
    /// By the tenant's key.
    Tenant(i32),
    /// By the organization's key.
    Organization(i32),
    /// The admin API.
    Operator,
}

impl KeyHolder {
    /// As it is stored in place of a tenant; keys begin with 1.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Tenant(key) => key,
            Self::Organization(key) => -key,
            Self::Operator => 0,
        }
    }
}

/// What a key stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed {
    /// Nothing until now: this request runs, under this claim.
    Ours(Uuid),
    /// The first one still runs.
    Running,
    /// It has answered with this, sealed; empty, if that was expunged.
    Answered(Vec<u8>),
    /// It was another request.
    Mismatch,
}

/// Claims a key for so long, or tells what it stands for. The request must have ended by then: another one with its key
/// begins anew.
///
/// # Errors
/// Any [`StoreError`].
pub async fn claim(
    client: &impl GenericClient,
    holder: KeyHolder,
    key: &IdempotencyKey,
    life: Duration,
) -> Result<Claimed, StoreError> {
    let (owner, fingerprint, claim) = (holder.code(), &key.fingerprint[..], Uuid::new_v4());
    let seconds = life.as_secs_f64();
    let inserted = client
        .execute(
            CLAIM,
            &[&owner, &key.stored, &fingerprint, &claim, &seconds],
        )
        .await?;
    if inserted == 1 {
        return Ok(Claimed::Ours(claim));
    }
    let found = client
        .query_opt(FIND, &[&owner, &key.stored, &fingerprint])
        .await?;
    // Gone: given up just now. The client asks again.
    let Some(row) = found else {
        return Ok(Claimed::Running);
    };
    if !row.try_get::<_, bool>(0)? {
        return Ok(Claimed::Mismatch);
    }
    let reply: Option<Vec<u8>> = row.try_get(1)?;
    Ok(reply.map_or(Claimed::Running, Claimed::Answered))
}

/// Claims the key of a batch of events: whether it stands for this batch. The reply is that of the
/// batch's events, each of which is claimed by its place in it, with its event.
///
/// # Errors
/// Any [`StoreError`].
pub async fn claim_batch(
    client: &impl GenericClient,
    tenant: TenantKey,
    key: &IdempotencyKey,
) -> Result<bool, StoreError> {
    let fingerprint = &key.fingerprint[..];
    let inserted = client
        .execute(CLAIM_BATCH, &[&tenant.0, &key.stored, &fingerprint])
        .await?;
    if inserted == 1 {
        return Ok(true);
    }
    let row = client
        .query_opt(FIND, &[&tenant.0, &key.stored, &fingerprint])
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?.unwrap_or(true))
}

/// Ends a claim with a reply, which is given again for a day. Not, if the claim expired before. With the event whose
/// payload the reply shows, or what was answered to it.
///
/// # Errors
/// Any [`StoreError`].
pub async fn keep(
    client: &impl GenericClient,
    holder: KeyHolder,
    key: &IdempotencyKey,
    claim: Uuid,
    (reply, of_event): (&[u8], Option<Uuid>),
) -> Result<(), StoreError> {
    let owner = holder.code();
    client
        .execute(KEEP, &[&owner, &key.stored, &claim, &reply, &of_event])
        .await?;
    Ok(())
}

/// Ends a claim with nothing: the next request with the key runs.
///
/// # Errors
/// Any [`StoreError`].
pub async fn give_up(
    client: &impl GenericClient,
    holder: KeyHolder,
    key: &IdempotencyKey,
    claim: Uuid,
) -> Result<(), StoreError> {
    client
        .execute(GIVE_UP, &[&holder.code(), &key.stored, &claim])
        .await?;
    Ok(())
}
