//! JSON bodies: read within a limit, and taken apart so that every field that is wrong is named.
//!
//! The fast path of ingest has its own reader (`routes::events::body`); this is for everything that
//! is posted rarely, and for explaining what was wrong.

use std::time::Duration;

use actix_web::web::{Bytes, Payload};
use actix_web::{HttpRequest, http::header};
use serde_json::{Map, Value};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use self::unique::Unique;
use crate::problem::{ApiError, FieldError, Kind};

mod unique;

/// The limit of every body but an event's.
pub(crate) const MOST_BYTES: usize = 256 << 10;
/// What is read and thrown away of a body that is too large, so that the client, still writing,
/// gets to read the answer instead of a reset.
const MOST_DISCARDED: usize = 16 << 20;

/// How long a body may take to arrive.
const DEADLINE: Duration = Duration::from_secs(30);

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(
    request: &HttpRequest,
    payload: Payload,
    limit: usize,
) -> Result<Bytes, ApiError> {
    expect_json(request)?;
    match tokio::time::timeout(DEADLINE, collect(payload, limit)).await {
        Ok(body) => body,
        Err(_elapsed) => Err(ApiError::new(
            Kind::RequestTimeout,
            format!("the body did not arrive within {} s", DEADLINE.as_secs()),
        )),
    }
}

async fn collect(payload: Payload, limit: usize) -> Result<Bytes, ApiError> {
    let mut payload = payload.into_inner();
    let mut first: Option<Bytes> = None;
    let mut rest = Vec::new();
    let mut length = 0_usize;
    while let Some(chunk) = futures_util::StreamExt::next(&mut payload).await {
        let chunk = chunk.map_err(|error| {
            ApiError::new(Kind::MalformedJson, format!("the body broke off: {error}"))
        })?;
        length = length.saturating_add(chunk.len());
        if length > MOST_DISCARDED {
            break;
        }
        if length > limit {
            continue;
        }
        match &first {
            None => first = Some(chunk),
            Some(start) => {
                if rest.is_empty() {
                    rest.extend_from_slice(start);
                }
                rest.extend_from_slice(&chunk);
            }
        }
    }
    if length > limit {
        let detail = format!("the body has more than the {limit} bytes that are allowed here");
        return Err(ApiError::new(Kind::PayloadTooLarge, detail));
    }
    Ok(if rest.is_empty() {
        first.unwrap_or_default()
    } else {
        rest.into()
    })
}

/// A body that says it is something else is refused; one that says nothing is taken for JSON.
fn expect_json(request: &HttpRequest) -> Result<(), ApiError> {
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(ApiError::new(
            Kind::UnsupportedMediaType,
            "send the body as it is, without Content-Encoding",
        ));
    }
    let Some(declared) = request.headers().get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = declared
        .to_str()
        .ok()
        .and_then(|text| text.split(';').next())
        .unwrap_or_default()
        .trim();
    if essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
    {
        return Ok(());
    }
    Err(ApiError::new(
        Kind::UnsupportedMediaType,
        "send `Content-Type: application/json`",
    ))
}

/// What a JSON error says to the client: what, and where.
pub(crate) fn malformed(error: &serde_json::Error) -> ApiError {
    ApiError::new(Kind::MalformedJson, error.to_string())
}

/// Any JSON in which no object has a name twice.
pub(crate) fn value(body: &[u8]) -> Result<Value, ApiError> {
    let Unique(value) = serde_json::from_slice(body).map_err(|error| malformed(&error))?;
    Ok(value)
}

/// The fields of a JSON object, taken one by one; what is wrong is gathered, what is left over is
/// unknown.
#[derive(Debug)]
pub(crate) struct Fields {
    values: Map<String, Value>,
    errors: Vec<FieldError>,
    /// Pointer to this object, for nested ones.
    base: String,
    /// What the client sent, where the values are more than that.
    sent: Option<Map<String, Value>>,
}

