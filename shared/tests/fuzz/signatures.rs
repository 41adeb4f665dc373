//! Keys and signatures as a receiver may be shown them: exactly the untouched ones are believed.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use proptest::sample::Index;
use shared::policy::signing::{
    KeyPair, PUBLIC_KEY_PREFIX, PublicKey, SECRET_PREFIX, Secret, Signed, VerifyError,
    sign_ed25519, sign_standard, sign_stripe, verify_ed25519, verify_standard, verify_stripe,
};

use crate::{config, percent_taken};

const NOW: i64 = 1_000;
const TIME: &str = "1000";
const TOLERANCE: Duration = Duration::from_secs(60);

/// What becomes of a signature on its way.
#[derive(Debug, Clone)]
enum Part {
    Untouched,
    /// One character is another.
    Changed(Index, char),
    Cut(Index),
    Longer(String),
    Foreign,
    Garbage(String),
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        2 => Just(Part::Untouched),
        4 => (any::<Index>(), prop_oneof!["[A-Za-z0-9+/=,]", "\\PC"]).prop_map(|(at, text)| {
            Part::Changed(at, text.chars().next().unwrap_or('x'))
        }),
        2 => any::<Index>().prop_map(Part::Cut),
        2 => "[!-+--~]{1,8}".prop_map(Part::Longer),
        2 => Just(Part::Foreign),
        2 => "(v1|v1a|v2|t)?[=,]?[A-Za-z0-9+/=]{0,90}".prop_map(Part::Garbage),
        1 => "\\PC{0,30}".prop_map(Part::Garbage),
    ]
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    proptest::collection::vec(part(), 0..6)
}

/// A header of these parts of a genuine signature and a stranger's, and whether one is untouched.
fn header(parts: &[Part], separator: char, genuine: &str, foreign: &str) -> (String, bool) {
    let spoil = |part: &Part| match part {
        Part::Untouched => genuine.to_owned(),
        Part::Changed(at, to) => {
            let at = at.index(genuine.len());
            let change = |(here, c): (usize, char)| if here == at { *to } else { c };
            genuine.chars().enumerate().map(change).collect()
        }
        Part::Cut(at) => genuine.chars().take(at.index(genuine.len())).collect(),
        Part::Longer(more) => format!("{genuine}{more}"),
        Part::Foreign => foreign.to_owned(),
        Part::Garbage(text) => text.clone(),
    };
    let header = parts
        .iter()
        .map(spoil)
        .collect::<Vec<_>>()
        .join(&separator.to_string());
    // Judged on the whole: a separator among what was put in cuts it in two.
    let believable = header.split(separator).any(|item| item == genuine);
    (header, believable)
}

fn verdict(believable: bool) -> Result<(), VerifyError> {
    if believable {
        Ok(())
    } else {
        Err(VerifyError::NoMatch)
    }
}

fn secrets(byte: u8) -> [Secret; 1] {
    [Secret::generate([byte; 32])]
}

fn ed25519(pair: KeyPair, signed: &Signed<'_>) -> String {
    let mut header = String::new();
    sign_ed25519(&mut header, &[pair], signed);
    header
}

