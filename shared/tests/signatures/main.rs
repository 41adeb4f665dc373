//! Receivers verify what we sign with the published Standard Webhooks libraries for Python and
//! JavaScript, not with code of ours.
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
use shared::policy::signing::{Secret, sign_standard};

use self::verifier::{Request, Verifier};

const DOCUMENTS: usize = 2_000;

/// From an empty body over each edge of SHA-256's blocks (64 bytes, padding from the 56th on) to
/// the largest that goes out in one piece.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=200).chain([255, 256, 1_023, 1_024, 65_535, 65_536, 65_537])
}

#[test]
fn p1_the_published_python_library_verifies_what_we_sign() {
    verifies(&Verifier::python());
}

#[test]
fn p1_the_published_javascript_library_verifies_what_we_sign() {
    verifies(&Verifier::javascript());
}

fn verifies(verifier: &Verifier) {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let bodies: Vec<Vec<u8>> = (0..DOCUMENTS)
        .map(|_| {
            documents::json()
                .new_tree(&mut runner)
                .unwrap()
                .current()
                .into_bytes()
        })
        .chain(documents::special())
        .chain(sizes().map(documents::of_size))
        .collect();
    let now = now();
    let requests: Vec<Request> = bodies
        .iter()
        .enumerate()
        .flat_map(|(number, body)| signed_and_changed(number, body, now))
        .collect();

    let verdicts = verifier.verify(&requests);

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

/// The request as it goes out, for every third one with the secret of before a rotation too; and
/// one that was changed on its way, which must be refused.
fn signed_and_changed(number: usize, body: &[u8], now: i64) -> Vec<Request> {
    let [current, previous] = secrets(number);
    let id = format!("evt_{number:026}");
    let signature = sign_standard([&current, &previous], &id, now, body);
    let request = |secret: &Secret, body: Vec<u8>, genuine| Request {
        secret: secret.reveal(),
        id: id.clone(),
        timestamp: now.to_string(),
        signature: signature.clone(),
        body,
        genuine,
    };
    let mut requests = vec![
        request(&current, body.to_vec(), true),
        request(&current, [body, b" "].concat(), false),
    ];
    if number.is_multiple_of(3) {
        requests.push(request(&previous, body.to_vec(), true));
    }
    requests
}

/// Two secrets whose lengths run through all that the specification permits.
fn secrets(number: usize) -> [Secret; 2] {
    let length = 24 + number % 41;
    let byte = u8::try_from(number % 251).unwrap();
    [byte, byte + 1].map(|byte| Secret::from_bytes(&vec![byte; length]).unwrap())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the libraries compare with the clock themselves"
)]
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}
