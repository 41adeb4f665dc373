//! The journal: events are accepted on local disk while the database is away (review 24).

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use api::Config;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;
use shared::store::{Database, Role};
use shared::testing::{TestCluster, eventually};

use crate::app::{PATIENCE, Reply, Server, Tenant, text};

const ROOM: u64 = 16 << 20;

fn config(database: Database, journal: &Path) -> Config {
    Config::for_testing(database)
        .with_deadline(Duration::from_secs(2))
        .with_journal(journal.to_owned(), ROOM)
}

/// Posts an event with an `Idempotency-Key`.
async fn post_once(tenant: &Tenant<'_>, key: &str, event: &Value) -> Reply {
    let body = event.to_string();
    let headers = [("Idempotency-Key", key)];
    let method = reqwest::Method::POST;
    tenant
        .server
        .send(method, "/v1/events", Some(&tenant.key), body, &headers)
        .await
}

/// What a local 202 says (e).
fn accepted_here(reply: Reply) -> String {
    let body = reply.expect(202);
    assert_eq!(body["durability"], "local", "{body}");
    assert_eq!(body["deliveries"], Value::Null);
    assert_eq!(body["delivery_count"], Value::Null);
    text(&body["id"])
}

async fn emptied(journal: &Path) {
    eventually(PATIENCE, || async {
        (api::journal::inspect(journal).unwrap().events == 0).then_some(())
    })
    .await;
}

/// D2: what is acknowledged while the database is away is delivered to whom the configuration names when it is back.
#[tokio::test]
async fn d2_events_are_accepted_without_the_database_and_are_in_it_afterwards() {
    let mut cluster = TestCluster::new().await;
    let journal = tempfile::tempdir().unwrap();
    let server = Server::start_with(config(cluster.database(), journal.path())).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let direct = tenant.publishes("a", &json!(0)).await;
    assert_eq!(direct.get("durability"), None, "{direct}");
    assert_eq!(direct["delivery_count"], 1);

    cluster.stop().await.unwrap();
    let mut ids = HashSet::new();
    for number in 1..=20 {
        let asked = boot_time();
        let event =
            json!({"type": "a", "payload": {"n": number}, "external_id": format!("e{number}")});
        ids.insert(accepted_here(tenant.post("/v1/events", &event).await));
        assert!(
            boot_time().since(asked) < Duration::from_secs(6),
            "within the deadline"
        );
    }
    let batch = json!({"events": [
        {"type": "a", "payload": 1}, {"type": "not legal!", "payload": 2}, {"type": "b", "payload": 3},
    ]});
    let reply = tenant.post("/v1/events/batch", &batch).await.expect(200);
    assert_eq!(reply["data"][0]["durability"], "local", "{reply}");
    assert_eq!(reply["data"][1]["status"], 422);
    ids.extend([&reply["data"][0]["id"], &reply["data"][2]["id"]].map(text));
    assert_eq!(ids.len(), 22);
    assert_eq!(api::journal::inspect(journal.path()).unwrap().events, 22);
    server.ready().await;
    tenant.get("/v1/events").await.problem(503, "unavailable");

    cluster.start().await.unwrap();
    emptied(journal.path()).await;
    for id in &ids {
        let event = tenant.get(&format!("/v1/events/{id}")).await.expect(200);
        assert_eq!(event["id"], **id);
        assert_eq!(event["delivery_count"], 1, "fan-out at replay");
    }
    let payload = ids.iter().next().unwrap();
    tenant
        .get(&format!("/v1/events/{payload}/payload"))
        .await
        .expect(200);
    let listed = tenant.get("/v1/events?limit=250").await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 23, "each once");
    let direct = tenant.publishes("a", &json!(0)).await;
    assert_eq!(direct.get("durability"), None, "{direct}");
    let sql = cluster.database().connect(Role::Maintenance).await.unwrap();
    let waiting = sql
        .query_one("SELECT count(*) FROM ready", &[])
        .await
        .unwrap();
    assert_eq!(waiting.get::<_, i64>(0), 24, "D1: with their deliveries");
}

/// (a), (d): who is not known, or whose events have an order, is told to come again.
#[tokio::test]
async fn what_cannot_be_promised_is_refused_while_the_database_is_away() {
    let mut cluster = TestCluster::new().await;
    let journal = tempfile::tempdir().unwrap();
    let believed = Duration::from_secs(1);
    let config = config(cluster.database(), journal.path()).with_believed(believed);
    let server = Server::start_with(config).await;
    server.ready().await;
    let (tenant, unused) = (server.tenant("acme").await, server.tenant("other").await);
    tenant.publishes("a", &json!(0)).await;
    // An organization's key, and the tenant that it names.
    let scopes = json!({"name": "backend", "scopes": ["events:write", "tenants:write"]});
    let (_, organization) = server.organization("saas", &scopes).await;
    let for_shop = async || {
        let body = json!({"type": "a", "payload": 1}).to_string();
        let headers = [("Postrider-Tenant", "ext:shop")];
        let method = reqwest::Method::POST;
        server
            .send(method, "/v1/events", Some(&organization), body, &headers)
            .await
    };
    // Its key was confirmed long before the outage.
    let forgotten = server.tenant("forgotten").await;
    forgotten.publishes("a", &json!(0)).await;
    let used = boot_time();
    eventually(PATIENCE, || async {
        tenant.publishes("a", &json!(0)).await;
        for_shop().await.expect(202);
        (boot_time().since(used) > believed * 4).then_some(())
    })
    .await;

    cluster.stop().await.unwrap();
    let stopped = boot_time();
    let event = json!({"type": "a", "payload": 1});
    let away = |reply: Reply| {
        assert_eq!(reply.header("retry-after"), "1");
        reply.problem(503, "unavailable");
    };
    // Much longer than a key is believed without a journal.
    eventually(PATIENCE, || async {
        accepted_here(tenant.post("/v1/events", &event).await);
        accepted_here(for_shop().await);
        (boot_time().since(stopped) > believed * 6).then_some(())
    })
    .await;
    away(unused.post("/v1/events", &event).await);
    away(forgotten.post("/v1/events", &event).await);
    let ordered = json!({"type": "a", "payload": 1, "ordering_key": "k"});
    away(tenant.post("/v1/events", &ordered).await);

    cluster.start().await.unwrap();
    emptied(journal.path()).await;
    forgotten.publishes("a", &json!(0)).await;
    tenant.post("/v1/events", &ordered).await.expect(202);
}

