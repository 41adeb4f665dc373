//! What of an endpoint lies sealed beside its keys: its headers, and the certificate and key for mutual
//! TLS. How they are written and for what they are sealed, for whoever saves them and whoever sends.
//!
//! Not here: whether they are legal ([`crate::policy::headers`], [`crate::client_certificate`]).
//!
//! # Invariants
//! - S2 no error shows what was sealed.
//! - S3 a part opens only as what it is and for the endpoint that it belongs to.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::sealing::{MasterKeys, SealError};

/// Names and values of an endpoint's own headers, in order.
pub type Headers = Vec<(String, String)>;

/// A certificate with its intermediates, and its key: two PEM texts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// Public.
    pub certificate: String,
    /// Secret.
    pub private_key: String,
}

/// Why a part cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// It cannot be opened.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// It is not written as it should be: damaged, or by a newer program.
    #[error("the stored {0} cannot be read")]
    Unreadable(&'static str),
}

const HEADERS: &str = "headers";
const CLIENT_CERTIFICATE: &str = "client_certificate";

/// Headers, sealed for the endpoint with this public id; none at all are not stored.
#[must_use]
pub fn seal_headers(headers: &Headers, id: Uuid, keys: &MasterKeys) -> Option<Vec<u8>> {
    let some = (!headers.is_empty()).then_some(headers)?;
    seal(HEADERS, some, id, keys)
}

/// A client certificate, sealed for the endpoint with this public id.
#[must_use]
pub fn seal_client_certificate(
    certificate: &ClientCertificate,
    id: Uuid,
    keys: &MasterKeys,
) -> Option<Vec<u8>> {
    seal(CLIENT_CERTIFICATE, certificate, id, keys)
}

/// The headers of the endpoint with this public id.
///
/// # Errors
/// Why they cannot be read.
pub fn open_headers(
    sealed: Option<&[u8]>,
    id: Uuid,
    keys: &MasterKeys,
) -> Result<Headers, PartError> {
    Ok(open(HEADERS, sealed, id, keys)?.unwrap_or_default())
}

/// The client certificate of the endpoint with this public id, if it has one.
///
/// # Errors
/// Why it cannot be read.
pub fn open_client_certificate(
    sealed: Option<&[u8]>,
    id: Uuid,
    keys: &MasterKeys,
) -> Result<Option<ClientCertificate>, PartError> {
    open(CLIENT_CERTIFICATE, sealed, id, keys)
}

fn seal(what: &'static str, part: &impl Serialize, id: Uuid, keys: &MasterKeys) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(part).ok()?;
    Some(keys.seal(&text, &format!("{what}:{id}")))
}

fn open<T: DeserializeOwned>(
    what: &'static str,
    sealed: Option<&[u8]>,
    id: Uuid,
    keys: &MasterKeys,
) -> Result<Option<T>, PartError> {
    let Some(sealed) = sealed else {
        return Ok(None);
    };
    let text = keys.open(sealed, &format!("{what}:{id}"))?;
    let part = serde_json::from_slice(&text).map_err(|_shows_it| PartError::Unreadable(what))?;
    Ok(Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_a_part_opens_only_as_what_it_is_and_for_its_own_endpoint() {
        let keys = MasterKeys::new([7; 32], None);
        let (own, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let headers = vec![("x-key".to_owned(), "hunter2".to_owned())];
        let certificate = ClientCertificate {
            certificate: "public".to_owned(),
            private_key: "hunter2".to_owned(),
        };
        let sealed = seal_headers(&headers, own, &keys).unwrap();
        let shown = seal_client_certificate(&certificate, own, &keys).unwrap();

        assert_eq!(open_headers(Some(&sealed), own, &keys), Ok(headers));
        assert!(open_client_certificate(Some(&shown), own, &keys) == Ok(Some(certificate)));
        assert!(open_headers(Some(&sealed), other, &keys).is_err());
        assert!(open_headers(Some(&shown), own, &keys).is_err());
        assert!(open_client_certificate(Some(&sealed), own, &keys).is_err());

        let odd = keys.seal(b"[\"hunter2\"", &format!("{HEADERS}:{own}"));
        let error = open_headers(Some(&odd), own, &keys).unwrap_err();
        assert_eq!(error, PartError::Unreadable("headers"));
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn what_is_not_there_is_not_stored() {
        let keys = MasterKeys::new([7; 32], None);
        let id = Uuid::nil();
        assert_eq!(seal_headers(&Vec::new(), id, &keys), None);
        assert_eq!(open_headers(None, id, &keys), Ok(Vec::new()));
        assert!(open_client_certificate(None, id, &keys) == Ok(None));
    }
}
