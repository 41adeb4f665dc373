//! `POST /v1/endpoints/{id}/test`: sends an event of the type `postrider.test` to one endpoint and waits for
//! what its receiver answers.
//!
//! # Invariants
//! - P1: a payload that is given is sent byte for byte, as an event's is.

use std::sync::LazyLock;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::Payload;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use shared::domain::delivery::Status;
use shared::domain::endpoint::EndpointState;
use shared::ids::{DeliveryId, EndpointId, EventId, TenantKey};
use shared::policy::payload::FieldPath;
use shared::policy::postback::{Field, Template, UrlTemplate};
use shared::runtime::clock::boot_time;
use shared::store::attempts as attempt_store;
use shared::store::deliveries as delivery_store;
use shared::store::endpoints::{self as endpoint_store, Endpoint};
use shared::store::test_sends::{self as store, TestSend};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::delivery_document::Attempt;
use super::event_body::too_deep;
use super::{App, endpoints, json as reply};
use crate::idempotency::OfEvent;
use crate::json::{self, Fields};
use crate::openapi::refused::{self, Refused};
use crate::openapi::{example, schema};
use crate::patience;
use crate::problem::{ApiError, Kind};

/// The most tests that a process waits for at once.
const MOST_WAITING: usize = 32;
static WAITING: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(MOST_WAITING));

/// Why there is no attempt yet.
const WAITS: &str = "it waits behind the endpoint's breaker, limits or backlog: see the endpoint's health and the delivery";

/// What a test may take besides the request: to be found, and to be recorded.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// By then its request is on the wire and listed by its worker, or something holds it back.
const BEGUN: Duration = Duration::from_secs(5);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The body; all of it may be left out.
#[derive(ToSchema)]
#[schema(as = EndpointTest)]
#[expect(
    dead_code,
    reason = "the body is read field by field, to name what is wrong"
)]
struct TestRequest {
    /// What is sent. For a postback without one, every field of its templates is `test`.
    #[schema(required = false)]
    payload: Value,
}

/// The same, as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given<'a> {
    #[serde(borrow, default)]
    payload: Option<&'a RawValue>,
}

/// What came of a test: the attempt, and what it belongs to.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointTestSent)]
struct TestSent {
    #[schema(value_type = schema::EventId)]
    event_id: EventId,
    #[schema(value_type = schema::DeliveryId)]
    delivery_id: DeliveryId,
    #[serde(flatten)]
    attempt: Attempt,
}

/// A test that has not been sent yet.
#[derive(Serialize, ToSchema)]
#[schema(as = EndpointTestWaits)]
struct TestWaits {
    #[schema(value_type = schema::EventId)]
    event_id: EventId,
    #[schema(value_type = schema::DeliveryId)]
    delivery_id: DeliveryId,
    /// Why, and where to look.
    detail: &'static str,
}

/// Test an endpoint
///
/// Sends an event of the type `postrider.test` now and answers with the attempt. One attempt is made, whatever
/// comes of it: a test that fails is `cancelled`, never a dead letter.
#[utoipa::path(
    post, path = "/v1/endpoints/{id}/test", tag = "Endpoints", operation_id = "testEndpoint",
    security(("key" = ["endpoints:write"])),
    params(("id" = schema::EndpointId, Path, description = "The endpoint's id")),
    request_body(content = Option<TestRequest>, example = json!({"payload": {"hello": "receiver"}})),
    responses(
        (status = 200, description = "It was sent: the attempt", body = TestSent, example = json!(example::test_sent())),
        (status = 202, description = "It waits for its turn", body = TestWaits, example = json!({
            "event_id": example::EVENT, "delivery_id": example::DELIVERY, "detail": WAITS,
        })),
        Refused<(refused::Key, refused::Post, refused::Id, refused::Body, refused::State, refused::Queue)>,
    )
)]
pub(super) async fn send(
    app: App,
    request: HttpRequest,
    payload: Payload,
) -> Result<HttpResponse, ApiError> {
    let (caller, id) = endpoints::to_change(&app, &request).await?;
    let given = read(&app, &request, payload).await?;
    let _place = WAITING.try_acquire().map_err(|_all_taken| {
        ApiError::new(Kind::Overloaded, "too many tests are under way at once")
    })?;
    let published = publish(&app, caller.tenant, id, given);
    let (sent, longest) = app.connections.bounded(published).await?;
    let (event_id, delivery_id) = (EventId(sent.event), DeliveryId(sent.delivery));
    let attempt = attempt(&app, caller.tenant, sent, longest);
    let attempt = tokio::time::timeout(longest + patience::MARGIN, attempt).await;
    match attempt.map_err(|_elapsed| patience::too_late())?? {
        Some(attempt) => {
            let mut attempt = Attempt::new(attempt);
            if !caller.reads {
                attempt = attempt.without_what_readers_see();
            }
            let sent = TestSent {
                event_id,
                delivery_id,
                attempt,
            };
            let mut response = reply(StatusCode::OK, &sent)?;
            let shows = OfEvent(event_id.0);
            response.extensions_mut().insert(shows);
            Ok(response)
        }
        None => {
            let waits = TestWaits {
                event_id,
                delivery_id,
                detail: WAITS,
            };
            reply(StatusCode::ACCEPTED, &waits)
        }
    }
}

