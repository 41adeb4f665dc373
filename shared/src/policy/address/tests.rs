use proptest::prelude::*;

use super::*;

fn check(address: &str, allowed: &str) -> Result<(), DenyReason> {
    AddressRules::parse(allowed)
        .unwrap()
        .check(address.parse().unwrap())
}

/// Every range of the registries, and what is just below and just above it.
const RANGES: &[(&str, DenyReason, &str, &str)] = {
    use DenyReason::*;
    &[
        // range, reason, verdict on the address before ("" passes, "-" there is none), and after
        ("0.0.0.0/32", Unspecified, "-", "reserved"),
        ("0.0.0.1/32", Reserved, "unspecified", "reserved"),
        ("0.128.0.0/9", Reserved, "reserved", ""),
        ("10.0.0.0/8", Private, "", ""),
        ("100.64.0.0/10", SharedByCarrier, "", ""),
        ("127.0.0.0/8", Loopback, "", ""),
        ("169.254.0.0/16", LinkLocal, "", ""),
        ("172.16.0.0/12", Private, "", ""),
        ("192.0.0.0/24", Reserved, "", ""),
        ("192.0.0.8/30", Reserved, "reserved", "reserved"),
        ("192.0.2.0/24", Documentation, "", ""),
        ("192.31.196.0/24", Reserved, "", ""),
        ("192.52.193.0/24", Reserved, "", ""),
        ("192.88.99.0/24", Reserved, "", ""),
        ("192.168.0.0/16", Private, "", ""),
        ("192.175.48.0/24", Reserved, "", ""),
        ("198.18.0.0/15", Benchmarking, "", ""),
        ("198.51.100.0/24", Documentation, "", ""),
        ("203.0.113.0/24", Documentation, "", ""),
        ("224.0.0.0/4", Multicast, "", "reserved"),
        ("240.0.0.0/4", Reserved, "multicast", "-"),
        ("255.255.255.255/32", Reserved, "reserved", "-"),
        ("::/128", Unspecified, "-", "loopback"),
        ("::1/128", Loopback, "unspecified", "reserved"), // after it: ::0.0.0.2
        ("64:ff9b:1::/48", Reserved, "reserved", "reserved"),
        ("100::/64", Reserved, "reserved", "reserved"),
        ("100:0:0:1::/64", Reserved, "reserved", "reserved"),
        ("200::/7", Reserved, "reserved", "reserved"),
        ("1fff::/16", Reserved, "reserved", ""),
        ("2001:1::/32", Reserved, "reserved", "benchmarking"), // before it: Teredo
        ("2001:2::/48", Benchmarking, "reserved", "reserved"),
        ("2001:3::/32", Reserved, "reserved", "reserved"),
        ("2001:4:112::/48", Reserved, "reserved", "reserved"),
        ("2001:10::/28", Reserved, "reserved", "reserved"),
        ("2001:20::/28", Reserved, "reserved", "reserved"),
        ("2001:30::/28", Reserved, "reserved", "reserved"),
        ("2001:100::/24", Reserved, "reserved", ""),
        ("2001:db8::/32", Documentation, "", ""),
        ("2620:4f:8000::/48", Reserved, "", ""),
        ("3ffe::/16", Reserved, "", "documentation"),
        ("3fff::/20", Documentation, "reserved", ""),
        ("4000::/3", Reserved, "", "reserved"),
        ("5f00::/16", Reserved, "reserved", "reserved"),
        ("fc00::/7", Private, "reserved", "reserved"),
        ("fe80::/10", LinkLocal, "reserved", "private"),
        ("fec0::/10", Private, "link_local", "multicast"),
        ("ff00::/8", Multicast, "private", "-"),
    ]
};

fn below(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => Some(Ipv4Addr::from_bits(v4.to_bits().checked_sub(1)?).into()),
        IpAddr::V6(v6) => Some(Ipv6Addr::from_bits(v6.to_bits().checked_sub(1)?).into()),
    }
}

