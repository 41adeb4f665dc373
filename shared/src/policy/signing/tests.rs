use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;

const MINUTES: Duration = Duration::from_secs(300);

fn signed<'a>(timestamp: &'a str, body: &'a [u8]) -> Signed<'a> {
    Signed {
        id: "evt_1",
        timestamp,
        body,
    }
}

#[test]
fn a_secret_survives_its_text_form_and_never_shows_itself() {
    let secret = Secret::generate([7; 32]);

    let text = secret.reveal();

    assert!(text.starts_with("whsec_BwcH"), "{text}");
    assert_eq!(Secret::parse(&text).unwrap(), secret);
    assert_eq!(Secret::from_bytes(secret.as_bytes()).unwrap(), secret);
    assert_eq!(format!("{secret:?}"), "Secret(redacted)");
}

#[test]
fn a_bad_secret_is_refused_without_being_shown() {
    let cases = [
        ("", InvalidSecret::Prefix),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", InvalidSecret::Prefix),
        ("whsec_not base64!", InvalidSecret::Base64),
        ("whsec_AAAA", InvalidSecret::Length(3)),
        ("whsec_", InvalidSecret::Length(0)),
    ];
    for (text, expected) in cases {
        let error = Secret::parse(text).unwrap_err();
        assert_eq!(error, expected, "{text}");
    }
    assert_eq!(Secret::from_bytes(&[0; 23]), Err(InvalidSecret::Length(23)));
    assert!(Secret::from_bytes(&[0; 24]).is_ok());
    assert!(Secret::from_bytes(&[0; 64]).is_ok());
    assert_eq!(Secret::from_bytes(&[0; 65]), Err(InvalidSecret::Length(65)));
}

#[test]
fn keys_of_different_length_sign_differently() {
    let short = Secret::from_bytes(&[1; 24]).unwrap();
    let long = Secret::from_bytes(&[1; 25]).unwrap();

    assert_ne!(
        sign_standard(&[short], "a", 1, b"x"),
        sign_standard(&[long], "a", 1, b"x")
    );
}

#[test]
fn during_a_rotation_either_secret_verifies() {
    let (old, new) = (Secret::generate([1; 32]), Secret::generate([2; 32]));
    let header = sign_standard(&[new.clone(), old.clone()], "evt_1", 1_000, b"{}");
    assert_eq!(header.split(' ').count(), 2);

    for secrets in [vec![old.clone()], vec![new.clone()], vec![new, old]] {
        let verdict = verify_standard(&secrets, &signed("1000", b"{}"), &header, 1_000, MINUTES);
        assert_eq!(verdict, Ok(()));
    }
    let stranger = [Secret::generate([3; 32])];
    let verdict = verify_standard(&stranger, &signed("1000", b"{}"), &header, 1_000, MINUTES);
    assert_eq!(verdict, Err(VerifyError::NoMatch));
}

#[test]
fn a_timestamp_outside_the_tolerance_is_refused_whatever_the_signature() {
    let secrets = [Secret::generate([1; 32])];
    let cases = [
        ("1000", Ok(())),
        ("700", Ok(())),
        ("1300", Ok(())),
        ("699", Err(VerifyError::TooOld)),
        ("1301", Err(VerifyError::TooNew)),
        ("-9223372036854775808", Err(VerifyError::TooOld)),
        ("9223372036854775807", Err(VerifyError::TooNew)),
        ("9223372036854775808", Err(VerifyError::Timestamp)),
        ("1000.5", Err(VerifyError::Timestamp)),
        ("", Err(VerifyError::Timestamp)),
    ];
    for (timestamp, expected) in cases {
        let header = match timestamp.parse() {
            Ok(seconds) => sign_standard(&secrets, "evt_1", seconds, b""),
            Err(_) => String::new(),
        };
        let signed = signed(timestamp, b"");
        let verdict = verify_standard(&secrets, &signed, &header, 1_000, MINUTES);
        assert_eq!(verdict, expected, "{timestamp}");
    }
}

#[test]
fn hostile_signature_headers_match_nothing() {
    let secrets = [Secret::generate([1; 32])];
    for header in [
        "",
        " ",
        "v1,",
        "v1",
        "v1,AAAA",
        "v2,AAAA v1,",
        "v1a,AAAA",
        "\u{0}",
    ] {
        let verdict = verify_standard(&secrets, &signed("1", b""), header, 1, MINUTES);
        assert_eq!(verdict, Err(VerifyError::NoMatch), "{header:?}");
    }
}

