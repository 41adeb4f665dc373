//! What a tenant may put into the headers of an endpoint's requests.
//!
//! One rule set for both ends: the API judges by it what it saves, the worker what it reads back. A
//! header that passes can be sent as it is, in HTTP/1.1 and in HTTP/2. Not here: our own headers
//! (the worker's sender), and keeping values secret.
//!
//! # Invariants
//! - P1 no header of a tenant frames the body, describes it, or passes for one of ours.
//! - S2 no error shows a value.
//!
//! # Why
//! Refused when saved, because a header that cannot be sent would fail every delivery; refused again
//! when read, because a row can come from elsewhere (an older version, a repair by hand), and
//! leaving out what may be the receiver's credential would be a silent failure.
//!
//! Names are compared without case and with `_` as `-`: CGI, WSGI and Rack hand both to a program
//! under one name, so that `webhook_signature` would pass for ours there.
//!
//! Source: RFC 9110, sections 5 (fields), 7.6 (hop by hop) and 8 (the body's own).

use std::collections::HashSet;

/// The most headers of one endpoint.
pub const MAX_HEADERS: usize = 32;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 4_096;

/// The most bytes of all names and values together: with ours below the 8 KiB that common servers
/// take for one line and half of the 16 KiB that they take for all.
pub const MAX_TOTAL_BYTES: usize = 7 << 10;

/// Why a header cannot be one of an endpoint's own: a phrase that follows the header's name, with
/// the fix. Shows no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// No name.
    #[error("is no header name: it is empty")]
    NameEmpty,
    /// A name that no header has.
    #[error("is no header name: use only letters, digits and !#$%&'*+-.^_`|~")]
    NameIllegal,
    /// Too long a name.
    #[error("is too long: a header name has at most {MAX_NAME_BYTES} bytes")]
    NameTooLong,
    /// One of ours, or one that describes our body.
    #[error("is set by Postrider for each request: leave it out")]
    Ours,
    /// One that belongs to the connection or frames the request.
    #[error("belongs to the connection (RFC 9110, 7.6.1), not to the endpoint: leave it out")]
    Connection,
    /// One that asks for an answer which we cannot take, or is not for requests.
    #[error("has no use in a webhook: nothing here could act on what it asks for; leave it out")]
    NoUse,
    /// One that proxies set and receivers trust.
    #[error("is for proxies to set, and receivers trust it: use a header of another name")]
    Proxies,
    /// The same name twice.
    #[error("is there twice (case and `_` for `-` make no difference): keep one of them")]
    Twice,
    /// No value.
    #[error("must have a value: leave the header out if there is none")]
    ValueEmpty,
    /// Too long a value.
    #[error("must have a value of at most {MAX_VALUE_BYTES} bytes")]
    ValueTooLong,
    /// A line break: it would begin another header.
    #[error("must not have a line break in its value: put it on one line")]
    LineBreak,
    /// Another control character.
    #[error(
        "must not have a control character (NUL, tab, DEL or the like) in its value: take it out"
    )]
    Control,
    /// Not ASCII.
    #[error("must have only ASCII in its value: encode other characters, for example in base64")]
    NotAscii,
    /// A blank at an end.
    #[error("must not have a blank before or after its value, where receivers drop it: trim it")]
    Blank,
    /// Too many.
    #[error("is one too many: an endpoint has at most {MAX_HEADERS} headers")]
    TooMany,
    /// Too much in all.
    #[error(
        "is too much: all names and values together have at most {MAX_TOTAL_BYTES} bytes, because servers refuse more"
    )]
    TotalTooLong,
}

/// What Postrider sets itself, and what would describe a body that is not the tenant's to describe.
const OURS: &[&str] = &[
    "content-digest",
    "content-encoding",
    "content-length",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "digest",
    "host",
    "repr-digest",
    "user-agent",
    "x-delivery-timestamp",
];
const OUR_PREFIXES: &[&str] = &["postrider-", "webhook-"];

