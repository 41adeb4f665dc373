//! From fact to verdict: what one request's result means for its delivery.
//!
//! Not here: what follows from it (`decide`), and whether the endpoint is well (the breaker).
//!
//! # Why
//! Anything not listed as transient is permanent (architecture §6): a receiver's refusal does not
//! get better by repetition. What the network does, on the other hand, says nothing about the
//! event; an answer that is not HTTP counts as network, since proxies and half-started servers give
//! such, and one more try costs less than a lost event.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use bytes::Bytes;

use super::address::{DenyReason, UrlError};
use super::postback::FillError;
use crate::domain::attempt::Outcome;
use crate::domain::endpoint::EndpointSettings;

/// What came of one request.
pub type SendResult = Result<Response, SendError>;

/// An answer, at least its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After` as it stands in the answer.
    pub retry_after: Option<String>,
    /// Where a redirect leads: scheme, host and port; the rest may be a credential.
    pub redirect: Option<Box<str>>,
    /// The beginning of the body; any bytes.
    pub excerpt: Bytes,
    /// How the body ended.
    pub body: BodyEnd,
}

/// How the body of an answer ended. The status counts whichever it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// Read to its end, and all of it is in the excerpt.
    Whole,
    /// Longer than the excerpt.
    Longer,
    /// The connection broke inside it.
    Broken,
    /// It was still coming at the deadline.
    TooSlow,
}

impl Response {
    /// What to note beside an attempt, if anything is worth it.
    #[must_use]
    pub fn note(&self) -> Option<Cow<'static, str>> {
        match &self.redirect {
            Some(origin) => Some(Cow::Owned(format!(
                "the receiver redirects to {origin}; redirects are not followed: change the \
                 endpoint's URL to where it leads"
            ))),
            None => self.body.note().map(Cow::Borrowed),
        }
    }
}

impl BodyEnd {
    /// What to note beside an attempt, if anything is worth it.
    #[must_use]
    pub const fn note(self) -> Option<&'static str> {
        match self {
            Self::Whole | Self::Longer => None,
            Self::Broken => Some("the connection broke inside the response body"),
            Self::TooSlow => Some("the response body was not complete at the deadline"),
        }
    }
}

/// The part of a request that was under way when time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looking up the name.
    Dns,
    /// Opening the TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Sending the request and waiting for the head of the answer.
    Response,
}

/// What is wrong with a receiver's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CertificateProblem {
    /// Its time is over.
    #[error("the certificate has expired")]
    Expired,
    /// Its time has not come.
    #[error("the certificate is not valid yet: is its machine's clock right?")]
    NotValidYet,
    /// It is somebody else's.
    #[error(
        "the certificate is not for the endpoint's host (names are taken from its subject \
         alternative names alone)"
    )]
    WrongName,
    /// It vouches for itself.
    #[error("the certificate is self-signed")]
    SelfSigned,
    /// It came alone, and none of the authorities that we know issued it. Browsers fetch what is missing.
    #[error(
        "the certificate's issuer is not trusted and no intermediate certificate was sent: \
         install the full chain at the receiver"
    )]
    MissingIntermediate,
    /// None of the authorities that we know vouches for it.
    #[error("the certificate was issued by nobody who is trusted here")]
    UnknownIssuer,
    /// Its issuer took it back.
    #[error("the certificate was revoked")]
    Revoked,
    /// Anything else.
    #[error("the certificate cannot be used (encoding, purpose or signature)")]
    Unusable,
}

impl CertificateProblem {
    /// The name in metrics and logs. A closed set.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "certificate_expired",
            Self::NotValidYet => "certificate_not_valid_yet",
            Self::WrongName => "certificate_wrong_name",
            Self::SelfSigned => "certificate_self_signed",
            Self::MissingIntermediate => "certificate_missing_intermediate",
            Self::UnknownIssuer => "certificate_unknown_issuer",
            Self::Revoked => "certificate_revoked",
            Self::Unusable => "certificate_unusable",
        }
    }
}

/// What this machine lacks for another socket. It will have it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Shortage {
    /// EMFILE, ENFILE.
    #[error("too many files are open")]
    Files,
    /// EADDRNOTAVAIL.
    #[error("no local port is free towards the receiver")]
    Ports,
    /// ENOBUFS, ENOMEM.
    #[error("the system has no memory for it")]
    Memory,
}

