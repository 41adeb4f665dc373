//! The headers of a request, in the contract's order (§5): ours first, then the endpoint's own,
//! which can replace none of ours and none that frame the request ([`shared::policy::headers`]).
//!
//! # Invariants
//! - P1 the signature covers the bytes that are sent, and `content-length` counts them.
//!
//! # Why
//! The same headers in the same order on every attempt: old receivers and firewalls match on it.
//! `Content-Length` is ours to write, because a client library would put it last, or leave it out
//! for a body that it does not know the length of; some receivers take no chunks.

use http::HeaderMap;
use http::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT,
};
use shared::domain::trace::{TRACEPARENT, TraceContext};
use shared::ids::{DeliveryId, EventId};
use shared::policy::classify::SendError;
use shared::policy::headers::{self as rules, HeaderError};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use url::Url;

use crate::signing_keys::SigningKeys;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");
const DELIVERY_ID: HeaderName = HeaderName::from_static("postrider-delivery-id");
const ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
const DELIVERY_TIMESTAMP: HeaderName = HeaderName::from_static("x-delivery-timestamp");

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("Postrider/", env!("CARGO_PKG_VERSION")));
/// Some firewalls take a request without `Accept` for an attack; an endpoint may say what it likes.
const ANY: HeaderValue = HeaderValue::from_static("*/*");

/// RFC 3339 with milliseconds, UTC.
const INSTANT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// How many are ours.
const OUR_HEADERS: usize = 13;

/// What tells one attempt from another, and what is signed.
pub struct Stamp<'a> {
    /// The event: the same on every attempt and replay.
    pub event_id: EventId,
    /// Its type.
    pub event_type: &'a str,
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The number of the request, from 1.
    pub attempt: u16,
    /// When the request starts.
    pub started_at: OffsetDateTime,
    /// The endpoint's keys; those whose overlap has ended are left out.
    pub keys: &'a SigningKeys,
    /// What is sent and signed.
    pub body: &'a [u8],
    /// Of what kind it is; `None`: a request without a body.
    pub content_type: Option<HeaderValue>,
    /// The attempt's span, where the endpoint asks for it.
    pub trace: Option<TraceContext>,
}

/// The headers of one attempt. `own` are the endpoint's, from [`own_headers`]; whatever they are,
/// none replaces one of ours.
///
/// # Errors
/// [`SendError::Internal`] if the URL has no host or a stored text cannot be a header.
pub fn headers_for(stamp: &Stamp<'_>, url: &Url, own: &HeaderMap) -> Result<HeaderMap, SendError> {
    let id = stamp.event_id.to_string();
    let seconds = stamp.started_at.unix_timestamp();
    let mut headers = HeaderMap::with_capacity(OUR_HEADERS + own.len());
    headers.insert(HOST, host(url)?);
    if let Some(content_type) = &stamp.content_type {
        headers.insert(CONTENT_TYPE, content_type.clone());
        headers.insert(CONTENT_LENGTH, HeaderValue::from(stamp.body.len()));
    }
    headers.insert(USER_AGENT, AGENT);
    if !own.contains_key(ACCEPT) {
        headers.insert(ACCEPT, ANY);
    }
    let signature = stamp
        .keys
        .header(&id, stamp.started_at, stamp.body)
        .map_err(SendError::Internal)?;
    headers.insert(WEBHOOK_ID, value(id)?);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds));
    if let Some((name, value)) = signature {
        headers.insert(name, value);
    }
    headers.insert(
        EVENT_TYPE,
        HeaderValue::from_str(stamp.event_type).map_err(not_a_header)?,
    );
    headers.insert(DELIVERY_ID, value(stamp.delivery_id.to_string())?);
    headers.insert(ATTEMPT, HeaderValue::from(stamp.attempt));
    headers.insert(DELIVERY_TIMESTAMP, instant(stamp.started_at)?);
    if let Some(context) = stamp.trace {
        headers.insert(TRACEPARENT, value(context.to_string())?);
    }
    for (name, value) in own {
        if !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
    Ok(headers)
}

