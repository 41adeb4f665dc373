//! Limits of keys and quotas of tenants.

use api::Config;
use reqwest::Method;
use serde_json::{Value, json};
use shared::domain::limits::{KeyRate, Limits};
use shared::testing::{TestDatabase, eventually};

use crate::app::{ADMIN, PATIENCE, Server, Tenant, text, world};

async fn set(server: &Server, path: &str, limits: &Value) -> Value {
    server
        .send(Method::PUT, path, Some(ADMIN), limits.to_string(), &[])
        .await
        .expect(200)
}

async fn publish(tenant: &Tenant<'_>) -> u16 {
    let event = json!({"type": "a", "payload": 1});
    tenant.post("/v1/events", &event).await.status.as_u16()
}

fn path(tenant: &Tenant<'_>) -> String {
    format!("/v1/admin/tenants/{}/limits", tenant.id)
}

#[tokio::test]
async fn a_key_past_its_rate_is_told_when_to_come_back_and_nobody_elses_is() {
    let (_database, server) = world().await;
    let (busy, quiet) = (server.tenant("busy").await, server.tenant("quiet").await);
    let keys = format!("/v1/admin/tenants/{}/keys", busy.id);
    let limited = json!({"rate_limit": {"per_second": 1, "burst": 3}});
    let key = server.post(&keys, ADMIN, &limited).await.expect(201);
    assert_eq!(key["rate_limit"], json!({"per_second": 1, "burst": 3}));
    let key = text(&key["key"]);

    let first = server.get("/v1/events", &key).await;
    assert_eq!(first.header("ratelimit-limit"), "3");
    assert_eq!(first.header("ratelimit-remaining"), "2");
    assert_eq!(first.header("ratelimit-reset"), "1");
    first.expect(200);
    let refused = eventually(PATIENCE, || async {
        let reply = server.get("/v1/events", &key).await;
        (reply.status == 429).then_some(reply)
    })
    .await;

    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("ratelimit-remaining"), "0");
    refused.problem(429, "rate-limited");
    let other = quiet.get("/v1/events").await;
    assert_eq!(other.header("ratelimit-limit"), "");
    other.expect(200);
    busy.get("/v1/events").await.expect(200);
}

#[tokio::test]
async fn the_operators_limit_holds_where_nothing_else_is_set() {
    let database = TestDatabase::new().await;
    let default = Limits {
        rate_limit: Some(KeyRate {
            per_second: 1,
            burst: 2,
        }),
        ..Limits::default()
    };
    let config = Config::for_testing(database.database()).with_limits(default);
    let server = Server::start_with(config).await;
    let (one, two) = (server.tenant("one").await, server.tenant("two").await);
    set(
        &server,
        &path(&two),
        &json!({"rate_limit": {"per_second": 50}}),
    )
    .await;

    assert_eq!(one.get("/v1/events").await.header("ratelimit-limit"), "2");
    assert_eq!(two.get("/v1/events").await.header("ratelimit-limit"), "100");
}

#[tokio::test]
async fn a_new_limit_holds_for_a_key_in_use_within_moments() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.get("/v1/events").await.expect(200);

    let shown = set(
        &server,
        &path(&tenant),
        &json!({"rate_limit": {"per_second": 7, "burst": 9}}),
    )
    .await;

    assert_eq!(
        shown["effective"]["rate_limit"],
        json!({"per_second": 7, "burst": 9})
    );
    eventually(PATIENCE, || async {
        let reply = tenant.get("/v1/events").await;
        (reply.header("ratelimit-limit") == "9").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_quota_of_events_is_kept_over_processes_and_shown() {
    let database = TestDatabase::new().await;
    let one = Server::start(database.database()).await;
    let tenant = one.tenant("acme").await;
    set(&one, &path(&tenant), &json!({"events_per_day": 3})).await;
    for _ in 0..3 {
        assert_eq!(publish(&tenant).await, 202);
    }
    let refused = tenant
        .post("/v1/events", &json!({"type": "a", "payload": 1}))
        .await;
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=86_400).contains(&wait), "{wait}");
    refused.problem(429, "quota-reached");
    eventually(PATIENCE, || async {
        let shown = one.get(&path(&tenant), ADMIN).await.expect(200);
        (shown["usage"]["events_today"] == 3 && shown["usage"]["events_this_month"] == 3)
            .then_some(())
    })
    .await;

    let two = Server::start(database.database()).await;
    two.post(
        "/v1/events",
        &tenant.key,
        &json!({"type": "a", "payload": 1}),
    )
    .await
    .problem(429, "quota-reached");
    set(&one, &path(&tenant), &json!({})).await;
    eventually(PATIENCE, || async {
        (publish(&tenant).await == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_event_that_is_refused_uses_no_quota() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    set(
        &server,
        &path(&tenant),
        &json!({"events_per_month": 1, "max_event_types": 0}),
    )
    .await;
    for _ in 0..3 {
        tenant
            .post("/v1/events", &json!({"type": "a", "payload": 1}))
            .await
            .problem(422, "limit-reached");
    }
    set(&server, &path(&tenant), &json!({"events_per_month": 1})).await;

    eventually(PATIENCE, || async {
        (publish(&tenant).await == 202).then_some(())
    })
    .await;
    assert_eq!(publish(&tenant).await, 429);
}

#[tokio::test]
async fn nothing_is_counted_of_a_tenant_without_a_quota() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    assert_eq!(publish(&tenant).await, 202);

    let shown = server.get(&path(&tenant), ADMIN).await.expect(200);

    assert_eq!(shown["usage"]["events_today"], Value::Null);
    assert_eq!(shown["usage"]["event_types"], 1);
    let session = database.session().await;
    let rows = session.query("SELECT FROM event_counts", &[]).await;
    assert!(rows.unwrap().is_empty());
}

#[tokio::test]
async fn a_tenant_has_no_more_endpoints_than_it_or_its_organization_may() {
    let (_database, server) = world().await;
    let organization = server
        .post("/v1/admin/organizations", ADMIN, &json!({"name": "SaaS"}))
        .await
        .expect(201);
    let id = text(&organization["id"]);
    let keys = format!("/v1/admin/organizations/{id}/keys");
    let key = text(&server.post(&keys, ADMIN, &json!({})).await.expect(201)["key"]);
    let limits = format!("/v1/admin/organizations/{id}/limits");
    set(
        &server,
        &limits,
        &json!({"max_endpoints": 1, "max_tenants": 2}),
    )
    .await;
    let create = async |tenant: &str| {
        let body = json!({"url": "http://127.0.0.1/hook"}).to_string();
        let header = [("postrider-tenant", tenant)];
        server
            .send(Method::POST, "/v1/endpoints", Some(&key), body, &header)
            .await
    };

    create("ext:one").await.expect(201);
    create("ext:one").await.problem(422, "limit-reached");
    create("ext:two").await.expect(201);
    create("ext:three").await.problem(422, "limit-reached");
    let usage = server.get(&limits, ADMIN).await.expect(200);
    assert_eq!(usage["usage"]["tenants"], 2);
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused_with_the_field() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (body, pointer) in [
        (
            json!({"rate_limit": {"burst": 3}}),
            "/rate_limit/per_second",
        ),
        (
            json!({"rate_limit": {"per_second": 0}}),
            "/rate_limit/per_second",
        ),
        (json!({"events_per_day": -1}), "/events_per_day"),
        (json!({"events_per_week": 1}), "/events_per_week"),
    ] {
        let reply = server
            .send(
                Method::PUT,
                &path(&tenant),
                Some(ADMIN),
                body.to_string(),
                &[],
            )
            .await;
        let problem = reply.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}
