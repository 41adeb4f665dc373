//! TLS: rustls on ring, this machine's trusted certificates, a session cache for many hosts.

use std::fmt;
use std::sync::Arc;

use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup, RootCertStore};

use super::trace::Trace;

/// Sessions remembered: resuming one costs a tenth of a full handshake.
const SESSIONS: usize = 65_536;

/// What a request to `https://` says when nobody is trusted.
pub(super) const NO_ROOTS: &str =
    "this worker's machine trusts no certificate authority: install ca-certificates";

/// The certificate authorities that this machine trusts; unreadable ones are left out.
pub(super) fn native_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a trusted certificate of this machine cannot be read");
    }
    let (_added, ignored) = roots.add_parsable_certificates(found.certs);
    if ignored > 0 {
        tracing::debug!(ignored, "trusted certificates that cannot be used");
    }
    roots
}

/// The client's side of TLS 1.2 and 1.3.
pub(super) fn client_config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::store(Arc::new(TracedSessions::new()));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A session cache that notes when a handshake asks it for a session: that is when it starts, and
/// nothing else between the connector and rustls tells.
struct TracedSessions(ClientSessionMemoryCache);

impl TracedSessions {
    fn new() -> Self {
        Self(ClientSessionMemoryCache::new(SESSIONS))
    }
}

impl fmt::Debug for TracedSessions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("TracedSessions")
    }
}

impl ClientSessionStore for TracedSessions {
    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        Trace::read(Trace::handshake_started);
        self.0.take_tls13_ticket(name)
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(name, value);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(name, value);
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.0.remove_tls12_session(name);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(name)
    }

    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(name, group);
    }
}
