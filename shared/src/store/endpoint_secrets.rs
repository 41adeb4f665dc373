//! The keys that an endpoint signs with: a secret, and a key pair if it asked for one; several of each
//! while a rotation overlaps.
//!
//! The current one is the newest and has no end. Not here: how a worker reads them
//! ([`super::endpoint_configs`]) and what seals them.
//!
//! # Invariants
//! - The endpoint's row is locked by whoever calls, so changes of its keys come one after the other.
//! - An end only ever moves forward to now, never back: a key that was to end soon does not live longer
//!   because another rotation came.
//! - At most [`MAX_LIVE`] keys of a kind are live.
//! - S2: keys come in and go out sealed.

use std::collections::HashMap;

use time::OffsetDateTime;
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::StoreError;
use crate::ids::EndpointKey;

/// The most live keys of a kind; a request carries a signature by each.
pub const MAX_LIVE: i64 = 8;

/// By `endpoint_secrets_endpoint`, as all of these.
const COUNT_LIVE: &str = "
SELECT count(*) FROM endpoint_secrets WHERE endpoint_id = $1 AND coalesce(expires_at > now(), true)";

/// What is over is not kept: an endpoint never has more than [`MAX_LIVE`] rows and those of one overlap.
const FORGET_SECRETS: &str =
    "DELETE FROM endpoint_secrets WHERE endpoint_id = $1 AND expires_at <= now()";
const FORGET_PAIRS: &str =
    "DELETE FROM endpoint_key_pairs WHERE endpoint_id = $1 AND expires_at <= now()";

/// `least` ignores NULL, the end of the current one.
const END_SECRETS: &str = "
UPDATE endpoint_secrets SET expires_at = least(expires_at, now() + $2::float8 * interval '1 s') WHERE endpoint_id = $1";
const END_PAIRS: &str = "
UPDATE endpoint_key_pairs SET expires_at = least(expires_at, now() + $2::float8 * interval '1 s') WHERE endpoint_id = $1";

const REVOKE_SECRETS: &str = "
DELETE FROM endpoint_secrets WHERE endpoint_id = $1 AND expires_at IS NOT NULL RETURNING expires_at > now()";
const REVOKE_PAIRS: &str = "
DELETE FROM endpoint_key_pairs WHERE endpoint_id = $1 AND expires_at IS NOT NULL RETURNING expires_at > now()";

const ADD_SECRET: &str = "INSERT INTO endpoint_secrets (endpoint_id, sealed) VALUES ($1, $2)";
const ADD_PAIR: &str =
    "INSERT INTO endpoint_key_pairs (endpoint_id, public_key, sealed) VALUES ($1, $2, $3)";

/// By `endpoint_key_pairs_endpoint`.
const HAS_PAIR: &str = "
SELECT EXISTS (SELECT FROM endpoint_key_pairs WHERE endpoint_id = $1 AND coalesce(expires_at > now(), true))";

/// By `endpoint_key_pairs_endpoint`; newest first.
const PUBLIC_KEYS: &str = "
SELECT k.endpoint_id, k.public_key
FROM unnest($1::int8[]) w(id) CROSS JOIN LATERAL (
  SELECT * FROM endpoint_key_pairs k WHERE k.endpoint_id = w.id AND coalesce(k.expires_at > now(), true)
  ORDER BY k.id DESC LIMIT 8) k
ORDER BY k.id DESC";

/// [`PUBLIC_KEYS`] of an endpoint that uses them, whoever asks: they are public. By `endpoints_public_id_key`.
const PUBLISHED: &str = "
SELECT k.public_key FROM endpoints e JOIN endpoint_key_pairs k ON k.endpoint_id = e.id
WHERE e.public_id = $1 AND e.state <> 3 AND e.settings->'signing' ? 'v1a' AND coalesce(k.expires_at > now(), true)
ORDER BY k.id DESC LIMIT 8";

