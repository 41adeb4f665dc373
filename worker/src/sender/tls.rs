//! TLS: rustls on ring, whom we trust, what a certificate lacks, and as whom we speak.
//!
//! There is no way around verification: no setting, and no fallback when it fails.

use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use shared::client_certificate::{self, ClientCertificateError};
use shared::policy::classify::CertificateProblem;

use super::sessions::Sessions;

/// Hosts whose sessions are remembered: resuming one costs a tenth of a full handshake. With usual
/// chains 250 MiB when full.
pub(super) const HOSTS: NonZeroUsize = NonZeroUsize::new(65_536).expect("is not zero");

/// The same for one endpoint with a client certificate of its own: where it leads, and led before.
const HOSTS_OF_IDENTITY: NonZeroUsize = NonZeroUsize::new(2).expect("is not zero");

/// What a request to `https://` says when nobody is trusted.
pub(super) const NO_ROOTS: &str =
    "this worker's machine trusts no certificate authority: install ca-certificates";

/// Whom a worker trusts: the machine's certificate authorities, and those in `bundle` (PEM).
///
/// # Errors
/// In words, with the fix: the bundle cannot be used, or nobody at all would be trusted.
pub fn trusted(bundle: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = native_roots();
    if let Some(path) = bundle {
        add_bundle(&mut roots, path)
            .map_err(|problem| format!("POSTRIDER_CA_FILE {}: {problem}", path.display()))?;
    }
    if roots.is_empty() {
        return Err(
            "this machine trusts no certificate authority, so every delivery to https:// would \
             fail: install ca-certificates, or name a PEM file in POSTRIDER_CA_FILE"
                .to_owned(),
        );
    }
    Ok(roots)
}

fn add_bundle(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("cannot be read as PEM: {error}"))?;
    if certificates.is_empty() {
        return Err("holds no certificate (-----BEGIN CERTIFICATE-----)".to_owned());
    }
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| format!("holds a certificate that cannot be used: {error}"))?;
    }
    Ok(())
}

/// The certificate authorities that this machine trusts; unreadable ones are left out.
fn native_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a trusted certificate of this machine cannot be read");
    }
    let (_added, ignored) = roots.add_parsable_certificates(found.certs);
    if ignored > 0 {
        tracing::debug!(ignored, "trusted certificates that cannot be used");
    }
    roots
}

/// The client's side of TLS 1.2 and 1.3; `None` when nobody is trusted.
pub(super) fn client_config(
    roots: RootCertStore,
) -> Result<Option<Arc<ClientConfig>>, rustls::Error> {
    if roots.is_empty() {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(ExplainingVerifier::new(roots, provider)?)
        .with_no_client_auth();
    config.resumption = Resumption::store(Arc::new(Sessions::of(HOSTS)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// The certificate and key that an endpoint's receiver asks us for (mutual TLS). `Debug` shows none
/// of it; equal are those with the same certificate.
pub struct ClientIdentity {
    certified: Arc<CertifiedKey>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl ClientIdentity {
    /// From PEM texts: the certificate with its intermediates, and its key.
    ///
    /// # Errors
    /// What is wrong with them, without showing them.
    pub fn parse(chain: &str, key: &str) -> Result<Self, ClientCertificateError> {
        let certified = client_certificate::parse(chain, key)?;
        Ok(Self {
            certified: Arc::new(certified),
            config: OnceLock::new(),
        })
    }

    /// On top of what everybody else's connections use.
    pub(super) fn config(&self, base: &ClientConfig) -> &Arc<ClientConfig> {
        self.config.get_or_init(|| {
            let mut config = base.clone();
            config.client_auth_cert_resolver =
                Arc::new(SingleCertAndKey::from(Arc::clone(&self.certified)));
            // A session carries the identity it was made with, and is looked up by host name alone.
            let sessions = Sessions::of(HOSTS_OF_IDENTITY);
            config.resumption = Resumption::store(Arc::new(sessions));
            Arc::new(config)
        })
    }

    fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }
}

impl std::fmt::Debug for ClientIdentity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ClientIdentity")
    }
}

impl PartialEq for ClientIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.chain() == other.chain()
    }
}

impl Eq for ClientIdentity {}

impl Hash for ClientIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for certificate in self.chain() {
            certificate.hash(state);
        }
    }
}

/// Verifies as webpki does, and says of a chain that ends nowhere what it lacks: the browser of the
/// one who has to mend it will show nothing wrong, because browsers fetch what servers forget.
#[derive(Debug)]
struct ExplainingVerifier(Arc<WebPkiServerVerifier>);

impl ExplainingVerifier {
    fn new(
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<Self>, rustls::Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Arc::new(Self(verifier)))
    }
}

impl ServerCertVerifier for ExplainingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verdict.map_err(|error| {
            let nobody_vouches = matches!(
                error,
                rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer | CertificateError::Other(_)
                )
            );
            let explained = nobody_vouches.then(|| explained(end_entity, intermediates));
            explained.flatten().unwrap_or(error)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Why nobody vouches for a certificate, where that can be seen from what was sent.
fn explained(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Option<rustls::Error> {
    let certificate = webpki::EndEntityCert::try_from(end_entity).ok()?;
    let problem = if certificate.issuer() == certificate.subject() {
        CertificateProblem::SelfSigned
    } else if intermediates.is_empty() {
        CertificateProblem::MissingIntermediate
    } else {
        return None;
    };
    let other = rustls::OtherError(Arc::new(problem));
    Some(rustls::Error::InvalidCertificate(CertificateError::Other(
        other,
    )))
}

/// What is wrong with a certificate, if that is what an error is about.
pub(super) fn certificate_problem(error: &rustls::Error) -> Option<CertificateProblem> {
    use CertificateError as E;
    use CertificateProblem as P;
    let rustls::Error::InvalidCertificate(error) = error else {
        return None;
    };
    let is = |kinds: bool, problem| kinds.then_some(problem);
    let known = is(
        matches!(error, E::Expired | E::ExpiredContext { .. }),
        P::Expired,
    )
    .or(is(
        matches!(error, E::NotValidYet | E::NotValidYetContext { .. }),
        P::NotValidYet,
    ))
    .or(is(
        matches!(error, E::NotValidForName | E::NotValidForNameContext { .. }),
        P::WrongName,
    ))
    .or(is(matches!(error, E::UnknownIssuer), P::UnknownIssuer))
    .or(is(matches!(error, E::Revoked), P::Revoked));
    let explained = if let E::Other(other) = error {
        other.0.downcast_ref().copied()
    } else {
        None
    };
    Some(known.or(explained).unwrap_or(P::Unusable))
}
