use percent_encoding::percent_decode_str;
use proptest::prelude::*;

use super::*;

fn values(payload: &[u8]) -> Values<'_> {
    Values {
        payload,
        event_id: "evt_1",
        event_type: "conversion.created",
        delivery_id: "dlv_2",
        missing_is_empty: false,
    }
}

fn filled(url: &str, payload: &str) -> Result<String, FillError> {
    let template = UrlTemplate::parse(url, false).unwrap();
    template
        .fill(None, &values(payload.as_bytes()))
        .map(String::from)
}

#[test]
fn a_tracker_gets_the_fields_of_the_payload_in_its_url() {
    let url = "https://tracker.example/pb?click_id={click_id}&payout={payout}";
    let payload = r#"{"click_id":"a b&c=d/é#?","payout":12.50}"#;
    let expected = "https://tracker.example/pb?click_id=a%20b%26c%3Dd%2F%C3%A9%23%3F&payout=12.50";
    assert_eq!(filled(url, payload).unwrap(), expected);

    let cases = [
        (r#"{"x":1e2}"#, "1e2"),
        (r#"{"x":-0}"#, "-0"),
        (
            r#"{"x":123456789012345678901234567890}"#,
            "123456789012345678901234567890",
        ),
        (r#"{"x":1E+2}"#, "1E%2B2"),
        (r#"{"x":true}"#, "true"),
        (r#"{"x":null}"#, ""),
        (r#"{"x":""}"#, ""),
        (r#"{"x":"\u0000\n\u00e9"}"#, "%00%0A%C3%A9"),
        (r#"{"x":"{x}"}"#, "%7Bx%7D"),
        (r#"{"x":"%41"}"#, "%2541"),
        (r#"{"x":"first","x":"last"}"#, "last"),
    ];
    for (payload, expected) in cases {
        let url = filled("http://t.example/{x}/p?q={x}", payload).unwrap();
        assert_eq!(url, format!("http://t.example/{expected}/p?q={expected}"));
    }
    let own = filled(
        "http://t.example/?e={$event_id}&t={$event_type}&d={$delivery_id}",
        "{}",
    );
    let expected = "http://t.example/?e=evt_1&t=conversion.created&d=dlv_2";
    assert_eq!(own.unwrap(), expected);
}

#[test]
fn what_cannot_be_filled_in_is_named_and_no_value_is_shown() {
    let url = "http://t.example/?a={order.id}";
    let name = || "order.id".into();
    let cases = [
        (r#"{"order":{}}"#, FillError::Missing(name())),
        (r#"{"order":"secret"}"#, FillError::Missing(name())),
        ("7", FillError::Missing(name())),
        (
            r#"{"order":{"id":{"secret":1}}}"#,
            FillError::NotText(name()),
        ),
        (r#"{"order":{"id":["secret"]}}"#, FillError::NotText(name())),
        (
            r#"{"order":{"id":"\ud800secret"}}"#,
            FillError::NotText(name()),
        ),
    ];
    for (payload, expected) in cases {
        let error = filled(url, payload).unwrap_err();
        assert_eq!(error, expected, "{payload}");
        assert!(!error.to_string().contains("secret"));
    }
    let template = UrlTemplate::parse(url, false).unwrap();
    let empty = Values {
        missing_is_empty: true,
        ..values(b"{}")
    };
    assert_eq!(
        template.fill(None, &empty).unwrap().as_str(),
        "http://t.example/?a="
    );

    let long = format!(r#"{{"order":{{"id":"{}"}}}}"#, "ü".repeat(3_000));
    assert_eq!(filled(url, &long), Err(FillError::TooLong));
}

#[test]
fn s1_no_value_leads_anywhere_else() {
    for dots in [".", "..", "%2e", "%2E%2e", ".%2e"] {
        let payload = serde_json::json!({ "x": dots }).to_string();
        let url = filled("http://t.example/a/{x}/b", &payload);
        // An encoded percent sign is no dot any more.
        let expected = if dots.contains('%') {
            Ok(())
        } else {
            Err(FillError::Dots)
        };
        assert_eq!(url.map(drop), expected, "{dots}");
        assert!(filled("http://t.example/a?x={x}", &payload).is_ok());
        assert!(filled("http://t.example/a{x}", &payload).is_ok());
    }
    let split = r#"{"x":".","y":"."}"#;
    assert_eq!(
        filled("http://t.example/{x}{y}/b", split),
        Err(FillError::Dots)
    );
    for outside in [
        "http://{x}/",
        "http://{x}.example/",
        "http://t.example:{x}/",
        "{x}://t.example/",
        "{x}",
        "http://t.example/#{x}",
        "http://u{x}@t.example/",
    ] {
        let error = UrlTemplate::parse(outside, false).unwrap_err();
        assert!(
            matches!(error, TemplateError::Place | TemplateError::Url(_)),
            "{outside}: {error:?}"
        );
    }
    let http = UrlTemplate::parse("http://t.example/{x}", true);
    assert_eq!(http, Err(TemplateError::Url(UrlError::NotHttps)));
}

#[test]
fn a_url_is_kept_as_it_was_parsed_with_its_fields() {
    for (given, kept) in [
        (
            "HTTPS://Tracker.Example./a b/{x}?q={y.z}".replace(' ', "%20"),
            "https://tracker.example/a%20b/{x}?q={y.z}",
        ),
        ("http://t.example?{x}".to_owned(), "http://t.example/?{x}"),
        (
            "http://t.example/{x}/../{y}".to_owned(),
            "http://t.example/{y}",
        ),
        (
            "http://t.example/plain".to_owned(),
            "http://t.example/plain",
        ),
    ] {
        let parsed = UrlTemplate::parse(&given, false);
        match parsed {
            Ok(template) => {
                assert_eq!(template.to_string(), kept);
                assert_eq!(UrlTemplate::parse(kept, false).unwrap(), template);
            }
            // A field that the parse takes away would be a field that is lost.
            Err(error) => assert_eq!((error, given.contains("..")), (TemplateError::Place, true)),
        }
    }
}

#[test]
fn a_template_with_a_mistake_is_refused_and_says_which() {
    let error = |text: &str| Template::parse(text).unwrap_err();
    for text in ["{", "}", "a={x", "a=x}", "a={{x}}", "{x}}"] {
        assert_eq!(error(text), TemplateError::Brace, "{text}");
    }
    for text in ["{}", "{a b}", "{a..b}"] {
        assert!(matches!(error(text), TemplateError::Path(_)), "{text}");
    }
    assert!(
        error("{a b}")
            .to_string()
            .starts_with("`{a b}` names a field")
    );
    assert!(matches!(error("{$now}"), TemplateError::Unknown(_)));
    assert_eq!(
        error(&"{x}".repeat(MOST_FIELDS + 1)),
        TemplateError::TooMany
    );
    assert_eq!(
        error(&"x".repeat(MOST_TEMPLATE + 1)),
        TemplateError::TooLong
    );
    for text in ["a=b c", "a=ü", "a=#", "a=\n"] {
        assert_eq!(
            Template::parse_form(text),
            Err(TemplateError::Character),
            "{text}"
        );
    }
}

#[test]
fn a_template_goes_behind_the_query_that_is_there() {
    let query = Template::parse_form("a={x}&b=1").unwrap();
    for (url, expected) in [
        ("http://t.example/", "http://t.example/?a=%26&b=1"),
        (
            "http://t.example/?c={x}",
            "http://t.example/?c=%26&a=%26&b=1",
        ),
    ] {
        let url = UrlTemplate::parse(url, false).unwrap();
        let filled = url.fill(Some(&query), &values(br#"{"x":"&"}"#)).unwrap();
        assert_eq!(filled.as_str(), expected);
    }
}

proptest! {
    /// Whatever a value is, whoever decodes the request gets that value and nothing else.
    #[test]
    fn every_character_arrives_as_it_was_sent(first in ".*", second in ".*") {
        let payload = serde_json::json!({"first": first, "second": second}).to_string();
        let form = Template::parse_form("a={first}&b={second}").unwrap();
        let filled = form.fill(&values(payload.as_bytes())).unwrap();
        let pairs: Vec<(String, String)> = url::form_urlencoded::parse(filled.as_bytes())
            .into_owned()
            .collect();
        prop_assert_eq!(pairs, vec![("a".to_owned(), first.clone()), ("b".to_owned(), second)]);

        let url = UrlTemplate::parse("http://t.example/p{first}/x?a={first}", false).unwrap();
        let url = url.fill(None, &values(payload.as_bytes())).unwrap();
        prop_assert_eq!(url.host_str(), Some("t.example"));
        let segments: Vec<_> = url.path_segments().unwrap().collect();
        prop_assert_eq!(segments.len(), 2);
        let decoded = percent_decode_str(segments[0]).decode_utf8().unwrap().into_owned();
        prop_assert_eq!(decoded, format!("p{first}"));
    }

    #[test]
    fn no_text_makes_parsing_panic(text in ".*", payload in prop::collection::vec(any::<u8>(), 0..64)) {
        let text = text.replace('\u{0}', "{x}");
        if let Ok(template) = UrlTemplate::parse(&text, false) {
            let again = UrlTemplate::parse(&template.to_string(), false);
            prop_assert_eq!(again.as_ref(), Ok(&template));
            let _url = template.fill(None, &values(&payload));
        }
    }
}
