//! Events that happen once: `Idempotency-Key` and `external_id`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use shared::store::Session;
use shared::testing::TestDatabase;

use crate::app::{Reply, Server, Tenant, text, world};
use crate::proxy::Proxy;

async fn keyed(server: &Server, tenant: &Tenant<'_>, key: &str, body: &str) -> Reply {
    let headers = [("Idempotency-Key", key)];
    let body = body.to_owned();
    server
        .send(
            Method::POST,
            "/v1/events",
            Some(&tenant.key),
            body,
            &headers,
        )
        .await
}

fn event(n: usize) -> String {
    json!({"type": "a", "payload": n}).to_string()
}

async fn count(session: &Session, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    session.query_one(&count, &[]).await.unwrap().get(0)
}

async fn pair(database: &TestDatabase) -> (Server, Server) {
    (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    )
}

#[tokio::test]
async fn fifty_parallel_posts_of_one_key_to_two_processes_make_one_event_and_fifty_equal_replies() {
    // F81 (a)
    let database = TestDatabase::new().await;
    let (one, two) = pair(&database).await;
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    tenant.endpoint(json!({"enabled": false})).await;
    let session = database.session().await;
    for round in 0..10 {
        let body = match round % 3 {
            0 => event(round),
            1 => json!({"type": "a", "payload": round, "external_id": format!("x{round}")})
                .to_string(),
            _ => json!({"type": "a", "payload": round, "ordering_key": "k"}).to_string(),
        };
        let key = format!("key-{round}");

        let posts = (0..50).map(|n| {
            let server = if n % 2 == 0 { &one } else { &two };
            keyed(server, &tenant, &key, &body)
        });
        let replies = join_all(posts).await;

        let mut bodies = HashSet::new();
        for reply in replies {
            assert_eq!(reply.status, 202, "{}", reply.json());
            bodies.insert(reply.bytes);
        }
        assert_eq!(bodies.len(), 1, "one reply");
        let again = keyed(&two, &tenant, &key, &body).await;
        assert!(bodies.contains(&again.bytes), "the same later");
        assert_eq!(again.json()["delivery_count"], 2);
        assert_eq!(
            count(&session, "events").await,
            i64::try_from(round + 1).unwrap()
        );
    }
    assert_eq!(count(&session, "ready").await, 10);
    assert_eq!(count(&session, "closed").await, 10);
}

#[tokio::test]
async fn fifty_parallel_posts_of_one_external_id_make_one_event_however_the_envelope_is_written() {
    // F81 (a)
    let database = TestDatabase::new().await;
    let (one, two) = pair(&database).await;
    let tenant = one.tenant("acme").await;
    let bodies = [
        r#"{"type":"a","payload":{"n": 1},"external_id":"order-1","channels":["eu"]}"#,
        r#"{ "external_id" : "order-1", "channels":["eu"], "payload":{"n": 1}, "type" : "a" }"#,
    ];

    let posts = (0..50).map(|n| {
        let server = if n % 2 == 0 { &one } else { &two };
        let body = bodies[n / 2 % 2].to_owned();
        server.send(Method::POST, "/v1/events", Some(&tenant.key), body, &[])
    });
    let replies: HashSet<Vec<u8>> = join_all(posts)
        .await
        .into_iter()
        .map(|reply| {
            assert_eq!(reply.json()["external_id"], "order-1");
            assert_eq!(reply.status, 202);
            reply.bytes
        })
        .collect();

    assert_eq!(replies.len(), 1);
    assert_eq!(count(&database.session().await, "events").await, 1);
}

#[tokio::test]
async fn the_same_key_with_another_body_is_a_mismatch_and_stores_nothing() {
    // F81 (a)
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    keyed(&server, &tenant, "k", &event(1)).await.expect(202);

    let problem = keyed(&server, &tenant, "k", &event(2))
        .await
        .problem(422, "idempotency-mismatch");
    assert!(text(&problem["detail"]).contains("Idempotency-Key"));

    let first = json!({"type": "a", "payload": 1, "external_id": "x"});
    tenant.post("/v1/events", &first).await.expect(202);
    for (field, value) in [
        ("payload", json!(2)),
        ("type", json!("b")),
        ("channels", json!(["eu"])),
        ("ordering_key", json!("k")),
        ("deliver_before", json!("2999-01-01T00:00:00Z")),
    ] {
        let mut other = first.clone();
        other[field] = value;
        let problem = tenant
            .post("/v1/events", &other)
            .await
            .problem(422, "idempotency-mismatch");
        assert_eq!(problem["errors"][0]["pointer"], "/external_id", "{field}");
        // A key that came with it was not used up.
        let key = format!("unused-{field}");
        keyed(&server, &tenant, &key, &other.to_string())
            .await
            .problem(422, "idempotency-mismatch");
        keyed(&server, &tenant, &key, &event(3)).await.expect(202);
    }
    assert_eq!(count(&session, "events").await, 2 + 5);
}

