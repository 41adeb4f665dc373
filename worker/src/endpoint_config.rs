//! What a worker needs to know of an endpoint: settings, address and secrets as one versioned object.

use std::sync::Arc;

use shared::domain::endpoint::{EndpointSettings, EndpointState};
use shared::ids::{EndpointId, EndpointKey};
use shared::policy::classify::SendError;
use shared::policy::headers::HeaderError;
use shared::sealed_parts::{ClientCertificate, open_client_certificate, open_headers};
use shared::sealing::MasterKeys;
use shared::store::endpoint_configs::StoredEndpoint;
use shared::store::endpoint_runtime::Runtime;
use uuid::Uuid;

use crate::request_shape::RequestShape;
use crate::sender::{ClientIdentity, own_headers};
use crate::signing_keys::SigningKeys;

/// One version of an endpoint. Replaced as a whole when anything about it changes.
#[derive(Debug)]
pub struct EndpointConfig {
    /// The key inside.
    pub key: EndpointKey,
    /// The id outside; for logs.
    pub id: EndpointId,
    /// Recorded with every attempt.
    pub version: i32,
    /// Whether it takes deliveries.
    pub state: EndpointState,
    /// Limits and backoff.
    pub settings: EndpointSettings,
    /// Its events with an ordering key go one after the other.
    pub ordered: bool,
    /// What was stored of it when this was read: by an owner before, by the API or the statistics.
    pub runtime: Runtime,
    /// Its secrets, headers or settings cannot be read here: a wrong master key, or a newer program's
    /// row. Nothing is sent and nothing given up; its deliveries wait until it can be read, or expire.
    pub locked: bool,
    /// Where and how to send.
    pub target: Target,
}

impl EndpointConfig {
    /// From what is stored, with what is sealed opened.
    ///
    /// # Errors
    /// What cannot be read, in words that show none of it.
    pub fn open(
        keys: &MasterKeys,
        stored: &StoredEndpoint,
        https_only: bool,
    ) -> Result<Self, String> {
        let settings = stored.settings.clone()?;
        let signing = SigningKeys::open(keys, stored, &settings)?;
        let sealed = stored.sealed_headers.as_deref();
        let headers = open_headers(sealed, stored.id.0, keys).map_err(|error| error.to_string())?;
        let rules = (&settings, https_only);
        Ok(Self {
            locked: false,
            target: Target {
                identity: identity(keys, stored)?.map(Arc::new),
                ..Target::new(&stored.url, &headers, signing, rules)
            },
            settings,
            ..Self::locked(stored)
        })
    }

    /// One that cannot be read: what waits for it waits.
    #[must_use]
    pub fn locked(stored: &StoredEndpoint) -> Self {
        Self {
            key: stored.key,
            id: stored.id,
            version: stored.version,
            state: stored.state,
            settings: stored.settings.clone().unwrap_or_default(),
            ordered: stored.ordered,
            runtime: stored.runtime.clone(),
            locked: true,
            target: Target::none(),
        }
    }

    /// One whose row is gone: it counts as deleted, and what waits for it is closed.
    #[must_use]
    pub fn vanished(key: EndpointKey) -> Self {
        Self {
            key,
            id: EndpointId(Uuid::nil()),
            version: 0,
            state: EndpointState::Deleted,
            settings: EndpointSettings::default(),
            ordered: false,
            runtime: Runtime::default(),
            locked: false,
            target: Target::none(),
        }
    }
}

fn identity(keys: &MasterKeys, stored: &StoredEndpoint) -> Result<Option<ClientIdentity>, String> {
    let sealed = stored.sealed_client_certificate.as_deref();
    let opened =
        open_client_certificate(sealed, stored.id.0, keys).map_err(|error| error.to_string())?;
    let parse = |it: ClientCertificate| ClientIdentity::parse(&it.certificate, &it.private_key);
    opened
        .map(parse)
        .transpose()
        .map_err(|error| format!("the stored client certificate: {error}"))
}

/// Where an endpoint's requests go and what they carry. Holds credentials: `Debug` shows none.
pub struct Target {
    /// What its requests look like; or why the stored one may not be used (any more).
    pub shape: Result<RequestShape, SendError>,
    /// The endpoint's own headers; or why a stored one cannot be sent.
    pub headers: Result<http::HeaderMap, HeaderError>,
    /// What it shows to a receiver that asks for a certificate.
    pub identity: Option<Arc<ClientIdentity>>,
    /// What its requests are signed with.
    pub keys: SigningKeys,
}

