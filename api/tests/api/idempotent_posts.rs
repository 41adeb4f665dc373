//! `Idempotency-Key` on every POST that is no event.

use std::collections::HashSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use shared::store::Session;
use shared::testing::{TestDatabase, eventually};

use crate::app::{ADMIN, PATIENCE, Reply, Server, text, world};

async fn keyed(server: &Server, path: &str, api_key: &str, key: &str, body: &Value) -> Reply {
    let headers = [("Idempotency-Key", key)];
    let body = body.to_string();
    server
        .send(Method::POST, path, Some(api_key), body, &headers)
        .await
}

fn hook() -> Value {
    json!({"url": "http://127.0.0.1/hook"})
}

async fn count(session: &Session, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    session.query_one(&count, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_repeated_post_gives_the_same_reply_with_its_secret_which_is_stored_nowhere_in_the_clear()
{
    // S2
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    let first = keyed(&one, "/v1/endpoints", &tenant.key, "k", &hook()).await;
    assert_eq!(first.status, 201);

    for server in [&one, &two] {
        let again = keyed(server, "/v1/endpoints", &tenant.key, "k", &hook()).await;
        assert_eq!(again.status, 201);
        assert_eq!(again.header("content-type"), "application/json");
        assert!(!again.header("x-request-id").is_empty());
        assert_eq!(again.bytes, first.bytes);
    }

    let session = database.session().await;
    assert_eq!(count(&session, "endpoints").await, 1);
    let row = session
        .query_one("SELECT reply FROM idempotency_keys", &[])
        .await
        .unwrap();
    let (reply, secret) = (row.get::<_, Vec<u8>>(0), text(&first.json()["secret"]));
    assert!(secret.len() > 20);
    let shows = |needle: &[u8]| reply.windows(needle.len()).any(|part| part == needle);
    assert!(!shows(secret.as_bytes()) && !shows(b"127.0.0.1"));
}

#[tokio::test]
async fn parallel_posts_of_one_key_run_once_and_the_others_are_told_so() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;

    let posts = (0..50).map(|n| {
        let server = if n % 2 == 0 { &one } else { &two };
        let key = &tenant.key;
        async move { keyed(server, "/v1/endpoints", key, "k", &hook()).await }
    });
    let mut bodies = HashSet::new();
    for reply in join_all(posts).await {
        if reply.status == 409 {
            assert_eq!(reply.header("retry-after"), "1");
            reply.problem(409, "request-in-progress");
        } else {
            assert_eq!(reply.status, 201);
            bodies.insert(reply.bytes);
        }
    }

    assert_eq!(bodies.len(), 1);
    assert_eq!(count(&database.session().await, "endpoints").await, 1);
    let again = keyed(&two, "/v1/endpoints", &tenant.key, "k", &hook()).await;
    assert!(bodies.contains(&again.bytes));
}

#[tokio::test]
async fn another_body_path_or_event_under_the_same_key_is_a_mismatch() {
    let (_database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("globex").await);
    let made = keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook()).await;
    let id = text(&made.expect(201)["id"]);

    let described = json!({"url": "http://127.0.0.1/hook", "description": "x"});
    for (path, body) in [
        ("/v1/endpoints".to_owned(), described),
        (format!("/v1/endpoints/{id}/disable"), json!({})),
        ("/v1/events".to_owned(), json!({"type": "a", "payload": 1})),
    ] {
        keyed(&server, &path, &tenant.key, "k", &body)
            .await
            .problem(422, "idempotency-mismatch");
    }
    // S3: another tenant's key is another key.
    keyed(&server, "/v1/endpoints", &other.key, "k", &hook())
        .await
        .expect(201);
}

#[tokio::test]
async fn a_reply_is_given_again_only_to_keys_that_may_the_same() {
    // S3
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook())
        .await
        .expect(201);
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let reader = json!({"name": "reader", "scopes": ["read"]});
    let reader = server.post(&keys, ADMIN, &reader).await.expect(201);

    let reply = keyed(
        &server,
        "/v1/endpoints",
        &text(&reader["key"]),
        "k",
        &hook(),
    )
    .await;

    assert!(!String::from_utf8_lossy(&reply.bytes).contains("whsec_"));
    reply.problem(422, "idempotency-mismatch");
    keyed(
        &server,
        "/v1/endpoints",
        &text(&reader["key"]),
        "r",
        &hook(),
    )
    .await
    .problem(403, "missing-scope");
    let same = server
        .post(&keys, ADMIN, &json!({"name": "same"}))
        .await
        .expect(201);
    keyed(&server, "/v1/endpoints", &text(&same["key"]), "k", &hook())
        .await
        .expect(201);
    for nobody in ["", "prk_nobody"] {
        keyed(&server, "/v1/endpoints", nobody, "k", &hook())
            .await
            .problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn what_failed_is_not_kept_and_runs_again() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let bad = json!({"url": "http://127.0.0.1/hook", "timeout_ms": -1});
    keyed(&server, "/v1/endpoints", &tenant.key, "k", &bad)
        .await
        .problem(422, "invalid-fields");

    keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook())
        .await
        .expect(201);

    keyed(&server, "/v1/endpoints", &tenant.key, "", &hook())
        .await
        .problem(400, "invalid-parameter");
    assert_eq!(count(&database.session().await, "endpoints").await, 1);
}