/// Why there is no answer. Texts name no URL, header or address: they are stored and shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The address policy forbids where the request would go. Nothing was sent.
    #[error("{0}")]
    AddressDenied(DenyReason),
    /// The stored URL is none that an endpoint may have: the rules or the settings became stricter
    /// since it was saved. Nothing was sent.
    #[error("the endpoint's url {0}")]
    UrlDenied(UrlError),
    /// The endpoint's template cannot be filled from this payload. Nothing was sent.
    #[error("{0}")]
    Template(FillError),
    /// The name has no address, or its servers do not answer.
    #[error("the host name could not be resolved: {0}")]
    Dns(Box<str>),
    /// No TCP connection.
    #[error("could not connect: {0}")]
    Connect(io::ErrorKind),
    /// Our trouble, and for now: nothing was asked of the receiver.
    #[error("this worker could not open a connection: {0}")]
    NoSocket(Shortage),
    /// The TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(Box<str>),
    /// The receiver's certificate does not prove who it is.
    #[error("TLS: {0}")]
    Certificate(CertificateProblem),
    /// The operator's forward proxy opened no way to the receiver.
    #[error("the forward proxy: {0}")]
    Proxy(Box<str>),
    /// The operator's forward proxy does not work, or not for us: ours to mend, and the receiver was not asked.
    #[error("the forward proxy: {0}")]
    ProxyAway(Box<str>),
    /// The deadline passed.
    #[error("timed out {}", match .0 {
        Phase::Dns => "resolving the host name",
        Phase::Connect => "connecting",
        Phase::Tls => "in the TLS handshake",
        Phase::Response => "waiting for the response; the request may have been received",
    })]
    Timeout(Phase),
    /// The connection, made for this request, broke before the head of an answer.
    #[error("the connection was closed before the response; the request may have been received")]
    Reset,
    /// A reused connection broke before the head of an answer: as a rule the receiver was closing
    /// it for being idle and never saw the request, but it may have.
    #[error(
        "a reused connection was closed before the response; the request may have been received"
    )]
    MaybeSent,
    /// The receiver closed one connection after the other for a request that it says it never
    /// acted on.
    #[error("the receiver closed every connection before it took the request")]
    NotSent,
    /// The answer is not HTTP.
    #[error("the response is not valid HTTP")]
    Protocol,
    /// Our fault: the request could not be made.
    #[error("the request could not be made: {0}")]
    Internal(&'static str),
}

impl SendError {
    /// Every [`SendError::kind`] there is.
    pub const KINDS: [&'static str; 23] = [
        "address_denied",
        "url_denied",
        "template",
        "dns",
        "connect",
        "no_socket",
        "tls",
        "certificate_expired",
        "certificate_not_valid_yet",
        "certificate_wrong_name",
        "certificate_self_signed",
        "certificate_missing_intermediate",
        "certificate_unknown_issuer",
        "certificate_revoked",
        "certificate_unusable",
        "proxy",
        "proxy_away",
        "timeout",
        "reset",
        "maybe_sent",
        "not_sent",
        "protocol",
        "internal",
    ];

    /// The name in metrics and logs. A closed set.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AddressDenied(_) => "address_denied",
            Self::UrlDenied(_) => "url_denied",
            Self::Template(_) => "template",
            Self::Dns(_) => "dns",
            Self::Connect(_) => "connect",
            Self::NoSocket(_) => "no_socket",
            Self::Tls(_) => "tls",
            Self::Certificate(problem) => problem.name(),
            Self::Proxy(_) => "proxy",
            Self::ProxyAway(_) => "proxy_away",
            Self::Timeout(_) => "timeout",
            Self::Reset => "reset",
            Self::MaybeSent => "maybe_sent",
            Self::NotSent => "not_sent",
            Self::Protocol => "protocol",
            Self::Internal(_) => "internal",
        }
    }

    const fn outcome(&self) -> Outcome {
        match self {
            Self::AddressDenied(_) | Self::UrlDenied(_) | Self::Template(_) => Outcome::Refused,
            Self::Dns(_)
            | Self::Connect(_)
            | Self::Tls(_)
            | Self::Certificate(_)
            | Self::Proxy(_)
            | Self::Timeout(_)
            | Self::Reset
            | Self::MaybeSent
            | Self::NotSent
            | Self::Protocol => Outcome::Transient,
            Self::Internal(_) | Self::NoSocket(_) | Self::ProxyAway(_) => Outcome::Internal,
        }
    }
}

