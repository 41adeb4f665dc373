//! F18: the whole corpus of hosts and URLs that lead to a network that is not open, or look as if they did,
//! over HTTP. What of it is a name is judged when it is dialled, which the `ssrf` test of `load-tests` shows.

use std::collections::BTreeSet;

use api::Config;
use serde_json::{Value, json};
use shared::policy::address::AddressRules;
use shared::testing::TestDatabase;

use self::corpus::{literals, tricks};
use crate::app::{Server, text};

#[expect(
    dead_code,
    clippy::too_many_lines,
    reason = "names are nothing to this test; a table has as many lines as rows"
)]
#[path = "../../../load-tests/tests/ssrf/corpus.rs"]
mod corpus;

/// What is a name to DNS, and an address of somebody else's.
const TAKEN: [&str; 7] = [
    "*",
    "-",
    "metadata.google.internal",
    "localhost.localdomain",
    "ip6-localhost",
    "ip6-loopback",
    "1.1.1.1",
];

#[tokio::test]
async fn s1_no_url_of_the_corpus_is_saved_by_a_post_or_a_patch() {
    let database = TestDatabase::new().await;
    let config = Config::for_testing(database.database());
    let server = Server::start_with(config.with_address_rules(AddressRules::default())).await;
    let tenant = server.tenant("acme").await;
    let kept = json!({ "url": "https://example.com/" });
    let endpoint = tenant.endpoint(kept).await;
    let path = format!("/v1/endpoints/{}", text(&endpoint["id"]));
    let hosts = literals().into_iter();
    let mut corpus: Vec<_> = hosts
        .map(|host| format!("http://{host}:8080/hooks"))
        .collect();
    corpus.extend(tricks(8080));
    assert!(corpus.len() >= 250, "{}", corpus.len());

    let mut saved = BTreeSet::new();
    for url in &corpus {
        let document = json!({ "url": url });
        let created = tenant.post("/v1/endpoints", &document).await;
        let changed = server.patch(&path, &tenant.key, &document).await;
        if created.status == 201 {
            let created = created.expect(201);
            assert_eq!(changed.expect(200)["url"], created["url"], "{url:?}");
            saved.insert(host(&created));
            continue;
        }
        for reply in [created, changed] {
            let problem = reply.problem(422, "invalid-fields");
            assert_eq!(problem["errors"][0]["pointer"], "/url", "{url:?}");
        }
    }

    assert_eq!(saved, TAKEN.map(ToOwned::to_owned).into());
}

/// Where an endpoint leads.
fn host(endpoint: &Value) -> String {
    let url = text(&endpoint["url"]);
    let (_, rest) = url.split_once("://").unwrap();
    rest.split(['/', ':', '?']).next().unwrap().to_owned()
}
