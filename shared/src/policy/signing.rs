//! Signatures a receiver can check: Standard Webhooks version `v1`.
//!
//! What is signed is `id.timestamp.body`, with HMAC-SHA256 under each live secret of the endpoint,
//! sent as `v1,<base64>`, several separated by spaces. Not here: which secrets are live, how they
//! are kept ([`crate::sealing`]), and the clock; the caller gives the timestamp.
//!
//! # Invariants
//! - P1 the bytes signed are the bytes given: the body is fed to the MAC where it lies, neither
//!   copied nor parsed.
//! - S2 a secret shows itself only to [`Secret::reveal`]; its `Debug` is redacted and its memory is
//!   wiped when it is dropped.
//!
//! # Known answer
//! The example of the Standard Webhooks libraries:
//! ```
//! use shared::policy::signing::{Secret, sign_standard};
//!
//! let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let signature = sign_standard(
//!     &[secret],
//!     "msg_p5jXN8AQM9LWM0D4loKWxJek",
//!     1_614_265_330,
//!     br#"{"test": 2432232314}"#,
//! );
//! assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
//! # Ok::<(), shared::policy::signing::InvalidSecret>(())
//! ```
//!
//! Source: Standard Webhooks specification 1.0.0, "Signature scheme" and "Verifying".

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// What the text form of a secret begins with.
pub const SECRET_PREFIX: &str = "whsec_";

/// The fewest bytes of a key: less could be guessed. From the specification.
pub const MIN_SECRET_BYTES: usize = 24;

/// The most bytes of a key. From the specification; also the block of SHA-256, so that a key is
/// never hashed before its use.
pub const MAX_SECRET_BYTES: usize = 64;

const SCHEME: &str = "v1,";
/// `v1,` and 32 bytes in base64.
const SIGNATURE_LENGTH: usize = SCHEME.len() + 44;

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

    fn mac(&self, signed: &Signed<'_>) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new((&*self.block).into());
        for part in [signed.id, ".", signed.timestamp, "."] {
            mac.update(part.as_bytes());
        }
        mac.update(signed.body);
        mac.finalize().into_bytes().into()
    }
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
        STANDARD.encode_string(secret.mac(&signed), &mut header);
    }
    header
}

