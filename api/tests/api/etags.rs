//! Entity tags of endpoints: a change of what somebody else has changed meanwhile is refused.

use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{Reply, Tenant, text, world};

async fn send(tenant: &Tenant<'_>, method: Method, path: &str, header: (&str, &str)) -> Reply {
    let body = if method == Method::PATCH {
        json!({"description": format!("changed under {}", header.1)}).to_string()
    } else {
        String::new()
    };
    tenant
        .server
        .send(method, path, Some(&tenant.key), body, &[header])
        .await
}

#[tokio::test]
async fn a_change_of_another_version_is_refused_and_changes_nothing() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let path = format!(
        "/v1/endpoints/{}",
        text(&tenant.endpoint(json!({})).await["id"])
    );
    let first = tenant.get(&path).await.header("etag").to_owned();

    let changed = send(&tenant, Method::PATCH, &path, ("if-match", &first)).await;
    let second = changed.header("etag").to_owned();
    let document = changed.expect(200);
    assert_ne!(first, second);

    for method in [Method::PATCH, Method::DELETE] {
        let refused = send(&tenant, method, &path, ("if-match", &first)).await;
        let problem = refused.problem(412, "precondition-failed");
        assert!(text(&problem["detail"]).contains(&second), "{problem}");
    }
    for verb in ["enable", "disable"] {
        let path = format!("{path}/{verb}");
        let refused = send(&tenant, Method::POST, &path, ("if-match", &first)).await;
        refused.problem(412, "precondition-failed");
    }
    let now = tenant.get(&path).await;
    assert_eq!(now.header("etag"), second);
    assert_eq!(now.expect(200), document);

    let either = format!("\"0\", {second}");
    let third = send(&tenant, Method::PATCH, &path, ("if-match", &either)).await;
    assert_ne!(third.header("etag"), second);
    third.expect(200);
    send(&tenant, Method::DELETE, &path, ("if-match", "*"))
        .await
        .expect(204);
    send(&tenant, Method::PATCH, &path, ("if-match", "*"))
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn of_two_changes_of_one_version_one_is_made() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let made = tenant.endpoint(json!({})).await;
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let tag = tenant.get(&path).await.header("etag").to_owned();

    let changes = (0..8).map(|number| {
        let body = json!({"description": number.to_string()}).to_string();
        let server = &server;
        let (path, key, tag) = (&path, &tenant.key, &tag);
        async move {
            let headers = [("if-match", tag.as_str())];
            let reply = server.send(Method::PATCH, path, Some(key), body, &headers);
            reply.await.status.as_u16()
        }
    });
    let mut statuses = futures_util::future::join_all(changes).await;

    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);
}

#[tokio::test]
async fn a_document_is_changed_and_sent_back_as_a_whole() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let fields = json!({
        "url": "https://b\u{fc}cher.example/", "headers": {"x-a": "1"}, "signing": ["v1", "v1a"],
        "rate_limit": {"per_second": 5}, "metadata": {"a": {"b": [null]}}, "redact": ["a"],
    });
    let made = tenant.post("/v1/endpoints", &fields).await.expect(201);
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let shown = tenant.get(&path).await;
    let tag = shown.header("etag").to_owned();
    let mut document = shown.expect(200);

    let back = server.patch(&path, &tenant.key, &document).await;
    assert_eq!(back.header("etag"), tag, "nothing was changed");
    assert_eq!(back.expect(200), document);

    document["description"] = json!("changed");
    let changed = server.patch(&path, &tenant.key, &document).await;
    assert_ne!(changed.header("etag"), tag);
    assert_eq!(changed.expect(200)["description"], "changed");
    // It is old now, and says so; and what only the server writes cannot be changed.
    for (field, value) in [
        ("updated_at", document["updated_at"].clone()),
        ("id", json!("ep_01kb9h2v3cfzqt9m6w8x5y7r2n")),
        ("secrets", json!([])),
        ("created_at", json!(null)),
        ("disabled_reason", json!("because")),
    ] {
        let mut patch = json!({});
        patch[field] = value;
        let problem = server.patch(&path, &tenant.key, &patch).await;
        let problem = problem.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"));
        let detail = text(&problem["errors"][0]["detail"]);
        assert!(detail.contains("read-only"), "{detail}");
        assert!(detail.contains("leave it out"), "{detail}");
    }
}

#[tokio::test]
async fn what_is_known_is_not_sent_again() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let body = json!({"url": "https://receiver.example/"});
    let made = tenant.post("/v1/endpoints", &body).await;
    let tag = made.header("etag").to_owned();
    let path = format!("/v1/endpoints/{}", text(&made.expect(201)["id"]));

    for known in [
        tag.clone(),
        format!("W/{tag}"),
        format!("\"x\", {tag}"),
        "*".to_owned(),
    ] {
        let reply = send(&tenant, Method::GET, &path, ("if-none-match", &known)).await;
        assert_eq!(reply.status, 304, "{known}");
        assert_eq!(reply.header("etag"), tag);
        assert!(reply.bytes.is_empty());
    }
    let reply = send(&tenant, Method::GET, &path, ("if-none-match", "\"0\"")).await;
    assert_eq!(reply.header("etag"), tag);
    reply.expect(200);
}

#[tokio::test]
async fn tags_that_are_weak_or_none_are_refused_with_what_to_send() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let path = format!(
        "/v1/endpoints/{}",
        text(&tenant.endpoint(json!({})).await["id"])
    );
    let tag = tenant.get(&path).await.header("etag").to_owned();
    for wrong in [
        format!("W/{tag}"),
        "1".to_owned(),
        format!("{tag},"),
        "\"a b\"".to_owned(),
    ] {
        for method in [Method::PATCH, Method::DELETE] {
            let reply = send(&tenant, method, &path, ("if-match", &wrong)).await;
            reply.problem(400, "invalid-parameter");
        }
    }
    assert_eq!(tenant.get(&path).await.header("etag"), tag);
}

/// Of two fields that contradict each other, the one that was sent is named.
#[tokio::test]
async fn a_patch_that_contradicts_what_is_there_is_told_of_its_own_field() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let made = tenant
        .endpoint(json!({
            "signing": ["v1", "v1a"], "backoff": {"base_seconds": 10, "max_seconds": 60},
            "breaker": {"cooldown_seconds": 10, "max_cooldown_seconds": 60},
        }))
        .await;
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let cases: [(Value, &str); 8] = [
        (json!({"signature": "stripe"}), "/signature"),
        (json!({"signature": "none"}), "/signature"),
        (
            json!({"signature": "stripe", "signing": ["v1a"]}),
            "/signing",
        ),
        (
            json!({"breaker": {"cooldown_seconds": 100}}),
            "/breaker/cooldown_seconds",
        ),
        (
            json!({"breaker": {"max_cooldown_seconds": 1}}),
            "/breaker/max_cooldown_seconds",
        ),
        (
            json!({"backoff": {"base_seconds": 100}}),
            "/backoff/base_seconds",
        ),
        (
            json!({"backoff": {"max_seconds": 1}}),
            "/backoff/max_seconds",
        ),
        (
            json!({"backoff": {"base_seconds": 100, "max_seconds": 99}}),
            "/backoff/max_seconds",
        ),
    ];
    for (patch, pointer) in cases {
        let problem = server.patch(&path, &tenant.key, &patch).await;
        let problem = problem.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{patch}");
        assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem}");
    }
    let patch = json!({"signature": "stripe", "signing": null});
    server.patch(&path, &tenant.key, &patch).await.expect(200);
}
