//! Versions of a resource as entity tags (RFC 9110): what changes only if nobody changed it before.

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};

use crate::problem::{ApiError, Kind};

/// Tags of one header at most: a client knows a version or two.
const MOST_TAGS: usize = 16;

/// What `If-Match` or `If-None-Match` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tags {
    /// `*`: whatever it is.
    Any,
    /// One of these; whether each is weak.
    These(Vec<(String, bool)>),
}

/// The version that a change is meant for.
#[derive(Debug)]
pub(super) struct Condition(Option<Tags>);

/// The tag of a version.
pub(super) fn tag(version: i32) -> String {
    format!("\"{version}\"")
}

/// A tag as a header's value.
pub(super) fn header(version: i32) -> HeaderValue {
    HeaderValue::from_str(&tag(version)).unwrap_or(HeaderValue::from_static("\"\""))
}

impl Condition {
    /// `If-Match`, in which weak tags are refused: they say nothing of every byte.
    pub(super) fn of(request: &HttpRequest) -> Result<Self, ApiError> {
        let tags = read(request, &IF_MATCH)?;
        if let Some(Tags::These(tags)) = &tags
            && tags.iter().any(|(_, weak)| *weak)
        {
            let detail = "`If-Match` takes strong tags only: send the ETag as it was, without `W/`";
            return Err(ApiError::new(Kind::InvalidParameter, detail));
        }
        Ok(Self(tags))
    }

    /// Refuses a change of another version.
    pub(super) fn check(&self, version: i32) -> Result<(), ApiError> {
        let current = tag(version);
        match &self.0 {
            None | Some(Tags::Any) => Ok(()),
            Some(Tags::These(tags)) if tags.iter().any(|(tag, _)| *tag == current) => Ok(()),
            Some(Tags::These(_)) => Err(ApiError::new(
                Kind::PreconditionFailed,
                format!("it has changed: its ETag is {current}; read it again, and send that"),
            )),
        }
    }
}

/// Whether the client has this version already (`If-None-Match`).
pub(super) fn is_known(request: &HttpRequest, version: i32) -> Result<bool, ApiError> {
    Ok(match read(request, &IF_NONE_MATCH)? {
        None => false,
        Some(Tags::Any) => true,
        Some(Tags::These(tags)) => tags.iter().any(|(known, _)| *known == tag(version)),
    })
}

fn read(request: &HttpRequest, name: &HeaderName) -> Result<Option<Tags>, ApiError> {
    let mut lines = Vec::new();
    for line in request.headers().get_all(name) {
        lines.push(line.to_str().map_err(|_not_ascii| malformed(name))?);
    }
    if lines.is_empty() {
        return Ok(None);
    }
    parse(&lines.join(","))
        .map(Some)
        .ok_or_else(|| malformed(name))
}

fn parse(text: &str) -> Option<Tags> {
    let text = text.trim();
    if text == "*" {
        return Some(Tags::Any);
    }
    // A tag may hold a comma, but none of ours does: what has one is a tag that was never given out.
    let tags: Option<Vec<_>> = text.split(',').map(|one| parse_one(one.trim())).collect();
    tags.filter(|tags| tags.len() <= MOST_TAGS).map(Tags::These)
}

fn parse_one(text: &str) -> Option<(String, bool)> {
    let (tag, weak) = match text.strip_prefix("W/") {
        Some(tag) => (tag, true),
        None => (text, false),
    };
    let inner = tag.strip_prefix('"')?.strip_suffix('"')?;
    let legal = |byte: u8| byte == b'!' || (b'#'..=b'~').contains(&byte);
    inner.bytes().all(legal).then(|| (tag.to_owned(), weak))
}

fn malformed(name: &HeaderName) -> ApiError {
    let detail =
        format!("`{name}` must be `*` or up to {MOST_TAGS} tags like \"7\", as `ETag` gave them");
    ApiError::new(Kind::InvalidParameter, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_the_rfc_writes_them_and_nothing_else_is() {
        let strong = |tag: &str| (tag.to_owned(), false);
        assert_eq!(parse("*"), Some(Tags::Any));
        assert_eq!(parse("\"7\""), Some(Tags::These(vec![strong("\"7\"")])));
        assert_eq!(
            parse(" \"7\" ,W/\"8\""),
            Some(Tags::These(vec![
                strong("\"7\""),
                ("\"8\"".to_owned(), true)
            ]))
        );
        for wrong in [
            "", "7", "\"7", "7\"", "\"", "w/\"7\"", "\"7\",", "*,\"7\"", "\"a b\"",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse(&["\"7\""; MOST_TAGS + 1].join(",")), None);
    }
}
