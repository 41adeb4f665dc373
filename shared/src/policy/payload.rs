//! Fields of a payload, by their path.
//!
//! # Why
//! A payload is never parsed into values and printed again: a number of forty digits, or `1.10`, has to come
//! out as it came in. So a field is a slice of the payload's own bytes.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

/// The longest path, in bytes.
pub const MOST_PATH: usize = 128;
/// The deepest that a path reaches.
const MOST_STEPS: usize = 8;

/// A way to a field: names of objects' fields, or places in arrays, with dots between: `order.items.0.id`.
/// A name that has a dot or any character besides letters, digits, `_`, `-` and `$` cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath {
    steps: Vec<Box<str>>,
}

/// Why a text is no [`FieldPath`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "names a field by 1 to {MOST_STEPS} names of letters, digits, _, - and $ with dots between them, such \
     as order.items.0.id, and at most {MOST_PATH} bytes"
)]
pub struct WrongPath;

impl std::str::FromStr for FieldPath {
    type Err = WrongPath;

    fn from_str(text: &str) -> Result<Self, WrongPath> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'$');
        let steps: Vec<Box<str>> = text.split('.').map(Box::from).collect();
        let wrong = text.len() > MOST_PATH
            || steps.len() > MOST_STEPS
            || steps
                .iter()
                .any(|step| step.is_empty() || !step.bytes().all(legal));
        if wrong {
            Err(WrongPath)
        } else {
            Ok(Self { steps })
        }
    }
}

impl std::fmt::Display for FieldPath {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.steps.join("."))
    }
}

impl FieldPath {
    /// The names and places, from the outermost.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(AsRef::as_ref)
    }

    /// The field's JSON text; of a name that stands there twice the last, as most parsers have it. `None`:
    /// there is none, or the payload is not JSON.
    #[must_use]
    pub fn find<'p>(&self, payload: &'p [u8]) -> Option<&'p str> {
        let mut value = whole(payload)?;
        for step in &self.steps {
            value = children(value)
                .into_iter()
                .rev()
                .find(|(name, _)| **name == **step)
                .map(|(_, value)| value)?;
        }
        Some(value)
    }

    /// Where in the payload the field stands, each time that it does.
    #[must_use]
    pub fn places(&self, payload: &[u8]) -> Vec<Range<usize>> {
        let mut values: Vec<&str> = whole(payload).into_iter().collect();
        for step in &self.steps {
            values = values
                .into_iter()
                .flat_map(children)
                .filter(|(name, _)| **name == **step)
                .map(|(_, value)| value)
                .collect();
        }
        let start = payload.as_ptr() as usize;
        values
            .into_iter()
            .map(|value| {
                let from = (value.as_ptr() as usize).saturating_sub(start);
                from..from + value.len()
            })
            .collect()
    }
}

fn whole(payload: &[u8]) -> Option<&str> {
    serde_json::from_slice::<&RawValue>(payload)
        .ok()
        .map(RawValue::get)
}

/// What stands directly in an object or an array, under its name or place.
fn children(value: &str) -> Vec<(Cow<'_, str>, &str)> {
    if value.starts_with('{') {
        serde_json::from_str(value).map_or_else(|_| Vec::new(), |Entries(entries)| entries)
    } else if value.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(value).unwrap_or_default();
        let numbered = items.into_iter().map(RawValue::get).enumerate();
        numbered
            .map(|(place, item)| (Cow::Owned(place.to_string()), item))
            .collect()
    } else {
        Vec::new()
    }
}

/// All entries of an object, also those whose name stands there twice.
struct Entries<'v>(Vec<(Cow<'v, str>, &'v str)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries<'de>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &RawValue>()? {
                    entries.push((name, value.get()));
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(All)
    }
}

/// A name that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'v>(#[serde(borrow)] Cow<'v, str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FieldPath {
        text.parse().unwrap()
    }

    #[test]
    fn a_field_is_found_as_the_bytes_that_came_in() {
        let payload = br#" {"a":1.10, "b":{"c":[10,{"d":"x\u0041"}]}, "a": 123456789012345678901234567890 ,"\u0065":null} "#;
        let cases = [
            ("a", Some("123456789012345678901234567890")),
            ("b.c.0", Some("10")),
            ("b.c.1.d", Some(r#""x\u0041""#)),
            ("b.c.1", Some(r#"{"d":"x\u0041"}"#)),
            ("e", Some("null")),
            ("b.c.2", None),
            ("b.c.01", None),
            ("b.c.-1", None),
            ("a.b", None),
            ("x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(path(text).find(payload), expected, "{text}");
        }
        assert_eq!(path("a").find(b"[1]"), None);
        assert_eq!(path("0").find(b"[1]"), Some("1"));
        assert_eq!(path("a").find(b"\"a\""), None);
        assert_eq!(path("a").find(b"{\"a\":"), None);
        assert_eq!(path("a").find(b"\xff"), None);
    }

    #[test]
    fn a_name_that_stands_there_twice_has_two_places() {
        let payload = br#"{"a": {"b": 1, "b" : "two"}, "a":{"b":[]}}"#;
        let places = path("a.b").places(payload);
        let found: Vec<&[u8]> = places.iter().map(|at| &payload[at.clone()]).collect();
        assert_eq!(found, [&b"1"[..], b"\"two\"", b"[]"]);
        assert!(path("c").places(payload).is_empty());
    }

    #[test]
    fn paths_are_short_and_have_plain_names() {
        for legal in ["a", "$x", "a-b_c.0.D", "a.b.c.d.e.f.g.h"] {
            assert_eq!(path(legal).to_string(), legal);
        }
        let long = "a".repeat(MOST_PATH + 1);
        let wrong = [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a/b",
            "ä",
            "{a}",
            "a.b.c.d.e.f.g.h.i",
            &long,
        ];
        for text in wrong {
            assert_eq!(text.parse::<FieldPath>(), Err(WrongPath), "{text}");
        }
    }
}
