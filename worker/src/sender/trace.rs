//! What one request went through, noted from inside the HTTP client: look-up, connection, TLS.
//!
//! The client has no hooks that know a request, but it connects inside the task that asked; so the
//! notes lie in a task-local. A connection that the client finishes in the background, because an
//! idle one came free first, runs outside of it and is not noted: then the request went over a
//! reused connection, which is what matters for *maybe sent*.

use std::cell::Cell;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use reqwest::Url;
use shared::policy::classify::Phase;
use shared::runtime::clock::{BootTime, boot_time};
use tower_layer::Layer;
use tower_service::Service;
use url::Host;

use super::CONNECT_TIMEOUT;

/// How long each part took. `None`: it did not happen, or did not end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Looking up the name.
    pub dns: Option<Duration>,
    /// The TCP connection.
    pub connect: Option<Duration>,
    /// The TLS handshake.
    pub tls: Option<Duration>,
    /// From the start to the head of the answer.
    pub first_byte: Option<Duration>,
    /// From the start to the end.
    pub total: Duration,
    /// The address dialled, when it is known for sure.
    pub addr: Option<IpAddr>,
}

/// The notes on one request.
pub(super) struct Trace {
    started: BootTime,
    lookup_started: Cell<Option<BootTime>>,
    lookup_ended: Cell<Option<BootTime>>,
    connect_started: Cell<Option<BootTime>>,
    handshake_started: Cell<Option<BootTime>>,
    connected: Cell<Option<BootTime>>,
    answered: Cell<Option<BootTime>>,
    addr: Cell<Option<IpAddr>>,
}

tokio::task_local! {
    static TRACE: Trace;
}

/// Runs a request with notes of its own.
pub(super) fn scope<F: Future>(request: F) -> impl Future<Output = F::Output> {
    TRACE.scope(Trace::start(), request)
}

impl Trace {
    fn start() -> Self {
        Self {
            started: boot_time(),
            lookup_started: Cell::new(None),
            lookup_ended: Cell::new(None),
            connect_started: Cell::new(None),
            handshake_started: Cell::new(None),
            connected: Cell::new(None),
            answered: Cell::new(None),
            addr: Cell::new(None),
        }
    }

    /// Uses the notes of this task's request; empty ones where there are none.
    pub(super) fn read<T>(use_notes: impl Fn(&Self) -> T) -> T {
        TRACE
            .try_with(|trace| use_notes(trace))
            .unwrap_or_else(|_in_the_background| use_notes(&Self::start()))
    }

    pub(super) fn lookup_started(&self) {
        self.lookup_started.set(Some(boot_time()));
    }

    pub(super) fn lookup_ended(&self) {
        self.lookup_ended.set(Some(boot_time()));
    }

    fn connect_started(&self) {
        self.connect_started.set(Some(boot_time()));
    }

    pub(super) fn handshake_started(&self) {
        self.handshake_started.set(Some(boot_time()));
    }

    fn connected(&self) {
        self.connected.set(Some(boot_time()));
    }

    pub(super) fn answered(&self, peer: Option<SocketAddr>) {
        self.answered.set(Some(boot_time()));
        if let Some(peer) = peer {
            self.dials(peer.ip());
        }
    }

    pub(super) fn dials(&self, address: IpAddr) {
        self.addr.set(Some(address));
    }

    pub(super) fn dials_literal(&self, url: &Url) {
        match url.host() {
            Some(Host::Ipv4(address)) => self.dials(address.into()),
            Some(Host::Ipv6(address)) => self.dials(address.into()),
            Some(Host::Domain(_)) | None => {}
        }
    }

    /// Whether the request went, or would have gone, over a connection made for it.
    pub(super) fn has_own_connection(&self) -> bool {
        self.connected.get().is_some()
    }

    /// What was under way at the end. A connection attempt that is older than any may be was
    /// overtaken by an idle connection and finished in the background.
    pub(super) fn phase(&self) -> Phase {
        let now = boot_time();
        let young = |at| now.since(at) <= CONNECT_TIMEOUT;
        if self.connect_started.get().is_some_and(young) && !self.has_own_connection() {
            self.connect_phase()
        } else {
            Phase::Response
        }
    }

    /// The part of connecting that was under way when it failed.
    pub(super) fn connect_phase(&self) -> Phase {
        if self.handshake_started.get().is_some() {
            Phase::Tls
        } else if self.lookup_started.get().is_some() && self.lookup_ended.get().is_none() {
            Phase::Dns
        } else {
            Phase::Connect
        }
    }

    pub(super) fn timings(&self) -> Timings {
        let between = |from: &Cell<Option<BootTime>>, to: &Cell<Option<BootTime>>| {
            Some(to.get()?.since(from.get()?))
        };
        let dialled = if self.lookup_ended.get().is_some() {
            &self.lookup_ended
        } else {
            &self.connect_started
        };
        let connected = if self.handshake_started.get().is_some() {
            &self.handshake_started
        } else {
            &self.connected
        };
        Timings {
            dns: between(&self.lookup_started, &self.lookup_ended),
            connect: between(dialled, connected),
            tls: between(&self.handshake_started, &self.connected),
            first_byte: self.answered.get().map(|at| at.since(self.started)),
            total: boot_time().since(self.started),
            addr: self.addr.get(),
        }
    }
}

/// Notes when a connection is begun and when it is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectLayer;

impl<S> Layer<S> for ConnectLayer {
    type Service = TracedConnector<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TracedConnector(inner)
    }
}

/// See [`ConnectLayer`].
#[derive(Debug, Clone)]
pub(super) struct TracedConnector<S>(S);

impl<S, Target> Service<Target> for TracedConnector<S>
where
    S: Service<Target>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: Target) -> Self::Future {
        Trace::read(Trace::connect_started);
        let connecting = self.0.call(target);
        Box::pin(async move {
            let connection = connecting.await?;
            Trace::read(Trace::connected);
            Ok(connection)
        })
    }
}
