//! Endpoints as a worker needs them: settings, URL and secrets as one versioned object.

use time::OffsetDateTime;
use tokio_postgres::Client;
use tokio_postgres::types::Timestamp;
use uuid::Uuid;

use super::StoreError;
use super::endpoint_runtime::{self, Runtime, runtime_columns};
use crate::domain::endpoint::{EndpointSettings, EndpointState};
use crate::ids::{EndpointId, EndpointKey};

/// By `endpoints_pkey`, `endpoint_secrets_endpoint`, `endpoint_key_pairs_endpoint` and `endpoint_runtime_pkey`. One snapshot, so
/// version and secrets agree.
const READ: &str = concat!(
    "
SELECT e.id, e.public_id, e.version, e.state, e.url, e.settings, e.sealed_headers,
       ARRAY(SELECT s.sealed FROM endpoint_secrets s WHERE s.endpoint_id = e.id AND coalesce(s.expires_at > now(), true)
             ORDER BY s.id DESC LIMIT 8),
       ARRAY(SELECT coalesce(s.expires_at, 'infinity') FROM endpoint_secrets s WHERE s.endpoint_id = e.id AND coalesce(s.expires_at > now(), true)
             ORDER BY s.id DESC LIMIT 8),
       ARRAY(SELECT k.sealed FROM endpoint_key_pairs k WHERE k.endpoint_id = e.id AND coalesce(k.expires_at > now(), true)
             ORDER BY k.id DESC LIMIT 8),
       ARRAY(SELECT coalesce(k.expires_at, 'infinity') FROM endpoint_key_pairs k WHERE k.endpoint_id = e.id AND coalesce(k.expires_at > now(), true)
             ORDER BY k.id DESC LIMIT 8),
       ARRAY(SELECT k.public_key FROM endpoint_key_pairs k WHERE k.endpoint_id = e.id AND coalesce(k.expires_at > now(), true)
             ORDER BY k.id DESC LIMIT 8),
       e.ordered, e.sealed_client_certificate, ",
    runtime_columns!(),
    "
FROM unnest($1::int8[]) w(id) CROSS JOIN LATERAL (SELECT * FROM endpoints e WHERE e.id = w.id OFFSET 0) e
LEFT JOIN LATERAL (SELECT * FROM endpoint_runtime r WHERE r.endpoint_id = e.id OFFSET 0) r ON true"
);

/// Every statement of this module, for the test that prepares them all.
pub const STATEMENTS: &[(&str, &str)] = &[("endpoint_configs::read", READ)];

/// Something to sign with, sealed, and its end if it has one.
pub type SealedKey = (Vec<u8>, Option<OffsetDateTime>);

/// One endpoint, with what is secret still sealed.
#[derive(Debug)]
pub struct StoredEndpoint {
    /// The key inside.
    pub key: EndpointKey,
    /// The id outside; also the context of its seals.
    pub id: EndpointId,
    /// Grows with every change.
    pub version: i32,
    /// Whether it takes deliveries.
    pub state: EndpointState,
    /// As stored.
    pub url: String,
    /// Limits and backoff; why they cannot be read, if so: a bug, or a newer program's row.
    pub settings: Result<EndpointSettings, String>,
    /// Own headers, sealed JSON `[[name, value], …]`.
    pub sealed_headers: Option<Vec<u8>>,
    /// Sealed JSON `{"certificate", "private_key"}`: what it shows in mutual TLS.
    pub sealed_client_certificate: Option<Vec<u8>>,
    /// Sealed secrets, the current one first.
    pub sealed_secrets: Vec<SealedKey>,
    /// Sealed seeds of key pairs, the current one first.
    pub sealed_key_pairs: Vec<SealedKey>,
    /// The public halves of them, in the same order: what receivers are shown.
    pub public_keys: Vec<Vec<u8>>,
    /// Whether its deliveries with an ordering key go one after the other.
    pub ordered: bool,
    /// What its last owner knew of it.
    pub runtime: Runtime,
}

/// Reads endpoints; ids that do not exist are left out.
///
/// # Errors
/// [`StoreError::Decode`] when one cannot be read; that is a bug or a newer program's row.
pub async fn read(
    client: &Client,
    keys: &[EndpointKey],
) -> Result<Vec<StoredEndpoint>, StoreError> {
    let keys: Vec<i64> = keys.iter().map(|key| key.0).collect();
    let rows = client.query(READ, &[&keys]).await?;
    rows.iter().map(read_row).collect()
}

fn read_row(row: &tokio_postgres::Row) -> Result<StoredEndpoint, StoreError> {
    let settings: serde_json::Value = row.try_get(5)?;
    let settings = serde_json::from_value(settings).map_err(|error| error.to_string());
    Ok(StoredEndpoint {
        key: EndpointKey(row.try_get(0)?),
        id: EndpointId(row.try_get::<_, Uuid>(1)?),
        version: row.try_get(2)?,
        state: EndpointState::try_from(row.try_get::<_, i16>(3)?)?,
        url: row.try_get(4)?,
        settings,
        sealed_headers: row.try_get(6)?,
        sealed_secrets: sealed_keys(row, 7)?,
        sealed_key_pairs: sealed_keys(row, 9)?,
        public_keys: row.try_get(11)?,
        ordered: row.try_get(12)?,
        sealed_client_certificate: row.try_get(13)?,
        runtime: endpoint_runtime::read(row, 14)?,
    })
}

/// Keys, and their ends in the column after them.
fn sealed_keys(row: &tokio_postgres::Row, column: usize) -> Result<Vec<SealedKey>, StoreError> {
    let sealed: Vec<Vec<u8>> = row.try_get(column)?;
    let ends: Vec<Timestamp<OffsetDateTime>> = row.try_get(column + 1)?;
    let ends = ends.into_iter().map(|end| match end {
        Timestamp::Value(at) => Some(at),
        Timestamp::PosInfinity | Timestamp::NegInfinity => None,
    });
    Ok(sealed.into_iter().zip(ends).collect())
}
