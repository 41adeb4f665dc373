//! Keys that make a POST happen once, and fingerprints that tell whether a repetition is one.
//!
//! Three name spaces, so that the header `a`, the `external_id` `a` and the third event of a batch
//! under `a` are three keys. A fingerprint is not the body: that is the tenant's (S2).

use sha2::{Digest, Sha256};

/// The longest `Idempotency-Key`, in bytes.
pub const MOST_KEY_BYTES: usize = 255;
/// The longest `external_id`, in characters.
pub const MOST_EXTERNAL_ID: usize = 128;

/// What a key was given as. In the order in which they are asked when an event has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeySpace {
    /// An event's position in a batch that had the header.
    Item,
    /// The header `Idempotency-Key`.
    Header,
    /// The field `external_id`.
    ExternalId,
}

impl KeySpace {
    const ALL: [Self; 3] = [Self::Item, Self::Header, Self::ExternalId];

    /// What a stored key of it begins with; their order is that of the spaces.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Item => "b:",
            Self::Header => "k:",
            Self::ExternalId => "x:",
        }
    }

    /// The space of a stored key.
    #[must_use]
    pub fn of(stored: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|space| stored.starts_with(space.prefix()))
    }
}

/// A key as it is stored, and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// With the prefix of its space.
    pub stored: String,
    /// SHA-256 of what was sent under it.
    pub fingerprint: [u8; 32],
}

impl IdempotencyKey {
    /// The header of a request: the same bytes to the same path are the same request.
    #[must_use]
    pub fn of_request(key: &str, path: &str, body: &[u8]) -> Self {
        Self {
            stored: format!("{}{key}", KeySpace::Header.prefix()),
            fingerprint: fingerprint(&[path.as_bytes(), body]),
        }
    }

    /// The event at a position of a batch whose header has this key. A batch is one request, so
    /// its fingerprint is each event's.
    #[must_use]
    pub fn of_item(&self, position: usize) -> Self {
        let key = self.stored.strip_prefix(KeySpace::Header.prefix());
        let key = key.unwrap_or(&self.stored);
        Self {
            stored: format!("{}{position}:{key}", KeySpace::Item.prefix()),
            fingerprint: self.fingerprint,
        }
    }

    /// The `external_id` of an event with these parts, however its envelope was written.
    #[must_use]
    pub fn of_external_id(external_id: &str, parts: &[&[u8]]) -> Self {
        Self {
            stored: format!("{}{external_id}", KeySpace::ExternalId.prefix()),
            fingerprint: fingerprint(parts),
        }
    }
}

/// With the length of each part, so that no two lists of parts are the same bytes.
fn fingerprint(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// What is wrong with the text of an `Idempotency-Key`, if anything.
#[must_use]
pub fn wrong_key(text: &str) -> Option<String> {
    let legal = |byte: u8| (0x20..0x7f).contains(&byte);
    (text.is_empty() || text.len() > MOST_KEY_BYTES || !text.bytes().all(legal))
        .then(|| format!("must have 1 to {MOST_KEY_BYTES} visible ASCII characters"))
}

/// What is wrong with an `external_id`, if anything.
#[must_use]
pub fn wrong_external_id(text: &str) -> Option<String> {
    let count = text.chars().take(MOST_EXTERNAL_ID + 1).count();
    (count == 0 || count > MOST_EXTERNAL_ID || text.chars().any(char::is_control)).then(|| {
        format!("must have 1 to {MOST_EXTERNAL_ID} characters, none of them a control character")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_spaces_are_apart_and_a_stored_key_tells_its_own() {
        let header = IdempotencyKey::of_request("a", "/v1/events", b"{}");
        let item = header.of_item(2);
        let external = IdempotencyKey::of_external_id("a", &[b"{}"]);

        assert_eq!(
            [&*header.stored, &*item.stored, &*external.stored],
            ["k:a", "b:2:a", "x:a"]
        );
        assert_eq!(KeySpace::of("k:a"), Some(KeySpace::Header));
        assert_eq!(KeySpace::of("b:2:a"), Some(KeySpace::Item));
        assert_eq!(KeySpace::of("x:k:"), Some(KeySpace::ExternalId));
        assert_eq!(KeySpace::of("a"), None);
        let mut prefixes = KeySpace::ALL.map(KeySpace::prefix);
        prefixes.sort_unstable();
        assert_eq!(prefixes, KeySpace::ALL.map(KeySpace::prefix));
    }

    #[test]
    fn a_fingerprint_differs_with_path_bytes_and_the_borders_between_parts() {
        let print = |path, body| IdempotencyKey::of_request("a", path, body).fingerprint;
        assert_eq!(print("/a", b"{}"), print("/a", b"{}"));
        assert_ne!(print("/a", b"{}"), print("/b", b"{}"));
        assert_ne!(print("/a", b"{}"), print("/a", b"{ }"));
        assert_ne!(print("/a", b"bc"), print("/ab", b"c"));
    }

    #[test]
    fn texts_have_their_limits() {
        for legal in ["a", "with space", &"x".repeat(255)] {
            assert_eq!(wrong_key(legal), None, "{legal}");
        }
        for wrong in ["", "é", "\n", &"x".repeat(256)] {
            assert!(wrong_key(wrong).is_some(), "{wrong:?}");
        }
        for legal in ["a", &"é".repeat(128)] {
            assert_eq!(wrong_external_id(legal), None, "{legal}");
        }
        for wrong in ["", "a\u{0}", &"x".repeat(129)] {
            assert!(wrong_external_id(wrong).is_some(), "{wrong:?}");
        }
    }
}
