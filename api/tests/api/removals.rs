//! Deletion of tenants, organizations and payloads.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::{EndpointId, EventId, Incarnation, TenantId};
use shared::runtime::clock::boot_time;
use shared::store::leases;
use shared::store::removals::{self, Progress};
use shared::store::{Role, Session};
use shared::testing::{TestDatabase, eventually};
use uuid::Uuid;

use crate::app::{ADMIN, PATIENCE, Server, Tenant, text, world};
use crate::organization_lists::Organization;

const NEEDLE: &str = "needle-in-the-payload";

/// Does what the worker's job does until nothing is left to do, without its waits.
pub(crate) async fn work_off(database: &TestDatabase) {
    let mut session = database.database().connect(Role::Worker).await.unwrap();
    let owner = Uuid::new_v4();
    session
        .execute(
            "INSERT INTO workers (id, expires_at) VALUES ($1, now() + interval '1 h')",
            &[&owner],
        )
        .await
        .unwrap();
    let lease = leases::acquire(&session, "removal", Incarnation(owner)).await;
    let lease = lease.unwrap().unwrap();
    for _ in 0..2_000 {
        session
            .execute("UPDATE removals SET not_before = now()", &[])
            .await
            .unwrap();
        if removals::advance(&mut session, &lease).await.unwrap() == Progress::Idle {
            return;
        }
    }
    panic!("it does not end");
}

/// Tables, partitions included, with a row in which this text is, as it is or as bytes.
pub(crate) async fn tables_with(session: &Session, needle: &str) -> Vec<String> {
    let hex: String = needle.bytes().map(|byte| format!("{byte:02x}")).collect();
    let tables = session
        .query(
            "SELECT c.oid::regclass::text FROM pg_class c
             WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace",
            &[],
        )
        .await
        .unwrap();
    let mut found = Vec::new();
    for table in tables {
        let table: String = table.get(0);
        let query = format!(
            "SELECT FROM {table} r WHERE position($1 IN r::text) > 0 OR position($2 IN r::text) > 0 LIMIT 1"
        );
        if !session
            .query(&query, &[&needle, &hex])
            .await
            .unwrap()
            .is_empty()
        {
            found.push(table);
        }
    }
    found
}

/// Rows that name this tenant, by table.
async fn rows_of(session: &Session, tenant: i32) -> Vec<(String, i64)> {
    let tables = session
        .query(
            "SELECT table_name::text FROM information_schema.columns
             WHERE table_schema = 'public' AND column_name = 'tenant_id'",
            &[],
        )
        .await
        .unwrap();
    let mut found = Vec::new();
    for table in tables {
        let table: String = table.get(0);
        let query = format!("SELECT count(*) FROM {table} WHERE tenant_id = $1");
        let count: i64 = session.query_one(&query, &[&tenant]).await.unwrap().get(0);
        if count > 0 {
            found.push((table, count));
        }
    }
    found
}

async fn key_inside(session: &Session, id: &str) -> i32 {
    let id: TenantId = id.parse().unwrap();
    let query = "SELECT id FROM tenants WHERE public_id = $1";
    session.query_one(query, &[&id.0]).await.unwrap().get(0)
}

/// An event with a waiting delivery, and one that sent it again: a dead letter with an attempt whose response repeats the
/// payload.
async fn event_with_history(session: &Session, tenant: &Tenant<'_>, size: usize) -> String {
    let filler = "x".repeat(size);
    let published = tenant
        .publishes("order.created", &json!({"text": NEEDLE, "filler": filler}))
        .await;
    let id = text(&published["id"]);
    let event: EventId = id.parse().unwrap();
    let key = key_inside(session, &tenant.id).await;
    let dead = shared::ids::new_v7(shared::ids::created_at(event.0));
    session
        .execute(
            "INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
             SELECT $1, $2, id, $3, 1, 5, 0, $2 FROM endpoints WHERE tenant_id = $1 LIMIT 1",
            &[&key, &dead, &event.0],
        )
        .await
        .unwrap();
    session
        .execute(
            "INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id)
             SELECT $1, $2, id, $3 FROM endpoints WHERE tenant_id = $1 LIMIT 1",
            &[&key, &dead, &event.0],
        )
        .await
        .unwrap();
    session
        .execute(
            "INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version,
               total_ms, outcome, status, applied, response)
             SELECT $1, $2, 1, 1, now(), id, $3, 1, 5, 2, 500::int2, true, $4 FROM endpoints WHERE tenant_id = $1 LIMIT 1",
            &[&key, &dead, &event.0, &NEEDLE.as_bytes()],
        )
        .await
        .unwrap();
    id
}

