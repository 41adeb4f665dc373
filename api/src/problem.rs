//! Errors as clients see them: RFC 9457 `application/problem+json`.
//!
//! # Invariants
//! - S2: a 5xx says nothing of the inside; its cause is logged here, once.
//! - Status, type and title of every problem stand in one table ([`Kind::row`]); the type is stable.

use std::borrow::Cow;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use shared::store::StoreError;
use utoipa::ToSchema;

/// Seconds that a client should wait when we are overloaded or the database is away.
const RETRY_AFTER: u64 = 1;

/// What went wrong, as a class that clients can react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    MalformedJson,
    InvalidParameter,
    Unauthorized,
    MissingScope,
    NotFound,
    AdminDisabled,
    MethodNotAllowed,
    RequestTimeout,
    Conflict,
    PreconditionFailed,
    RequestInProgress,
    Expunged,
    PayloadTooLarge,
    UnsupportedMediaType,
    InvalidFields,
    IdempotencyMismatch,
    LimitReached,
    NotStorable,
    NotReplayable,
    RateLimited,
    QuotaReached,
    TooManyFailures,
    Internal,
    Overloaded,
    Unavailable,
}

impl Kind {
    /// Status, last part of the type, and title.
    pub(crate) const fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::MalformedJson => (400, "malformed-json", "The body is not valid JSON"),
            Self::InvalidParameter => (400, "invalid-parameter", "A parameter is not valid"),
            Self::Unauthorized => (401, "unauthorized", "A valid key is needed"),
            Self::MissingScope => (403, "missing-scope", "The key may not do this"),
            Self::NotFound => (404, "not-found", "There is nothing here"),
            Self::AdminDisabled => (404, "admin-api-off", "The admin API is off"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "Not with this method"),
            Self::RequestTimeout => (408, "request-timeout", "The body came too slowly"),
            Self::Conflict => (409, "conflict", "The current state does not allow this"),
            Self::PreconditionFailed => (412, "precondition-failed", "It has changed meanwhile"),
            Self::RequestInProgress => (409, "request-in-progress", "The same is running already"),
            Self::Expunged => (410, "expunged", "It was removed for good"),
            Self::PayloadTooLarge => (413, "payload-too-large", "The body is too large"),
            Self::UnsupportedMediaType => (415, "unsupported-media-type", "JSON is expected"),
            Self::InvalidFields => (422, "invalid-fields", "Some fields are not valid"),
            Self::IdempotencyMismatch => (
                422,
                "idempotency-mismatch",
                "The key was used for something else",
            ),
            Self::LimitReached => (422, "limit-reached", "A limit is reached"),
            Self::NotStorable => (422, "not-storable", "The data cannot be stored"),
            Self::NotReplayable => (422, "not-replayable", "It cannot be sent again"),
            Self::RateLimited => (429, "rate-limited", "Too much with this key"),
            Self::QuotaReached => (429, "quota-reached", "The tenant's quota is used up"),
            Self::TooManyFailures => (429, "too-many-failures", "Too many keys that do not exist"),
            Self::Internal => (500, "internal", "Something went wrong on our side"),
            Self::Overloaded => (503, "overloaded", "Too much at once; try again"),
            Self::Unavailable => (503, "unavailable", "Not available at the moment; try again"),
        }
    }

    /// The type.
    pub(crate) fn urn(self) -> String {
        let (_, slug, _) = self.row();
        format!("urn:postrider:problem:{slug}")
    }

    /// A detail such as clients get to see, for the documentation.
    pub(crate) const fn example(self) -> &'static str {
        match self {
            Self::MalformedJson => "expected `,` or `}` at line 1 column 12",
            Self::InvalidParameter => "`limit` must be 1 to 250",
            Self::Unauthorized => "this key does not exist, has expired or was revoked",
            Self::MissingScope => "this needs a key with the scope `read`",
            Self::NotFound => "there is no such endpoint",
            Self::AdminDisabled => {
                "set POSTRIDER_ADMIN_TOKEN (at least 16 characters) to use /v1/admin"
            }
            Self::MethodNotAllowed => "this path answers to GET",
            Self::RequestTimeout => "the body did not arrive within 30 s",
            Self::Conflict => "its request is on the wire; it can be retried when that has ended",
            Self::RequestInProgress => {
                "a request with this Idempotency-Key is running; ask again in a moment"
            }
            Self::PreconditionFailed => {
                "the endpoint has changed: its ETag is \"7\"; read it again, and send that"
            }
            Self::PayloadTooLarge => {
                "the body has more than the 262144 bytes that are allowed here"
            }
            Self::UnsupportedMediaType => "send `Content-Type: application/json`",
            Self::InvalidFields => "/name: is required",
            Self::IdempotencyMismatch => {
                "this Idempotency-Key was used within the last 24 hours for another request; \
                 send the same body to get the same reply, or take a new one"
            }
            Self::LimitReached => "a tenant has at most 10000 endpoints",
            Self::NotStorable => "the database refuses this event",
            Self::Expunged => {
                "the payload of this event was expunged; it cannot be read or sent again"
            }
            Self::RateLimited => "this key may be used 100 times a second; wait a second",
            Self::QuotaReached => {
                "the tenant has published 1000000 events today, which is its quota"
            }
            Self::TooManyFailures => "too many keys from this address do not exist; wait a minute",
            Self::NotReplayable => {
                "its event is past its retention, so there is nothing left to send; publish a new event"
            }
            Self::Internal => "the cause is in the log of the server",
            Self::Overloaded => "more events wait to be stored than may wait; nothing was stored",
            Self::Unavailable => "the database is away; nothing was changed, or it is not known",
        }
    }
}

