//! POSTs that happen once: the header `Idempotency-Key`.
//!
//! - Events have it in the transaction that stores them: [`key`] is all they need.
//! - Every other POST goes through [`once`], which every path of `routes` is wrapped in: the first
//!   one claims the key, runs, and its reply is kept, sealed, because it may hold a secret.
//!
//! # Invariants
//! - S2: what is kept of a reply is sealed, for its holder and key.
//! - S3: a reply is given again only to who may what the first one might: the scopes are part of the
//!   fingerprint.
//! - Only what succeeded is kept: after an error the same key runs again. What a limit refuses claims no key.
//! - A claim outlives its request: whoever finds it expired finds nobody running. A process that dies between the
//!   work and the keeping of its reply leaves a key under which the request runs again.
//! - Nothing hangs: what is asked of the database for a claim is bounded, as what runs under it is.
//! - A client that goes away does not stop what runs: the reply is kept for when it asks again.

use std::collections::BTreeMap;
use std::time::Duration;

use actix_web::body::{self, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{Method, StatusCode, header};
use actix_web::middleware::Next;
use actix_web::web::{self, Bytes};
use actix_web::{HttpRequest, HttpResponse, ResponseError as _};
use serde::{Deserialize, Serialize};
use shared::domain::idempotency::{IdempotencyKey, KeySpace, wrong_key};
use shared::fail_point;
use shared::runtime::clock::{BootTime, boot_time};
use shared::store::replies::{self, Claimed, KeyHolder};
use uuid::Uuid;

use crate::config::Config;
use crate::problem::{ApiError, Kind};
use crate::routes::{State, TEST_SLACK};
use crate::{json, patience};

/// The header.
const NAME: &str = "Idempotency-Key";
/// Headers of a reply that are given again.
const KEPT: [header::HeaderName; 3] = [header::CONTENT_TYPE, header::ETAG, header::LOCATION];
/// The largest reply that is kept.
const MOST_KEPT: usize = 1 << 20;

/// How long a request may run under a claim, from when that is asked for: it waits for the database, and a test for
/// its receiver as well.
fn longest_run(config: &Config) -> Duration {
    config.deadline + config.longest_timeout + TEST_SLACK + patience::MARGIN
}

/// How long a claim holds: as long as the request may run, and what keeping its reply may take.
fn claim_life(config: &Config) -> Duration {
    longest_run(config) + config.deadline + patience::MARGIN
}

/// Of a reply that shows the payload of an event, or what was answered to it: it is expunged with the event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfEvent(pub(crate) Uuid);

/// The key of an event's request with this body, if it has one.
pub(crate) fn key(request: &HttpRequest, body: &[u8]) -> Result<Option<IdempotencyKey>, ApiError> {
    let text = text(request)?;
    Ok(text.map(|text| IdempotencyKey::of_request(text, request.path(), body)))
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

fn text(request: &HttpRequest) -> Result<Option<&str>, ApiError> {
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
        None => Ok(Some(text)),
    }
}

/// Middleware: a POST with a key runs once, and is answered with the same reply for a day.
pub(crate) async fn once(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    if request.method() != Method::POST || !request.headers().contains_key(NAME) {
        return Ok(next.call(request).await?.map_into_boxed_body());
    }
    match begin(&mut request).await {
        Ok(Begun::Unknown) => Ok(next.call(request).await?.map_into_boxed_body()),
        Ok(Begun::Answered(reply)) => Ok(request.into_response(reply)),
        Ok(Begun::Ours(once)) => {
            fail_point!("api.key_claimed");
            let asked = request.request().clone();
            let elapsed = boot_time().since(once.asked);
            let longest = longest_run(&once.app.config).saturating_sub(elapsed);
            let running = tokio::time::timeout(longest, next.call(request));
            #[expect(
                clippy::disallowed_methods,
                reason = "a handler is its thread's own; it ends by itself, its connections have budgets"
            )]
            let ended = actix_web::rt::spawn(async move {
                match running.await {
                    Ok(response) => once.end(response?.map_into_boxed_body()).await,
                    // What it did is not known, so nobody repeats it before the claim expires.
                    Err(_elapsed) => {
                        let problem = patience::too_late().error_response();
                        Ok(ServiceResponse::new(asked, problem))
                    }
                }
            });
            ended.await.unwrap_or_else(|error| {
                tracing::error!(%error, "a request panicked");
                Err(ApiError::new(Kind::Internal, "the cause is in the log of the server").into())
            })
        }
        Err(problem) => Ok(request.into_response(problem.error_response())),
    }
}

enum Begun {
    /// Nobody that is known: the handler says what is wrong.
    Unknown,
    Answered(HttpResponse),
    Ours(Once),
}

/// A request that runs under a claim.
struct Once {
    app: web::Data<State>,
    holder: KeyHolder,
    key: IdempotencyKey,
    claim: Uuid,
    /// When the claim was asked for.
    asked: BootTime,
}

