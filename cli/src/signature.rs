//! Is a request really from Postrider? What `listen`, `verify` and the demo receiver ask.

use std::time::Duration;

use shared::policy::signing::{
    PUBLIC_KEY_PREFIX, PublicKey, Secret, Signed, verify_ed25519, verify_standard, verify_stripe,
};

const STANDARD: &str = "webhook-signature";
const STRIPE: &str = "postrider-signature";

/// What was found out about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A signature fits one of the keys.
    Valid,
    /// None does, and why.
    Invalid(String),
    /// There was no key to check with.
    Unchecked,
}

impl Verdict {
    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Valid => "valid".to_owned(),
            Self::Invalid(why) => format!("NOT VALID: {why}"),
            Self::Unchecked => "not checked (give --secret)".to_owned(),
        }
    }

    /// For programs: `null` when nothing was checked.
    pub(crate) const fn is_valid(&self) -> Option<bool> {
        match self {
            Self::Valid => Some(true),
            Self::Invalid(_) => Some(false),
            Self::Unchecked => None,
        }
    }
}

/// The header with this name, whatever its case.
pub(crate) fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// What a receiver checks with, by its texts' prefixes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys {
    /// `whsec_…`: for `v1`, and for Stripe's form.
    pub(crate) secrets: Vec<Secret>,
    /// `whpk_…`: for `v1a`.
    pub(crate) public: Vec<PublicKey>,
}

impl Keys {
    /// Takes texts apart; why one is no key, without showing it.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, String> {
        let mut keys = Self::default();
        for text in texts.iter().map(|text| text.trim()) {
            if text.starts_with(PUBLIC_KEY_PREFIX) {
                let key = PublicKey::parse(text).map_err(|error| error.to_string())?;
                keys.public.push(key);
            } else {
                let secret = Secret::parse(text)
                    .map_err(|error| format!("{error}; a public key with `{PUBLIC_KEY_PREFIX}`"))?;
                keys.secrets.push(secret);
            }
        }
        Ok(keys)
    }

    const fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.public.is_empty()
    }
}

/// Checks a request's signature, in whichever form it has one; `now` in Unix seconds.
pub(crate) fn check(
    keys: &Keys,
    headers: &[(String, String)],
    body: &[u8],
    now: i64,
    tolerance: Duration,
) -> Verdict {
    if keys.is_empty() {
        return Verdict::Unchecked;
    }
    let verified = match header(headers, STRIPE) {
        Some(signatures) if header(headers, STANDARD).is_none() => {
            verify_stripe(&keys.secrets, signatures, body, now, tolerance)
                .map_err(|error| error.to_string())
        }
        Some(_) | None => standard(keys, headers, body, now, tolerance),
    };
    match verified {
        Ok(()) => Verdict::Valid,
        Err(why) => Verdict::Invalid(why),
    }
}

/// One scheme that fits is enough.
fn standard(
    keys: &Keys,
    headers: &[(String, String)],
    body: &[u8],
    now: i64,
    tolerance: Duration,
) -> Result<(), String> {
    let need =
        |name: &str| header(headers, name).ok_or_else(|| format!("there is no {name} header"));
    let (id, timestamp) = (need("webhook-id")?, need("webhook-timestamp")?);
    let signatures = need(STANDARD)?;
    let signed = Signed {
        id,
        timestamp,
        body,
    };
    verify_standard(&keys.secrets, &signed, signatures, now, tolerance)
        .or_else(|_v1| verify_ed25519(&keys.public, &signed, signatures, now, tolerance))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use shared::policy::signing::{KeyPair, sign_ed25519, sign_standard, sign_stripe};

    use super::*;

    const TOLERANCE: Duration = Duration::from_secs(300);

    fn headers(signature: &str) -> Vec<(String, String)> {
        [
            ("Webhook-Id", "evt_1"),
            ("WEBHOOK-TIMESTAMP", "1000"),
            ("webhook-signature", signature),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    #[test]
    fn a_request_is_believed_only_with_a_secret_that_fits_and_all_its_headers() {
        let secret = Secret::generate([1; 32]);
        let stranger = Secret::generate([2; 32]);
        let good = headers(&sign_standard(
            std::slice::from_ref(&secret),
            "evt_1",
            1_000,
            b"{}",
        ));
        let keys = |secrets: &[Secret]| Keys {
            secrets: secrets.to_vec(),
            public: Vec::new(),
        };
        let check = |secrets: &[Secret], headers: &[(String, String)], body: &[u8]| {
            check(&keys(secrets), headers, body, 1_001, TOLERANCE)
        };

        assert_eq!(
            check(std::slice::from_ref(&secret), &good, b"{}"),
            Verdict::Valid
        );
        assert_eq!(check(&[], &good, b"{}"), Verdict::Unchecked);
        assert!(matches!(
            check(&[stranger], &good, b"{}"),
            Verdict::Invalid(_)
        ));
        let secret = [secret];
        assert!(matches!(check(&secret, &good, b"{} "), Verdict::Invalid(_)));
        for missing in 0..good.len() {
            let mut fewer = good.clone();
            let (name, _) = fewer.remove(missing);
            match check(&secret, &fewer, b"{}") {
                Verdict::Invalid(why) => {
                    assert!(why.contains(&name.to_lowercase()), "{why}");
                }
                other @ (Verdict::Valid | Verdict::Unchecked) => panic!("{other:?} without {name}"),
            }
        }
    }

    #[test]
    fn each_form_is_recognized_and_checked_with_the_key_that_fits() {
        let secret = Secret::generate([1; 32]);
        let pair = KeyPair::generate([2; 32]);
        let texts = [secret.reveal(), pair.public_key().to_string()];
        let [with_secret, with_public] =
            texts.map(|text| Keys::parse(&[format!(" {text}\n")]).unwrap());
        let signed = Signed {
            id: "evt_1",
            timestamp: "1000",
            body: b"{}",
        };
        let mut v1a = String::new();
        sign_ed25519(&mut v1a, [&pair], &signed);
        let mut stripe = headers("");
        stripe[2] = (
            "Postrider-Signature".to_owned(),
            sign_stripe([&secret], 1_000, b"{}"),
        );
        let both = format!("{} {v1a}", sign_standard([&secret], "evt_1", 1_000, b"{}"));

        for (headers, by_secret, by_public) in [
            (headers(&v1a), false, true),
            (headers(&both), true, true),
            (stripe, true, false),
        ] {
            for (keys, expected) in [(&with_secret, by_secret), (&with_public, by_public)] {
                let valid = |body: &[u8]| check(keys, &headers, body, 1_000, TOLERANCE).is_valid();
                assert_eq!(valid(b"{}"), Some(expected), "{headers:?}");
                assert_eq!(valid(b"{ }"), Some(false), "{headers:?}");
            }
        }
        let error = Keys::parse(&["hunter2".to_owned()]).unwrap_err();
        assert!(
            error.contains("whsec_") && error.contains("whpk_"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}