/// Every form signs with these keys; what is checked with is what a receiver knows.
struct Keys {
    secrets: Vec<Secret>,
    pairs: Vec<KeyPair>,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    V1,
    V1a,
    Stripe,
}

const FORMS: [Form; 3] = [Form::V1, Form::V1a, Form::Stripe];

impl Keys {
    fn new(seeds: &[u8]) -> Self {
        Self {
            secrets: seeds
                .iter()
                .map(|seed| Secret::generate([*seed; 32]))
                .collect(),
            pairs: seeds
                .iter()
                .map(|seed| KeyPair::generate([*seed; 32]))
                .collect(),
        }
    }

    fn sign(&self, form: Form, seconds: i64, body: &[u8]) -> String {
        let timestamp = seconds.to_string();
        match form {
            Form::V1 => sign_standard(&self.secrets, "evt_1", seconds, body),
            Form::V1a => {
                let mut header = String::new();
                sign_ed25519(&mut header, &self.pairs, &signed(&timestamp, body));
                header
            }
            Form::Stripe => sign_stripe(&self.secrets, seconds, body),
        }
    }

    /// `timestamp`: what the request says, for the forms whose header does not say it.
    fn verify(
        &self,
        form: Form,
        header: &str,
        (timestamp, body): (&str, &[u8]),
        now: i64,
    ) -> Result<(), VerifyError> {
        let public: Vec<PublicKey> = self.pairs.iter().map(KeyPair::public_key).collect();
        let signed = signed(timestamp, body);
        match form {
            Form::V1 => verify_standard(&self.secrets, &signed, header, now, MINUTES),
            Form::V1a => verify_ed25519(&public, &signed, header, now, MINUTES),
            Form::Stripe => verify_stripe(&self.secrets, header, body, now, MINUTES),
        }
    }
}

#[test]
fn several_live_keys_sign_in_every_form_and_each_alone_verifies() {
    let [old, new, stranger] = [1, 2, 3].map(|seed| Keys::new(&[seed]));
    let both = Keys::new(&[2, 1]);
    for form in FORMS {
        let header = both.sign(form, 1_000, b"{}");
        for (keys, expected) in [
            (&old, Ok(())),
            (&new, Ok(())),
            (&both, Ok(())),
            (&stranger, Err(VerifyError::NoMatch)),
        ] {
            let verdict = keys.verify(form, &header, ("1000", b"{}"), 1_000);
            assert_eq!(verdict, expected, "{form:?}: {header}");
        }
    }
}

#[test]
fn the_schemes_of_one_header_do_not_disturb_each_other() {
    let keys = Keys::new(&[1, 2]);
    let mut header = keys.sign(Form::V1, 1_000, b"x");
    sign_ed25519(&mut header, &keys.pairs, &signed("1000", b"x"));

    let schemes: Vec<&str> = header
        .split(' ')
        .map(|one| one.split_once(',').unwrap().0)
        .collect();
    assert_eq!(schemes, ["v1", "v1", "v1a", "v1a"]);
    for form in [Form::V1, Form::V1a] {
        let verdict = keys.verify(form, &header, ("1000", b"x"), 1_000);
        assert_eq!(verdict, Ok(()), "{form:?}");
    }
}

#[test]
fn a_time_outside_the_tolerance_is_refused_in_every_form() {
    let keys = Keys::new(&[1]);
    for form in FORMS {
        let header = keys.sign(form, 1_000, b"");
        for (now, expected) in [
            (1_300, Ok(())),
            (700, Ok(())),
            (1_301, Err(VerifyError::TooOld)),
            (699, Err(VerifyError::TooNew)),
        ] {
            let verdict = keys.verify(form, &header, ("1000", b""), now);
            assert_eq!(verdict, expected, "{form:?} at {now}");
        }
    }
    for header in ["", "v1=00", "t=", "t=1.5,v1=00", "t=x"] {
        let verdict = keys.verify(Form::Stripe, header, ("", b""), 1);
        assert_eq!(verdict, Err(VerifyError::Timestamp), "{header}");
    }
}