#[tokio::test]
async fn an_expunged_payload_is_in_no_table_and_nothing_of_it_is_sent() {
    let (database, server) = world().await;
    let session = database.session().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    // Past 2 KB it is stored apart from its row.
    let event = event_with_history(&session, &tenant, 100_000).await;
    let kept = tenant.publishes("order.created", &json!("kept")).await;
    assert!(!tables_with(&session, NEEDLE).await.is_empty());

    let path = format!("/v1/events/{event}/payload");
    let begun = server.delete(&path, &tenant.key).await.expect(202);
    server
        .get(&path, &tenant.key)
        .await
        .problem(410, "expunged");
    work_off(&database).await;

    assert_eq!(tables_with(&session, NEEDLE).await, Vec::<String>::new());
    let shown = tenant.get(&format!("/v1/events/{event}")).await.expect(200);
    assert_eq!(shown["payload_bytes"], 0);
    let deliveries = tenant
        .get(&format!("/v1/events/{event}/deliveries"))
        .await
        .expect(200);
    assert_eq!(deliveries["data"][0]["status"], "cancelled");
    assert_eq!(deliveries["data"][0]["close_reason"], "expunged");
    let dead = tenant
        .get("/v1/deliveries?status=dead_letter")
        .await
        .expect(200);
    assert_eq!(
        dead["data"][0]["dead_letter_reason"],
        "the payload was expunged"
    );
    let removal = tenant
        .get(&format!("/v1/removals/{}", text(&begun["id"])))
        .await
        .expect(200);
    assert_eq!(removal["status"], "done");
    assert_eq!(removal["object_id"], event);
    let other = format!("/v1/events/{}", text(&kept["id"]));
    let bytes = tenant.get(&format!("{other}/payload")).await.bytes;
    assert_eq!(bytes, b"\"kept\"");
    let waits = tenant.get(&format!("{other}/deliveries")).await.expect(200);
    assert_eq!(waits["data"][0]["status"], "pending");
}

#[tokio::test]
async fn what_is_secret_of_a_deleted_endpoint_is_removed_and_its_history_is_still_shown() {
    let (database, server) = world().await;
    let session = database.session().await;
    let tenant = server.tenant("acme").await;
    let settings = json!({"headers": {"Authorization": "Bearer x"}, "signing": ["v1", "v1a"]});
    let endpoint = tenant.endpoint(settings).await;
    let other = tenant.endpoint(json!({})).await;
    let id = text(&endpoint["id"]);
    event_with_history(&session, &tenant, 10).await;
    // One of its deliveries is held back by a pause, where its owner does not look.
    session
        .batch_execute(
            "UPDATE endpoints SET sealed_client_certificate = 'x';
             UPDATE ready SET slot = slot - 256 WHERE endpoint_id = (SELECT min(id) FROM endpoints)",
        )
        .await
        .unwrap();

    let path = format!("/v1/endpoints/{id}");
    server.delete(&path, &tenant.key).await.expect(204);
    work_off(&database).await;

    let secrets = session
        .query(
            "SELECT e.id FROM endpoints e WHERE e.sealed_headers IS NOT NULL OR e.sealed_client_certificate IS NOT NULL
             UNION ALL SELECT endpoint_id FROM endpoint_secrets UNION ALL SELECT endpoint_id FROM endpoint_key_pairs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        secrets.len(),
        2,
        "the certificate and the secret of the other one"
    );
    let query = "SELECT DISTINCT e.public_id FROM endpoint_secrets s JOIN endpoints e ON e.id = s.endpoint_id";
    let whose: Uuid = session.query_one(query, &[]).await.unwrap().get(0);
    assert_eq!(EndpointId(whose).to_string(), text(&other["id"]));
    let of_it = format!("/v1/deliveries?endpoint_id={id}");
    let deliveries = tenant.get(&of_it).await.expect(200);
    let deliveries = deliveries["data"].as_array().unwrap();
    assert!(deliveries.iter().all(|it| it["endpoint_id"] == id.as_str()));
    let of = |status: &str| {
        let found: Vec<&Value> = deliveries
            .iter()
            .filter(|it| it["status"] == status)
            .collect();
        assert_eq!(found.len(), 1, "{status}: {deliveries:?}");
        found[0].clone()
    };
    assert_eq!(of("cancelled")["close_reason"], "endpoint_deleted");
    let attempts = format!("/v1/deliveries/{}/attempts", text(&of("dead_letter")["id"]));
    let attempts = tenant.get(&attempts).await.expect(200);
    assert_eq!(attempts["data"][0]["url"], endpoint["url"]);
    let dead = tenant.get("/v1/dead-letters").await.expect(200);
    assert_eq!(dead["data"][0]["endpoint_id"], id.as_str());
    tenant.get(&path).await.problem(404, "not-found");
    let removals = server.get("/v1/admin/removals", ADMIN).await.expect(200);
    let removal = &removals["data"][0];
    assert_eq!(
        (&removal["kind"], &removal["status"]),
        (&json!("endpoint"), &json!("done"))
    );
    assert_eq!(removal["object_id"], id.as_str());
}

