//! TLS sessions, to be resumed at the next connection to the same host.
//!
//! # Invariants
//! - T1 of so many hosts something is remembered, and of no more: the one used least recently goes first.
//! - T2 a ticket of TLS 1.3 is handed out once, so that nobody who watches can link two connections.
//!
//! # Why
//! rustls' own store counts tickets, eight for a host, and every ticket carries the host's whole chain of
//! certificates: with a chain of 3 KiB 27 KiB for each host, where this one takes 4. One ticket is enough:
//! each connection brings a new one, and connections are used again.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

type Hosts = LruCache<ServerName<'static>, Kept>;

/// See the module.
pub(super) struct Sessions(Mutex<Hosts>);

/// What is kept of one host. In boxes, since a host speaks one version.
#[derive(Default)]
struct Kept {
    group: Option<NamedGroup>,
    tls12: Option<Box<Tls12ClientSessionValue>>,
    tls13: Option<Box<Tls13ClientSessionValue>>,
}

impl Sessions {
    /// Remembers nothing yet, and takes no room for it.
    pub(super) fn of(hosts: NonZeroUsize) -> Self {
        Self(Mutex::new(LruCache::sparse(hosts)))
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows no session: they are keys.
impl std::fmt::Debug for Sessions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Sessions")
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, host: ServerName<'static>, group: NamedGroup) {
        let mut hosts = self.hosts();
        hosts.get_or_insert_mut(host, Kept::default).group = Some(group);
    }

    fn kx_hint(&self, host: &ServerName<'_>) -> Option<NamedGroup> {
        self.hosts().get(&host.to_owned())?.group
    }

    fn set_tls12_session(&self, host: ServerName<'static>, session: Tls12ClientSessionValue) {
        let mut hosts = self.hosts();
        hosts.get_or_insert_mut(host, Kept::default).tls12 = Some(Box::new(session));
    }

    fn tls12_session(&self, host: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.hosts()
            .get(&host.to_owned())?
            .tls12
            .as_deref()
            .cloned()
    }

    fn remove_tls12_session(&self, host: &ServerName<'static>) {
        if let Some(kept) = self.hosts().peek_mut(host) {
            kept.tls12 = None;
        }
    }

    fn insert_tls13_ticket(&self, host: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut hosts = self.hosts();
        hosts.get_or_insert_mut(host, Kept::default).tls13 = Some(Box::new(ticket));
    }

    fn take_tls13_ticket(&self, host: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.hosts()
            .get_mut(host)?
            .tls13
            .take()
            .map(|ticket| *ticket)
    }
}

#[cfg(test)]
mod tests;
