//! What a delivery waits for, and what an endpoint says of its state and its secrets.

use serde_json::{Value, json};

use crate::app::{Tenant, text, world};

/// A delivery, alone and in the list, which must say the same.
async fn shown(tenant: &Tenant<'_>, id: &str) -> Value {
    let alone = tenant
        .get(&format!("/v1/deliveries/{id}"))
        .await
        .expect(200);
    let list = tenant.get("/v1/deliveries").await.expect(200);
    let mut rows = list["data"].as_array().unwrap().iter();
    assert_eq!(rows.find(|row| row["id"] == id), Some(&alone));
    alone
}

#[tokio::test]
async fn a_delivery_says_what_it_waits_for() {
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let other = server.tenant("other").await;
    let session = database.session().await;
    tenant.endpoint(json!({})).await;
    let event = tenant.publishes("a", &json!(1)).await;
    let id = text(&event["deliveries"][0]["id"]);
    let waits = async || shown(&tenant, &id).await["waiting_for"].clone();

    assert_eq!(waits().await, Value::Null, "its turn");

    // It failed once: what a worker writes.
    let failed = "WITH gone AS (DELETE FROM ready RETURNING *)
        INSERT INTO retry (slot, endpoint_id, due_at, id, event_id, tenant_id, attempts_made, attempts_charged)
        SELECT slot, endpoint_id, now() + interval '1 h', id, event_id, tenant_id, 1, 1 FROM gone";
    assert_eq!(session.execute(failed, &[]).await.unwrap(), 1);
    assert_eq!(waits().await, "retry");
    assert_eq!(shown(&tenant, &id).await["next_probe_at"], Value::Null);

    let opened = "INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, breaker, opened_at, next_probe_at)
        SELECT id, slot, tenant_id, 1, now(), '2999-01-01T00:00:00Z' FROM endpoints
        ON CONFLICT (endpoint_id) DO UPDATE SET breaker = 1, next_probe_at = excluded.next_probe_at";
    session.execute(opened, &[]).await.unwrap();
    let behind = shown(&tenant, &id).await;
    assert_eq!(behind["waiting_for"], "breaker");
    assert_eq!(behind["next_probe_at"], "2999-01-01T00:00:00Z");

    let pause = "INSERT INTO pauses (tenant_id, until, reason)
        SELECT id, now() + interval '1 h', 'test' FROM tenants WHERE name = $1";
    session.execute(pause, &[&"other"]).await.unwrap();
    assert_eq!(
        waits().await,
        "breaker",
        "another tenant's pause is none of its own"
    );
    session.execute(pause, &[&"acme"]).await.unwrap();
    assert_eq!(waits().await, "paused");
    assert_eq!(shown(&tenant, &id).await["next_probe_at"], Value::Null);
    session
        .execute("UPDATE pauses SET until = now()", &[])
        .await
        .unwrap();
    assert_eq!(waits().await, "breaker");
    // Put aside because of its type.
    session
        .execute("UPDATE retry SET slot = slot - 256", &[])
        .await
        .unwrap();
    assert_eq!(waits().await, "paused");

    tenant
        .post(&format!("/v1/deliveries/{id}/cancel"), &json!({}))
        .await
        .expect(200);
    assert_eq!(waits().await, Value::Null, "final");
    other
        .get(&format!("/v1/deliveries/{id}"))
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn of_a_line_all_but_the_head_wait_for_their_order() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({"ordered": true})).await;
    let mut ids = Vec::new();
    for key in ["a", "a", "b", "a"] {
        let event = json!({"type": "t", "payload": 1, "ordering_key": key});
        let event = tenant.post("/v1/events", &event).await.expect(202);
        ids.push(text(&event["deliveries"][0]["id"]));
    }
    let mut waiting = Vec::new();
    for id in &ids {
        waiting.push(shown(&tenant, id).await["waiting_for"].clone());
    }
    assert_eq!(
        waiting,
        [Value::Null, json!("order"), Value::Null, json!("order")]
    );

    tenant
        .post(&format!("/v1/deliveries/{}/cancel", ids[0]), &json!({}))
        .await
        .expect(200);
    assert_eq!(shown(&tenant, &ids[1]).await["waiting_for"], Value::Null);
    assert_eq!(shown(&tenant, &ids[3]).await["waiting_for"], "order");
}

/// S2: the lives of secrets are shown, never the secrets.
#[tokio::test]
async fn an_endpoint_says_why_it_is_disabled_and_how_long_its_secrets_live() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let made = tenant.endpoint(json!({})).await;
    let path = format!("/v1/endpoints/{}", text(&made["id"]));
    assert_eq!(made["disabled_reason"], Value::Null);
    assert_eq!(made["secrets"].as_array().unwrap().len(), 1);
    assert_eq!(made["secrets"][0]["expires_at"], Value::Null);

    let rotated = tenant
        .post(
            &format!("{path}/secret/rotate"),
            &json!({"overlap_seconds": 3600}),
        )
        .await
        .expect(200);
    tenant
        .post(&format!("{path}/disable"), &json!({}))
        .await
        .expect(200);

    let document = tenant.get(&path).await.expect(200);
    let list = tenant.get("/v1/endpoints").await.expect(200);
    assert_eq!(list["data"], json!([document]));
    assert_eq!(document["disabled_reason"], "by the tenant");
    let secrets = document["secrets"].as_array().unwrap();
    assert_eq!(secrets.len(), 2);
    assert_eq!(secrets[0]["expires_at"], Value::Null);
    assert_eq!(secrets[1]["expires_at"], rotated["previous_end_at"]);
    for secret in [&made["secret"], &rotated["secret"]] {
        assert!(!document.to_string().contains(&text(secret)));
    }
    let enabled = tenant
        .post(&format!("{path}/enable"), &json!({}))
        .await
        .expect(200);
    assert_eq!(enabled["disabled_reason"], Value::Null);
}
