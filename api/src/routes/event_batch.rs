//! `POST /v1/events/batch`: many events in one request, each with a fate of its own.
//!
//! # Invariants
//! - P1: each payload is a slice of the body that came in.
//! - Bounded: [`MOST_EVENTS`], [`MOST_BYTES`], and room in the queue for all of them or none.
//! - The header `Idempotency-Key` covers the whole: it is claimed for the body, and each event for its
//!   place in it, in the transaction that stores it. What a crash left undone, the same request does.

use std::collections::BTreeMap;
use std::fmt;

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use shared::domain::idempotency::{IdempotencyKey, KeySpace};
use shared::runtime::clock::boot_time;
use shared::store::replies;
use utoipa::ToSchema;

use super::event_body::{self, Rules};
use super::events::{MOST_CHECKS, Published, log_accepted, refused};
use super::{App, json as reply};
use crate::auth::Scope;
use crate::ingest::{Accepted, NewEvent, Refusal};
use crate::json::malformed;
use crate::openapi::example;
use crate::openapi::refused::{self, Refused};
use crate::problem::{ApiError, FieldError, Problem};
use crate::trace_context::Publishing;
use crate::{idempotency, metrics};

/// The most events of a batch.
const MOST_EVENTS: usize = 1_000;
/// The largest body.
const MOST_BYTES: usize = 8 << 20;

/// Publish events
///
/// Up to 1,000 in 8 MiB. It is not atomic: each is accepted or refused for itself. `Idempotency-Key` covers the
/// whole, `external_id` each.
#[utoipa::path(
    post, path = "/v1/events/batch", tag = "Events", operation_id = "publishEvents", security(("key" = ["events:write"])),
    request_body(content = BatchBody<'_>, example = json!({"events": [
        {"type": "order.created", "payload": {"order": 1}},
        {"type": "order.paid", "payload": {"order": 1}, "external_id": "order-1-paid"},
    ]})),
    responses(
        (status = 200, description = "What became of each event, in their order", body = BatchReply<'_>, example = json!({"data": [
            example::published_item(),
            {"status": 422, "problem": {
                "type": "urn:postrider:problem:invalid-fields", "title": "Some fields are not valid", "status": 422,
                "detail": "/events/1/type: is required", "errors": [{"pointer": "/events/1/type", "detail": "is required"}],
            }},
        ]})),
        Refused<(refused::Key, refused::Once, refused::Body, refused::Queue, refused::Quota)>,
    )
)]
pub(super) async fn publish(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let started = boot_time();
    let caller = app.auth.tenant(&request, Scope::EventsWrite).await?;
    let body = crate::json::read(&request, payload, MOST_BYTES).await?;
    let key = idempotency::key(&request, &body)?;
    let publishing = Publishing::begin(&app, &request, started);
    let rules = Rules {
        tenant: caller.tenant,
        keyed: key.is_some(),
        most_bytes: app.config.max_payload,
        now: app.clock.now(),
        trace: publishing.context(),
    };
    let items = items(&body)?;
    let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
    app.auth.charge(&request, count).await?;
    if let Some(key) = &key {
        let claim = async {
            let client = app.client().await?;
            Ok::<_, ApiError>(replies::claim_batch(&**client, caller.tenant, key).await?)
        };
        if !app.connections.bounded(claim).await? {
            return Err(idempotency::mismatch(KeySpace::Header));
        }
    }
    let (mut results, mut events) = (Vec::with_capacity(items.len()), Vec::new());
    for (position, item) in items.into_iter().enumerate() {
        let event = one(&body, item, rules, (position, key.as_ref()));
        results.push(event.map(|mut event| {
            app.schemas.check_ahead(&mut event);
            let shown = (event.event_type.clone(), event.external_id.clone());
            events.push((position, event));
            Outcome {
                shown,
                accepted: None,
            }
        }));
    }
    let quota = (caller.tenant, caller.limits);
    let wanted = u32::try_from(events.len()).unwrap_or(u32::MAX);
    let reserved = app.quotas.reserve(quota, wanted, app.clock.now()).await?;
    let submitted = submit(&app, events, &mut results).await;
    submitted.inspect_err(|error| publishing.refused(&app, error))?;
    let accepted = results.iter().filter(|result| result.is_ok()).count();
    if let Some(reserved) = reserved {
        reserved.keep(u32::try_from(accepted).unwrap_or(u32::MAX));
    }
    publishing.accepted_batch(&app, accepted);
    for outcome in results.iter().flatten() {
        if let Some(accepted) = &outcome.accepted {
            log_accepted(&request, accepted, publishing.context());
        }
    }
    metrics::EVENTS_ACCEPTED.inc_by(accepted.try_into().unwrap_or(u64::MAX));
    metrics::INGEST_SECONDS.observe(boot_time().since(started).as_secs_f64());
    answer(&results)
}

fn one(
    body: &Bytes,
    item: &RawValue,
    rules: Rules,
    (position, key): (usize, Option<&IdempotencyKey>),
) -> Result<NewEvent, ApiError> {
    let base = format!("/events/{position}");
    let mut event = event_body::parse(body, item.get().as_bytes(), rules, &base)?;
    event
        .idempotency
        .extend(key.map(|key| key.of_item(position)));
    Ok(event)
}

/// An event that was handed on.
struct Outcome {
    /// Its type and external id.
    shown: (Box<str>, Option<Box<str>>),
    accepted: Option<Accepted>,
}