/// An endpoint's own headers, ready to be sent.
///
/// # Errors
/// Why the first that is not legal is not: the API saves none such, so the row is damaged or older
/// than today's rules.
pub fn own_headers(stored: &[(String, String)]) -> Result<HeaderMap, HeaderError> {
    let pairs = stored
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    rules::check(pairs).map_err(|(_, error)| error)?;
    let mut own = HeaderMap::with_capacity(stored.len());
    for (name, value) in stored {
        let name = HeaderName::try_from(name).map_err(|_illegal| HeaderError::NameIllegal)?;
        let value = HeaderValue::try_from(value).map_err(|_illegal| HeaderError::Control)?;
        own.append(name, value);
    }
    Ok(own)
}

/// First of all headers, as RFC 9112 asks; hyper would put it last.
fn host(url: &Url) -> Result<HeaderValue, SendError> {
    let host = url
        .host_str()
        .ok_or(SendError::Internal("the URL has no host"))?;
    match url.port() {
        None => HeaderValue::from_str(host).map_err(not_a_header),
        Some(port) => value(format!("{host}:{port}")),
    }
}

fn instant(at: OffsetDateTime) -> Result<HeaderValue, SendError> {
    at.to_utc()
        .format(INSTANT)
        .map_err(|_far_future| SendError::Internal("the time cannot be a header"))
        .and_then(value)
}

fn value(text: String) -> Result<HeaderValue, SendError> {
    HeaderValue::try_from(text).map_err(not_a_header)
}