fn above(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => Some(Ipv4Addr::from_bits(v4.to_bits().checked_add(1)?).into()),
        IpAddr::V6(v6) => Some(Ipv6Addr::from_bits(v6.to_bits().checked_add(1)?).into()),
    }
}

/// The verdict on an address with nothing opened, by name.
fn verdict(address: Option<IpAddr>) -> &'static str {
    let judge = |address| match AddressRules::default().check(address) {
        Ok(()) => "",
        Err(reason) => reason.name(),
    };
    address.map_or("-", judge)
}

#[test]
fn s1_every_special_range_is_denied_from_end_to_end_and_not_beyond() {
    for (range, reason, before, after) in RANGES {
        let range: IpNet = range.parse().unwrap();
        let (first, last) = (range.network(), range.broadcast());
        let ends = [first, last].map(|end| verdict(Some(end)));
        assert_eq!(ends, [reason.name(); 2], "{range}");
        let beside = [below(first), above(last)].map(verdict);
        assert_eq!(beside, [*before, *after], "{range}");
    }
}

#[test]
fn metadata_addresses_are_told_from_the_range_they_lie_in() {
    let addresses = [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "169.254.169.250",
        "169.254.169.252",
        "169.254.42.42",
        "169.254.0.23",
        "100.100.100.200",
        "100.96.0.96",
        "100.80.80.80",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fd00:42::42",
        "fd00:c1::a9fe:a9fe",
        "fd00:a9fe:a9fe::1",
        "fe80::a9fe:a9fe",
    ];
    for text in addresses {
        let address: IpAddr = text.parse().unwrap();
        assert_eq!(check(text, ""), Err(DenyReason::Metadata), "{text}");
        for neighbour in [below(address), above(address)] {
            assert_ne!(verdict(neighbour), "metadata", "{text}");
        }
        for wide in [
            "0.0.0.0/0,::/0",
            "169.254.0.0/16,fd00::/8,fe80::/10,100.64.0.0/10",
        ] {
            assert_eq!(check(text, wide), Err(DenyReason::Metadata), "{text}");
        }
        assert_eq!(check(text, text), Ok(()), "{text} named alone");
    }
}

