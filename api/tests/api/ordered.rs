//! Publishing in order: the order of the 202s per endpoint and key, whichever process answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};
use shared::domain::order::OrderKey;
use shared::ids::{EventId, TenantKey};
use shared::store::Session;
use shared::testing::TestDatabase;
use uuid::Uuid;

use crate::app::{Reply, Server, Tenant, text, world};
use crate::proxy::Proxy;

/// Makes the tenant's endpoints ordered, or not.
async fn set_ordered(session: &Session, ordered: bool) {
    session
        .batch_execute(&format!(
            "BEGIN; UPDATE endpoints SET ordered = {ordered};
             UPDATE tenants SET config_version = config_version + 1; COMMIT"
        ))
        .await
        .unwrap();
}

async fn publish(server: &Server, tenant: &Tenant<'_>, key: &str, payload: Value) -> Reply {
    let event = json!({"type": "a", "payload": payload, "ordering_key": key});
    server.post("/v1/events", &tenant.key, &event).await
}

async fn accepted(server: &Server, tenant: &Tenant<'_>, key: &str, payload: Value) -> Uuid {
    let event = publish(server, tenant, key, payload).await.expect(202);
    text(&event["id"]).parse::<EventId>().unwrap().0
}

/// Events of `ready_ordered`, by key, in the order in which they are to be sent.
async fn lines(session: &Session) -> HashMap<i64, Vec<Uuid>> {
    let rows = session
        .query(
            "SELECT order_key, event_id FROM ready_ordered ORDER BY order_seq",
            &[],
        )
        .await
        .unwrap();
    let mut lines: HashMap<i64, Vec<Uuid>> = HashMap::new();
    for row in rows {
        lines.entry(row.get(0)).or_default().push(row.get(1));
    }
    lines
}

async fn counts(session: &Session) -> [i64; 4] {
    let row = session
        .query_one(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM ready),
                    (SELECT count(*) FROM ready_ordered), (SELECT count(*) FROM closed)",
            &[],
        )
        .await
        .unwrap();
    [0, 1, 2, 3].map(|column| row.get(column))
}

#[tokio::test]
async fn a_client_that_alternates_between_two_processes_keeps_its_order() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    set_ordered(&session, true).await;

    let mut order = Vec::new();
    for n in 0..200 {
        let server = if n % 2 == 0 { &one } else { &two };
        order.push(accepted(server, &tenant, "order-1", json!(n)).await);
    }

    let lines = lines(&session).await;
    assert_eq!(lines.len(), 1);
    assert_eq!(lines.values().next().unwrap(), &order);
    let same = "SELECT count(*) FROM ready_ordered r JOIN events e ON e.id = r.event_id
                WHERE e.order_key = r.order_key AND e.order_seq = r.order_seq";
    let row = session.query_one(same, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 200, "the event knows its place");
}

#[tokio::test]
async fn sixteen_clients_with_keys_in_common_are_all_accepted_in_their_order_without_deadlock() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    set_ordered(&session, true).await;

    // Client c uses keys c, c + 1, … modulo 7, alternating between the processes.
    let client = async |c: usize| {
        let mut order: HashMap<usize, Vec<Uuid>> = HashMap::new();
        for n in 0..40 {
            let key = (c + n) % 7;
            let server = if (c + n).is_multiple_of(2) {
                &one
            } else {
                &two
            };
            let id = accepted(server, &tenant, &key.to_string(), json!([c, n])).await;
            order.entry(key).or_default().push(id);
        }
        order
    };
    let orders = futures_util::future::join_all((0..16).map(client)).await;

    let lines = lines(&session).await;
    assert_eq!(lines.values().map(Vec::len).sum::<usize>(), 16 * 40);
    let row = session
        .query_one("SELECT id FROM tenants", &[])
        .await
        .unwrap();
    let number = TenantKey(row.get(0));
    for (key, order) in orders.into_iter().flatten() {
        let line = &lines[&OrderKey::new(number, &key.to_string()).0];
        let places: Vec<_> = order
            .iter()
            .map(|id| line.iter().position(|other| other == id).unwrap())
            .collect();
        assert!(places.is_sorted(), "key {key}: {places:?}");
    }
    let row = session
        .query_one(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn only_deliveries_to_ordered_endpoints_of_events_with_a_key_stand_in_line() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let ordered = tenant.endpoint(json!({})).await;
    let session = database.session().await;
    set_ordered(&session, true).await;
    tenant.endpoint(json!({})).await;
    tenant.endpoint(json!({"enabled": false})).await;
    let before = "2099-01-01T00:00:00Z";
    let event = json!({"type": "a", "payload": 1, "deliver_before": before});

    tenant.post("/v1/events", &event).await.expect(202);
    assert_eq!(counts(&session).await, [1, 2, 0, 1]);
    let mut event = event;
    event["ordering_key"] = json!("k");
    let accepted = tenant.post("/v1/events", &event).await.expect(202);

    assert_eq!(counts(&session).await, [2, 3, 1, 2]);
    assert_eq!(accepted["delivery_count"], 3);
    let row = session
        .query_one(
            "SELECT e.public_id, (SELECT count(*) FROM ready WHERE deliver_before = $1::text::timestamptz),
                    (SELECT count(*) FROM ready_ordered WHERE deliver_before = $1::text::timestamptz)
             FROM ready_ordered r JOIN endpoints e ON e.id = r.endpoint_id",
            &[&before],
        )
        .await
        .unwrap();
    let endpoint = shared::ids::EndpointId(row.get(0)).to_string();
    assert_eq!(endpoint, text(&ordered["id"]));
    assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (3, 1));
}

