//! Nothing hangs, and a database that is away for a few seconds is no error for who reads.
//!
//! A request that reads is tried again, whole, while the database is away and its deadline has not passed:
//! the connection that it had may have died under it. One that changes something is not, because nobody
//! knows what it has changed already; it waits for a connection ([`crate::connections`]), and fails if that
//! dies in the middle. Whatever is not answered by its deadline is answered 503. The POSTs of some paths have a
//! deadline of their own, and pass here without a timer: an event has it in the queue ([`crate::ingest`]), a test
//! waits for its receiver, for no longer than an attempt may take.

use std::time::Duration;

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::middleware::Next;
use actix_web::{HttpRequest, ResponseError as _};
use shared::runtime::clock::boot_time;
use shared::runtime::jitter;

use crate::problem::{ApiError, Kind};
use crate::routes::State;

/// The pause before a request that reads is tried again: up to twice this.
const PAUSE: Duration = Duration::from_millis(100);
/// What a request may take beyond the wait for the database: its key may have to be looked up first.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// Middleware of paths whose POSTs have a deadline of their own.
pub(crate) async fn wait_unless_posted<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    if request.method() == Method::POST {
        return Ok(next.call(request).await?.map_into_left_body());
    }
    wait(request, next).await
}

/// Middleware of every other path.
pub(crate) async fn wait<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let deadline = request
        .app_data::<actix_web::web::Data<State>>()
        .map(|state| state.config.deadline);
    let Some(deadline) = deadline else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    let (request, payload) = request.into_parts();
    let answer = async {
        if request.method() == Method::GET {
            return read(&request, &next, deadline).await;
        }
        let request = ServiceRequest::from_parts(request.clone(), payload);
        next.call(request).await
    };
    match tokio::time::timeout(deadline + MARGIN, answer).await {
        Ok(answer) => Ok(answer?.map_into_left_body()),
        Err(_elapsed) => {
            let response = too_late().error_response().map_into_right_body();
            Ok(ServiceResponse::new(request, response))
        }
    }
}

/// The answer to a request that has not ended by its deadline.
pub(crate) fn too_late() -> ApiError {
    let detail = "it took too long; whether anything was changed is not known";
    ApiError::new(Kind::Unavailable, detail)
}

async fn read<B: MessageBody>(
    request: &HttpRequest,
    next: &Next<B>,
    deadline: Duration,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let until = boot_time().after(deadline);
    loop {
        let again = ServiceRequest::from_parts(request.clone(), Payload::None);
        let response = next.call(again).await?;
        let error = response.response().error();
        let is_away = error
            .and_then(actix_web::Error::as_error::<ApiError>)
            .is_some_and(|error| error.kind() == Kind::Unavailable);
        let pause = PAUSE.mul_f64(1.0 + jitter::fraction());
        if !is_away || boot_time().after(pause) >= until {
            return Ok(response);
        }
        tokio::time::sleep(pause).await;
    }
}
