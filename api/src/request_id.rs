//! `X-Request-Id` on every reply: the caller's own if it is sane, else a new one.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use uuid::Uuid;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ones are somebody's attempt to fill our logs.
const MOST_BYTES: usize = 128;

/// Middleware.
pub(crate) async fn tag(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let id = request
        .headers()
        .get(NAME)
        .filter(|value| is_sane(value.as_bytes()))
        .cloned()
        .unwrap_or_else(fresh);
    let mut response = next.call(request).await?;
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        let path = response.request().match_pattern().unwrap_or_default();
        tracing::error!(request.id = ?id, path, "a request was answered with 500; the cause is above");
    }
    response.headers_mut().insert(NAME, id);
    Ok(response)
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
