//! Hostile texts against the rules that strangers' input meets first: URLs and addresses, headers,
//! `Retry-After`, keys and signatures.
//!
//! `make fuzz` runs this for long (`POSTRIDER_FUZZ_CASES`); the tests run a short form of the same.

use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use shared::policy::address::{AddressRules, parse_endpoint_url, vet_literal};
use shared::policy::headers::check;
use shared::policy::retry_after;
use shared::policy::signing::{
    PublicKey, Secret, Signed, verify_ed25519, verify_standard, verify_stripe,
};
use time::macros::datetime;
use url::Host;

fn config() -> ProptestConfig {
    let cases = std::env::var("POSTRIDER_FUZZ_CASES").ok();
    ProptestConfig {
        cases: cases.and_then(|text| text.parse().ok()).unwrap_or(2_000),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// Texts out of the parts that parsers disagree about.
fn any_url() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        Just("http://"),
        Just("https://"),
        Just("HTTP:"),
        Just("http:/"),
        Just("http:\\\\"),
        Just("//"),
        Just(""),
        Just("ftp://"),
        Just("h\tttp://"),
    ];
    let user = prop_oneof![
        4 => Just(String::new()),
        1 => "[a-z:%@\\\\]{0,6}@",
    ];
    let number = prop_oneof![
        any::<u8>().prop_map(|it| it.to_string()),
        any::<u8>().prop_map(|it| format!("0{it:o}")),
        any::<u8>().prop_map(|it| format!("0x{it:x}")),
        any::<u32>().prop_map(|it| it.to_string()),
    ];
    let literal = proptest::collection::vec(number, 1..5).prop_map(|parts| parts.join("."));
    let host = prop_oneof![
        literal,
        any::<u128>().prop_map(|bits| format!("[{}]", std::net::Ipv6Addr::from_bits(bits))),
        any::<u32>().prop_map(|bits| format!("[::ffff:{}]", std::net::Ipv4Addr::from_bits(bits))),
        "[a-z0-9.-]{0,20}",
        "\\PC{0,12}",
        Just("localhost".to_owned()),
        Just("１２７。0。0。1".to_owned()),
    ];
    let dots = prop_oneof![4 => Just(""), 1 => Just("."), 1 => Just("..")];
    let port = prop_oneof![
        3 => Just(String::new()),
        2 => any::<u16>().prop_map(|port| format!(":{port}")),
        1 => "[:0-9+ -]{0,7}",
    ];
    let rest = "[/?#\\\\a-z%.\t]{0,10}";
    (scheme, user, host, dots, port, rest).prop_map(|(scheme, user, host, dots, port, rest)| {
        format!("{scheme}{user}{host}{dots}{port}{rest}")
    })
}

