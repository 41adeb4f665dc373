//! What a worker needs to know of an endpoint: settings, address and secrets as one versioned object.

use std::sync::Arc;

use shared::domain::endpoint::{EndpointSettings, EndpointState};
use shared::ids::{EndpointId, EndpointKey};
use shared::policy::signing::Secret;
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;

use crate::sender::ClientIdentity;

/// One version of an endpoint. Replaced as a whole when anything about it changes.
#[derive(Debug)]
pub struct EndpointConfig {
    /// The key inside.
    pub key: EndpointKey,
    /// The id outside; for logs.
    pub id: EndpointId,
    /// Recorded with every attempt.
    pub version: i32,
    /// Whether it takes deliveries.
    pub state: EndpointState,
    /// Limits and backoff.
    pub settings: EndpointSettings,
    /// Its events with an ordering key go one after the other.
    pub ordered: bool,
    /// What was stored of it when this was read: by an owner before, by the API or the statistics.
    pub runtime: Runtime,
    /// Its secrets, headers or settings cannot be read here: a wrong master key, or a newer program's
    /// row. Nothing is sent and nothing given up; its deliveries wait until it can be read, or expire.
    pub locked: bool,
    /// Where and how to send.
    pub target: Target,
}

/// Where an endpoint's requests go and what they carry. Holds credentials: `Debug` shows none.
pub struct Target {
    /// The URL, parsed once. `None` if the stored one cannot be used any more.
    pub url: Option<url::Url>,
    /// The endpoint's own headers.
    pub headers: http::HeaderMap,
    /// What it shows to a receiver that asks for a certificate.
    pub identity: Option<Arc<ClientIdentity>>,
    /// Live secrets, the current one first.
    pub secrets: Vec<SigningSecret>,
}

/// A secret and, after a rotation, the end of its overlap.
#[derive(Debug)]
pub struct SigningSecret {
    /// Redacted in `Debug`.
    pub secret: Secret,
    /// Not used from this instant on.
    pub expires_at: Option<OffsetDateTime>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Target").finish_non_exhaustive()
    }
}

/// Shared by all deliveries that were loaded under this version.
pub type SharedConfig = Arc<EndpointConfig>;
