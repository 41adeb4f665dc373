//! Endpoints: one document, written and shown.

use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::EndpointId;
use shared::sealing::MasterKeys;

use crate::app::{text, world};

#[tokio::test]
async fn an_endpoint_is_shown_with_its_defaults_and_its_secret_once() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;

    let mut created = tenant
        .endpoint(json!({"url": "HTTP://127.0.0.1:80/a b".replace(' ', "%20")}))
        .await;

    let secret = text(&created["secret"]);
    assert!(secret.starts_with("whsec_"));
    let id = text(&created["id"]);
    created.as_object_mut().unwrap().remove("secret");
    let shown = tenant.get(&format!("/v1/endpoints/{id}")).await.expect(200);
    assert_eq!(shown, created);
    let mut fields = shown.clone();
    for volatile in ["id", "created_at", "updated_at"] {
        assert!(
            fields
                .as_object_mut()
                .unwrap()
                .remove(volatile)
                .unwrap()
                .is_string()
        );
    }
    let secrets = fields.as_object_mut().unwrap().remove("secrets").unwrap();
    assert_eq!(secrets.as_array().unwrap().len(), 1);
    assert_eq!(
        fields,
        json!({
            "url": "http://127.0.0.1/a%20b", "description": "", "event_types": [], "channels": [],
            "enabled": true, "headers": {}, "client_certificate": null, "timeout_ms": 15000, "max_attempts": 5,
            "backoff": {"base_seconds": 30, "max_seconds": 3600}, "max_in_flight": 10,
            "max_age_seconds": 432000, "max_pending": 100000, "metadata": {},
            "kind": "webhook", "method": "POST", "template": null, "on_missing_field": "fail", "redact": [], "trace_context": false,
            "signature": "standard", "signing": ["v1"], "public_keys": [], "disabled_reason": null,
            "rate_limit": null, "retry_statuses": [], "ordered": false, "on_dead_letter": "release",
            "replay_on_recovery": true, "disable_after_seconds": 432000,
            "breaker": {"failures": 10, "cooldown_seconds": 300, "max_cooldown_seconds": 3600}
        })
    );
    let uuid = id.parse::<EndpointId>().unwrap().0;
    let row = database
        .session()
        .await
        .query_one("SELECT s.sealed, e.slot FROM endpoint_secrets s JOIN endpoints e ON e.id = s.endpoint_id WHERE e.public_id = $1", &[&uuid])
        .await
        .unwrap();
    let opened = MasterKeys::new([7; 32], None)
        .open(row.get(0), &format!("secret:{uuid}"))
        .unwrap();
    let revealed = shared::policy::signing::Secret::from_bytes(&opened)
        .unwrap()
        .reveal();
    assert_eq!(revealed, secret);
    assert!((0..256).contains(&row.get::<_, i16>(1)));
}

#[tokio::test]
async fn a_merge_patch_changes_what_it_names_and_null_means_the_default() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let created = tenant
        .endpoint(json!({
            "description": "first", "event_types": ["a"], "timeout_ms": 1000, "max_attempts": 9,
            "backoff": {"base_seconds": 5, "max_seconds": 50},
            "headers": {"X-One": "1", "X-Two": "2"}, "metadata": {"team": "a", "deep": {"x": 1, "y": 2}}
        }))
        .await;
    let path = format!("/v1/endpoints/{}", text(&created["id"]));

    let changed = server
        .patch(
            &path,
            &tenant.key,
            &json!({
                "description": "second", "event_types": null, "timeout_ms": null,
                "backoff": {"base_seconds": 7},
                "headers": {"X-Two": null, "X-Three": "3", "X-One": "***"},
                "metadata": {"deep": {"x": null}, "new": true}
            }),
        )
        .await
        .expect(200);

    assert_eq!(changed["description"], "second");
    assert_eq!(changed["event_types"], json!([]));
    assert_eq!(changed["timeout_ms"], 15_000);
    assert_eq!(changed["max_attempts"], 9);
    assert_eq!(
        changed["backoff"],
        json!({"base_seconds": 7, "max_seconds": 50})
    );
    assert_eq!(
        changed["headers"],
        json!({"X-One": "***", "X-Three": "***"})
    );
    assert_eq!(
        changed["metadata"],
        json!({"team": "a", "deep": {"y": 2}, "new": true})
    );
    assert_eq!(tenant.get(&path).await.expect(200), changed);
    let session = database.session().await;
    let row = session
        .query_one(
            "SELECT e.sealed_headers, e.public_id, e.version, t.config_version,
                    (SELECT count(*) FROM commands c WHERE c.endpoint_id = e.id AND c.slot = e.slot AND c.verb = 1)
             FROM endpoints e JOIN tenants t ON t.id = e.tenant_id",
            &[],
        )
        .await
        .unwrap();
    let uuid: uuid::Uuid = row.get(1);
    let opened = MasterKeys::new([7; 32], None)
        .open(row.get(0), &format!("headers:{uuid}"))
        .unwrap();
    let headers: Value = serde_json::from_slice(&opened).unwrap();
    assert_eq!(headers, json!([["X-One", "1"], ["X-Three", "3"]]));
    assert_eq!(
        (
            row.get::<_, i32>(2),
            row.get::<_, i64>(3),
            row.get::<_, i64>(4)
        ),
        (2, 3, 1)
    );
}

