//! The headers of a request, in the contract's order (§5): ours first, then the endpoint's own,
//! which can replace none of ours and none that frame the request.
//!
//! # Invariants
//! - P1 the signature covers the bytes that are sent.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use shared::ids::{DeliveryId, EventId};
use shared::policy::classify::SendError;
use shared::policy::signing::sign_standard;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use url::Url;

use crate::endpoint_config::SigningSecret;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");
const DELIVERY_ID: HeaderName = HeaderName::from_static("postrider-delivery-id");
const ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
const DELIVERY_TIMESTAMP: HeaderName = HeaderName::from_static("x-delivery-timestamp");

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("Postrider/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// RFC 3339 with milliseconds, UTC.
const INSTANT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// Ours, and what hyper adds: `Accept`, `Content-Length`.
const OUR_HEADERS: usize = 12;

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
    /// The endpoint's secrets, the current one first; those whose overlap has ended are left out.
    /// None: the request is not signed.
    pub secrets: &'a [SigningSecret],
    /// The bytes of the payload.
    pub body: &'a [u8],
}

/// The headers of one attempt. An own header that is reserved is left out; the API refuses it.
///
/// # Errors
/// [`SendError::Internal`] if the URL has no host or a stored text cannot be a header.
pub fn headers_for(stamp: &Stamp<'_>, url: &Url, own: &HeaderMap) -> Result<HeaderMap, SendError> {
    let id = stamp.event_id.to_string();
    let seconds = stamp.started_at.unix_timestamp();
    let mut headers = HeaderMap::with_capacity(OUR_HEADERS + own.len());
    headers.insert(HOST, host(url)?);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(USER_AGENT, AGENT);
    let live = stamp
        .secrets
        .iter()
        .filter(|one| one.expires_at.is_none_or(|end| stamp.started_at < end));
    let signature = sign_standard(live.map(|one| &one.secret), &id, seconds, stamp.body);
    headers.insert(WEBHOOK_ID, value(id)?);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds));
    if !signature.is_empty() {
        headers.insert(WEBHOOK_SIGNATURE, value(signature)?);
    }
    headers.insert(
        EVENT_TYPE,
        HeaderValue::from_str(stamp.event_type).map_err(not_a_header)?,
    );
    headers.insert(DELIVERY_ID, value(stamp.delivery_id.to_string())?);
    headers.insert(ATTEMPT, HeaderValue::from(stamp.attempt));
    headers.insert(DELIVERY_TIMESTAMP, instant(stamp.started_at)?);
    for (name, value) in own {
        if !is_reserved(name) {
            headers.append(name, value.clone());
        }
    }
    Ok(headers)
}

/// An endpoint's own headers, ready to be sent. What cannot be a header is left out: the API took it
/// from nobody.
#[must_use]
pub fn own_headers(stored: &[(String, String)]) -> HeaderMap {
    let mut own = HeaderMap::with_capacity(stored.len());
    for (name, value) in stored {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            own.append(name, value);
        } else {
            tracing::warn!("a stored header of an endpoint is not a legal header and is not sent");
        }
    }
    own
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

/// Ours, and those that frame the request or steer the connection. `Accept-Encoding` would ask for
/// answers that nobody here decodes.
fn is_reserved(name: &HeaderName) -> bool {
    let text = name.as_str();
    [
        HOST,
        CONTENT_LENGTH,
        CONTENT_TYPE,
        USER_AGENT,
        CONNECTION,
        TRANSFER_ENCODING,
        TE,
        TRAILER,
        UPGRADE,
        EXPECT,
        DELIVERY_TIMESTAMP,
        http::header::ACCEPT_ENCODING,
    ]
    .contains(name)
        || ["keep-alive", "proxy-connection", "http2-settings"].contains(&text)
        || text.starts_with("webhook-")
        || text.starts_with("postrider-")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::ids::new_v7;
    use shared::policy::signing::{Secret, Signed, VerifyError, verify_standard};
    use time::macros::datetime;

    use super::*;

    fn stamp<'a>(secrets: &'a [SigningSecret], body: &'a [u8]) -> Stamp<'a> {
        let at = datetime!(2026-11-29 12:00:00.123456 UTC);
        Stamp {
            event_id: EventId(new_v7(at)),
            event_type: "order.created",
            delivery_id: DeliveryId(new_v7(at)),
            attempt: 3,
            started_at: at,
            secrets,
            body,
        }
    }

    fn secret(seed: u8, expires_at: Option<OffsetDateTime>) -> SigningSecret {
        SigningSecret {
            secret: Secret::generate([seed; 32]),
            expires_at,
        }
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn the_headers_come_in_the_order_of_the_contract() {
        let secrets = [secret(1, None)];
        let own = HeaderMap::from_iter([(
            HeaderName::from_static("x-api-key"),
            HeaderValue::from_static("k"),
        )]);

        let headers = headers_for(
            &stamp(&secrets, b"{}"),
            &url("https://a.example:8443/x"),
            &own,
        )
        .unwrap();

        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        let expected = [
            "host",
            "content-type",
            "user-agent",
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
    fn the_signature_fits_the_other_headers() {
        let started_at = stamp(&[], b"").started_at;
        let secrets = [
            secret(1, None),
            secret(2, Some(started_at + time::Duration::SECOND)),
            secret(3, Some(started_at)),
        ];
        let headers = headers_for(
            &stamp(&secrets, b"{\"a\":1}"),
            &url("http://a.example/"),
            &HeaderMap::new(),
        )
        .unwrap();
        let text = |name: &str| headers[name].to_str().unwrap();
        let signed = Signed {
            id: text("webhook-id"),
            timestamp: text("webhook-timestamp"),
            body: b"{\"a\":1}",
        };

        let verdicts = secrets.map(|one| {
            let signatures = text("webhook-signature");
            verify_standard(
                &[one.secret],
                &signed,
                signatures,
                1_795_953_600,
                Duration::ZERO,
            )
        });
        assert_eq!(verdicts, [Ok(()), Ok(()), Err(VerifyError::NoMatch)]);
    }

    #[test]
    fn an_own_header_replaces_none_of_ours_and_frames_nothing() {
        let stamp = stamp(&[], b"{}");
        let reserved = [
            "host",
            "content-length",
            "content-type",
            "user-agent",
            "connection",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "keep-alive",
            "proxy-connection",
            "accept-encoding",
            "webhook-id",
            "webhook-signature",
            "webhook-anything",
            "postrider-attempt",
            "postrider-anything",
            "x-delivery-timestamp",
        ];
        let own: HeaderMap = reserved
            .iter()
            .map(|name| (name.parse().unwrap(), HeaderValue::from_static("evil")))
            .collect();

        let with = headers_for(&stamp, &url("http://a.example/"), &own).unwrap();

        assert_eq!(
            with,
            headers_for(&stamp, &url("http://a.example/"), &HeaderMap::new()).unwrap()
        );
        assert!(
            !with.contains_key("webhook-signature"),
            "unsigned without a secret"
        );
    }

    #[test]
    fn own_headers_may_repeat() {
        let mut own = HeaderMap::new();
        own.append("x-tag", HeaderValue::from_static("a"));
        own.append("x-tag", HeaderValue::from_static("b"));
        let headers = headers_for(&stamp(&[], b""), &url("http://a.example/"), &own).unwrap();
        assert_eq!(headers.get_all("x-tag").iter().count(), 2);
    }
}
