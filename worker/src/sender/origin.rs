//! Whom a connection leads to: connections are used again only for the same origin.

use std::sync::Arc;

use shared::policy::classify::SendError;
use url::{Host, Url};

use super::tls::ClientIdentity;

/// Scheme, host and port (RFC 6454), and as whom we speak there: a connection on which one tenant
/// showed a client certificate is nobody else's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) secure: bool,
    pub(super) host: Host<String>,
    pub(super) port: u16,
    pub(super) identity: Option<Arc<ClientIdentity>>,
}

impl Origin {
    pub(super) fn of(url: &Url, identity: Option<Arc<ClientIdentity>>) -> Result<Self, SendError> {
        let host = url
            .host()
            .ok_or(SendError::Internal("the URL has no host"))?;
        let port = url
            .port_or_known_default()
            .ok_or(SendError::Internal("the URL has no port"))?;
        Ok(Self {
            secure: url.scheme() == "https",
            host: host.to_owned(),
            port,
            identity,
        })
    }
}