impl Target {
    /// From what is stored, without an identity, by the rules that the API saves by: what is not legal any more fails
    /// each attempt once and for all, instead of being repaired or left out.
    #[must_use]
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        keys: SigningKeys,
        (settings, https_only): (&EndpointSettings, bool),
    ) -> Self {
        Self {
            shape: RequestShape::of(url, settings, https_only),
            headers: own_headers(headers),
            identity: None,
            keys,
        }
    }

    /// The target of an endpoint that nothing is sent to.
    #[must_use]
    pub fn none() -> Self {
        Self {
            shape: Err(SendError::Internal("nothing is sent to this endpoint")),
            headers: Ok(http::HeaderMap::new()),
            identity: None,
            keys: SigningKeys::default(),
        }
    }

    /// What to send and with which headers besides ours.
    ///
    /// # Errors
    /// [`SendError::UrlDenied`], or [`SendError::Internal`] for what should never have been stored.
    pub fn destination(&self) -> Result<(&RequestShape, &http::HeaderMap), SendError> {
        let shape = self.shape.as_ref().map_err(Clone::clone)?;
        let headers = self.headers.as_ref().map_err(|_stored| ILLEGAL_HEADER)?;
        Ok((shape, headers))
    }
}

/// Says what to do and neither the name nor the value.
const ILLEGAL_HEADER: SendError = SendError::Internal(
    "configuration error: a stored header of the endpoint is not legal; set the endpoint's `headers` again",
);

impl std::fmt::Debug for Target {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Target").finish_non_exhaustive()
    }
}

/// Shared by all deliveries that were loaded under this version.
pub type SharedConfig = Arc<EndpointConfig>;

#[cfg(test)]
mod tests {
    use shared::ids::{DeliveryId, EventId};
    use shared::policy::address::UrlError;
    use uuid::Uuid;

    use super::*;

    fn destination(url: &str, header: (&str, &str), https_only: bool) -> Result<String, SendError> {
        let headers = [(header.0.to_owned(), header.1.to_owned())];
        let rules = (&EndpointSettings::default(), https_only);
        let target = Target::new(url, &headers, SigningKeys::default(), rules);
        let (shape, _headers) = target.destination()?;
        let ids = (EventId(Uuid::nil()), "", DeliveryId(Uuid::nil()));
        let shaped = shape.shape(&bytes::Bytes::new(), ids)?;
        Ok(shaped.url.as_str().to_owned())
    }

    #[test]
    fn what_was_stored_is_judged_by_the_rules_of_now() {
        let fine = ("x-a", "1");
        let denied = |error| Err(SendError::UrlDenied(error));
        for (url, https_only, expected) in [
            ("https://a.example/", true, Ok("https://a.example/")),
            ("http://a.example/", false, Ok("http://a.example/")),
            ("https://a.example./x", true, Ok("https://a.example/x")),
            ("http://a.example/", true, denied(UrlError::NotHttps)),
            (
                "http://a.example:25/",
                false,
                denied(UrlError::PortDenied(25)),
            ),
            ("http://a.example:0/", false, denied(UrlError::PortZero)),
            ("http://u:p@a.example/", false, denied(UrlError::Userinfo)),
            ("ftp://a.example/", false, denied(UrlError::Scheme)),
            ("http://a..example/", false, denied(UrlError::HostName)),
            (
                "a.example",
                false,
                Err(SendError::Internal("the stored URL cannot be parsed")),
            ),
        ] {
            assert_eq!(
                destination(url, fine, https_only),
                expected.map(str::to_owned),
                "{url}"
            );
        }
    }

    #[test]
    fn a_stored_header_that_is_not_legal_is_our_fault_and_is_not_shown() {
        for header in [
            ("webhook-id", "x"),
            ("x-token", "secret\r\nx: y"),
            ("a b", "x"),
            ("x", ""),
        ] {
            let error = destination("https://a.example/", header, true).unwrap_err();
            assert_eq!(error, ILLEGAL_HEADER);
            assert_eq!(error.kind(), "internal");
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn the_refusal_of_a_stored_url_names_the_setting() {
        let error = destination("http://a.example/", ("x", "y"), true).unwrap_err();
        assert!(
            error.to_string().contains("POSTRIDER_HTTPS_ONLY"),
            "{error}"
        );
    }
}
