//! What an endpoint's requests look like: the payload itself, or a template filled from it.
//!
//! # Invariants
//! - P1: a webhook's body is the payload, byte for byte; of a postback's form the bytes that are signed are
//!   those that are sent.

use std::borrow::Cow;

use bytes::Bytes;
use http::Method;
use http::header::HeaderValue;
use shared::domain::endpoint::EndpointSettings;
use shared::domain::postback::{EndpointKind, OnMissingField, RequestMethod};
use shared::ids::{DeliveryId, EventId};
use shared::policy::address::{UrlError, parse_endpoint_url};
use shared::policy::classify::SendError;
use shared::policy::postback::{Template, TemplateError, UrlTemplate, Values};
use url::Url;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// See the module. Made once for each version of an endpoint.
pub struct RequestShape {
    method: Method,
    content: Content,
}

enum Content {
    Webhook(Url),
    Postback {
        url: UrlTemplate,
        template: Option<Template>,
        missing_is_empty: bool,
    },
}

/// One request.
pub struct Shaped<'s> {
    /// With which method.
    pub method: Method,
    /// Where to.
    pub url: Cow<'s, Url>,
    /// What it carries, and what is signed.
    pub body: Bytes,
    /// Of what kind; `None`: a request of this method carries nothing.
    pub content_type: Option<HeaderValue>,
}

impl RequestShape {
    /// From what is stored, by the rules that the API saves by.
    ///
    /// # Errors
    /// [`SendError::UrlDenied`] when the rules became stricter since; [`SendError::Internal`] for what
    /// should never have been stored.
    pub fn of(url: &str, settings: &EndpointSettings, https_only: bool) -> Result<Self, SendError> {
        let method = match settings.method {
            RequestMethod::Post => Method::POST,
            RequestMethod::Get => Method::GET,
            RequestMethod::Put => Method::PUT,
        };
        let content = match settings.kind {
            EndpointKind::Webhook => {
                Content::Webhook(parse_endpoint_url(url, https_only).map_err(denied)?)
            }
            EndpointKind::Postback => Content::Postback {
                url: UrlTemplate::parse(url, https_only).map_err(not_legal)?,
                template: settings
                    .template
                    .as_deref()
                    .map(Template::parse_form)
                    .transpose()
                    .map_err(not_legal)?,
                missing_is_empty: settings.on_missing_field == OnMissingField::Empty,
            },
        };
        Ok(Self { method, content })
    }

    /// The request for one delivery.
    ///
    /// # Errors
    /// [`SendError::Template`].
    pub fn shape<'s>(
        &'s self,
        payload: &Bytes,
        (event_id, event_type, delivery_id): (EventId, &str, DeliveryId),
    ) -> Result<Shaped<'s>, SendError> {
        let method = self.method.clone();
        let (url, template, missing_is_empty) = match &self.content {
            Content::Webhook(url) => {
                return Ok(Shaped {
                    method,
                    url: Cow::Borrowed(url),
                    body: payload.clone(),
                    content_type: Some(JSON),
                });
            }
            Content::Postback {
                url,
                template,
                missing_is_empty,
            } => (url, template.as_ref(), *missing_is_empty),
        };
        let (event_id, delivery_id) = (event_id.to_string(), delivery_id.to_string());
        let values = Values {
            payload,
            event_id: &event_id,
            event_type,
            delivery_id: &delivery_id,
            missing_is_empty,
        };
        let in_query = method == Method::GET;
        let query = template.filter(|_| in_query);
        let url = url.fill(query, &values).map_err(SendError::Template)?;
        let form = template.filter(|_| !in_query).map(|it| it.fill(&values));
        let form = form.transpose().map_err(SendError::Template)?;
        Ok(Shaped {
            method,
            url: Cow::Owned(url),
            body: form.unwrap_or_default().into(),
            content_type: (!in_query).then_some(FORM),
        })
    }
}

fn denied(error: UrlError) -> SendError {
    match error {
        UrlError::Malformed(_) => SendError::Internal("the stored URL cannot be parsed"),
        UrlError::Blank
        | UrlError::TooLong
        | UrlError::Scheme
        | UrlError::NotHttps
        | UrlError::Userinfo
        | UrlError::Fragment
        | UrlError::PortZero
        | UrlError::PortDenied(_)
        | UrlError::NoHost
        | UrlError::HostName => SendError::UrlDenied(error),
    }
}

fn not_legal(error: TemplateError) -> SendError {
    match error {
        TemplateError::Url(error) => denied(error),
        TemplateError::Brace
        | TemplateError::Path(_)
        | TemplateError::Unknown(_)
        | TemplateError::TooMany
        | TemplateError::TooLong
        | TemplateError::Character
        | TemplateError::Place => SendError::Internal("the stored template cannot be parsed"),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn settings(method: RequestMethod, template: Option<&str>) -> EndpointSettings {
        EndpointSettings {
            kind: EndpointKind::Postback,
            method,
            template: template.map(str::to_owned),
            ..EndpointSettings::default()
        }
    }

    fn shaped(settings: &EndpointSettings) -> (Method, String, Bytes, Option<HeaderValue>) {
        let shape = RequestShape::of("http://t.example/pb?c={c}", settings, false);
        let shape = shape.unwrap_or_else(|error| panic!("{error}"));
        let payload = Bytes::from_static(br#"{"c":"a b","p":1.50}"#);
        let ids = (EventId(Uuid::nil()), "conversion", DeliveryId(Uuid::nil()));
        let shaped = shape.shape(&payload, ids);
        let shaped = shaped.unwrap_or_else(|error| panic!("{error}"));
        let url = shaped.url.as_str().to_owned();
        (shaped.method, url, shaped.body, shaped.content_type)
    }

    #[test]
    fn p1_a_webhook_carries_the_payload_and_a_postback_what_its_template_says() {
        let url = |more: &str| format!("http://t.example/pb?c=a%20b{more}");
        let template = Some("p={p}&e={$event_id}");
        let nothing = Bytes::new();
        assert_eq!(
            shaped(&settings(RequestMethod::Get, None)),
            (Method::GET, url(""), nothing.clone(), None)
        );
        assert_eq!(
            shaped(&settings(RequestMethod::Get, template)),
            (
                Method::GET,
                url("&p=1.50&e=evt_00000000000000000000000000"),
                nothing.clone(),
                None
            )
        );
        for (method, expected) in [
            (RequestMethod::Post, Method::POST),
            (RequestMethod::Put, Method::PUT),
        ] {
            let form = Bytes::from_static(b"p=1.50&e=evt_00000000000000000000000000");
            assert_eq!(
                shaped(&settings(method, template)),
                (expected.clone(), url(""), form, Some(FORM))
            );
            assert_eq!(
                shaped(&settings(method, None)),
                (expected, url(""), nothing.clone(), Some(FORM))
            );
        }
        let webhook = EndpointSettings::default();
        let payload = Bytes::from_static(br#"{"c":"a b","p":1.50}"#);
        let url = "http://t.example/pb?c={c}".to_owned();
        assert_eq!(shaped(&webhook), (Method::POST, url, payload, Some(JSON)));
    }
}