/// What a result means. `retry_statuses`: the statuses that this endpoint wants tried again; nothing
/// makes a success, a 410 or a 429 anything else.
#[must_use]
pub fn classify(result: &SendResult, retry_statuses: &[u16]) -> Outcome {
    match result {
        Ok(response) => {
            let outcome = classify_status(response.status);
            let refused = matches!(outcome, Outcome::Permanent | Outcome::Misconfigured);
            if refused && retry_statuses.contains(&response.status) {
                Outcome::Transient
            } else {
                outcome
            }
        }
        Err(error) => error.outcome(),
    }
}

const fn classify_status(status: u16) -> Outcome {
    match status {
        200..=299 => Outcome::Delivered,
        401 | 403 | 404 => Outcome::Misconfigured,
        410 => Outcome::Gone,
        429 => Outcome::Throttled,
        408 | 409 | 421 | 423 | 425 => Outcome::Transient,
        501 | 505 => Outcome::Permanent,
        500..=599 => Outcome::Transient,
        _ => Outcome::Permanent,
    }
}

/// What `decide` needs to know of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// What the result means.
    pub outcome: Outcome,
    /// How long the receiver asks to be left alone.
    pub retry_after: Option<Duration>,
    /// A connection ended as connections do, with or without the request (*maybe sent*, *not sent*), or
    /// we could open none: that says nothing about the receiver, and will pass.
    pub blameless: bool,
}

impl Verdict {
    /// The verdict on a request's result at an endpoint with these settings.
    #[must_use]
    pub fn of(result: &SendResult, settings: &EndpointSettings, now: time::OffsetDateTime) -> Self {
        let (retry_after, blameless) = match result {
            Ok(response) => (response.retry_after.as_deref(), false),
            Err(error) => {
                let blameless = matches!(
                    error,
                    SendError::MaybeSent
                        | SendError::NotSent
                        | SendError::NoSocket(_)
                        | SendError::ProxyAway(_)
                );
                (None, blameless)
            }
        };
        Self {
            outcome: classify(result, &settings.retry_statuses),
            retry_after: retry_after.and_then(|text| super::retry_after::parse(text, now)),
            blameless,
        }
    }

