//! One API under test: real HTTP, real PostgreSQL, a port of its own.

use std::time::Duration;

use api::{Config, Running};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use shared::store::Database;
use shared::testing::{TestDatabase, eventually};
use tokio_util::sync::CancellationToken;

pub(crate) const ADMIN: &str = "admin-token-for-tests";

/// How long anything may take to become true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running API.
pub(crate) struct Server {
    pub(crate) base: String,
    pub(crate) metrics: String,
    http: reqwest::Client,
    shutdown: CancellationToken,
    running: Option<Running>,
}

/// A reply, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map(|value| value.to_str().unwrap())
            .unwrap_or_default()
    }

    /// The body, of a reply that must have this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(
            self.status.as_u16(),
            status,
            "{}",
            String::from_utf8_lossy(&self.bytes)
        );
        if self.bytes.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }

    /// Asserts that it is a problem with this status and type, and gives it.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, slug: &str) -> Value {
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert!(!self.header("x-request-id").is_empty());
        let problem = self.expect(status);
        assert_eq!(
            problem["type"],
            format!("urn:postrider:problem:{slug}"),
            "{problem}"
        );
        assert_eq!(problem["status"], status);
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        problem
    }
}

impl Server {
    pub(crate) async fn start(database: Database) -> Self {
        Self::start_with(Config::for_testing(database)).await
    }

    pub(crate) async fn start_with(config: Config) -> Self {
        // An error: another test did it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let shutdown = CancellationToken::new();
        let running = api::start(config, shutdown.clone()).await.unwrap();
        Self {
            base: format!("http://{}", running.addr),
            metrics: format!("http://{}", running.metrics_addr),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            shutdown,
            running: Some(running),
        }
    }

    /// A request with any body and headers.
    #[expect(
        clippy::too_many_arguments,
        reason = "this is where all of a request comes together"
    )]
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: impl Into<reqwest::Body>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .body(body);
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(request.send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str, key: &str) -> Reply {
        self.send(Method::GET, path, Some(key), "", &[]).await
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.send(Method::POST, path, Some(key), body.to_string(), &[])
            .await
    }

    pub(crate) async fn patch(&self, path: &str, key: &str, body: &Value) -> Reply {
        self.send(Method::PATCH, path, Some(key), body.to_string(), &[])
            .await
    }

    pub(crate) async fn delete(&self, path: &str, key: &str) -> Reply {
        self.send(Method::DELETE, path, Some(key), "", &[]).await
    }

    /// Something outside `/v1`, without a key.
    pub(crate) async fn open(&self, url: &str) -> Reply {
        read(self.http.get(url).send().await.unwrap()).await
    }

    /// A new organization and a key of it: their id and text. The key is made of this body; `{}`: it may do everything.
    pub(crate) async fn organization(&self, name: &str, key: &Value) -> (String, String) {
        let made = self
            .post("/v1/admin/organizations", ADMIN, &json!({"name": name}))
            .await
            .expect(201);
        let id = text(&made["id"]);
        let keys = format!("/v1/admin/organizations/{id}/keys");
        let key = self.post(&keys, ADMIN, key).await.expect(201);
        (id, text(&key["key"]))
    }

    /// A new tenant with a key that may do everything.
    pub(crate) async fn tenant(&self, name: &str) -> Tenant<'_> {
        let tenant = self
            .post("/v1/admin/tenants", ADMIN, &json!({"name": name}))
            .await
            .expect(201);
        let id = text(&tenant["id"]);
        let key = self
            .post(
                &format!("/v1/admin/tenants/{id}/keys"),
                ADMIN,
                &json!({"name": "all"}),
            )
            .await
            .expect(201);
        Tenant {
            server: self,
            id,
            key: text(&key["key"]),
            key_id: text(&key["id"]),
        }
    }

    /// Waits until the API says that it is ready.
    pub(crate) async fn ready(&self) {
        eventually(PATIENCE, || async {
            let reply = self.open(&format!("{}/health/ready", self.base)).await;
            (reply.status == 200).then_some(())
        })
        .await;
    }

    /// Stops it in order.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        self.shutdown.cancel();
        self.running.take().unwrap().finished().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) async fn read(mut response: reqwest::Response) -> Reply {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        bytes.extend_from_slice(&chunk);
    }
    Reply {
        status: response.status(),
        headers: response.headers().clone(),
        bytes,
    }
}

/// A tenant of a server.
pub(crate) struct Tenant<'a> {
    pub(crate) server: &'a Server,
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) key_id: String,
}

impl Tenant<'_> {
    pub(crate) async fn publishes(&self, event_type: &str, payload: &Value) -> Value {
        self.publishes_through(self.server, event_type, payload)
            .await
    }

    pub(crate) async fn publishes_through(
        &self,
        server: &Server,
        event_type: &str,
        payload: &Value,
    ) -> Value {
        server
            .post(
                "/v1/events",
                &self.key,
                &json!({"type": event_type, "payload": payload}),
            )
            .await
            .expect(202)
    }

    pub(crate) async fn endpoint(&self, fields: Value) -> Value {
        let mut body = json!({"url": "http://127.0.0.1/hook"});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.server
            .post("/v1/endpoints", &self.key, &body)
            .await
            .expect(201)
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.server.get(path, &self.key).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.server.post(path, &self.key, body).await
    }
}

pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("not a text: {value}"))
        .to_owned()
}

/// A database with an API on it.
pub(crate) async fn world() -> (TestDatabase, Server) {
    let database = TestDatabase::new().await;
    let server = Server::start(database.database()).await;
    (database, server)
}
