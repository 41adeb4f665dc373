//! Sealing of what must not lie in the database in the clear: signing secrets and header values.
//!
//! AES-256-GCM under the operator's master key. A sealed value names the key that it was sealed
//! with, so that the key can be rotated: new values go under the current key, old ones are opened
//! with the previous. Not here: where keys come from (settings) and what is sealed (the store).
//!
//! Layout: version 1 (1 byte), id of the master key (4), nonce (12), ciphertext with its tag.
//! The id is the start of the key's SHA-256. Nonces are random: one key is good for 2^32 values.
//!
//! # Invariants
//! - S2 neither a key nor what was sealed shows in `Debug` or in an error.
//! - S3 a value opens only in the context it was sealed for (`secret:<endpoint uuid>`): a row that
//!   was copied to another endpoint is refused.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

const VERSION: u8 = 1;
const NONCE_BYTES: usize = 12;
const KEY_ID_BYTES: usize = 4;
const KEY_BYTES: usize = 32;

/// How much of a sealed value says which key it needs: its version and the key's id.
pub const HEAD_BYTES: usize = 1 + KEY_ID_BYTES;

/// Which of the keys at hand a value is sealed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealedWith {
    /// The one that new values are sealed with.
    Current,
    /// The one before, while rotating.
    Previous,
    /// None of them, or it is no sealed value at all.
    Other,
}

/// Which master key, without telling the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId([u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Why a sealed value cannot be opened, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It was sealed with a key that this process does not have.
    #[error(
        "sealed with master key {sealed_with}, but POSTRIDER_MASTER_KEY is {current}: set \
         POSTRIDER_MASTER_KEY, or POSTRIDER_MASTER_KEY_PREVIOUS while rotating, to the key that \
         it was sealed with"
    )]
    UnknownKey {
        /// The key it needs.
        sealed_with: KeyId,
        /// The key this process seals with.
        current: KeyId,
    },
    /// Too short, or of a version that this program does not know.
    #[error("not a sealed value of this version: written by a newer program, or damaged")]
    Layout,
    /// The key is right, the value is not: damaged, or moved from another row.
    #[error(
        "sealed value of {context} is damaged or belongs elsewhere: restore it from a backup, or rotate the secret"
    )]
    Damaged {
        /// What it was to be opened for.
        context: String,
    },
}

struct MasterKey {
    id: KeyId,
    cipher: Aes256Gcm,
}

impl MasterKey {
    fn new(mut key: [u8; KEY_BYTES]) -> Self {
        let mut id = [0; KEY_ID_BYTES];
        for (to, from) in id.iter_mut().zip(Sha256::digest(key)) {
            *to = from;
        }
        let mut expanded = Key::<Aes256Gcm>::from(key);
        let cipher = Aes256Gcm::new(&expanded);
        expanded.as_mut_slice().zeroize();
        key.zeroize();
        Self {
            id: KeyId(id),
            cipher,
        }
    }
}

/// The operator's keys: one to seal with, and while rotating one more to open with.
pub struct MasterKeys {
    current: MasterKey,
    previous: Option<MasterKey>,
}

impl fmt::Debug for MasterKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MasterKeys")
            .field("current", &self.current.id)
            .field("previous", &self.previous.as_ref().map(|key| key.id))
            .finish()
    }
}

impl MasterKeys {
    /// Keys from their bytes.
    #[must_use]
    pub fn new(current: [u8; KEY_BYTES], previous: Option<[u8; KEY_BYTES]>) -> Self {
        Self {
            current: MasterKey::new(current),
            previous: previous.map(MasterKey::new),
        }
    }

    /// Keys from the settings `POSTRIDER_MASTER_KEY` and `POSTRIDER_MASTER_KEY_PREVIOUS`.
    ///
    /// # Errors
    /// A sentence that names the setting and says what it must be; never the value.
    pub fn from_base64(current: &str, previous: Option<&str>) -> Result<Self, String> {
        let current = decode("POSTRIDER_MASTER_KEY", current)?;
        let previous = previous
            .map(|text| decode("POSTRIDER_MASTER_KEY_PREVIOUS", text))
            .transpose()?;
        Ok(Self::new(current, previous))
    }