#[tokio::test]
async fn keys_external_ids_and_tenants_are_name_spaces_of_their_own() {
    // S3
    let (database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("globex").await);
    let plain = json!({"type": "a", "payload": 1});
    let with_id = json!({"type": "a", "payload": 1, "external_id": "a"});

    let mut ids = HashSet::new();
    for tenant in [&tenant, &other] {
        let keyed = keyed(&server, tenant, "a", &plain.to_string()).await;
        ids.insert(text(&keyed.expect(202)["id"]));
        let named = tenant.post("/v1/events", &with_id).await;
        ids.insert(text(&named.expect(202)["id"]));
        ids.insert(text(
            &tenant.post("/v1/events", &plain).await.expect(202)["id"],
        ));
    }

    assert_eq!(ids.len(), 6, "nothing in common");
    assert_eq!(count(&database.session().await, "events").await, 6);
}

#[tokio::test]
async fn an_event_with_key_and_external_id_is_found_by_either() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let body = json!({"type": "a", "payload": 1, "external_id": "x"}).to_string();
    let first = tenant
        .post("/v1/events", &serde_json::from_str(&body).unwrap())
        .await
        .expect(202);

    // Known by its external id only; the key then stands for it too.
    assert_eq!(keyed(&server, &tenant, "k", &body).await.expect(202), first);
    let session = database.session().await;
    session
        .execute("DELETE FROM idempotency_keys WHERE key = 'x:x'", &[])
        .await
        .unwrap();
    assert_eq!(keyed(&server, &tenant, "k", &body).await.expect(202), first);
    assert_eq!(count(&session, "events").await, 1);
}

#[tokio::test]
async fn a_key_is_forgotten_after_24_hours() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let first = keyed(&server, &tenant, "k", &event(1)).await.expect(202);
    let session = database.session().await;
    let row = session
        .query_one(
            "SELECT extract(epoch FROM expires_at - now())::float8 FROM idempotency_keys",
            &[],
        )
        .await
        .unwrap();
    let seconds: f64 = row.get(0);
    assert!((86_300.0..=86_400.0).contains(&seconds), "{seconds}");
    session
        .execute("UPDATE idempotency_keys SET expires_at = now()", &[])
        .await
        .unwrap();

    let second = keyed(&server, &tenant, "k", &event(2)).await.expect(202);

    assert_ne!(first["id"], second["id"]);
    assert_eq!(
        keyed(&server, &tenant, "k", &event(2)).await.expect(202),
        second
    );
    keyed(&server, &tenant, "k", &event(1))
        .await
        .problem(422, "idempotency-mismatch");
}

#[tokio::test]
async fn the_reply_is_the_same_whatever_became_of_the_deliveries_and_endpoints() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    tenant.endpoint(json!({"enabled": false})).await;
    let first = keyed(&server, &tenant, "k", &event(1)).await.expect(202);
    let cancelled = first["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .find(|delivery| delivery["status"] == "pending")
        .unwrap();
    let path = format!("/v1/deliveries/{}/cancel", text(&cancelled["id"]));
    tenant.post(&path, &json!({})).await.expect(200);
    let path = format!("/v1/endpoints/{endpoint}");
    server.delete(&path, &tenant.key).await.expect(204);
    tenant.endpoint(json!({})).await;

    let again = keyed(&server, &tenant, "k", &event(1)).await.expect(202);

    assert_eq!(again, first);
    assert_eq!(count(&database.session().await, "events").await, 1);
}

