//! URLs of endpoints and where they lead.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use shared::policy::address::{
    ALLOW_SETTING, AddressRules, DenyReason, parse_endpoint_url, unicode_form, vet_literal,
};
use url::Host;

use crate::{config, percent_taken};

/// Ports at which a body of lines is a list of commands.
const DANGEROUS: &[u16] = &[
    0, 21, 22, 23, 25, 53, 110, 143, 389, 465, 587, 636, 993, 995, 6_000, 6_379, 6_667, 10_080,
    11_211,
];

/// First addresses of ranges where the verdict changes; their neighbours are drawn too.
const EDGES: &[[u8; 4]] = &[
    [0, 0, 0, 0],
    [10, 0, 0, 0],
    [11, 0, 0, 0],
    [100, 64, 0, 0],
    [100, 128, 0, 0],
    [100, 100, 100, 200],
    [127, 0, 0, 1],
    [169, 254, 0, 0],
    [169, 254, 169, 254],
    [172, 16, 0, 0],
    [172, 32, 0, 0],
    [192, 0, 0, 0],
    [192, 168, 0, 0],
    [198, 18, 0, 0],
    [224, 0, 0, 0],
    [255, 255, 255, 255],
];

fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    let edge = (select(EDGES), -2_i32..=2).prop_map(|(edge, beside)| {
        Ipv4Addr::from_bits(u32::from_be_bytes(edge).wrapping_add_signed(beside))
    });
    prop_oneof![any::<u32>().prop_map(Ipv4Addr::from_bits), edge]
}

/// Moved into `2000::/3`.
fn global_unicast(bits: u128) -> u128 {
    (bits >> 3) | (1 << 125)
}

/// Any address; of IPv6 mostly such as are public by their prefix or carry an IPv4 address.
fn address() -> impl Strategy<Value = IpAddr> {
    let global = any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(global_unicast(bits)));
    let carrying =
        (ipv4(), ipv4(), any::<u128>(), 0_usize..8).prop_map(|(inside, other, rest, form)| {
            let tail = u128::from(inside.to_bits());
            let forms = [
                tail,
                (0xffff_u128 << 32) | tail,
                (0xffff_u128 << 48) | tail,
                (0x64_ff9b_u128 << 96) | tail,
                (0x64_ff9b_0001_u128 << 80) | tail,
                (0x2002_u128 << 112) | (tail << 80) | (rest >> 64),
                (0x2001_u128 << 112)
                    | (u128::from(other.to_bits()) << 64)
                    | u128::from(!inside.to_bits()),
                (global_unicast(rest) & !u128::from(u64::MAX)) | (0x5efe_u128 << 32) | tail,
            ];
            Ipv6Addr::from_bits(*forms.get(form).unwrap())
        });
    prop_oneof![
        2 => ipv4().prop_map(IpAddr::V4),
        1 => global.prop_map(IpAddr::V6),
        2 => carrying.prop_map(IpAddr::V6),
        1 => any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()),
    ]
}

/// The numbers of an IPv4 address, the last one taking what is left, each in its own base.
fn numbers(address: Ipv4Addr, count: usize, bases: [u8; 4]) -> String {
    let [a, b, c, _] = address.octets().map(u32::from);
    let bits = address.to_bits();
    let values = match count {
        1 => vec![bits],
        2 => vec![a, bits & 0xff_ffff],
        3 => vec![a, b, bits & 0xffff],
        _ => vec![a, b, c, bits & 0xff],
    };
    let spelled = values
        .iter()
        .zip(bases)
        .map(|(value, base)| match base % 4 {
            0 => format!("{value}"),
            1 => format!("0{value:o}"),
            2 => format!("0x{value:x}"),
            _ => format!("0X{value:08X}"),
        });
    spelled.collect::<Vec<_>>().join(".")
}