async fn begin(request: &mut ServiceRequest) -> Result<Begun, ApiError> {
    let Some(app) = request.app_data::<web::Data<State>>().cloned() else {
        return Ok(Begun::Unknown);
    };
    let (holder, scopes) = match app.auth.holder(request.request()).await {
        Ok(known) => known,
        // The handler counts no request twice, and so would let this one pass.
        Err(error) if error.kind() == Kind::RateLimited => return Err(error),
        Err(_handler_says_it) => return Ok(Begun::Unknown),
    };
    let Some(text) = text(request.request())?.map(str::to_owned) else {
        return Ok(Begun::Unknown);
    };
    let payload = request.extract::<web::Payload>().await.map_err(|error| {
        tracing::error!(%error, "a request has no body to read");
        ApiError::new(Kind::Internal, "the cause is in the log of the server")
    })?;
    let body = json::read(request.request(), payload, json::MOST_BYTES).await?;
    let target = format!("{scopes} {}", request.uri());
    let key = IdempotencyKey::of_request(&text, &target, &body);
    request.set_payload(body.into());

    let asked = boot_time();
    let claim = async {
        let client = app.client().await?;
        let life = claim_life(&app.config);
        Ok::<_, ApiError>(replies::claim(&**client, holder, &key, life).await?)
    };
    match app.connections.bounded(claim).await? {
        Claimed::Ours(claim) => Ok(Begun::Ours(Once {
            app,
            holder,
            key,
            claim,
            asked,
        })),
        Claimed::Answered(sealed) => {
            let reply = app.config.master_keys.open(&sealed, &context(holder, &key));
            let kept = reply.ok().and_then(|reply| Kept::read(&reply));
            Ok(Begun::Answered(kept.ok_or_else(unreadable)?))
        }
        Claimed::Running => Err(ApiError::new(
            Kind::RequestInProgress,
            "the first request with this Idempotency-Key is still running; ask again",
        )),
        Claimed::Mismatch => Err(mismatch(KeySpace::Header)),
    }
}

impl Once {
    /// Keeps a reply that says it was done.
    async fn end(
        self,
        response: ServiceResponse<BoxBody>,
    ) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
        if !response.status().is_success() {
            self.give_up().await;
            return Ok(response);
        }
        let (request, response) = response.into_parts();
        let (head, body) = response.into_parts();
        let of_event = head.extensions().get::<OfEvent>().map(|event| event.0);
        let body = body::to_bytes(body).await.map_err(|error| {
            tracing::error!(%error, "a reply cannot be read");
            ApiError::new(Kind::Internal, "the request was carried out")
        })?;
        fail_point!("api.key_worked");
        let kept = Kept::write(&head, &body);
        let stored = match kept {
            Some(kept) => self.keep(&kept, of_event).await,
            None => self.give_up().await,
        };
        fail_point!("api.key_kept");
        if let Some(error) = stored {
            tracing::warn!(%error, "a reply was not kept; its key is free again in a moment");
        }
        let response = head.set_body(body).map_into_boxed_body();
        Ok(ServiceResponse::new(request, response))
    }

    async fn keep(&self, reply: &[u8], of_event: Option<Uuid>) -> Option<ApiError> {
        let sealed = self
            .app
            .config
            .master_keys
            .seal(reply, &context(self.holder, &self.key));
        let keep = async {
            let client = self.app.client().await?;
            let reply = (&sealed[..], of_event);
            replies::keep(&**client, self.holder, &self.key, self.claim, reply).await?;
            Ok::<_, ApiError>(())
        };
        self.app.connections.bounded(keep).await.err()
    }

    async fn give_up(&self) -> Option<ApiError> {
        let give_up = async {
            let client = self.app.client().await?;
            replies::give_up(&**client, self.holder, &self.key, self.claim).await?;
            Ok::<_, ApiError>(())
        };
        self.app.connections.bounded(give_up).await.err()
    }
}

/// What a reply is sealed for.
fn context(holder: KeyHolder, key: &IdempotencyKey) -> String {
    format!("reply:{}:{}", holder.code(), key.stored)
}

/// It was expunged, or its master key is gone: what was done stays done.
fn unreadable() -> ApiError {
    ApiError::new(
        Kind::Conflict,
        "the request was carried out, but its reply is not to be had any more: it was expunged with its event, \
         or sealed with a master key that is not in use",
    )
}

/// The head of a kept reply; a line before its body.
#[derive(Serialize, Deserialize)]
struct Kept {
    status: u16,
    headers: BTreeMap<String, String>,
}

impl Kept {
    /// The bytes to keep; none, if there are too many.
    fn write(head: &HttpResponse<()>, body: &[u8]) -> Option<Vec<u8>> {
        let headers = KEPT.iter().filter_map(|name| {
            let value = head.headers().get(name)?.to_str().ok()?;
            Some((name.to_string(), value.to_owned()))
        });
        let kept = Self {
            status: head.status().as_u16(),
            headers: headers.collect(),
        };
        let mut bytes = serde_json::to_vec(&kept).ok()?;
        bytes.push(b'\n');
        bytes.extend_from_slice(body);
        (bytes.len() <= MOST_KEPT).then_some(bytes)
    }

    fn read(bytes: &[u8]) -> Option<HttpResponse> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (head, body) = bytes.split_at_checked(end)?;
        let kept: Self = serde_json::from_slice(head).ok()?;
        let mut reply = HttpResponse::build(StatusCode::from_u16(kept.status).ok()?);
        for (name, value) in kept.headers {
            reply.insert_header((name, value));
        }
        Some(reply.body(Bytes::copy_from_slice(body.get(1..)?)))
    }
}

#[cfg(test)]
mod tests {
    use shared::store::Database;

    use super::*;

    #[test]
    fn a_claim_outlives_the_longest_test_that_an_endpoint_may_ask_for() {
        let database = Database::new("postgres://localhost/none").unwrap();
        for seconds in [20, 3_595] {
            let mut config = Config::for_testing(database.clone());
            config.longest_timeout = Duration::from_secs(seconds);

            let test = config.deadline + config.longest_timeout + TEST_SLACK;

            assert!(test < longest_run(&config));
            assert!(longest_run(&config) + config.deadline < claim_life(&config));
        }
    }
}
