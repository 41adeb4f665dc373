//! A certificate authority of one test, and servers with its certificates.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::NamedTempFile;
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use crate::world::Setting;

/// See the module.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::below(None, "authority")
    }

    /// An authority below this one, which vouches for it.
    pub(crate) fn intermediate(&self) -> Self {
        Self::below(Some(&self.issuer), "intermediate")
    }

    fn below(above: Option<&Issuer<'static, KeyPair>>, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of two with one name the wrong one would be asked, and who is named like its issuer is taken for
        // self-signed.
        let name = format!("{name} {}", Uuid::new_v4());
        parameters.distinguished_name.push(DnType::CommonName, name);
        let certificate = match above {
            Some(above) => parameters.signed_by(&key, above),
            None => parameters.self_signed(&key),
        };
        let issuer = Issuer::new(parameters, key);
        Self {
            issuer,
            certificate: certificate.unwrap(),
        }
    }

    /// For `POSTRIDER_CA_FILE`.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// The file that makes a worker trust it, and the setting that names the file.
    pub(crate) fn trusted(&self) -> (NamedTempFile, Setting) {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), self.pem()).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        (file, ("POSTRIDER_CA_FILE", path))
    }

    /// A certificate for this name and its key, in PEM.
    pub(crate) fn certificate(&self, name: &str) -> (String, String) {
        let (certificate, key) = self.signed(name, |_| {});
        (certificate.pem(), key.serialize_pem())
    }

    /// A server with a certificate for this name.
    pub(crate) fn server(&self, name: &str) -> TlsAcceptor {
        let verifier = WebPkiClientVerifier::no_client_auth();
        TlsAcceptor::from(Arc::new(self.config(name, verifier)))
    }

    /// The same with something else about the certificate.
    pub(crate) fn server_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsAcceptor {
        let (certificate, key) = self.signed(name, change);
        acceptor(vec![certificate.der().clone()], &key)
    }

    /// The same, which shows the authority's own certificate as well.
    pub(crate) fn server_with_issuer(&self, name: &str) -> TlsAcceptor {
        let (certificate, key) = self.signed(name, |_| {});
        let issuer = self.certificate.der().clone();
        acceptor(vec![certificate.der().clone(), issuer], &key)
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
        let (certificate, key) = self.signed(name, |_| {});
        config(vec![certificate.der().clone()], &key, verifier)
    }

    fn signed(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (rcgen::Certificate, KeyPair) {
        let (key, mut parameters) = named(name);
        change(&mut parameters);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }
}

/// A server that vouches for itself.
pub(crate) fn self_signed_server(name: &str) -> TlsAcceptor {
    let (key, parameters) = named(name);
    let certificate = parameters.self_signed(&key).unwrap();
    acceptor(vec![certificate.der().clone()], &key)
}

fn named(name: &str) -> (KeyPair, CertificateParams) {
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    (KeyPair::generate().unwrap(), parameters)
}

fn acceptor(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> TlsAcceptor {
    let verifier = WebPkiClientVerifier::no_client_auth();
    TlsAcceptor::from(Arc::new(config(chain, key, verifier)))
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    verifier: Arc<dyn ClientCertVerifier>,
) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap()
}
