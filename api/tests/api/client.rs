//! A client that nobody wrote: `openapi-python-client` makes it from the document that the server serves, and it
//! does the tour of the README.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::app::world;
use crate::python::{api_tests, python};

async fn run(command: &mut Command) {
    let run = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{out}\n{err}");
    // What it could not understand it leaves out with a warning: the client would have holes.
    assert!(!out.to_lowercase().contains("warning"), "{out}");
}

#[tokio::test]
async fn a_generated_client_does_the_tour() {
    let (_database, server) = world().await;
    let tenant = server.tenant("acme").await;
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("client");

    generate(&format!("{}/openapi.json", server.base), &made).await;

    run(Command::new(python())
        .arg(api_tests().join("tour.py"))
        .args([&server.base, &tenant.key])
        .env("PYTHONPATH", &made)
        .env("PYTHONDONTWRITEBYTECODE", "1"))
    .await;
}

async fn generate(url: &str, into: &Path) {
    run(Command::new(python())
        .args([
            "-c",
            "from openapi_python_client.cli import app; app()",
            "generate",
            "--url",
            url,
        ])
        .args(["--meta", "none", "--overwrite", "--output-path"])
        .arg(into.join("postrider_client"))
        .arg("--config")
        .arg(api_tests().join("client.yaml")))
    .await;
}
