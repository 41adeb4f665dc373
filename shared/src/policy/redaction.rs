//! Hides fields of a payload wherever people could read them: in the payload as it is shown, and in what a
//! receiver says, which often repeats what it was sent.
//!
//! # Invariants
//! - S2: of a hidden field no byte of its value is left, whatever form a receiver gives it back in: as it
//!   is, percent-encoded, or as JSON writes it.
//! - What is sent is never touched by this.

use std::borrow::Cow;

use percent_encoding::utf8_percent_encode;

use super::payload::FieldPath;
use super::postback::ESCAPED;

/// Stands for a value that is hidden.
pub const HIDDEN: &str = "***";

/// As many values are looked for in a text; where more are hidden, all of the text is.
const MOST_VALUES: usize = 64;

/// The payload with the value of each of these fields replaced by `"***"`; all other bytes stay.
#[must_use]
pub fn hide_fields<'p>(payload: &'p [u8], fields: &[FieldPath]) -> Cow<'p, [u8]> {
    let mut places: Vec<_> = fields
        .iter()
        .flat_map(|field| field.places(payload))
        .collect();
    if places.is_empty() {
        return Cow::Borrowed(payload);
    }
    // Of a field inside another one that is hidden nothing is left to hide.
    places.sort_by_key(|place| (place.start, std::cmp::Reverse(place.end)));
    let mut shown = Vec::with_capacity(payload.len());
    let mut done = 0;
    for place in places {
        if place.start < done {
            continue;
        }
        shown.extend_from_slice(payload.get(done..place.start).unwrap_or_default());
        shown.extend_from_slice(b"\"***\"");
        done = place.end;
    }
    shown.extend_from_slice(payload.get(done..).unwrap_or_default());
    Cow::Owned(shown)
}

/// A text of somebody's who saw the payload, with the values of these fields replaced by `***`. Also a part of
/// a value at its end, where the text may have been cut off.
#[must_use]
pub fn hide_values<'t>(text: &'t [u8], payload: &[u8], fields: &[FieldPath]) -> Cow<'t, [u8]> {
    let values: Vec<String> = fields
        .iter()
        .flat_map(|field| field.places(payload))
        .filter_map(|place| std::str::from_utf8(payload.get(place)?).ok())
        .flat_map(leaves)
        .filter(|value| !value.is_empty())
        .take(MOST_VALUES + 1)
        .collect();
    if values.len() > MOST_VALUES {
        return Cow::Borrowed(HIDDEN.as_bytes());
    }
    let mut values: Vec<Vec<u8>> = values.into_iter().flat_map(forms).collect();
    // A longer one first: a shorter one may be a part of it.
    values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    values.dedup();
    let mut hidden = Cow::Borrowed(text);
    for value in &values {
        if let Some(replaced) = without(&hidden, value) {
            hidden = Cow::Owned(replaced);
        }
    }
    match cut_off(&hidden, &values) {
        Some(kept) => {
            Cow::Owned([hidden.get(..kept).unwrap_or_default(), HIDDEN.as_bytes()].concat())
        }
        None => hidden,
    }
}

/// The texts of what a value holds that is neither an object nor an array.
fn leaves(json: &str) -> Vec<String> {
    fn of(value: serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Null | serde_json::Value::Bool(_) => {}
            serde_json::Value::Number(number) => into.push(number.to_string()),
            serde_json::Value::String(text) => into.push(text),
            serde_json::Value::Array(items) => items.into_iter().for_each(|item| of(item, into)),
            serde_json::Value::Object(map) => map.into_values().for_each(|item| of(item, into)),
        }
    }
    let mut texts = Vec::new();
    let inner = unquoted(json);
    if !json.starts_with(['{', '[', 't', 'f', 'n']) {
        // As it was written: a number in another form, a text with its escapes.
        texts.push(inner.to_owned());
    }
    if let Ok(value) = serde_json::from_str(json) {
        of(value, &mut texts);
    }
    texts
}

/// What stands between the quotes of a JSON text.
fn unquoted(json: &str) -> &str {
    let inner = json.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.unwrap_or(json)
}

/// The forms in which a receiver may give a text back.
fn forms(text: String) -> [Vec<u8>; 4] {
    let escaped = utf8_percent_encode(&text, ESCAPED).to_string();
    let form = escaped.replace("%20", "+");
    let json = serde_json::to_string(&text).unwrap_or_default();
    let json = unquoted(&json).to_owned();
    [text, escaped, form, json].map(String::into_bytes)
}

