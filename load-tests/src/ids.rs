//! Public ids as numbers, decoded in nanoseconds, and sets of them.
//!
//! `shared::ids` parses the same text with more care and an allocation; here half a million of
//! them pass in a minute, beside the system that is measured.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// An id's UUID as a number.
pub type Id = u128;
/// A set of ids.
pub type IdSet = HashSet<Id, BuildHasherDefault<IdHasher>>;
/// A map by id.
pub type IdMap<V> = HashMap<Id, V, BuildHasherDefault<IdHasher>>;

/// Characters after the prefix of a TypeID.
pub const SUFFIX_LENGTH: usize = 26;
/// Crockford's base 32, in lower case, as a TypeID uses it.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// The value of each byte in that alphabet; 255: none.
const VALUES: [u8; 256] = values();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, where a wrong index is a compile error"
)]
const fn values() -> [u8; 256] {
    let mut values = [255; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
}

/// The UUID in a TypeID like `evt_01h455vb4pex5vsknk084sn02q`; `None` if it is not one.
#[must_use]
pub fn decode(text: &[u8], prefix: &[u8]) -> Option<Id> {
    let suffix = text.strip_prefix(prefix)?.strip_prefix(b"_")?;
    if suffix.len() != SUFFIX_LENGTH || suffix.first().is_none_or(|first| *first > b'7') {
        return None;
    }
    suffix.iter().try_fold(0_u128, |id, character| {
        let value = VALUES
            .get(usize::from(*character))
            .filter(|value| **value != 255)?;
        Some((id << 5) | u128::from(*value))
    })
}

/// Hashes UUIDv7s by their random half: they need no protection from collisions here.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        let low = u64::try_from(id & u128::from(u64::MAX)).unwrap_or(0);
        self.0 = low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use shared::ids::{DeliveryId, EventId, new_v7};
    use shared::runtime::clock::wall_time;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn ids_decode_to_the_uuid_that_the_program_encoded() {
        for uuid in [
            Uuid::nil(),
            Uuid::max(),
            Uuid::new_v4(),
            new_v7(wall_time()),
        ] {
            let event = EventId(uuid).to_string();
            let delivery = DeliveryId(uuid).to_string();

            assert_eq!(decode(event.as_bytes(), b"evt"), Some(uuid.as_u128()));
            assert_eq!(decode(delivery.as_bytes(), b"dlv"), Some(uuid.as_u128()));
            assert_eq!(decode(delivery.as_bytes(), b"evt"), None);
        }
    }

    #[test]
    fn what_is_no_id_decodes_to_nothing() {
        let good = EventId(new_v7(wall_time())).to_string();
        let bad_character = good.replace(good.chars().last().unwrap(), "u");

        for text in [
            "",
            "evt",
            "evt_",
            "evt_01",
            good.strip_prefix('e').unwrap(),
            &format!("{good}0"),
            &bad_character,
        ] {
            assert_eq!(decode(text.as_bytes(), b"evt"), None, "{text}");
        }
        assert_eq!(
            decode(b"evt_8zzzzzzzzzzzzzzzzzzzzzzzzz", b"evt"),
            None,
            "more than 128 bits"
        );
    }
}
