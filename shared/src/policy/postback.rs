//! Postbacks: requests whose URL or form takes fields of the payload into its template, as trackers of
//! affiliate networks expect them: `https://tracker.example/pb?click_id={click_id}&payout={payout}`.
//!
//! # Rules
//! - `{a.b.0}` stands for that field of the payload; `{$event_id}`, `{$event_type}` and `{$delivery_id}` for
//!   the delivery's own. A brace that belongs to nothing is an error: write `%7B`.
//! - A text stands for its characters, a number for the digits that came in, `true` and `false` for
//!   themselves, `null` for nothing. Objects and arrays cannot be filled in.
//! - Every byte of a value but the unreserved characters of RFC 3986 is percent-encoded (section 2.3), in
//!   the path, in the query and in a form alike; so no value ends its field or leads elsewhere.
//!
//! # Invariants
//! - S1: fields stand in path and query only, so scheme, host and port are those that were vetted; a value
//!   cannot make a path go up (`..`).
//! - S2: no error shows a value.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::address::{UrlError, parse_endpoint_url};
use super::payload::{FieldPath, WrongPath};

/// All but the unreserved characters (RFC 3986 2.3).
pub(super) const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The longest form template, in bytes.
pub const MOST_TEMPLATE: usize = 8 << 10;
/// The most fields of a template.
const MOST_FIELDS: usize = 64;
/// The longest text that comes of a template, in bytes.
const MOST_FILLED: usize = 1 << 20;
/// The longest URL that comes of one, in bytes: what common servers take.
const MOST_FILLED_URL: usize = 16 << 10;

/// A text with fields in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Field(Field),
}

/// What a pair of braces stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `{a.b}`
    Payload(FieldPath),
    /// `{$event_id}`
    EventId,
    /// `{$event_type}`
    EventType,
    /// `{$delivery_id}`
    DeliveryId,
}

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{` without `}`, or the other way round.
    #[error("has a brace that belongs to no field; write %7B or %7D for a brace itself")]
    Brace,
    /// Not a path.
    #[error("`{{{0}}}` {WrongPath}")]
    Path(Box<str>),
    /// `{$…}` of another name.
    #[error("`{{{0}}}` is not known; known: {{$event_id}}, {{$event_type}}, {{$delivery_id}}")]
    Unknown(Box<str>),
    /// Too many.
    #[error("has more than {MOST_FIELDS} fields")]
    TooMany,
    /// Too long.
    #[error("has more than {MOST_TEMPLATE} bytes")]
    TooLong,
    /// A character that has to be encoded.
    #[error(
        "must be name=value pairs with & between them; percent-encode everything that is not visible ASCII, \
         and `#`"
    )]
    Character,
    /// In scheme, host, port or fragment.
    #[error("may have fields in its path and query only")]
    Place,
    /// The URL itself.
    #[error("{0}")]
    Url(UrlError),
}

/// Why a template cannot be filled from a payload. Texts show names of fields, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The payload has no such field.
    #[error("the payload has no field `{0}`, which the endpoint's template names")]
    Missing(Box<str>),
    /// An object, an array, or a text that is none (a lone surrogate).
    #[error("the payload's field `{0}` is neither text, number, true, false nor null")]
    NotText(Box<str>),
    /// What comes of it is too long.
    #[error("what the endpoint's template makes of the payload is too long")]
    TooLong,
    /// The path would lead elsewhere.
    #[error("a field of the payload would make `.` or `..` a part of the URL's path")]
    Dots,
}

/// What a template is filled from.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// JSON.
    pub payload: &'a [u8],
    /// As shown: `evt_…`.
    pub event_id: &'a str,
    /// `conversion.created`
    pub event_type: &'a str,
    /// As shown: `dlv_…`.
    pub delivery_id: &'a str,
    /// What is missing stands for nothing, instead of being an error.
    pub missing_is_empty: bool,
}

impl Template {
    /// Parses a text.
    ///
    /// # Errors
    /// [`TemplateError`], never of a URL.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MOST_TEMPLATE {
            return Err(TemplateError::TooLong);
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            let inner = from.strip_prefix('{').ok_or(TemplateError::Brace)?;
            let (name, after) = inner.split_once('}').ok_or(TemplateError::Brace)?;
            if name.contains('{') {
                return Err(TemplateError::Brace);
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(Part::Field(field(name)?));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        let template = Self { parts };
        if template.fields().count() > MOST_FIELDS {
            return Err(TemplateError::TooMany);
        }
        Ok(template)
    }

    /// Parses the template of a form or a query.
    ///
    /// # Errors
    /// [`TemplateError`], also for what a query may not have.
    pub fn parse_form(text: &str) -> Result<Self, TemplateError> {
        let template = Self::parse(text)?;
        let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        if text.bytes().all(legal) {
            Ok(template)
        } else {
            Err(TemplateError::Character)
        }
    }

    /// Its fields, in their order.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(field) => Some(field),
        })
    }

    /// The text with every field filled in and percent-encoded.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn fill(&self, values: &Values<'_>) -> Result<String, FillError> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(field) => {
                    filled.extend(utf8_percent_encode(&values.of(field)?, ESCAPED))
                }
            }
            if filled.len() > MOST_FILLED {
                return Err(FillError::TooLong);
            }
        }
        Ok(filled)
    }

    /// The same with this text for every field, as it is.
    fn with_all(&self, text: &str) -> String {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Text(own) => own.as_ref(),
                Part::Field(_) => text,
            })
            .collect()
    }
}