#[tokio::test]
async fn keys_shared_by_many_clients_in_any_order_end_without_deadlock() {
    let database = TestDatabase::new().await;
    let (one, two) = pair(&database).await;
    let tenant = one.tenant("acme").await;
    let client = async |c: usize| {
        let mut ids = Vec::new();
        for n in 0..30 {
            // Each client walks the same keys in its own direction.
            let n = if c.is_multiple_of(2) { n } else { 29 - n };
            let server = if c.is_multiple_of(3) { &one } else { &two };
            let body = json!({"type": "a", "payload": n, "external_id": format!("x{n}")});
            let reply = keyed(server, &tenant, &format!("k{n}"), &body.to_string()).await;
            ids.push(text(&reply.expect(202)["id"]));
        }
        ids.into_iter().collect::<HashSet<_>>()
    };

    let ids = join_all((0..12).map(client)).await;

    assert!(
        ids.iter()
            .all(|these| *these == ids[0] && these.len() == 30)
    );
    let session = database.session().await;
    assert_eq!(count(&session, "events").await, 30);
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
async fn a_lost_acknowledgement_makes_no_second_event_of_a_key() {
    // D2, F81 (a)
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let server = Server::start(proxy.database.clone()).await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let mut n = 0;
    for _ in 0..10 {
        proxy.swallow(1);
        while proxy.left() > 0 {
            let body = json!({"type": "a", "payload": n, "external_id": format!("x{n}")});
            let key = format!("k{n}");
            let first = keyed(&server, &tenant, &key, &body.to_string())
                .await
                .expect(202);
            assert_eq!(first["delivery_count"], 1);
            let again = keyed(&server, &tenant, &key, &body.to_string())
                .await
                .expect(202);
            assert_eq!(again, first);
            n += 1;
        }
    }
    let session = database.session().await;
    assert_eq!(count(&session, "events").await, n);
    assert_eq!(count(&session, "ready").await, n);
    assert_eq!(count(&session, "idempotency_keys").await, 2 * n);
}

#[tokio::test]
async fn a_writer_that_is_killed_anywhere_leaves_no_key_without_its_event() {
    // D1, F81 (a): the key and the event commit together.
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    let finished = AtomicBool::new(false);
    let cuts = async {
        let mut cut = 0;
        while cut < 15 {
            cut += session
                .execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'postrider-api'
                       AND state <> 'idle' AND query LIKE '%idempotency_keys%'",
                    &[],
                )
                .await
                .unwrap();
        }
        finished.store(true, Ordering::SeqCst);
    };
    let post = async |client: usize| {
        let mut accepted = Vec::new();
        while !finished.load(Ordering::SeqCst) {
            let n = accepted.len();
            let reply = keyed(&server, &tenant, &format!("{client}-{n}"), &event(n)).await;
            accepted.push(text(&reply.expect(202)["id"]));
        }
        accepted
    };

    let (accepted, ()) = tokio::join!(join_all((0..20).map(post)), cuts);

    let total = i64::try_from(accepted.iter().map(Vec::len).sum::<usize>()).unwrap();
    assert_eq!(count(&session, "events").await, total);
    assert_eq!(count(&session, "idempotency_keys").await, total);
    let whole =
        "idempotency_keys k JOIN events e ON e.id = k.event_id AND e.tenant_id = k.tenant_id";
    assert_eq!(count(&session, whole).await, total);
    for (client, ids) in accepted.iter().enumerate() {
        for (n, id) in ids.iter().enumerate().take(5) {
            let again = keyed(&server, &tenant, &format!("{client}-{n}"), &event(n)).await;
            assert_eq!(text(&again.expect(202)["id"]), *id);
        }
    }
}

#[tokio::test]
async fn an_ordered_event_with_a_key_happens_once_and_in_its_order() {
    let database = TestDatabase::new().await;
    let (one, two) = pair(&database).await;
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({"ordered": true})).await;
    let session = database.session().await;
    let mut order = Vec::new();
    for n in 0..40 {
        let body =
            json!({"type": "a", "payload": n, "ordering_key": "o", "external_id": format!("x{n}")});
        let (body, key) = (body.to_string(), format!("k{n}"));
        let (a, b, c) = tokio::join!(
            keyed(&one, &tenant, &key, &body),
            keyed(&two, &tenant, &key, &body),
            keyed(&one, &tenant, &key, &body),
        );
        let id = text(&a.expect(202)["id"]);
        assert_eq!(text(&b.expect(202)["id"]), id);
        assert_eq!(text(&c.expect(202)["id"]), id);
        order.push(id);
    }

    let rows = session
        .query("SELECT event_id FROM ready_ordered ORDER BY order_seq", &[])
        .await
        .unwrap();
    let lined_up: Vec<_> = rows
        .iter()
        .map(|row| shared::ids::EventId(row.get(0)).to_string())
        .collect();
    assert_eq!(lined_up, order);
}

#[tokio::test]
async fn endpoints_that_change_meanwhile_leave_no_claim_behind() {
    // The plan of a keyed event is outdated: nothing of it may stay, or its retry would find itself.
    let database = TestDatabase::new().await;
    let (one, two) = pair(&database).await;
    let tenant = one.tenant("acme").await;
    for n in 0..20 {
        // The other process changes the configuration; this one still has the old one.
        two.post(
            "/v1/endpoints",
            &tenant.key,
            &json!({"url": "http://127.0.0.1/hook"}),
        )
        .await
        .expect(201);
        let reply = keyed(&one, &tenant, &format!("k{n}"), &event(n))
            .await
            .expect(202);
        assert_eq!(reply["delivery_count"], n + 1);
    }
    let session = database.session().await;
    assert_eq!(count(&session, "events").await, 20);
    assert_eq!(count(&session, "idempotency_keys").await, 20);
}