proptest! {
    #![proptest_config(config())]

    /// S2
    #[test]
    fn s2_exactly_an_untouched_v1_signature_is_believed(
        parts in parts(),
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let signed = Signed { id: "evt_1", timestamp: TIME, body: &body };
        let genuine = sign_standard(&secrets(9), "evt_1", NOW, &body);
        let foreign = sign_standard(&secrets(8), "evt_1", NOW, &body);
        let (header, believable) = header(&parts, ' ', &genuine, &foreign);
        let verified = verify_standard(&secrets(9), &signed, &header, NOW, TOLERANCE);
        prop_assert_eq!(verified, verdict(believable), "{}", header);
    }

    /// S2
    #[test]
    fn s2_exactly_an_untouched_v1a_signature_is_believed(
        parts in parts(),
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let signed = Signed { id: "evt_1", timestamp: TIME, body: &body };
        let key = KeyPair::generate([9; 32]).public_key();
        let genuine = ed25519(KeyPair::generate([9; 32]), &signed);
        let foreign = ed25519(KeyPair::generate([8; 32]), &signed);
        let (header, believable) = header(&parts, ' ', &genuine, &foreign);
        let verified = verify_ed25519(&[key], &signed, &header, NOW, TOLERANCE);
        prop_assert_eq!(verified, verdict(believable), "{}", header);
    }

    /// S2
    #[test]
    fn s2_exactly_an_untouched_signature_in_stripes_form_is_believed(
        parts in parts(),
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let time = format!("t={TIME},");
        let genuine = sign_stripe(&secrets(9), NOW, &body).replace(&time, "");
        let foreign = sign_stripe(&secrets(8), NOW, &body).replace(&time, "");
        let (signatures, believable) = header(&parts, ',', &genuine, &foreign);
        let header = format!("{time}{signatures}");
        let verified = verify_stripe(&secrets(9), &header, &body, NOW, TOLERANCE);
        prop_assert_eq!(verified, verdict(believable), "{}", header);
    }

    /// S2: a signature is for one body, one id, one time, and one minute around it.
    #[test]
    fn s2_a_signature_fits_nothing_but_what_was_signed(
        body in proptest::collection::vec(any::<u8>(), 1..64),
        at in any::<Index>(),
        bit in 0_u8..8,
        timestamp in prop_oneof![any::<i64>().prop_map(|it| it.to_string()), "[+-]?0{0,3}1000", "\\PC{0,20}"],
        now in prop_oneof![Just(NOW), any::<i64>()],
        tolerance in prop_oneof![Just(60), any::<u64>()],
    ) {
        let genuine = sign_standard(&secrets(9), "evt_1", NOW, &body);
        let stripe = sign_stripe(&secrets(9), NOW, &body);
        let mut changed = body.clone();
        if let Some(byte) = changed.get_mut(at.index(body.len())) {
            *byte ^= 1 << bit;
        }
        let other_body = Signed { id: "evt_1", timestamp: TIME, body: &changed };
        let other_id = Signed { id: "evt_2", timestamp: TIME, body: &body };
        for signed in [other_body, other_id] {
            prop_assert!(verify_standard(&secrets(9), &signed, &genuine, NOW, TOLERANCE).is_err());
        }
        prop_assert!(verify_stripe(&secrets(9), &stripe, &changed, NOW, TOLERANCE).is_err());

        let signed = Signed { id: "evt_1", timestamp: &timestamp, body: &body };
        let near = NOW.abs_diff(now) <= tolerance.min(i64::MAX.unsigned_abs());
        let fresh = timestamp == TIME && near;
        let tolerance = Duration::from_secs(tolerance);
        let verified = verify_standard(&secrets(9), &signed, &genuine, now, tolerance);
        prop_assert_eq!(verified.is_ok(), fresh, "{:?}", verified);
    }

    /// S2: no text that is not a key is taken for one, and none is shown.
    #[test]
    fn s2_a_key_reads_back_as_itself_or_is_refused_without_being_shown(text in key_text()) {
        match Secret::parse(&text) {
            Ok(secret) => {
                prop_assert_eq!(secret.reveal(), text.clone(), "one text for one key");
                let shown = format!("{secret:?}");
                prop_assert!(!shown.contains(&text));
            }
            Err(error) => prop_assert!(text.len() < 8 || !error.to_string().contains(&text)),
        }
        match PublicKey::parse(&text) {
            Ok(key) => prop_assert_eq!(key.to_string(), text),
            Err(error) => prop_assert!(text.len() < 8 || !error.to_string().contains(&text)),
        }
    }

    /// S2: not even the keys of small order, under which some signatures fit anything.
    #[test]
    fn s2_a_key_that_a_stranger_made_up_verifies_nothing(
        bytes in prop_oneof![
            any::<[u8; 32]>(),
            (any::<u8>(), any::<bool>()).prop_map(|(low, sign)| {
                let mut bytes = [0; 32];
                bytes[0] = low;
                bytes[31] = if sign { 0x80 } else { 0 };
                bytes
            }),
        ],
        signature in any::<[u8; 64]>(),
        null in any::<bool>(),
    ) {
        let Ok(key) = PublicKey::from_bytes(&bytes) else {
            return Ok(());
        };
        let mut signature = signature;
        if null {
            signature = [0; 64];
            signature[0] = 1;
        }
        let header = format!("v1a,{}", STANDARD.encode(signature));
        let signed = Signed { id: "evt_1", timestamp: TIME, body: b"{}" };
        prop_assert!(verify_ed25519(&[key], &signed, &header, NOW, TOLERANCE).is_err());
    }
}

/// Texts of keys: whole ones, of any length, and spoiled.
fn key_text() -> impl Strategy<Value = String> {
    let key = proptest::collection::vec(any::<u8>(), 0..80);
    let whole = (key, any::<bool>()).prop_map(|(key, public)| {
        let prefix = if public {
            PUBLIC_KEY_PREFIX
        } else {
            SECRET_PREFIX
        };
        format!("{prefix}{}", STANDARD.encode(key))
    });
    let pair = any::<[u8; 32]>().prop_map(|seed| KeyPair::generate(seed).public_key().to_string());
    prop_oneof![
        4 => whole,
        2 => pair,
        1 => "(whsec_|whpk_|whsk_)[A-Za-z0-9+/=_-]{0,100}",
        1 => any::<String>(),
    ]
}

#[test]
fn a_quarter_of_the_keys_and_of_the_headers_are_taken() {
    let keys = percent_taken(&key_text(), |text| {
        Secret::parse(&text).is_ok() || PublicKey::parse(&text).is_ok()
    });
    assert!((25..90).contains(&keys), "{keys} %");
    let headers = percent_taken(&parts(), |parts| {
        header(&parts, ' ', "v1,genuine", "v1,x").1
    });
    assert!((20..80).contains(&headers), "{headers} %");
}