fn field(name: &str) -> Result<Field, TemplateError> {
    match name {
        "$event_id" => Ok(Field::EventId),
        "$event_type" => Ok(Field::EventType),
        "$delivery_id" => Ok(Field::DeliveryId),
        _ if name.starts_with('$') => Err(TemplateError::Unknown(shortened(name))),
        _ => match name.parse() {
            Ok(path) => Ok(Field::Payload(path)),
            Err(WrongPath) => Err(TemplateError::Path(shortened(name))),
        },
    }
}

/// As much of a client's text as an error repeats.
fn shortened(text: &str) -> Box<str> {
    text.chars().take(64).collect()
}

impl<'a> Values<'a> {
    fn of(&self, field: &Field) -> Result<Cow<'a, str>, FillError> {
        let path = match field {
            Field::EventId => return Ok(self.event_id.into()),
            Field::EventType => return Ok(self.event_type.into()),
            Field::DeliveryId => return Ok(self.delivery_id.into()),
            Field::Payload(path) => path,
        };
        let Some(json) = path.find(self.payload) else {
            if self.missing_is_empty {
                return Ok("".into());
            }
            return Err(FillError::Missing(path.to_string().into()));
        };
        match json.as_bytes().first() {
            Some(b'"') => {
                let text: Result<Text<'a>, _> = serde_json::from_str(json);
                text.map(|Text(text)| text)
                    .map_err(|_surrogate| FillError::NotText(path.to_string().into()))
            }
            Some(b'{' | b'[') | None => Err(FillError::NotText(path.to_string().into())),
            Some(b'n') => Ok("".into()),
            Some(_) => Ok(json.into()),
        }
    }
}

#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A URL with fields in its path and query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    whole: Template,
    https_only: bool,
}

/// Stands for a field while a URL is parsed: letters only, which a parser leaves as they are everywhere but in
/// a host.
const MARK: &str = "PostriderFieldStandsHere";

impl UrlTemplate {
    /// Parses a URL by the rules for every endpoint's.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn parse(text: &str, https_only: bool) -> Result<Self, TemplateError> {
        let given = Template::parse(text)?;
        let parsed = parse_endpoint_url(&given.with_all(MARK), https_only).map_err(|error| {
            // What is not a URL with something in its port may be one without.
            let elsewhere = given.fields().count() > 0
                && parse_endpoint_url(&given.with_all(""), https_only).is_ok();
            if elsewhere {
                TemplateError::Place
            } else {
                TemplateError::Url(error)
            }
        })?;
        let before_path = parsed.as_str().len() - parsed[url::Position::BeforePath..].len();
        let (origin, rest) = parsed.as_str().split_at(before_path);
        let fields: Vec<Field> = given.fields().cloned().collect();
        if rest.matches(MARK).count() != fields.len() {
            return Err(TemplateError::Place);
        }
        let mut parts = vec![Part::Text(origin.into())];
        let mut texts = rest.split(MARK);
        parts.extend(texts.next().map(|text| Part::Text(text.into())));
        for (field, text) in fields.into_iter().zip(texts) {
            parts.extend([Part::Field(field), Part::Text(text.into())]);
        }
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        Ok(Self {
            whole: Template { parts },
            https_only,
        })
    }

    /// Its fields, in their order.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.whole.fields()
    }

    /// A URL of the same origin: what can be vetted before there is a payload.
    ///
    /// # Errors
    /// [`UrlError`]: not for what was parsed.
    pub fn example(&self) -> Result<Url, UrlError> {
        parse_endpoint_url(&self.whole.with_all(MARK), self.https_only)
    }

    /// The URL filled in; `query`: what comes behind its own.
    ///
    /// # Errors
    /// [`FillError`].
    pub fn fill(&self, query: Option<&Template>, values: &Values<'_>) -> Result<Url, FillError> {
        let mut text = self.whole.fill(values)?;
        if let Some(query) = query {
            text.push(if text.contains('?') { '&' } else { '?' });
            text.push_str(&query.fill(values)?);
        }
        if text.len() > MOST_FILLED_URL {
            return Err(FillError::TooLong);
        }
        // Segments that a parser would take for steps; it takes `%2e` for a dot as well.
        let path = text.split('?').next().unwrap_or_default();
        if path.split('/').any(is_dots) {
            return Err(FillError::Dots);
        }
        // What was legal with a mark in each field's place is with anything that is encoded.
        Url::parse(&text).map_err(|_impossible| FillError::TooLong)
    }
}

fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
}

impl std::fmt::Display for UrlTemplate {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in &self.whole.parts {
            match part {
                Part::Text(text) => out.write_str(text)?,
                Part::Field(field) => write!(out, "{{{field}}}")?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Payload(path) => path.fmt(out),
            Self::EventId => out.write_str("$event_id"),
            Self::EventType => out.write_str("$event_type"),
            Self::DeliveryId => out.write_str("$delivery_id"),
        }
    }
}

#[cfg(test)]
mod tests;
