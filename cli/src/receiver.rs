//! A receiver of deliveries: what `postrider listen` and the demo of `postrider dev` run.
//!
//! It answers first and leaves the rest to whoever reads the channel, as a receiver should. Not for
//! production and not fast: it keeps whole requests in memory, a bounded number of them.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use shared::runtime::clock::wall_time;
use shared::runtime::program::Failure;
use shared::runtime::spawn_driver;
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::signature::{self, Keys, Verdict};

/// How far a request's timestamp may be from our clock: what the specification suggests.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(300);
/// The largest body: far above the largest payload an API can be told to accept.
const LARGEST_BODY: usize = 16 << 20;
/// Deliveries that wait to be printed; more are answered with 503, so that they come again.
const WAITING: usize = 256;
/// How long requests under way may take at the end, in seconds.
const LAST_REQUESTS_SECONDS: u64 = 2;

/// A request that came in.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) at: OffsetDateTime,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
    pub(crate) verdict: Verdict,
    pub(crate) answered: u16,
}

impl Received {
    /// The header with this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        signature::header(&self.headers, name)
    }
}

/// A bound address, from which nothing is taken yet.
#[derive(Debug)]
pub(crate) struct Receiver {
    listener: TcpListener,
    addr: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    keys: Keys,
    status: StatusCode,
    received: mpsc::Sender<Received>,
}

impl Receiver {
    /// Takes an address; port 0 takes a free port.
    pub(crate) fn bind(addr: SocketAddr) -> Result<Self, Failure> {
        let bound = TcpListener::bind(addr).and_then(|listener| {
            let addr = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(Self { listener, addr })
        });
        bound.map_err(|error| {
            Failure::Failed(format!(
                "the receiver cannot listen on {addr}: {error}; give another --port, or 0 for a free one"
            ))
        })
    }

    pub(crate) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Answers every request with `status` until `shutdown`; what came in is on the channel.
    pub(crate) fn serve(
        self,
        keys: Keys,
        status: StatusCode,
        shutdown: CancellationToken,
    ) -> Result<mpsc::Receiver<Received>, Failure> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let shared = Data::new(Shared {
            keys,
            status,
            received: sender,
        });
        let server = HttpServer::new(move || {
            App::new()
                .app_data(Data::clone(&shared))
                .app_data(web::PayloadConfig::new(LARGEST_BODY))
                .default_service(web::to(receive))
        })
        .workers(1)
        .disable_signals()
        .shutdown_timeout(LAST_REQUESTS_SECONDS)
        .listen(self.listener)
        .map_err(|error| Failure::Failed(format!("the receiver cannot start: {error}")))?
        .run();
        let handle = server.handle();
        spawn_driver(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the receiver ended");
            }
        });
        spawn_driver(async move {
            shutdown.cancelled().await;
            handle.stop(true).await;
        });
        Ok(receiver)
    }
}

async fn receive(request: HttpRequest, body: Bytes, shared: Data<Shared>) -> HttpResponse {
    let headers = texts(request.headers());
    let at = wall_time();
    let verdict = signature::check(
        &shared.keys,
        &headers,
        &body,
        at.unix_timestamp(),
        TOLERANCE,
    );
    // A request that is not ours is refused, as a real receiver would.
    let status = match verdict {
        Verdict::Invalid(_) => StatusCode::UNAUTHORIZED,
        Verdict::Valid | Verdict::Unchecked => shared.status,
    };
    let received = Received {
        at,
        method: request.method().to_string(),
        path: request.uri().to_string(),
        headers,
        body,
        verdict,
        answered: status.as_u16(),
    };
    if shared.received.try_send(received).is_err() {
        return HttpResponse::ServiceUnavailable().finish();
    }
    HttpResponse::build(status).finish()
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect()
}

/// A status code from its number.
pub(crate) fn status(code: u16) -> Result<StatusCode, String> {
    match code {
        200..=599 => StatusCode::from_u16(code).map_err(|error| error.to_string()),
        _ => Err("expected a status from 200 to 599".to_owned()),
    }
}

/// Keys from their texts.
pub(crate) fn keys(texts: &[String]) -> Result<Keys, Failure> {
    Keys::parse(texts).map_err(Failure::Configuration)
}
