//! One HTTP request to an endpoint: vetted address, one deadline, capped answer.
//!
//! The path of one: [`Sender::send`] → a connection that waits (`pool`) or a new one (`connect`: look-up
//! in `resolver`, address policy, TCP or `proxy`, `tls`) → `exchange`, over HTTP/2 `line` → `response`, or
//! `explain` if there is none. Not here: what to send to whom (`deliver`) and what the result means (`classify`).
//!
//! # Invariants
//! - S1 bytes go only to vetted addresses, literals and names alike (`connect`).
//! - S2 no error names a URL, a header or a payload.
//! - P1 the body goes out as it came in.
//!
//! # Why
//! One deadline covers everything from the name's look-up to the answer's last byte: a timeout per
//! read starts anew with each byte of a receiver that drips. No retries of any kind, but for a request
//! that was certainly not processed. There is no code here that follows a redirect, inflates an answer
//! or reads a proxy from the environment. ADR 0013 says why the connections are our own.

mod connect;
mod exchange;
mod explain;
mod headers;
mod line;
mod origin;
mod paced;
mod pool;
mod proxy;
mod resolver;
mod response;
mod sessions;
mod streams;
mod tls;
mod trace;

#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use hyper::body::Incoming;
use rustls::RootCertStore;
use shared::fail_point;
use shared::policy::address::{AddressRules, vet_literal};
use shared::policy::classify::{SendError, SendResult};
use shared::runtime::budgets::CONNECT_TIMEOUT;
use shared::runtime::spawn_driver;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use self::connect::Dialer;
pub use self::connect::MOST_AT_ONCE;
pub use self::exchange::MAX_AGE;
use self::exchange::{Connection, Failure};
pub use self::headers::{Stamp, headers_for, own_headers};
use self::line::Line;
use self::origin::Origin;
use self::pool::{Limits, Shelves};
pub use self::proxy::Proxy;
use self::resolver::Resolver;
pub use self::resolver::{MOST_LOOKUP_SOCKETS, ResolverError, ResolverSettings};
pub use self::tls::{ClientIdentity, trusted};
pub use self::trace::Timings;
use self::trace::Trace;

/// How often connections that are not good any more are looked for.
const SWEEP: Duration = Duration::from_secs(1);

/// The most connections tried for one request that none of them processed.
const MOST_TRIES: usize = 3;

/// What a sender is made from.
#[derive(Debug)]
pub struct SenderSettings {
    /// The ranges that the operator opened.
    pub rules: AddressRules,
    /// Connections kept for the next request to one origin, those of HTTP/2 that are in use included.
    pub max_idle_per_host: usize,
    /// The same in all; the one unused for longest goes first.
    pub max_idle: usize,
    /// How long a connection is used. With the time that a name's addresses are believed it says how soon a
    /// receiver that moved is followed.
    pub max_age: Duration,
    /// Whom to trust in TLS, from [`trusted`].
    pub roots: RootCertStore,
    /// The only proxy ever used.
    pub proxy: Option<Proxy>,
    /// Who looks names up.
    pub resolver: ResolverSettings,
}

impl Default for SenderSettings {
    fn default() -> Self {
        Self {
            rules: AddressRules::default(),
            max_idle_per_host: 32,
            max_idle: 1_024,
            max_age: MAX_AGE,
            roots: RootCertStore::empty(),
            proxy: None,
            resolver: ResolverSettings::default(),
        }
    }
}

/// Why there is no sender.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The DNS client cannot be set up.
    #[error(transparent)]
    Dns(#[from] ResolverError),
}

/// One request.
#[derive(Debug)]
pub struct OutboundRequest {
    /// Its method.
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// All headers, from [`headers_for`].
    pub headers: HeaderMap,
    /// The bytes of the payload.
    pub body: Bytes,
    /// For everything, from now to the last byte of the answer.
    pub timeout: Duration,
    /// Over a connection of its own: whether it arrived is certain then, as far as that can be.
    pub fresh: bool,
    /// The client certificate to show, if the receiver asks for one.
    pub identity: Option<Arc<ClientIdentity>>,
}

type Message = Request<Bytes>;
type Pool = Mutex<Shelves<Connection, Arc<Line>>>;

/// Sends requests over a pool of connections. One for a whole process.
pub struct Sender {
    dialer: Dialer,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Sender")
    }
}

impl Sender {
    /// A sender, to be made inside the runtime that it is used in.
    ///
    /// # Errors
    /// If TLS or the DNS client cannot be set up. That nobody is trusted is no error: then it sends to `http://` and
    /// fails each request to `https://` with a clear text.
    pub fn new(settings: SenderSettings) -> Result<Self, SenderError> {
        let limits = Limits {
            per_origin: settings.max_idle_per_host,
            in_all: settings.max_idle,
        };
        let pool = Arc::new(Mutex::new(Shelves::new(limits, Instant::now())));
        spawn_driver(sweep(Arc::downgrade(&pool)));
        Ok(Self {
            dialer: Dialer {
                resolver: Resolver::new(&settings.resolver)?,
                rules: settings.rules,
                tls: tls::client_config(settings.roots)?,
                proxy: settings.proxy,
                max_age: settings.max_age,
                turn: AtomicUsize::new(0),
            },
            pool,
        })
    }

    /// Makes one request. Ends within its timeout, whatever the receiver does.
    pub async fn send(&self, request: OutboundRequest) -> (SendResult, Timings) {
        let mut trace = Trace::start();
        let result = self.exchange(request, &mut trace).await;
        (result, trace.into_timings())
    }

