//! Which JSON Schemas (2020-12) a tenant may set for a type of event: those whose check takes bounded
//! time and memory, whatever the payload.
//!
//! Not here: compiling and checking.
//!
//! A schema is walked the way a validator would, through its references: what it *weighs* is how many
//! subschemas are tried on one place of a payload. References lead to `#/$defs/…` only, and never in a
//! circle: ten definitions that each refer twice to the next one would be tried a thousand times, and
//! one that refers to itself without end.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::payload::FieldPath;

/// The longest text of a schema, in bytes.
pub const MOST_BYTES: usize = 64 << 10;
/// The most subschemas, each reference counted as what it refers to.
pub const MOST_WEIGHT: usize = 1_000;
/// The deepest nesting, through references.
pub const MOST_DEPTH: usize = 32;
/// The most regular expressions.
pub const MOST_PATTERNS: usize = 32;
/// The longest regular expression, in bytes.
pub const MOST_PATTERN_BYTES: usize = 512;

/// The dialect; the only one.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Where references may lead.
const DEFINITIONS: &str = "#/$defs/";
/// Keywords whose value is a schema.
const ONE: [&str; 11] = [
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value has schemas by name.
const BY_NAME: [&str; 3] = ["dependentSchemas", "patternProperties", "properties"];
/// Keywords beside which `properties` does not list every field there is.
const OPEN: [&str; 10] = [
    "$ref",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "else",
    "if",
    "oneOf",
    "patternProperties",
    "then",
    "unevaluatedProperties",
];
/// Keywords that lead elsewhere than [`DEFINITIONS`], or that belong to older dialects.
const REFUSED: [&str; 12] = [
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$id",
    "$recursiveAnchor",
    "$recursiveRef",
    "$vocabulary",
    "additionalItems",
    "definitions",
    "dependencies",
    "id",
    "extends",
];

/// What a legal schema costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// How many subschemas are tried on one place of a payload, at most.
    pub weight: usize,
    /// How many regular expressions it has.
    pub patterns: usize,
}

/// What is wrong with a schema: where (a JSON pointer into it), and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Illegal {
    /// Where.
    pub pointer: String,
    /// What.
    pub detail: String,
}

/// What a schema costs.
///
/// # Errors
/// The first thing for which it is not taken.
pub fn cost(schema: &Value) -> Result<Cost, Illegal> {
    let nothing = Map::new();
    let definitions = match schema.get("$defs") {
        None => &nothing,
        Some(Value::Object(definitions)) => definitions,
        Some(_) => return Err(illegal("/$defs", "must be an object")),
    };
    let mut walk = Walk {
        definitions,
        known: BTreeMap::new(),
        open: Vec::new(),
        patterns: 0,
    };
    // Those that nothing refers to, too: a validator compiles them.
    for name in definitions.keys() {
        walk.definition(name, "")?;
    }
    let found = walk.schema(schema, "")?;
    if found.weight > MOST_WEIGHT {
        let detail = format!(
            "amounts to {} subschemas, references followed; at most {MOST_WEIGHT} are allowed",
            found.weight
        );
        return Err(illegal("", detail));
    }
    if walk.patterns > MOST_PATTERNS {
        let detail = format!("has more than {MOST_PATTERNS} regular expressions");
        return Err(illegal("", detail));
    }
    Ok(Cost {
        weight: found.weight,
        patterns: walk.patterns,
    })
}

/// Of a subschema.
#[derive(Debug, Clone, Copy)]
struct Found {
    weight: usize,
    depth: usize,
}

