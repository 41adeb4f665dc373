//! Who may do what.

use std::time::Duration;

use api::Config;
use reqwest::Method;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::app::{ADMIN, PATIENCE, Server, text, world};

#[tokio::test]
async fn a_request_without_a_valid_key_is_401_and_says_what_to_send() {
    let (_database, server) = world().await;
    let event = json!({"type": "a", "payload": 1}).to_string();
    for authorization in [
        None,
        Some("Bearer"),
        Some("Bearer "),
        Some("Basic abc"),
        Some("prk_without_scheme"),
        Some("Bearer prk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        Some("Bearer pro_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ] {
        let headers: Vec<_> = authorization
            .iter()
            .map(|value| ("authorization", *value))
            .collect();
        let reply = server
            .send(Method::POST, "/v1/events", None, event.clone(), &headers)
            .await;
        assert_eq!(reply.header("www-authenticate"), "Bearer");
        reply.problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn a_key_does_only_what_its_scopes_say() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let narrow = server
        .post(&keys, ADMIN, &json!({"name": "n", "scopes": ["read"]}))
        .await
        .expect(201);
    let narrow = text(&narrow["key"]);

    server.get("/v1/events", &narrow).await.expect(200);
    server
        .post("/v1/events", &narrow, &json!({"type": "a", "payload": 1}))
        .await
        .problem(403, "missing-scope");
    server
        .post(
            "/v1/endpoints",
            &narrow,
            &json!({"url": "http://127.0.0.1/"}),
        )
        .await
        .problem(403, "missing-scope");
    server
        .get("/v1/tenants", &narrow)
        .await
        .problem(403, "missing-scope");
    for scopes in [
        json!([]),
        json!(["everything"]),
        json!(["tenants:write"]),
        json!("read"),
    ] {
        server
            .post(&keys, ADMIN, &json!({"name": "n", "scopes": scopes}))
            .await
            .problem(422, "invalid-fields");
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_by_every_process_within_two_seconds() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    tenant.get("/v1/events").await.expect(200);
    two.get("/v1/events", &tenant.key).await.expect(200);

    one.delete(
        &format!("/v1/admin/tenants/{}/keys/{}", tenant.id, tenant.key_id),
        ADMIN,
    )
    .await
    .expect(204);
    let revoked = boot_time();

    for server in [&one, &two] {
        eventually(PATIENCE, || async {
            // In constant use: that must not keep it alive.
            (server.get("/v1/events", &tenant.key).await.status == 401).then_some(())
        })
        .await;
    }
    let took = boot_time().since(revoked);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn an_expired_key_is_refused() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.get("/v1/events").await.expect(200);

    let session = database.session().await;
    session
        .execute("UPDATE api_keys SET expires_at = now()", &[])
        .await
        .unwrap();

    eventually(PATIENCE, || async {
        (tenant.get("/v1/events").await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_admin_api_is_off_without_a_token_and_says_how_to_turn_it_on() {
    let database = TestDatabase::new().await;
    let config = Config::for_testing(database.database()).without_admin();
    let server = Server::start_with(config).await;

    let problem = server
        .post("/v1/admin/tenants", ADMIN, &json!({"name": "acme"}))
        .await
        .problem(404, "admin-api-off");

    assert!(text(&problem["detail"]).contains("POSTRIDER_ADMIN_TOKEN"));
}

#[tokio::test]
async fn the_admin_token_opens_the_admin_api_only() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;

    server
        .get("/v1/admin/tenants", &tenant.key)
        .await
        .problem(401, "unauthorized");
    server
        .get("/v1/admin/tenants", "wrong")
        .await
        .problem(401, "unauthorized");
    server
        .get("/v1/events", ADMIN)
        .await
        .problem(401, "unauthorized");
}

#[tokio::test]
async fn the_text_of_a_key_is_shown_once_and_stored_nowhere() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;

    let list = server
        .get(&format!("/v1/admin/tenants/{}/keys", tenant.id), ADMIN)
        .await
        .expect(200);

    assert!(
        tenant.key.starts_with("prk_") && tenant.key.len() == 47,
        "{}",
        tenant.key.len()
    );
    assert!(!list.to_string().contains(&tenant.key));
    let hint = text(&list["data"][0]["hint"]);
    assert!(hint.len() == 10 && tenant.key.starts_with(&hint));
    let row = database
        .session()
        .await
        .query_one(
            "SELECT count(*) FROM api_keys k WHERE position($1 IN k::text) > 0",
            &[&tenant.key],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn an_organizations_key_reaches_its_own_tenants_and_makes_them_on_first_use() {
    // S3
    let (_database, server) = world().await;
    let (organization, all) = server.organization("SaaS", &json!({})).await;
    let keys = format!("/v1/admin/organizations/{organization}/keys");
    let no_tenants = json!({"scopes": ["events:write", "read"]});
    let narrow = text(&server.post(&keys, ADMIN, &no_tenants).await.expect(201)["key"]);
    let stranger = server.tenant("somebody else").await;
    let get = async |key: &str, tenant: &str| {
        server
            .send(
                Method::GET,
                "/v1/events",
                Some(key),
                "",
                &[("postrider-tenant", tenant)],
            )
            .await
    };

    assert!(all.starts_with("pro_"));
    server
        .get("/v1/events", &all)
        .await
        .problem(400, "invalid-parameter");
    get(&narrow, "ext:acme-42").await.problem(404, "not-found");
    get(&all, "ext:acme-42").await.expect(200);
    get(&narrow, "ext:acme-42").await.expect(200);
    let tenants = server.get("/v1/tenants", &all).await.expect(200);
    assert_eq!(tenants["data"].as_array().unwrap().len(), 1);
    assert_eq!(tenants["data"][0]["external_id"], "acme-42");
    get(&narrow, &text(&tenants["data"][0]["id"]))
        .await
        .expect(200);
    get(&all, &stranger.id).await.problem(404, "not-found");
    get(&all, "tnt_nonsense")
        .await
        .problem(400, "invalid-parameter");
    for wrong in [
        "ext:",
        "ext: acme",
        "ext:ac\tme",
        &format!("ext:{}", "x".repeat(129)),
    ] {
        get(&all, wrong).await.problem(400, "invalid-parameter");
    }
    server
        .post("/v1/tenants", &narrow, &json!({"name": "x"}))
        .await
        .problem(403, "missing-scope");
    let named = json!({"name": "Globex", "external_id": "globex"});
    server.post("/v1/tenants", &all, &named).await.expect(201);
    server
        .post("/v1/tenants", &all, &named)
        .await
        .problem(409, "conflict");
    get(&stranger.key, &text(&tenants["data"][0]["id"]))
        .await
        .problem(403, "missing-scope");
    get(&stranger.key, &stranger.id).await.expect(200);
}

#[tokio::test]
async fn what_a_tenant_may_be_called_is_what_it_is_found_by() {
    let (_database, server) = world().await;
    let (_, all) = server.organization("SaaS", &json!({})).await;
    for wrong in [" x", "x ", "a\tb", "a\u{85}b"] {
        let named = json!({"name": "Globex", "external_id": wrong});
        let refused = server.post("/v1/tenants", &all, &named).await;
        let problem = refused.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], "/external_id");
    }
    for name in [
        "B\u{fc}cher & S\u{f6}hne",
        "\u{1f600}",
        "a%20b/../c",
        "*",
        "tnt_x",
    ] {
        let named = json!({"name": "Named", "external_id": name});
        let made = server.post("/v1/tenants", &all, &named).await.expect(201);
        let event = json!({"type": "a", "payload": 1}).to_string();
        let by_name = format!("ext:{name}");
        let by_name = [("postrider-tenant", by_name.as_str())];
        let posted = server.send(Method::POST, "/v1/events", Some(&all), event, &by_name);
        posted.await.expect(202);
        let id = text(&made["id"]);
        let by_id = [("postrider-tenant", id.as_str())];
        let listed = server.send(Method::GET, "/v1/events", Some(&all), "", &by_id);
        let listed = listed.await.expect(200);
        assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{name}");
    }
}

#[tokio::test]
async fn parallel_first_uses_of_a_tenants_name_make_one_tenant() {
    let (_database, server) = world().await;
    let (_, key) = server.organization("SaaS", &json!({})).await;
    let event = json!({"type": "a", "payload": 1}).to_string();
    let header = [("postrider-tenant", "ext:new")];

    let posts = (0..20).map(|_| {
        server.send(
            Method::POST,
            "/v1/events",
            Some(&key),
            event.clone(),
            &header,
        )
    });
    for reply in futures_util::future::join_all(posts).await {
        reply.expect(202);
    }

    let tenants = server.get("/v1/tenants", &key).await.expect(200);
    assert_eq!(tenants["data"].as_array().unwrap().len(), 1);
}

/// S2, F24: the URL is often the receiver's credential. What may write endpoints may not therefore read them.
#[tokio::test]
async fn a_key_that_writes_endpoints_and_does_not_read_is_never_shown_url_or_metadata() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let writes = json!({"scopes": ["endpoints:write", "events:write", "replay"]});
    let writer = text(&server.post(&keys, ADMIN, &writes).await.expect(201)["key"]);
    let document = json!({
        "url": "https://bücher.example/t0ken?key=t0ken",
        "description": "shown",
        "metadata": {"key": "t0ken"},
        "headers": {"authorization": "t0ken"},
    });
    let made = server.post("/v1/endpoints", &writer, &document).await;
    let made = made.expect(201);
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    let post = async |verb: &str, key: &str| {
        let path = format!("{path}/{verb}");
        server.post(&path, key, &json!({})).await.expect(200)
    };
    let patch = async |key: &str, patch: Value| server.patch(&path, key, &patch).await.expect(200);

    let shown = [
        made.clone(),
        patch(&writer, json!({})).await,
        patch(&writer, json!({"url": "https://b.example/t0ken2"})).await,
        post("disable", &writer).await,
        post("enable", &writer).await,
    ];

    for document in shown {
        let text = document.to_string();
        assert!(
            !text.contains("t0ken") && !text.contains("example"),
            "{text}"
        );
        assert_eq!(document["description"], "shown");
        assert_eq!(document["headers"]["authorization"], "***");
    }
    // A document that is sent back as it was shown changes nothing.
    let back = patch(&writer, json!({})).await;
    assert_eq!(patch(&writer, back.clone()).await, back);
    // Nor is it a way to find out what is not shown.
    let guess = json!({"url_unicode": "https://b.example/t0ken2"});
    let guessed = server.patch(&path, &writer, &guess).await;
    guessed.problem(422, "invalid-fields");
    for document in [
        tenant.get(&path).await.expect(200),
        patch(&tenant.key, json!({})).await,
        post("disable", &tenant.key).await,
    ] {
        assert_eq!(document["url"], "https://b.example/t0ken2");
        assert_eq!(document["metadata"]["key"], "t0ken");
    }
}
