//! A receiver on a free port of this machine that does to each connection what its script says.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub(super) struct Receiver {
    pub(super) addr: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    /// Runs `script` for each connection, with its number from 0.
    pub(super) async fn start<F, S>(script: S) -> Self
    where
        S: Fn(Connection, usize) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().unwrap(), script).await
    }

    /// The same at an address of the test's choice.
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    pub(super) async fn start_at<F, S>(address: SocketAddr, script: S) -> Self
    where
        S: Fn(Connection, usize) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
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
        Self::answering_at("127.0.0.1:0".parse().unwrap(), answer).await
    }

    /// The same at an address of the test's choice.
    pub(super) async fn answering_at(address: SocketAddr, answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<[u8]> = answer.into().into();
        Self::start_at(address, move |mut connection, _| {
            let answer = Arc::clone(&answer);
            async move {
                while connection.request().await.is_some() {
                    connection.say(&answer).await;
                }
            }
        })
        .await
    }

    pub(super) fn url(&self) -> url::Url {
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

pub(super) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
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

const OK_AND_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

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
        named(&mut parameters, "authority");
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

    /// An authority below this one.
    pub(super) fn intermediate(&self) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        named(&mut parameters, "intermediate");
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let issuer = rcgen::Issuer::new(parameters, key);
        Self {
            issuer,
            certificate,
        }
    }

    pub(super) fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }

    /// A certificate for `name` in PEM, with its key.
    pub(super) fn client(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A server's side of TLS with a certificate for `name`.
    fn served(&self, name: &str, change: impl FnOnce(&mut rcgen::CertificateParams)) -> Served {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        named(&mut parameters, name);
        change(&mut parameters);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Served {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    /// A receiver with a changed certificate for 127.0.0.1, and more behind it in its chain.
    pub(super) async fn receiver_with(
        &self,
        change: impl FnOnce(&mut rcgen::CertificateParams),
        more: Vec<CertificateDer<'static>>,
    ) -> Receiver {
        let mut served = self.served("127.0.0.1", change);
        served.chain.extend(more);
        tls_receiver(served.acceptor()).await
    }

    /// A receiver that answers [`OK`] over TLS.
    pub(super) async fn receiver(&self, name: &str) -> Receiver {
        tls_receiver(self.served(name, |_| {}).acceptor()).await
    }

    /// The same, for those alone who show a certificate of this authority.
    pub(super) async fn receiver_of_known(&self) -> Receiver {
        let roots = Arc::new(self.trusted());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let known = rustls::server::WebPkiClientVerifier::builder_with_provider(
            roots,
            Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let served = self.served("127.0.0.1", |_| {});
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(known)
            .with_single_cert(served.chain, served.key)
            .unwrap();
        tls_receiver(TlsAcceptor::from(Arc::new(config))).await
    }

    /// A receiver over one version of TLS that ends each connection after its first answer, says which
    /// kind of handshake each had, and asks for a certificate of this authority, but does without.
    pub(super) async fn receiver_of_one_request(
        &self,
        version: &'static rustls::SupportedProtocolVersion,
        kinds: mpsc::Sender<HandshakeKind>,
    ) -> Receiver {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let known = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.trusted()),
            Arc::clone(&provider),
        )
        .allow_unauthenticated()
        .build()
        .unwrap();
        let served = self.served("127.0.0.1", |_| {});
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(known)
            .with_single_cert(served.chain, served.key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Receiver::start(move |connection, _| {
            let (acceptor, kinds) = (acceptor.clone(), kinds.clone());
            async move {
                let mut stream = acceptor.accept(connection.0).await.unwrap();
                read_request(&mut stream).await.unwrap();
                let kind = stream.get_ref().1.handshake_kind();
                kinds.send(kind.unwrap()).await.unwrap();
                stream.write_all(OK_AND_CLOSE).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        })
        .await
    }

    /// A receiver that speaks HTTP/2 alone, as `script` says.
    pub(super) async fn receiver_of_http2<F, S>(&self, script: S) -> Receiver
    where
        S: Fn(Http2, usize) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.receiver_of_http2_with(h2::server::Builder::new(), script)
            .await
    }

    /// The same with settings of its own.
    pub(super) async fn receiver_of_http2_with<F, S>(
        &self,
        settings: h2::server::Builder,
        script: S,
    ) -> Receiver
    where
        S: Fn(Http2, usize) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.receiver_over_h2(move |stream, number| {
            let (settings, script) = (settings.clone(), script.clone());
            async move {
                if let Ok(connection) = settings.handshake(stream).await {
                    script(connection, number).await;
                }
            }
        })
        .await
    }

    /// A receiver that agrees on HTTP/2 and goes on as `script` says, byte by byte.
    pub(super) async fn receiver_over_h2<F, S>(&self, script: S) -> Receiver
    where
        S: Fn(TlsStream<TcpStream>, usize) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.receiver_of("127.0.0.1", "h2", script).await
    }

    /// A receiver for `name` that speaks this protocol inside TLS, as `script` says.
    pub(super) async fn receiver_of<F, S>(&self, name: &str, protocol: &str, script: S) -> Receiver
    where
        S: Fn(TlsStream<TcpStream>, usize) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut config = self.served(name, |_| {}).config();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Receiver::start(move |connection, number| {
            let (acceptor, script) = (acceptor.clone(), script.clone());
            async move {
                if let Ok(stream) = acceptor.accept(connection.0).await {
                    script(stream, number).await;
                }
            }
        })
        .await
    }
}

/// A connection of HTTP/2 to a receiver.
pub(super) type Http2 = h2::server::Connection<TlsStream<TcpStream>, Bytes>;

fn named(parameters: &mut rcgen::CertificateParams, name: &str) {
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
}

/// A receiver whose certificate vouches for itself.
pub(super) async fn self_signed_receiver() -> Receiver {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let served = Served {
        chain: vec![certificate.der().clone()],
        key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
    };
    tls_receiver(served.acceptor()).await
}

/// What a server shows and its key.
struct Served {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Served {
    fn config(self) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain, self.key)
            .unwrap()
    }

    fn acceptor(self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.config()))
    }
}

async fn tls_receiver(acceptor: TlsAcceptor) -> Receiver {
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

async fn answer_ok(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    while read_request(&mut stream).await.is_some() {
        if stream.write_all(OK.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}
