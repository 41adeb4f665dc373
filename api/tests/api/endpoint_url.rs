//! Where endpoints may be, judged when they are made and changed (field reports F18, F20, F22, F23).

use api::Config;
use serde_json::{Value, json};
use shared::policy::address::{ALLOW_SETTING, AddressRules};
use shared::testing::TestDatabase;

use crate::app::{Reply, Server, Tenant, text, world};

async fn server(database: &TestDatabase, allowed: &str) -> Server {
    let rules = AddressRules::parse(allowed).unwrap();
    Server::start_with(Config::for_testing(database.database()).with_address_rules(rules)).await
}

/// The one detail of a reply that refuses a URL.
#[track_caller]
fn refusal(reply: Reply) -> String {
    let problem = reply.problem(422, "invalid-fields");
    let errors = problem["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{problem}");
    assert_eq!(errors[0]["pointer"], "/url");
    text(&errors[0]["detail"])
}

/// What refuses a URL in a create and in a change of this endpoint: the same.
async fn refused(tenant: &Tenant<'_>, endpoint: &str, url: &str) -> String {
    let document = json!({ "url": url });
    let created = refusal(tenant.post("/v1/endpoints", &document).await);
    let changed = change(tenant, endpoint, url).await;
    assert_eq!(refusal(changed), created, "{url}");
    created
}

/// The reply to a change of an endpoint's URL.
async fn change(tenant: &Tenant<'_>, endpoint: &str, url: &str) -> Reply {
    let patch = json!({ "url": url });
    tenant.server.patch(endpoint, &tenant.key, &patch).await
}

fn path(endpoint: &Value) -> String {
    format!("/v1/endpoints/{}", text(&endpoint["id"]))
}

const LITERALS: &[&str] = &[
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "１２７.0.0.1",
    "127%2e0%2e0%2e1",
    "localhost",
    "LOCALHOST.",
    "x.localhost",
    "0",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "0xa9fea9fe",
    "192.31.196.1",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b:1::10.0.0.1]",
    "[2002:7f00:1::]",
    "[2001:0:a9fe:a9fe::]",
    "[2a00::5efe:127.0.0.1]",
    "[2a00::200:5efe:10.0.0.1]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[5f00::1]",
    "[100::1]",
];

/// F18, F23: every spelling, with the setting that would open it, when made and when changed.
#[tokio::test]
async fn s1_a_literal_of_a_network_that_is_not_open_is_refused_with_the_name_of_the_setting() {
    let database = TestDatabase::new().await;
    let server = server(&database, "").await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant
        .endpoint(json!({"url": "https://example.com/a"}))
        .await;
    for host in LITERALS {
        for scheme in ["http", "https"] {
            let detail = refused(&tenant, &path(&endpoint), &format!("{scheme}://{host}/x")).await;
            assert!(detail.contains(ALLOW_SETTING), "{host}: {detail}");
        }
    }
    let after = tenant.get(&path(&endpoint)).await.expect(200);
    assert_eq!(after["url"], "https://example.com/a");
}

/// F23: the range named and nothing beside it; metadata only when named alone.
#[tokio::test]
async fn an_operator_opens_exactly_what_is_named_for_literals() {
    let database = TestDatabase::new().await;
    let server = server(
        &database,
        "10.20.0.0/16,169.254.0.0/16,fd12::/32,100.100.100.200",
    )
    .await;
    let tenant = server.tenant("acme").await;
    let endpoint = tenant
        .endpoint(json!({"url": "https://example.com/"}))
        .await;
    for (host, open) in [
        ("10.20.0.0", true),
        ("10.20.255.255", true),
        ("[::ffff:10.20.1.1]", true),
        ("10.19.255.255", false),
        ("10.21.0.0", false),
        ("169.254.1.1", true),
        ("[fd12::1]", true),
        ("[fd12:1::1]", false),
        ("100.100.100.200", true),
        ("100.100.100.201", false),
        ("127.0.0.1", false),
    ] {
        let url = format!("http://{host}/");
        if open {
            tenant.endpoint(json!({ "url": url })).await;
            change(&tenant, &path(&endpoint), &url).await.expect(200);
        } else {
            refused(&tenant, &path(&endpoint), &url).await;
        }
    }
    for host in [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "169.254.170.2",
    ] {
        let detail = refused(&tenant, &path(&endpoint), &format!("http://{host}/")).await;
        assert!(
            detail.contains("alone") && detail.contains(ALLOW_SETTING),
            "{detail}"
        );
    }
}

/// F22: a name is judged when it is dialled; whatever it resolves to today, it can be saved.
#[tokio::test]
async fn a_name_is_not_looked_up_when_it_is_saved() {
    let database = TestDatabase::new().await;
    let server = server(&database, "").await;
    let tenant = server.tenant("acme").await;
    for url in [
        "https://127.0.0.1.nip.example/",
        "https://no-such-name.invalid/",
    ] {
        let made = tenant.endpoint(json!({ "url": url })).await;
        assert_eq!(made["url"], url);
    }
}

