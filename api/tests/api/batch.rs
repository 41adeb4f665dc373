//! `POST /v1/events/batch`.

use std::collections::HashSet;

use api::Config;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::EventId;
use shared::store::Session;
use shared::testing::TestDatabase;

use crate::app::{Reply, Server, Tenant, text, world};
use crate::proxy::Proxy;

const PATH: &str = "/v1/events/batch";

fn event(n: usize) -> Value {
    json!({"type": "a", "payload": n})
}

fn batch(events: impl IntoIterator<Item = Value>) -> Value {
    json!({"events": events.into_iter().collect::<Vec<_>>()})
}

async fn keyed(server: &Server, tenant: &Tenant<'_>, key: &str, body: &Value) -> Reply {
    let headers = [("Idempotency-Key", key)];
    let body = body.to_string();
    server
        .send(Method::POST, PATH, Some(&tenant.key), body, &headers)
        .await
}

async fn count(session: &Session, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    session.query_one(&count, &[]).await.unwrap().get(0)
}

fn ids(reply: &Value) -> Vec<String> {
    let items = reply["data"].as_array().unwrap();
    items.iter().map(|item| text(&item["id"])).collect()
}

#[tokio::test]
async fn each_event_of_a_batch_has_a_result_of_its_own_in_their_order() {
    // D1, D2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant.endpoint(json!({"event_types": ["a"]})).await;
    let events = [
        event(1),
        json!({"type": "b", "payload": null, "external_id": "x"}),
        json!({"type": "postrider.x", "payload": 1, "channels": [1]}),
        json!(7),
        json!({"type": "a", "payload": 2, "later": true}),
        event(3),
    ];

    let reply = tenant.post(PATH, &batch(events)).await.expect(200);

    let items = reply["data"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [202, 202, 422, 422, 422, 202]);
    assert_eq!(items[0]["type"], "a");
    assert_eq!(items[0]["delivery_count"], 1);
    assert_eq!(items[0]["deliveries"][0]["endpoint_id"], endpoint["id"]);
    assert_eq!(items[0]["deliveries"][0]["status"], "pending");
    assert_eq!(items[1]["external_id"], "x");
    assert_eq!(items[1]["deliveries"], json!([]));
    let pointers = |item: &Value| {
        let errors = item["problem"]["errors"].as_array().unwrap().clone();
        let pointers = errors.iter().map(|error| text(&error["pointer"]));
        pointers.collect::<HashSet<_>>()
    };
    let expected = ["/events/2/type", "/events/2/channels"].map(str::to_owned);
    assert_eq!(pointers(&items[2]), HashSet::from(expected));
    assert_eq!(pointers(&items[3]), HashSet::from(["/events/3".to_owned()]));
    assert_eq!(
        pointers(&items[4]),
        HashSet::from(["/events/4/later".to_owned()])
    );
    assert_eq!(
        items[4]["problem"]["type"],
        "urn:postrider:problem:invalid-fields"
    );
    assert_eq!(items[4]["problem"]["status"], 422);
    let session = database.session().await;
    assert_eq!(count(&session, "events").await, 3);
    assert_eq!(count(&session, "ready").await, 2);
}

#[tokio::test]
async fn payloads_of_a_batch_are_stored_byte_for_byte() {
    // P1
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let payloads = [
        r#"{ "b" : 1,"a":1.0,  "a":2e0, "nul":"\u0000", "lone":"\ud800", "é":"\u00e9" }"#,
        "null",
        "123456789012345678901234567890.000",
        "[ ]",
    ];
    let items: Vec<_> = payloads
        .iter()
        .map(|payload| format!("\n{{\"payload\":  {payload}  , \"type\":\"a\"}}"))
        .collect();
    let body = format!(" {{ \"events\" : [{}] }}", items.join(" ,"));

    let reply = server
        .send(Method::POST, PATH, Some(&tenant.key), body, &[])
        .await
        .expect(200);

    let session = database.session().await;
    for (id, payload) in ids(&reply).iter().zip(payloads) {
        let id = id.parse::<EventId>().unwrap().0;
        let row = session
            .query_one("SELECT payload FROM events WHERE id = $1", &[&id])
            .await
            .unwrap();
        assert_eq!(String::from_utf8(row.get(0)).unwrap(), payload);
    }
}

#[tokio::test]
async fn a_thousand_events_cost_few_commits() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    tenant.publishes("a", &json!(1)).await;
    let session = database.session().await;

    let reply = tenant
        .post(PATH, &batch((0..1_000).map(event)))
        .await
        .expect(200);

    let ids: HashSet<String> = ids(&reply).into_iter().collect();
    assert_eq!(ids.len(), 1_000);
    assert!(
        reply["data"]
            .as_array()
            .unwrap()
            .iter()
            .all(|item| item["status"] == 202)
    );
    assert_eq!(count(&session, "events").await, 1_001);
    assert_eq!(count(&session, "ready").await, 1_001);
    // Rows of one transaction have one xmin.
    let row = session
        .query_one("SELECT count(DISTINCT xmin::text) FROM events", &[])
        .await
        .unwrap();
    let commits: i64 = row.get(0);
    assert!(commits <= 1 + 8, "{commits}");
}

