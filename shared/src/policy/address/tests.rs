use proptest::prelude::*;

use super::*;

fn check(address: &str, allowed: &str) -> Result<(), DenyReason> {
    AddressRules::parse(allowed)
        .unwrap()
        .check(address.parse().unwrap())
}

#[test]
fn every_special_range_is_denied_at_both_its_ends() {
    use DenyReason::*;
    let cases = [
        ("0.0.0.0", Unspecified),
        ("0.0.0.1", Reserved),
        ("0.255.255.255", Reserved),
        ("10.0.0.0", Private),
        ("10.255.255.255", Private),
        ("100.64.0.0", SharedByCarrier),
        ("100.127.255.255", SharedByCarrier),
        ("127.0.0.1", Loopback),
        ("127.255.255.255", Loopback),
        ("169.254.0.0", LinkLocal),
        ("169.254.255.255", LinkLocal),
        ("172.16.0.0", Private),
        ("172.31.255.255", Private),
        ("192.0.0.8", Reserved),
        ("192.0.2.1", Documentation),
        ("192.88.99.1", Reserved),
        ("192.168.0.0", Private),
        ("192.168.255.255", Private),
        ("198.18.0.0", Benchmarking),
        ("198.19.255.255", Benchmarking),
        ("198.51.100.7", Documentation),
        ("203.0.113.7", Documentation),
        ("224.0.0.1", Multicast),
        ("239.255.255.255", Multicast),
        ("240.0.0.1", Reserved),
        ("255.255.255.255", Reserved),
        ("169.254.169.254", Metadata),
        ("169.254.170.2", Metadata),
        ("100.100.100.200", Metadata),
        ("168.63.129.16", Metadata),
        ("::", Unspecified),
        ("::1", Loopback),
        ("64:ff9b:1::1", Reserved),
        ("100::1", Reserved),
        ("2001:2::1", Benchmarking),
        ("2001:db8::1", Documentation),
        ("3fff::1", Documentation),
        ("2001:10::1", Reserved),
        ("5f00::1", Reserved),
        ("4000::1", Reserved),
        ("fc00::1", Private),
        ("fdff::1", Private),
        ("fe80::1", LinkLocal),
        ("febf::1", LinkLocal),
        ("fec0::1", Private),
        ("ff02::1", Multicast),
        ("fd00:ec2::254", Metadata),
        ("fd20:ce::254", Metadata),
    ];
    for (address, reason) in cases {
        assert_eq!(check(address, ""), Err(reason), "{address}");
    }
}

#[test]
fn public_addresses_beside_the_special_ranges_pass() {
    let cases = [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00::1",
        "2001:4860::8888",
        "3ffe::1",
    ];
    for address in cases {
        assert_eq!(check(address, ""), Ok(()), "{address}");
    }
}

#[test]
fn an_ipv4_address_inside_an_ipv6_address_is_judged_as_itself() {
    use DenyReason::*;
    let cases = [
        ("::ffff:127.0.0.1", Err(Loopback)),
        ("::ffff:169.254.169.254", Err(Metadata)),
        ("::ffff:1.1.1.1", Ok(())),
        ("::127.0.0.1", Err(Loopback)),
        ("::10.0.0.1", Err(Private)),
        ("::ffff:0:10.0.0.1", Err(Private)),
        ("64:ff9b::192.168.1.1", Err(Private)),
        ("64:ff9b::169.254.169.254", Err(Metadata)),
        ("64:ff9b::1.1.1.1", Ok(())),
        ("2002:7f00:1::", Err(Loopback)),
        ("2002:a9fe:a9fe::1", Err(Metadata)),
        ("2002:101:101::1", Ok(())),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Err(Documentation)), // client 192.0.2.45
        ("2001:0:a9fe:a9fe:8000:63bf:fefe:fefe", Err(Metadata)),      // server 169.254.169.254
        ("2001:0:101:101:8000:63bf:5601:5601", Err(Metadata)),        // client 169.254.169.254
        ("2001:0:101:101:8000:63bf:fefe:fefe", Ok(())),               // both 1.1.1.1
    ];
    for (address, expected) in cases {
        assert_eq!(check(address, ""), expected, "{address}");
    }
}

