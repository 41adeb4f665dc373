//! A database that takes connections and says nothing is away as well (F75, F77): nothing hangs, and all goes on when
//! it speaks again.

use std::time::Duration;

use api::Config;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use shared::runtime::clock::{boot_time, wall_time};
use shared::testing::{TestDatabase, eventually};
use time::format_description::well_known::Rfc3339;

use crate::app::{ADMIN, PATIENCE, Reply, Server, text};
use crate::matrix::{Operation, World, key_of, operations, scopes_for};
use crate::proxy::Proxy;

const DEADLINE: Duration = Duration::from_secs(1);
/// A request's deadline, and the look-up and the rest of what is its own.
const LONGEST: Duration = Duration::from_secs(8);

/// The proxy, and an API behind it.
async fn behind_a_proxy() -> (Proxy, World) {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let config = Config::for_testing(proxy.database.clone()).with_deadline(DEADLINE);
    let server = Server::start_with(config).await;
    (proxy, World::of(database, server).await)
}

/// Opens all connections of the pool, and makes the key known.
async fn warm_up(world: &World, path: &str, headers: &[(&str, &str)]) {
    let ask = || world.server.send(Method::GET, path, None, "", headers);
    for reply in join_all((0..16).map(|_| ask())).await {
        reply.expect(200);
    }
}

async fn is_away(name: &str, reply: impl Future<Output = Reply>) {
    let reply = tokio::time::timeout(LONGEST, reply).await;
    let reply = reply.unwrap_or_else(|_| panic!("{name} hangs"));
    assert_eq!(reply.status, 503, "{name}: {reply:?}");
    assert!(!reply.header("retry-after").is_empty(), "{name}");
    reply.problem(503, "unavailable");
}

