//! F32: the headers of a repeated request are those of the first one, by whichever way it is repeated.

use rustix::process::Signal;
use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use super::{question, verified};
use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::{Answer, Arrival};
use crate::world::World;

/// What is another on each attempt.
const FRESH: [&str; 4] = [
    "webhook-timestamp",
    "webhook-signature",
    "postrider-attempt",
    "x-delivery-timestamp",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f32_every_repetition_has_the_headers_of_the_first_request_with_a_signature_of_its_own() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let mut worker = world.worker().await;
    let later = json!({ "base_seconds": 3_600, "max_seconds": 86_400 });
    let by_request = endpoint(&world, "by-request", later).await;
    let by_itself = endpoint(&world, "by-itself", quick()).await;
    let soon = Answer::now(503).with("retry-after: 5");
    let script = [Answer::now(503), soon, Answer::now(200)];
    world.receiver.answers(&by_itself.path, &script);
    world
        .receiver
        .answers(&by_request.path, &[Answer::now(503), Answer::now(200)]);

    // The second attempt comes by itself or is asked for, the third from another process.
    world.publish(&by_itself).await;
    world.publish(&by_request).await;
    arrived(&world, &by_request, 1).await;
    let waiting = format!(
        "/v1/deliveries/{}/retry",
        waiting(&world, &by_request).await
    );
    world.ask("POST", &waiting, &Value::Null).await;
    arrived(&world, &by_request, 2).await;
    arrived(&world, &by_itself, 2).await;
    worker.process.signal(Signal::TERM);
    assert!(worker.process.ends().await.success());
    let _next = world.worker().await;
    world.finished(&[]).await;

    assert_eq!(same_but_fresh(&world, &by_itself), [1, 2, 3]);
    assert_eq!(same_but_fresh(&world, &by_request), [1, 2]);
}

/// A replay is a delivery of its own: its id is another and its attempts begin at 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f32_a_replay_has_the_headers_and_the_webhook_id_of_the_first_request() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let mut settings = quick();
    settings["max_attempts"] = json!(1);
    let away = endpoint(&world, "away", settings).await;
    world.receiver.answers(&away.path, &[Answer::now(503)]);
    world.publish(&away).await;
    arrived(&world, &away, 1).await;
    world.receiver.answers(&away.path, &[Answer::now(200)]);
    eventually(PATIENCE, || async {
        let last = world.receiver.at(&away.path).pop()?;
        (last.status == 200).then_some(())
    })
    .await;
    world.finished(&[]).await;

    let arrivals = world.receiver.at(&away.path);
    let (first, last) = (&arrivals[0], &arrivals[arrivals.len() - 1]);
    assert_ne!(first.delivery, last.delivery);
    assert_eq!((first.attempt, last.attempt), (1, 1));
    assert_eq!(names(first), names(last));
    let own = |name: &str| !FRESH.contains(&name) && name != "postrider-delivery-id";
    assert_eq!(values(first, own), values(last, own));
    verified(&[first, last].map(|arrival| question(arrival, &away.secret)));
}

fn quick() -> Value {
    json!({
        "backoff": { "base_seconds": 1, "max_seconds": 1 },
        "breaker": { "failures": 4, "cooldown_seconds": 1, "max_cooldown_seconds": 1 },
    })
}

async fn endpoint(world: &World, name: &str, settings: Value) -> Endpoint {
    let mut document = settings;
    if document["backoff"].is_null() {
        document = json!({ "backoff": document });
    }
    document["headers"] = json!({ "authorization": "Bearer receiver", "X-Own": "a b" });
    world.endpoint(name, document).await
}

/// The id of its one delivery once that waits for its next attempt.
async fn waiting(world: &World, endpoint: &Endpoint) -> String {
    let list = format!("/v1/deliveries?status=failed&endpoint_id={}", endpoint.id);
    eventually(PATIENCE, || async {
        let found = world.ask("GET", &list, &Value::Null).await;
        found["data"][0]["id"].as_str().map(str::to_owned)
    })
    .await
}

async fn arrived(world: &World, endpoint: &Endpoint, count: usize) {
    eventually(PATIENCE, || async {
        (world.receiver.at(&endpoint.path).len() >= count).then_some(())
    })
    .await;
}

/// The numbers of its attempts, which are all of one delivery and alike but for what must be fresh.
fn same_but_fresh(world: &World, endpoint: &Endpoint) -> Vec<u16> {
    let arrivals = world.receiver.at(&endpoint.path);
    for pair in arrivals.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        assert_eq!(names(before), names(after));
        let lasting = |name: &str| !FRESH.contains(&name);
        assert_eq!(values(before, lasting), values(after, lasting));
        let instant = |it: &Arrival| it.request.header("x-delivery-timestamp").unwrap();
        assert!(instant(before) < instant(after));
    }
    let first = names(&arrivals[0]);
    for wanted in FRESH
        .iter()
        .chain(&["webhook-id", "authorization", "x-own"])
    {
        assert!(
            first.iter().any(|name| name == wanted),
            "{wanted} in {first:?}"
        );
    }
    let questions: Vec<_> = arrivals
        .iter()
        .map(|it| question(it, &endpoint.secret))
        .collect();
    verified(&questions);
    arrivals.iter().map(|it| it.attempt).collect()
}

fn names(arrival: &Arrival) -> Vec<String> {
    let headers = arrival.request.headers().into_iter();
    headers.map(|(name, _)| name.to_lowercase()).collect()
}

fn values(arrival: &Arrival, which: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut headers = arrival.request.headers();
    headers.retain(|(name, _)| which(&name.to_lowercase()));
    headers
}
