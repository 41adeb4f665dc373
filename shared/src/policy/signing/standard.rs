//! Standard Webhooks `v1`: HMAC-SHA256 of `id.timestamp.body` under each live secret.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use super::{Secret, Signed, VerifyError, vet_time};

const SCHEME: &str = "v1,";
/// `v1,` and 32 bytes in base64.
const SIGNATURE_LENGTH: usize = SCHEME.len() + 44;

/// The `webhook-signature` header: one `v1,<base64>` per secret, separated by spaces.
#[must_use]
pub fn sign_standard<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
    id: &str,
    unix_seconds: i64,
    body: &[u8],
) -> String {
    let timestamp = unix_seconds.to_string();
    let signed = Signed {
        id,
        timestamp: &timestamp,
        body,
    };
    let mut header = String::with_capacity(SIGNATURE_LENGTH);
    for secret in secrets {
        if !header.is_empty() {
            header.push(' ');
        }
        header.push_str(SCHEME);
        STANDARD.encode_string(secret.mac(&signed.parts()), &mut header);
    }
    header
}

/// Checks the `webhook-signature` header of a request against every secret.
///
/// `now` is the caller's clock in Unix seconds; the specification suggests a tolerance of 5 minutes.
/// Signatures are compared in constant time, all of them whatever the first gave.
///
/// # Errors
/// Why the request is not to be believed.
pub fn verify_standard(
    secrets: &[Secret],
    signed: &Signed<'_>,
    signatures: &str,
    now: i64,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    vet_time(signed.timestamp, now, tolerance)?;
    let mut matches = subtle::Choice::from(0);
    for secret in secrets {
        let expected = secret.mac(&signed.parts());
        for given in signatures
            .split(' ')
            .filter_map(|one| one.strip_prefix(SCHEME))
        {
            let given = STANDARD.decode(given).unwrap_or_default();
            matches |= expected.as_slice().ct_eq(&given);
        }
    }
    if bool::from(matches) {
        Ok(())
    } else {
        Err(VerifyError::NoMatch)
    }
}
