//! Publishing: D1, D2, P1, exact fan-out, bad rows, a database that goes away.

use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::EventId;

use crate::app::{text, world};

fn uuid(id: &Value) -> uuid::Uuid {
    text(id).parse::<EventId>().unwrap().0
}

#[tokio::test]
async fn an_event_and_its_deliveries_commit_together_and_are_there_when_202_is_answered() {
    // D1, D2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let wanted = tenant.endpoint(json!({"event_types": ["order.*"]})).await;
    tenant
        .endpoint(json!({"event_types": ["invoice.paid"]}))
        .await;
    let disabled = tenant.endpoint(json!({"enabled": false})).await;

    let accepted = tenant.publishes("order.created", &json!({"n": 1})).await;

    assert_eq!(accepted["delivery_count"], 2);
    assert_eq!(accepted["type"], "order.created");
    let statuses: Vec<_> = accepted["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|delivery| (text(&delivery["endpoint_id"]), text(&delivery["status"])))
        .collect();
    assert!(
        statuses.contains(&(text(&wanted["id"]), "pending".to_owned())),
        "{statuses:?}"
    );
    assert!(
        statuses.contains(&(text(&disabled["id"]), "skipped".to_owned())),
        "{statuses:?}"
    );
    let row = database
        .session()
        .await
        .query_one(
            "SELECT cardinality(fan_delivery), (SELECT count(*) FROM ready r WHERE r.event_id = e.id),
                    (SELECT count(*) FROM closed c WHERE c.event_id = e.id AND c.status = 7 AND c.reason = 1)
             FROM events e WHERE id = $1",
            &[&uuid(&accepted["id"])],
        )
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, i32>(0),
            row.get::<_, i64>(1),
            row.get::<_, i64>(2)
        ),
        (2, 1, 1)
    );
}

#[tokio::test]
async fn a_payload_is_stored_byte_for_byte() {
    // P1
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let payloads = [
        r#"{ "b" : 1,"a":1.0,  "a":2e0, "nul":"\u0000", "lone":"\ud800", "é":"\u00e9" }"#,
        "null",
        "\"text\"",
        "123456789012345678901234567890.000",
        "[ ]",
    ];
    for payload in payloads {
        let body = format!("{{\"type\":\"a.b\",\n \"payload\":  {payload}  }}");

        let accepted = server
            .send(Method::POST, "/v1/events", Some(&tenant.key), body, &[])
            .await
            .expect(202);

        let row = database
            .session()
            .await
            .query_one(
                "SELECT payload FROM events WHERE id = $1",
                &[&uuid(&accepted["id"])],
            )
            .await
            .unwrap();
        assert_eq!(String::from_utf8(row.get(0)).unwrap(), payload);
    }
}
