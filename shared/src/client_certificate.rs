//! Client certificates for receivers that ask for one (mutual TLS): read when saved, and again when
//! used, by one rule.
//!
//! Not here: how they are kept ([`crate::sealed_parts`]).
//!
//! # Invariants
//! - S2 no error shows what it is about.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The longest chain that is taken, in certificates.
pub const MAX_CHAIN: usize = 8;

/// Why two PEM texts are no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientCertificateError {
    /// The certificate's text.
    #[error(
        "the certificate must be PEM: `-----BEGIN CERTIFICATE-----` first, its intermediates after it"
    )]
    Certificate,
    /// More certificates than anybody needs.
    #[error("the certificate must come with at most {} intermediates", MAX_CHAIN - 1)]
    TooMany,
    /// The key's text.
    #[error(
        "the key must be PEM without a passphrase: `-----BEGIN PRIVATE KEY-----` (PKCS#8, PKCS#1 or SEC1)"
    )]
    Key,
    /// A key of a kind that TLS here cannot use.
    #[error("the key must be RSA (2048 bits or more), ECDSA P-256 or P-384, or Ed25519")]
    KeyKind,
    /// Two that do not belong together.
    #[error("the key does not belong to the certificate")]
    Mismatch,
}

/// Reads a certificate with its intermediates and its key, and checks that they belong together.
///
/// # Errors
/// What is wrong, without showing any of it.
pub fn parse(chain: &str, key: &str) -> Result<CertifiedKey, ClientCertificateError> {
    let certificates = CertificateDer::pem_slice_iter(chain.as_bytes())
        .take(MAX_CHAIN + 1)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_shows_it| ClientCertificateError::Certificate)?;
    if certificates.is_empty() {
        return Err(ClientCertificateError::Certificate);
    }
    if certificates.len() > MAX_CHAIN {
        return Err(ClientCertificateError::TooMany);
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_shows_it| ClientCertificateError::Key)?;
    let provider = rustls::crypto::ring::default_provider();
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|_shows_it| ClientCertificateError::KeyKind)?;
    let certified = CertifiedKey::new(certificates, key);
    certified.keys_match().map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            ClientCertificateError::Mismatch
        } else {
            ClientCertificateError::Certificate
        }
    })?;
    Ok(certified)
}
