//! What tenants are told about their endpoints (field report F51), through the product itself: once, with
//! its context, to those who ask and never to the endpoint that it is about; and a receiver of notices that
//! fails holds up nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use crate::process::PATIENCE;
use crate::receiver::Answer;
use crate::world::World;

/// The notices at this path about this endpoint, oldest first: kind and body.
fn notices(world: &World, path: &str, about: &str) -> Vec<(String, Value)> {
    let read = |arrival: &crate::receiver::Arrival| {
        let kind = arrival.request.header("postrider-event-type")?;
        let kind = kind.strip_prefix("postrider.")?.to_owned();
        let body: Value = serde_json::from_slice(arrival.request.body()).unwrap();
        (body["endpoint_id"] == about).then_some((kind, body))
    };
    world.receiver.at(path).iter().filter_map(read).collect()
}

/// Waits for a notice of this kind; its body.
async fn told(world: &World, path: &str, about: &str, kind: &str) -> Value {
    eventually(PATIENCE, || async {
        let found = notices(world, path, about);
        found.into_iter().find(|it| it.0 == kind).map(|it| it.1)
    })
    .await
}

/// Each notice that was told goes to no endpoint that it is about, and each is told once.
async fn none_to_itself_and_none_twice(world: &World) {
    let events = "
        SELECT (SELECT e.id FROM endpoints e WHERE e.id = n.endpoint_id) = ANY (v.fan_endpoint), n.endpoint_id, n.kind
        FROM notices n JOIN events v ON v.id = n.event_id";
    let rows = world.sql().await.query(events, &[]).await.unwrap();
    assert!(!rows.is_empty());
    let mut times = BTreeMap::new();
    for row in rows {
        assert!(!row.get::<_, bool>(0), "told about itself");
        let key = (row.get::<_, i64>(1), row.get::<_, i16>(2));
        *times.entry(key).or_insert(0) += 1;
    }
    // Twice where the test ran across the edge of a window.
    assert!(times.values().all(|times| *times <= 2), "{times:?}");
}

/// A storm of dead letters is one notice; an outage is told when it begins and when it is over. Of three
/// who subscribe, one fails on every notice and one is the failing endpoint itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_is_told_once_and_an_outage_at_its_beginning_and_end() {
    const STORM: usize = 400;
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let listener = world.endpoint("postrider.*", json!({})).await;
    let subscribe = async |path: &str, types: Value| {
        let document = json!({
            "url": world.receiver.url(path), "event_types": types, "max_attempts": 2,
            "backoff": { "base_seconds": 1, "max_seconds": 1 },
            "breaker": { "failures": 4, "cooldown_seconds": 1, "max_cooldown_seconds": 1 },
        });
        let made = world.ask("POST", "/v1/endpoints", &document).await;
        made["id"].as_str().unwrap().to_owned()
    };
    world.receiver.answers("/broken", &[Answer::now(500)]);
    let broken = subscribe("/broken", json!(["postrider.*"])).await;
    world.receiver.answers("/storm", &[Answer::now(422)]);
    let storm = subscribe("/storm", json!(["storm", "postrider.*"])).await;
    world.receiver.answers("/shaky", &[Answer::now(503)]);
    let shaky = subscribe("/shaky", json!(["shaky"])).await;

    let event = |kind: &str| json!({ "type": kind, "payload": {} });
    for _ in 0..STORM {
        world.ask("POST", "/v1/events", &event("storm")).await;
    }
    let dead = "SELECT count(*) FROM dead_letters d JOIN endpoints e ON e.id = d.endpoint_id
        WHERE d.kind = 0 AND d.class = 3 AND e.url LIKE '%/storm'";
    let all = i64::try_from(STORM).unwrap();
    eventually(PATIENCE, || async {
        (world.count(dead).await == all).then_some(())
    })
    .await;
    let notice = told(&world, &listener.path, &storm, "delivery.dead_letter").await;
    assert_eq!(notice["last_status_code"], 422);
    assert_eq!(notice["url_host"], "127.0.0.1");
    assert!(notice["failing_since"].is_string() && notice["failed_attempts"].is_number());
    for words in ["reason", "next"] {
        assert!(notice[words].as_str().unwrap().len() > 20, "{notice}");
    }

    for _ in 0..8 {
        world.ask("POST", "/v1/events", &event("shaky")).await;
    }
    let opened = told(&world, &listener.path, &shaky, "endpoint.opened").await;
    assert_eq!(opened["last_outcome"], "transient");
    assert!(opened["next_probe_at"].is_string());
    let died = "SELECT count(*) FROM dead_letters d JOIN endpoints e ON e.id = d.endpoint_id
        WHERE d.kind = 0 AND e.url LIKE '%/shaky'";
    eventually(PATIENCE, || async {
        (world.count(died).await > 0).then_some(())
    })
    .await;
    world.receiver.answers("/shaky", &[Answer::now(200)]);
    told(&world, &listener.path, &shaky, "endpoint.closed").await;
    told(&world, &listener.path, &shaky, "delivery.recovered").await;

    let fails = "SELECT count(*) FROM endpoint_runtime r JOIN endpoints e ON e.id = r.endpoint_id
        WHERE r.breaker = 1 AND e.url LIKE '%/broken'";
    eventually(PATIENCE, || async {
        (world.count(fails).await == 1).then_some(())
    })
    .await;
    let once = |about: &str, kind: &str| {
        let found = notices(&world, &listener.path, about);
        assert_eq!(found.iter().filter(|it| it.0 == kind).count(), 1, "{kind}");
    };
    once(&storm, "delivery.dead_letter");
    once(&shaky, "endpoint.opened");
    once(&shaky, "endpoint.closed");
    let about_notices = notices(&world, &listener.path, &broken);
    assert!(about_notices.is_empty(), "told of a notice that failed");
    none_to_itself_and_none_twice(&world).await;
}

/// F42: a receiver that is gone is disabled at its first 410, with a reason, and its tenant told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_a_410_disabled_is_told_about_once() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _workers = world.workers(1).await;
    let listener = world.endpoint("postrider.*", json!({})).await;
    let gone = world.endpoint("gone", json!({})).await;
    let slowly = Answer::late(Duration::from_secs(1)).status(410);
    world.receiver.answers("/gone", &[slowly]);

    for _ in 0..5 {
        world.publish(&gone).await;
    }
    let notice = told(&world, &listener.path, &gone.id, "endpoint.disabled").await;
    world.finished(&[]).await;

    assert_eq!(notice["last_outcome"], "gone");
    assert_eq!(notice["last_status_code"], 410);
    assert!(
        notice["reason"].as_str().unwrap().contains("410"),
        "{notice}"
    );
    let told = notices(&world, &listener.path, &gone.id);
    assert_eq!(told.len(), 1, "{told:?}");
    let reason = "SELECT count(*) FROM endpoints WHERE state = 2 AND state_reason LIKE '%410%'";
    assert_eq!(world.count(reason).await, 1);
}