#[tokio::test]
async fn limits_are_kept_as_given_and_null_means_the_default() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let limits = json!({
        "rate_limit": {"per_second": 0.5, "burst": 7}, "retry_statuses": [422, 301, 422],
        "ordered": true, "on_dead_letter": "block", "replay_on_recovery": false,
        "disable_after_seconds": 0, "backoff": "standard-webhooks", "trace_context": true,
        "breaker": {"failures": 3, "cooldown_seconds": 60, "max_cooldown_seconds": 600}
    });
    let created = tenant.endpoint(limits.clone()).await;
    let path = format!("/v1/endpoints/{}", text(&created["id"]));

    let shown = tenant.get(&path).await.expect(200);
    for (name, given) in limits.as_object().unwrap() {
        let expected = match name.as_str() {
            "retry_statuses" => &json!([301, 422]),
            _ => given,
        };
        assert_eq!(shown[name], *expected, "{name}");
    }
    assert_eq!(shown["max_attempts"], 10, "goes with the backoff");

    let nulls: Value = limits
        .as_object()
        .unwrap()
        .keys()
        .map(|name| (name.clone(), Value::Null))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let reset = server.patch(&path, &tenant.key, &nulls).await.expect(200);
    let defaults = tenant.endpoint(json!({})).await;
    for name in limits
        .as_object()
        .unwrap()
        .keys()
        .chain([&"max_attempts".to_owned()])
    {
        assert_eq!(reset[name], defaults[name], "{name}");
    }
}

#[tokio::test]
async fn what_is_left_out_of_a_limit_follows_from_the_rest() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (given, burst) in [(0.001, 1), (1.0, 1), (2.5, 3), (10_000.0, 10_000)] {
        let endpoint = tenant
            .endpoint(json!({"rate_limit": {"per_second": given}}))
            .await;
        let expected = json!({"per_second": given, "burst": burst});
        assert_eq!(endpoint["rate_limit"], expected);
    }
    let fast = json!({"base_seconds": 30, "max_seconds": 3600});
    let endpoint = tenant.endpoint(json!({"backoff": "fast"})).await;
    assert_eq!(endpoint["backoff"], fast);

    let path = format!("/v1/endpoints/{}", text(&endpoint["id"]));
    for (patch, attempts) in [
        (json!({"backoff": "standard-webhooks"}), 10),
        (json!({"backoff": {"base_seconds": 30}}), 5),
        (json!({"max_attempts": 7}), 7),
        (json!({"backoff": "standard-webhooks"}), 7),
    ] {
        let changed = server.patch(&path, &tenant.key, &patch).await.expect(200);
        assert_eq!(changed["max_attempts"], attempts, "{patch}");
    }
}

#[tokio::test]
async fn a_patch_that_is_wrong_changes_nothing() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let created = tenant.endpoint(json!({})).await;
    let path = format!("/v1/endpoints/{}", text(&created["id"]));
    let before = tenant.get(&path).await.expect(200);
    for patch in [
        json!({"url": null}),
        json!({"description": "new", "url": "gopher://x"}),
        json!({"description": "new", "id": "x"}),
        json!({"description": "new", "id": null}),
        json!({"description": "new", "colour": null}),
        json!({"description": "new", "timeout_ms": "x"}),
        json!([]),
    ] {
        server
            .patch(&path, &tenant.key, &patch)
            .await
            .problem(422, "invalid-fields");
    }
    assert_eq!(tenant.get(&path).await.expect(200), before);
}