#[test]
fn an_operator_opens_exactly_the_range_named() {
    use DenyReason::*;
    let cases = [
        ("10.1.2.3", "10.0.0.0/8", Ok(())),
        ("::ffff:10.1.2.3", "10.0.0.0/8", Ok(())),
        ("64:ff9b::10.1.2.3", "10.0.0.0/8", Ok(())),
        ("2001:0:a01:203::5601:5601", "10.0.0.0/8", Err(Metadata)), // client 169.254.169.254
        ("2001:0:a01:203::fefe:fefe", "10.0.0.0/8", Ok(())), // server 10.1.2.3, client 1.1.1.1
        ("2001:0:a01:203::3f57:fefe", "10.0.0.0/8", Err(Private)), // client 192.168.1.1
        ("64:ff9b::10.1.2.3", "64:ff9b::/96", Ok(())),
        ("10.1.2.3", "10.1.2.3", Ok(())),
        ("11.0.0.1", "10.0.0.0/8", Ok(())),
        ("192.168.0.1", "10.0.0.0/8", Err(Private)),
        ("127.0.0.1", "127.0.0.0/8, ::1/128", Ok(())),
        ("::1", "127.0.0.0/8, ::1/128", Ok(())),
        ("::1", "127.0.0.0/8", Err(Loopback)),
        ("fd12::1", "fd12::/16", Ok(())),
        ("fd13::1", "fd12::/16", Err(Private)),
        ("169.254.169.254", "169.254.0.0/16", Err(Metadata)),
        ("169.254.169.254", "0.0.0.0/0 ::/0", Err(Metadata)),
        ("169.254.169.254", "169.254.169.254/32", Ok(())),
        ("169.254.169.254", "169.254.169.254", Ok(())),
        ("::ffff:169.254.169.254", "169.254.169.254", Ok(())),
        ("169.254.170.2", "169.254.169.254", Err(Metadata)),
        ("169.254.1.1", "169.254.0.0/16", Ok(())),
        ("fd00:ec2::254", "fd00::/8", Err(Metadata)),
        ("fd00:ec2::254", "fd00:ec2::254", Ok(())),
    ];
    for (address, allowed, expected) in cases {
        assert_eq!(
            check(address, allowed),
            expected,
            "{address} with {allowed}"
        );
    }
}

#[test]
fn a_bad_range_is_named_with_its_setting() {
    for bad in ["10.0.0.0/33", "ten", "10.0.0.0/8;127.0.0.1", "::1/129"] {
        let error = AddressRules::parse(bad).unwrap_err();
        assert!(error.contains(ALLOW_SETTING), "{error}");
    }
    assert_eq!(AddressRules::parse(" , "), Ok(AddressRules::default()));
}

#[test]
fn every_refusal_but_no_address_names_the_setting() {
    for address in [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "::",
        "ff02::1",
        "4000::",
    ] {
        let text = check(address, "").unwrap_err().to_string();
        assert!(text.contains(ALLOW_SETTING), "{text}");
        assert!(!text.contains(address), "{text}");
    }
}

#[test]
fn a_name_with_public_and_private_addresses_keeps_its_public_ones() {
    let list = |texts: &[&str]| -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let rules = AddressRules::default();

    let mixed = vet(&list(&["10.0.0.1", "1.1.1.1", "::1", "2a00::1"]), &rules).unwrap();
    assert_eq!(mixed.addresses(), list(&["1.1.1.1", "2a00::1"]));

    let denied = vet(&list(&["10.0.0.1", "::1"]), &rules);
    assert_eq!(denied, Err(DenyReason::Private));
    assert_eq!(vet(&[], &rules), Err(DenyReason::NoAddress));
}