struct Walk<'a> {
    definitions: &'a Map<String, Value>,
    known: BTreeMap<&'a str, Found>,
    /// Definitions on the way to here.
    open: Vec<&'a str>,
    patterns: usize,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value, pointer: &str) -> Result<Found, Illegal> {
        let mut found = Found {
            weight: 1,
            depth: 1,
        };
        let fields = match schema {
            Value::Bool(_) => return Ok(found),
            Value::Object(fields) => fields,
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(illegal(pointer, "must be a schema: an object or a boolean"));
            }
        };
        if pointer.matches('/').count() > 2 * MOST_DEPTH {
            return Err(illegal(
                pointer,
                format!("is nested deeper than {MOST_DEPTH}"),
            ));
        }
        for (name, value) in fields {
            let here = format!("{pointer}/{}", escaped(name));
            self.keyword(name, value, &here, &mut found)?;
        }
        if found.depth > MOST_DEPTH {
            let detail = format!("is nested deeper than {MOST_DEPTH}, references followed");
            return Err(illegal(pointer, detail));
        }
        Ok(found)
    }

    fn keyword(
        &mut self,
        name: &'a str,
        value: &'a Value,
        here: &str,
        found: &mut Found,
    ) -> Result<(), Illegal> {
        if REFUSED.contains(&name) {
            return Err(illegal(here, "is not supported in schemas of events"));
        }
        match (name, value) {
            ("$schema", Value::String(dialect)) if dialect.trim_end_matches('#') == DIALECT => {}
            ("$schema", _) => return Err(illegal(here, format!("must be {DIALECT}"))),
            ("$defs", _) if here != "/$defs" => {
                return Err(illegal(here, "may stand at the top of the schema only"));
            }
            ("$ref", Value::String(reference)) => found.add(self.reference(reference, here)?),
            ("$ref", _) => return Err(illegal(here, "must be a string")),
            ("pattern", Value::String(pattern)) => self.pattern(pattern, here)?,
            (_, Value::Array(list)) if LIST.contains(&name) => {
                for (position, one) in list.iter().enumerate() {
                    found.add(self.schema(one, &format!("{here}/{position}"))?);
                }
            }
            (_, Value::Object(by_name)) if BY_NAME.contains(&name) => {
                for (key, one) in by_name {
                    let here = format!("{here}/{}", escaped(key));
                    if name == "patternProperties" {
                        self.pattern(key, &here)?;
                    }
                    found.add(self.schema(one, &here)?);
                }
            }
            _ if ONE.contains(&name) => found.add(self.schema(value, here)?),
            // Other keywords hold no schemas; their form is the validator's business.
            _ => {}
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str, here: &str) -> Result<(), Illegal> {
        self.patterns += 1;
        if pattern.len() > MOST_PATTERN_BYTES {
            let detail = format!("has more than {MOST_PATTERN_BYTES} bytes");
            return Err(illegal(here, detail));
        }
        Ok(())
    }

    fn reference(&mut self, reference: &'a str, here: &str) -> Result<Found, Illegal> {
        let name = reference
            .strip_prefix(DEFINITIONS)
            .filter(|name| !name.contains(['/', '~', '%']))
            .ok_or_else(|| illegal(here, "must be `#/$defs/` and a name without / ~ %"))?;
        self.definition(name, here)
    }

    fn definition(&mut self, name: &'a str, here: &str) -> Result<Found, Illegal> {
        if let Some(known) = self.known.get(name) {
            return Ok(*known);
        }
        if self.open.contains(&name) {
            return Err(illegal(here, "refers to what it is part of"));
        }
        let Some(definition) = self.definitions.get(name) else {
            return Err(illegal(here, "refers to nothing"));
        };
        if self.open.len() >= MOST_DEPTH {
            return Err(illegal(here, format!("is nested deeper than {MOST_DEPTH}")));
        }
        self.open.push(name);
        let found = self.schema(definition, &format!("/$defs/{}", escaped(name)))?;
        self.open.pop();
        self.known.insert(name, found);
        Ok(found)
    }
}

