//! Standard Webhooks `v1a`: Ed25519 over `id.timestamp.body`, and the public keys that receivers check
//! it with.
//!
//! The private half never leaves: unlike a secret it has no text form here.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ed25519_dalek::ed25519::signature::MultipartSigner;
use ed25519_dalek::{Signature, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::{Signed, VerifyError, vet_time};

/// What the text form of a public key begins with.
pub const PUBLIC_KEY_PREFIX: &str = "whpk_";

const SCHEME: &str = "v1a,";
/// A blank, `v1a,` and 64 bytes in base64.
const SIGNATURE_LENGTH: usize = 1 + SCHEME.len() + 88;

/// Why a text or some bytes are no key. Never shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// It does not begin with `whpk_`.
    #[error("a public key begins with `{PUBLIC_KEY_PREFIX}`")]
    Prefix,
    /// What follows the prefix is not base64.
    #[error("a public key is `{PUBLIC_KEY_PREFIX}` followed by base64 (standard alphabet, padded)")]
    Base64,
    /// Not 32 bytes, or 32 bytes that are no point of the curve.
    #[error("these bytes are not an Ed25519 key")]
    Bytes,
}

/// An endpoint's own Ed25519 key.
#[derive(Clone)]
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// A key made of 32 bytes of the caller's randomness.
    #[must_use]
    pub fn generate(mut random: [u8; 32]) -> Self {
        let pair = Self(SigningKey::from_bytes(&random));
        random.zeroize();
        pair
    }

    /// A key from its seed, as it is kept sealed.
    ///
    /// # Errors
    /// [`InvalidKey::Bytes`] unless it has 32 bytes.
    pub fn from_seed(seed: &[u8]) -> Result<Self, InvalidKey> {
        seed.try_into()
            .map(|seed| Self(SigningKey::from_bytes(seed)))
            .map_err(|_wrong_length| InvalidKey::Bytes)
    }

    /// The seed, to be sealed.
    #[must_use]
    pub fn seed(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// What receivers may know.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("KeyPair(redacted)")
    }
}

/// What a receiver checks `v1a` signatures with. No secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// A key from its 32 bytes.
    ///
    /// # Errors
    /// [`InvalidKey::Bytes`] if they are no point of the curve.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidKey> {
        let bytes: &[u8; 32] = bytes
            .try_into()
            .map_err(|_wrong_length| InvalidKey::Bytes)?;
        VerifyingKey::from_bytes(bytes)
            .map(Self)
            .map_err(|_says_no_more| InvalidKey::Bytes)
    }

    /// A key from its text form, `whpk_` and base64.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let encoded = text
            .strip_prefix(PUBLIC_KEY_PREFIX)
            .ok_or(InvalidKey::Prefix)?;
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|_says_no_more| InvalidKey::Base64)?;
        Self::from_bytes(&bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// The `x` of its JSON Web Key (RFC 8037).
    #[must_use]
    pub fn jwk_x(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.as_bytes())
    }

    /// Its name in a key set: the thumbprint of RFC 7638.
    ///
    /// The example of RFC 8037, A.3:
    /// ```
    /// use shared::policy::signing::PublicKey;
    ///
    /// let key = PublicKey::parse("whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")?;
    /// assert_eq!(key.thumbprint(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    /// # Ok::<(), shared::policy::signing::InvalidKey>(())
    /// ```
    #[must_use]
    pub fn thumbprint(&self) -> String {
        let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, self.jwk_x());
        URL_SAFE_NO_PAD.encode(Sha256::digest(canonical))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{PUBLIC_KEY_PREFIX}{}",
            STANDARD.encode(self.as_bytes())
        )
    }
}

/// Adds one `v1a,<base64>` per key to a `webhook-signature` header, which may hold others already.
pub fn sign_ed25519<'a>(
    header: &mut String,
    pairs: impl IntoIterator<Item = &'a KeyPair>,
    signed: &Signed<'_>,
) {
    for pair in pairs {
        header.reserve(SIGNATURE_LENGTH);
        if !header.is_empty() {
            header.push(' ');
        }
        header.push_str(SCHEME);
        let signature = pair.0.multipart_sign(&signed.parts());
        STANDARD.encode_string(signature.to_bytes(), header);
    }
}

/// Checks the `v1a` signatures of a `webhook-signature` header against every key; others are skipped.
///
/// `now` is the caller's clock in Unix seconds; the specification suggests a tolerance of 5 minutes.
///
/// # Errors
/// Why the request is not to be believed.
pub fn verify_ed25519(
    keys: &[PublicKey],
    signed: &Signed<'_>,
    signatures: &str,
    now: i64,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    vet_time(signed.timestamp, now, tolerance)?;
    let message = signed.parts().concat();
    let fits = signatures
        .split(' ')
        .filter_map(|one| one.strip_prefix(SCHEME))
        .filter_map(|given| STANDARD.decode(given).ok())
        .filter_map(|given| Signature::from_slice(&given).ok())
        .any(|given| {
            keys.iter()
                .any(|key| key.0.verify_strict(&message, &given).is_ok())
        });
    if fits {
        Ok(())
    } else {
        Err(VerifyError::NoMatch)
    }
}
