//! A certificate authority of one test, and servers with its certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// See the module.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).unwrap();
        let issuer = Issuer::new(parameters, key);
        Self {
            issuer,
            certificate,
        }
    }

    /// For `POSTRIDER_CA_FILE`.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for this name and its key, in PEM.
    pub(crate) fn certificate(&self, name: &str) -> (String, String) {
        let (certificate, key) = self.signed(name);
        (certificate.pem(), key.serialize_pem())
    }

    /// A server with a certificate for this name.
    pub(crate) fn server(&self, name: &str) -> TlsAcceptor {
        let verifier = WebPkiClientVerifier::no_client_auth();
        TlsAcceptor::from(Arc::new(self.config(name, verifier)))
    }

    /// The same, for HTTP/2 alone.
    pub(crate) fn server_of_http2(&self, name: &str) -> TlsAcceptor {
        let verifier = WebPkiClientVerifier::no_client_auth();
        let mut config = self.config(name, verifier);
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// The same, for those alone who show a certificate of this authority.
    pub(crate) fn server_of_known(&self, name: &str) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let known = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let config = self.config(name, known.build().unwrap());
        TlsAcceptor::from(Arc::new(config))
    }

    fn config(&self, name: &str, verifier: Arc<dyn ClientCertVerifier>) -> ServerConfig {
        let (certificate, key) = self.signed(name);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }

    fn signed(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }
}