impl Fields {
    /// Parses a body that must be an object; an empty body is an empty one.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        if body.is_empty() {
            return Ok(Self::from_map(Map::new()));
        }
        match value(body)? {
            Value::Object(values) => Ok(Self::from_map(values)),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(ApiError::fields(vec![FieldError {
                pointer: String::new(),
                detail: "the body must be a JSON object".to_owned(),
            }])),
        }
    }

    pub(crate) fn from_map(values: Map<String, Value>) -> Self {
        Self {
            values,
            errors: Vec::new(),
            base: String::new(),
            sent: None,
        }
    }

    /// Of these values the client sent a part; the others were there already.
    pub(crate) fn sent(self, part: Map<String, Value>) -> Self {
        Self {
            sent: Some(part),
            ..self
        }
    }

    /// Which of two fields that contradict each other is to be named: the first, unless only the second was
    /// sent.
    pub(crate) fn blamed<'a>(&self, first: &'a str, second: &'a str) -> &'a str {
        match &self.sent {
            Some(sent) if !sent.contains_key(first) && sent.contains_key(second) => second,
            _ => first,
        }
    }

    /// Notes that a field is wrong.
    pub(crate) fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        let name = name.replace('~', "~0").replace('/', "~1");
        self.errors.push(FieldError {
            pointer: format!("{}/{name}", self.base),
            detail: detail.into(),
        });
    }

    /// The names of the fields that were given and not taken yet.
    pub(crate) fn names(&self) -> Vec<String> {
        self.values.keys().cloned().collect()
    }

    /// A field's value; absent and `null` are the same.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.take(name)?;
        let found = kind_of(&value);
        let Value::String(text) = value else {
            self.wrong(name, format!("must be a string, not {found}"));
            return None;
        };
        Some(text)
    }

    /// A text within a number of characters, without control characters.
    pub(crate) fn short_text(&mut self, name: &str, most: usize) -> Option<String> {
        let text = self.text(name)?;
        if text.chars().count() > most {
            self.wrong(name, format!("must have at most {most} characters"));
        } else if text.chars().any(char::is_control) {
            self.wrong(name, "must not contain control characters");
        } else {
            return Some(text);
        }
        None
    }

    /// A text that must be there and say something.
    pub(crate) fn required_text(&mut self, name: &str, most: usize) -> String {
        let text = self.short_text(name, most).unwrap_or_default();
        if text.trim().is_empty() {
            self.required(name);
        }
        text
    }

    /// Notes that a field is missing, unless something else about it was noted.
    pub(crate) fn required(&mut self, name: &str) {
        let pointer = format!("{}/{name}", self.base);
        if !self.errors.iter().any(|error| error.pointer == pointer) {
            self.wrong(name, "is required");
        }
    }

    pub(crate) fn bool(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            let found = kind_of(&value);
            self.wrong(name, format!("must be true or false, not {found}"));
        }
        value.as_bool()
    }

    /// A whole number within limits, both included.
    pub(crate) fn number(&mut self, name: &str, least: u32, most: u32) -> Option<u32> {
        let value = self.take(name)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        match number {
            Some(number) if (least..=most).contains(&number) => Some(number),
            _ => {
                self.wrong(
                    name,
                    format!("must be a whole number from {least} to {most}"),
                );
                None
            }
        }
    }

    /// A number within limits, both included.
    pub(crate) fn real(&mut self, name: &str, least: f64, most: f64) -> Option<f64> {
        let number = self.take(name)?.as_f64();
        let legal = number.filter(|number| (least..=most).contains(number));
        if legal.is_none() {
            self.wrong(name, format!("must be a number from {least} to {most}"));
        }
        legal
    }

    /// Whether a field is there and an object, which [`nested`](Self::nested) would take apart.
    pub(crate) fn is_object(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(Value::is_object)
    }

    pub(crate) fn instant(&mut self, name: &str) -> Option<OffsetDateTime> {
        let text = self.text(name)?;
        let instant = instant(&text);
        if instant.is_none() {
            self.wrong(name, NOT_AN_INSTANT);
        }
        instant
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, name: &str, most: usize) -> Option<Vec<String>> {
        let Value::Array(values) = self.take(name)? else {
            self.wrong(name, "must be a list of strings");
            return None;
        };
        if values.len() > most {
            self.wrong(name, format!("must have at most {most} entries"));
            return None;
        }
        let mut texts = Vec::with_capacity(values.len());
        for (position, value) in values.into_iter().enumerate() {
            let found = kind_of(&value);
            if let Value::String(text) = value {
                texts.push(text);
            } else {
                self.errors.push(FieldError {
                    pointer: format!("{}/{name}/{position}", self.base),
                    detail: format!("must be a string, not {found}"),
                });
            }
        }
        Some(texts)
    }

    pub(crate) fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        let value = self.take(name)?;
        let found = kind_of(&value);
        let Value::Object(map) = value else {
            self.wrong(name, format!("must be an object, not {found}"));
            return None;
        };
        Some(map)
    }

    /// A nested object, whose errors and unknown fields become this one's.
    pub(crate) fn nested<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let values = self.object(name)?;
        let sent = self.sent.as_ref().map(|sent| match sent.get(name) {
            Some(Value::Object(part)) => part.clone(),
            _ => Map::new(),
        });
        let mut inner = Self {
            base: format!("{}/{name}", self.base),
            sent,
            ..Self::from_map(values)
        };
        let value = read(&mut inner);
        inner.refuse_rest();
        self.errors.append(&mut inner.errors);
        Some(value)
    }

    /// Refuses fields that exist and cannot be written, in words that say what to do.
    pub(crate) fn refuse(&mut self, names: &[&str], detail: &str) {
        for name in names {
            if self.values.remove(*name).is_some() {
                self.wrong(name, detail);
            }
        }
    }

    /// Ends the reading: unknown fields are errors.
    pub(crate) fn finish(mut self) -> Result<(), ApiError> {
        self.refuse_rest();
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(ApiError::fields(self.errors))
        }
    }

    fn refuse_rest(&mut self) {
        for name in std::mem::take(&mut self.values).keys() {
            self.wrong(name, "is not a known field");
        }
    }
}

/// What is said of a text that is no instant.
pub(crate) const NOT_AN_INSTANT: &str = "must be an RFC 3339 instant like 2026-01-31T12:00:00Z";

/// An RFC 3339 instant, in UTC. One whose offset takes it out of the years that have four digits
/// is none: the database's driver panics on it.
pub(crate) fn instant(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()?
        .checked_to_offset(UtcOffset::UTC)
}

pub(crate) const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The deepest nesting of lists and objects, by a walk over the bytes of valid JSON.
pub(crate) fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_nesting_and_is_not_fooled_by_strings() {
        for (json, expected) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[{"b":1}],"c":{}}"#, 3),
            (r#""[[[[""#, 0),
            (r#"["\"[[", "\\", [1]]"#, 2),
        ] {
            assert_eq!(depth(json.as_bytes()), expected, "{json}");
        }
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        assert_eq!(depth(deep.as_bytes()), 1_000);
    }
}