proptest! {
    #![proptest_config(config())]

    /// S1: what is taken is what it looks like, and a literal that passes is everybody's.
    #[test]
    fn s1_a_url_that_is_taken_is_stable_and_leads_nowhere_special(
        text in prop_oneof![any_url(), "\\PC{0,60}", any::<String>()],
        https_only in any::<bool>(),
    ) {
        let Ok(url) = parse_endpoint_url(&text, https_only) else {
            return Ok(());
        };
        prop_assert_eq!(parse_endpoint_url(url.as_str(), https_only), Ok(url.clone()));
        prop_assert!(url.scheme() == "https" || (!https_only && url.scheme() == "http"));
        prop_assert!(url.username().is_empty() && url.password().is_none());
        prop_assert!(url.fragment().is_none());
        let host = url.host_str().unwrap();
        prop_assert!(host.is_ascii() && !host.is_empty() && !host.ends_with('.'), "{host}");
        prop_assert!(!matches!(url.port_or_known_default(), None | Some(0 | 22 | 25 | 6_379 | 11_211)));
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            Some(Host::Domain(_)) | None => return Ok(()),
        };
        let rules = AddressRules::default();
        prop_assert_eq!(vet_literal(&url, &rules), rules.check(address), "one rule for both paths");
        if vet_literal(&url, &rules).is_ok() {
            prop_assert!(!address.is_loopback() && !address.is_unspecified() && !address.is_multicast());
            if let IpAddr::V4(v4) = address {
                prop_assert!(!v4.is_private() && !v4.is_link_local() && !v4.is_broadcast());
            }
        }
    }

    /// P1: a header that passes is one line of its own and nobody else's.
    #[test]
    fn p1_a_header_that_passes_stays_within_its_line(
        headers in proptest::collection::vec(
            (
                prop_oneof!["[a-zA-Z_-]{0,20}", "\\PC{0,12}", any::<String>(), Just("webhook_id".to_owned())],
                prop_oneof!["[ -~]{0,40}", any::<String>(), "[\\x00-\\x7f]{0,20}"],
            ),
            0..40,
        ),
    ) {
        let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        if check(pairs).is_err() {
            return Ok(());
        }
        prop_assert!(headers.len() <= 32);
        for (name, value) in &headers {
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            prop_assert!(!name.is_empty() && name.bytes().all(token), "{name}");
            prop_assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{value:?}");
            prop_assert_eq!(value.trim(), value);
            let name = name.to_ascii_lowercase().replace('_', "-");
            let ours = ["webhook-", "postrider-", "proxy-"].iter().any(|it| name.starts_with(it));
            let framing = ["host", "content-length", "transfer-encoding", "connection", "te", "upgrade"];
            prop_assert!(!ours && !framing.contains(&name.as_str()), "{name}");
        }
    }

    /// D5: whatever a receiver says, it asks for a day at most.
    #[test]
    fn d5_retry_after_is_a_day_at_most(
        text in prop_oneof![
            any::<String>(),
            "[0-9 ,.+-]{0,30}",
            "(Mon|Sun|Xxx)?,? ?[0-9]{1,3} (Nov|Dec|Foo) [0-9]{1,5} [0-9:]{0,9} ?(GMT|UTC)?",
        ],
        seconds in 0_u64..=86_400,
    ) {
        let now = datetime!(2026-11-30 12:00 UTC);
        if let Some(wait) = retry_after::parse(&text, now) {
            prop_assert!(wait <= Duration::from_secs(86_400));
        }
        let known = retry_after::parse(&seconds.to_string(), now).unwrap_or_default();
        prop_assert_eq!(known, Duration::from_secs(seconds));
    }

    /// S2: no text that is not a key is taken for one, none is shown, and no header that was not signed fits.
    #[test]
    fn s2_nothing_that_was_not_signed_is_believed(
        key in prop_oneof![any::<String>(), "(whsec_|whpk_|whsk_)[A-Za-z0-9+/=]{0,100}"],
        header in prop_oneof![
            any::<String>(),
            "(v1|v1a|v2|t=[0-9]{0,4}),?(v1=)?[A-Za-z0-9+/=, ]{0,120}",
            "(t=1000,?){0,3}(v1=[0-9a-f]{0,64},?){0,3}",
        ],
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let ours = [Secret::generate([9; 32])];
        let signed = Signed { id: "evt_1", timestamp: "1000", body: &body };
        let minute = Duration::from_secs(60);
        prop_assert!(verify_standard(&ours, &signed, &header, 1_000, minute).is_err());
        prop_assert!(verify_stripe(&ours, &header, &body, 1_000, minute).is_err());
        match Secret::parse(&key) {
            Ok(secret) => prop_assert_eq!(Secret::parse(&secret.reveal()), Ok(secret)),
            Err(error) => prop_assert!(key.len() < 8 || !error.to_string().contains(&key)),
        }
        if let Ok(public) = PublicKey::parse(&key) {
            prop_assert!(verify_ed25519(&[public], &signed, &header, 1_000, minute).is_err());
        }
    }
}