/// Makes the event; how long its attempt may take.
async fn publish(
    app: &App,
    tenant: TenantKey,
    id: EndpointId,
    given: Option<Vec<u8>>,
) -> Result<(TestSend, Duration), ApiError> {
    let mut client = app.client().await?;
    let found = endpoint_store::find(&**client, tenant, id.0).await?;
    let endpoint = found.ok_or_else(endpoints::missing)?;
    if endpoint.draft.state != EndpointState::Enabled {
        let detail = "the endpoint is disabled, and nothing is sent to it; enable it first";
        return Err(ApiError::new(Kind::Conflict, detail));
    }
    let body = match given {
        Some(body) => body,
        None => sample(&endpoint).to_string().into_bytes(),
    };
    let sent = store::publish(&mut client, tenant, &endpoint, &body).await?;
    Ok((sent, endpoint.draft.settings.timeout() + SLACK))
}

/// The payload that the caller gives, if any.
async fn read(
    app: &App,
    request: &HttpRequest,
    payload: Payload,
) -> Result<Option<Vec<u8>>, ApiError> {
    if !request.headers().contains_key("content-type") {
        return Ok(None);
    }
    let body = json::read(request, payload, app.config.max_payload).await?;
    if body.is_empty() {
        return Ok(None);
    }
    if body.trim_ascii_start().first() == Some(&b'[') {
        // serde would take a list for the field.
        Fields::parse(&body)?;
    }
    let given: Given<'_> = serde_json::from_slice(&body).map_err(|error| explain(&body, &error))?;
    let payload = given.payload.map(|raw| raw.get().as_bytes());
    if let Some(detail) = payload.and_then(too_deep) {
        return Err(ApiError::field(Kind::InvalidFields, "/payload", detail));
    }
    Ok(payload.map(<[u8]>::to_vec))
}

/// Why a body says nothing about a test.
fn explain(body: &[u8], error: &serde_json::Error) -> ApiError {
    if !error.is_data() {
        return json::malformed(error);
    }
    let named = Fields::parse(body).and_then(|mut fields| {
        fields.take("payload");
        fields.finish()
    });
    named.err().unwrap_or_else(|| json::malformed(error))
}

/// The first attempt, as soon as it is recorded.
async fn attempt(
    app: &App,
    tenant: TenantKey,
    sent: TestSend,
    longest: Duration,
) -> Result<Option<attempt_store::Attempt>, ApiError> {
    let began = boot_time();
    let mut begun = false;
    while boot_time().since(began) < longest {
        tokio::time::sleep(LOOK).await;
        let client = app.client().await?;
        if !begun && boot_time().since(began) > BEGUN {
            let found = delivery_store::by_ids(&**client, tenant, &[sent.delivery]).await?;
            begun = found.iter().any(|it| it.status == Status::InFlight);
            if !begun && found.iter().any(|it| !it.status.is_final()) {
                return Ok(None);
            }
        }
        let first = (i16::MAX, i64::MAX);
        let mut found = attempt_store::list(&**client, tenant, sent.delivery, first, 1).await?;
        if let Some(attempt) = found.pop() {
            return Ok(Some(attempt));
        }
    }
    Ok(None)
}

/// What is sent when nobody says what.
fn sample(endpoint: &Endpoint) -> Value {
    let draft = &endpoint.draft;
    let mut payload = json!({
        "message": "This is a test of your endpoint.",
        "endpoint_id": EndpointId(endpoint.id),
    });
    let url = UrlTemplate::parse(&draft.url, false).ok();
    let template = draft.settings.template.as_deref();
    let template = template.and_then(|text| Template::parse_form(text).ok());
    let fields = url.iter().flat_map(UrlTemplate::fields);
    let fields = fields.chain(template.iter().flat_map(Template::fields));
    for field in fields {
        if let Field::Payload(path) = field {
            put(&mut payload, path);
        }
    }
    payload
}

/// Makes a field, as far as what is there allows it.
fn put(payload: &mut Value, path: &FieldPath) {
    let mut place = payload;
    for step in path.steps() {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Some(inner) = place.as_object_mut() else {
            return;
        };
        place = inner.entry(step).or_insert(Value::Null);
    }
    if place.is_null() {
        *place = Value::from("test");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_every_field_of_a_template() {
        let mut payload = json!({"message": "m"});
        for path in ["click_id", "order.id", "order.lines.0.sku", "message"] {
            put(&mut payload, &path.parse().unwrap());
        }
        assert_eq!(
            payload,
            json!({"message": "m", "click_id": "test", "order": {"id": "test", "lines": {"0": {"sku": "test"}}}})
        );
    }
}