/// What a signature covers, each part as it stands in the request.
#[derive(Clone, Copy)]
pub struct Signed<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`, Unix seconds in decimal.
    pub timestamp: &'a str,
    /// The bytes of the body.
    pub body: &'a [u8],
}

/// Why a request is not to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// `webhook-timestamp` is not a whole number of seconds.
    #[error("webhook-timestamp is not a whole number of Unix seconds")]
    Timestamp,
    /// The timestamp is further in the past than the tolerance.
    #[error("webhook-timestamp is too old: a replayed request, or a clock that is wrong")]
    TooOld,
    /// The timestamp is further in the future than the tolerance.
    #[error("webhook-timestamp is in the future: is this machine's clock right?")]
    TooNew,
    /// No `v1` signature fits any secret.
    #[error("no signature matches: another secret, or the body was changed on its way")]
    NoMatch,
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
    let sent: i64 = signed
        .timestamp
        .parse()
        .map_err(|_not_a_number| VerifyError::Timestamp)?;
    let tolerance = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    if sent < now.saturating_sub(tolerance) {
        return Err(VerifyError::TooOld);
    }
    if sent > now.saturating_add(tolerance) {
        return Err(VerifyError::TooNew);
    }
    let mut matches = subtle::Choice::from(0);
    for secret in secrets {
        let expected = secret.mac(signed);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTES: Duration = Duration::from_secs(300);

    fn signed<'a>(timestamp: &'a str, body: &'a [u8]) -> Signed<'a> {
        Signed {
            id: "evt_1",
            timestamp,
            body,
        }
    }

    #[test]
    fn a_secret_survives_its_text_form_and_never_shows_itself() {
        let secret = Secret::generate([7; 32]);

        let text = secret.reveal();

        assert!(text.starts_with("whsec_BwcH"), "{text}");
        assert_eq!(Secret::parse(&text).unwrap(), secret);
        assert_eq!(Secret::from_bytes(secret.as_bytes()).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
    }

    #[test]
    fn a_bad_secret_is_refused_without_being_shown() {
        let cases = [
            ("", InvalidSecret::Prefix),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", InvalidSecret::Prefix),
            ("whsec_not base64!", InvalidSecret::Base64),
            ("whsec_AAAA", InvalidSecret::Length(3)),
            ("whsec_", InvalidSecret::Length(0)),
        ];
        for (text, expected) in cases {
            let error = Secret::parse(text).unwrap_err();
            assert_eq!(error, expected, "{text}");
        }
        assert_eq!(Secret::from_bytes(&[0; 23]), Err(InvalidSecret::Length(23)));
        assert!(Secret::from_bytes(&[0; 24]).is_ok());
        assert!(Secret::from_bytes(&[0; 64]).is_ok());
        assert_eq!(Secret::from_bytes(&[0; 65]), Err(InvalidSecret::Length(65)));
    }

    #[test]
    fn keys_of_different_length_sign_differently() {
        let short = Secret::from_bytes(&[1; 24]).unwrap();
        let long = Secret::from_bytes(&[1; 25]).unwrap();

        assert_ne!(
            sign_standard(&[short], "a", 1, b"x"),
            sign_standard(&[long], "a", 1, b"x")
        );
    }

    #[test]
    fn during_a_rotation_either_secret_verifies() {
        let (old, new) = (Secret::generate([1; 32]), Secret::generate([2; 32]));
        let header = sign_standard(&[new.clone(), old.clone()], "evt_1", 1_000, b"{}");
        assert_eq!(header.split(' ').count(), 2);

        for secrets in [vec![old.clone()], vec![new.clone()], vec![new, old]] {
            let verdict =
                verify_standard(&secrets, &signed("1000", b"{}"), &header, 1_000, MINUTES);
            assert_eq!(verdict, Ok(()));
        }
        let stranger = [Secret::generate([3; 32])];
        let verdict = verify_standard(&stranger, &signed("1000", b"{}"), &header, 1_000, MINUTES);
        assert_eq!(verdict, Err(VerifyError::NoMatch));
    }

    #[test]
    fn a_timestamp_outside_the_tolerance_is_refused_whatever_the_signature() {
        let secrets = [Secret::generate([1; 32])];
        let cases = [
            ("1000", Ok(())),
            ("700", Ok(())),
            ("1300", Ok(())),
            ("699", Err(VerifyError::TooOld)),
            ("1301", Err(VerifyError::TooNew)),
            ("-9223372036854775808", Err(VerifyError::TooOld)),
            ("9223372036854775807", Err(VerifyError::TooNew)),
            ("9223372036854775808", Err(VerifyError::Timestamp)),
            ("1000.5", Err(VerifyError::Timestamp)),
            ("", Err(VerifyError::Timestamp)),
        ];
        for (timestamp, expected) in cases {
            let header = match timestamp.parse() {
                Ok(seconds) => sign_standard(&secrets, "evt_1", seconds, b""),
                Err(_) => String::new(),
            };
            let signed = signed(timestamp, b"");
            let verdict = verify_standard(&secrets, &signed, &header, 1_000, MINUTES);
            assert_eq!(verdict, expected, "{timestamp}");
        }
    }

    #[test]
    fn hostile_signature_headers_match_nothing() {
        let secrets = [Secret::generate([1; 32])];
        for header in [
            "",
            " ",
            "v1,",
            "v1",
            "v1,AAAA",
            "v2,AAAA v1,",
            "v1a,AAAA",
            "\u{0}",
        ] {
            let verdict = verify_standard(&secrets, &signed("1", b""), header, 1, MINUTES);
            assert_eq!(verdict, Err(VerifyError::NoMatch), "{header:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// P1: every bit of the body, the id and the time is covered.
        #[test]
        fn a_flipped_bit_is_noticed(
            key in proptest::collection::vec(any::<u8>(), 24..=64),
            body in proptest::collection::vec(any::<u8>(), 1..300),
            seconds in 0_i64..=4_102_444_800,
            position in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let secrets = [Secret::from_bytes(&key).unwrap()];
            let header = sign_standard(&secrets, "evt_1", seconds, &body);
            let timestamp = seconds.to_string();

            let fits = verify_standard(&secrets, &signed(&timestamp, &body), &header, seconds, MINUTES);
            prop_assert_eq!(fits, Ok(()));

            let mut changed = body.clone();
            changed[position.index(body.len())] ^= 1 << bit;
            let verdict =
                verify_standard(&secrets, &signed(&timestamp, &changed), &header, seconds, MINUTES);
            prop_assert_eq!(verdict, Err(VerifyError::NoMatch));

            let later = (seconds + 1).to_string();
            let verdict =
                verify_standard(&secrets, &signed(&later, &body), &header, seconds, MINUTES);
            prop_assert_eq!(verdict, Err(VerifyError::NoMatch));
        }
    }
}