#[test]
fn every_spelling_of_a_literal_is_judged_as_the_address_it_is() {
    let spellings = [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "１２７.0.0.1",
        "127%2e0%2e0%2e1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:0:0:1]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "a.localhost",
    ];
    for spelling in spellings {
        let url = parse_endpoint_url(&format!("http://{spelling}:8080/x"), false).unwrap();
        let verdict = vet_literal(&url, &AddressRules::default());
        assert_eq!(verdict, Err(DenyReason::Loopback), "{spelling}");
        let opened = AddressRules::parse("127.0.0.0/8,::1").unwrap();
        assert_eq!(vet_literal(&url, &opened), Ok(()), "{spelling}");
    }
    for (spelling, reason) in [
        ("0", DenyReason::Unspecified),
        ("169.254.169.254", DenyReason::Metadata),
        ("0xa9fea9fe", DenyReason::Metadata),
        ("[fe80::1]", DenyReason::LinkLocal),
    ] {
        let url = parse_endpoint_url(&format!("https://{spelling}/"), true).unwrap();
        assert_eq!(
            vet_literal(&url, &AddressRules::default()),
            Err(reason),
            "{spelling}"
        );
    }
    let name = parse_endpoint_url("https://example.com/", true).unwrap();
    assert_eq!(vet_literal(&name, &AddressRules::default()), Ok(()));
}

#[test]
fn bad_urls_are_refused_with_their_reason() {
    let long = format!("https://example.com/{}", "x".repeat(MAX_URL_LENGTH));
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
    ] {
        assert_eq!(
            parse_endpoint_url(text, false).unwrap().as_str(),
            stored,
            "{text}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// S1: no disguise of an IPv4 address is judged more kindly than the address itself.
    #[test]
    fn s1_no_embedding_opens_a_denied_ipv4_address(
        bits in prop_oneof![any::<u32>(), (0x7f00_0000_u32..=0x7fff_ffff), (0xa9fe_0000_u32..=0xa9fe_ffff)],
        tail in any::<[u16; 5]>(),
    ) {
        let address = Ipv4Addr::from_bits(bits);
        let rules = AddressRules::default();
        let own = rules.check(address.into());
        let [_, _, _, _, _, _, high, low] = address.to_ipv6_mapped().segments();
        let [a, b, c, d, e] = tail;
        let disguises = [
            address.to_ipv6_mapped(),
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x2002, high, low, a, b, c, d, e),
            Ipv6Addr::new(0x2001, 0, 0x0101, 0x0101, a, b, !high, !low),
        ];
        for disguise in disguises {
            prop_assert_eq!(rules.check(disguise.into()), own, "{}", disguise);
        }
        if let Err(reason) = own {
            let server = Ipv6Addr::new(0x2001, 0, high, low, a, b, c, d);
            prop_assert!(rules.check(server.into()).is_err());
            if reason == DenyReason::Metadata {
                prop_assert_eq!(rules.check(server.into()), Err(reason));
            }
        }
    }

    /// S1: agrees with the standard library where that has an opinion.
    #[test]
    fn s1_what_passes_is_a_public_unicast_address(bits in any::<u32>(), wide in any::<u128>()) {
        let rules = AddressRules::default();
        let v4 = Ipv4Addr::from_bits(bits);
        if rules.check(v4.into()).is_ok() {
            prop_assert!(!v4.is_private() && !v4.is_loopback() && !v4.is_link_local());
            prop_assert!(!v4.is_multicast() && !v4.is_broadcast() && !v4.is_documentation());
            prop_assert!(!v4.is_unspecified());
        }
        let v6 = Ipv6Addr::from_bits(wide);
        if rules.check(v6.into()).is_ok() {
            prop_assert!(!v6.is_loopback() && !v6.is_multicast() && !v6.is_unspecified());
            prop_assert!(!v6.is_unique_local() && !v6.is_unicast_link_local());
        }
    }

    #[test]
    fn vetting_keeps_order_and_only_what_passes(
        addresses in proptest::collection::vec(
            prop_oneof![any::<u32>().prop_map(|b| IpAddr::V4(b.into())), any::<u128>().prop_map(|b| IpAddr::V6(b.into()))],
            0..12,
        ),
    ) {
        let rules = AddressRules::default();
        let expected: Vec<IpAddr> =
            addresses.iter().copied().filter(|&one| rules.check(one).is_ok()).collect();
        match vet(&addresses, &rules) {
            Ok(vetted) => prop_assert_eq!(vetted.into_addresses(), expected),
            Err(_) => prop_assert!(expected.is_empty()),
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