#[tokio::test]
async fn a_bad_event_fails_alone_and_uses_no_key_up() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let session = database.session().await;
    session
        .batch_execute(
            "ALTER TABLE events ADD CONSTRAINT no_poison CHECK (payload <> '\"poison\"'::bytea)",
        )
        .await
        .unwrap();
    let poison = json!({"type": "a", "payload": "poison"}).to_string();

    let posts = (0..100).map(|n| {
        let body = if n % 25 == 7 {
            poison.clone()
        } else {
            event(n)
        };
        let (server, tenant) = (&server, &tenant);
        async move { keyed(server, tenant, &format!("k{n}"), &body).await }
    });
    let replies = join_all(posts).await;

    for (n, reply) in replies.into_iter().enumerate() {
        if n % 25 == 7 {
            reply.problem(422, "not-storable");
        } else {
            reply.expect(202);
        }
    }
    assert_eq!(count(&session, "events").await, 96);
    assert_eq!(count(&session, "idempotency_keys").await, 96);
    keyed(&server, &tenant, "k7", &event(7)).await.expect(202);
}

#[tokio::test]
async fn keys_and_external_ids_that_are_not_legal_are_refused_by_name() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for key in ["", &"x".repeat(256)] {
        keyed(&server, &tenant, key, &event(1))
            .await
            .problem(400, "invalid-parameter");
    }
    for wrong in [json!(""), json!("x".repeat(129)), json!("a\u{0}"), json!(1)] {
        let body = json!({"type": "a", "payload": 1, "external_id": wrong});
        let problem = tenant
            .post("/v1/events", &body)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], "/external_id");
    }
    let longest = "é".repeat(128);
    let body = json!({"type": "a", "payload": 1, "external_id": longest});
    let event = tenant.post("/v1/events", &body).await.expect(202);
    assert_eq!(event["external_id"], longest);
    let absent = json!({"type": "a", "payload": 1, "external_id": null});
    let event = tenant.post("/v1/events", &absent).await.expect(202);
    assert_eq!(event["external_id"], Value::Null);
}

#[tokio::test]
async fn an_external_id_is_shown_and_a_filter_of_its_tenant_only() {
    // S3
    let (_database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("globex").await);
    let body = json!({"type": "a.b", "payload": 1, "external_id": "order 1/é"});
    let made = tenant.post("/v1/events", &body).await.expect(202);
    tenant.publishes("a.b", &json!(2)).await;
    let filter = "external_id=order%201%2F%C3%A9";

    let found = tenant
        .get(&format!("/v1/events?{filter}"))
        .await
        .expect(200);
    assert_eq!(found["data"].as_array().unwrap().len(), 1);
    assert_eq!(found["data"][0]["id"], made["id"]);
    assert_eq!(found["data"][0]["external_id"], "order 1/é");
    for (query, expected) in [
        ("type=a.b", 1),
        ("type=a", 0),
        ("until=2020-01-01T00:00:00Z", 0),
    ] {
        let path = format!("/v1/events?{filter}&{query}");
        let page = tenant.get(&path).await.expect(200);
        assert_eq!(page["data"].as_array().unwrap().len(), expected, "{query}");
    }
    let path = format!("/v1/events/{}", text(&made["id"]));
    assert_eq!(
        tenant.get(&path).await.expect(200)["external_id"],
        "order 1/é"
    );
    let theirs = other.get(&format!("/v1/events?{filter}")).await.expect(200);
    assert_eq!(theirs["data"], json!([]));
}

#[tokio::test]
async fn an_event_that_was_accepted_in_time_has_its_reply_when_its_time_is_over() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let body =
        r#"{"type":"a","payload":1,"deliver_before":"2999-01-01T00:00:00Z","external_id":"x"}"#;
    let first = keyed(&server, &tenant, "k", body).await.expect(202);
    let over =
        r#"{"type":"a","payload":1,"deliver_before":"2001-01-01T00:00:00Z","external_id":"x"}"#;
    // As if the time that it named were over: the same body, under the fingerprints of this one.
    let session = database.session().await;
    for (key, text) in [("over", over), ("later", over)] {
        let problem = keyed(&server, &tenant, key, &text.replace("\"x\"", "\"y\""))
            .await
            .problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], "/deliver_before");
    }
    assert_eq!(
        count(&session, "idempotency_keys").await,
        2,
        "none was used up"
    );
    let print =
        shared::domain::idempotency::IdempotencyKey::of_request("k", "/v1/events", over.as_bytes());
    session
        .execute(
            "UPDATE idempotency_keys SET body_hash = $1 WHERE key = 'k:k'",
            &[&&print.fingerprint[..]],
        )
        .await
        .unwrap();

    let again = keyed(&server, &tenant, "k", over).await.expect(202);

    assert_eq!(again, first);
    assert_eq!(count(&session, "events").await, 1);
}
