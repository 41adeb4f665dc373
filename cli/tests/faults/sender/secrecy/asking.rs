//! Misuse of the API, and what it says to others than the tenant that it is about.

use serde_json::{Value, json};
use shared::ids::TenantId;

use super::{HEADER, PATH, PAYLOAD, Scene, UNKNOWN, settings};
use crate::world::{ADMIN_TOKEN, SCOPES};

impl Scene {
    /// What is wrong is said without what was sent.
    pub(super) async fn misuse_the_api(&mut self) {
        let large = json!({ "type": "all", "payload": PAYLOAD.repeat(40_000) }).to_string();
        let event = |document: Value| document.to_string();
        let posts = [
            ("/v1/events", format!(r#"{{"type":"all","payload":{{"{PAYLOAD}":"{PAYLOAD}"#)),
            ("/v1/events", format!(r#"{{"type":"all","payload":{PAYLOAD}}}"#)),
            ("/v1/events", event(json!({ "type": "all", "payload": 1, "deliver_before": PAYLOAD }))),
            ("/v1/events", event(json!([PAYLOAD]))),
            ("/v1/events", large),
            ("/v1/endpoints", format!(r#"{{"url":"{PATH}"#)),
            ("/v1/endpoints", settings("ftp://127.0.0.1").to_string()),
            ("/v1/endpoints", settings("http://192.168.1.1").to_string()),
            ("/v1/endpoints", settings(&format!("http://user:{HEADER}@127.0.0.1")).to_string()),
            ("/v1/endpoints", json!({ "url": "http://127.0.0.1:8443/", "headers": { "bad name": HEADER, "host": HEADER, "x": format!("{HEADER}\n") } }).to_string()),
            ("/v1/endpoints", json!({ "url": "http://127.0.0.1:8443/", "client_certificate": { "certificate": HEADER, "private_key": HEADER } }).to_string()),
        ];
        let key = self.world.key.clone();
        for (path, body) in posts {
            let (status, reply) = self.ask(Some(&key), "POST", path, body.as_bytes()).await;
            assert!((400..500).contains(&status), "{status} {reply}");
        }
        let expired = self.key_of_tenant(&["read"], true).await;
        for key in [None, Some(UNKNOWN), Some(expired.as_str()), Some("")] {
            for (method, path) in [
                ("GET", "/v1/endpoints"),
                ("POST", "/v1/events"),
                ("GET", "/v1/admin/tenants"),
            ] {
                let (status, reply) = self.ask(key, method, path, PAYLOAD.as_bytes()).await;
                assert_eq!(status, 401, "{reply}");
            }
        }
    }

    /// A key of another tenant, keys of this one without `read`, and the operator.
    pub(super) async fn ask_as_others(&mut self) {
        let other = self.key_of_other_tenant().await;
        let writes = self.key_of_tenant(&["events:write", "replay"], false).await;
        let key = self.world.key.clone();
        let mut paths = vec![];
        for list in ["/v1/events", "/v1/deliveries", "/v1/endpoints"] {
            let all = self.world.ask("GET", list, &Value::Null).await;
            paths.push(list.to_owned());
            for one in all["data"].as_array().unwrap() {
                let path = format!("{list}/{}", one["id"].as_str().unwrap());
                let below: &[&str] = match list {
                    "/v1/events" => &["/payload", "/deliveries"],
                    "/v1/deliveries" => &["/attempts"],
                    _ => &["/health"],
                };
                paths.extend(below.iter().map(|name| format!("{path}{name}")));
                paths.push(path);
            }
        }
        let hidden = self.not_even_readable();
        let mut own = String::new();
        for path in &paths {
            for key in [other.as_str(), &writes] {
                self.ask(Some(key), "GET", path, b"").await;
            }
            let (status, reply) = self.world.ask_as(Some(&key), ("GET", path), b"").await;
            assert_eq!(status, 200, "{path}: {reply}");
            // Receivers gave the whole request back, and what they answer is shown as it is.
            let hidden = match path.ends_with("/attempts") {
                true => &hidden.without("header"),
                false => &hidden,
            };
            assert_eq!(hidden.in_text(&reply), Vec::<String>::new(), "in {path}");
            own.push_str(&reply);
        }
        let deliveries = paths
            .iter()
            .filter(|path| path.starts_with("/v1/deliveries/") && !path.ends_with("/attempts"));
        for path in deliveries.cloned().collect::<Vec<_>>() {
            self.ask(Some(&writes), "POST", &format!("{path}/retry"), b"")
                .await;
        }
        for path in self.admin_paths().await {
            let (status, _) = self.ask(Some(ADMIN_TOKEN), "GET", &path, b"").await;
            assert_eq!(status, 200, "{path}");
        }
        // The tenant's own key sees URLs and answers: there is something to be seen.
        let readable = self.needles.in_text(&own);
        for what in ["URL: path", "URL: query", "payload", "answer"] {
            let seen = readable.contains(&format!("{what} (as it is)"));
            assert!(seen, "{what} in what the tenant reads of its own");
        }
    }

    async fn admin_paths(&self) -> Vec<String> {
        let path = "/v1/admin/tenants";
        let (_, reply) = self
            .world
            .ask_as(Some(ADMIN_TOKEN), ("GET", path), b"")
            .await;
        let tenants: Value = serde_json::from_str(&reply).unwrap();
        let tenants = tenants["data"].as_array().unwrap();
        let keys = tenants
            .iter()
            .map(|one| format!("{path}/{}/keys", one["id"].as_str().unwrap()));
        keys.chain([path.to_owned(), "/v1/admin/organizations".to_owned()])
            .collect()
    }

    /// A key of the first tenant.
    async fn key_of_tenant(&mut self, scopes: &[&str], expired: bool) -> String {
        let first = "SELECT public_id FROM tenants ORDER BY id LIMIT 1";
        let sql = self.world.sql().await;
        let tenant = TenantId(sql.query_one(first, &[]).await.unwrap().get(0));
        let name = if expired { "expired" } else { "other" };
        let key = self.make_key(&tenant.to_string(), name, scopes).await;
        let expire =
            "UPDATE api_keys SET expires_at = now() - interval '1 minute' WHERE name = 'expired'";
        sql.execute(expire, &[]).await.unwrap();
        key
    }

    async fn key_of_other_tenant(&mut self) -> String {
        let path = ("POST", "/v1/admin/tenants");
        let made = self
            .world
            .ask_as(Some(ADMIN_TOKEN), path, br#"{"name":"other"}"#)
            .await
            .1;
        let made: Value = serde_json::from_str(&made).unwrap();
        self.make_key(made["id"].as_str().unwrap(), "other", &SCOPES)
            .await
    }

    async fn make_key(&mut self, tenant: &str, name: &str, scopes: &[&str]) -> String {
        let path = format!("/v1/admin/tenants/{tenant}/keys");
        let body = json!({ "name": name, "scopes": scopes }).to_string();
        let made = self
            .world
            .ask_as(Some(ADMIN_TOKEN), ("POST", &path), body.as_bytes())
            .await
            .1;
        let made: Value = serde_json::from_str(&made).unwrap();
        let key = made["key"].as_str().unwrap().to_owned();
        self.needles.add(&format!("key {name}"), &key);
        key
    }

    /// Asks, and keeps the answer for the search.
    pub(super) async fn ask(
        &mut self,
        key: Option<&str>,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> (u16, String) {
        let (status, reply) = self.world.ask_as(key, (method, path), body).await;
        self.written(
            format!("the reply to {method} {path}: {status}"),
            reply.clone(),
        );
        (status, reply)
    }
}