/// Why endpoints are disabled, and when each of their live secrets was made and ends; newest first. By
/// `endpoints_pkey` and `endpoint_secrets_endpoint`.
const ABOUT: &str = "
SELECT e.id, CASE WHEN e.state = 2 THEN e.state_reason END, s.created_at, s.expires_at
FROM unnest($1::int8[]) w(id) JOIN endpoints e ON e.id = w.id
LEFT JOIN LATERAL (
  SELECT s.created_at, s.expires_at FROM endpoint_secrets s
  WHERE s.endpoint_id = e.id AND coalesce(s.expires_at > now(), true) ORDER BY s.id DESC LIMIT 8) s ON true
ORDER BY s.expires_at DESC NULLS FIRST";

/// The latest end of a key that a rotation replaced. By `endpoint_secrets_endpoint`.
const LAST_END: &str =
    "SELECT max(expires_at) FROM endpoint_secrets WHERE endpoint_id = $1 AND expires_at > now()";

/// Every statement here, for the test that prepares them.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("endpoint_secrets.count_live", COUNT_LIVE),
    ("endpoint_secrets.forget_secrets", FORGET_SECRETS),
    ("endpoint_secrets.forget_pairs", FORGET_PAIRS),
    ("endpoint_secrets.end_secrets", END_SECRETS),
    ("endpoint_secrets.end_pairs", END_PAIRS),
    ("endpoint_secrets.revoke_secrets", REVOKE_SECRETS),
    ("endpoint_secrets.revoke_pairs", REVOKE_PAIRS),
    ("endpoint_secrets.add_secret", ADD_SECRET),
    ("endpoint_secrets.add_pair", ADD_PAIR),
    ("endpoint_secrets.has_pair", HAS_PAIR),
    ("endpoint_secrets.public_keys", PUBLIC_KEYS),
    ("endpoint_secrets.published", PUBLISHED),
    ("endpoint_secrets.about", ABOUT),
    ("endpoint_secrets.last_end", LAST_END),
];

/// A new key pair: its public half, and its seed sealed under [`pair_context`].
#[derive(Debug, Clone, Copy)]
pub struct NewPair<'a> {
    /// 32 bytes.
    pub public_key: &'a [u8],
    /// Its other half.
    pub sealed: &'a [u8],
}

/// What is shown of an endpoint and not part of its row's document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Why it is disabled, in words.
    pub disabled_reason: Option<String>,
    /// When each live secret was made and when it ends, the current one (without an end) first.
    pub secrets: Vec<(OffsetDateTime, Option<OffsetDateTime>)>,
}

/// What a secret is sealed for.
#[must_use]
pub fn secret_context(endpoint: Uuid) -> String {
    format!("secret:{endpoint}")
}

/// What the seed of a key pair is sealed for: not the same, so that neither is ever used as the other.
#[must_use]
pub fn pair_context(endpoint: Uuid) -> String {
    format!("key_pair:{endpoint}")
}

/// What came of a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotated {
    /// The new key signs, and so do those before it until then.
    Done {
        /// When the last of them ends; `None`: none is left.
        last_end: Option<OffsetDateTime>,
    },
    /// [`MAX_LIVE`] are live already. Nothing was changed.
    TooMany,
}