#[tokio::test]
async fn what_is_no_batch_is_refused_whole_and_by_name() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (body, pointer) in [
        (batch((0..1_001).map(event)), "/events"),
        (batch([]), "/events"),
        (json!({}), "/events"),
        (json!({"events": 1}), "/events"),
        (json!({"events": [], "more": 1}), "/more"),
        (json!([[]]), ""),
        (json!("x"), ""),
    ] {
        let problem = tenant
            .post(PATH, &body)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let send = async |body: String| {
        server
            .send(Method::POST, PATH, Some(&tenant.key), body, &[])
            .await
    };
    for broken in ["", "{", r#"{"events":[{]}"#, r#"{"events":[1,]}"#] {
        send(broken.to_owned()).await.problem(400, "malformed-json");
    }
    let large = json!({"events": [event(1)], "x": "x".repeat(8 << 20)});
    send(large.to_string())
        .await
        .problem(413, "payload-too-large");
    server
        .send(Method::GET, PATH, Some(&tenant.key), "", &[])
        .await
        .problem(405, "method-not-allowed");
    assert_eq!(count(&database.session().await, "events").await, 0);
}

#[tokio::test]
async fn a_payload_that_is_too_large_fails_alone() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let large = json!({"type": "a", "payload": "x".repeat(256 << 10)});

    let reply = tenant
        .post(PATH, &batch([event(1), large]))
        .await
        .expect(200);

    assert_eq!(reply["data"][0]["status"], 202);
    assert_eq!(reply["data"][1]["status"], 413);
    assert_eq!(
        reply["data"][1]["problem"]["type"],
        "urn:postrider:problem:payload-too-large"
    );
}

#[tokio::test]
async fn a_batch_without_room_is_refused_whole() {
    let database = TestDatabase::new().await;
    let config = Config::for_testing(database.database()).with_most_waiting(10);
    let server = Server::start_with(config).await;
    let tenant = server.tenant("acme").await;

    let reply = tenant.post(PATH, &batch((0..11).map(event))).await;
    assert_eq!(reply.header("retry-after"), "1");
    reply.problem(503, "overloaded");
    assert_eq!(count(&database.session().await, "events").await, 0);

    // The room was given back.
    tenant
        .post(PATH, &batch((0..10).map(event)))
        .await
        .expect(200);
    assert_eq!(count(&database.session().await, "events").await, 10);
}

#[tokio::test]
async fn a_key_covers_the_whole_batch_and_external_ids_each_event() {
    // F81 (a)
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    let events = || {
        (0..20).map(|n| json!({"type": "a", "payload": n, "external_id": format!("x{}", n % 10)}))
    };
    // The second half has the external ids of the first, for other events.
    let body = batch(events());

    let posts = (0..50).map(|n| {
        let server = if n % 2 == 0 { &one } else { &two };
        keyed(server, &tenant, "k", &body)
    });
    let replies: HashSet<Vec<u8>> = join_all(posts)
        .await
        .into_iter()
        .map(|reply| {
            assert_eq!(reply.status, 200);
            reply.bytes
        })
        .collect();

    assert_eq!(replies.len(), 1, "fifty equal replies");
    let reply: Value = serde_json::from_slice(replies.iter().next().unwrap()).unwrap();
    for (n, item) in reply["data"].as_array().unwrap().iter().enumerate() {
        if n < 10 {
            assert_eq!(item["status"], 202, "{item}");
        } else {
            assert_eq!(item["status"], 422, "{item}");
            assert_eq!(
                item["problem"]["type"],
                "urn:postrider:problem:idempotency-mismatch"
            );
        }
    }
    assert_eq!(count(&session, "events").await, 10);
    // Another body, longer or shorter, stores nothing.
    for other in [batch(events().skip(1)), batch((0..30).map(event))] {
        keyed(&one, &tenant, "k", &other)
            .await
            .problem(422, "idempotency-mismatch");
    }
    assert_eq!(count(&session, "events").await, 10);
    // The same events in another batch are the same events.
    let again = tenant
        .post(PATH, &batch(events().take(10).rev().collect::<Vec<_>>()))
        .await
        .expect(200);
    let mut again = ids(&again);
    again.reverse();
    let first: Vec<_> = reply["data"].as_array().unwrap()[..10]
        .iter()
        .map(|item| text(&item["id"]))
        .collect();
    assert_eq!(again, first);
}

#[tokio::test]
async fn a_batch_that_was_stored_by_half_is_completed_by_the_same_request() {
    // F81 (a): a crash in the middle.
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let body = batch((0..10).map(event));
    let first = keyed(&server, &tenant, "k", &body).await.expect(200);
    let session = database.session().await;
    // As if the process had died after the first commit.
    session
        .batch_execute(
            "DELETE FROM events WHERE payload >= '5'::bytea;
             DELETE FROM idempotency_keys k WHERE key LIKE 'b:%' AND NOT EXISTS (SELECT FROM events e WHERE e.id = k.event_id)",
        )
        .await
        .unwrap();
    assert_eq!(count(&session, "events").await, 5);

    let second = keyed(&server, &tenant, "k", &body).await.expect(200);

    assert_eq!(ids(&first)[..5], ids(&second)[..5]);
    assert_eq!(count(&session, "events").await, 10);
    assert_eq!(
        keyed(&server, &tenant, "k", &body).await.expect(200),
        second
    );
}

#[tokio::test]
async fn lost_acknowledgements_make_no_event_of_a_batch_twice() {
    // D2
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let server = Server::start(proxy.database.clone()).await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let (mut expected, mut all) = (0, HashSet::new());
    for round in 0..6 {
        proxy.swallow(2);
        while proxy.left() > 0 {
            let events = (0..700).map(|n| match round % 2 {
                0 => event(n),
                _ => json!({"type": "a", "payload": n, "external_id": format!("{round}-{n}-{expected}")}),
            });
            let reply = tenant.post(PATH, &batch(events)).await.expect(200);
            all.extend(ids(&reply));
            expected += 700;
        }
    }
    let session = database.session().await;
    assert_eq!(count(&session, "events").await, expected);
    assert_eq!(count(&session, "ready").await, expected);
    assert_eq!(i64::try_from(all.len()).unwrap(), expected);
}
