//! Who changed what of the configuration.

use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{ADMIN, Tenant, text, world};

async fn log(tenant: &Tenant<'_>, query: &str) -> Vec<Value> {
    let list = tenant
        .get(&format!("/v1/audit-log{query}"))
        .await
        .expect(200);
    list["data"].as_array().unwrap().clone()
}

fn actions(rows: &[Value]) -> Vec<&str> {
    rows.iter()
        .map(|row| row["action"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_change_names_who_what_when_and_the_request_and_no_value() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant
        .endpoint(json!({"headers": {"x-token": "needle-header"}}))
        .await;
    let id = text(&endpoint["id"]);
    let path = format!("/v1/endpoints/{id}");

    let body =
        json!({"url": "http://127.0.0.1/needle-url", "headers": {"x-token": "needle-value"}});
    server
        .send(
            Method::PATCH,
            &path,
            Some(&tenant.key),
            body.to_string(),
            &[("x-request-id", "request-42")],
        )
        .await
        .expect(200);

    let rows = log(&tenant, &format!("?object_id={id}&action=endpoint.updated")).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = &rows[0];
    assert_eq!(row["object"], json!({"type": "endpoint", "id": id}));
    assert_eq!(row["changed"], json!(["headers", "url"]));
    assert_eq!(row["request_id"], "request-42");
    assert_eq!(row["tenant_id"], tenant.id);
    assert_eq!(row["actor"]["type"], "key");
    assert_eq!(row["actor"]["key_id"], tenant.key_id);
    let hint = text(&row["actor"]["key_hint"]);
    assert!(hint.len() == 10 && tenant.key.starts_with(&hint), "{hint}");
    assert!(row["created_at"].as_str().unwrap().ends_with('Z'));
    let session = database.session().await;
    let found = session
        .query("SELECT FROM audit_log a WHERE a::text LIKE '%needle%'", &[])
        .await
        .unwrap();
    assert!(found.is_empty());
}

#[tokio::test]
async fn every_kind_of_change_is_there_and_one_that_changes_nothing_is_not() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let id = text(&tenant.endpoint(json!({})).await["id"]);
    let path = format!("/v1/endpoints/{id}");
    for action in ["disable", "enable", "secret/rotate", "secret/revoke"] {
        let reply = tenant.post(&format!("{path}/{action}"), &json!({})).await;
        assert_eq!(reply.status, 200, "{action}");
    }
    tenant
        .post(&format!("{path}/enable"), &json!({}))
        .await
        .expect(200);
    server
        .send(
            Method::PUT,
            &format!("/v1/admin/tenants/{}/limits", tenant.id),
            Some(ADMIN),
            json!({"max_endpoints": 7}).to_string(),
            &[],
        )
        .await
        .expect(200);
    server.delete(&path, &tenant.key).await.expect(204);

    let rows = log(&tenant, "").await;

    assert_eq!(
        actions(&rows),
        [
            "endpoint.deleted",
            "limits.set",
            "endpoint.secrets_revoked",
            "endpoint.secret_rotated",
            "endpoint.enabled",
            "endpoint.disabled",
            "endpoint.created",
            "key.created",
            "tenant.created",
        ]
    );
    assert_eq!(rows[1]["actor"]["type"], "admin");
    assert_eq!(rows[1]["changed"], json!(["max_endpoints"]));
}

#[tokio::test]
async fn a_change_that_does_not_happen_is_not_logged() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let before = log(&tenant, "").await.len();

    tenant
        .post("/v1/endpoints", &json!({"url": "nonsense"}))
        .await
        .problem(422, "invalid-fields");
    server
        .delete(
            &format!(
                "/v1/admin/tenants/{}/keys/key_01kb9h2v3cfzqt9m6w8x5y7r2n",
                tenant.id
            ),
            ADMIN,
        )
        .await
        .problem(404, "not-found");

    assert_eq!(log(&tenant, "").await.len(), before);
}

