//! Opens connections: look-up, address policy, TCP, perhaps a proxy, TLS.
//!
//! # Invariants
//! - S1 judged is the very address that is dialled next, literals and names alike: a name that was
//!   public when its endpoint was saved and is private now leads nowhere. Through a proxy the address
//!   is what we ask the proxy for; it never sees the name.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use shared::policy::address::{AddressRules, vet};
use shared::policy::classify::{Phase, SendError};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use url::Host;

use super::exchange::Connection;
use super::explain;
use super::origin::Origin;
use super::proxy::Proxy;
use super::resolver::Resolver;
use super::tls;
use super::trace::Trace;

/// How long one address is tried alone before the next one is tried beside it (RFC 8305, 5 and 8).
const HEAD_START: Duration = Duration::from_millis(250);

/// The most addresses tried for one connection: what the time for connecting has room for.
const MOST_DIALLED: usize = 12;

/// The most addresses dialled at once for one connection: what is counted for each request when a worker
/// asks how many files it may have open. Where a fourth begins, the first has had three head starts.
pub const MOST_AT_ONCE: usize = 3;

/// See the module.
pub(super) struct Dialer {
    pub(super) resolver: Resolver,
    pub(super) rules: AddressRules,
    /// `None`: nobody is trusted.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) proxy: Option<Proxy>,
    /// How long a connection is used.
    pub(super) max_age: Duration,
    /// Connections begun: each begins at another address.
    pub(super) turn: AtomicUsize,
}

impl Dialer {
    /// A connection to an origin, ready for its first request. The caller bounds the time.
    pub(super) async fn connect(
        &self,
        origin: &Origin,
        trace: &mut Trace,
    ) -> Result<Connection, SendError> {
        let tls = self.tls_for(origin)?;
        let addresses = self.addresses(origin, trace).await?;
        // From here on and not from when it is open: it is the address that gets old.
        let old_at = Instant::now() + self.max_age;
        trace.enter(Phase::Connect);
        let (stream, address) = match &self.proxy {
            None => race(&addresses, origin.port, trace).await?,
            Some(proxy) => {
                let tunnel = proxy.tunnel(&self.resolver, &addresses, origin.port, trace);
                tunnel.await?
            }
        };
        let Some(tls) = tls else {
            trace.enter(Phase::Response);
            return Connection::http1(stream, address, old_at).await;
        };
        trace.enter(Phase::Tls);
        let connecting = TlsConnector::from(tls).connect(server_name(&origin.host)?, stream);
        let stream = connecting
            .await
            .map_err(|error| explain::handshake(&error))?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        trace.enter(Phase::Response);
        if http2 {
            Connection::http2(stream, address, old_at).await
        } else {
            Connection::http1(stream, address, old_at).await
        }
    }

    fn tls_for(&self, origin: &Origin) -> Result<Option<Arc<ClientConfig>>, SendError> {
        if !origin.secure {
            return Ok(None);
        }
        let Some(base) = &self.tls else {
            return Err(SendError::Tls(tls::NO_ROOTS.into()));
        };
        let config = match &origin.identity {
            Some(identity) => identity.config(base),
            None => base,
        };
        Ok(Some(Arc::clone(config)))
    }

    /// The addresses that may be dialled, in the order to try them.
    async fn addresses(
        &self,
        origin: &Origin,
        trace: &mut Trace,
    ) -> Result<Vec<IpAddr>, SendError> {
        let found: Arc<[IpAddr]> = match &origin.host {
            Host::Ipv4(address) => Arc::new([IpAddr::V4(*address)]),
            Host::Ipv6(address) => Arc::new([IpAddr::V6(*address)]),
            Host::Domain(name) => {
                trace.enter(Phase::Dns);
                let found = self.resolver.addresses(name).await;
                found.map_err(|failed| failed.explained(|text| SendError::Dns(text.into())))?
            }
        };
        let vetted = vet(&found, &self.rules).map_err(SendError::AddressDenied)?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Ok(in_turn(vetted.into_addresses(), turn))
    }
}

/// Both families by turns, so that one that leads nowhere costs one head start (RFC 8305, 4); each
/// time another one first, so that an address that accepts and stays silent is not met every time.
fn in_turn(addresses: Vec<IpAddr>, turn: usize) -> Vec<IpAddr> {
    let (v6, v4): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let mut order = Vec::with_capacity(v6.len() + v4.len());
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    loop {
        let before = order.len();
        order.extend(v6.next());
        order.extend(v4.next());
        if order.len() == before {
            break;
        }
    }
    let first = turn.checked_rem(order.len()).unwrap_or(0);
    order.rotate_left(first);
    order.truncate(MOST_DIALLED);
    order
}

