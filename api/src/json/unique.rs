//! JSON in which no object has a name twice.
//!
//! # Why
//! Of two values under one name parsers take the first, the last or both. What a client means by
//! `{"headers": {"X-Key": "a", "X-Key": "b"}}` nobody knows, so nothing is stored for it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value whose objects have unique names, at any depth.
pub(super) struct Unique(pub(super) Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = access.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let Unique(value) = access.next_value()?;
            if map.contains_key(&name) {
                return Err(A::Error::custom(
                    "an object has the same name twice; keep one of them",
                ));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text).map(|Unique(value)| value)
    }

    #[test]
    fn what_has_unique_names_is_read_as_ever() {
        let text = r#" {"a": [1, -2, 2.5, 1e3, true, null, "x\ny", {}], "b": {"a": {"b": 18446744073709551615}}} "#;
        assert_eq!(
            read(text).unwrap(),
            serde_json::from_str::<Value>(text).unwrap()
        );
        assert_eq!(
            read(r#"[{"a": 1}, {"a": 2}]"#).unwrap(),
            json!([{"a": 1}, {"a": 2}])
        );
    }

    #[test]
    fn a_name_twice_is_an_error_with_its_place_wherever_it_stands() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": {"b": 1, "c": 2, "b": null}}"#,
            r#"[[{"": 1, "": 2}]]"#,
            r#"{"a": 1, "\u0061": 2}"#,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(
                error.contains("twice") && error.contains("line 1"),
                "{error}"
            );
        }
        for text in ["", "{", "{\"a\": 1", "[1,]", "\u{feff}{}"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
