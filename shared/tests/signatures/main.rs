//! Receivers verify what we sign with published verifiers, not with code of ours: Standard Webhooks for
//! Python, JavaScript and Rust (`v1`; they skip `v1a`), Node's own Ed25519 (`v1a`), Stripe's for Python.
//!
//! P1: what is signed are the bytes of the body. A library that parses and re-serialises, or one
//! that disagrees about a number, an escape or a duplicate key, would fail here.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking; clippy knows helpers of tests only inside #[test]"
)]

mod documents;
mod verifier;

use std::time::{SystemTime, UNIX_EPOCH};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use shared::policy::signing::{KeyPair, Secret, Signed, sign_ed25519, sign_standard, sign_stripe};

use self::verifier::{Form, Request, Verifier};

const DOCUMENTS: usize = 2_000;

/// No JSON, so the API takes none of it; what is signed does not depend on that.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf{\"begins\":\"with a mark\"}";

/// From an empty body over each edge of the hashes' blocks (64 bytes, padding from the 56th on; 128 and
/// 112), and around the sizes of buffers, to the largest that goes out in one piece.
fn sizes() -> impl Iterator<Item = usize> {
    let around = |size: usize| size - 70..=size + 70;
    (0..=300)
        .chain(around(1_024))
        .chain(around(4_096))
        .chain(around(65_536))
}

#[test]
fn p1_the_published_python_library_verifies_what_we_sign() {
    verifies(Form::V1, |requests| Verifier::python().verify(requests));
}

#[test]
fn p1_the_published_javascript_library_verifies_what_we_sign() {
    verifies(Form::V1, |requests| Verifier::javascript().verify(requests));
}

#[test]
fn p1_the_published_rust_library_verifies_what_we_sign() {
    verifies(Form::V1, |requests| {
        requests.iter().map(verify_rust).collect()
    });
}

#[test]
fn p1_an_ed25519_of_another_make_verifies_what_we_sign() {
    verifies(Form::V1a, |requests| {
        Verifier::javascript().verify(requests)
    });
}

#[test]
fn p1_the_published_verifier_of_stripe_verifies_what_we_sign() {
    verifies(Form::Stripe, |requests| Verifier::python().verify(requests));
}

/// The verdict of the published library for Rust.
fn verify_rust(request: &Request) -> bool {
    let verifier = standardwebhooks::Webhook::new(&request.key).unwrap();
    let headers = [
        ("webhook-id", &request.id),
        ("webhook-timestamp", &request.timestamp),
        ("webhook-signature", &request.signature),
    ];
    let headers = headers
        .into_iter()
        .map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, http::HeaderValue::try_from(value).unwrap())
        })
        .collect();
    verifier.verify(&request.body, &headers).is_ok()
}

fn verifies(form: Form, verify: impl FnOnce(&[Request]) -> Vec<bool>) {
    let now = now();
    let requests: Vec<Request> = bodies()
        .iter()
        .enumerate()
        .flat_map(|(number, body)| signed_and_changed(form, number, body, now))
        .collect();

    let verdicts = verify(&requests);

    assert_eq!(verdicts.len(), requests.len());
    let wrong: Vec<_> = requests
        .iter()
        .zip(&verdicts)
        .filter(|(one, verdict)| one.genuine != **verdict)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {}; the first: {:?}",
        wrong.len(),
        requests.len(),
        wrong[0]
    );
}

fn bodies() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let strategy = documents::json();
    let random = (0..DOCUMENTS).map(|_| {
        let tree = strategy.new_tree(&mut runner).unwrap();
        tree.current().into_bytes()
    });
    random
        .chain(documents::special())
        .chain([BYTE_ORDER_MARK.to_vec()])
        .chain(sizes().map(documents::of_size))
        .collect()
}

/// The request as it goes out during a rotation, for who knows the current key; one that was changed on
/// its way, which must be refused; and for every third, what who knows the key of before makes of it,
/// during the overlap and after a revocation.
fn signed_and_changed(form: Form, number: usize, body: &[u8], now: i64) -> Vec<Request> {
    let [current, previous] = keys(number);
    let id = format!("evt_{number:026}");
    let live = [&current, &previous];
    let during = sign(form, &live, (&id, now), body);
    let request = |key: &Keys, signature: &str, body: Vec<u8>, genuine| Request {
        form,
        key: match form {
            Form::V1 | Form::Stripe => key.secret.reveal(),
            Form::V1a => key.pair.public_key().to_string(),
        },
        id: id.clone(),
        timestamp: now.to_string(),
        signature: signature.to_owned(),
        body,
        genuine,
    };
    let mut requests = vec![
        request(&current, &during, body.to_vec(), true),
        request(&current, &during, [body, b" "].concat(), false),
    ];
    if number.is_multiple_of(3) {
        let after = sign(form, &[&current], (&id, now), body);
        requests.extend([
            request(&previous, &during, body.to_vec(), true),
            request(&previous, &after, body.to_vec(), false),
            request(&current, &after, body.to_vec(), true),
        ]);
    }
    requests
}

/// Both schemes of Standard Webhooks are in the header, whichever is to be verified.
fn sign(form: Form, live: &[&Keys], (id, now): (&str, i64), body: &[u8]) -> String {
    let secrets = live.iter().map(|key| &key.secret);
    match form {
        Form::V1 | Form::V1a => {
            let mut header = sign_standard(secrets, id, now, body);
            let timestamp = now.to_string();
            let signed = Signed {
                id,
                timestamp: &timestamp,
                body,
            };
            sign_ed25519(&mut header, live.iter().map(|key| &key.pair), &signed);
            header
        }
        Form::Stripe => sign_stripe(secrets, now, body),
    }
}

struct Keys {
    secret: Secret,
    pair: KeyPair,
}

/// Two, whose secrets' lengths run through all that the specification permits.
fn keys(number: usize) -> [Keys; 2] {
    let length = 24 + number % 41;
    let byte = u8::try_from(number % 251).unwrap();
    [byte, byte + 1].map(|byte| Keys {
        secret: Secret::from_bytes(&vec![byte; length]).unwrap(),
        pair: KeyPair::generate([byte; 32]),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the libraries compare with the clock themselves"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}