/// The first connection that comes about. The next address is dialled when one fails, and beside the
/// others when they take long; the one dialled first is given up where too many would be under way.
pub(super) async fn race(
    addresses: &[IpAddr],
    port: u16,
    trace: &mut Trace,
) -> Result<(TcpStream, IpAddr), SendError> {
    let mut waiting = addresses.iter().copied();
    let mut dialling = Dials::default();
    let mut failed = None;
    loop {
        if let Some(address) = waiting.next() {
            trace.dials(address);
            dialling.begin(address, port);
        }
        let others_wait = waiting.len() > 0;
        let ended = tokio::select! {
            ended = poll_fn(|context| dialling.poll_first(context)) => ended,
            () = tokio::time::sleep(HEAD_START), if others_wait => continue,
        };
        match (ended, failed) {
            (Some(Ok(connected)), _) => return Ok(connected),
            // What we could not try says more than what another address did: the receiver may be well.
            (Some(Err(error)), None | Some(SendError::Connect(_))) => failed = Some(error),
            (Some(Err(_)), before @ Some(_)) => failed = before,
            (None, None) => return Err(SendError::Connect(io::ErrorKind::AddrNotAvailable)),
            (None, Some(error)) => return Err(error),
        }
    }
}

type Dialled = Result<(TcpStream, IpAddr), SendError>;

/// The dials under way, the oldest first.
#[derive(Default)]
struct Dials(VecDeque<Pin<Box<dyn Future<Output = Dialled> + Send>>>);

impl Dials {
    fn begin(&mut self, address: IpAddr, port: u16) {
        if self.0.len() == MOST_AT_ONCE {
            self.0.pop_front();
        }
        self.0.push_back(Box::pin(dial(address, port)));
    }

    /// What the next one to end came to; `None` where none is under way.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Option<Dialled>> {
        for place in 0..self.0.len() {
            let Some(dial) = self.0.get_mut(place) else {
                break;
            };
            if let Poll::Ready(dialled) = dial.as_mut().poll(context) {
                drop(self.0.remove(place));
                return Poll::Ready(Some(dialled));
            }
        }
        if self.0.is_empty() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}

async fn dial(address: IpAddr, port: u16) -> Dialled {
    let connecting = TcpStream::connect(SocketAddr::new(address, port)).await;
    let stream = connecting.map_err(|error| explain::no_connection(&error, address))?;
    // A request is written at once; the last part of it must not wait for an acknowledgement. A
    // connection that has broken already says so when it is used.
    let _set = stream.set_nodelay(true);
    Ok((stream, address))
}

fn server_name(host: &Host<String>) -> Result<ServerName<'static>, SendError> {
    match host {
        Host::Ipv4(address) => Ok(ServerName::from(IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(IpAddr::V6(*address))),
        Host::Domain(name) => ServerName::try_from(name.clone())
            .map_err(|_invalid| SendError::Tls("the host name cannot be one in TLS".into())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn list(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn no_more_are_dialled_at_once_than_are_counted_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut dials = Dials::default();
        for last in 1..=12 {
            dials.begin([127, 0, 0, last].into(), port);
            assert!(dials.0.len() <= MOST_AT_ONCE);
        }

        let mut failed = Vec::new();
        while let Some(ended) = poll_fn(|context| dials.poll_first(context)).await {
            failed.push(ended.unwrap_err());
        }
        let refused = SendError::Connect(io::ErrorKind::ConnectionRefused);
        assert_eq!(
            failed,
            [refused.clone(), refused.clone(), refused],
            "the last three"
        );
    }

    #[test]
    fn families_take_turns_and_each_connection_begins_elsewhere() {
        let found = list(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"]);
        let cases = [
            (0, ["fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]),
            (1, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"]),
            (3, ["10.0.0.3", "fd00::1", "10.0.0.1", "10.0.0.2"]),
            (4, ["fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ];
        for (turn, expected) in cases {
            assert_eq!(in_turn(found.clone(), turn), list(&expected), "{turn}");
        }
        assert_eq!(in_turn(Vec::new(), 7), Vec::<IpAddr>::new());
        let many = vec![IpAddr::from([10, 0, 0, 1]); 100];
        assert_eq!(in_turn(many, 0).len(), MOST_DIALLED);
    }
}
