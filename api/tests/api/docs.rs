//! The documentation that the API serves: it needs no other host.

use serde_json::Value;

use crate::app::{Reply, Server, world};

/// What a browser may load, as the policy says.
const POLICY: [&str; 8] = [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
];

async fn open(server: &Server, path: &str) -> Reply {
    server.open(&format!("{}{path}", server.base)).await
}

/// The values of an attribute or property, such as `src="`.
fn named<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let found = text.split(before).skip(1);
    found.map(|rest| rest.split('"').next().unwrap()).collect()
}

#[tokio::test]
async fn the_pages_name_and_load_only_what_this_server_has() {
    let (_database, server) = world().await;

    let page = open(&server, "/docs").await;

    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let policy: Vec<&str> = page.header("content-security-policy").split("; ").collect();
    assert_eq!(policy, POLICY);
    let html = String::from_utf8(page.bytes).unwrap();
    assert!(!html.contains("//") && !html.contains("<style"), "{html}");
    // Nothing within the page is a script or a style: the policy would stop it.
    assert_eq!(
        html.matches("<script").count(),
        html.matches("<script src=").count()
    );
    let mut loaded = named(&html, "src=\"");
    loaded.extend(
        named(&html, "href=\"")
            .into_iter()
            .filter(|it| *it != "data:,"),
    );
    assert_eq!(
        loaded,
        [
            "docs/swagger-ui-bundle.js",
            "docs/start.js",
            "docs/swagger-ui.css"
        ]
    );
    for path in loaded {
        let file = open(&server, &format!("/{path}")).await;
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(file.header("x-content-type-options"), "nosniff");
        let text = String::from_utf8(file.bytes).unwrap();
        if path == "docs/start.js" {
            assert_eq!(named(&text, "url: \""), ["openapi.json"]);
            assert!(!text.contains("//"), "{text}");
        }
        if path == "docs/swagger-ui.css" {
            assert!(!text.contains("@import"));
            for url in text.split("url(").skip(1) {
                assert!(
                    url.trim_start_matches('"').starts_with("data:"),
                    "{:.60}",
                    url
                );
            }
        }
        if path == "docs/swagger-ui-bundle.js" {
            assert!(text.len() > 1_000_000 && text.contains("SwaggerUIBundle"));
        }
    }
    let missing = open(&server, "/docs/swagger-ui.js").await;
    missing.problem(404, "not-found");
}

#[tokio::test]
async fn the_document_is_the_one_in_the_repository() {
    let (_database, server) = world().await;

    let reply = open(&server, "/openapi.json").await;

    assert_eq!(reply.header("content-type"), "application/json");
    let copy: Value = serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap();
    assert_eq!(reply.json(), copy);
    assert!(copy["openapi"].as_str().unwrap().starts_with("3.1"));
}