#[tokio::test]
async fn all_payloads_of_a_tenant_are_expunged_and_nobody_elses() {
    let (database, server) = world().await;
    let session = database.session().await;
    let (one, two) = (server.tenant("one").await, server.tenant("two").await);
    for tenant in [&one, &two] {
        tenant.endpoint(json!({})).await;
    }
    for size in [10, 10_000, 100_000] {
        event_with_history(&session, &one, size).await;
    }
    let theirs = two.publishes("a", &json!("theirs")).await;

    let begun = one.post("/v1/expunge", &json!({})).await.expect(202);
    assert_eq!(begun["object_id"], one.id);
    work_off(&database).await;

    assert_eq!(tables_with(&session, NEEDLE).await, Vec::<String>::new());
    let events = one.get("/v1/events").await.expect(200);
    let events = events["data"].as_array().unwrap().clone();
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event["payload_bytes"] == 0));
    assert_eq!(
        one.get("/v1/deliveries?status=pending").await.expect(200)["data"],
        json!([])
    );
    let path = format!("/v1/events/{}/payload", text(&theirs["id"]));
    assert_eq!(two.get(&path).await.bytes, b"\"theirs\"");
    // What comes afterwards is an event like any other.
    let later = one.publishes("a", &json!("later")).await;
    let path = format!("/v1/events/{}/payload", text(&later["id"]));
    assert_eq!(one.get(&path).await.bytes, b"\"later\"");
}

#[tokio::test]
async fn a_deleted_tenant_is_stopped_at_once_everywhere_and_then_gone() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let session = database.session().await;
    let (gone, stays) = (one.tenant("gone").await, one.tenant("stays").await);
    for tenant in [&gone, &stays] {
        tenant.endpoint(json!({})).await;
        event_with_history(&session, tenant, 5_000).await;
        two.get("/v1/events", &tenant.key).await.expect(200);
    }
    let (key, other) = (
        key_inside(&session, &gone.id).await,
        key_inside(&session, &stays.id).await,
    );
    let before = rows_of(&session, other).await;

    let path = format!("/v1/admin/tenants/{}", gone.id);
    let begun = one.delete(&path, ADMIN).await.expect(202);
    let deleted = boot_time();
    for server in [&one, &two] {
        eventually(PATIENCE, || async {
            (server.get("/v1/events", &gone.key).await.status == 401).then_some(())
        })
        .await;
    }
    let took = boot_time().since(deleted);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let enabled = "SELECT FROM endpoints WHERE tenant_id = $1 AND state <> 3";
    assert!(session.query(enabled, &[&key]).await.unwrap().is_empty());
    one.delete(&path, ADMIN).await.problem(404, "not-found");
    work_off(&database).await;

    let left = rows_of(&session, key).await;
    let tables: Vec<&str> = left.iter().map(|(table, _)| table.as_str()).collect();
    assert!(
        tables
            .iter()
            .all(|table| ["audit_log", "removals", "commands"].contains(table)),
        "{left:?}"
    );
    assert_eq!(rows_of(&session, other).await, before);
    let removal = format!("/v1/admin/removals/{}", text(&begun["id"]));
    let removal = one.get(&removal, ADMIN).await.expect(200);
    assert_eq!(removal["status"], "done");
    assert!(removal["finished_at"].is_string());
    stays.get("/v1/events").await.expect(200);
}

