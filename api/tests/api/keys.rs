//! Keys: who manages them, how they end, and what guessing them costs.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::testing::{TestDatabase, eventually};

use crate::app::{ADMIN, PATIENCE, Server, text, world};

async fn tenant(server: &Server, key: &str, name: &str) -> String {
    let made = server
        .post("/v1/tenants", key, &json!({"name": name}))
        .await;
    text(&made.expect(201)["id"])
}

#[tokio::test]
async fn an_organization_manages_its_tenants_keys_and_gives_no_more_than_it_has() {
    let (_database, server) = world().await;
    let all = json!(["tenants:write", "keys:write", "read", "events:write"]);
    let (_, key) = server.organization("SaaS", &json!({"scopes": all})).await;
    let (_, other) = server
        .organization("SaaS", &json!({"scopes": ["keys:write", "tenants:write"]}))
        .await;
    let (own, theirs) = (
        tenant(&server, &key, "own").await,
        tenant(&server, &other, "theirs").await,
    );
    let keys = format!("/v1/tenants/{own}/keys");

    let made = server
        .post(&keys, &key, &json!({"name": "portal"}))
        .await
        .expect(201);
    assert_eq!(made["scopes"], json!(["events:write", "read"]));
    let (made_id, made_key) = (text(&made["id"]), text(&made["key"]));
    server.get("/v1/events", &made_key).await.expect(200);
    server
        .post(&keys, &key, &json!({"scopes": ["endpoints:write"]}))
        .await
        .problem(422, "invalid-fields");
    let listed = server.get(&keys, &key).await.expect(200);
    assert_eq!(listed["data"][0]["id"], made_id);
    assert!(!listed.to_string().contains(&made_key));

    // S3: what belongs to another organization does not exist.
    let of_theirs = format!("/v1/tenants/{theirs}/keys");
    server.get(&of_theirs, &key).await.problem(404, "not-found");
    server
        .delete(&format!("{of_theirs}/{made_id}"), &key)
        .await
        .problem(404, "not-found");
    server
        .delete(&format!("/v1/tenants/{theirs}/keys/{made_id}"), &other)
        .await
        .problem(404, "not-found");
    server
        .get(&keys, &made_key)
        .await
        .problem(403, "missing-scope");

    server
        .delete(&format!("{keys}/{made_id}"), &key)
        .await
        .expect(204);
    eventually(PATIENCE, || async {
        (server.get("/v1/events", &made_key).await.status == 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_key_lives_no_longer_and_is_no_faster_than_the_key_that_makes_it() {
    let (_database, server) = world().await;
    let (id, all) = server
        .organization(
            "SaaS",
            &json!({"scopes": ["tenants:write", "keys:write", "read"]}),
        )
        .await;
    let own = tenant(&server, &all, "own").await;
    let keys = format!("/v1/tenants/{own}/keys");
    let path = format!("/v1/admin/organizations/{id}/keys");
    let (end, later) = ("2999-01-01T00:00:00Z", "2999-01-01T00:00:01Z");
    let rate = json!({"per_second": 500, "burst": 1000});
    let maker = json!({"scopes": ["keys:write", "read"], "expires_at": end, "rate_limit": rate});
    let maker = server.post(&path, ADMIN, &maker).await.expect(201);
    let maker = text(&maker["key"]);

    let made = server.post(&keys, &maker, &json!({})).await.expect(201);
    assert_eq!(
        (&made["expires_at"], &made["rate_limit"]),
        (&json!(end), &rate)
    );
    let own_path = format!("{keys}/{}", text(&made["id"]));
    for (patch, pointer) in [
        (json!({"expires_at": later}), "/expires_at"),
        (
            json!({"rate_limit": {"per_second": 501, "burst": 1}}),
            "/rate_limit",
        ),
        (
            json!({"rate_limit": {"per_second": 1, "burst": 1001}}),
            "/rate_limit",
        ),
    ] {
        for reply in [
            server.post(&keys, &maker, &patch).await,
            server.patch(&own_path, &maker, &patch).await,
        ] {
            let problem = reply.problem(422, "invalid-fields");
            assert_eq!(problem["errors"][0]["pointer"], pointer);
        }
    }
    let freed = json!({"expires_at": null, "rate_limit": null});
    let freed = server.patch(&own_path, &maker, &freed).await.expect(200);
    assert_eq!(
        (&freed["expires_at"], &freed["rate_limit"]),
        (&json!(end), &rate)
    );
    let less =
        json!({"expires_at": "2998-01-01T00:00:00Z", "rate_limit": {"per_second": 1, "burst": 1}});
    let less = server.patch(&own_path, &maker, &less).await.expect(200);
    assert_eq!(less["rate_limit"]["per_second"], 1);

    // Whose key has neither end nor limit may give both, and the operator may give anything.
    let free = json!({"expires_at": later, "rate_limit": {"per_second": 9999, "burst": 9999}});
    server.post(&keys, &all, &free).await.expect(201);
    let of_admin = format!("/v1/admin/tenants/{own}/keys");
    server.post(&of_admin, ADMIN, &free).await.expect(201);

    // What the operator set for the organization is the limit of its keys.
    let limits = format!("/v1/admin/organizations/{id}/limits");
    let set = json!({"rate_limit": {"per_second": 400, "burst": 400}}).to_string();
    let set = server
        .send(Method::PUT, &limits, Some(ADMIN), set, &[])
        .await;
    set.expect(200);
    eventually(PATIENCE, || async {
        (server.post(&keys, &all, &free).await.status == 422).then_some(())
    })
    .await;
    let made = server.post(&keys, &all, &json!({})).await.expect(201);
    assert_eq!(made["rate_limit"], Value::Null, "what is set for all");
}

#[tokio::test]
async fn a_scope_that_is_asked_for_twice_is_there_once_and_in_its_place() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let asked = json!({"scopes": ["replay", "read", "replay", "read"]});

    let made = server.post(&keys, ADMIN, &asked).await.expect(201);

    assert_eq!(made["scopes"], json!(["replay", "read"]));
    let listed = server.get(&keys, ADMIN).await.expect(200);
    assert_eq!(listed["data"][0]["scopes"], json!(["replay", "read"]));
}

#[tokio::test]
async fn what_cannot_be_changed_of_a_key_is_refused_in_words_that_help() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let path = format!("/v1/admin/tenants/{}/keys/{}", tenant.id, tenant.key_id);
    for (patch, pointer, words) in [
        (json!({"scopes": ["read"]}), "/scopes", "make another key"),
        (
            json!({"hint": "prk_"}),
            "/hint",
            "is read-only: leave it out",
        ),
        (json!({"hnit": "prk_"}), "/hnit", "is not a known field"),
    ] {
        let reply = server.patch(&path, ADMIN, &patch).await;
        let problem = reply.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], pointer);
        let detail = text(&problem["errors"][0]["detail"]);
        assert!(detail.contains(words), "{detail}");
    }
}

