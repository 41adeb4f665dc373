//! A process of another language that verifies requests with a published library.
//!
//! One process for all requests: a line of JSON in, `true` or `false` out.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What a receiver checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    V1,
    V1a,
    Stripe,
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1a => "v1a",
            Self::Stripe => "stripe",
        }
    }

    const fn header(self) -> &'static str {
        match self {
            Self::V1 | Self::V1a => "webhook-signature",
            Self::Stripe => "postrider-signature",
        }
    }
}

/// A request as a receiver sees it, and whether it ought to believe it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) form: Form,
    /// What the receiver knows: `whsec_…`, or for `v1a` `whpk_…`.
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signature: String,
    pub(crate) body: Vec<u8>,
    pub(crate) genuine: bool,
}

pub(crate) struct Verifier {
    program: PathBuf,
    script: PathBuf,
}

impl Verifier {
    pub(crate) fn python() -> Self {
        let program = repository().join(".venv/bin/python");
        assert!(
            program.exists(),
            ".venv is missing: run `make test`, which installs the published verifiers"
        );
        Self {
            program,
            script: script("verify.py"),
        }
    }

    pub(crate) fn javascript() -> Self {
        assert!(
            repository()
                .join("node_modules/standardwebhooks/package.json")
                .exists(),
            "node_modules/standardwebhooks is missing: run `make test`, which installs the \
             published verifiers"
        );
        Self {
            program: "node".into(),
            script: script("verify.cjs"),
        }
    }

    /// The verdict on each request, in order.
    pub(crate) fn verify(&self, requests: &[Request]) -> Vec<bool> {
        let mut process = Command::new(&self.program)
            .arg(&self.script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be started ({error}): run `make test`",
                    self.program.display()
                )
            });
        let mut input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let verdicts = std::thread::scope(|scope| {
            scope.spawn(move || {
                for request in requests {
                    // A verifier that has ended says so by its verdicts and its exit code.
                    if writeln!(input, "{}", line(request)).is_err() {
                        return;
                    }
                }
            });
            output
                .lines()
                .map(|verdict| verdict.unwrap() == "true")
                .collect()
        });
        let status = process.wait().unwrap();
        assert!(
            status.success(),
            "the verifier ended with {status}: run `make test`"
        );
        verdicts
    }
}

fn line(request: &Request) -> serde_json::Value {
    serde_json::json!({
        "form": request.form.name(),
        "key": request.key,
        "headers": {
            "webhook-id": request.id,
            "webhook-timestamp": request.timestamp,
            request.form.header(): request.signature,
        },
        "body": STANDARD.encode(&request.body),
    })
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn script(name: &str) -> PathBuf {
    repository().join("shared/tests/signatures").join(name)
}
