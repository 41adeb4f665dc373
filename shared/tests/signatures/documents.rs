//! JSON documents as people send them: everything that a parser would change if it touched them.

use proptest::collection::vec;
use proptest::prelude::*;

/// The text of a JSON document, with blanks, duplicate keys, odd numbers and escapes.
pub(crate) fn json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        number(),
        string(),
    ];
    let document = scalar.prop_recursive(5, 48, 6, |inner| {
        let member = (
            blank(),
            prop_oneof![string(), Just("\"a\"".to_owned())],
            blank(),
            inner.clone(),
        )
            .prop_map(|(before, key, after, value)| format!("{before}{key}{after}:{value}"));
        let element = (blank(), inner, blank()).prop_map(|(a, value, b)| format!("{a}{value}{b}"));
        prop_oneof![
            vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(","))),
            vec(element, 0..6).prop_map(|elements| format!("[{}]", elements.join(","))),
        ]
    });
    (blank(), document, blank()).prop_map(|(a, document, b)| a + &document + &b)
}

/// Each of these has broken some sender (field reports F26–F29).
pub(crate) fn special() -> impl Iterator<Item = Vec<u8>> {
    [
        "{ \"b\":1, \"a\":2, \"a\":3 }\n",
        r#"{"n":9007199254740993,"m":18446744073709551616,"p":123456789012345678901234567890}"#,
        r#"[1e2,0.1000,-0,-0.0,1E+2,1e-400,0.30000000000000004]"#,
        r#"{"nul\u0000key":"nul\u0000value","literal":"\\u0000"}"#,
        r#"["\ud83d\ude00","😀","\ud83d","\u00e9","é","e\u0301"]"#,
        r#""\/ / \" \\ \b \f \n \r \t""#,
        "\"\u{2028}\u{2029}\u{7f}\u{80}\u{feff}\"",
        "\r\n\t [ ] \r\n\t",
        "\"</script>&amp;<!--\"",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
}

/// A body of so many bytes; JSON from two on.
pub(crate) fn of_size(size: usize) -> Vec<u8> {
    match size {
        0 => Vec::new(),
        1 => b"1".to_vec(),
        _ => format!("\"{}\"", "x".repeat(size - 2)).into_bytes(),
    }
}

fn blank() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 1 => "[ \\t\\n\\r]{1,3}"]
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        "-?[1-9][0-9]{15,40}",
        "-?(0|[1-9][0-9]{0,4})\\.[0-9]{1,20}",
        "-?(0|[1-9][0-9]{0,4})(\\.[0-9]{1,4})?[eE][+-]?[0-9]{1,3}",
        Just("-0".to_owned()),
    ]
}

fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z0-9 _.<>&'/-]{0,12}",
        1 => "[^\\x00-\\x1f\"\\\\]{0,6}",
        1 => Just("😀👩‍👩‍👧🇩🇪".to_owned()),
        1 => "\\\\u(0000|001f|2028|d83d|00e9|FEFF)",
        1 => "\\\\[\"\\\\/bfnrt]",
    ];
    vec(piece, 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}