#[test]
fn hostile_headers_match_nothing_in_any_form() {
    let keys = Keys::new(&[1]);
    let short = STANDARD.encode([0; 63]);
    for header in [
        "v1a,",
        "v1a",
        "v1,AAAA",
        "v1a,AAAA",
        "v1a,=",
        "\u{0}",
        &format!("v1a,{short}"),
    ] {
        let verdict = keys.verify(Form::V1a, header, ("1", b""), 1);
        assert_eq!(verdict, Err(VerifyError::NoMatch), "{header:?}");
    }
    for header in [
        "t=1",
        "t=1,v1",
        "t=1,v1=",
        "t=1,v0=00",
        "t=1,v1=zz",
        "t=1,,=,v1=\u{0}",
    ] {
        let verdict = keys.verify(Form::Stripe, header, ("", b""), 1);
        assert_eq!(verdict, Err(VerifyError::NoMatch), "{header:?}");
    }
}

#[test]
fn a_key_pair_survives_its_seed_and_its_public_half_its_text() {
    // S2
    let pair = KeyPair::generate([7; 32]);
    let public = pair.public_key();

    assert_eq!(
        KeyPair::from_seed(pair.seed()).unwrap().public_key(),
        public
    );
    assert_eq!(PublicKey::parse(&public.to_string()).unwrap(), public);
    assert_eq!(PublicKey::from_bytes(public.as_bytes()).unwrap(), public);
    assert_eq!(format!("{pair:?}"), "KeyPair(redacted)");
    assert_eq!(KeyPair::from_seed(&[7; 31]).unwrap_err(), InvalidKey::Bytes);
    for (text, expected) in [
        ("whsec_AAAA", InvalidKey::Prefix),
        ("whpk_AAAA!", InvalidKey::Base64),
        ("whpk_AAAA", InvalidKey::Bytes),
    ] {
        assert_eq!(PublicKey::parse(text).unwrap_err(), expected, "{text}");
    }
    // Two: no point of the curve has this y.
    let mut no_point = [0; 32];
    no_point[0] = 2;
    assert_eq!(PublicKey::from_bytes(&no_point), Err(InvalidKey::Bytes));
}

fn form() -> impl Strategy<Value = Form> {
    proptest::sample::select(&FORMS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(768))]

    /// P1: every bit of the body and of the signature is covered, and so is the time.
    #[test]
    fn a_flipped_bit_is_noticed(
        form in form(),
        seed in any::<[u8; 32]>(),
        key in proptest::collection::vec(any::<u8>(), 24..=64),
        body in proptest::collection::vec(any::<u8>(), 1..300),
        seconds in 0_i64..=4_102_444_800,
        position in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let keys = Keys {
            secrets: vec![Secret::from_bytes(&key).unwrap()],
            pairs: vec![KeyPair::generate(seed)],
        };
        let header = keys.sign(form, seconds, &body);
        let timestamp = seconds.to_string();
        let verify = |header: &str, body: &[u8]| {
            keys.verify(form, header, (&timestamp, body), seconds)
        };
        prop_assert_eq!(verify(&header, &body), Ok(()));

        let mut changed = body.clone();
        changed[position.index(body.len())] ^= 1 << bit;
        prop_assert_eq!(verify(&header, &changed), Err(VerifyError::NoMatch));

        let later = (seconds + 1).to_string();
        let verdict = match form {
            Form::V1 | Form::V1a => keys.verify(form, &header, (&later, &body), seconds),
            Form::Stripe => verify(&header.replace(&timestamp, &later), &body),
        };
        prop_assert_eq!(verdict, Err(VerifyError::NoMatch));

        let flipped = flip(form, &header, position, bit);
        prop_assert_eq!(verify(&flipped, &body), Err(VerifyError::NoMatch));
    }
}

/// The header with one bit of its signature turned.
fn flip(form: Form, header: &str, position: prop::sample::Index, bit: u8) -> String {
    let turn = |mut bytes: Vec<u8>| {
        let at = position.index(bytes.len());
        bytes[at] ^= 1 << bit;
        bytes
    };
    match form {
        Form::V1 | Form::V1a => {
            let (scheme, signature) = header.split_once(',').unwrap();
            let signature = turn(STANDARD.decode(signature).unwrap());
            format!("{scheme},{}", STANDARD.encode(signature))
        }
        Form::Stripe => {
            let (time, signature) = header.split_once(",v1=").unwrap();
            let digits: Vec<u8> = signature
                .chars()
                .map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap())
                .collect();
            let bytes = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
            let hex: String = turn(bytes.collect())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("{time},v1={hex}")
        }
    }
}
