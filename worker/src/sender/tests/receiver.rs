//! A receiver on a free port of this machine that does to each connection what its script says.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub(super) struct Receiver {
    pub(super) addr: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    /// Runs `script` for each connection, with its number from 0.
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    pub(super) async fn start<F, S>(script: S) -> Self
    where
        S: Fn(Connection, usize) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(Connection(stream), number));
            }
        });
        Self { addr, connections }
    }

    /// Answers every request on every connection with these bytes.
    pub(super) async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::start(move |mut connection, _| {
            let answer = Arc::clone(&answer);
            async move {
                while connection.request().await.is_some() {
                    connection.say(&answer).await;
                }
            }
        })
        .await
    }

    pub(super) fn url(&self) -> reqwest::Url {
        format!("http://{}/path?a=b", self.addr).parse().unwrap()
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

pub(super) struct Connection(pub(super) TcpStream);

impl Connection {
    /// The bytes of the next request, head and body; `None` at the end of the connection.
    pub(super) async fn request(&mut self) -> Option<Vec<u8>> {
        read_request(&mut self.0).await
    }

    /// Writes; a peer that has gone is not this script's concern.
    pub(super) async fn say(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.0.write_all(bytes.as_ref()).await.is_ok()
    }

    /// Waits until the other side has closed.
    pub(super) async fn closed(&mut self) {
        let mut rest = [0; 4_096];
        while !matches!(self.0.read(&mut rest).await, Ok(0) | Err(_)) {}
    }
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec())
        .unwrap()
        .to_lowercase();
    let length: usize = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |value| value.parse().unwrap());
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(bytes)
}

pub(super) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A certificate authority of one test.
pub(super) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        let issuer = rcgen::Issuer::new(parameters, key);
        Self {
            issuer,
            certificate,
        }
    }

    pub(super) fn trusted(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        roots
    }

    /// A server's side of TLS with a certificate for `name` that ends at `not_after`.
    fn acceptor(&self, name: &str, not_after: time::OffsetDateTime) -> TlsAcceptor {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.not_after = not_after;
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A receiver that answers [`OK`] over TLS.
    pub(super) async fn receiver(&self, name: &str, not_after: time::OffsetDateTime) -> Receiver {
        let acceptor = self.acceptor(name, not_after);
        Receiver::start(move |connection, _| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(connection.0).await {
                    answer_ok(stream).await;
                }
            }
        })
        .await
    }
}

async fn answer_ok(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    while read_request(&mut stream).await.is_some() {
        if stream.write_all(OK.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}