/// F20: stored and shown is what the parser made of it.
#[tokio::test]
async fn a_url_is_stored_and_shown_as_it_was_parsed_and_as_people_write_it() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = path(&tenant.endpoint(json!({})).await);
    for (given, stored, unicode) in [
        (
            "HTTPS://Example.COM:443/A?b=c",
            "https://example.com/A?b=c",
            None,
        ),
        ("https://example.com./a", "https://example.com/a", None),
        ("http:example.com", "http://example.com/", None),
        ("http:///example.com", "http://example.com/", None),
        ("http:\\\\example.com\\a", "http://example.com/a", None),
        ("https://exam\u{200b}ple.com/", "https://example.com/", None),
        ("https://ⓔⓧample.com/", "https://example.com/", None),
        ("http://0x7f.1:8080/", "http://127.0.0.1:8080/", None),
        (
            "https://bücher.example./ü",
            "https://xn--bcher-kva.example/%C3%BC",
            Some("https://bücher.example/%C3%BC"),
        ),
        (
            "https://xn--bcher-kva.example:8443/",
            "https://xn--bcher-kva.example:8443/",
            Some("https://bücher.example:8443/"),
        ),
    ] {
        let created = tenant.endpoint(json!({ "url": given })).await;
        let changed = change(&tenant, &endpoint, given).await.expect(200);
        let shown = tenant.get(&endpoint).await.expect(200);
        for document in [created, changed, shown] {
            assert_eq!(document["url"], stored, "{given}");
            assert_eq!(document["url_unicode"].as_str(), unicode, "{given}");
        }
        let back = change(&tenant, &endpoint, unicode.unwrap_or(stored)).await;
        assert_eq!(back.expect(200)["url"], stored, "{given}");
    }
    let listed = tenant.get("/v1/endpoints").await.expect(200);
    assert_eq!(
        listed["data"][0]["url_unicode"],
        "https://bücher.example:8443/"
    );
}

#[tokio::test]
async fn the_readable_form_of_a_url_cannot_be_written() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let mut document = tenant
        .endpoint(json!({"url": "https://bücher.example/"}))
        .await;
    let path = path(&document);
    let fields = document.as_object_mut().unwrap();
    for other in [
        "id",
        "public_keys",
        "secrets",
        "disabled_reason",
        "created_at",
        "updated_at",
        "secret",
    ] {
        fields.remove(other).unwrap();
    }
    fields["url_unicode"] = json!("https://b\u{e4}cher.example/");
    for reply in [
        server.patch(&path, &tenant.key, &document).await,
        tenant.post("/v1/endpoints", &document).await,
        server
            .patch(&path, &tenant.key, &json!({"url_unicode": null}))
            .await,
    ] {
        let problem = reply.problem(422, "invalid-fields");
        assert_eq!(problem["errors"][0]["pointer"], "/url_unicode");
        let detail = text(&problem["errors"][0]["detail"]);
        assert!(detail.contains("is read-only"), "{detail}");
    }
}

#[tokio::test]
async fn a_url_that_could_never_work_or_would_be_misread_is_refused_with_the_fix() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let endpoint = path(&tenant.endpoint(json!({})).await);
    for (url, says) in [
        ("https://example.com:0/", "port 0"),
        ("https://example.com:6379/", "port 6379"),
        ("https://example.com:22/", "port 22"),
        ("http://127.0.0.1:11211/", "port 11211"), // an opened network opens no port
        ("https://example.com:99999/", "port"),
        ("https://user@example.com/", "user name"),
        ("https://:hunter2@example.com/", "password"),
        ("https://example.com/#a", "fragment"),
        ("https://example.com/a b", "blanks"),
        ("https://example.com/\t", "blanks"),
        ("https://a../", "host"),
        ("https://a..b/", "host"),
        ("https://./", "host"),
        ("https://", "host"),
        ("https://%00/", "valid"),
        ("https://[fe80::1%25eth0]/", "valid"),
        ("ftp://example.com/", "http://"),
        ("javascript:alert(1)", "http://"),
        ("//example.com/", "absolute"),
        ("example.com", "absolute"),
    ] {
        let detail = refused(&tenant, &endpoint, url).await;
        assert!(detail.contains(says), "{url}: {detail}");
        assert!(!detail.contains("hunter2"), "{detail}");
    }
}

#[tokio::test]
async fn where_only_https_is_wanted_http_is_refused_and_named_even_for_what_is_stored() {
    let database = TestDatabase::new().await;
    let before = Server::start(database.database()).await;
    let tenant = before.tenant("acme").await;
    let old = path(&tenant.endpoint(json!({"url": "http://example.com/"})).await);
    let config = Config::for_testing(database.database()).with_https_only();
    let server = Server::start_with(config).await;

    let strict = Tenant {
        server: &server,
        id: tenant.id.clone(),
        key: tenant.key.clone(),
        key_id: tenant.key_id.clone(),
    };
    let detail = refused(&strict, &old, "http://example.com/new").await;
    assert!(detail.contains("POSTRIDER_HTTPS_ONLY"), "{detail}");
    let other = server
        .patch(&old, &tenant.key, &json!({"description": "x"}))
        .await;
    assert!(refusal(other).contains("POSTRIDER_HTTPS_ONLY"));
    change(&strict, &old, "https://example.com/")
        .await
        .expect(200);
}