/// What every hop sets for the next one.
const CONNECTION: &[&str] = &[
    "alt-used",
    "connection",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const CONNECTION_PREFIXES: &[&str] = &["proxy-"];

/// `Expect` waits for an answer before the body, `Accept-Encoding` asks for a compressed one that
/// nobody here unpacks; a method override is not the request that the attempt then shows. The
/// others are for answers, or for browsers of the past.
const NO_USE: &[&str] = &[
    "accept-encoding",
    "cookie2",
    "expect",
    "max-forwards",
    "set-cookie",
    "set-cookie2",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// Who a request came from and through: receivers let addresses in by these, and the tenants of one
/// Postrider share its addresses.
const PROXIES: &[&str] = &[
    "cf-connecting-ip",
    "client-ip",
    "forwarded",
    "true-client-ip",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-real-ip",
];
const PROXY_PREFIXES: &[&str] = &["x-forwarded-"];

/// Judges all headers of an endpoint: each by itself and all together.
///
/// # Errors
/// The position of the first header that is not legal, and why it is not.
pub fn check<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<(), (usize, HeaderError)> {
    let mut together = Together::default();
    for (position, (name, value)) in headers.into_iter().enumerate() {
        check_name(name)
            .and_then(|()| check_value(value))
            .and_then(|()| together.add(name, value))
            .map_err(|error| (position, error))?;
    }
    Ok(())
}

/// Judges one name.
///
/// # Errors
/// Why no header of an endpoint may have it.
pub fn check_name(name: &str) -> Result<(), HeaderError> {
    if name.is_empty() {
        return Err(HeaderError::NameEmpty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(HeaderError::NameTooLong);
    }
    if !name.bytes().all(is_token) {
        return Err(HeaderError::NameIllegal);
    }
    reserved(&folded(name)).map_or(Ok(()), Err)
}

/// Judges one value.
///
/// # Errors
/// Why no header may have it.
pub fn check_value(value: &str) -> Result<(), HeaderError> {
    if value.is_empty() {
        return Err(HeaderError::ValueEmpty);
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(HeaderError::ValueTooLong);
    }
    if value.contains(['\r', '\n']) {
        return Err(HeaderError::LineBreak);
    }
    if !value.is_ascii() {
        return Err(HeaderError::NotAscii);
    }
    if value.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(HeaderError::Control);
    }
    if value.starts_with(' ') || value.ends_with(' ') {
        return Err(HeaderError::Blank);
    }
    Ok(())
}

/// What is legal only once, or only up to a sum.
#[derive(Debug, Default)]
pub struct Together {
    names: HashSet<String>,
    bytes: usize,
}

impl Together {
    /// Counts one more header.
    ///
    /// # Errors
    /// Why it is not legal beside those counted before.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), HeaderError> {
        if self.names.len() >= MAX_HEADERS {
            return Err(HeaderError::TooMany);
        }
        if !self.names.insert(folded(name)) {
            return Err(HeaderError::Twice);
        }
        self.bytes = self.bytes.saturating_add(name.len() + value.len());
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(HeaderError::TotalTooLong);
        }
        Ok(())
    }
}

/// A name in the form in which two are the same.
fn folded(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

fn reserved(folded: &str) -> Option<HeaderError> {
    let kinds = [
        (HeaderError::Ours, OURS, OUR_PREFIXES),
        (HeaderError::Connection, CONNECTION, CONNECTION_PREFIXES),
        (HeaderError::NoUse, NO_USE, &[]),
        (HeaderError::Proxies, PROXIES, PROXY_PREFIXES),
    ];
    kinds
        .into_iter()
        .find(|(_, names, prefixes)| {
            names.contains(&folded) || prefixes.iter().any(|prefix| folded.starts_with(prefix))
        })
        .map(|(error, _, _)| error)
}

/// RFC 9110, 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