#[tokio::test]
async fn no_post_that_happens_once_hangs_while_the_database_says_nothing() {
    let (proxy, world) = behind_a_proxy().await;
    let operations = operations(&world.server).await;
    let posts: Vec<&Operation> = operations
        .iter()
        .filter(|it| it.method == Method::POST)
        .collect();
    let (tenant, _) = world.key("key", scopes_for("key")).await;
    let (organization, _) = world.key("organization", scopes_for("organization")).await;
    let bearer = |key: &str| format!("Bearer {key}");
    let (tenant, organization) = (bearer(&tenant), bearer(&organization));
    warm_up(&world, "/v1/events", &[("authorization", &tenant)]).await;
    warm_up(&world, "/v1/tenants", &[("authorization", &organization)]).await;

    proxy.be_silent(true);
    let asking = posts.iter().map(|operation| async {
        let authorization = match operation.security.as_ref().unwrap().0.as_str() {
            "key" => tenant.clone(),
            "admin" => bearer(ADMIN),
            _ => organization.clone(),
        };
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("idempotency-key", "one"),
        ];
        let path = world.path(operation, None);
        is_away(&operation.name(), world.send(operation, &path, &headers)).await;
    });
    let answered = futures_util::stream::iter(asking)
        .buffer_unordered(4)
        .count()
        .await;
    assert!(answered > 15, "{answered}");

    proxy.be_silent(false);
    let event = json!({"type": "a", "payload": 1}).to_string();
    eventually(PATIENCE, || async {
        let headers = [("authorization", tenant.as_str())];
        let post = world
            .server
            .send(Method::POST, "/v1/events", None, event.clone(), &headers);
        (post.await.status == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_path_with_a_deadline_of_its_own_hangs_while_the_database_says_nothing() {
    let (proxy, world) = behind_a_proxy().await;
    let server = &world.server;
    let limited = server.tenant("limited").await;
    let limits = format!("/v1/admin/tenants/{}/limits", limited.id);
    let limits = server.send(
        Method::PUT,
        &limits,
        Some(ADMIN),
        r#"{"events_per_day": 5}"#,
        &[],
    );
    limits.await.expect(200);
    let plain = server.tenant("plain").await;
    let test = plain.endpoint(json!({})).await;
    let test = format!("/v1/endpoints/{}/test", text(&test["id"]));
    let organization = key_of(server, "organizations", &world.organization, &json!({}))
        .await
        .0;
    for key in [&limited.key, &plain.key] {
        warm_up(
            &world,
            "/v1/events",
            &[("authorization", &format!("Bearer {key}"))],
        )
        .await;
    }
    let of_all = format!("Bearer {organization}");
    warm_up(&world, "/v1/tenants", &[("authorization", &of_all)]).await;
    let event = json!({"type": "a", "payload": 1}).to_string();
    let batch = format!(r#"{{"events": [{event}]}}"#);

    proxy.be_silent(true);
    let new = [("postrider-tenant", "ext:new")];
    for (name, path, key, body, headers) in [
        ("a test", test.as_str(), &plain.key, "", &[][..]),
        ("a quota", "/v1/events", &limited.key, event.as_str(), &[]),
        (
            "a quota of a batch",
            "/v1/events/batch",
            &limited.key,
            batch.as_str(),
            &[],
        ),
        (
            "a new tenant",
            "/v1/events",
            &organization,
            event.as_str(),
            &new,
        ),
        (
            "a new tenant's batch",
            "/v1/events/batch",
            &organization,
            batch.as_str(),
            &new,
        ),
        ("an event", "/v1/events", &plain.key, event.as_str(), &[]),
    ] {
        let reply = server.send(Method::POST, path, Some(key), body.to_owned(), headers);
        is_away(name, reply).await;
    }
}

#[tokio::test]
async fn a_key_counts_for_as_long_as_it_is_believed_and_no_longer() {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let believed = Duration::from_secs(4);
    let config = Config::for_testing(proxy.database.clone())
        .with_deadline(DEADLINE)
        .with_believed(believed);
    let server = Server::start_with(config).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let reader = json!({"scopes": ["read"]});
    let reader = text(&server.post(&keys, ADMIN, &reader).await.expect(201)["key"]);
    let event = json!({"type": "a", "payload": 1});
    // What it may not do is known without the database, as long as the key is.
    let post = async || server.post("/v1/events", &reader, &event).await;
    let confirmed = boot_time();
    server.get("/v1/events", &reader).await.expect(200);

    proxy.be_silent(true);
    post().await.problem(403, "missing-scope");
    let refused = eventually(PATIENCE, || async {
        let reply = post().await;
        (reply.status != 403).then_some(reply)
    })
    .await;
    let took = boot_time().since(confirmed);
    assert!(took >= believed, "{took:?}");
    assert!(took < believed + LONGEST, "{took:?}");
    refused.problem(503, "unavailable");
    post().await.problem(503, "unavailable");

    proxy.be_silent(false);
    eventually(PATIENCE, || async {
        (post().await.status == 403).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_key_ends_at_its_end_also_while_the_database_cannot_be_asked() {
    let database = TestDatabase::new().await;
    let proxy = Proxy::start(database.url());
    let config = Config::for_testing(proxy.database.clone()).with_deadline(DEADLINE);
    let server = Server::start_with(config).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let end = wall_time() + Duration::from_secs(6);
    let ends = json!({"scopes": ["read"], "expires_at": end.format(&Rfc3339).unwrap()});
    let ends = text(&server.post(&keys, ADMIN, &ends).await.expect(201)["key"]);
    let stays = server
        .post(&keys, ADMIN, &json!({"scopes": ["read"]}))
        .await;
    let stays = text(&stays.expect(201)["key"]);
    let event = json!({"type": "a", "payload": 1});
    // What it may not do is known without the database, as long as the key is.
    let post = async |key: &str| server.post("/v1/events", key, &event).await;

    for key in [&ends, &stays] {
        post(key).await.problem(403, "missing-scope");
    }
    proxy.be_silent(true);
    let refused = eventually(PATIENCE, || async {
        let reply = post(&ends).await;
        (reply.status != 403).then_some(reply)
    })
    .await;

    assert!(wall_time() >= end - Duration::from_millis(500));
    refused.problem(401, "unauthorized");
    post(&stays).await.problem(403, "missing-scope");
    proxy.be_silent(false);
}
