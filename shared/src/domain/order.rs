//! The key within which order is kept: what the tenant called it, as 64 bits.
//!
//! Not the text: that is the tenant's and may be a person's number (S2), so it is neither stored nor
//! logged. Two texts that collide (2^-64) are merely kept in order with one another.

use sha2::{Digest, Sha256};

use crate::ids::TenantKey;

/// The longest `ordering_key`, in bytes.
pub const MOST_KEY_BYTES: usize = 128;

/// An `ordering_key` of a tenant. Comparing it says nothing of the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderKey(pub i64);

impl OrderKey {
    /// Before all keys: where a walk over keys begins. No key is equal to it.
    pub const START: Self = Self(i64::MIN);

    /// The key of a tenant's text: stable for good, since rows outlive programs.
    #[must_use]
    pub fn new(tenant: TenantKey, text: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(tenant.0.to_be_bytes());
        digest.update(text.as_bytes());
        let mut first = [0; 8];
        for (to, from) in first.iter_mut().zip(digest.finalize()) {
            *to = from;
        }
        Self(i64::from_be_bytes(first).max(i64::MIN + 1))
    }
}

/// What is wrong with the text of a key, if anything.
#[must_use]
pub fn wrong_key(text: &str) -> Option<String> {
    (text.is_empty() || text.len() > MOST_KEY_BYTES || text.chars().any(char::is_control))
        .then(|| format!("must have 1 to {MOST_KEY_BYTES} bytes and no control characters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_for_good_and_another_for_each_tenant_and_text() {
        let key = OrderKey::new(TenantKey(7), "order-1");

        // SHA-256 of 00000007 "order-1": changing it would let queued rows be overtaken by new ones.
        assert_eq!(key, OrderKey(7_876_491_610_424_941_360));
        assert_ne!(key, OrderKey::new(TenantKey(8), "order-1"));
        assert_ne!(key, OrderKey::new(TenantKey(7), "order-2"));
        assert!(key > OrderKey::START);
    }

    #[test]
    fn texts_of_keys_have_1_to_128_bytes_and_no_control_characters() {
        for legal in ["a", "Ünïcode key", &"x".repeat(128)] {
            assert_eq!(wrong_key(legal), None, "{legal}");
        }
        for wrong in ["", "a\nb", "\u{7f}", &"x".repeat(129), &"é".repeat(65)] {
            assert!(wrong_key(wrong).is_some(), "{wrong:?}");
        }
    }
}
