//! The payload that the generator sends and the receiver measures by.
//!
//! A JSON object of an exact size that begins with the instant it was sent at, as boot-clock
//! nanoseconds in a fixed place: the receiver reads 20 digits instead of parsing JSON. Sender and
//! receiver run on one machine, so they share that clock. Postrider hands the bytes through
//! unchanged (P1), or the receiver could not find the stamp.

use std::ops::Range;

use shared::runtime::clock::boot_time;

/// What every payload begins with.
const PREFIX: &[u8] = br#"{"sent_ns":""#;
/// What stands between the stamp and the filler.
const MIDDLE: &[u8] = br#"","filler":""#;
/// What every payload ends with.
const SUFFIX: &[u8] = br#""}"#;
/// Digits of a stamp: a `u64` always fits.
const DIGITS: usize = 20;

/// The smallest payload that holds a stamp, in bytes.
pub const SMALLEST: usize = PREFIX.len() + DIGITS + MIDDLE.len() + SUFFIX.len();

/// Nanoseconds of the boot clock.
#[must_use]
pub fn now_ns() -> u64 {
    u64::try_from(boot_time().0.as_nanos()).unwrap_or(u64::MAX)
}

/// A payload of `size` bytes (at least [`SMALLEST`]) with a stamp of zero, and where its stamp is.
#[must_use]
pub fn blank(size: usize) -> (Vec<u8>, Range<usize>) {
    let filler = size.saturating_sub(SMALLEST);
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(PREFIX);
    bytes.extend_from_slice(&[b'0'; DIGITS]);
    bytes.extend_from_slice(MIDDLE);
    bytes.extend((b'a'..=b'z').cycle().take(filler));
    bytes.extend_from_slice(SUFFIX);
    (bytes, PREFIX.len()..PREFIX.len() + DIGITS)
}

/// Writes `value` into `digits`, with leading zeros.
pub fn write_stamp(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

/// The stamp of a payload; `None` if it is not one of ours or was changed on its way.
#[must_use]
pub fn stamp(payload: &[u8]) -> Option<u64> {
    let rest = payload.strip_prefix(PREFIX)?;
    let (digits, rest) = rest.split_at_checked(DIGITS)?;
    if !rest.starts_with(MIDDLE) || !payload.ends_with(SUFFIX) {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_from_a_payload_of_the_asked_size_that_is_json() {
        for value in [0, 7, 1_234_567_890_123, u64::MAX] {
            let (mut payload, place) = blank(512);
            write_stamp(&mut payload[place], value);

            assert_eq!(payload.len(), 512);
            assert_eq!(stamp(&payload), Some(value));
            serde_json::from_slice::<serde_json::Value>(&payload).unwrap();
        }
    }

    #[test]
    fn a_payload_that_was_changed_has_no_stamp() {
        let (payload, place) = blank(SMALLEST + 10);
        let mut not_a_digit = payload.clone();
        not_a_digit[place.start] = b'x';
        let mut spaced = payload.clone();
        spaced.insert(1, b' ');

        assert_eq!(stamp(&payload), Some(0));
        assert_eq!(stamp(&not_a_digit), None);
        assert_eq!(stamp(&spaced), None);
        assert_eq!(stamp(&payload[..payload.len() - 1]), None);
        assert_eq!(stamp(b""), None);
    }
}