/// An IPv4 address as URL parsers also read it.
fn spelling(address: Ipv4Addr) -> impl Strategy<Value = String> {
    let wide = |c: char| char::from_u32(u32::from(c) + 0xfee0).unwrap_or(c);
    (1_usize..=4, any::<[u8; 4]>(), any::<bool>(), 0_u8..3).prop_map(
        move |(count, bases, dot, disguise)| {
            let dot = if dot { "." } else { "" };
            let plain = format!("{}{dot}", numbers(address, count, bases));
            match disguise {
                0 => plain,
                1 => plain.bytes().map(|byte| format!("%{byte:02x}")).collect(),
                _ => plain.chars().map(wide).collect(),
            }
        },
    )
}

/// Texts out of the parts that parsers disagree about.
fn hostile_url() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        6 => select(&["http://", "https://"][..]),
        1 => select(&["HTTP:", "http:/", "http:\\\\", "//", "", "ftp://", "h\tttp://"][..]),
    ];
    let user = prop_oneof![9 => Just(String::new()), 1 => "[a-z:%@\\\\]{0,6}@"];
    let host = prop_oneof![
        2 => ipv4().prop_flat_map(spelling),
        2 => address().prop_map(|address| match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        }),
        1 => "[a-z0-9.-]{0,20}",
        1 => "([a-z]{1,5}\\.){0,3}(localhost|LOCALHOST|xn--[a-z0-9]{1,8})",
        1 => "\\PC{0,12}",
    ];
    let dots = prop_oneof![8 => Just(""), 2 => Just("."), 1 => Just("..")];
    let port = prop_oneof![
        4 => Just(String::new()),
        2 => any::<u16>().prop_map(|port| format!(":{port}")),
        1 => (select(DANGEROUS), 0_usize..8).prop_map(|(port, zeros)| format!(":{}{port}", "0".repeat(zeros))),
        1 => "[:0-9+ -]{0,7}",
    ];
    let rest = prop_oneof![3 => "([/?][!-\"$-~]{0,10})?", 1 => "[/?#\\\\a-z%.\t]{0,10}"];
    (scheme, user, host, dots, port, rest).prop_map(|(scheme, user, host, dots, port, rest)| {
        format!("{scheme}{user}{host}{dots}{port}{rest}")
    })
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![6 => hostile_url(), 1 => "\\PC{0,60}", 1 => any::<String>()]
}

/// What no registry calls special, said apart from the policy's own tables: a lower bound.
fn public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127 | 224.., ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            | [192, 0, 0 | 2, _]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

fn join(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))
}

/// The IPv4 addresses that a gateway would find in an address. Teredo has a server's and a client's.
fn carried(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..]
        | [_, _, _, _, 0 | 0x100 | 0x200 | 0x300, 0x5efe, high, low] => vec![join(high, low)],
        [0x2001, 0, high, low, _, _, a, b] => vec![join(high, low), join(!a, !b)],
        _ => Vec::new(),
    }
}

fn public(address: IpAddr) -> bool {
    let address = match address {
        IpAddr::V4(address) => return public_v4(address),
        IpAddr::V6(address) => address,
    };
    let inside = carried(address);
    let by_prefix = match address.segments() {
        [0x2001, 0xdb8, ..] => false,
        [0, 0, 0, 0, ..] | [0x64, 0xff9b, 0, ..] => !inside.is_empty(),
        [first, ..] => first >> 13 == 1,
    };
    by_prefix && inside.into_iter().all(public_v4)
}

/// An address, and a range about it, about what it carries, or anywhere.
fn range_and_address() -> impl Strategy<Value = (IpNet, IpAddr)> {
    (address(), address(), any::<u8>(), any::<bool>()).prop_map(|(address, other, bits, single)| {
        let inside = match address {
            IpAddr::V4(_) => Vec::new(),
            IpAddr::V6(address) => carried(address),
        };
        let places = [
            Some(address),
            inside.first().copied().map(IpAddr::V4),
            inside.last().copied().map(IpAddr::V4),
            Some(other),
        ];
        let base = places
            .get(usize::from(bits % 4))
            .copied()
            .flatten()
            .unwrap_or(address);
        let most: u8 = if base.is_ipv4() { 32 } else { 128 };
        let length = if single { most } else { bits % (most + 1) };
        (IpNet::new(base, length).unwrap(), address)
    })
}

