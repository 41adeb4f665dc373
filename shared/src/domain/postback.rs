//! What an endpoint is, and how its requests look: part of its settings.
//!
//! Not here: the filling in of templates ([`crate::policy::postback`]).

use serde::{Deserialize, Serialize};

/// What an endpoint's requests carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointKind {
    /// The payload, byte for byte.
    #[default]
    Webhook,
    /// Fields of the payload, in the URL or in a form.
    Postback,
}

/// The method of an endpoint's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RequestMethod {
    /// With a body.
    #[default]
    Post,
    /// Without one: postbacks only.
    Get,
    /// With a body.
    Put,
}

impl RequestMethod {
    /// The method of an endpoint that names none.
    #[must_use]
    pub const fn default_of(kind: EndpointKind) -> Self {
        match kind {
            EndpointKind::Webhook => Self::Post,
            EndpointKind::Postback => Self::Get,
        }
    }
}

/// What becomes of a postback whose payload lacks a field that its template names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissingField {
    /// A dead letter that names the field. Nothing is sent.
    #[default]
    Fail,
    /// It is sent with nothing in that place.
    Empty,
}
