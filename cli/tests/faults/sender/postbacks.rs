//! Postbacks through the whole product: what a tracker gets, and what nobody is shown of it.

use serde_json::{Value, json};
use shared::ids::DeliveryId;
use shared::testing::TestDatabase;

use super::{question, verified};
use crate::endpoint::Endpoint;
use crate::receiver::{Answer, Arrival};
use crate::world::World;

const CLICK: &str = "click Zq/ü&=#?+%";
const ENCODED: &str = "click%20Zq%2F%C3%BC%26%3D%23%3F%2B%25";

fn payload() -> Value {
    json!({ "click_id": CLICK, "conversion": { "payout": 12.5, "ids": ["conv-1"] } })
}

async fn publish(world: &World, endpoint: &Endpoint, payload: &Value) -> String {
    let event = json!({ "type": endpoint.event_type, "payload": payload });
    let reply = world.ask("POST", "/v1/events", &event).await;
    reply["deliveries"][0]["id"].as_str().unwrap().to_owned()
}

fn arrival(world: &World, delivery: &str) -> Arrival {
    let id: DeliveryId = delivery.parse().unwrap();
    let mut found = world.receiver.all();
    found.retain(|arrival| arrival.delivery == id.0);
    assert_eq!(found.len(), 1, "one request for {delivery}");
    found.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tracker_gets_its_fields_in_the_url_or_in_a_form_signed_as_they_are_sent() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let url = |path: &str| world.receiver.url(path);
    let get = json!({ "kind": "postback", "url": url("/pb/{conversion.ids.0}?click_id={click_id}"), "template": "payout={conversion.payout}&e={$event_id}" });
    let get = world.endpoint("get", get).await;
    let form = json!({ "kind": "postback", "method": "POST", "url": url("/form"), "template": "click_id={click_id}&payout={conversion.payout}" });
    let form = world.endpoint("form", form).await;
    let put = json!({ "method": "PUT", "url": url("/put") });
    let put = world.endpoint("put", put).await;

    let mut sent = Vec::new();
    for endpoint in [&get, &form, &put] {
        sent.push(publish(&world, endpoint, &payload()).await);
    }
    world.finished(&[]).await;

    let arrived: Vec<Arrival> = sent.iter().map(|id| arrival(&world, id)).collect();
    let event = arrived[0].request.header("webhook-id").unwrap();
    assert_eq!(
        arrived[0].path,
        format!("/pb/conv-1?click_id={ENCODED}&payout=12.5&e={event}")
    );
    assert_eq!(arrived[0].request.body(), b"");
    assert_eq!(arrived[0].request.header("content-type"), None);
    let body = format!("click_id={ENCODED}&payout=12.5");
    assert_eq!(arrived[1].request.body(), body.as_bytes());
    assert_eq!(
        arrived[1].request.header("content-type").as_deref(),
        Some("application/x-www-form-urlencoded")
    );
    assert_eq!(arrived[2].request.body(), payload().to_string().as_bytes());
    let methods: Vec<String> = arrived.iter().map(|one| one.request.method()).collect();
    assert_eq!(methods, ["GET", "POST", "PUT"]);
    // P1: of a request without a body nothing is what was signed.
    let secrets = [&get.secret, &form.secret, &put.secret];
    let questions: Vec<_> = arrived
        .iter()
        .zip(secrets)
        .map(|(arrival, secret)| question(arrival, secret))
        .collect();
    verified(&questions);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_template_lacks_is_a_dead_letter_that_names_it_or_nothing_as_the_endpoint_chooses() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let postback = |choice: &str| {
        let url = world.receiver.url("/pb?a={click_id}&b={absent.id}");
        json!({ "kind": "postback", "url": url, "on_missing_field": choice })
    };
    let fails = world.endpoint("fails", postback("fail")).await;
    let empty = world.endpoint("empty", postback("empty")).await;

    let failed = publish(&world, &fails, &payload()).await;
    let sent = publish(&world, &empty, &payload()).await;
    world.finished(&[]).await;

    assert_eq!(arrival(&world, &sent).path, format!("/pb?a={ENCODED}&b="));
    let shown = world
        .ask("GET", &format!("/v1/deliveries/{failed}"), &Value::Null)
        .await;
    assert_eq!(shown["status"], "dead_letter");
    assert_eq!(shown["dead_letter_class"], "refused");
    let error = shown["last_error"].as_str().unwrap();
    assert!(error.contains("`absent.id`"), "{error}");
    assert_eq!(world.receiver.count(), 1, "nothing was sent for the other");
    let health = format!("/v1/endpoints/{}/health", fails.id);
    let health = world.ask("GET", &health, &Value::Null).await;
    assert_eq!(health["consecutive_failures"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_what_an_endpoint_hides_is_in_no_reply_and_no_row_whatever_its_receiver_says() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut worker = world.worker().await;
    let url = world.receiver.url("/pb?click_id={click_id}");
    let postback = json!({ "kind": "postback", "url": url, "max_attempts": 1, "redact": ["click_id", "conversion"] });
    let endpoint = world.endpoint("hides", postback).await;
    let echo = format!("unknown {CLICK} ({ENCODED}), payout 12.5 for conv-1");
    let path = format!("/pb?click_id={ENCODED}");
    let answer = Answer::now(422).body(echo.into_bytes());
    world.receiver.answers(&path, &[answer]);

    let delivery = publish(&world, &endpoint, &payload()).await;
    world.finished(&[]).await;

    let attempts = format!("/v1/deliveries/{delivery}/attempts");
    let attempts = world.ask("GET", &attempts, &Value::Null).await;
    let attempt = &attempts["data"][0];
    assert_eq!(attempt["response"], "unknown *** (***), payout *** for ***");
    assert_eq!(attempt["url"], url);
    let kept = "SELECT count(*) FROM attempts a WHERE a::text LIKE '%Zq%' OR convert_from(a.response, 'UTF8') LIKE '%Zq%'";
    assert_eq!(world.count(kept).await, 0);
    worker.process.signal(rustix::process::Signal::TERM);
    assert!(worker.process.ends().await.success());
    let log = worker.process.log();
    for hidden in ["Zq", ENCODED, "conv-1"] {
        assert!(!log.contains(hidden), "{hidden} is in the log");
    }
}
