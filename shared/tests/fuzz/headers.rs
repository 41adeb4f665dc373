//! Headers of tenants: what passes must come out of another parser as the one line that went in.

use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use proptest::sample::select;
use shared::policy::headers::{MAX_HEADERS, check, check_name, check_value};

use crate::{config, percent_taken};

/// Names that frame a request, steer its connection or pass for ours.
const RESERVED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "postrider-attempt",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "x-forwarded-for",
];

fn fine_name() -> impl Strategy<Value = String> {
    "x-own-[a-zA-Z0-9-]{0,20}"
}

fn fine_value() -> impl Strategy<Value = String> {
    "[!-~]([ -~]{0,40}[!-~])?"
}

/// A reserved name in another case, and with `_` for some `-`.
fn reserved_name() -> impl Strategy<Value = String> {
    (select(RESERVED), any::<u64>(), any::<u64>()).prop_map(|(name, case, dashes)| {
        let spelled = name.chars().enumerate().map(|(at, c)| {
            let on = |bits: u64| bits >> (at % 64) & 1 == 1;
            match c {
                '-' if on(dashes) => '_',
                _ if on(case) => c.to_ascii_uppercase(),
                _ => c,
            }
        });
        spelled.collect()
    })
}

fn header() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![
        24 => fine_name(),
        1 => reserved_name(),
        1 => "[a-zA-Z0-9_-]{0,20}",
        1 => "x-own-[!-~]{0,4}",
        1 => "\\PC{0,12}",
        1 => any::<String>(),
    ];
    let value = prop_oneof![
        24 => fine_value(),
        1 => "[ a]{0,4}",
        1 => "[\\x00-\\x7f]{0,20}",
        1 => any::<String>(),
    ];
    (name, value)
}

fn several() -> impl Strategy<Value = Vec<(String, String)>> {
    prop_oneof![
        4 => proptest::collection::vec(header(), 0..6),
        1 => proptest::collection::vec(header(), 0..40),
    ]
}

fn taken(headers: &[(String, String)]) -> bool {
    check(
        headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    )
    .is_ok()
}

proptest! {
    #![proptest_config(config())]

    /// P1: nothing that passes begins another header, ends the head or changes where the body ends.
    #[test]
    fn p1_what_passes_is_read_off_the_wire_as_it_was_saved(headers in several()) {
        if !taken(&headers) {
            return Ok(());
        }
        prop_assert!(headers.len() <= MAX_HEADERS);
        let mut wire = "POST / HTTP/1.1\r\nhost: a.example\r\ncontent-length: 2\r\n".to_owned();
        for (name, value) in &headers {
            prop_assert!(HeaderName::try_from(name).is_ok(), "{name:?}");
            prop_assert!(HeaderValue::try_from(value).is_ok(), "{value:?}");
            wire.push_str(&format!("{name}: {value}\r\n"));
        }
        let head = wire.len() + 2;
        wire.push_str("\r\n{}");

        let mut room = [httparse::EMPTY_HEADER; MAX_HEADERS + 2];
        let mut request = httparse::Request::new(&mut room);
        prop_assert_eq!(request.parse(wire.as_bytes()), Ok(httparse::Status::Complete(head)));
        let ours = [("host", "a.example"), ("content-length", "2")];
        let own = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let expected: Vec<_> = ours.into_iter().chain(own).map(|(name, value)| (name, value.as_bytes())).collect();
        let read: Vec<_> = request.headers.iter().map(|read| (read.name, read.value)).collect();
        prop_assert_eq!(read, expected);
        let framing = |name: &str| {
            ["content-length", "transfer-encoding", "host", "connection", "upgrade"]
                .contains(&name.to_ascii_lowercase().replace('_', "-").as_str())
        };
        prop_assert!(!headers.iter().any(|(name, _)| framing(name)));
    }

    /// P1
    #[test]
    fn p1_a_reserved_name_is_refused_in_every_spelling(name in reserved_name()) {
        prop_assert!(check_name(&name).is_err());
    }

    /// P1
    #[test]
    fn p1_one_bad_character_spoils_a_value_wherever_it_stands(
        value in fine_value(),
        at in any::<prop::sample::Index>(),
        bad in prop_oneof!["[\\x00-\\x1f\\x7f]", "[^\\x00-\\x7f]"],
    ) {
        prop_assert!(check_value(&value).is_ok());
        let mut spoiled = value;
        spoiled.insert_str(at.index(spoiled.len() + 1), &bad);
        let refused = check_value(&spoiled);
        prop_assert!(refused.is_err(), "{spoiled:?}");
        prop_assert!(!refused.unwrap_err().to_string().contains(&spoiled), "S2 no error shows a value");
    }

    #[test]
    fn a_name_is_taken_once_in_any_spelling(name in fine_name(), value in fine_value()) {
        let other = name.to_ascii_uppercase().replace('-', "_");
        prop_assert!(taken(&[(name.clone(), value.clone())]));
        prop_assert!(!taken(&[(name, value.clone()), (other, value)]));
    }
}

#[test]
fn half_of_the_headers_are_taken() {
    let percent = percent_taken(&several(), |headers| taken(&headers));
    assert!((40..90).contains(&percent), "{percent} %");
}