/// Hands events to the writers, and checks those whose type has a schema. An error: nothing was stored.
async fn submit(
    app: &App,
    events: Vec<(usize, NewEvent)>,
    results: &mut [Result<Outcome, ApiError>],
) -> Result<(), ApiError> {
    let mut round = 0;
    let mut events = events;
    while !events.is_empty() {
        let (positions, batch): (Vec<usize>, Vec<NewEvent>) = events.drain(..).unzip();
        let replies = match app.intake.submit_all(batch).await {
            Ok(replies) => replies,
            Err(refusal) if round == 0 => return Err(refused(refusal)),
            // The others of the batch are stored.
            Err(_full) => positions.iter().map(|_| Err(Refusal::QueueFull)).collect(),
        };
        round += 1;
        for (position, reply) in positions.into_iter().zip(replies) {
            let Some(result) = results.get_mut(position) else {
                continue;
            };
            match reply {
                Ok(accepted) => {
                    if let Ok(outcome) = result {
                        outcome.accepted = Some(accepted);
                    }
                }
                Err(Refusal::Unchecked(unchecked)) if round < MOST_CHECKS => {
                    let base = format!("/events/{position}");
                    match app.schemas.check(*unchecked, &base).await {
                        Ok(event) => events.push((position, event)),
                        Err(problem) => *result = Err(problem),
                    }
                }
                Err(refusal) => *result = Err(refused(refusal)),
            }
        }
    }
    Ok(())
}

fn answer(results: &[Result<Outcome, ApiError>]) -> Result<HttpResponse, ApiError> {
    let unknown = refused(Refusal::Internal);
    let data = results.iter().map(|result| {
        let outcome = result
            .as_ref()
            .map(|outcome| (&outcome.shown, &outcome.accepted));
        let problem = match outcome {
            Ok(((event_type, external_id), Some(accepted))) => {
                return BatchResult::Accepted(AcceptedItem {
                    status: StatusCode::ACCEPTED.as_u16(),
                    event: Published::new(accepted, event_type, external_id.as_deref()),
                });
            }
            Ok((_, None)) => unknown.problem(),
            Err(error) => error.problem(),
        };
        BatchResult::Refused(RefusedItem {
            status: problem.status,
            problem,
        })
    });
    let data = data.collect();
    reply(StatusCode::OK, &BatchReply { data })
}

/// The events of a body, each still as it was written.
fn items(body: &[u8]) -> Result<Vec<&RawValue>, ApiError> {
    let wrong = |pointer: &str, detail: String| {
        ApiError::fields(vec![FieldError {
            pointer: pointer.to_owned(),
            detail,
        }])
    };
    if body.trim_ascii_start().first() == Some(&b'[') {
        // serde would take a list for a struct's fields in their order.
        return Err(wrong("", "the body must be a JSON object".to_owned()));
    }
    let envelope: Envelope<'_> =
        serde_json::from_slice(body).map_err(|error| explain(body, &error))?;
    let count = envelope.events.count;
    if count == 0 || count > MOST_EVENTS {
        let detail = format!("must have 1 to {MOST_EVENTS} entries, not {count}");
        return Err(wrong("/events", detail));
    }
    Ok(envelope.events.first)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(borrow)]
    events: Items<'a>,
}

/// A list of which only so much is held as may be there.
struct Items<'a> {
    first: Vec<&'a RawValue>,
    count: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Items<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Items<'de>, A::Error> {
        let mut first = Vec::new();
        while first.len() < MOST_EVENTS {
            match access.next_element()? {
                Some(item) => first.push(item),
                None => break,
            }
        }
        let mut count = first.len();
        if count == MOST_EVENTS {
            while access.next_element::<IgnoredAny>()?.is_some() {
                count += 1;
            }
        }
        Ok(Items { first, count })
    }
}

/// Why a body is not a batch.
fn explain(body: &[u8], error: &serde_json::Error) -> ApiError {
    if !error.is_data() {
        return malformed(error);
    }
    let Ok(fields) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(body) else {
        return ApiError::fields(vec![FieldError {
            pointer: String::new(),
            detail: "the body must be a JSON object with the list `events`".to_owned(),
        }]);
    };
    let mut errors: Vec<FieldError> = fields
        .keys()
        .filter(|name| *name != "events")
        .map(|name| FieldError {
            pointer: format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            detail: "is not a known field".to_owned(),
        })
        .collect();
    if errors.is_empty() || !fields.contains_key("events") {
        let detail = match fields.get("events") {
            None => "is required",
            Some(raw) if raw.get().starts_with('[') => "is given twice",
            Some(_) => "must be a list",
        };
        errors.push(FieldError {
            pointer: "/events".to_owned(),
            detail: detail.to_owned(),
        });
    }
    ApiError::fields(errors)
}

/// Events to publish together.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `Envelope` reads")]
#[schema(as = EventBatch)]
struct BatchBody<'a> {
    /// Each as for `POST /v1/events`.
    #[schema(min_items = 1, max_items = 1000)]
    events: Vec<event_body::Body<'a>>,
}

/// What became of a batch.
#[derive(Serialize, ToSchema)]
#[schema(as = EventBatchResult)]
struct BatchReply<'a> {
    /// One for each event, in their order.
    data: Vec<BatchResult<'a>>,
}

/// What became of one event: it was accepted, or why not.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum BatchResult<'a> {
    Accepted(AcceptedItem<'a>),
    Refused(RefusedItem<'a>),
}

#[derive(Serialize, ToSchema)]
struct AcceptedItem<'a> {
    #[schema(example = 202)]
    status: u16,
    #[serde(flatten)]
    event: Published<'a>,
}

#[derive(Serialize, ToSchema)]
struct RefusedItem<'a> {
    #[schema(example = 422)]
    status: u16,
    problem: Problem<'a>,
}
