//! Lists: a walk sees every row that existed throughout, once, whatever is written meanwhile.

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use crate::app::{Tenant, text, world};

#[tokio::test]
async fn a_walk_sees_every_row_that_existed_throughout_once_under_concurrent_writes() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    for kind in ["/v1/events", "/v1/deliveries"] {
        let mut before = Vec::new();
        for n in 0..25 {
            let event = tenant.publishes("a", &json!(n)).await;
            before.push(match kind {
                "/v1/events" => text(&event["id"]),
                _ => text(&event["deliveries"][0]["id"]),
            });
        }

        let mut seen = Vec::new();
        let mut path = format!("{kind}?limit=4");
        loop {
            let page = tenant.get(&path).await.expect(200);
            seen.extend(
                page["data"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|row| text(&row["id"])),
            );
            // Between two pages something is written, and something moves to another table.
            let event = tenant.publishes("a", &json!("meanwhile")).await;
            let moved = text(&event["deliveries"][0]["id"]);
            tenant
                .post(&format!("/v1/deliveries/{moved}/cancel"), &json!({}))
                .await
                .expect(200);
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            path = format!("{kind}?limit=4&cursor={cursor}");
        }

        let mut newest_first = seen.clone();
        newest_first.sort();
        newest_first.reverse();
        newest_first.dedup();
        assert_eq!(seen, newest_first, "in order, none twice");
        assert!(before.iter().all(|id| seen.contains(id)), "none missing");
    }
}

#[tokio::test]
async fn a_cursor_belongs_to_its_filters() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for n in 0..3 {
        tenant.publishes("a", &json!(n)).await;
    }
    let page = tenant.get("/v1/events?type=a&limit=1").await.expect(200);
    let cursor = text(&page["next_cursor"]);

    tenant
        .get(&format!("/v1/events?type=a&limit=2&cursor={cursor}"))
        .await
        .expect(200);
    for other in [
        "/v1/events?type=b",
        "/v1/events?limit=1",
        "/v1/deliveries?limit=1",
    ] {
        let joined = format!("{other}&cursor={cursor}");
        tenant.get(&joined).await.problem(400, "invalid-parameter");
    }
}

#[tokio::test]
async fn since_is_inclusive_and_until_is_exclusive() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let event = tenant.publishes("a", &json!(1)).await;
    let created = text(&event["created_at"]);
    let at = time::OffsetDateTime::parse(&created, &Rfc3339).unwrap();
    let after = |micros: i64| {
        (at + time::Duration::microseconds(micros))
            .format(&Rfc3339)
            .unwrap()
    };
    for (filter, expected) in [
        (format!("since={created}"), 1),
        (format!("since={}", after(1)), 0),
        (format!("since={}", after(-1)), 1),
        (format!("until={created}"), 0),
        (format!("until={}", after(1)), 1),
        (format!("since={created}&until={}", after(1000)), 1),
        (format!("type=a&since={created}"), 1),
        (format!("type=b&since={created}"), 0),
    ] {
        let page = tenant
            .get(&format!("/v1/events?{filter}"))
            .await
            .expect(200);
        assert_eq!(page["data"].as_array().unwrap().len(), expected, "{filter}");
    }
}

#[tokio::test]
async fn an_event_is_shown_without_its_payload_which_has_a_path_of_its_own() {
    // P1
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({"channels": ["eu"]})).await;
    let payload = r#"{ "z": 1.0, "a": "\u00e9" }"#;
    let body = format!(
        r#"{{"type":"a.b","channels":["eu","us"],"deliver_before":"2999-01-01T00:00:00Z","payload":{payload}}}"#
    );
    let reply = server
        .send(
            reqwest::Method::POST,
            "/v1/events",
            Some(&tenant.key),
            body,
            &[],
        )
        .await;
    let event = reply.expect(202);
    let path = format!("/v1/events/{}", text(&event["id"]));

    let shown = tenant.get(&path).await.expect(200);
    let bytes = tenant.get(&format!("{path}/payload")).await;

    assert_eq!(
        shown,
        json!({
            "id": event["id"], "external_id": null, "type": "a.b", "channels": ["eu", "us"],
            "created_at": event["created_at"], "deliver_before": "2999-01-01T00:00:00Z",
            "payload_bytes": payload.len(), "delivery_count": 1
        })
    );
    assert_eq!(bytes.header("content-type"), "application/json");
    assert_eq!(String::from_utf8(bytes.bytes).unwrap(), payload);
    let listed = tenant.get("/v1/events?type=a.b").await.expect(200);
    assert_eq!(listed["data"], json!([shown]));
    assert_eq!(
        tenant.publishes("x", &json!(1)).await["delivery_count"],
        0,
        "no channel in common"
    );
}

#[tokio::test]
async fn endpoints_tenants_and_keys_are_listed_page_by_page() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let mut made: Vec<String> = Vec::new();
    for _ in 0..5 {
        made.push(text(&tenant.endpoint(json!({})).await["id"]));
    }
    made.reverse();

    assert_eq!(walk(&tenant, "/v1/endpoints").await, made);
    for path in ["/v1/admin/tenants", "/v1/admin/organizations"] {
        for name in ["one", "two", "three"] {
            server
                .post(path, crate::app::ADMIN, &json!({"name": name}))
                .await
                .expect(201);
        }
        let mut names = Vec::new();
        let mut next = format!("{path}?limit=1");
        while names.len() < 3 {
            let page: Value = server.get(&next, crate::app::ADMIN).await.expect(200);
            names.push(text(&page["data"][0]["name"]));
            next = format!(
                "{path}?limit=1&cursor={}",
                page["next_cursor"].as_str().unwrap_or_default()
            );
        }
        names.sort();
        assert_eq!(names, ["one", "three", "two"], "{path}");
    }
}

async fn walk(tenant: &Tenant<'_>, path: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let mut next = format!("{path}?limit=2");
    loop {
        let page = tenant.get(&next).await.expect(200);
        ids.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| text(&row["id"])),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            return ids;
        };
        next = format!("{path}?limit=2&cursor={cursor}");
    }
}

#[tokio::test]
async fn a_channel_and_an_event_type_are_filters_of_which_a_walk_finds_every_row_once() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    tenant.endpoint(json!({})).await;
    let mut wanted = (Vec::new(), Vec::new());
    for n in 0..700 {
        let rare = n % 100 == 7;
        let event = json!({
            "type": if rare { "rare" } else { "common" }, "payload": n,
            "channels": if rare { json!(["eu", "vip"]) } else { json!(["eu"]) },
        });
        let event = tenant.post("/v1/events", &event).await.expect(202);
        if rare {
            wanted.0.push(text(&event["id"]));
            wanted.1.push(text(&event["deliveries"][0]["id"]));
        }
    }
    for (path, mut expected) in [
        ("/v1/events?channel=vip", wanted.0),
        ("/v1/deliveries?event_type=rare", wanted.1),
    ] {
        let mut found = Vec::new();
        let mut next = format!("{path}&limit=2");
        loop {
            let page = tenant.get(&next).await.expect(200);
            let rows = page["data"].as_array().unwrap();
            assert!(rows.len() <= 2);
            found.extend(rows.iter().map(|row| text(&row["id"])));
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            next = format!("{path}&limit=2&cursor={cursor}");
        }
        expected.reverse();
        assert_eq!(found, expected, "{path}");
    }
    let none = tenant.get("/v1/events?channel=nobody").await.expect(200);
    assert_eq!(none["data"], json!([]));
}
