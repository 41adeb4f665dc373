//! The key that an endpoint and its receiver share, in memory and as text.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// What the text form of a secret begins with.
pub const SECRET_PREFIX: &str = "whsec_";

/// The fewest bytes of a key: less could be guessed. From the specification.
pub const MIN_SECRET_BYTES: usize = 24;

/// The most bytes of a key. From the specification; also the block of SHA-256, so that a key is
/// never hashed before its use.
pub const MAX_SECRET_BYTES: usize = 64;

/// Why a text or some bytes are not a signing secret. Never shows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// It does not begin with `whsec_`.
    #[error("a signing secret begins with `{SECRET_PREFIX}`")]
    Prefix,
    /// What follows the prefix is not base64.
    #[error("a signing secret is `{SECRET_PREFIX}` followed by base64 (standard alphabet, padded)")]
    Base64,
    /// The key is too short or too long.
    #[error(
        "a signing secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes before base64, not {0}"
    )]
    Length(usize),
}

/// The key that an endpoint and its receiver share.
#[derive(Clone)]
pub struct Secret {
    /// The key, filled with zeros to one block of SHA-256, which is how HMAC defines a short key.
    block: Zeroizing<[u8; MAX_SECRET_BYTES]>,
    length: usize,
}

impl Secret {
    /// A secret made of 32 bytes of the caller's randomness.
    #[must_use]
    pub fn generate(mut random: [u8; 32]) -> Self {
        let mut block = Zeroizing::new([0; MAX_SECRET_BYTES]);
        for (to, from) in block.iter_mut().zip(random) {
            *to = from;
        }
        random.zeroize();
        Self {
            block,
            length: random.len(),
        }
    }

    /// A secret from the bytes of its key, as they are kept sealed.
    ///
    /// # Errors
    /// [`InvalidSecret::Length`] outside 24–64 bytes.
    pub fn from_bytes(key: &[u8]) -> Result<Self, InvalidSecret> {
        let invalid = InvalidSecret::Length(key.len());
        if key.len() < MIN_SECRET_BYTES {
            return Err(invalid);
        }
        let mut block = Zeroizing::new([0; MAX_SECRET_BYTES]);
        let room = block.get_mut(..key.len()).ok_or(invalid)?;
        room.copy_from_slice(key);
        Ok(Self {
            block,
            length: key.len(),
        })
    }

    /// A secret from its text form, `whsec_` and base64.
    ///
    /// # Errors
    /// What is wrong with the text, without showing it.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text
            .strip_prefix(SECRET_PREFIX)
            .ok_or(InvalidSecret::Prefix)?;
        let key = STANDARD
            .decode(encoded)
            .map_err(|_error_shows_bytes| InvalidSecret::Base64)?;
        Self::from_bytes(&Zeroizing::new(key))
    }

    /// The text form, to be shown once to whoever may see it.
    #[must_use]
    pub fn reveal(&self) -> String {
        let mut text = String::with_capacity(SECRET_PREFIX.len() + MAX_SECRET_BYTES * 4 / 3 + 4);
        text.push_str(SECRET_PREFIX);
        STANDARD.encode_string(self.as_bytes(), &mut text);
        text
    }

    /// The key itself, to be sealed.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.block.get(..self.length).unwrap_or(&*self.block)
    }

    /// The MAC of these parts, one after the other, under the key.
    pub(super) fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac(Hmac::new((&*self.block).into()), parts)
    }

    /// The MAC under the text form: what verifiers compute that take the text for the key.
    pub(super) fn text_mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let text = Zeroizing::new(self.reveal());
        let mut block = Zeroizing::new([0; MAX_SECRET_BYTES]);
        // HMAC's own rule: a key that is longer than a block of the hash is hashed first.
        let hash = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(text.as_bytes())));
        let key = if text.len() > block.len() {
            hash.as_slice()
        } else {
            text.as_bytes()
        };
        for (to, from) in block.iter_mut().zip(key) {
            *to = *from;
        }
        mac(Hmac::new((&*block).into()), parts)
    }
}

fn mac(mut mac: Hmac<Sha256>, parts: &[&[u8]]) -> [u8; 32] {
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(redacted)")
    }
}