proptest! {
    #![proptest_config(config())]

    /// S1: what is taken is what it looks like, and a literal that passes is everybody's.
    #[test]
    fn s1_a_url_that_is_taken_is_stable_and_leads_nowhere_special(
        text in any_text(),
        https_only in any::<bool>(),
    ) {
        let Ok(url) = parse_endpoint_url(&text, https_only) else {
            return Ok(());
        };
        prop_assert_eq!(parse_endpoint_url(url.as_str(), https_only), Ok(url.clone()));
        prop_assert!(url.as_str().is_ascii(), "the request line and `Host` are ASCII");
        prop_assert!(url.scheme() == "https" || (!https_only && url.scheme() == "http"));
        prop_assert!(url.username().is_empty() && url.password().is_none());
        prop_assert!(url.fragment().is_none());
        let host = url.host_str().unwrap();
        prop_assert!(!host.is_empty() && !host.ends_with('.'), "{host}");
        prop_assert!(http::HeaderValue::from_str(host).is_ok());
        prop_assert!(url.port_or_known_default().is_some_and(|port| !DANGEROUS.contains(&port)));
        if let Some(shown) = unicode_form(&url) {
            prop_assert_eq!(parse_endpoint_url(&shown, https_only), Ok(url.clone()));
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) | None => return Ok(()),
        };
        let rules = AddressRules::default();
        prop_assert_eq!(vet_literal(&url, &rules), rules.check(address), "one rule for both paths");
    }

    /// S1
    #[test]
    fn s1_an_address_that_passes_is_public_and_so_is_what_it_carries(address in address()) {
        if AddressRules::default().check(address).is_ok() {
            prop_assert!(public(address), "{address}");
        }
    }

    /// S1: a disguise neither opens an address nor closes one.
    #[test]
    fn s1_an_address_is_the_same_in_every_spelling(
        (address, spelling) in ipv4().prop_flat_map(|address| (Just(address), spelling(address))),
    ) {
        let plain = parse_endpoint_url(&format!("http://{address}/"), false);
        prop_assert!(plain.is_ok());
        prop_assert_eq!(parse_endpoint_url(&format!("http://{spelling}/"), false), plain);
    }

    /// S1
    #[test]
    fn s1_a_range_that_is_opened_opens_nothing_beside_it((range, address) in range_and_address()) {
        let Err(reason) = AddressRules::default().check(address) else {
            return Ok(());
        };
        let opened = AddressRules::new(vec![range]).check(address).is_ok();
        let closed = |one: &Ipv4Addr| !public_v4(*one) && !range.contains(&IpAddr::V4(*one));
        let named = range.contains(&address) || match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => !carried(address).is_empty() && !carried(address).iter().any(closed),
        };
        prop_assert!(named || !opened, "{range} opens {address}");
        let alone = range.prefix_len() == range.max_prefix_len();
        prop_assert!(alone || !opened || reason != DenyReason::Metadata, "{range} opens {address}");
        prop_assert!(opened || !range.contains(&address) || reason == DenyReason::Metadata);
    }

    #[test]
    fn a_setting_is_a_list_of_ranges_or_an_error_that_names_it(
        text in prop_oneof!["[0-9a-f.:/, ]{0,40}", any::<String>()],
    ) {
        if let Err(error) = AddressRules::parse(&text) {
            prop_assert!(error.starts_with(ALLOW_SETTING), "{error}");
        }
    }
}

#[test]
fn a_fifth_of_the_urls_are_taken_and_some_addresses_pass() {
    let taken = percent_taken(&any_text(), |text| parse_endpoint_url(&text, false).is_ok());
    assert!((20..80).contains(&taken), "{taken} %");
    let rules = AddressRules::default();
    let passed = percent_taken(&address(), |address| rules.check(address).is_ok());
    assert!((20..80).contains(&passed), "{passed} %");
    let opened = percent_taken(&range_and_address(), |(range, address)| {
        rules.check(address).is_err() && AddressRules::new(vec![range]).check(address).is_ok()
    });
    assert!(opened >= 10, "{opened} %");
}