#[tokio::test]
async fn a_key_means_nothing_while_no_endpoint_asks_for_order_and_much_from_then_on() {
    // Either writer learns of a change that the other saw first.
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    let mut expected = [0, 0, 0, 0];
    for round in 0..6 {
        for key in 0..3 {
            accepted(&server, &tenant, &key.to_string(), json!(round)).await;
        }
        expected[0] += 3;
        expected[if round % 2 == 0 { 1 } else { 2 }] += 3;
        assert_eq!(counts(&session).await, expected);
        // The plain writer learns of the change first, then the ordered one, or the other way round.
        set_ordered(&session, round % 2 == 0).await;
        if round < 3 {
            tenant.publishes("a", &json!(round)).await;
            expected[0] += 1;
            expected[1] += 1;
        }
    }
    let keys = "SELECT count(*) FROM events WHERE (order_key IS NULL) <> (order_seq IS NULL)";
    let row = session.query_one(keys, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_lost_acknowledgement_neither_doubles_nor_reorders() {
    // D2
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let (one, two) = (
        Server::start(proxy.database.clone()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    set_ordered(&session, true).await;
    let mut order = vec![accepted(&one, &tenant, "k", json!("first")).await];
    for _ in 0..10 {
        proxy.swallow(1);
        // Until the acknowledgement of one was lost on the way: it may be that of another statement.
        while proxy.left() > 0 {
            order.push(accepted(&one, &tenant, "k", json!(order.len())).await);
            order.push(accepted(&two, &tenant, "k", json!(order.len())).await);
        }
    }

    let lines = lines(&session).await;
    assert_eq!(lines.values().next().unwrap(), &order);
    let all = i64::try_from(order.len()).unwrap();
    assert_eq!(counts(&session).await, [all, 0, all, 0]);
}

#[tokio::test]
async fn one_bad_row_never_fails_its_batch_nor_the_order_of_the_others() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let session = database.session().await;
    set_ordered(&session, true).await;
    session
        .batch_execute(
            "ALTER TABLE events ADD CONSTRAINT no_poison CHECK (payload <> '\"poison\"'::bytea)",
        )
        .await
        .unwrap();
    let refused = AtomicUsize::new(0);
    // Each client waits for its answers, all share their batches.
    let client = async |c: usize| {
        let mut order = Vec::new();
        for n in 0..10 {
            let (server, key) = (&server, c.to_string());
            if (c + n) % 10 == 7 {
                let reply = publish(server, &tenant, &key, json!("poison")).await;
                reply.problem(422, "not-storable");
                refused.fetch_add(1, Ordering::Relaxed);
            } else {
                order.push(accepted(server, &tenant, &key, json!([c, n])).await);
            }
        }
        order
    };

    let mut orders = futures_util::future::join_all((0..20).map(client)).await;

    assert_eq!(refused.into_inner(), 20);
    let mut stored: Vec<_> = lines(&session).await.into_values().collect();
    stored.sort();
    orders.sort();
    assert_eq!(stored, orders);
}

#[tokio::test]
async fn what_is_no_ordering_key_is_named_and_not_repeated() {
    // S2
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for key in [
        json!(""),
        json!("a\u{7}secret"),
        json!("x".repeat(129)),
        json!(7),
    ] {
        let event = json!({"type": "a", "payload": 1, "ordering_key": key});

        let reply = tenant.post("/v1/events", &event).await;

        assert!(!String::from_utf8_lossy(&reply.bytes).contains("secret"));
        let problem = reply.problem(422, "invalid-fields");
        assert_eq!(
            problem["errors"][0]["pointer"], "/ordering_key",
            "{problem}"
        );
    }
    let none = r#"{"type": "a", "payload": 1, "ordering_key": null}"#;
    server
        .send(Method::POST, "/v1/events", Some(&tenant.key), none, &[])
        .await
        .expect(202);
}
