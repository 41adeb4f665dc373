//! The sender end to end: what receivers see of it over the whole life of a delivery, and what nobody may
//! see. The parts alone are tested beside their code; here API, worker and database are the real ones.

mod authority;
mod bodies;
mod bytes;
mod clock_change;
#[path = "../../../../shared/tests/signatures/documents.rs"]
mod documents;
mod go_away;
mod headers;
mod idle;
mod mtls;
mod nowhere;
mod postbacks;
mod scripted;
mod secrecy;
mod signatures;
mod timings;
mod upgrade;
#[expect(dead_code, reason = "the other forms are verified where they are made")]
#[path = "../../../../shared/tests/signatures/verifier.rs"]
mod verifier;
mod zones;

use self::verifier::{Form, Request, Verifier};
use crate::receiver::Arrival;

/// What the published libraries are asked about a request.
fn question(arrival: &Arrival, secret: &str) -> Request {
    let header = |name| arrival.request.header(name).unwrap();
    Request {
        form: Form::V1,
        key: secret.to_owned(),
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        body: arrival.request.body().to_vec(),
        genuine: true,
    }
}

/// The published libraries for Python and JavaScript believe the genuine ones, and no other.
fn verified(requests: &[Request]) {
    let genuine: Vec<_> = requests.iter().map(|one| one.genuine).collect();
    for verifier in [Verifier::python(), Verifier::javascript()] {
        let verdicts = verifier.verify(requests);
        let wrong = verdicts.iter().zip(&genuine).position(|(a, b)| a != b);
        assert_eq!(verdicts.len(), genuine.len());
        assert_eq!(wrong, None, "the first of {}", requests.len());
    }
}