/// A key stands for one event, here as in the database, and before and after the outage.
#[tokio::test]
async fn a_key_stands_for_one_event_across_the_outage() {
    let mut cluster = TestCluster::new().await;
    let journal = tempfile::tempdir().unwrap();
    let server = Server::start_with(config(cluster.database(), journal.path())).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    let event = |n: u32| json!({"type": "a", "payload": n});
    let before = post_once(&tenant, "before", &event(1)).await.expect(202);

    cluster.stop().await.unwrap();
    let first = accepted_here(post_once(&tenant, "during", &event(1)).await);
    let again = accepted_here(post_once(&tenant, "during", &event(1)).await);
    assert_eq!(first, again);
    let other = post_once(&tenant, "during", &event(2)).await;
    other.problem(422, "idempotency-mismatch");
    // What the key stands for in the database is not known here: it becomes an alias.
    let alias = accepted_here(post_once(&tenant, "before", &event(1)).await);
    assert_ne!(before["id"], alias);

    cluster.start().await.unwrap();
    emptied(journal.path()).await;
    let after = post_once(&tenant, "during", &event(1)).await.expect(202);
    assert_eq!(after["id"], first);
    let found = tenant.get(&format!("/v1/events/{alias}")).await.expect(200);
    assert_eq!(found["id"], alias);
    assert_eq!(found["duplicate_of"], before["id"]);
    let listed = tenant.get("/v1/events").await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    // S3
    let stranger = server.tenant("stranger").await;
    stranger
        .get(&format!("/v1/events/{alias}"))
        .await
        .problem(404, "not-found");
}

/// (b): two processes accept one key: one event, and the id that the other one gave leads to it.
#[tokio::test]
async fn two_processes_that_accept_one_key_make_one_event() {
    let mut cluster = TestCluster::new().await;
    let journals = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Server::start_with(config(cluster.database(), journals[0].path())).await;
    let two = Server::start_with(config(cluster.database(), journals[1].path())).await;
    one.ready().await;
    two.ready().await;
    let tenant = one.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let event = json!({"type": "a", "payload": 1, "external_id": "A-17"});
    let at_two = Tenant {
        server: &two,
        id: tenant.id.clone(),
        key: tenant.key.clone(),
        key_id: tenant.key_id.clone(),
    };
    at_two.get("/v1/events").await.expect(200);

    cluster.stop().await.unwrap();
    let ids = [
        accepted_here(tenant.post("/v1/events", &event).await),
        accepted_here(at_two.post("/v1/events", &event).await),
    ];
    assert_ne!(ids[0], ids[1]);
    cluster.start().await.unwrap();
    for journal in &journals {
        emptied(journal.path()).await;
    }
    let mut originals = Vec::new();
    for id in &ids {
        let found = tenant.get(&format!("/v1/events/{id}")).await.expect(200);
        assert_eq!(found["delivery_count"], 1);
        assert_eq!(found["external_id"], "A-17");
        if found.get("duplicate_of").is_none() {
            originals.push(id.clone());
        } else {
            assert!(ids.contains(&text(&found["duplicate_of"])));
        }
    }
    assert_eq!(originals.len(), 1, "one exists, the other leads to it");
    let listed = tenant.get("/v1/events").await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
}

/// A process that ends leaves its journal to the next one; a full journal refuses.
#[tokio::test]
async fn a_journal_outlives_its_process_and_is_bounded() {
    let mut cluster = TestCluster::new().await;
    let journal = tempfile::tempdir().unwrap();
    let small = Config::for_testing(cluster.database())
        .with_deadline(Duration::from_secs(2))
        .with_journal(journal.path().to_owned(), 8_192);
    let server = Server::start_with(small).await;
    server.ready().await;
    let tenant = server.tenant("acme").await;
    tenant.publishes("a", &json!(0)).await;
    cluster.stop().await.unwrap();
    let event = json!({"type": "a", "payload": "x".repeat(1_000)});
    let mut accepted = Vec::new();
    let full = loop {
        let reply = tenant.post("/v1/events", &event).await;
        if reply.status != 202 {
            break reply;
        }
        accepted.push(accepted_here(reply));
        assert!(accepted.len() < 20);
    };
    assert_eq!(full.header("retry-after"), "1");
    let problem = full.problem(503, "unavailable");
    assert!(
        text(&problem["detail"]).contains("as many events wait"),
        "{problem}"
    );
    assert!(accepted.len() >= 4, "{}", accepted.len());
    let (key, id) = (tenant.key.clone(), tenant.id.clone());
    server.stop().await.unwrap();

    cluster.start().await.unwrap();
    let server = Server::start_with(config(cluster.database(), journal.path())).await;
    emptied(journal.path()).await;
    let tenant = Tenant {
        server: &server,
        id,
        key,
        key_id: String::new(),
    };
    let listed = tenant.get("/v1/events").await.expect(200);
    let listed: HashSet<String> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| text(&it["id"]))
        .collect();
    assert!(accepted.iter().all(|id| listed.contains(id)));
    assert_eq!(listed.len(), accepted.len() + 1);
}