/// One field that is not valid.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// RFC 6901 JSON pointer into the body, or the name of a parameter.
    pub(crate) pointer: String,
    pub(crate) detail: String,
}

/// An error on its way to a client.
#[derive(Debug)]
pub(crate) struct ApiError {
    kind: Kind,
    detail: Cow<'static, str>,
    errors: Vec<FieldError>,
    /// For `Allow` on 405.
    allow: Option<&'static str>,
    /// Seconds, for `Retry-After` where it is not [`RETRY_AFTER`].
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            errors: Vec::new(),
            allow: None,
            retry_after: None,
        }
    }

    /// The same, to be tried again after so many seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// What went wrong.
    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Some fields are not valid; each is named.
    pub(crate) fn fields(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [only] if only.pointer.is_empty() => only.detail.clone(),
            [only] => format!("{}: {}", only.pointer, only.detail),
            several => format!("{} fields are not valid; see `errors`", several.len()),
        };
        Self {
            errors,
            ..Self::new(Kind::InvalidFields, detail)
        }
    }

    /// A problem of one field; of none, when the pointer is empty.
    pub(crate) fn field(kind: Kind, pointer: &str, detail: String) -> Self {
        let error = FieldError {
            pointer: pointer.to_owned(),
            detail: detail.clone(),
        };
        Self {
            errors: (!pointer.is_empty()).then_some(error).into_iter().collect(),
            ..Self::new(kind, detail)
        }
    }

    /// The same answer for what does not exist and for what belongs to another tenant (S3).
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(Kind::NotFound, format!("there is no such {what}"))
    }

    pub(crate) fn not_allowed(allow: &'static str) -> Self {
        Self {
            allow: Some(allow),
            ..Self::new(
                Kind::MethodNotAllowed,
                format!("this path answers to {allow}"),
            )
        }
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (status, slug, _title) = self.kind.row();
        write!(out, "{status} {slug}: {}", self.detail)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_transient() {
            tracing::warn!(%error, "the database did not do its part of a request");
            return Self::new(
                Kind::Unavailable,
                "the database is away; nothing was changed, or it is not known",
            );
        }
        tracing::error!(%error, kind = error.kind(), "a request failed");
        Self::new(Kind::Internal, "the cause is in the log of the server")
    }
}

impl From<tokio_postgres::Error> for ApiError {
    fn from(error: tokio_postgres::Error) -> Self {
        StoreError::from(error).into()
    }
}

/// An error as it goes out (RFC 9457).
#[derive(Serialize, ToSchema)]
pub(crate) struct Problem<'a> {
    /// Stable: what a program may tell errors apart by.
    #[serde(rename = "type")]
    #[schema(example = "urn:postrider:problem:invalid-fields")]
    kind: String,
    title: &'static str,
    pub(crate) status: u16,
    /// What is wrong here, and what to do.
    detail: &'a str,
    /// One entry for each field that is wrong; absent when it is not about fields.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [FieldError],
}

impl ApiError {
    /// As it goes out.
    pub(crate) fn problem(&self) -> Problem<'_> {
        let (status, _, title) = self.kind.row();
        Problem {
            kind: self.kind.urn(),
            title,
            status,
            detail: &self.detail,
            errors: &self.errors,
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let body = self.problem();
        let status = body.status;
        let mut reply = HttpResponse::build(self.status_code());
        reply.insert_header((
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        ));
        if matches!(status, 429 | 503) || self.kind == Kind::RequestInProgress {
            let seconds = self.retry_after.unwrap_or(RETRY_AFTER);
            reply.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        if status == 401 {
            reply.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(allow) = self.allow {
            reply.insert_header((header::ALLOW, allow));
        }
        reply.body(serde_json::to_vec(&body).unwrap_or_default())
    }
}
