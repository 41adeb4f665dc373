//! What a text must be to become the URL of an endpoint.
//!
//! Not here: where its host leads ([`super::vet`]); a URL that passes may still point to a private
//! address.
//!
//! # Why
//! Parsers differ in what they make of odd texts, so there is one parse, and its result is what is
//! judged, stored, shown and sent to. A stored URL is read by the same function before each send:
//! a rule that became stricter since, or a setting that changed, holds for old endpoints as well.

use url::{Host, Url};

use super::ports::is_denied;

/// The longest URL of an endpoint, in bytes: what every server and proxy takes.
pub const MAX_URL_LENGTH: usize = 2_048;

/// The longest host name, in bytes, and the longest part between its dots (RFC 1035).
const MAX_NAME_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// Why a text cannot be the URL of an endpoint. Never shows the URL: it may be a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL.
    #[error("is not a valid absolute URL: {0} (it begins with http:// or https://)")]
    Malformed(url::ParseError),
    /// Blanks or control characters, which a URL parser would silently drop.
    #[error("must not contain blanks or control characters; percent-encode them")]
    Blank,
    /// Too long.
    #[error("must not be longer than {MAX_URL_LENGTH} bytes")]
    TooLong,
    /// Neither http nor https.
    #[error("must begin with http:// or https://")]
    Scheme,
    /// http, where the operator wants https.
    #[error("must begin with https:// (POSTRIDER_HTTPS_ONLY is set)")]
    NotHttps,
    /// A user name or password.
    #[error("must not contain a user name or password; use a header instead")]
    Userinfo,
    /// A fragment, which is never sent.
    #[error("must not contain a fragment (#…): it would never be sent")]
    Fragment,
    /// Port 0.
    #[error("must not name port 0")]
    PortZero,
    /// A port of another protocol.
    #[error(
        "must not name port {0}, where another protocol than HTTP is at home; use another port"
    )]
    PortDenied(u16),
    /// No host.
    #[error("must name a host")]
    NoHost,
    /// A host that no name server can be asked for.
    #[error(
        "must name a host of at most {MAX_NAME_LENGTH} bytes, with 1 to {MAX_LABEL_LENGTH} between two dots"
    )]
    HostName,
}

/// The URL of an endpoint, parsed. Store and show what this gives, not what was written: parsers
/// differ, and only the parsed form has been judged. Judge the host by [`super::vet_literal`].
///
/// The host is in lower case and in Punycode, and without the dot that a full name may end with:
/// with it, the same host would have another `Host` header, another TLS name and another
/// connection pool.
///
/// # Errors
/// Why the text cannot be an endpoint's URL, as a phrase that follows "url".
pub fn parse_endpoint_url(text: &str, https_only: bool) -> Result<Url, UrlError> {
    if text.len() > MAX_URL_LENGTH {
        return Err(UrlError::TooLong);
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(UrlError::Blank);
    }
    let mut url = Url::parse(text).map_err(UrlError::Malformed)?;
    check_scheme(&url, https_only)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlError::Userinfo);
    }
    if url.fragment().is_some() {
        return Err(UrlError::Fragment);
    }
    check_port(&url)?;
    settle_host(&mut url)?;
    if url.as_str().len() > MAX_URL_LENGTH {
        return Err(UrlError::TooLong);
    }
    Ok(url)
}

/// The URL with its host as people write it, if that differs: `https://bücher.example/`. For
/// display beside the URL, never instead of it: different letters can look alike.
#[must_use]
pub fn unicode_form(url: &Url) -> Option<String> {
    let Some(Host::Domain(ascii)) = url.host() else {
        return None;
    };
    let (unicode, legal) = idna::domain_to_unicode(ascii);
    if legal.is_err() || unicode == ascii {
        return None;
    }
    // What stands before the host is the scheme alone: there is no user name.
    let (before, after) = url.as_str().split_once(ascii)?;
    let shown = format!("{before}{unicode}{after}");
    // Shown is only what leads to the same place when it is written back.
    let again = Url::parse(&shown).ok()?;
    (again == *url).then_some(shown)
}

fn check_scheme(url: &Url, https_only: bool) -> Result<(), UrlError> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if https_only => Err(UrlError::NotHttps),
        "http" => Ok(()),
        _ => Err(UrlError::Scheme),
    }
}

fn check_port(url: &Url) -> Result<(), UrlError> {
    match url.port() {
        Some(0) => Err(UrlError::PortZero),
        Some(port) if is_denied(port) => Err(UrlError::PortDenied(port)),
        Some(_) | None => Ok(()),
    }
}

/// Takes the last dot off a name and refuses one that cannot be looked up.
fn settle_host(url: &mut Url) -> Result<(), UrlError> {
    let name = match url.host() {
        Some(Host::Domain(name)) => name,
        Some(Host::Ipv4(_) | Host::Ipv6(_)) => return Ok(()),
        None => return Err(UrlError::NoHost),
    };
    let bare = name.strip_suffix('.').unwrap_or(name);
    if bare.is_empty() {
        return Err(UrlError::NoHost);
    }
    let label = 1..=MAX_LABEL_LENGTH;
    if bare.len() > MAX_NAME_LENGTH || !bare.split('.').all(|part| label.contains(&part.len())) {
        return Err(UrlError::HostName);
    }
    if bare.len() < name.len() {
        let bare = bare.to_owned();
        url.set_host(Some(&bare)).map_err(UrlError::Malformed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