/// Makes the new secret, and the new pair, current; those before end after `overlap_seconds`, or when they
/// were to end anyway.
///
/// # Errors
/// Any [`StoreError`].
pub async fn rotate(
    transaction: &Transaction<'_>,
    endpoint: EndpointKey,
    overlap_seconds: u32,
    (sealed_secret, pair): (&[u8], Option<NewPair<'_>>),
) -> Result<Rotated, StoreError> {
    let row = transaction.query_one(COUNT_LIVE, &[&endpoint.0]).await?;
    if overlap_seconds > 0 && row.try_get::<_, i64>(0)? >= MAX_LIVE {
        return Ok(Rotated::TooMany);
    }
    let overlap = f64::from(overlap_seconds);
    for end in [END_SECRETS, END_PAIRS] {
        transaction.execute(end, &[&endpoint.0, &overlap]).await?;
    }
    for forget in [FORGET_SECRETS, FORGET_PAIRS] {
        transaction.execute(forget, &[&endpoint.0]).await?;
    }
    add_secret(transaction, endpoint, sealed_secret).await?;
    if let Some(pair) = pair {
        add_pair(transaction, endpoint, pair).await?;
    }
    let row = transaction.query_one(LAST_END, &[&endpoint.0]).await?;
    Ok(Rotated::Done {
        last_end: row.try_get(0)?,
    })
}

/// Ends every key but the current ones now; how many were live.
///
/// # Errors
/// Any [`StoreError`].
pub async fn revoke(
    transaction: &Transaction<'_>,
    endpoint: EndpointKey,
) -> Result<usize, StoreError> {
    let mut live = 0;
    for revoke in [REVOKE_SECRETS, REVOKE_PAIRS] {
        for row in transaction.query(revoke, &[&endpoint.0]).await? {
            live += usize::from(row.try_get::<_, bool>(0)?);
        }
    }
    Ok(live)
}

/// Adds a secret, sealed under [`secret_context`].
///
/// # Errors
/// Any [`StoreError`].
pub async fn add_secret(
    transaction: &Transaction<'_>,
    endpoint: EndpointKey,
    sealed: &[u8],
) -> Result<(), StoreError> {
    transaction
        .execute(ADD_SECRET, &[&endpoint.0, &sealed])
        .await?;
    Ok(())
}

/// Adds a key pair.
///
/// # Errors
/// Any [`StoreError`].
pub async fn add_pair(
    transaction: &Transaction<'_>,
    endpoint: EndpointKey,
    pair: NewPair<'_>,
) -> Result<(), StoreError> {
    transaction
        .execute(ADD_PAIR, &[&endpoint.0, &pair.public_key, &pair.sealed])
        .await?;
    Ok(())
}

/// Whether an endpoint has a key pair, used or not.
///
/// # Errors
/// Any [`StoreError`].
pub async fn has_pair(
    client: &impl GenericClient,
    endpoint: EndpointKey,
) -> Result<bool, StoreError> {
    let row = client.query_one(HAS_PAIR, &[&endpoint.0]).await?;
    Ok(row.try_get(0)?)
}

/// The live public keys of endpoints, the current one first.
///
/// # Errors
/// Any [`StoreError`].
pub async fn public_keys(
    client: &impl GenericClient,
    endpoints: &[EndpointKey],
) -> Result<HashMap<EndpointKey, Vec<Vec<u8>>>, StoreError> {
    let mut found: HashMap<EndpointKey, Vec<Vec<u8>>> = HashMap::new();
    if endpoints.is_empty() {
        return Ok(found);
    }
    let keys: Vec<i64> = endpoints.iter().map(|key| key.0).collect();
    for row in client.query(PUBLIC_KEYS, &[&keys]).await? {
        let endpoint = EndpointKey(row.try_get(0)?);
        found.entry(endpoint).or_default().push(row.try_get(1)?);
    }
    Ok(found)
}

/// The live public keys of the endpoint with this public id, the current one first; none if there is no
/// such endpoint, or if it does not sign with them.
///
/// # Errors
/// Any [`StoreError`].
pub async fn published(client: &impl GenericClient, id: Uuid) -> Result<Vec<Vec<u8>>, StoreError> {
    let rows = client.query(PUBLISHED, &[&id]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// What is shown of endpoints besides their documents.
///
/// # Errors
/// Any [`StoreError`].
pub async fn about(
    client: &impl GenericClient,
    endpoints: &[EndpointKey],
) -> Result<HashMap<EndpointKey, About>, StoreError> {
    let mut found: HashMap<EndpointKey, About> = HashMap::new();
    let keys: Vec<i64> = endpoints.iter().map(|key| key.0).collect();
    for row in client.query(ABOUT, &[&keys]).await? {
        let about = found.entry(EndpointKey(row.try_get(0)?)).or_default();
        about.disabled_reason = row.try_get(1)?;
        if let Some(created_at) = row.try_get(2)? {
            about.secrets.push((created_at, row.try_get(3)?));
        }
    }
    Ok(found)
}
