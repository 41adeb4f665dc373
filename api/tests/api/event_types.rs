//! Types of events and their schemas.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};
use shared::testing::TestDatabase;

use crate::app::{ADMIN, Reply, Server, Tenant, text, world};

async fn put(server: &Server, tenant: &Tenant<'_>, name: &str, body: &Value) -> Reply {
    let path = format!("/v1/event-types/{name}");
    server
        .send(Method::PUT, &path, Some(&tenant.key), body.to_string(), &[])
        .await
}

fn order() -> Value {
    json!({
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        },
        "$defs": {"line": {"type": "object", "properties": {"a/b": {"type": "string", "pattern": "^[a-z]+$"}}}},
    })
}

fn event(payload: &Value) -> Value {
    json!({"type": "order.created", "payload": payload})
}

fn pointers(problem: &Value) -> BTreeSet<String> {
    let errors = problem["errors"].as_array().unwrap();
    errors.iter().map(|error| text(&error["pointer"])).collect()
}

#[tokio::test]
async fn a_type_is_declared_shown_changed_and_taken_back() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let body = r#"{"description": "An order", "schema": {"type": "object",  "title": "x", "$comment": "1.0e0"}}"#;

    let made = server
        .send(
            Method::PUT,
            "/v1/event-types/order.created",
            Some(&tenant.key),
            body,
            &[],
        )
        .await;

    let shown = String::from_utf8(made.bytes.clone()).unwrap();
    assert!(
        shown.contains(r#"{"type": "object",  "title": "x", "$comment": "1.0e0"}"#),
        "as written: {shown}"
    );
    let made = made.expect(200);
    assert_eq!(made["type"], "order.created");
    assert_eq!(made["description"], "An order");
    let path = "/v1/event-types/order.created";
    assert_eq!(tenant.get(path).await.expect(200), made);
    // PUT sets the whole.
    let changed = put(&server, &tenant, "order.created", &json!({}))
        .await
        .expect(200);
    assert_eq!(
        (&changed["description"], &changed["schema"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(changed["created_at"], made["created_at"]);
    assert_ne!(changed["updated_at"], made["updated_at"]);
    server.delete(path, &tenant.key).await.expect(204);
    tenant.get(path).await.problem(404, "not-found");
    server
        .delete(path, &tenant.key)
        .await
        .problem(404, "not-found");
    // One that events have stays.
    tenant
        .post("/v1/events", &event(&json!(1)))
        .await
        .expect(202);
    assert_eq!(tenant.get(path).await.expect(200)["schema"], Value::Null);
    put(
        &server,
        &tenant,
        "order.created",
        &json!({"schema": order()}),
    )
    .await
    .expect(200);
    server.delete(path, &tenant.key).await.expect(204);
    assert_eq!(tenant.get(path).await.expect(200)["schema"], Value::Null);
    tenant
        .post("/v1/events", &event(&json!(1)))
        .await
        .expect(202);
}

#[tokio::test]
async fn types_are_listed_page_by_page_and_are_their_tenants_own() {
    // S3
    let (_database, server) = world().await;
    let (tenant, other) = (server.tenant("acme").await, server.tenant("globex").await);
    for name in ["a", "b", "c"] {
        put(&server, &tenant, name, &json!({"schema": false}))
            .await
            .expect(200);
    }
    tenant.publishes("d", &json!(1)).await;

    let mut names = Vec::new();
    let mut next = "/v1/event-types?limit=1".to_owned();
    loop {
        let page = tenant.get(&next).await.expect(200);
        names.extend(
            page["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| text(&row["type"])),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        next = format!("/v1/event-types?limit=1&cursor={cursor}");
    }

    assert_eq!(names, ["d", "c", "b", "a"]);
    assert_eq!(
        other.get("/v1/event-types").await.expect(200)["data"],
        json!([])
    );
    other
        .get("/v1/event-types/a")
        .await
        .problem(404, "not-found");
    server
        .delete("/v1/event-types/a", &other.key)
        .await
        .problem(404, "not-found");
    other.publishes("a", &json!(1)).await;
    tenant
        .post("/v1/events", &json!({"type": "a", "payload": 1}))
        .await
        .problem(422, "invalid-fields");
}

#[tokio::test]
async fn a_payload_that_does_not_fit_is_refused_with_every_place_and_no_value() {
    // S2
    let (database, server) = world().await;
    let tenant = server.tenant("acme").await;
    put(
        &server,
        &tenant,
        "order.created",
        &json!({"schema": order()}),
    )
    .await
    .expect(200);

    let secret = json!({"id": "S3CR3T", "lines": [{"a/b": "ok"}, {"a/b": "S3CR3T"}, "S3CR3T"]});
    for _ in 0..2 {
        let problem = tenant
            .post("/v1/events", &event(&secret))
            .await
            .problem(422, "invalid-fields");
        let expected = ["/payload/id", "/payload/lines/1/a~1b", "/payload/lines/2"];
        assert_eq!(
            pointers(&problem),
            expected.map(str::to_owned).into(),
            "{problem}"
        );
        assert!(!problem.to_string().contains("S3CR3T"), "{problem}");
    }
    let missing = tenant.post("/v1/events", &event(&json!({}))).await;
    let missing = missing.problem(422, "invalid-fields");
    assert_eq!(pointers(&missing), ["/payload".to_owned()].into());
    assert!(missing.to_string().contains("id"));
    tenant
        .post("/v1/events", &event(&json!({"id": 7})))
        .await
        .expect(202);
    tenant.publishes("order.paid", &secret).await;

    let batch = json!({"events": [event(&json!({"id": 1})), event(&secret), event(&json!(1)), {"type": "x", "payload": 1}]});
    let reply = tenant.post("/v1/events/batch", &batch).await.expect(200);
    let statuses: Vec<_> = reply["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["status"])
        .collect();
    assert_eq!(statuses, [202, 422, 422, 202]);
    let third = pointers(&reply["data"][2]["problem"]);
    assert_eq!(third, ["/events/2/payload".to_owned()].into());
    let row = database
        .session()
        .await
        .query_one("SELECT count(*) FROM events", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 4);
}

#[tokio::test]
async fn a_change_of_a_schema_holds_at_once_in_every_process() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    let schemas = [json!({"const": 0}), json!({"const": 1})];
    for round in 0..10 {
        put(&one, &tenant, "a", &json!({"schema": schemas[round % 2]}))
            .await
            .expect(200);
        for server in [&two, &one] {
            for payload in 0..2 {
                let event = json!({"type": "a", "payload": payload});
                let reply = server.post("/v1/events", &tenant.key, &event).await;
                let expected = if payload == round % 2 { 202 } else { 422 };
                assert_eq!(reply.status, expected, "round {round}");
            }
        }
        if round == 5 {
            one.delete("/v1/event-types/a", &tenant.key)
                .await
                .expect(204);
            for server in [&two, &one] {
                tenant.publishes_through(server, "a", &json!(7)).await;
            }
        }
    }
}

#[tokio::test]
async fn what_is_accepted_while_schemas_change_fits_one_that_held() {
    let database = TestDatabase::new().await;
    let (one, two) = (
        Server::start(database.database()).await,
        Server::start(database.database()).await,
    );
    let tenant = one.tenant("acme").await;
    put(&one, &tenant, "a", &json!({"schema": {"const": 0}}))
        .await
        .expect(200);
    let last = AtomicUsize::new(0);
    let changes = async {
        for n in 1..30 {
            put(&one, &tenant, "a", &json!({"schema": {"const": n}}))
                .await
                .expect(200);
            last.store(n, Ordering::SeqCst);
        }
    };
    let posts = async |server: &Server| {
        while last.load(Ordering::SeqCst) < 29 {
            let n = last.load(Ordering::SeqCst);
            // Older than what holds since before the request: never accepted.
            let event = json!({"type": "a", "payload": n.wrapping_sub(1)});
            let reply = server.post("/v1/events", &tenant.key, &event).await;
            assert!(
                matches!(reply.status.as_u16(), 422 | 503),
                "{}",
                reply.status
            );
        }
    };
    tokio::join!(changes, posts(&one), posts(&two));
    tenant.publishes_through(&two, "a", &json!(29)).await;
}

#[tokio::test]
async fn schemas_that_reach_out_or_cost_too_much_are_refused_by_pointer() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let mut doubling = serde_json::Map::new();
    for n in 0..12 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        doubling.insert(format!("d{n}"), json!({"allOf": [next, next]}));
    }
    doubling.insert("d12".to_owned(), json!(true));
    for (schema, pointer) in [
        (
            json!({"$ref": "https://example.com/schema.json"}),
            "/schema/$ref",
        ),
        (json!({"$ref": "#"}), "/schema/$ref"),
        (
            json!({"items": {"$ref": "file:///etc/passwd"}}),
            "/schema/items/$ref",
        ),
        (json!({"$defs": doubling, "$ref": "#/$defs/d0"}), "/schema"),
        (json!({"pattern": "(a{1000}){1000}"}), "/schema/pattern"),
        (json!({"pattern": "(?=a)b"}), "/schema/pattern"),
        (json!({"pattern": "(a)\\1"}), "/schema/pattern"),
        (json!({"pattern": "("}), "/schema/pattern"),
        (json!({"type": "text"}), "/schema/type"),
        (json!({"minimum": "1"}), "/schema/minimum"),
        (json!({"properties": {"a": 1}}), "/schema/properties/a"),
        (json!("x"), "/schema"),
        (json!({"$comment": "x".repeat(65 << 10)}), "/schema"),
    ] {
        let body = json!({"schema": schema});
        let problem = put(&server, &tenant, "a", &body)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(pointers(&problem), [pointer.to_owned()].into(), "{problem}");
    }
    for (body, pointer) in [
        (json!({"description": 1}), "/description"),
        (json!({"description": "x".repeat(1_025)}), "/description"),
        (json!({"schemas": {}}), "/schemas"),
    ] {
        let problem = put(&server, &tenant, "a", &body)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(pointers(&problem), [pointer.to_owned()].into(), "{problem}");
    }
    for name in ["postrider.x", "a%20b", &"x".repeat(129)] {
        put(&server, &tenant, name, &json!({}))
            .await
            .problem(400, "invalid-parameter");
    }
    tenant
        .get("/v1/event-types/a")
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn a_hostile_pattern_and_payload_take_no_time() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let schema = json!({"items": {"pattern": "^(a+)+$"}, "uniqueItems": true});
    put(
        &server,
        &tenant,
        "order.created",
        &json!({"schema": schema}),
    )
    .await
    .expect(200);
    let evil = format!("{}!", "a".repeat(10_000));
    let many: Vec<_> = (0..10_000).collect();

    let started = shared::runtime::clock::boot_time();
    let refused = tenant.post("/v1/events", &event(&json!([evil]))).await;
    let accepted = tenant.post("/v1/events", &event(&json!(many))).await;

    refused.problem(422, "invalid-fields");
    accepted.expect(202);
    let took = shared::runtime::clock::boot_time().since(started);
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn types_need_the_scopes_of_configuration() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let keys = format!("/v1/admin/tenants/{}/keys", tenant.id);
    let key = async |scope: &str| {
        let body = json!({"name": scope, "scopes": [scope]});
        text(&server.post(&keys, ADMIN, &body).await.expect(201)["key"])
    };
    let (reads, writes) = (key("read").await, key("events:write").await);
    let path = "/v1/event-types/a";
    for key in [&reads, &writes] {
        let put = server.send(Method::PUT, path, Some(key), "{}", &[]).await;
        put.problem(403, "missing-scope");
        server.delete(path, key).await.problem(403, "missing-scope");
    }
    for path in [path, "/v1/event-types"] {
        server
            .get(path, &writes)
            .await
            .problem(403, "missing-scope");
    }
    server.get("/v1/event-types", &reads).await.expect(200);
}

#[tokio::test]
async fn patterns_and_channels_match_as_the_contract_says() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for fields in [
        json!({"event_types": ["order.*"]}),
        json!({"event_types": ["order"], "channels": ["eu"]}),
        json!({"event_types": ["order.a"], "channels": ["eu", "us"]}),
    ] {
        tenant.endpoint(fields).await;
    }
    for (event_type, channels, expected) in [
        ("order", json!([]), 0),
        ("order", json!(["eu"]), 1),
        ("order.a", json!([]), 1),
        ("order.a", json!(["us", "asia"]), 2),
        ("order.a.b", json!(["eu"]), 1),
        ("orders.a", json!(["eu"]), 0),
        ("Order.a", json!(["eu"]), 0),
    ] {
        let event = json!({"type": event_type, "payload": 1, "channels": channels});
        let accepted = tenant.post("/v1/events", &event).await.expect(202);
        assert_eq!(accepted["delivery_count"], expected, "{event}");
    }
}
