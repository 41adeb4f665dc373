//! `X-Request-Id` on every reply: the caller's own if it is sane, else a new one; and `RateLimit-*` on those
//! to keys that have a limit.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpMessage as _, HttpRequest};
use uuid::Uuid;

use crate::auth::Remaining;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// Longer ones are somebody's attempt to fill our logs.
const MOST_BYTES: usize = 128;

/// Middleware.
pub(crate) async fn tag(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let given = request.headers().get(NAME);
    let id = given.filter(|value| is_sane(value.as_bytes())).cloned();
    let id = id.unwrap_or_else(|| {
        let id = fresh();
        // For the audit log, which names the request.
        request.headers_mut().insert(NAME, id.clone());
        id
    });
    let mut response = next.call(request).await?;
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        let path = response.request().match_pattern().unwrap_or_default();
        tracing::error!(request.id = ?id, path, "a request was answered with 500; the cause is above");
    }
    response.headers_mut().insert(NAME, id);
    let remaining = response.request().extensions().get::<Remaining>().copied();
    if let Some(remaining) = remaining {
        let headers = response.headers_mut();
        headers.insert(LIMIT, HeaderValue::from(remaining.limit));
        headers.insert(REMAINING, HeaderValue::from(remaining.remaining));
        headers.insert(RESET, HeaderValue::from(remaining.reset));
    }
    Ok(response)
}

/// The id of a request that is under way.
pub(crate) fn of(request: &HttpRequest) -> Option<&str> {
    request.headers().get(NAME)?.to_str().ok()
}

fn is_sane(id: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    !id.is_empty() && id.len() <= MOST_BYTES && id.iter().all(legal)
}

fn fresh() -> HeaderValue {
    let mut text = [0; uuid::fmt::Simple::LENGTH];
    let text = Uuid::new_v4().simple().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
}