    async fn exchange(&self, request: OutboundRequest, trace: &mut Trace) -> SendResult {
        let deadline = Instant::now() + request.timeout;
        vet_literal(&request.url, &self.dialer.rules).map_err(SendError::AddressDenied)?;
        let fresh = request.fresh;
        let (url, message, identity) = prepared(request)?;
        let origin = Arc::new(Origin::of(&url, identity)?);
        let to = (&url, &origin, fresh);
        let answered = timeout_at(deadline, self.answer(to, message, trace)).await;
        let (connection, head) = match answered {
            Ok(answered) => answered?,
            Err(_elapsed) => return Err(SendError::Timeout(trace.phase())),
        };
        trace.answered();
        let (response, ended) = response::read(head, &url, deadline).await;
        if ended {
            self.keep(&origin, connection);
        }
        Ok(response)
    }

    /// The head of an answer, and the connection that it came over: a new one, if `fresh`.
    async fn answer(
        &self,
        (url, origin, fresh): (&Url, &Arc<Origin>, bool),
        message: Message,
        trace: &mut Trace,
    ) -> Result<(Connection, http::Response<Incoming>), SendError> {
        let mut message = Some(message);
        let mut ended = SendError::NotSent;
        let mut refused = false;
        for _ in 0..MOST_TRIES {
            let waiting = if fresh {
                None
            } else {
                self.waiting_and_ready(origin).await
            };
            let mut connection = match waiting {
                Some(connection) => connection,
                None => self.connect(origin, trace).await?,
            };
            let used = connection.used;
            trace.sends_to(connection.address, used);
            // HTTP/2 alone needs the whole of it.
            let whole = connection.line().map(|_| uri(url.as_str())).transpose()?;
            match connection.send(&mut message, whole).await {
                Ok(head) => return Ok((connection, head)),
                // A new connection that ends at once was not closed for being idle: that is a failure. Over HTTP/2
                // it may have been recycled already (GOAWAY): hyper does not tell, so the next ones will.
                Err(Failure::NotTaken(error)) if !used => {
                    let untaken = explain::untaken(error.as_ref());
                    if connection.line().is_none() || untaken != SendError::Reset {
                        return Err(untaken);
                    }
                    if !refused {
                        ended = untaken;
                    }
                }
                // What the receiver said once holds: which of its connections told it is chance.
                Err(Failure::Refused) => (refused, ended) = (true, SendError::NotSent),
                Err(Failure::NotTaken(_)) => ended = SendError::NotSent,
                Err(Failure::Broken(error)) => return Err(explain::broken(&error, used)),
            }
        }
        Err(ended)
    }

    async fn waiting_and_ready(&self, origin: &Origin) -> Option<Connection> {
        loop {
            let mut waiting = self.waiting(origin)?;
            if waiting.is_ready().await {
                return Some(waiting);
            }
        }
    }

    async fn connect(
        &self,
        origin: &Arc<Origin>,
        trace: &mut Trace,
    ) -> Result<Connection, SendError> {
        let connecting = timeout(CONNECT_TIMEOUT, self.dialer.connect(origin, trace)).await;
        let connection = connecting.map_err(|_elapsed| SendError::Timeout(trace.phase()))??;
        fail_point!("worker.connected");
        if let Some(line) = connection.line() {
            let spent = self.pool().share(origin, Instant::now(), Arc::clone(line));
            drop(spent);
        }
        Ok(connection)
    }

    fn waiting(&self, origin: &Origin) -> Option<Connection> {
        let now = Instant::now();
        let mut spent = Vec::new();
        let mut pool = self.pool();
        let found = match pool.join(origin, now) {
            Some(line) => Some(Connection::on(line)),
            None => pool.take(origin, now, &mut spent),
        };
        drop(pool);
        found
    }

    /// Keeps a connection whose answer was read to its end.
    fn keep(&self, origin: &Arc<Origin>, connection: Connection) {
        if connection.line().is_some() {
            return;
        }
        let now = Instant::now();
        let good_until = connection.good_until(now);
        if now < good_until {
            let spent = self.pool().put(origin, now, good_until, connection);
            drop(spent);
        }
    }

    fn pool(&self) -> MutexGuard<'_, Shelves<Connection, Arc<Line>>> {
        lock(&self.pool)
    }
}

fn lock(pool: &Pool) -> MutexGuard<'_, Shelves<Connection, Arc<Line>>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes what nobody came for, as long as the sender lives.
async fn sweep(pool: Weak<Pool>) {
    let mut tick = tokio::time::interval(SWEEP);
    loop {
        tick.tick().await;
        let Some(pool) = pool.upgrade() else { return };
        let spent = lock(&pool).sweep(Instant::now());
        drop(spent);
    }
}

/// A request in the form of HTTP/1: the path alone, the host in a header.
fn prepared(
    request: OutboundRequest,
) -> Result<(Url, Message, Option<Arc<ClientIdentity>>), SendError> {
    let url = request.url;
    let path = match url.query() {
        Some(query) => uri(&[url.path(), "?", query].concat())?,
        None => uri(url.path())?,
    };
    let mut message = Request::new(request.body);
    *message.method_mut() = request.method;
    *message.uri_mut() = path;
    *message.headers_mut() = request.headers;
    Ok((url, message, request.identity))
}

fn uri(text: &str) -> Result<Uri, SendError> {
    Uri::try_from(text).map_err(|_shows_it| SendError::Internal("the URL cannot be sent"))
}