    /// Seals with the current key, for one context only.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "AES-GCM refuses only above 64 GiB, far above what a process is given"
    )]
    pub fn seal(&self, plaintext: &[u8], context: &str) -> Vec<u8> {
        let mut nonce = [0; NONCE_BYTES];
        rand::fill(&mut nonce);
        let payload = Payload {
            msg: plaintext,
            aad: context.as_bytes(),
        };
        let ciphertext = self
            .current
            .cipher
            .encrypt(&Nonce::from(nonce), payload)
            .expect("a value below 64 GiB");

        let mut sealed = Vec::with_capacity(1 + KEY_ID_BYTES + NONCE_BYTES + ciphertext.len());
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.current.id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&ciphertext);
        sealed
    }

    /// Opens what was sealed for this context, with the current or the previous key.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn open(&self, sealed: &[u8], context: &str) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let rest = sealed.strip_prefix(&[VERSION]).ok_or(SealError::Layout)?;
        let (id, rest) = rest
            .split_first_chunk::<KEY_ID_BYTES>()
            .ok_or(SealError::Layout)?;
        let (nonce, ciphertext) = rest
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or(SealError::Layout)?;
        let key = self.key(KeyId(*id))?;
        let payload = Payload {
            msg: ciphertext,
            aad: context.as_bytes(),
        };
        key.cipher
            .decrypt(&Nonce::from(*nonce), payload)
            .map(Zeroizing::new)
            .map_err(|_says_nothing| SealError::Damaged {
                context: context.to_owned(),
            })
    }

    /// Seals a value anew under the current key; `None` if it is sealed with that already.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reseal(&self, sealed: &[u8], context: &str) -> Result<Option<Vec<u8>>, SealError> {
        if self.sealed_with(sealed) == SealedWith::Current {
            return Ok(None);
        }
        let value = self.open(sealed, context)?;
        Ok(Some(self.seal(&value, context)))
    }

    /// Which key a value names; its first [`HEAD_BYTES`] are enough.
    #[must_use]
    pub fn sealed_with(&self, sealed: &[u8]) -> SealedWith {
        let Some((id, _)) = sealed
            .strip_prefix(&[VERSION])
            .and_then(<[u8]>::split_first_chunk::<KEY_ID_BYTES>)
        else {
            return SealedWith::Other;
        };
        let id = KeyId(*id);
        if id == self.current.id {
            SealedWith::Current
        } else if self.previous.as_ref().is_some_and(|key| key.id == id) {
            SealedWith::Previous
        } else {
            SealedWith::Other
        }
    }

    fn key(&self, id: KeyId) -> Result<&MasterKey, SealError> {
        [Some(&self.current), self.previous.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.id == id)
            .ok_or(SealError::UnknownKey {
                sealed_with: id,
                current: self.current.id,
            })
    }
}