#[tokio::test]
async fn keys_of_tenants_need_a_scope_of_their_own() {
    let (_database, server) = world().await;
    let (_, key) = server
        .organization("SaaS", &json!({"scopes": ["tenants:write", "read"]}))
        .await;
    let own = tenant(&server, &key, "own").await;

    server
        .post(&format!("/v1/tenants/{own}/keys"), &key, &json!({}))
        .await
        .problem(403, "missing-scope");
}

#[tokio::test]
async fn a_key_that_is_made_to_expire_is_refused_by_every_process_within_two_seconds() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    let path = format!("/v1/admin/tenants/{}/keys/{}", tenant.id, tenant.key_id);
    for server in [&one, &two] {
        server.get("/v1/events", &tenant.key).await.expect(200);
    }

    let changed = one
        .patch(&path, ADMIN, &json!({"expires_at": "2020-01-01T00:00:00Z"}))
        .await
        .expect(200);
    let ended = boot_time();

    assert_eq!(changed["expires_at"], "2020-01-01T00:00:00Z");
    for server in [&one, &two] {
        eventually(PATIENCE, || async {
            (server.get("/v1/events", &tenant.key).await.status == 401).then_some(())
        })
        .await;
    }
    let took = boot_time().since(ended);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let back = one
        .patch(&path, ADMIN, &json!({"expires_at": null, "name": "again"}))
        .await
        .expect(200);
    assert_eq!(back["expires_at"], Value::Null);
    assert_eq!(back["name"], "again");
}

#[tokio::test]
async fn whoever_tries_many_keys_has_to_wait_and_whoever_has_one_does_not() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.get("/v1/events").await.expect(200);
    let guess = |number: u32| format!("prk_{number:043}");

    let mut unauthorized = 0;
    let waiting = loop {
        let reply = server.get("/v1/events", &guess(unauthorized)).await;
        if reply.status == 429 {
            break reply;
        }
        reply.problem(401, "unauthorized");
        unauthorized += 1;
        assert!(unauthorized < 2_000, "nobody had to wait");
    };

    assert!(unauthorized >= 50, "{unauthorized}");
    assert_eq!(waiting.header("retry-after"), "1");
    waiting.problem(429, "too-many-failures");
    tenant.get("/v1/events").await.expect(200);
}

#[tokio::test]
async fn the_same_wrong_key_again_and_again_is_no_guessing() {
    let (_database, server) = world().await;
    for _ in 0..200 {
        server
            .get(
                "/v1/events",
                "prk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            )
            .await
            .problem(401, "unauthorized");
    }
}

#[tokio::test]
async fn guessing_the_admin_token_is_slowed_too() {
    let (_database, server) = world().await;
    for number in 0..2_000 {
        let guess = format!("admin-token-{number:08}");
        let reply = server.get("/v1/admin/tenants", &guess).await;
        if reply.status == 429 {
            assert!(number >= 50, "{number}");
            return;
        }
        reply.problem(401, "unauthorized");
    }
    panic!("nobody had to wait");
}

#[tokio::test]
async fn it_is_noted_when_a_key_was_used() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.get("/v1/events").await.expect(200);

    // Written when the process has been asked to: at shutdown at the latest.
    server
        .send(Method::GET, "/health/live", None, "", &[])
        .await;
    let (id, key) = (tenant.id.clone(), tenant.key.clone());
    server.stop().await.unwrap();

    let server = Server::start(database.database()).await;
    let keys = format!("/v1/admin/tenants/{id}/keys");
    let listed = server.get(&keys, ADMIN).await.expect(200);
    assert!(listed["data"][0]["last_used_at"].is_string(), "{listed}");
    assert!(key.starts_with(&text(&listed["data"][0]["hint"])));
}
