//! POSTs that happen once: the header `Idempotency-Key`.

use actix_web::HttpRequest;
use shared::domain::idempotency::{IdempotencyKey, KeySpace, wrong_key};

use crate::problem::{ApiError, Kind};

/// The header.
const NAME: &str = "Idempotency-Key";

/// The key of a request with this body, if it has one.
pub(crate) fn key(request: &HttpRequest, body: &[u8]) -> Result<Option<IdempotencyKey>, ApiError> {
    let mut given = request.headers().get_all(NAME);
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let wrong = |detail: &str| ApiError::new(Kind::InvalidParameter, format!("{NAME}: {detail}"));
    if given.next().is_some() {
        return Err(wrong("is given twice"));
    }
    let text = value
        .to_str()
        .map_err(|_not_ascii| wrong("must be visible ASCII characters"))?;
    match wrong_key(text) {
        Some(detail) => Err(wrong(&detail)),
        None => Ok(Some(IdempotencyKey::of_request(text, request.path(), body))),
    }
}

/// The key stands for something else.
pub(crate) fn mismatch(space: KeySpace) -> ApiError {
    let (pointer, what) = match space {
        KeySpace::Header | KeySpace::Item => ("", "this Idempotency-Key"),
        KeySpace::ExternalId => ("/external_id", "this external_id"),
    };
    let detail = format!(
        "{what} was used within the last 24 hours for another request; \
         send the same body to get the same reply, or take a new one"
    );
    ApiError::field(Kind::IdempotencyMismatch, pointer, detail)
}