fn decode(setting: &str, text: &str) -> Result<[u8; KEY_BYTES], String> {
    let advice = "make one with `openssl rand -base64 32`";
    let bytes = STANDARD
        .decode(text.trim())
        .map(Zeroizing::new)
        .map_err(|_error_shows_bytes| format!("{setting} is not base64: {advice}"))?;
    <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).map_err(|_length_follows| {
        format!(
            "{setting} must be {KEY_BYTES} bytes in base64, not {}: {advice}",
            bytes.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &str = "secret:0193";

    #[test]
    fn what_is_sealed_opens_in_its_context_and_in_no_other() {
        let keys = MasterKeys::new([1; 32], None);
        for plaintext in [&b""[..], b"x", &[0xff; 5_000]] {
            let sealed = keys.seal(plaintext, CONTEXT);

            assert_eq!(keys.open(&sealed, CONTEXT).unwrap().as_slice(), plaintext);
            assert!(matches!(
                keys.open(&sealed, "secret:0194"),
                Err(SealError::Damaged { .. })
            ));
        }
    }

    #[test]
    fn a_value_is_sealed_differently_each_time() {
        let keys = MasterKeys::new([1; 32], None);
        assert_ne!(keys.seal(b"same", CONTEXT), keys.seal(b"same", CONTEXT));
    }

    #[test]
    fn a_rotated_key_still_opens_old_values_and_seals_new_ones() {
        let before = MasterKeys::new([1; 32], None);
        let during = MasterKeys::new([2; 32], Some([1; 32]));
        let after = MasterKeys::new([2; 32], None);
        let old = before.seal(b"old", CONTEXT);
        let new = during.seal(b"new", CONTEXT);

        assert_eq!(during.open(&old, CONTEXT).unwrap().as_slice(), b"old");
        assert_eq!(after.open(&new, CONTEXT).unwrap().as_slice(), b"new");

        let error = after.open(&old, CONTEXT).unwrap_err();
        assert!(matches!(error, SealError::UnknownKey { .. }));
        let text = error.to_string();
        assert!(text.contains("POSTRIDER_MASTER_KEY_PREVIOUS"), "{text}");
    }

    #[test]
    fn a_value_is_sealed_anew_only_when_another_key_sealed_it() {
        let before = MasterKeys::new([1; 32], None);
        let during = MasterKeys::new([2; 32], Some([1; 32]));
        let after = MasterKeys::new([2; 32], None);
        let old = before.seal(b"old", CONTEXT);
        assert_eq!(during.sealed_with(&old), SealedWith::Previous);
        assert_eq!(during.sealed_with(&old[..HEAD_BYTES]), SealedWith::Previous);
        assert_eq!(after.sealed_with(&old), SealedWith::Other);
        assert_eq!(after.sealed_with(&old[..HEAD_BYTES - 1]), SealedWith::Other);

        let new = during.reseal(&old, CONTEXT).unwrap().unwrap();
        assert_eq!(after.sealed_with(&new), SealedWith::Current);
        assert_eq!(after.open(&new, CONTEXT).unwrap().as_slice(), b"old");
        assert_eq!(during.reseal(&new, CONTEXT), Ok(None));
        assert!(after.reseal(&old, CONTEXT).is_err());
        assert!(during.reseal(&old, "secret:0194").is_err());
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_an_error() {
        let keys = MasterKeys::new([1; 32], None);
        let sealed = keys.seal(b"key material", CONTEXT);
        for length in 0..sealed.len() {
            assert!(keys.open(&sealed[..length], CONTEXT).is_err(), "{length}");
        }
        for index in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[index / 8] ^= 1 << (index % 8);
            assert!(keys.open(&damaged, CONTEXT).is_err(), "bit {index}");
        }
    }

    #[test]
    fn a_bad_setting_is_named_and_its_value_is_not() {
        let good = STANDARD.encode([7; 32]);
        assert!(MasterKeys::from_base64(&good, None).is_ok());
        assert!(MasterKeys::from_base64(&format!("{good}\n"), Some(&good)).is_ok());

        let error = MasterKeys::from_base64("hunter2!", None).unwrap_err();
        assert!(
            error.starts_with("POSTRIDER_MASTER_KEY is not base64"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");

        let short = STANDARD.encode([7; 16]);
        let error = MasterKeys::from_base64(&good, Some(&short)).unwrap_err();
        assert!(
            error.contains("POSTRIDER_MASTER_KEY_PREVIOUS must be 32 bytes"),
            "{error}"
        );
        assert!(error.contains("not 16"), "{error}");
    }

    #[test]
    fn keys_do_not_show_themselves() {
        let keys = MasterKeys::new([0x41; 32], Some([0x42; 32]));
        let text = format!("{keys:?}");
        assert!(!text.contains("AAAA") && !text.contains("65, 65"), "{text}");
    }
}
