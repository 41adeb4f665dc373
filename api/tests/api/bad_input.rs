//! Bad input: each a clear error, never a 5xx, a hang or a panic.

use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{Server, Tenant, text, world};

async fn post_raw(
    server: &Server,
    tenant: &Tenant<'_>,
    body: impl Into<reqwest::Body>,
) -> crate::app::Reply {
    server
        .send(Method::POST, "/v1/events", Some(&tenant.key), body, &[])
        .await
}

pub(crate) fn pointers(problem: &Value) -> Vec<String> {
    let errors = problem["errors"].as_array().unwrap();
    errors.iter().map(|error| text(&error["pointer"])).collect()
}

#[tokio::test]
async fn malformed_json_is_400_and_says_where() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for body in [
        "",
        "{",
        "{\"type\": \"a\",\n \"payload\": }",
        "{\"type\": \"a\", \"payload\": 1} x",
        "{\"type\": \"a\", \"payload\": 01}",
        "{'type': 'a'}",
        "\u{feff}{}",
        "{\"type\": \"a\", \"payload\": \"\u{1}\"}",
    ] {
        let problem = post_raw(&server, &tenant, body)
            .await
            .problem(400, "malformed-json");
        assert!(
            text(&problem["detail"]).contains("line"),
            "{body}: {problem}"
        );
    }
    post_raw(
        &server,
        &tenant,
        b"{\"type\": \"a\", \"payload\": \"\xff\"}".to_vec(),
    )
    .await
    .problem(400, "malformed-json");
    server
        .send(Method::POST, "/v1/endpoints", Some(&tenant.key), "{", &[])
        .await
        .problem(400, "malformed-json");
}

