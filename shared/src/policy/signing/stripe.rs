//! The header that Stripe's verifiers read: `t=<Unix seconds>,v1=<hex>`, HMAC-SHA256 of `t.body`.
//!
//! The key of the MAC is the secret's whole text, `whsec_` included: that is what those verifiers take,
//! and so one of them checks our requests unchanged.
//!
//! The webhook's id is not covered: a receiver that tells repetitions by it has to take the one in the body.

use std::fmt::Write as _;
use std::time::Duration;

use subtle::ConstantTimeEq;

use super::{Secret, VerifyError, vet_time};

/// `,v1=` and 32 bytes in hexadecimal.
const SIGNATURE_LENGTH: usize = 4 + 64;
/// `t=` and the digits of any second of an `i64`.
const TIME_LENGTH: usize = 2 + 20;

/// The `Postrider-Signature` header: the time, and one `v1=` per secret.
#[must_use]
pub fn sign_stripe<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
    unix_seconds: i64,
    body: &[u8],
) -> String {
    let timestamp = unix_seconds.to_string();
    let mut header = String::with_capacity(TIME_LENGTH + SIGNATURE_LENGTH);
    header.push_str("t=");
    header.push_str(&timestamp);
    for secret in secrets {
        header.push_str(",v1=");
        push_hex(&mut header, &mac(secret, &timestamp, body));
    }
    header
}

/// Checks a `Postrider-Signature` header against every secret, in constant time.
///
/// `now` is the caller's clock in Unix seconds; Stripe suggests a tolerance of 5 minutes.
///
/// # Errors
/// Why the request is not to be believed.
pub fn verify_stripe(
    secrets: &[Secret],
    header: &str,
    body: &[u8],
    now: i64,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    let values = |name: &'static str| {
        header
            .split(',')
            .filter_map(|item| item.split_once('='))
            .filter(move |(given, _)| *given == name)
            .map(|(_, value)| value)
    };
    let timestamp = values("t").next().ok_or(VerifyError::Timestamp)?;
    vet_time(timestamp, now, tolerance)?;
    let mut matches = subtle::Choice::from(0);
    for secret in secrets {
        let mut expected = String::with_capacity(64);
        push_hex(&mut expected, &mac(secret, timestamp, body));
        for given in values("v1") {
            matches |= expected.as_bytes().ct_eq(given.as_bytes());
        }
    }
    if bool::from(matches) {
        Ok(())
    } else {
        Err(VerifyError::NoMatch)
    }
}

fn mac(secret: &Secret, timestamp: &str, body: &[u8]) -> [u8; 32] {
    secret.text_mac(&[timestamp.as_bytes(), b".", body])
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _infallible = write!(text, "{byte:02x}");
    }
}