impl Found {
    fn add(&mut self, inner: Self) {
        self.weight = self.weight.saturating_add(inner.weight);
        self.depth = self.depth.max(inner.depth + 1);
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn illegal(pointer: &str, detail: impl Into<String>) -> Illegal {
    Illegal {
        pointer: pointer.to_owned(),
        detail: detail.into(),
    }
}

/// Whether a payload that fits a schema may have this field, as far as the schema says which fields there are: of
/// an object that lists its `properties` those alone, of anything else any.
#[must_use]
pub fn has_field(schema: &Value, path: &FieldPath) -> bool {
    let mut place = schema;
    for step in path.steps() {
        let Some(keywords) = place.as_object() else {
            return place != &Value::Bool(false);
        };
        let more = keywords.get("additionalProperties");
        let said_open = more.is_some_and(|more| more != &Value::Bool(false));
        if said_open || OPEN.iter().any(|keyword| keywords.contains_key(*keyword)) {
            return true;
        }
        let listed = keywords.get("properties").and_then(Value::as_object);
        let Some(listed) = listed else { return true };
        match listed.get(step) {
            Some(inner) => place = inner,
            None => return false,
        }
    }
    place != &Value::Bool(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_says_which_fields_there_are_where_it_lists_them() {
        let schema = serde_json::json!({
            "type": "object",
            "properties": {
                "click_id": {"type": "string"},
                "order": {"type": "object", "properties": {"id": true, "never": false}},
                "lines": {"type": "array", "items": {"properties": {"sku": true}}},
                "free": {"type": "object"},
                "open": {"properties": {"a": true}, "patternProperties": {"^x": true}},
                "said": {"properties": {"a": true}, "additionalProperties": {"type": "string"}},
            },
        });
        for (path, expected) in [
            ("click_id", true),
            ("click_di", false),
            ("order.id", true),
            ("order.no", false),
            ("order.never", false),
            ("lines.0.sku", true),
            ("free.whatever", true),
            ("open.x1", true),
            ("said.b", true),
            ("payout", false),
        ] {
            let path = path.parse().unwrap();
            assert_eq!(has_field(&schema, &path), expected, "{path}");
        }
        let any = serde_json::json!(true);
        assert!(has_field(&any, &"a.b".parse().unwrap()));
    }

    #[test]
    fn a_usual_schema_is_legal_and_its_weight_counts_references_as_what_they_refer_to() {
        let schema = json!({
            "$schema": DIALECT,
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "string", "pattern": "^[a-z]+$"},
                "from": {"$ref": "#/$defs/address"},
                "to": {"$ref": "#/$defs/address"},
                // Names and data that only look like keywords.
                "$ref": {"const": {"$ref": "x", "pattern": 1}},
            },
            "$defs": {"address": {"properties": {"street": {"type": "string"}}, "additionalProperties": false}},
            "enum": [{"$id": "x"}],
        });

        // Itself, four properties, and twice an address with two.
        let expected = Cost {
            weight: 1 + 4 + 2 * 3,
            patterns: 1,
        };
        assert_eq!(cost(&schema), Ok(expected));
        assert_eq!(cost(&json!(true)).unwrap().weight, 1);
    }

    #[test]
    fn what_takes_unbounded_time_is_not_taken() {
        let mut doubling = Map::new();
        for n in 0..12 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            doubling.insert(format!("d{n}"), json!({"allOf": [next, next]}));
        }
        doubling.insert("d12".to_owned(), json!(true));
        let mut nested = json!(true);
        for _ in 0..40 {
            nested = json!({"not": nested});
        }
        let many: Vec<_> = (0..40)
            .map(|n| json!({"pattern": format!("a{n}")}))
            .collect();
        for (schema, pointer) in [
            (json!({"$defs": doubling, "$ref": "#/$defs/d0"}), ""),
            (nested, "/not/not/not/not/not/not/not/not"),
            (json!({"allOf": many}), ""),
            (json!({"pattern": "a".repeat(513)}), "/pattern"),
            (
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
                "/$defs/a/$ref",
            ),
            (
                json!({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
                "/$defs/b/not/$ref",
            ),
        ] {
            assert_eq!(cost(&schema).unwrap_err().pointer, pointer, "{schema}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_schema() {
        for (schema, pointer) in [
            (json!({"$ref": "https://example.com/s"}), "/$ref"),
            (json!({"$ref": "#"}), "/$ref"),
            (json!({"$ref": "#/properties/a"}), "/$ref"),
            (json!({"$ref": "#/$defs/none"}), "/$ref"),
            (
                json!({"items": {"$ref": "file:///etc/passwd"}}),
                "/items/$ref",
            ),
            (json!({"$id": "https://example.com/s"}), "/$id"),
            (json!({"$dynamicRef": "#a"}), "/$dynamicRef"),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
                "/$schema",
            ),
            (
                json!({"properties": {"a/b": {"$defs": {}}}}),
                "/properties/a~1b/$defs",
            ),
            (json!({"items": [1]}), "/items"),
            (json!(1), ""),
            (json!({"anyOf": [true, 1]}), "/anyOf/1"),
        ] {
            assert_eq!(cost(&schema).unwrap_err().pointer, pointer, "{schema}");
        }
    }
}
