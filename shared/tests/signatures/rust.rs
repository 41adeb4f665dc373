//! The published library for Rust.

use crate::verifier::Request;

/// The verdict of the published library for Rust.
pub(crate) fn verify_rust(request: &Request) -> bool {
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
