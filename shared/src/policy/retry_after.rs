//! What a receiver's `Retry-After` asks for. It is a stranger's text: anything may stand in it.
//!
//! Seconds (also fractional) and HTTP dates are understood, of several the longest wait counts, and
//! nothing waits longer than a day. What is not understood, negative or past asks for nothing.
//!
//! # Invariants
//! - D5 the result is at most 24 h, and a caller that takes the later of two instants is only ever
//!   delayed by it.
//!
//! Source: RFC 9110, section 10.2.3.

use std::time::{Duration, UNIX_EPOCH};

use time::OffsetDateTime;

/// The longest wait that a receiver can ask for. Some send milliseconds where seconds are due.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Longer than any date; a receiver's text beyond it is not looked at.
const MAX_LENGTH: usize = 256;

/// How long the receiver asks to be left alone, from `now`; `None` if it asks for nothing usable.
#[must_use]
pub fn parse(text: &str, now: OffsetDateTime) -> Option<Duration> {
    let text = text.trim_matches([' ', '\t']);
    if text.len() > MAX_LENGTH {
        return None;
    }
    let asked = match date(text) {
        Some(at) => until(at, now),
        None => text.split(',').map(seconds).reduce(longest).flatten(),
    };
    asked
        .map(|wait| wait.min(MAX_RETRY_AFTER))
        .filter(|wait| !wait.is_zero())
}

/// The longer of two, if both were understood: half of a list is no list.
fn longest(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    Some(a?.max(b?))
}

/// Seconds since the Unix epoch of any of the three forms of an HTTP date.
fn date(text: &str) -> Option<u64> {
    let at = httpdate::parse_http_date(text).ok()?;
    at.duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs())
}

fn until(at: u64, now: OffsetDateTime) -> Option<Duration> {
    let now = u64::try_from(now.unix_timestamp()).ok()?;
    at.checked_sub(now).map(Duration::from_secs)
}

/// Digits, and perhaps a point and more digits; no sign, no exponent.
fn seconds(text: &str) -> Option<Duration> {
    let text = text.trim_matches([' ', '\t']);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    // Only digits: what does not fit is a wait without end.
    let whole = whole
        .parse()
        .unwrap_or(u64::MAX)
        .min(MAX_RETRY_AFTER.as_secs());
    let milliseconds = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(3)
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some(Duration::from_secs(whole) + Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-29 12:00:00 UTC);

    #[test]
    fn every_form_that_receivers_send_is_understood_or_ignored() {
        let cases: &[(&str, Option<u64>)] = &[
            ("120", Some(120_000)),
            (" \t120 ", Some(120_000)),
            ("0120", Some(120_000)),
            ("1.5", Some(1_500)),
            ("0.0009", None),
            ("0", None),
            ("86400", Some(86_400_000)),
            ("86401", Some(86_400_000)),
            ("120000", Some(86_400_000)),
            ("99999999999999999999999999999999999999", Some(86_400_000)),
            ("10, 30, 20", Some(30_000)),
            ("10, soon", None),
            ("10,", None),
            ("-5", None),
            ("+5", None),
            ("1e9", None),
            ("5s", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("0x10", None),
            ("NaN", None),
            ("Infinity", None),
            ("٣", None),
            ("", None),
            (",", None),
            ("soon", None),
            ("Sun, 29 Nov 2026 12:02:00 GMT", Some(120_000)),
            ("Sunday, 29-Nov-26 12:02:00 GMT", Some(120_000)),
            ("Sun Nov 29 12:02:00 2026", Some(120_000)),
            ("Sun, 29 Nov 2026 11:58:00 GMT", None),
            ("Sun, 29 Nov 2026 12:00:00 GMT", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400_000)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", None),
            ("Sun, 31 Feb 2027 12:00:00 GMT", None),
            ("Sun, 29 Nov 2026 25:00:00 GMT", None),
            ("2026-11-29T12:02:00Z", None),
        ];
        for (text, expected) in cases {
            assert_eq!(
                parse(text, NOW),
                expected.map(Duration::from_millis),
                "{text:?}"
            );
        }
        assert_eq!(parse(&"9".repeat(100_000), NOW), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_048))]

        /// D5
        #[test]
        fn any_text_at_any_time_asks_for_at_most_a_day(
            text in prop_oneof![
                "\\PC*",
                "[0-9., -]{0,40}",
                "[0-9]{1,30}",
                "(Mon|Sun), [0-9]{2} (Jan|Nov) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
            ],
            now in -377_705_116_800_i64..=253_402_300_799,
        ) {
            let now = OffsetDateTime::from_unix_timestamp(now).unwrap();
            if let Some(wait) = parse(&text, now) {
                prop_assert!(wait > Duration::ZERO && wait <= MAX_RETRY_AFTER);
            }
        }

        #[test]
        fn whole_seconds_are_taken_at_their_word(seconds in 1_u64..=86_400) {
            prop_assert_eq!(parse(&seconds.to_string(), NOW), Some(Duration::from_secs(seconds)));
        }
    }
}
