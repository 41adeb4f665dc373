//! What of an endpoint lies encrypted in the database: its headers, and the certificate and key that it
//! shows to a receiver that asks for one (mutual TLS).
//!
//! # Invariants
//! - S2: header values and keys are write-only. Shown as [`HIDDEN`]; a document that is sent back with
//!   it keeps what is there. A certificate is public and is shown.

use std::collections::BTreeMap;

use serde::Serialize;
use shared::client_certificate::{self, ClientCertificateError};
use shared::ids::EndpointId;
use shared::sealed_parts::{
    ClientCertificate, Headers, PartError, open_client_certificate, open_headers,
    seal_client_certificate, seal_headers,
};
use shared::sealing::MasterKeys;
use shared::store::endpoints::Endpoint;
use utoipa::ToSchema;
use uuid::Uuid;

use super::HIDDEN;
use crate::json::Fields;

pub(super) const CLIENT_CERTIFICATE: &str = "client_certificate";

/// See the module.
#[derive(Clone, Default, PartialEq, Eq)]
pub(in crate::routes) struct Opened {
    pub(super) headers: Headers,
    pub(super) client_certificate: Option<ClientCertificate>,
}

/// What is sealed of an endpoint; `None` when it cannot be opened with the keys at hand.
pub(in crate::routes) fn open(endpoint: &Endpoint, keys: &MasterKeys) -> Option<Opened> {
    let opened = try_open(endpoint, keys);
    opened
        .map_err(|error| {
            tracing::error!(%error, endpoint.id = %EndpointId(endpoint.id), "a sealed part of an endpoint cannot be opened");
        })
        .ok()
}

fn try_open(endpoint: &Endpoint, keys: &MasterKeys) -> Result<Opened, PartError> {
    let draft = &endpoint.draft;
    let certificate = draft.sealed_client_certificate.as_deref();
    Ok(Opened {
        headers: open_headers(draft.sealed_headers.as_deref(), endpoint.id, keys)?,
        client_certificate: open_client_certificate(certificate, endpoint.id, keys)?,
    })
}

impl Opened {
    /// The headers, sealed for the endpoint with this public id. What did not change keeps its seal, so
    /// that a change to what it is already is none.
    pub(super) fn seal_headers(
        &self,
        before: (&Self, Option<&Endpoint>),
        id: Uuid,
        keys: &MasterKeys,
    ) -> Option<Vec<u8>> {
        if let (Some(endpoint), true) = (before.1, self.headers == before.0.headers) {
            return endpoint.draft.sealed_headers.clone();
        }
        seal_headers(&self.headers, id, keys)
    }

    /// The same of the client certificate.
    pub(super) fn seal_client_certificate(
        &self,
        before: (&Self, Option<&Endpoint>),
        id: Uuid,
        keys: &MasterKeys,
    ) -> Option<Vec<u8>> {
        let same = self.client_certificate == before.0.client_certificate;
        if let (Some(endpoint), true) = (before.1, same) {
            return endpoint.draft.sealed_client_certificate.clone();
        }
        seal_client_certificate(self.client_certificate.as_ref()?, id, keys)
    }

    /// The headers as clients see them.
    pub(super) fn headers_shown(&self) -> BTreeMap<String, &'static str> {
        let names = self.headers.iter().map(|(name, _)| name.clone());
        names.map(|name| (name, HIDDEN)).collect()
    }

    /// The client certificate as clients see it.
    pub(super) fn client_certificate_shown(&self) -> Option<ClientCertificateShown> {
        self.client_certificate
            .as_ref()
            .map(|it| ClientCertificateShown {
                certificate: it.certificate.clone(),
                private_key: HIDDEN,
            })
    }
}

/// What the endpoint is shown when it asks for a certificate (mutual TLS).
#[derive(Serialize, ToSchema)]
#[schema(as = ClientCertificate)]
pub(super) struct ClientCertificateShown {
    /// PEM, with its chain.
    certificate: String,
    /// PEM. Shown as `***`, which stands for the one that is there.
    private_key: &'static str,
}

/// Reads `{"certificate": PEM, "private_key": PEM}`. A hidden key is the one that is there: so a
/// certificate is renewed without sending its key again.
pub(super) fn client_certificate(
    fields: &mut Fields,
    current: &Opened,
) -> Option<ClientCertificate> {
    fields.nested(CLIENT_CERTIFICATE, |inner| {
        let certificate = pem(inner, "certificate");
        let mut private_key = pem(inner, "private_key");
        if private_key == HIDDEN {
            private_key = match &current.client_certificate {
                Some(known) => known.private_key.clone(),
                None => {
                    let detail = format!("has no value yet that `{HIDDEN}` could stand for");
                    inner.wrong("private_key", detail);
                    return None;
                }
            };
        }
        if certificate.is_empty() || private_key.is_empty() {
            return None;
        }
        if let Err(error) = client_certificate::parse(&certificate, &private_key) {
            let field = match error {
                ClientCertificateError::Certificate | ClientCertificateError::TooMany => {
                    "certificate"
                }
                ClientCertificateError::Key
                | ClientCertificateError::KeyKind
                | ClientCertificateError::Mismatch => "private_key",
            };
            inner.wrong(field, error.to_string());
            return None;
        }
        Some(ClientCertificate {
            certificate,
            private_key,
        })
    })?
}

fn pem(fields: &mut Fields, name: &str) -> String {
    let text = fields.text(name).unwrap_or_default();
    if text.len() > MOST_PEM_BYTES {
        fields.wrong(name, format!("must have at most {MOST_PEM_BYTES} bytes"));
        return String::new();
    }
    if text.is_empty() {
        fields.required(name);
    }
    text
}

/// A chain of eight certificates with the largest keys in use takes some 20 KiB.
const MOST_PEM_BYTES: usize = 32 << 10;