#[tokio::test]
async fn a_reader_sees_what_is_theirs_and_the_operator_all_of_it() {
    // S3
    let (_database, server) = world().await;
    let (one, two) = (server.tenant("one").await, server.tenant("two").await);
    one.endpoint(json!({})).await;
    two.endpoint(json!({})).await;
    let (organization, key) = server.organization("SaaS", &json!({})).await;
    let header = [("postrider-tenant", "ext:customer")];
    let body = json!({"url": "http://127.0.0.1/hook"}).to_string();
    server
        .send(Method::POST, "/v1/endpoints", Some(&key), body, &header)
        .await
        .expect(201);

    for tenant in [&one, &two] {
        let rows = log(tenant, "").await;
        assert_eq!(
            actions(&rows),
            ["endpoint.created", "key.created", "tenant.created"]
        );
        assert!(rows.iter().all(|row| row["tenant_id"] == tenant.id));
    }
    let every = [("postrider-tenant", "*")];
    let seen = server
        .send(Method::GET, "/v1/audit-log", Some(&key), "", &every)
        .await
        .expect(200);
    let seen = seen["data"].as_array().unwrap().clone();
    assert!(
        seen.iter()
            .all(|row| row["organization_id"] == organization)
    );
    assert_eq!(
        actions(&seen),
        ["endpoint.created", "key.created", "organization.created"]
    );
    let all = server.get("/v1/admin/audit-log", ADMIN).await.expect(200);
    assert_eq!(all["data"].as_array().unwrap().len(), 9);
    let of_two = server
        .get(&format!("/v1/admin/audit-log?tenant_id={}", two.id), ADMIN)
        .await
        .expect(200);
    assert_eq!(of_two["data"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_walk_over_the_log_sees_each_row_once_while_more_are_written() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for _ in 0..5 {
        tenant.endpoint(json!({})).await;
    }
    let before: Vec<String> = log(&tenant, "")
        .await
        .iter()
        .map(|row| text(&row["id"]))
        .collect();

    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = tenant
            .get(&format!("/v1/audit-log?limit=2{cursor}"))
            .await
            .expect(200);
        seen.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| text(&row["id"])),
        );
        tenant.endpoint(json!({})).await;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }

    assert_eq!(seen, before);
}

/// Sends each body, which is to leave an entry that names these fields, or none.
async fn leave(
    tenant: &Tenant<'_>,
    (method, path, key): (Method, &str, &str),
    sent: Vec<(Value, Option<Value>)>,
) {
    for (body, expected) in sent {
        let before = log(tenant, "").await.len();
        let text = body.to_string();
        let reply = tenant
            .server
            .send(method.clone(), path, Some(key), text, &[]);
        reply.await.expect(200);
        let after = log(tenant, "").await;
        let new = &after[..after.len() - before];
        let changed: Vec<&Value> = new.iter().map(|row| &row["changed"]).collect();
        let expected: Vec<&Value> = expected.iter().collect();
        assert_eq!(changed, expected, "{method} {path} {body}");
    }
}

#[tokio::test]
async fn a_change_of_an_endpoint_names_the_fields_that_differ_and_none_leaves_no_entry() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let headers = json!({"x-token": "one"});
    let made = tenant.endpoint(json!({"headers": headers})).await;
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let shown = tenant.get(&path).await.expect(200);
    let mut whole = shown.clone();
    whole["description"] = json!("x");
    let sent = vec![
        (shown.clone(), None),
        (json!({"enabled": true, "url": shown["url"]}), None),
        (whole, Some(json!(["description"]))),
        (
            json!({"description": "x", "headers": {"x-token": "two"}}),
            Some(json!(["headers"])),
        ),
        (
            json!({"backoff": {"base_seconds": 7}, "max_pending": null}),
            Some(json!(["backoff"])),
        ),
        (
            json!({"enabled": false, "url": "http://127.0.0.1/other"}),
            Some(json!(["enabled", "url"])),
        ),
    ];
    leave(&tenant, (Method::PATCH, &path, &tenant.key), sent).await;
}

#[tokio::test]
async fn a_change_of_keys_limits_and_types_names_what_differs_and_none_leaves_no_entry() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let of_tenant = format!("/v1/admin/tenants/{}", tenant.id);
    let key = format!("{of_tenant}/keys/{}", tenant.key_id);
    let sent = vec![
        (
            json!({"name": "n", "expires_at": null}),
            Some(json!(["name"])),
        ),
        (json!({"name": "n", "rate_limit": null}), None),
    ];
    leave(&tenant, (Method::PATCH, &key, ADMIN), sent).await;

    let limits = format!("{of_tenant}/limits");
    let sent = vec![
        (
            json!({"max_endpoints": 5, "events_per_day": null}),
            Some(json!(["max_endpoints"])),
        ),
        (json!({"max_endpoints": 5}), None),
        (
            json!({"max_event_types": 7}),
            Some(json!(["max_endpoints", "max_event_types"])),
        ),
    ];
    leave(&tenant, (Method::PUT, &limits, ADMIN), sent).await;

    let schema = json!({"type": "object"});
    let both = json!({"schema": schema, "description": "d"});
    let sent = vec![
        (json!({}), Some(json!([]))),
        (json!({}), None),
        (json!({"schema": schema}), Some(json!(["schema"]))),
        (both.clone(), Some(json!(["description"]))),
        (both, None),
    ];
    let path = "/v1/event-types/a";
    leave(&tenant, (Method::PUT, path, &tenant.key), sent).await;
}