fn not_a_header(_shows_nothing: http::header::InvalidHeaderValue) -> SendError {
    SendError::Internal("a stored text cannot be a header")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::domain::signature::SignatureStyle;
    use shared::ids::new_v7;
    use shared::policy::signing::{
        KeyPair, PublicKey, Secret, Signed, VerifyError, verify_ed25519, verify_standard,
        verify_stripe,
    };
    use time::macros::datetime;

    use crate::signing_keys::Live;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-29 12:00:00.123456 UTC);
    const SECONDS: i64 = 1_795_953_600;
    const BODY: &[u8] = b"{\"a\":1}";

    fn stamp<'a>(keys: &'a SigningKeys, body: &'a [u8]) -> Stamp<'a> {
        Stamp {
            event_id: EventId(new_v7(NOW)),
            event_type: "order.created",
            delivery_id: DeliveryId(new_v7(NOW)),
            attempt: 3,
            started_at: NOW,
            keys,
            body,
            content_type: Some(HeaderValue::from_static("application/json")),
            trace: None,
        }
    }

    /// Keys made of these bytes. The first has no end, the second one a second later, the third one just now.
    fn keys(style: SignatureStyle, secrets: &[u8], pairs: &[u8]) -> SigningKeys {
        let ends = [None, Some(NOW + time::Duration::SECOND), Some(NOW)];
        let secret = |(seed, expires_at): (&u8, _)| Live {
            key: Secret::generate([*seed; 32]),
            expires_at,
        };
        let pair = |(seed, expires_at): (&u8, _)| Live {
            key: KeyPair::generate([*seed; 32]),
            expires_at,
        };
        SigningKeys {
            style,
            secrets: secrets.iter().zip(ends).map(secret).collect(),
            pairs: pairs.iter().zip(ends).map(pair).collect(),
        }
    }

    fn unsigned() -> SigningKeys {
        keys(SignatureStyle::None, &[], &[])
    }

    fn signed_by(keys: &SigningKeys) -> Result<HeaderMap, SendError> {
        let url = url("http://a.example/");
        headers_for(&stamp(keys, BODY), &url, &HeaderMap::new())
    }

    /// What receivers make of it who know the first, the second and the third key.
    fn verdicts(keys: &SigningKeys, headers: &HeaderMap) -> [Vec<Result<(), VerifyError>>; 3] {
        let text = |name: &str| {
            let value = headers.get(name);
            value.map_or("", |value| value.to_str().unwrap())
        };
        let signed = Signed {
            id: text("webhook-id"),
            timestamp: text("webhook-timestamp"),
            body: BODY,
        };
        let signature = text("webhook-signature");
        let secrets = keys.secrets.iter().map(|one| [one.key.clone()]);
        let pairs: Vec<[PublicKey; 1]> = keys
            .pairs
            .iter()
            .map(|one| [one.key.public_key()])
            .collect();
        [
            secrets
                .clone()
                .map(|one| verify_standard(&one, &signed, signature, SECONDS, Duration::ZERO))
                .collect(),
            pairs
                .iter()
                .map(|one| verify_ed25519(one, &signed, signature, SECONDS, Duration::ZERO))
                .collect(),
            secrets
                .map(|one| {
                    let header = text("postrider-signature");
                    verify_stripe(&one, header, BODY, SECONDS, Duration::ZERO)
                })
                .collect(),
        ]
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn the_headers_come_in_the_order_of_the_contract() {
        let keys = keys(SignatureStyle::Standard, &[1], &[]);
        let own = HeaderMap::from_iter([(
            HeaderName::from_static("x-api-key"),
            HeaderValue::from_static("k"),
        )]);

        let headers =
            headers_for(&stamp(&keys, b"{}"), &url("https://a.example:8443/x"), &own).unwrap();

        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        let expected = [
            "host",
            "content-type",
            "content-length",
            "user-agent",
            "accept",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "postrider-event-type",
            "postrider-delivery-id",
            "postrider-attempt",
            "x-delivery-timestamp",
            "x-api-key",
        ];
        assert_eq!(names, expected);
        assert_eq!(headers["host"], "a.example:8443");
        assert_eq!(headers["content-length"], "2");
        assert_eq!(headers["postrider-attempt"], "3");
        assert_eq!(headers["x-delivery-timestamp"], "2026-11-29T12:00:00.123Z");
        assert_eq!(headers["webhook-timestamp"], "1795953600");
        assert!(
            headers["user-agent"]
                .to_str()
                .unwrap()
                .starts_with("Postrider/0.")
        );
        assert!(headers["webhook-id"].to_str().unwrap().starts_with("evt_"));
    }

    #[test]
    fn a_trace_context_stands_behind_our_headers_and_before_one_of_the_endpoint() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let own = own_headers(&[("traceparent".to_owned(), "its-own".to_owned())]).unwrap();
        let url = Url::parse("https://a.example/").unwrap();
        let keys = keys(SignatureStyle::None, &[], &[]);
        for (trace, sent) in [
            (TraceContext::parse(text.as_bytes()), text),
            (None, "its-own"),
        ] {
            let stamp = Stamp {
                trace,
                ..stamp(&keys, BODY)
            };
            let headers = headers_for(&stamp, &url, &own).unwrap();
            let values: Vec<_> = headers.get_all("traceparent").iter().collect();
            assert_eq!(values, [sent]);
            assert_eq!(headers.keys().last().unwrap(), "traceparent");
        }
    }

    const GOOD: Result<(), VerifyError> = Ok(());
    const BAD: Result<(), VerifyError> = Err(VerifyError::NoMatch);
    const ABSENT: Result<(), VerifyError> = Err(VerifyError::Timestamp);

    #[test]
    fn p1_a_standard_signature_fits_the_other_headers_and_leaves_out_what_has_ended() {
        let keys = keys(SignatureStyle::Standard, &[1, 2, 3], &[4, 5, 6]);
        let headers = signed_by(&keys).unwrap();

        let live = vec![GOOD, GOOD, BAD];
        assert_eq!(
            verdicts(&keys, &headers),
            [live.clone(), live, vec![ABSENT; 3]]
        );
        let text = headers["webhook-signature"].to_str().unwrap();
        let schemes: Vec<&str> = text
            .split(' ')
            .map(|one| one.split_once(',').unwrap().0)
            .collect();
        assert_eq!(schemes, ["v1", "v1", "v1a", "v1a"], "newest first");
    }

    #[test]
    fn each_scheme_can_sign_alone() {
        let only_v1 = keys(SignatureStyle::Standard, &[1], &[]);
        let headers = signed_by(&only_v1).unwrap();
        assert_eq!(verdicts(&only_v1, &headers)[0], [GOOD]);
        let text = headers["webhook-signature"].to_str().unwrap();
        assert!(text.starts_with("v1,") && !text.contains(' '), "{text}");

        let only_v1a = keys(SignatureStyle::Standard, &[], &[4]);
        let headers = signed_by(&only_v1a).unwrap();
        assert_eq!(verdicts(&only_v1a, &headers)[1], [GOOD]);
        let text = headers["webhook-signature"].to_str().unwrap();
        assert!(text.starts_with("v1a,") && !text.contains(' '), "{text}");
    }

    #[test]
    fn p1_a_signature_in_stripes_form_stands_in_a_header_of_its_own() {
        let keys = keys(SignatureStyle::Stripe, &[1, 2, 3], &[]);
        let headers = signed_by(&keys).unwrap();

        assert_eq!(verdicts(&keys, &headers)[2], [GOOD, GOOD, BAD]);
        assert!(!headers.contains_key("webhook-signature"));
        assert!(headers["webhook-id"].to_str().unwrap().starts_with("evt_"));
        assert_eq!(headers["webhook-timestamp"], SECONDS.to_string());
    }

    #[test]
    fn what_is_to_be_signed_is_not_sent_without_a_live_key() {
        for style in [SignatureStyle::Standard, SignatureStyle::Stripe] {
            let mut ended = keys(style, &[1], &[]);
            ended.secrets[0].expires_at = Some(NOW);
            for keys in [ended, keys(style, &[], &[])] {
                let result = signed_by(&keys);
                assert!(matches!(result, Err(SendError::Internal(_))), "{result:?}");
            }
        }
        let headers = signed_by(&unsigned()).unwrap();
        let names = ["webhook-signature", "postrider-signature"];
        assert!(names.iter().all(|name| !headers.contains_key(*name)));
        assert!(headers.contains_key("webhook-id"));
    }

    /// P1: twice over: what would frame the request or pass for ours is not taken, and what would
    /// replace one of ours is not sent.
    #[test]
    fn p1_an_own_header_replaces_none_of_ours_and_frames_nothing() {
        let url = url("http://a.example/");
        let keys = keys(SignatureStyle::Standard, &[1], &[]);
        let ours = headers_for(&stamp(&keys, b"{}"), &url, &HeaderMap::new()).unwrap();
        let evil = HeaderValue::from_static("evil");

        // An endpoint may say itself what it accepts.
        let ours: HeaderMap = ours
            .into_iter()
            .filter_map(|(name, value)| Some((name.filter(|it| *it != ACCEPT)?, value)))
            .collect();
        let names = ours.keys().cloned().chain([
            HeaderName::from_static("connection"),
            HeaderName::from_static("transfer-encoding"),
        ]);
        for name in names {
            let stored = [(name.to_string(), "evil".to_owned())];
            assert!(own_headers(&stored).is_err(), "{name}");
        }
        let replacing = ours
            .keys()
            .map(|name| (name.clone(), evil.clone()))
            .collect();
        let with = headers_for(&stamp(&keys, b"{}"), &url, &replacing).unwrap();
        assert_eq!(with.len(), ours.len() + 1);
        assert!(with.values().all(|value| value != evil));
    }

    #[test]
    fn a_request_that_is_not_to_be_signed_is_not_signed_by_anything_else() {
        let headers = headers_for(
            &stamp(&unsigned(), b"{}"),
            &url("http://a.example/"),
            &HeaderMap::new(),
        )
        .unwrap();
        assert!(!headers.contains_key("webhook-signature"));
        let stored = [("webhook-signature".to_owned(), "v1,evil".to_owned())];
        assert_eq!(own_headers(&stored), Err(HeaderError::Ours));
    }

    #[test]
    fn own_headers_keep_their_order_and_one_that_is_not_legal_spoils_them_all() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut stored = vec![
            pair("X-B", "1"),
            pair("X-A", "2"),
            pair("Authorization", "Bearer 3"),
        ];
        let own = own_headers(&stored).unwrap();
        let names: Vec<&str> = own.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-b", "x-a", "authorization"]);

        stored.insert(1, pair("X-C", "a\r\nb: c"));
        assert_eq!(own_headers(&stored), Err(HeaderError::LineBreak));
    }
}
