//! The served document against the server that serves it: schemathesis makes requests from it, right and wrong
//! ones, and looks whether the answers are what it says. No 5xx, no status, type of problem or shape that is not
//! documented.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::app::{ADMIN, text, world};
use crate::python::{api_tests, python};

/// One worker: with two, CPython 3.11 fails now and then in a bug of its own (AST in several threads).
const WORKERS: &str = "1";
/// Seconds, unless `POSTRIDER_API_FUZZ_SECONDS` says otherwise (`make api-fuzz`).
const SECONDS: u32 = 30;
const MOST_SHOWN: usize = 20_000;

#[tokio::test]
async fn the_server_answers_as_its_document_says() {
    let (_database, server) = world().await;
    server.ready().await;
    let made = server
        .post("/v1/admin/organizations", ADMIN, &json!({"name": "SaaS"}))
        .await
        .expect(201);
    let keys = format!("/v1/admin/organizations/{}/keys", text(&made["id"]));
    // Whatever is done to an organization, its keys and limits is done to this one.
    let body = json!({"name": "Other"});
    let other = server.post("/v1/admin/organizations", ADMIN, &body).await;
    let other = text(&other.expect(201)["id"]);
    let key: Value = server.post(&keys, ADMIN, &json!({})).await.expect(201);
    let seconds = std::env::var("POSTRIDER_API_FUZZ_SECONDS");
    let seconds = seconds.unwrap_or_else(|_unset| SECONDS.to_string());

    let run = Command::new(python())
        .args([
            "-c",
            "from schemathesis.cli import schemathesis; schemathesis()",
        ])
        .arg("--config-file")
        .arg(api_tests().join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", server.base)])
        .args(["--max-time", &seconds, "--workers", WORKERS])
        .env("POSTRIDER_FUZZ_KEY", text(&key["key"]))
        .env("POSTRIDER_FUZZ_ORGANIZATION", other)
        .env("POSTRIDER_FUZZ_ADMIN", ADMIN)
        .current_dir(tempfile::tempdir().unwrap().path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();

    let out = String::from_utf8_lossy(&run.stdout);
    let shown: String = out.chars().take(MOST_SHOWN).collect();
    let err = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{shown}\n{err}");
    println!("{shown}");
}
