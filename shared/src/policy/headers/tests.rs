use proptest::prelude::*;

use super::*;

fn one(name: &str, value: &str) -> Result<(), HeaderError> {
    check([(name, value)]).map_err(|(_, error)| error)
}

/// `-`s and case changed: other spellings of one name.
fn spellings(name: &str) -> [String; 4] {
    let odd = name
        .chars()
        .enumerate()
        .map(|(at, c)| {
            if at % 2 == 0 {
                c.to_ascii_uppercase()
            } else {
                c
            }
        })
        .collect();
    [
        name.to_owned(),
        name.to_ascii_uppercase(),
        name.replace('-', "_"),
        odd,
    ]
}

#[test]
fn headers_that_receivers_ask_for_pass() {
    for (name, value) in [
        ("Authorization", "Bearer abc.def"),
        ("X-API-Key", "k"),
        ("x-tag", "a, b;c=\"d\""),
        ("Cookie", "session=1"),
        ("Accept", "application/json"),
        ("Idempotency-Key", "1"),
        ("X-Webhook-Token", "webhook-id"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("!#$%&'*+-.^_`|~", "!~"),
        ("a", "inner  blanks"),
    ] {
        assert_eq!(one(name, value), Ok(()), "{name}");
    }
}

#[test]
fn every_reserved_name_is_refused_in_every_spelling() {
    use HeaderError::*;
    let cases = [
        (
            Ours,
            "host content-length content-type content-encoding content-range user-agent date",
        ),
        (
            Ours,
            "content-md5 content-digest repr-digest digest x-delivery-timestamp",
        ),
        (
            Ours,
            "webhook-id webhook-timestamp webhook-signature webhook-anything webhook-",
        ),
        (
            Ours,
            "postrider-event-type postrider-delivery-id postrider-attempt postrider-signature",
        ),
        (
            Connection,
            "connection keep-alive proxy-connection proxy-authenticate te trailer upgrade",
        ),
        (
            Connection,
            "proxy-authorization proxy-authentication-info proxy-x transfer-encoding",
        ),
        (Connection, "http2-settings alt-used"),
        (
            NoUse,
            "expect accept-encoding cookie2 set-cookie set-cookie2 max-forwards",
        ),
        (
            NoUse,
            "x-http-method-override x-method-override x-http-method",
        ),
        (
            Proxies,
            "via forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip",
        ),
        (
            Proxies,
            "x-forwarded-anything true-client-ip cf-connecting-ip x-client-ip client-ip",
        ),
        (Proxies, "x-cluster-client-ip"),
    ];
    let mut tested = Vec::new();
    for (error, names) in cases {
        for name in names.split(' ') {
            tested.push(name);
            for spelling in spellings(name) {
                assert_eq!(one(&spelling, "x"), Err(error), "{spelling}");
            }
        }
    }
    for listed in [OURS, CONNECTION, NO_USE, PROXIES].concat() {
        assert!(
            tested.contains(&listed),
            "{listed} is on a list and in no case"
        );
    }
}

#[test]
fn names_and_values_that_would_change_the_request_are_refused_with_the_fix() {
    use HeaderError::*;
    let (long_name, long_value) = ("x".repeat(MAX_NAME_BYTES), "x".repeat(MAX_VALUE_BYTES));
    let huge = "x".repeat(64 << 10);
    let cases: &[(&str, &str, Result<(), HeaderError>)] = &[
        ("", "x", Err(NameEmpty)),
        (" x", "x", Err(NameIllegal)),
        ("x ", "x", Err(NameIllegal)),
        ("x:", "x", Err(NameIllegal)),
        (":authority", "x", Err(NameIllegal)),
        ("x\r\ny", "x", Err(NameIllegal)),
        ("x\0", "x", Err(NameIllegal)),
        ("x\u{7f}", "x", Err(NameIllegal)),
        ("x\u{a0}", "x", Err(NameIllegal)),
        ("ünicode", "x", Err(NameIllegal)),
        ("x(y)", "x", Err(NameIllegal)),
        (&long_name, "x", Ok(())),
        (&format!("{long_name}x"), "x", Err(NameTooLong)),
        (&huge, "x", Err(NameTooLong)),
        ("x", "", Err(ValueEmpty)),
        ("x", "\r", Err(LineBreak)),
        ("x", "a\nb: c", Err(LineBreak)),
        ("x", "a\r\n b", Err(LineBreak)), // folded, as old messages were
        ("x", "a\r\n\r\nPOST / HTTP/1.1", Err(LineBreak)),
        ("x", "a\0b", Err(Control)),
        ("x", "a\u{7f}", Err(Control)),
        ("x", "a\tb", Err(Control)),
        ("x", "\u{1b}[2J", Err(Control)),
        ("x", "a\u{85}b", Err(NotAscii)),
        ("x", "ü", Err(NotAscii)),
        ("x", "\u{2028}", Err(NotAscii)),
        ("x", "嘊", Err(NotAscii)), // its low byte is a line feed
        ("x", " a", Err(Blank)),
        ("x", "a ", Err(Blank)),
        ("x", " ", Err(Blank)),
        ("x", &long_value, Ok(())),
        ("x", &format!("{long_value}x"), Err(ValueTooLong)),
        ("x", &huge, Err(ValueTooLong)),
    ];
    for (name, value, expected) in cases {
        assert_eq!(one(name, value), *expected, "{name:?}: {value:?}");
    }
}

#[test]
fn the_same_name_twice_is_refused_whatever_its_spelling() {
    for other in ["x-tag", "X-TAG", "x_tag", "X_Tag"] {
        let verdict = check([("x-tag", "a"), ("x-other", "b"), (other, "a")]);
        assert_eq!(verdict, Err((2, HeaderError::Twice)), "{other}");
    }
    assert_eq!(check([("x-tag", "a"), ("xtag", "a")]), Ok(()));
}

#[test]
fn there_is_a_limit_to_the_number_and_to_the_sum() {
    let names: Vec<String> = (0..100).map(|number| format!("x-{number}")).collect();
    let some = |count| check(names.iter().take(count).map(|name| (name.as_str(), "v")));
    assert_eq!(some(MAX_HEADERS), Ok(()));
    assert_eq!(some(100), Err((MAX_HEADERS, HeaderError::TooMany)));

    let rest = MAX_TOTAL_BYTES - MAX_VALUE_BYTES - "ab".len();
    let (first, second) = ("x".repeat(MAX_VALUE_BYTES), "x".repeat(rest));
    assert_eq!(check([("a", first.as_str()), ("b", &second)]), Ok(()));
    let more = format!("{second}x");
    let verdict = check([("a", first.as_str()), ("b", &more)]);
    assert_eq!(verdict, Err((1, HeaderError::TotalTooLong)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    /// P1
    #[test]
    fn p1_what_passes_is_one_line_of_printable_ascii(name in "\\PC{0,12}|[a-z_-]{1,20}", value in any::<String>()) {
        if one(&name, &value).is_ok() {
            let line = format!("{name}: {value}");
            prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(line.split_once(": "), Some((name.as_str(), value.as_str())));
        }
    }
}