/// The text with each occurrence of `value` hidden; `None`: there is none.
fn without(text: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some((first, after)) = rest.split_first() {
        if rest.starts_with(value) {
            kept.extend_from_slice(HIDDEN.as_bytes());
            rest = rest.get(value.len()..).unwrap_or_default();
            found = true;
        } else {
            kept.push(*first);
            rest = after;
        }
    }
    found.then_some(kept)
}

/// Where at the end of the text the beginning of a value stands, the longest first. Three bytes of it are enough
/// to be taken for it.
fn cut_off(text: &[u8], values: &[Vec<u8>]) -> Option<usize> {
    let longest = values.iter().map(Vec::len).max()?;
    let first = text.len().saturating_sub(longest);
    let last = text.len().checked_sub(3)?;
    (first..=last).find(|at| {
        let rest = text.get(*at..).unwrap_or_default();
        values.iter().any(|value| value.starts_with(rest))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(names: &[&str]) -> Vec<FieldPath> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn shown(payload: &str, names: &[&str]) -> String {
        let shown = hide_fields(payload.as_bytes(), &fields(names));
        String::from_utf8(shown.into_owned()).unwrap()
    }

    fn said(text: &str, payload: &str, names: &[&str]) -> String {
        let said = hide_values(text.as_bytes(), payload.as_bytes(), &fields(names));
        String::from_utf8(said.into_owned()).unwrap()
    }

    #[test]
    fn s2_a_hidden_field_is_gone_and_every_other_byte_stays() {
        let payload = r#"{ "click_id" : "abc", "n":1.10,"click_id":7, "o":{"p":[1,2]} }"#;
        assert_eq!(
            shown(payload, &["click_id", "o.p"]),
            r#"{ "click_id" : "***", "n":1.10,"click_id":"***", "o":{"p":"***"} }"#
        );
        assert_eq!(
            shown(payload, &["o", "o.p", "o.p.0"]),
            shown(payload, &["o"])
        );
        assert_eq!(shown(payload, &["absent"]), payload);
        assert_eq!(shown("not JSON", &["click_id"]), "not JSON");
    }

    #[test]
    fn s2_a_receiver_that_repeats_a_value_in_any_form_shows_none_of_it() {
        let payload =
            r#"{"click_id":"a b/ü\"","payout":12.50,"nested":{"x":["deep-secret"]},"t":true}"#;
        let names = &["click_id", "payout", "nested", "t"];
        let cases = [
            (r#"got a b/ü" ok"#, "got *** ok"),
            ("got a%20b%2F%C3%BC%22 ok", "got *** ok"),
            ("got a+b%2F%C3%BC%22 ok", "got *** ok"),
            (r#"{"id":"a b/ü\""}"#, r#"{"id":"***"}"#),
            ("paid 12.50 and 12.5", "paid *** and ***"),
            ("deep-secret!", "***!"),
            ("true", "true"),
            ("cut off at deep-se", "cut off at ***"),
            ("nothing of it", "nothing of it"),
        ];
        for (text, expected) in cases {
            assert_eq!(said(text, payload, names), expected);
        }
    }

    #[test]
    fn s2_where_too_much_is_hidden_to_look_for_nothing_is_shown() {
        let items: Vec<usize> = (0..1_000).collect();
        let payload = serde_json::json!({ "many": items }).to_string();
        assert_eq!(said("fine", &payload, &["many"]), HIDDEN);
        assert_eq!(said("fine", &payload, &["many.1"]), "fine");
    }

    proptest! {
        #[test]
        fn s2_no_value_is_left_in_what_is_shown(value in "[a-zA-Z0-9 %&+\"\\\\ü]{4,20}", before in "[#@]{0,5}") {
            let payload = serde_json::json!({"a": before, "secret": value}).to_string();
            let names = fields(&["secret"]);
            let json = serde_json::to_string(&value).unwrap();
            let shown = hide_fields(payload.as_bytes(), &names);
            prop_assert!(!String::from_utf8_lossy(&shown).contains(&json));
            let echo = format!("{before}{value}|{}", utf8_percent_encode(&value, ESCAPED));
            let said = hide_values(echo.as_bytes(), payload.as_bytes(), &names);
            let said = String::from_utf8_lossy(&said).into_owned();
            prop_assert_eq!(said, format!("{before}{HIDDEN}|{HIDDEN}"));
        }
    }
}
