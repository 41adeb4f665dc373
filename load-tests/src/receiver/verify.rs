//! Checks Standard Webhooks signatures (`v1`) the way a receiver of somebody else's would.
//!
//! Not `shared::policy::signing`: the code under test is no witness for itself, and here each key
//! is prepared once and cloned, which halves the work per request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use shared::runtime::clock::wall_time;

use crate::http::Request;
use crate::receiver::books::Signature;

/// How far a `webhook-timestamp` may be from this machine's clock, in seconds; the specification's.
const TOLERANCE_SECONDS: u64 = 300;

/// Which requests are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    All,
    /// One in 16, chosen by the signature itself.
    Sample,
    None,
}

/// The prepared keys of the endpoints, in their order.
#[derive(Debug, Default)]
pub struct Keys(Vec<Hmac<Sha256>>);

impl Keys {
    /// Prepares the secrets (`whsec_…`) of endpoints 0, 1, 2 …; the error names the first bad one.
    pub fn prepare(secrets: &[String]) -> Result<Self, String> {
        let prepare = |(number, secret): (usize, &String)| {
            let encoded = secret.strip_prefix("whsec_").unwrap_or(secret);
            let key = STANDARD.decode(encoded).ok();
            key.and_then(|key| Hmac::new_from_slice(&key).ok())
                .ok_or_else(|| format!("the secret of endpoint {number} is not base64"))
        };
        secrets
            .iter()
            .enumerate()
            .map(prepare)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether `request`, sent to endpoint number `endpoint`, is signed by its key.
    #[must_use]
    pub fn check(&self, verify: Verify, endpoint: usize, request: &Request<'_>) -> Signature {
        let wanted = match verify {
            Verify::All => true,
            Verify::Sample => sampled(request.webhook_signature),
            Verify::None => false,
        };
        if !wanted {
            return Signature::Unchecked;
        }
        match self.0.get(endpoint) {
            Some(key) if recent(request.webhook_timestamp) && signed(key, request) => {
                Signature::Good
            }
            Some(_) | None => Signature::Bad,
        }
    }
}

/// An absent or short signature is always looked at.
fn sampled(signature: &[u8]) -> bool {
    let sum = signature
        .iter()
        .rev()
        .take(8)
        .fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    signature.len() < 8 || sum & 15 == 0
}

fn recent(timestamp: &[u8]) -> bool {
    std::str::from_utf8(timestamp)
        .ok()
        .and_then(|text| text.parse::<i64>().ok())
        .is_some_and(|at| wall_time().unix_timestamp().abs_diff(at) <= TOLERANCE_SECONDS)
}

fn signed(key: &Hmac<Sha256>, request: &Request<'_>) -> bool {
    let mut mac = key.clone();
    for part in [
        request.webhook_id,
        b".",
        request.webhook_timestamp,
        b".",
        request.body,
    ] {
        mac.update(part);
    }
    let wanted = mac.finalize().into_bytes();
    request
        .webhook_signature
        .split(|byte| *byte == b' ')
        .any(|signature| {
            let encoded = signature.strip_prefix(b"v1,").unwrap_or_default();
            let mut decoded = [0; 48];
            match STANDARD.decode_slice(encoded, &mut decoded) {
                Ok(length) => decoded.get(..length) == Some(wanted.as_slice()),
                Err(_not_base64) => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification's own libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn request<'b>(timestamp: &'b str, signature: &'b str) -> Request<'b> {
        Request {
            webhook_id: b"msg_p5jXN8AQM9LWM0D4loKWxJek",
            webhook_timestamp: timestamp.as_bytes(),
            webhook_signature: signature.as_bytes(),
            body: br#"{"test": 2432232314}"#,
            ..Request::default()
        }
    }

    #[test]
    fn the_published_example_is_signed_by_its_key_and_by_no_other() {
        let other = format!("whsec_{}", STANDARD.encode([7; 24]));
        let keys = Keys::prepare(&[SECRET.to_owned(), other]).unwrap();
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let example = request("1614265330", signature);
        let second = format!("v1,AAAA {signature}");

        assert!(signed(&keys.0[0], &example));
        assert!(!signed(&keys.0[1], &example));
        assert!(
            signed(&keys.0[0], &request("1614265330", &second)),
            "any of several"
        );
        assert!(
            !signed(&keys.0[0], &request("1614265331", signature)),
            "another time"
        );
        assert!(!signed(&keys.0[0], &request("1614265330", "")));
    }

    #[test]
    fn an_old_timestamp_an_unknown_endpoint_and_no_signature_are_bad() {
        let keys = Keys::prepare(&[SECRET.to_owned()]).unwrap();
        let now = wall_time().unix_timestamp().to_string();
        let old = request(
            "1614265330",
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        );

        assert_eq!(keys.check(Verify::All, 0, &old), Signature::Bad);
        assert_eq!(
            keys.check(Verify::All, 1, &request(&now, "")),
            Signature::Bad
        );
        assert_eq!(
            keys.check(Verify::Sample, 0, &request(&now, "")),
            Signature::Bad
        );
        assert_eq!(keys.check(Verify::None, 0, &old), Signature::Unchecked);
    }

    #[test]
    fn a_secret_that_is_no_secret_is_named() {
        let error = Keys::prepare(&[SECRET.to_owned(), "whsec_!".to_owned()]).unwrap_err();

        assert_eq!(error, "the secret of endpoint 1 is not base64");
    }
}