#[test]
fn public_addresses_pass() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "192.0.1.0",
        "2606:4700:4700::1111",
        "2a00::1",
        "2001:4860::8888",
        "2410::1",
        "2620:4f:8001::1",
    ] {
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
        ("2001:0:101:101:0:5efe:7f00:1", Err(Loopback)),              // also looks like ISATAP
        ("2a00::5efe:127.0.0.1", Err(Loopback)),                      // ISATAP
        ("2a00::200:5efe:169.254.169.254", Err(Metadata)),
        ("2a00::300:5efe:10.0.0.1", Err(Private)),
        ("2a00::5efe:1.1.1.1", Ok(())),
        ("2a00::400:5efe:127.0.0.1", Ok(())), // no ISATAP id
        ("fe80::5efe:1.1.1.1", Err(LinkLocal)),
        ("fd12::200:5efe:1.1.1.1", Err(Private)),
        ("2002:101:101::5efe:10.0.0.1", Err(Private)), // ISATAP behind 6to4
        ("64:ff9b:1::1.1.1.1", Err(Reserved)),         // NAT64, but a local one
        ("64:ff9b:1::169.254.169.254", Err(Metadata)), // prefix of 96 bits
        ("64:ff9b:1:a9fe:a9:fe00::", Err(Metadata)),   // of 48
        ("64:ff9b:1:a9:fe:a9fe::", Err(Metadata)),     // of 56
        ("64:ff9b:1:0:a9:fea9:fe00:0", Err(Metadata)), // of 64
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
        ("64:ff9b:1::10.1.2.3", "10.0.0.0/8", Err(Reserved)),
        ("64:ff9b:1::10.1.2.3", "64:ff9b:1::/48", Ok(())),
        (
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1::/48",
            Err(Metadata),
        ),
        ("64:ff9b:1::169.254.169.254", "64:ff9b:1::a9fe:a9fe", Ok(())),
        ("2a00::5efe:10.1.2.3", "10.0.0.0/8", Ok(())),
        ("fe80::5efe:10.1.2.3", "10.0.0.0/8", Err(LinkLocal)),
        ("fd12::5efe:10.1.2.3", "fd12::/16", Ok(())),
        ("fd12::5efe:169.254.169.254", "fd12::/16", Err(Metadata)),
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
    for bad in [
        "10.0.0.0/33",
        "ten",
        "10.0.0.0/8;127.0.0.1",
        "::1/129",
        "fe80::1%eth0",
        "fe80::%1/64",
    ] {
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

/// An IPv4 address behind `64:ff9b:1::/48`, for prefixes of 48, 56, 64 and 96 bits (RFC 6052, 2.2).
fn local_nat64(address: Ipv4Addr) -> [Ipv6Addr; 4] {
    let prefix = Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0);
    let places = [
        [6, 7, 9, 10],
        [7, 9, 10, 11],
        [9, 10, 11, 12],
        [12, 13, 14, 15],
    ];
    places.map(|place| {
        let mut octets = prefix.octets();
        for (at, byte) in place.into_iter().zip(address.octets()) {
            octets[at] = byte;
        }
        octets.into()
    })
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
            Ipv6Addr::new(0x2002, high, low, a, b, c & 0x7fff, d, e),
            Ipv6Addr::new(0x2001, 0, 0x0101, 0x0101, a, b & 0x7fff, !high, !low),
            Ipv6Addr::new(0x2a00, a, b, c, 0, 0x5efe, high, low),
            Ipv6Addr::new(0x2a00, a, b, c, 0x200, 0x5efe, high, low),
        ];
        for disguise in disguises {
            prop_assert_eq!(rules.check(disguise.into()), own, "{}", disguise);
        }
        for local in local_nat64(address) {
            let expected = match own {
                Err(DenyReason::Metadata) => DenyReason::Metadata,
                Ok(()) | Err(_) => DenyReason::Reserved,
            };
            prop_assert_eq!(rules.check(local.into()), Err(expected), "{}", local);
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

    /// S1: the registries' ranges hold all over, not only at their ends.
    #[test]
    fn s1_nothing_in_a_special_range_passes(
        range in proptest::sample::select(RANGES),
        bits in any::<u128>(),
    ) {
        let net: IpNet = range.0.parse().unwrap();
        let address: IpAddr = match net {
            IpNet::V4(net) => {
                let bits = u32::try_from(bits >> 96).unwrap();
                Ipv4Addr::from_bits(net.network().to_bits() | (bits & net.hostmask().to_bits())).into()
            }
            IpNet::V6(net) => {
                Ipv6Addr::from_bits(net.network().to_bits() | (bits & net.hostmask().to_bits())).into()
            }
        };
        prop_assert!(AddressRules::default().check(address).is_err(), "{}", address);
    }

    /// S1: what stands in a URL and what a resolver answers is judged alike.
    #[test]
    fn s1_a_literal_is_judged_like_a_resolvers_answer(
        address in prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
            any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).to_ipv6_mapped().into()),
            (any::<u8>(), any::<u16>()).prop_map(|(a, b)| Ipv6Addr::new(a.into(), b, 0, 0, 0, 0, 0, 1).into()),
        ],
        allowed in prop_oneof![Just(""), Just("10.0.0.0/8,fd00::/8,127.0.0.1"), Just("0.0.0.0/0,::/0")],
    ) {
        let rules = AddressRules::parse(allowed).unwrap();
        let host = match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        let url = parse_endpoint_url(&format!("https://{host}/"), true).unwrap();
        let literal = vet_literal(&url, &rules);
        prop_assert_eq!(literal, rules.check(address));
        prop_assert_eq!(literal, vet(&[address], &rules).map(|_| ()));
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
}