#[tokio::test]
async fn a_deleted_organization_takes_its_tenants_with_it() {
    let (database, server) = world().await;
    let session = database.session().await;
    let (gone, stays) = (
        Organization::new(&server).await,
        Organization::new(&server).await,
    );
    let event = json!({"type": "a", "payload": NEEDLE});
    for name in ["ext:a", "ext:b"] {
        gone.send(Method::POST, "/v1/events", name, &event)
            .await
            .expect(202);
    }
    stays
        .send(
            Method::POST,
            "/v1/events",
            "ext:a",
            &json!({"type": "a", "payload": 1}),
        )
        .await
        .expect(202);

    server
        .delete(&format!("/v1/admin/organizations/{}", gone.id), ADMIN)
        .await
        .expect(202);
    eventually(PATIENCE, || async {
        let reply = gone
            .send(Method::GET, "/v1/events", "ext:a", &Value::Null)
            .await;
        (reply.status == 401).then_some(())
    })
    .await;
    work_off(&database).await;

    assert_eq!(tables_with(&session, NEEDLE).await, Vec::<String>::new());
    let left = session.query("SELECT FROM organizations", &[]).await;
    assert_eq!(left.unwrap().len(), 1);
    let list = stays
        .send(Method::GET, "/v1/events", "*", &Value::Null)
        .await;
    assert_eq!(list.expect(200)["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_organization_deletes_its_own_tenants_only_and_their_names_are_free_at_once() {
    // S3
    let (database, server) = world().await;
    let (one, two) = (
        Organization::new(&server).await,
        Organization::new(&server).await,
    );
    let event = json!({"type": "a", "payload": 1});
    for organization in [&one, &two] {
        organization
            .send(Method::POST, "/v1/events", "ext:a", &event)
            .await
            .expect(202);
    }
    let tenants = server.get("/v1/tenants", &one.key).await.expect(200);
    let first = text(&tenants["data"][0]["id"]);
    let path = format!("/v1/tenants/{first}");

    server
        .delete(&path, &two.key)
        .await
        .problem(404, "not-found");
    server.get(&path, &two.key).await.problem(404, "not-found");
    let alone = server.tenant("alone").await;
    server
        .delete(&path, &alone.key)
        .await
        .problem(403, "missing-scope");
    let shown = server.get(&path, &one.key).await.expect(200);
    assert_eq!(shown["external_id"], "a");
    let begun = server.delete(&path, &one.key).await.expect(202);
    // Everywhere within two seconds; here as soon as the process has looked.
    let second = eventually(PATIENCE, || async {
        one.send(Method::POST, "/v1/events", "ext:a", &event).await;
        let tenants = server.get("/v1/tenants", &one.key).await.expect(200);
        let found = tenants["data"][0]["id"].as_str().map(str::to_owned);
        found.filter(|id| *id != first)
    })
    .await;
    assert_ne!(second, first);
    work_off(&database).await;
    let removal = format!("/v1/removals/{}", text(&begun["id"]));
    let removal = one.send(Method::GET, &removal, "*", &Value::Null).await;
    assert_eq!(removal.expect(200)["status"], "done");
    let of_two = format!("/v1/removals/{}", text(&begun["id"]));
    two.send(Method::GET, &of_two, "*", &Value::Null)
        .await
        .problem(404, "not-found");
}
