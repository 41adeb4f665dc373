//! Every form of signature through the whole product, checked by what docs/sender.md tells receivers to
//! check it with: its snippets are taken out of the document and run over what arrived. They use the
//! published verifiers (Standard Webhooks for Python and JavaScript, Stripe for Python) or what their
//! language has, and of ours nothing but the keys that the API hands out.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use shared::testing::{TestDatabase, eventually};

use crate::endpoint::Endpoint;
use crate::process::PATIENCE;
use crate::receiver::Arrival;
use crate::world::World;

const DOCUMENT: &str = include_str!("../../../../docs/sender.md");
const LANGUAGES: [&str; 2] = ["python", "js"];
/// The forms, and where the document says how each is checked.
const FORMS: [(&str, &str); 3] = [
    ("v1", "### Checking `v1`\n"),
    ("v1a", "### Checking `v1a`\n"),
    ("stripe", "### Checking Stripe's form\n"),
];

/// An endpoint, what a receiver knows of it, and the one request that came for it.
struct Delivered {
    secret: String,
    public_keys: Value,
    /// As it was fetched, without a key.
    key_set: Value,
    arrival: Arrival,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_snippets_of_the_document_believe_each_form_as_it_arrives_and_nothing_else() {
    let database = TestDatabase::new().await;
    let world = World::start(database.url(), database.database()).await;
    let _worker = world.worker().await;
    let mut all = HashMap::new();
    for (name, settings) in [
        ("standard", json!({})),
        ("key-pair", json!({ "signing": ["v1a"] })),
        ("both", json!({ "signing": ["v1", "v1a"] })),
        ("stripe", json!({ "signature": "stripe" })),
        ("stranger", json!({ "signing": ["v1", "v1a"] })),
    ] {
        let endpoint = world.endpoint(name, settings).await;
        all.insert(name, delivered(&world, &endpoint).await);
    }

    for language in LANGUAGES {
        let mut cases = Vec::new();
        for (form, name) in [
            ("v1", "standard"),
            ("v1", "both"),
            ("v1a", "key-pair"),
            ("v1a", "both"),
            ("stripe", "stripe"),
        ] {
            let (one, stranger) = (&all[name], &all["stranger"]);
            let body = one.arrival.request.body();
            let forged = [body, b" "].concat();
            cases.push((case(language, form, one, one, body), true));
            cases.push((case(language, form, one, one, &forged), false));
            cases.push((case(language, form, one, stranger, body), false));
        }
        let (cases, genuine): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        assert_eq!(verdicts(language, &cases), genuine, "{language}");
    }
    let header = |name: &str, header| all[name].arrival.request.header(header);
    for (name, schemes) in [
        ("standard", &["v1"][..]),
        ("key-pair", &["v1a"]),
        ("both", &["v1", "v1a"]),
    ] {
        let sent = header(name, "webhook-signature").unwrap();
        let sent = sent.split(' ').map(|one| one.split_once(',').unwrap().0);
        assert_eq!(sent.collect::<Vec<_>>(), schemes, "{name}");
        assert_eq!(header(name, "postrider-signature"), None, "{name}");
    }
    assert_eq!(header("stripe", "webhook-signature"), None);
}

/// A snippet that nobody runs would rot.
#[test]
fn every_snippet_of_the_document_has_its_place() {
    let fences = |language: &str| DOCUMENT.matches(&format!("```{language}\n")).count();
    for language in LANGUAGES {
        assert_eq!(fences(language), FORMS.len(), "{language}");
        for (form, _) in FORMS {
            assert!(snippet(language, form).lines().count() >= 3);
        }
    }
}

/// Publishes one event for this endpoint, and what came of it.
async fn delivered(world: &World, endpoint: &Endpoint) -> Delivered {
    world.publish(endpoint).await;
    let arrival = || async { world.receiver.at(&endpoint.path).pop() };
    let arrival = eventually(PATIENCE, arrival).await;
    let path = format!("/v1/endpoints/{}", endpoint.id);
    let shown = world.ask("GET", &path, &Value::Null).await;
    let path = format!("/.well-known/jwks.json?endpoint={}", endpoint.id);
    let (status, key_set) = world.ask_as(None, ("GET", &path), b"").await;
    assert_eq!(status, 200, "{key_set}");
    Delivered {
        secret: endpoint.secret.clone(),
        public_keys: shown["public_keys"].clone(),
        key_set: serde_json::from_str(&key_set).unwrap(),
        arrival,
    }
}

/// What a runner is asked: whether this body under the headers of `sent` is genuine to one who knows
/// the keys of `known`.
fn case(language: &str, form: &str, sent: &Delivered, known: &Delivered, body: &[u8]) -> Value {
    let headers = sent.arrival.request.headers().into_iter();
    let headers: HashMap<_, _> = headers
        .map(|(name, value)| (name.to_lowercase(), value))
        .collect();
    json!({
        "snippet": snippet(language, form).replace("whsec_…", &known.secret),
        "form": form,
        "body": STANDARD.encode(body),
        "headers": headers,
        "secret": known.secret,
        "public_keys": known.public_keys,
        "key_set": known.key_set,
    })
}

/// The one in this language in the part of the document about this form.
fn snippet(language: &str, form: &str) -> &'static str {
    let (_, heading) = FORMS.iter().find(|(name, _)| *name == form).unwrap();
    let (_, part) = DOCUMENT.split_once(heading).unwrap();
    let part = part.split("\n### ").next().unwrap();
    let (_, begun) = part.split_once(&format!("```{language}\n")).unwrap();
    begun.split_once("```").unwrap().0
}

/// What the runner of this language says to each case.
fn verdicts(language: &str, cases: &[Value]) -> Vec<bool> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (program, script) = match language {
        "python" => (repository.join(".venv/bin/python"), "run.py"),
        _ => ("node".into(), "run.cjs"),
    };
    let mut process = Command::new(program)
        .arg(
            repository
                .join("cli/tests/faults/sender/snippets")
                .join(script),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{language} cannot be started ({error}): run `make test`"));
    // A few kilobytes: less than a pipe holds.
    let mut input = process.stdin.take().unwrap();
    for case in cases {
        writeln!(input, "{case}").unwrap();
    }
    drop(input);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{language}: {}", output.status);
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(|verdict| verdict == "true").collect()
}