#[tokio::test]
async fn every_field_of_an_event_that_is_wrong_is_named() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (body, expected) in [
        (r#"{}"#, vec!["/type", "/payload"]),
        (r#"[]"#, vec![""]),
        (r#" ["a", 1, null, null]"#, vec![""]),
        (r#""text""#, vec![""]),
        (
            r#"{"type": 7, "payload": 1, "channels": "eu", "a/b": 1}"#,
            vec!["/a~1b", "/channels", "/type"],
        ),
        (r#"{"type": "", "payload": 1}"#, vec!["/type"]),
        (r#"{"type": "a b", "payload": 1}"#, vec!["/type"]),
        (r#"{"type": "ü", "payload": 1}"#, vec!["/type"]),
        (r#"{"type": "postrider.test", "payload": 1}"#, vec!["/type"]),
        (
            r#"{"type": "a", "payload": 1, "channels": [1]}"#,
            vec!["/channels"],
        ),
        (
            r#"{"type": "a", "payload": 1, "channels": ["a\u0000"]}"#,
            vec!["/channels"],
        ),
        (
            r#"{"type": "a", "payload": 1, "channels": ["a\u001fb"]}"#,
            vec!["/channels"],
        ),
        (
            r#"{"type": "a", "payload": 1, "channels": [""]}"#,
            vec!["/channels"],
        ),
        (
            r#"{"type": "a", "payload": 1, "deliver_before": "tomorrow"}"#,
            vec!["/deliver_before"],
        ),
        (
            r#"{"type": "a", "payload": 1, "deliver_before": "2001-01-01T00:00:00Z"}"#,
            vec!["/deliver_before"],
        ),
        (
            r#"{"type": "a", "payload": 1, "deliver_before": "9999-12-31T23:59:59-23:59"}"#,
            vec!["/deliver_before"],
        ),
        (r#"{"type": "a", "type": "b", "payload": 1}"#, vec![""]),
    ] {
        let problem = post_raw(&server, &tenant, body)
            .await
            .problem(422, "invalid-fields");
        let mut found = pointers(&problem);
        found.sort();
        let mut expected = expected.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "{body}: {problem}");
    }
    let long = json!({"type": "a".repeat(129), "payload": 1}).to_string();
    post_raw(&server, &tenant, long)
        .await
        .problem(422, "invalid-fields");
    let longest = json!({"type": "a".repeat(128), "payload": 1}).to_string();
    post_raw(&server, &tenant, longest).await.expect(202);
}

#[tokio::test]
async fn nesting_is_limited_to_128() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let nested = |depth: usize| {
        format!(
            r#"{{"type": "a", "payload": {}1{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };

    post_raw(&server, &tenant, nested(128)).await.expect(202);
    let problem = post_raw(&server, &tenant, nested(129))
        .await
        .problem(422, "invalid-fields");
    assert_eq!(pointers(&problem), ["/payload"]);
    post_raw(&server, &tenant, nested(100_000))
        .await
        .problem(422, "invalid-fields");
    let unknown = format!(
        r#"{{"type": "a", "x": {}1{}}}"#,
        "[".repeat(9_999),
        "]".repeat(9_999)
    );
    post_raw(&server, &tenant, unknown)
        .await
        .problem(422, "invalid-fields");
}

#[tokio::test]
async fn a_payload_above_the_limit_is_413_however_large_the_body_is() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let event =
        |bytes: usize| format!(r#"{{"type": "a", "payload": "{}"}}"#, "x".repeat(bytes - 2));

    post_raw(&server, &tenant, event(256 << 10))
        .await
        .expect(202);
    post_raw(&server, &tenant, event((256 << 10) + 1))
        .await
        .problem(413, "payload-too-large");
    post_raw(&server, &tenant, event(3 << 20))
        .await
        .problem(413, "payload-too-large");
    server
        .send(
            Method::POST,
            "/v1/endpoints",
            Some(&tenant.key),
            event(1 << 20),
            &[],
        )
        .await
        .problem(413, "payload-too-large");
}

#[tokio::test]
async fn every_field_of_an_endpoint_that_is_wrong_is_named() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (field, value) in [
        ("url", json!(null)),
        ("url", json!(7)),
        ("url", json!("")),
        ("url", json!("not a url")),
        ("url", json!("ftp://example.com/")),
        ("url", json!("http://user:secret@example.com/")),
        ("url", json!("http://169.254.169.254/latest")),
        ("url", json!("http://10.0.0.1/")),
        (
            "url",
            json!(format!("http://example.com/{}", "x".repeat(10_000))),
        ),
        ("description", json!("x".repeat(2_000))),
        ("event_types", json!("order.*")),
        ("event_types", json!(["order.* "])),
        ("event_types", json!(["*"])),
        ("event_types", json!([""])),
        ("channels", json!({"a": 1})),
        ("enabled", json!("yes")),
        ("headers", json!({"Content-Length": "1"})),
        ("headers", json!({"webhook-id": "x"})),
        ("headers", json!({"Postrider-Attempt": "x"})),
        ("headers", json!({"bad name": "x"})),
        ("headers", json!({"X-A": "line\r\nbreak"})),
        ("headers", json!({"X-A": 7})),
        ("headers", json!({"X-A": "***"})),
        ("timeout_ms", json!(20_001)),
        ("timeout_ms", json!(-1)),
        ("timeout_ms", json!(1.5)),
        ("timeout_ms", json!("15000")),
        ("max_attempts", json!(0)),
        ("backoff", json!("slow")),
        ("backoff", json!(["standard-webhooks"])),
        ("rate_limit", json!(10)),
        ("retry_statuses", json!(422)),
        ("retry_statuses", json!([200])),
        ("retry_statuses", json!([410])),
        ("retry_statuses", json!([422, 429])),
        ("retry_statuses", json!([600])),
        ("retry_statuses", json!([-1])),
        ("retry_statuses", json!(["422"])),
        ("retry_statuses", json!(vec![500; 51])),
        ("on_dead_letter", json!("Block")),
        ("ordered", json!(1)),
        ("replay_on_recovery", json!("yes")),
        ("disable_after_seconds", json!(3_599)),
        ("disable_after_seconds", json!(30 * 86_400 + 1)),
        ("breaker", json!("off")),
        ("max_in_flight", json!(0)),
        ("max_age_seconds", json!(29 * 86_400)),
        ("max_pending", json!(u64::MAX)),
        ("metadata", json!([])),
        ("metadata", json!({"a": "\u{0}"})),
        ("colour", json!("red")),
    ] {
        let mut endpoint = json!({"url": "http://127.0.0.1/"});
        endpoint[field] = value.clone();

        let problem = tenant
            .post("/v1/endpoints", &endpoint)
            .await
            .problem(422, "invalid-fields");

        assert_eq!(
            pointers(&problem),
            [format!("/{field}")],
            "{value}: {problem}"
        );
    }
}

#[tokio::test]
async fn every_part_of_an_endpoints_field_that_is_wrong_is_named() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    for (nested, expected) in [
        (
            json!({"backoff": {"base_seconds": 60, "max_seconds": 30, "x": 1}}),
            vec!["/backoff/max_seconds", "/backoff/x"],
        ),
        (
            json!({"rate_limit": {"per_second": 0, "burst": 0, "unit": "minute"}}),
            vec![
                "/rate_limit/per_second",
                "/rate_limit/burst",
                "/rate_limit/unit",
            ],
        ),
        (json!({"rate_limit": {}}), vec!["/rate_limit/per_second"]),
        (
            json!({"rate_limit": {"per_second": "10", "burst": 10_001}}),
            vec!["/rate_limit/per_second", "/rate_limit/burst"],
        ),
        (
            json!({"breaker": {"failures": 0, "cooldown_seconds": 60, "max_cooldown_seconds": 59}}),
            vec!["/breaker/failures", "/breaker/max_cooldown_seconds"],
        ),
    ] {
        let mut endpoint = json!({"url": "http://127.0.0.1/"});
        endpoint
            .as_object_mut()
            .unwrap()
            .append(&mut nested.as_object().unwrap().clone());
        let problem = tenant
            .post("/v1/endpoints", &endpoint)
            .await
            .problem(422, "invalid-fields");
        assert_eq!(pointers(&problem), expected, "{problem}");
    }
}

#[tokio::test]
async fn a_credential_in_a_url_is_not_repeated_in_the_error() {
    // S2
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;

    let reply = tenant
        .post(
            "/v1/endpoints",
            &json!({"url": "http://user:hunter2@example.com/"}),
        )
        .await;

    assert!(!String::from_utf8_lossy(&reply.bytes).contains("hunter2"));
}

#[tokio::test]
async fn paths_methods_ids_and_parameters_that_do_not_exist_are_told_apart() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let nobody = "evt_00000000000000000000000000";
    for (path, status, slug) in [
        ("/", 404, "not-found"),
        ("/v2/events", 404, "not-found"),
        ("/v1/eventss", 404, "not-found"),
        ("/v1/events/evt_x", 400, "invalid-parameter"),
        (
            "/v1/events/dlv_00000000000000000000000000",
            400,
            "invalid-parameter",
        ),
        ("/v1/events/%00", 400, "invalid-parameter"),
        ("/v1/deliveries/1", 400, "invalid-parameter"),
        ("/v1/endpoints/ep_%F0%9F%98%80", 400, "invalid-parameter"),
        ("/v1/events?limit=0", 400, "invalid-parameter"),
        ("/v1/events?limit=251", 400, "invalid-parameter"),
        ("/v1/events?limit=x", 400, "invalid-parameter"),
        ("/v1/events?limit=1&limit=2", 400, "invalid-parameter"),
        ("/v1/events?cursor=x", 400, "invalid-parameter"),
        ("/v1/events?channel=%00", 400, "invalid-parameter"),
        ("/v1/events?type=%00", 400, "invalid-parameter"),
        ("/v1/events?since=yesterday", 400, "invalid-parameter"),
        (
            "/v1/events?since=9999-12-31T23:59:59-23:59",
            400,
            "invalid-parameter",
        ),
        ("/v1/deliveries?status=lost", 400, "invalid-parameter"),
        ("/v1/deliveries?endpoint_id=x", 400, "invalid-parameter"),
        ("/v1/deliveries?colour=red", 400, "invalid-parameter"),
    ] {
        let reply = tenant.get(path).await;
        assert_eq!(reply.status.as_u16(), status, "{path}");
        reply.problem(status, slug);
    }
    tenant
        .get("/v1/events?since=9999-12-31T23:59:59.9999999Z")
        .await
        .expect(200);
    tenant
        .get(&format!("/v1/events/{nobody}"))
        .await
        .problem(404, "not-found");
    let reply = server
        .send(Method::PUT, "/v1/events", Some(&tenant.key), "", &[])
        .await;
    assert_eq!(reply.header("allow"), "GET, POST");
    reply.problem(405, "method-not-allowed");
    server
        .send(
            Method::POST,
            "/v1/events",
            Some(&tenant.key),
            "a=b",
            &[("content-type", "application/x-www-form-urlencoded")],
        )
        .await
        .problem(415, "unsupported-media-type");
}

#[tokio::test]
async fn a_compressed_body_is_refused_by_name() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;

    let headers = [("content-encoding", "gzip")];
    let reply = server
        .send(Method::POST, "/v1/events", Some(&tenant.key), "x", &headers)
        .await;

    reply.problem(415, "unsupported-media-type");
}

#[tokio::test]
async fn a_sane_request_id_is_taken_over_and_any_other_replaced() {
    let (_database, server) = world().await;
    for (given, kept) in [
        ("abc-123", true),
        ("with blank", false),
        (&*"x".repeat(200), false),
    ] {
        let reply = server
            .send(
                Method::GET,
                "/nowhere",
                None,
                "",
                &[("x-request-id", given)],
            )
            .await;

        assert_eq!(reply.header("x-request-id") == given, kept);
        assert!(!reply.header("x-request-id").is_empty());
    }
}