    /// The verdict where no request was made: `internal`, `refused`, `expired`.
    #[must_use]
    pub const fn without_request(outcome: Outcome) -> Self {
        Self {
            outcome,
            retry_after: None,
            blameless: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn answer(status: u16) -> SendResult {
        Ok(Response {
            status,
            retry_after: None,
            redirect: None,
            excerpt: Bytes::new(),
            body: BodyEnd::Whole,
        })
    }

    /// The error of the next kind. A new variant has no place to go but into this chain.
    fn next_kind(error: &SendError) -> Option<SendError> {
        use CertificateProblem as P;
        use SendError as E;
        let next = match error {
            E::AddressDenied(_) => E::UrlDenied(UrlError::Blank),
            E::UrlDenied(_) => E::Template(FillError::Dots),
            E::Template(_) => E::Dns("".into()),
            E::Dns(_) => E::Connect(io::ErrorKind::Other),
            E::Connect(_) => E::NoSocket(Shortage::Files),
            E::NoSocket(_) => E::Tls("".into()),
            E::Tls(_) => E::Certificate(P::Expired),
            E::Certificate(P::Expired) => E::Certificate(P::NotValidYet),
            E::Certificate(P::NotValidYet) => E::Certificate(P::WrongName),
            E::Certificate(P::WrongName) => E::Certificate(P::SelfSigned),
            E::Certificate(P::SelfSigned) => E::Certificate(P::MissingIntermediate),
            E::Certificate(P::MissingIntermediate) => E::Certificate(P::UnknownIssuer),
            E::Certificate(P::UnknownIssuer) => E::Certificate(P::Revoked),
            E::Certificate(P::Revoked) => E::Certificate(P::Unusable),
            E::Certificate(P::Unusable) => E::Proxy("".into()),
            E::Proxy(_) => E::ProxyAway("".into()),
            E::ProxyAway(_) => E::Timeout(Phase::Dns),
            E::Timeout(_) => E::Reset,
            E::Reset => E::MaybeSent,
            E::MaybeSent => E::NotSent,
            E::NotSent => E::Protocol,
            E::Protocol => E::Internal(""),
            E::Internal(_) => return None,
        };
        Some(next)
    }

    #[test]
    fn every_kind_is_listed_once_and_in_the_order_of_the_variants() {
        let first = SendError::AddressDenied(DenyReason::Private);
        let all = std::iter::successors(Some(first), next_kind);
        let kinds: Vec<_> = all.map(|error| error.kind()).collect();
        assert_eq!(kinds, SendError::KINDS);
    }

    #[test]
    fn every_status_has_the_class_of_the_design() {
        for status in 100..=599 {
            let expected = match status {
                200..=299 => Outcome::Delivered,
                408 | 409 | 421 | 423 | 425 => Outcome::Transient,
                401 | 403 | 404 => Outcome::Misconfigured,
                410 => Outcome::Gone,
                429 => Outcome::Throttled,
                500 | 502..=504 | 506..=599 => Outcome::Transient,
                _ => Outcome::Permanent,
            };
            assert_eq!(classify(&answer(status), &[]), expected, "{status}");
        }
        for status in [0, 99, 600, 999, u16::MAX] {
            assert_eq!(
                classify(&answer(status), &[]),
                Outcome::Permanent,
                "{status}"
            );
        }
    }

    #[test]
    fn a_listed_status_is_tried_again_unless_it_is_a_success_a_410_or_a_429() {
        for status in 0..=1_000 {
            let before = classify(&answer(status), &[]);
            let refused = matches!(before, Outcome::Permanent | Outcome::Misconfigured);
            let expected = if refused { Outcome::Transient } else { before };
            assert_eq!(
                classify(&answer(status), &[1, status]),
                expected,
                "{status}"
            );
            assert_eq!(classify(&answer(status), &[status + 1]), before, "{status}");
        }
        assert_eq!(classify(&answer(410), &[410]), Outcome::Gone);
        assert_eq!(classify(&answer(429), &[429]), Outcome::Throttled);
        let settings = EndpointSettings {
            retry_statuses: vec![422],
            ..EndpointSettings::default()
        };
        let verdict = Verdict::of(&answer(422), &settings, datetime!(2026-11-29 12:00 UTC));
        assert_eq!(verdict.outcome, Outcome::Transient);
    }

    #[test]
    fn a_2xx_is_delivered_however_its_body_ended() {
        for body in [
            BodyEnd::Whole,
            BodyEnd::Longer,
            BodyEnd::Broken,
            BodyEnd::TooSlow,
        ] {
            let result = answer(200).map(|response| Response { body, ..response });
            assert_eq!(classify(&result, &[]), Outcome::Delivered, "{body:?}");
        }
        assert!(BodyEnd::Broken.note().is_some());
        assert!(BodyEnd::TooSlow.note().is_some());
    }

    #[test]
    fn errors_are_transient_unless_it_is_policy_or_our_fault() {
        let cases = [
            (
                SendError::AddressDenied(DenyReason::Private),
                Outcome::Refused,
            ),
            (SendError::UrlDenied(UrlError::NotHttps), Outcome::Refused),
            (SendError::Dns("no such host".into()), Outcome::Transient),
            (
                SendError::Connect(io::ErrorKind::ConnectionRefused),
                Outcome::Transient,
            ),
            (SendError::Tls("expired".into()), Outcome::Transient),
            (SendError::Timeout(Phase::Connect), Outcome::Transient),
            (SendError::Reset, Outcome::Transient),
            (SendError::MaybeSent, Outcome::Transient),
            (SendError::NotSent, Outcome::Transient),
            (SendError::Proxy("no".into()), Outcome::Transient),
            (
                SendError::Certificate(CertificateProblem::Expired),
                Outcome::Transient,
            ),
            (SendError::Protocol, Outcome::Transient),
            (SendError::Internal("no secret"), Outcome::Internal),
            (SendError::NoSocket(Shortage::Files), Outcome::Internal),
            (SendError::ProxyAway("gone".into()), Outcome::Internal),
        ];
        for (error, expected) in cases {
            assert!(!error.to_string().is_empty());
            assert_eq!(
                classify(&Err(error.clone()), &[]),
                expected,
                "{}",
                error.kind()
            );
        }
    }

    #[test]
    fn a_verdict_reads_retry_after_of_any_answer_and_knows_maybe_sent() {
        let now = datetime!(2026-11-29 12:00 UTC);
        let settings = EndpointSettings::default();
        let busy = answer(503).map(|response| Response {
            retry_after: Some("7".to_owned()),
            ..response
        });

        assert_eq!(
            Verdict::of(&busy, &settings, now),
            Verdict {
                outcome: Outcome::Transient,
                retry_after: Some(Duration::from_secs(7)),
                blameless: false
            }
        );
        for ended in [
            SendError::MaybeSent,
            SendError::NotSent,
            SendError::NoSocket(Shortage::Ports),
            SendError::ProxyAway("gone".into()),
        ] {
            assert!(Verdict::of(&Err(ended), &settings, now).blameless);
        }
        assert!(!Verdict::of(&Err(SendError::Reset), &settings, now).blameless);
    }
}