#[tokio::test]
async fn a_claim_that_a_dead_process_left_is_free_after_seconds() {
    // F81 (a): a crash between the claim of the key and the work.
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook())
        .await
        .expect(201);
    let session = database.session().await;
    // As it was while the first one ran.
    session
        .batch_execute(
            "UPDATE idempotency_keys SET claim = gen_random_uuid(), reply = NULL, expires_at = now() + interval '30 s'",
        )
        .await
        .unwrap();
    let waits = keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook()).await;
    waits.problem(409, "request-in-progress");
    session
        .batch_execute("UPDATE idempotency_keys SET expires_at = now()")
        .await
        .unwrap();

    keyed(&server, "/v1/endpoints", &tenant.key, "k", &hook())
        .await
        .expect(201);

    let row = session
        .query_one(
            "SELECT claim IS NULL, extract(epoch FROM expires_at - now())::float8 > 86000 FROM idempotency_keys",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0) && row.get::<_, bool>(1));
}

/// Posts twice with one key: one reply. With another body: none.
async fn assert_runs_once(server: &Server, path: &str, api_key: &str, body: &Value) {
    let first = keyed(server, path, api_key, path, body).await;
    assert!(first.status.is_success(), "{path} {}", first.json());

    let second = keyed(server, path, api_key, path, body).await;

    assert_eq!(
        (second.status, &second.bytes),
        (first.status, &first.bytes),
        "{path}"
    );
    keyed(server, path, api_key, path, &json!({"name": "y"}))
        .await
        .problem(422, "idempotency-mismatch");
}

#[tokio::test]
async fn every_post_of_the_api_takes_a_key_and_runs_once() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let (named, nothing) = (json!({"name": "x"}), json!({}));
    let endpoint = text(&tenant.endpoint(json!({})).await["id"]);
    let delivery = text(&tenant.publishes("a", &json!(1)).await["deliveries"][0]["id"]);
    for path in [
        "/v1/admin/organizations",
        "/v1/admin/tenants",
        &format!("/v1/admin/tenants/{}/keys", tenant.id),
    ] {
        assert_runs_once(&server, path, ADMIN, &named).await;
    }
    for path in [
        format!("/v1/endpoints/{endpoint}/secret/rotate"),
        format!("/v1/endpoints/{endpoint}/secret/revoke"),
        format!("/v1/endpoints/{endpoint}/disable"),
        format!("/v1/endpoints/{endpoint}/enable"),
        format!("/v1/deliveries/{delivery}/cancel"),
    ] {
        assert_runs_once(&server, &path, &tenant.key, &nothing).await;
    }
    let organizations = server.get("/v1/admin/organizations", ADMIN).await;
    let organization = text(&organizations.expect(200)["data"][0]["id"]);
    let keys = format!("/v1/admin/organizations/{organization}/keys");
    let owner = server.post(&keys, ADMIN, &named).await.expect(201);
    assert_runs_once(&server, "/v1/tenants", &text(&owner["key"]), &named).await;
    let session = database.session().await;
    assert_eq!(count(&session, "organizations").await, 1);
    assert_eq!(count(&session, "tenants").await, 3);
}

#[tokio::test]
async fn a_request_past_its_keys_rate_claims_nothing_and_one_that_runs_is_counted_once() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let limited = json!({"rate_limit": {"per_second": 1, "burst": 2}});
    let key = server.post(&keys, ADMIN, &limited).await.expect(201);
    let key = text(&key["key"]);

    let first = keyed(&server, "/v1/endpoints", &key, "first", &hook()).await;
    assert_eq!(first.header("ratelimit-remaining"), "1");
    first.expect(201);
    let mut asked = 0;
    let (name, refused) = eventually(PATIENCE, || {
        asked += 1;
        let name = format!("k{asked}");
        async {
            let reply = keyed(&server, "/v1/endpoints", &key, &name, &hook()).await;
            (reply.status == 429).then_some((name, reply))
        }
    })
    .await;

    assert_eq!(refused.header("ratelimit-remaining"), "0");
    refused.problem(429, "rate-limited");
    let claimed = format!("idempotency_keys WHERE key LIKE '%{name}'");
    assert_eq!(count(&database.session().await, &claimed).await, 0);
    // The key is free: it runs as soon as the limit lets it.
    eventually(PATIENCE, || async {
        let reply = keyed(&server, "/v1/endpoints", &key, &name, &hook()).await;
        (reply.status == 201).then_some(())
    })
    .await;
}
