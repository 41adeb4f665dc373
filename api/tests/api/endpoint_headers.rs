//! Headers of endpoints, judged when they are saved (field report F34).

use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{Reply, Tenant, text, world};

/// The details of a reply that refuses headers and nothing else.
#[track_caller]
fn refusals(reply: Reply) -> Vec<String> {
    let problem = reply.problem(422, "invalid-fields");
    let errors = problem["errors"].as_array().unwrap();
    assert!(
        errors.iter().all(|error| error["pointer"] == "/headers"),
        "{problem}"
    );
    errors.iter().map(|error| text(&error["detail"])).collect()
}

/// What refuses these headers in a create and in a change: the same.
async fn refused(tenant: &Tenant<'_>, endpoint: &str, headers: Value) -> Vec<String> {
    let document = json!({"url": "https://example.com/", "headers": headers});
    let created = refusals(tenant.post("/v1/endpoints", &document).await);
    let patch = json!({"headers": document["headers"]});
    let changed = tenant.server.patch(endpoint, &tenant.key, &patch).await;
    assert_eq!(refusals(changed), created, "{patch}");
    created
}

/// F34
#[tokio::test]
async fn a_header_that_could_harm_a_request_is_refused_when_saved_by_name_and_with_the_fix() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let made = tenant.endpoint(json!({"headers": {"X-Kept": "k"}})).await;
    let endpoint = format!("/v1/endpoints/{}", text(&made["id"]));
    let huge = "v".repeat(64 << 10);
    let names = [
        ("", "empty"),
        ("bad name", "letters"),
        ("a:b", "letters"),
        (":authority", "letters"),
        ("a\rb", "letters"),
        ("a\nb", "letters"),
        ("a\0", "letters"),
        ("a\u{7f}", "letters"),
        ("ä", "letters"),
        (&huge, "too long"),
    ];
    for (name, says) in names {
        let details = refused(&tenant, &endpoint, json!({ name: "x" })).await;
        let shown: String = name.chars().take(64).collect();
        assert!(details[0].starts_with(&format!("`{shown}`")), "{details:?}");
        assert!(
            details[0].contains(says) && details[0].len() < 300,
            "{details:?}"
        );
    }
    let values = [
        ("", "leave the header out"),
        ("secret\rb", "line break"),
        ("secret\nb", "line break"),
        ("secret\r\n folded", "line break"),
        ("secret\0", "control"),
        ("secret\u{7f}", "control"),
        ("secret\tb", "control"),
        ("secretä", "ASCII"),
        (" secret", "blank"),
        ("secret ", "blank"),
        (&huge, "at most"),
    ];
    for (value, says) in values {
        let details = refused(&tenant, &endpoint, json!({ "X-Token": value })).await;
        assert_eq!(details.len(), 1);
        assert!(
            details[0].starts_with("`X-Token` ") && details[0].contains(says),
            "{details:?}"
        );
        assert!(!details[0].contains("secret"), "{details:?}");
    }
    let shown = tenant.get(&endpoint).await.expect(200);
    assert_eq!(shown["headers"], json!({"X-Kept": "***"}));
}

/// Ours, the connection's, and those of no use or of too much trust.
const RESERVED: &[&str] = &[
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "user-agent",
    "date",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "webhook-x",
    "postrider-event-type",
    "postrider-delivery-id",
    "postrider-attempt",
    "postrider-signature",
    "x-delivery-timestamp",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "accept-encoding",
    "expect",
    "cookie2",
    "set-cookie",
    "x-http-method-override",
    "via",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-real-ip",
];

/// F34
#[tokio::test]
async fn p1_names_that_are_not_the_tenants_are_refused_in_any_spelling() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant.endpoint(json!({})).await;
    let endpoint = format!("/v1/endpoints/{}", text(&endpoint["id"]));
    for name in RESERVED {
        let spellings = [
            (*name).to_owned(),
            name.to_ascii_uppercase(),
            name.chars()
                .enumerate()
                .map(|(at, c)| if at == 0 { c.to_ascii_uppercase() } else { c })
                .collect(),
            name.replace('-', "_"),
        ];
        for spelling in spellings {
            let details = refused(&tenant, &endpoint, json!({ spelling.as_str(): "x" })).await;
            assert!(
                details[0].starts_with(&format!("`{spelling}` ")),
                "{details:?}"
            );
        }
    }
    let all: Value = [
        ("Host", "x"),
        ("Webhook-Id", "x"),
        ("X-Fine", "x"),
        ("TE", "x"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), json!(value)))
    .collect::<serde_json::Map<_, _>>()
    .into();
    assert_eq!(
        refused(&tenant, &endpoint, all).await.len(),
        3,
        "each is named"
    );
}

/// F34
#[tokio::test]
async fn too_many_headers_and_the_same_one_twice_are_refused() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant.endpoint(json!({})).await;
    let endpoint = format!("/v1/endpoints/{}", text(&endpoint["id"]));
    let some = |count: usize, value: &str| -> Value {
        let pairs = (0..count).map(|number| (format!("X-{number}"), json!(value)));
        pairs.collect::<serde_json::Map<_, _>>().into()
    };
    tenant.endpoint(json!({"headers": some(32, "v")})).await;
    assert_eq!(
        refused(&tenant, &endpoint, some(100, "v")).await,
        ["must have at most 32 entries"]
    );
    let details = refused(&tenant, &endpoint, some(3, &"v".repeat(4_000))).await;
    assert!(details[0].contains("together"), "{details:?}");
    for twice in [
        json!({"X-A": "1", "x-a": "2"}),
        json!({"X-A": "1", "X_A": "1"}),
    ] {
        let details = refused(&tenant, &endpoint, twice).await;
        assert!(details[0].contains("twice"), "{details:?}");
    }

    let body = r#"{"url": "https://example.com/", "headers": {"X-A": "1", "X-A": "2"}}"#;
    for (method, path) in [
        (Method::POST, "/v1/endpoints"),
        (Method::PATCH, endpoint.as_str()),
    ] {
        let reply = server
            .send(method, path, Some(&tenant.key), body, &[])
            .await;
        let problem = reply.problem(400, "malformed-json");
        assert!(text(&problem["detail"]).contains("twice"), "{problem}");
    }
}

#[tokio::test]
async fn a_hidden_value_is_kept_whatever_else_changes() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let made = tenant
        .endpoint(json!({"headers": {"Authorization": "Bearer t"}}))
        .await;
    let endpoint = format!("/v1/endpoints/{}", text(&made["id"]));
    let patch = json!({"headers": {"Authorization": "***", "X-New": "n"}});
    let changed = server
        .patch(&endpoint, &tenant.key, &patch)
        .await
        .expect(200);
    assert_eq!(
        changed["headers"],
        json!({"Authorization": "***", "X-New": "***"})
    );
    let renamed = json!({"headers": {"Authorization": null, "X-Token": "***"}});
    let details = refusals(server.patch(&endpoint, &tenant.key, &renamed).await);
    assert!(
        details[0].starts_with("`X-Token` has no value yet"),
        "{details:?}"
    );
}
