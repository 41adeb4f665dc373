//! Is a request really from Postrider? What `listen`, `verify` and the demo receiver ask.

use std::time::Duration;

use shared::policy::signing::{Secret, Signed, verify_standard};

/// What was found out about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A signature fits one of the secrets.
    Valid,
    /// None does, and why.
    Invalid(String),
    /// There was no secret to check with.
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

/// Checks a request's signature; `now` in Unix seconds.
pub(crate) fn check(
    secrets: &[Secret],
    headers: &[(String, String)],
    body: &[u8],
    now: i64,
    tolerance: Duration,
) -> Verdict {
    if secrets.is_empty() {
        return Verdict::Unchecked;
    }
    let need = |name: &str| {
        header(headers, name).ok_or_else(|| Verdict::Invalid(format!("there is no {name} header")))
    };
    let verified = need("webhook-id").and_then(|id| {
        let timestamp = need("webhook-timestamp")?;
        let signatures = need("webhook-signature")?;
        let signed = Signed {
            id,
            timestamp,
            body,
        };
        verify_standard(secrets, &signed, signatures, now, tolerance)
            .map_err(|error| Verdict::Invalid(error.to_string()))
    });
    match verified {
        Ok(()) => Verdict::Valid,
        Err(verdict) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use shared::policy::signing::sign_standard;

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
        let check = |secrets: &[Secret], headers: &[(String, String)], body: &[u8]| {
            check(secrets, headers, body, 1_001, TOLERANCE)
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
}
