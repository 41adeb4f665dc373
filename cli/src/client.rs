//! A client of our own API, for `postrider send` and the demo of `postrider dev`.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use shared::runtime::program::Failure;

/// To connect to the API.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// One request: above the API's own deadline, so that its answer is seen.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The largest answer read; no answer of ours comes near it.
const LARGEST_ANSWER: usize = 16 << 20;

/// Speaks to one API with one key.
pub(crate) struct ApiClient {
    http: reqwest::Client,
    base: String,
    key: String,
    tenant: Option<String>,
}

/// Without the `/v1` that `postrider dev` prints and people paste.
fn base_of(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url)
}

/// What the API said.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The answer as JSON; `null` when it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The answer of a success.
    pub(crate) fn success(self) -> Result<Value, Failure> {
        if self.status.is_success() {
            Ok(self.json())
        } else {
            Err(Failure::Failed(self.problem()))
        }
    }

    /// A problem document for people: title, detail, and each bad field.
    fn problem(&self) -> String {
        let json = self.json();
        let text = |name: &str| json.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut lines = vec![format!("the API answered {}", self.status)];
        if !text("title").is_empty() || !text("detail").is_empty() {
            lines.push(format!("{}: {}", text("title"), text("detail")));
        }
        let errors = json.get("errors").and_then(Value::as_array);
        for error in errors.into_iter().flatten() {
            let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
            lines.push(format!("{}: {}", text("pointer"), text("detail")));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            lines.push(
                "give a valid key with --key or POSTRIDER_KEY; make one with `postrider key create`"
                    .to_owned(),
            );
        }
        lines.join("\n  ")
    }
}

impl ApiClient {
    pub(crate) fn new(base: &str, key: &str, tenant: Option<String>) -> Result<Self, Failure> {
        // Fails only when another part of the process was first, with the same provider.
        let installed = rustls::crypto::ring::default_provider().install_default();
        if installed.is_err() {
            tracing::trace!("a TLS provider was there already");
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("postrider-cli/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::Failed(format!("no HTTP client: {}", chain(&error))))?;
        Ok(Self {
            http,
            base: base_of(base).to_owned(),
            key: key.to_owned(),
            tenant,
        })
    }

    /// One request; `path` begins with a slash.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, Failure> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(&self.key);
        if let Some(tenant) = &self.tenant {
            request = request.header("Postrider-Tenant", tenant);
        }
        if let Some(body) = body {
            request = request
                .header("Content-Type", "application/json")
                .body(body);
        }
        let unreachable = |error: reqwest::Error| {
            if error.is_builder() {
                return Failure::Configuration(format!(
                    "{} is no URL of an API: {}",
                    self.base,
                    chain(&error)
                ));
            }
            Failure::Failed(format!(
                "no API answers at {}: {}\n  start one with `postrider dev` or `postrider api`, \
                 or name another with --url",
                self.base,
                chain(&error)
            ))
        };
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                return Err(Failure::Failed(
                    "the answer is larger than any of our API's".to_owned(),
                ));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, body })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.request(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Vec<u8>) -> Result<Answer, Failure> {
        self.request(Method::POST, path, Some(body)).await
    }
}

/// An error with its causes; reqwest's own text leaves them out. The URL has no secret here.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
