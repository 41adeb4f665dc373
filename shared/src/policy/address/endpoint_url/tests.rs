use proptest::prelude::*;

use super::*;

#[test]
fn bad_urls_are_refused_with_their_reason() {
    let long = format!("https://example.com/{}", "x".repeat(MAX_URL_LENGTH));
    let long_label = format!("http://{}.example/", "a".repeat(64));
    let long_name = format!("http://{}example/", "abcdefg.".repeat(31));
    let widened = format!("https://example.com/{}", "ü".repeat(900));
    let cases = [
        (
            "",
            UrlError::Malformed(url::ParseError::RelativeUrlWithoutBase),
        ),
        (
            "example.com/x",
            UrlError::Malformed(url::ParseError::RelativeUrlWithoutBase),
        ),
        ("http://", UrlError::Malformed(url::ParseError::EmptyHost)),
        (
            "http://a:99999/",
            UrlError::Malformed(url::ParseError::InvalidPort),
        ),
        (
            "http://1.2.3.4.5/",
            UrlError::Malformed(url::ParseError::InvalidIpv4Address),
        ),
        (
            "http://256.0.0.1/",
            UrlError::Malformed(url::ParseError::InvalidIpv4Address),
        ),
        (
            "http://[::1/",
            UrlError::Malformed(url::ParseError::InvalidIpv6Address),
        ),
        ("ftp://example.com/", UrlError::Scheme),
        ("file:///etc/passwd", UrlError::Scheme),
        ("data:text/plain,x", UrlError::Scheme),
        ("http://user@example.com/", UrlError::Userinfo),
        ("http://:pass@example.com/", UrlError::Userinfo),
        ("http://example.com/#top", UrlError::Fragment),
        ("http://example.com:0/", UrlError::PortZero),
        ("http://exam ple.com/", UrlError::Blank),
        ("http://example.com/\t", UrlError::Blank),
        (" http://example.com/", UrlError::Blank),
        ("http://example.com/\u{a0}", UrlError::Blank),
        ("http://./", UrlError::NoHost),
        ("http://a../", UrlError::HostName),
        ("http://.a/", UrlError::HostName),
        ("http://a..b/", UrlError::HostName),
        ("http://127.0.0.1../", UrlError::HostName),
        (&long_label, UrlError::HostName),
        (&long_name, UrlError::HostName),
        ("http://example.com:22/", UrlError::PortDenied(22)),
        ("https://example.com:6379/", UrlError::PortDenied(6_379)),
        ("https://[2a00::1]:11211/", UrlError::PortDenied(11_211)),
        (
            "http://[fe80::1%25eth0]/",
            UrlError::Malformed(url::ParseError::InvalidIpv6Address),
        ),
        (
            "http://[fe80::1%eth0]/",
            UrlError::Malformed(url::ParseError::InvalidIpv6Address),
        ),
        (&long, UrlError::TooLong),
        (&widened, UrlError::TooLong),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_endpoint_url(text, false), Err(expected), "{text}");
    }
    assert_eq!(
        parse_endpoint_url("http://a.example/", true),
        Err(UrlError::NotHttps)
    );
}