#[tokio::test]
async fn a_document_that_was_read_can_be_sent_back_and_changes_nothing() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let created = tenant
        .endpoint(json!({"headers": {"Authorization": "Bearer t"}, "channels": ["eu"]}))
        .await;
    let path = format!("/v1/endpoints/{}", text(&created["id"]));
    let mut document = tenant.get(&path).await.expect(200);
    let before = document.clone();
    for fixed in [
        "id",
        "public_keys",
        "secrets",
        "disabled_reason",
        "created_at",
        "updated_at",
    ] {
        document.as_object_mut().unwrap().remove(fixed);
    }

    let mut after = server
        .patch(&path, &tenant.key, &document)
        .await
        .expect(200);

    after["updated_at"] = before["updated_at"].clone();
    assert_eq!(after, before);
}

#[tokio::test]
async fn enable_disable_and_delete_answer_with_what_holds() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let created = tenant.endpoint(json!({})).await;
    let path = format!("/v1/endpoints/{}", text(&created["id"]));
    let act = async |verb: &str| tenant.post(&format!("{path}/{verb}"), &json!({})).await;

    assert_eq!(act("disable").await.expect(200)["enabled"], false);
    let skipped = tenant.publishes("a", &json!(1)).await;
    assert_eq!(skipped["deliveries"][0]["status"], "skipped");
    assert_eq!(act("enable").await.expect(200)["enabled"], true);
    let pending = tenant.publishes("a", &json!(1)).await;
    assert_eq!(pending["deliveries"][0]["status"], "pending");
    server.delete(&path, &tenant.key).await.expect(204);
    server
        .delete(&path, &tenant.key)
        .await
        .problem(404, "not-found");
    tenant.get(&path).await.problem(404, "not-found");
    act("enable").await.problem(404, "not-found");
    server
        .patch(&path, &tenant.key, &json!({}))
        .await
        .problem(404, "not-found");
    assert_eq!(tenant.publishes("a", &json!(1)).await["delivery_count"], 0);
    let list = tenant.get("/v1/endpoints").await.expect(200);
    assert_eq!(list, json!({"data": [], "next_cursor": null}));
}

#[tokio::test]
async fn another_tenants_ids_look_like_ids_that_do_not_exist() {
    // S3
    let (_database, server) = world().await;
    let (owner, stranger) = (server.tenant("acme").await, server.tenant("globex").await);
    let endpoint = text(&owner.endpoint(json!({})).await["id"]);
    let event = owner.publishes("a", &json!({"secret": 1})).await;
    let (event, delivery) = (text(&event["id"]), text(&event["deliveries"][0]["id"]));
    let last = |id: &str, other: char| {
        let mut changed = id.to_owned();
        changed.pop();
        changed.push(if id.ends_with(other) { '1' } else { other });
        changed
    };
    for (method, path, id) in [
        (Method::GET, "/v1/endpoints/{}", &endpoint),
        (Method::PATCH, "/v1/endpoints/{}", &endpoint),
        (Method::DELETE, "/v1/endpoints/{}", &endpoint),
        (Method::GET, "/v1/endpoints/{}/health", &endpoint),
        (Method::POST, "/v1/endpoints/{}/enable", &endpoint),
        (Method::POST, "/v1/endpoints/{}/disable", &endpoint),
        (Method::GET, "/v1/events/{}", &event),
        (Method::GET, "/v1/events/{}/payload", &event),
        (Method::GET, "/v1/events/{}/deliveries", &event),
        (Method::GET, "/v1/deliveries/{}", &delivery),
        (Method::GET, "/v1/deliveries/{}/attempts", &delivery),
        (Method::POST, "/v1/deliveries/{}/cancel", &delivery),
        (Method::POST, "/v1/deliveries/{}/retry", &delivery),
        (Method::GET, "/v1/deliveries?endpoint_id={}", &endpoint),
    ] {
        let ask = async |id: &str| {
            let path = path.replace("{}", id);
            let body = if method == Method::PATCH { "{}" } else { "" };
            server
                .send(method.clone(), &path, Some(&stranger.key), body, &[])
                .await
                .problem(404, "not-found")
        };
        assert_eq!(ask(id).await, ask(&last(id, '0')).await, "{method} {path}");
    }
    for path in ["/v1/endpoints", "/v1/events", "/v1/deliveries"] {
        assert_eq!(
            stranger.get(path).await.expect(200)["data"],
            json!([]),
            "{path}"
        );
    }
    assert_eq!(
        stranger.publishes("a", &json!(1)).await["delivery_count"],
        0
    );
    owner
        .get(&format!("/v1/endpoints/{endpoint}"))
        .await
        .expect(200);
    let own = owner
        .get(&format!("/v1/deliveries/{delivery}"))
        .await
        .expect(200);
    assert_eq!(own["status"], "pending");
}
