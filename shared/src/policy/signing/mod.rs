//! Signatures a receiver can check, each scheme in a file of its own.
//!
//! - [`sign_standard`]: Standard Webhooks `v1`, HMAC-SHA256 with a [`Secret`];
//! - [`sign_ed25519`]: Standard Webhooks `v1a`, Ed25519 with a [`KeyPair`], of which receivers know the
//!   public half only;
//! - [`sign_stripe`]: the header that Stripe's verifiers read, with a [`Secret`].
//!
//! The first two cover `id.timestamp.body` and share the header `webhook-signature`; the last covers
//! `timestamp.body`. Several live keys give several signatures. Not here: which keys are live, how they
//! are kept (`sealing`), and the clock; the caller gives the timestamp.
//!
//! # Invariants
//! - P1 the bytes signed are the bytes given: the body is read where it lies, neither copied nor parsed.
//! - S2 a key shows itself only to who asks for its bytes or its text; its `Debug` is redacted and its
//!   memory is wiped when it is dropped.
//!
//! # Known answers
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
//! The other two were computed by OpenSSL (`pkeyutl -sign -rawin` with the key of RFC 8032's first test;
//! `dgst -sha256 -hmac`):
//! ```
//! use shared::policy::signing::{KeyPair, Secret, Signed, sign_ed25519, sign_stripe};
//!
//! let seed = [
//!     0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4,
//!     0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
//! ];
//! let pair = KeyPair::generate(seed);
//! assert_eq!(
//!     pair.public_key().to_string(),
//!     "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
//! );
//! let body = br#"{"test": 2432232314}"#;
//! let signed = Signed {
//!     id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
//!     timestamp: "1614265330",
//!     body,
//! };
//! let mut header = String::new();
//! sign_ed25519(&mut header, &[pair], &signed);
//! assert_eq!(
//!     header,
//!     "v1a,fldxM4gAKugP6nnt1hdz3sgGfZ6d99nzrMFnZOELIxbzEHoVmAb2ADpkJK7zgPePmPsle0zV9jSeGlHFG2NVAw=="
//! );
//!
//! // The second secret's text is longer than a block of SHA-256.
//! let short = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let long = Secret::from_bytes(&[7; 64])?;
//! assert_eq!(
//!     sign_stripe(&[short, long], 1_614_265_330, body),
//!     "t=1614265330,v1=2e37df5d4a028c51a7f3133d64ae1e300d2c2c900f1b1d49d4369ad2530f8964,\
//!      v1=a575c08d11a3b231282678088657027a9d3181ee53946a11bde7a1192d3eae7b"
//! );
//! # Ok::<(), shared::policy::signing::InvalidSecret>(())
//! ```
//!
//! Source: Standard Webhooks specification 1.0.0, "Signature scheme" and "Verifying"; RFC 8032;
//! Stripe, "Verify webhook signatures manually".

mod ed25519;
mod secret;
mod standard;
mod stripe;

use std::time::Duration;

pub use self::ed25519::{
    InvalidKey, KeyPair, PUBLIC_KEY_PREFIX, PublicKey, sign_ed25519, verify_ed25519,
};
pub use self::secret::{InvalidSecret, MAX_SECRET_BYTES, MIN_SECRET_BYTES, SECRET_PREFIX, Secret};
pub use self::standard::{sign_standard, verify_standard};
pub use self::stripe::{sign_stripe, verify_stripe};

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

impl Signed<'_> {
    /// What is signed, in pieces: `id.timestamp.body`.
    fn parts(&self) -> [&[u8]; 5] {
        let (id, timestamp) = (self.id.as_bytes(), self.timestamp.as_bytes());
        [id, b".", timestamp, b".", self.body]
    }
}

/// Why a request is not to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The timestamp is not a whole number of seconds.
    #[error("the timestamp is not a whole number of Unix seconds")]
    Timestamp,
    /// The timestamp is further in the past than the tolerance.
    #[error("the timestamp is too old: a replayed request, or a clock that is wrong")]
    TooOld,
    /// The timestamp is further in the future than the tolerance.
    #[error("the timestamp is in the future: is this machine's clock right?")]
    TooNew,
    /// No signature fits any key.
    #[error(
        "no signature matches: another key, a key for another form (whsec_… checks v1 and Stripe's form, whpk_… checks v1a), or the body was changed on its way"
    )]
    NoMatch,
}

/// Whether a request was sent just now: `now` is the caller's clock in Unix seconds.
fn vet_time(timestamp: &str, now: i64, tolerance: Duration) -> Result<(), VerifyError> {
    let sent: i64 = timestamp
        .parse()
        .map_err(|_not_a_number| VerifyError::Timestamp)?;
    let tolerance = i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX);
    if sent < now.saturating_sub(tolerance) {
        return Err(VerifyError::TooOld);
    }
    if sent > now.saturating_add(tolerance) {
        return Err(VerifyError::TooNew);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