#[test]
fn what_is_stored_is_the_parsed_form() {
    for (text, stored) in [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/a?b=c", "https://example.com/a?b=c"),
        (
            "https://bücher.example/ü",
            "https://xn--bcher-kva.example/%C3%BC",
        ),
        ("http:example.com", "http://example.com/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("https://Example.com./a", "https://example.com/a"),
        ("https://example.com.:8443/", "https://example.com:8443/"),
        (
            "https://bücher.example。/",
            "https://xn--bcher-kva.example/",
        ),
        ("https://ⓔxample.com/", "https://example.com/"),
        ("https://exam\u{200b}ple.com/", "https://example.com/"),
        ("http://@example.com:80/", "http://example.com/"),
    ] {
        assert_eq!(
            parse_endpoint_url(text, false).unwrap().as_str(),
            stored,
            "{text}"
        );
    }
}

#[test]
fn a_refused_port_is_named() {
    let refused = parse_endpoint_url("http://example.com:6379/", false).unwrap_err();
    assert!(refused.to_string().contains("port 6379"), "{refused}");
}

#[test]
fn a_host_is_shown_as_people_write_it_where_that_leads_to_the_same_place() {
    for (text, shown) in [
        (
            "https://bücher.example:8443/ü?q=ä",
            Some("https://bücher.example:8443/%C3%BC?q=%C3%A4"),
        ),
        (
            "https://xn--bcher-kva.example/",
            Some("https://bücher.example/"),
        ),
        ("https://例え.テスト/", Some("https://例え.テスト/")),
        ("https://straße.example/", Some("https://straße.example/")),
        ("https://BÜCHER.example./", Some("https://bücher.example/")),
        ("https://example.com/ü", None),
        ("http://127.0.0.1/", None),
        ("http://[2a00::1]/", None),
    ] {
        let url = parse_endpoint_url(text, false).unwrap();
        assert_eq!(unicode_form(&url).as_deref(), shown, "{text}");
    }
}

/// Hosts of words from many scripts, with what IDNA folds, drops and forbids strewn in.
fn unicode_host() -> impl Strategy<Value = String> {
    let scripts = [
        'a'..='z',
        'A'..='Z',
        'à'..='ö',
        'α'..='ω',
        'а'..='я',
        'ぁ'..='ん',
        '一'..='十',
        'א'..='ת',
        '가'..='깋',
    ];
    let odd = [
        'ß', 'ς', 'ⓐ', '１', 'ﬀ', '\u{200b}', '\u{200d}', '\u{ad}', '-', '_', '。', 'İ', 'K', '🦀',
        '7',
    ];
    let word = proptest::sample::select(scripts.to_vec()).prop_flat_map(move |script| {
        let letter = proptest::char::range(*script.start(), *script.end());
        let odd = proptest::sample::select(odd.to_vec());
        proptest::collection::vec(prop_oneof![12 => letter, 1 => odd], 1..12)
    });
    let label = word.prop_map(String::from_iter);
    proptest::collection::vec(label, 1..4).prop_map(|labels| labels.join("."))
}

proptest! {
    // Cases that are refused do not count.
    #![proptest_config(ProptestConfig { max_global_rejects: 1_000_000, ..ProptestConfig::with_cases(2_048) })]

    /// F20
    #[test]
    fn a_unicode_url_is_stored_in_one_form_whatever_form_comes_back(
        host in unicode_host(),
        dot in prop_oneof![Just(""), Just(".")],
        port in prop_oneof![Just(""), Just(":8443")],
        rest in "(/\\PC{0,20})?",
    ) {
        let text = format!("https://{host}{dot}{port}{}", rest.replace(['#', ' '], ""));
        let parsed = parse_endpoint_url(&text, true);
        prop_assume!(parsed.is_ok());
        let url = parsed.unwrap();

        prop_assert!(url.as_str().is_ascii());
        prop_assert!(!url.host_str().unwrap().ends_with('.'));
        let again = parse_endpoint_url(url.as_str(), true).unwrap();
        prop_assert_eq!(again.as_str(), url.as_str());
        if let Some(shown) = unicode_form(&url) {
            prop_assert_ne!(&shown, url.as_str());
            prop_assert_eq!(parse_endpoint_url(&shown, true), Ok(url));
        }
    }

    #[test]
    fn any_text_is_a_stable_url_or_an_error(text in prop_oneof![
        "\\PC{0,60}",
        "https?://\\PC{0,40}",
        "https?://[a-z0-9.\\[\\]:%@/?#-]{0,40}",
    ]) {
        if let Ok(url) = parse_endpoint_url(&text, false) {
            let again = parse_endpoint_url(url.as_str(), false);
            prop_assert_eq!(again.as_ref(), Ok(&url));
        }
    }
}
