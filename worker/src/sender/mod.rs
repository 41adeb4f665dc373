//! One HTTP request to an endpoint: vetted address, one deadline, capped answer.
//!
//! Not here: what to send to whom (`deliver`), what the result means (`classify`), and retries of
//! any kind; redirects, proxies from the environment and content decoding are off.
//!
//! # Invariants
//! - S1 bytes go only to vetted addresses: literals are judged here (a resolver never sees them),
//!   names by [`resolver`] at the moment they are dialled.
//! - S2 no error names a URL, a header or a payload.
//! - P1 the body goes out as it came in.
//!
//! # Why
//! One deadline covers everything from the name's look-up to the answer's last byte: a timeout per
//! read starts anew with each byte of a receiver that drips. HTTP/1.1 only: multiplexing saves
//! connections, not time, and a GOAWAY leaves it open which requests were seen.

mod headers;
mod lookups;
mod resolver;
mod response;
mod tls;
mod trace;

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use reqwest::Url;
use rustls::RootCertStore;
use shared::policy::address::{AddressRules, vet_literal};
use shared::policy::classify::{SendError, SendResult};
use tokio::time::{Instant, timeout_at};

pub use self::headers::{Stamp, headers_for, own_headers};
use self::resolver::VettingResolver;
pub use self::trace::Timings;
use self::trace::{ConnectLayer, Trace};

/// How long a connection may take, DNS and TLS included. Long enough for one lost SYN (1 + 2 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an unused connection is kept: shorter than what receivers commonly allow (60 s), or a
/// request would often meet a connection that is being closed (*maybe sent*).
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// What a sender is made from.
#[derive(Debug)]
pub struct SenderSettings {
    /// The ranges that the operator opened.
    pub rules: AddressRules,
    /// Unused connections kept per host.
    pub max_idle_per_host: usize,
    /// Whom to trust in TLS; `None`: whom this machine trusts.
    pub roots: Option<RootCertStore>,
}

impl Default for SenderSettings {
    fn default() -> Self {
        Self {
            rules: AddressRules::default(),
            max_idle_per_host: 32,
            roots: None,
        }
    }
}

/// Why there is no sender.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(#[from] reqwest::Error),
}

/// One request.
#[derive(Debug)]
pub struct OutboundRequest {
    /// Where to.
    pub url: Url,
    /// All headers, from [`headers_for`].
    pub headers: HeaderMap,
    /// The bytes of the payload.
    pub body: Bytes,
    /// For everything, from now to the last byte of the answer.
    pub timeout: Duration,
}

/// Sends requests over a pool of connections. One for a whole process.
#[derive(Debug)]
pub struct Sender {
    client: reqwest::Client,
    rules: AddressRules,
    trusts_anyone: bool,
}

impl Sender {
    /// A sender. Reads this machine's trusted certificates unless given others.
    ///
    /// # Errors
    /// If TLS or the HTTP client cannot be set up. A machine without certificates is no error: it
    /// sends to `http://` and fails each request to `https://` with a clear text.
    pub fn new(settings: SenderSettings) -> Result<Self, SenderError> {
        let roots = settings.roots.unwrap_or_else(tls::native_roots);
        let trusts_anyone = !roots.is_empty();
        let client = reqwest::Client::builder()
            .http1_only()
            .tls_backend_preconfigured(tls::client_config(roots)?)
            .dns_resolver(VettingResolver::new(settings.rules.clone()))
            .connector_layer(ConnectLayer)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(settings.max_idle_per_host)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never().max_retries_per_request(0))
            .no_proxy()
            .build()?;
        Ok(Self {
            client,
            rules: settings.rules,
            trusts_anyone,
        })
    }

    /// Whether any certificate is trusted; without one, nothing can be sent to `https://`.
    #[must_use]
    pub fn trusts_anyone(&self) -> bool {
        self.trusts_anyone
    }

    /// Makes one request. Ends within its timeout, whatever the receiver does.
    pub async fn send(&self, request: OutboundRequest) -> (SendResult, Timings) {
        trace::scope(async {
            let result = self.exchange(request).await;
            (result, Trace::read(Trace::timings))
        })
        .await
    }

    async fn exchange(&self, request: OutboundRequest) -> SendResult {
        let deadline = Instant::now() + request.timeout;
        vet_literal(&request.url, &self.rules).map_err(SendError::AddressDenied)?;
        if !self.trusts_anyone && request.url.scheme() == "https" {
            return Err(SendError::Tls(tls::NO_ROOTS.into()));
        }
        Trace::read(|trace| trace.dials_literal(&request.url));
        let head = match timeout_at(deadline, self.client.execute(prepared(request))).await {
            Ok(Ok(head)) => head,
            Ok(Err(error)) => return Err(Trace::read(|trace| response::explain(&error, trace))),
            Err(_elapsed) => return Err(SendError::Timeout(Trace::read(Trace::phase))),
        };
        Trace::read(|trace| trace.answered(head.remote_addr()));
        Ok(response::read(head, deadline).await)
    }
}

fn prepared(request: OutboundRequest) -> reqwest::Request {
    let mut prepared = reqwest::Request::new(Method::POST, request.url);
    *prepared.headers_mut() = request.headers;
    *prepared.body_mut() = Some(request.body.into());
    prepared
}
