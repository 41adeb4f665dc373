//! The forward proxy of the operator: static addresses to the outside, the same address policy.
//!
//! Every connection goes through a tunnel (CONNECT, RFC 9110 9.3.6) to an address that was vetted
//! here. A proxy that is given names resolves them itself and would dial anything.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use shared::policy::classify::SendError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::{Host, Url};

use super::connect::race;
use super::resolver::{LookupFailed, Resolver};
use super::trace::Trace;

/// How long the proxy is waited for, and each address that it is asked for while there is another: it may be
/// waiting itself, for one that does not answer, and all of it shares the time for connecting.
const LONGEST_ASK: Duration = Duration::from_secs(2);

/// The longest answer to CONNECT that is read, in bytes.
const MAX_HEAD: usize = 8 * 1_024;
const MAX_HEADERS: usize = 64;

/// See the module. Holds a password: `Debug` shows none.
#[derive(Clone)]
pub struct Proxy {
    host: Host<String>,
    port: u16,
    authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Proxy")
    }
}

impl Proxy {
    /// From a URL such as `http://user:password@proxy.internal:3128`.
    ///
    /// # Errors
    /// What is wrong with it, without showing it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
        if url.scheme() != "http" {
            return Err("must begin with http:// (TLS goes through the tunnel)".to_owned());
        }
        let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let (Some(host), true) = (url.host(), plain) else {
            return Err("must be a host and a port, nothing more".to_owned());
        };
        let decoded = |part: &str| percent_decode_str(part).collect::<Vec<u8>>();
        let password = url.password().unwrap_or_default();
        let credentials = [decoded(url.username()), b":".to_vec(), decoded(password)].concat();
        Ok(Self {
            host: host.to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
            authorization: (credentials != b":").then(|| STANDARD.encode(credentials)),
        })
    }

    /// A tunnel to the first of these addresses that the proxy reaches. The proxy's own address is
    /// the operator's choice and not vetted.
    pub(super) async fn tunnel(
        &self,
        resolver: &Resolver,
        addresses: &[IpAddr],
        port: u16,
        trace: &mut Trace,
    ) -> Result<(TcpStream, IpAddr), SendError> {
        let proxy: Arc<[IpAddr]> = match &self.host {
            Host::Ipv4(address) => Arc::new([IpAddr::V4(*address)]),
            Host::Ipv6(address) => Arc::new([IpAddr::V6(*address)]),
            Host::Domain(name) => resolver.addresses(name).await.map_err(unresolved)?,
        };
        let mut failed = SendError::Proxy("no address to ask it for".into());
        for (&address, left) in addresses.iter().zip((0..addresses.len()).rev()) {
            let mut unseen = Trace::start();
            let reaching = timeout(LONGEST_ASK, race(&proxy, self.port, &mut unseen)).await;
            let silent = |_elapsed| SendError::ProxyAway("it does not answer".into());
            let (mut stream, _) = reaching.map_err(silent)?.map_err(no_way_to_it)?;
            trace.dials(address);
            let asking = self.ask(&mut stream, SocketAddr::new(address, port));
            let answer = if left == 0 {
                asking.await
            } else {
                let slow = SendError::Proxy("it was too slow to answer".into());
                timeout(LONGEST_ASK, asking).await.unwrap_or(Err(slow))
            };
            match answer {
                Ok(()) => return Ok((stream, address)),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn ask(&self, stream: &mut TcpStream, target: SocketAddr) -> Result<(), SendError> {
        let authorization = match &self.authorization {
            Some(credentials) => format!("Proxy-Authorization: Basic {credentials}\r\n"),
            None => String::new(),
        };
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
        let broken = |_error: std::io::Error| SendError::Proxy("it closed the connection".into());
        stream.write_all(request.as_bytes()).await.map_err(broken)?;
        let mut head = Vec::with_capacity(512);
        loop {
            if stream.read_buf(&mut head).await.map_err(broken)? == 0 {
                return Err(SendError::Proxy("it closed the connection".into()));
            }
            if let Some(verdict) = answer(&head) {
                return verdict;
            }
        }
    }
}

fn unresolved(failed: LookupFailed) -> SendError {
    failed.explained(|text| {
        SendError::ProxyAway(format!("its name could not be resolved: {text}").into())
    })
}

fn no_way_to_it(failed: SendError) -> SendError {
    if let SendError::NoSocket(short) = failed {
        return SendError::NoSocket(short);
    }
    SendError::ProxyAway("no connection to it".into())
}

/// What the proxy says, once its head is complete.
fn answer(head: &[u8]) -> Option<Result<(), SendError>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = match response.parse(head) {
        Ok(parsed) => parsed,
        Err(_) => return Some(Err(SendError::ProxyAway("its answer is not HTTP".into()))),
    };
    match (parsed, response.code) {
        (httparse::Status::Partial, _) if head.len() > MAX_HEAD => {
            Some(Err(SendError::ProxyAway("its answer is too long".into())))
        }
        (httparse::Status::Partial, _) => None,
        // Who speaks first through a tunnel is not whom we wanted to speak to.
        (httparse::Status::Complete(end), Some(200..=299)) if end < head.len() => {
            Some(Err(SendError::ProxyAway("its answer has a body".into())))
        }
        (httparse::Status::Complete(_), Some(200..=299)) => Some(Ok(())),
        (httparse::Status::Complete(_), Some(407)) => Some(Err(SendError::ProxyAway(
            "it wants other credentials than those in POSTRIDER_PROXY_URL (407)".into(),
        ))),
        (httparse::Status::Complete(_), code) => Some(Err(SendError::Proxy(
            format!("it opened no tunnel ({})", code.unwrap_or(0)).into(),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_host_and_a_port_and_shows_no_password() {
        let proxy = Proxy::parse("http://us%65r:p%40ss@proxy.example:3128").unwrap();
        assert_eq!(proxy.host, Host::Domain("proxy.example".to_owned()));
        assert_eq!(proxy.port, 3_128);
        assert_eq!(proxy.authorization.as_deref(), Some("dXNlcjpwQHNz"));
        assert_eq!(format!("{proxy:?}"), "Proxy");
        assert!(
            Proxy::parse("http://10.0.0.1")
                .unwrap()
                .authorization
                .is_none()
        );
        for bad in [
            "proxy:3128",
            "https://proxy.example",
            "socks5://proxy.example:1080",
            "http://proxy.example/path",
            "http://proxy.example/?a=b",
            "",
        ] {
            assert!(Proxy::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_2xx_without_anything_behind_it_is_a_tunnel() {
        let cases = [
            ("HTTP/1.1 200 OK\r\n\r\n", Some(true)),
            ("HTTP/1.0 204 X\r\nVia: a\r\n\r\n", Some(true)),
            ("HTTP/1.1 200 OK\r\n\r", None),
            ("HTTP/1.1 200 OK\r\n\r\nSSH-2.0", Some(false)),
            ("HTTP/1.1 403 No\r\n\r\n", Some(false)),
            ("HTTP/1.1 407 No\r\n\r\n", Some(false)),
            ("HTTP/1.1 502 No\r\n\r\n", Some(false)),
            ("SSH-2.0-x\r\n\r\n", Some(false)),
        ];
        for (head, expected) in cases {
            let verdict = answer(head.as_bytes());
            assert_eq!(verdict.map(|it| it.is_ok()), expected, "{head:?}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(MAX_HEAD));
        assert!(answer(endless.as_bytes()).unwrap().is_err());
    }
}
