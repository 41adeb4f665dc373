//! The payload that the generator sends and the receiver measures by.
//!
//! A JSON object of an exact size that begins with its [`Stamp`] in fixed places: the receiver reads
//! digits instead of parsing JSON. Sender and receiver run on one machine, so they share the boot
//! clock. Postrider hands the bytes through unchanged (P1), or the receiver could not find the stamp.

use std::ops::Range;

use shared::runtime::clock::boot_time;

/// What stands before the instant, the key, the number and the filler, and at the end.
const BEFORE_SENT: &[u8] = br#"{"sent_ns":""#;
const BEFORE_KEY: &[u8] = br#"","key":""#;
const BEFORE_NUMBER: &[u8] = br#"","number":""#;
const BEFORE_FILLER: &[u8] = br#"","filler":""#;
const END: &[u8] = br#""}"#;

/// Digits of a `u64` and of a `u32`: every value fits.
const DIGITS: usize = 20;
pub const KEY_DIGITS: usize = 10;

const SENT: Range<usize> = place(BEFORE_SENT.len(), DIGITS);
const KEY: Range<usize> = place(SENT.end + BEFORE_KEY.len(), KEY_DIGITS);
const NUMBER: Range<usize> = place(KEY.end + BEFORE_NUMBER.len(), DIGITS);

/// The smallest payload that holds a stamp, in bytes.
pub const SMALLEST: usize = NUMBER.end + BEFORE_FILLER.len() + END.len();

/// What a payload says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When the event was due to be posted, boot-clock nanoseconds.
    pub sent_ns: u64,
    /// Its ordering key; 0: none.
    pub key: u32,
    /// Its place among the events of its key, in the order in which they were accepted.
    pub number: u64,
}

const fn place(start: usize, length: usize) -> Range<usize> {
    start..start + length
}

/// Nanoseconds of the boot clock.
#[must_use]
pub fn now_ns() -> u64 {
    u64::try_from(boot_time().0.as_nanos()).unwrap_or(u64::MAX)
}

/// A payload of `size` bytes (at least [`SMALLEST`]) with a stamp of zeros.
#[must_use]
pub fn blank(size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size.max(SMALLEST));
    bytes.extend_from_slice(BEFORE_SENT);
    bytes.extend_from_slice(&[b'0'; DIGITS]);
    bytes.extend_from_slice(BEFORE_KEY);
    bytes.extend_from_slice(&[b'0'; KEY_DIGITS]);
    bytes.extend_from_slice(BEFORE_NUMBER);
    bytes.extend_from_slice(&[b'0'; DIGITS]);
    bytes.extend_from_slice(BEFORE_FILLER);
    bytes.extend((b'a'..=b'z').cycle().take(size.saturating_sub(SMALLEST)));
    bytes.extend_from_slice(END);
    bytes
}

/// Writes a stamp into a payload that [`blank`] made.
pub fn write(payload: &mut [u8], stamp: Stamp) {
    let values = [
        (SENT, stamp.sent_ns),
        (KEY, u64::from(stamp.key)),
        (NUMBER, stamp.number),
    ];
    for (place, value) in values {
        if let Some(digits) = payload.get_mut(place) {
            write_number(digits, value);
        }
    }
}

/// Writes `value` into `digits`, with leading zeros.
pub fn write_number(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

/// The stamp of a payload; `None` if it is not one of ours or was changed on its way.
#[must_use]
pub fn stamp(payload: &[u8]) -> Option<Stamp> {
    let ours = payload.starts_with(BEFORE_SENT)
        && payload.get(SENT.end..KEY.start) == Some(BEFORE_KEY)
        && payload.get(KEY.end..NUMBER.start) == Some(BEFORE_NUMBER)
        && payload.get(NUMBER.end..)?.starts_with(BEFORE_FILLER)
        && payload.ends_with(END);
    ours.then_some(Stamp {
        sent_ns: number(payload.get(SENT)?)?,
        key: u32::try_from(number(payload.get(KEY)?)?).ok()?,
        number: number(payload.get(NUMBER)?)?,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
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
            let key = u32::try_from(value).unwrap_or(u32::MAX);
            let written = Stamp {
                sent_ns: value,
                key,
                number: value / 3,
            };
            let mut payload = blank(512);
            write(&mut payload, written);

            assert_eq!(payload.len(), 512);
            assert_eq!(stamp(&payload), Some(written));
            serde_json::from_slice::<serde_json::Value>(&payload).unwrap();
        }
    }

    #[test]
    fn a_payload_that_was_changed_has_no_stamp() {
        let payload = blank(SMALLEST + 10);
        for place in [SENT, KEY, NUMBER] {
            let mut not_a_digit = payload.clone();
            not_a_digit[place.start] = b'x';
            assert_eq!(stamp(&not_a_digit), None);
        }
        let mut spaced = payload.clone();
        spaced.insert(1, b' ');

        assert_eq!(stamp(&payload), Some(Stamp::default()));
        assert_eq!(stamp(&spaced), None);
        assert_eq!(stamp(&payload[..payload.len() - 1]), None);
        assert_eq!(stamp(b""), None);
    }
}
