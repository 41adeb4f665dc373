//! Misuse of the API, and what it says to others than the tenant that it is about.

use load_tests::client::request_with;
use serde_json::{Value, json};
use shared::ids::TenantId;

use super::{HEADER, PATH, PAYLOAD, Scene, UNKNOWN, settings};
use crate::world::{ADMIN_TOKEN, SCOPES};

/// Somebody with a key.
struct Asker {
    key: String,
    /// The tenant that its requests name.
    tenant: Option<String>,
    /// Whether it may change what is this tenant's, with [`ALL_BUT_READ`].
    changes: bool,
}

/// What a key may do that may do all but read.
const ALL_BUT_READ: [&str; 3] = ["events:write", "endpoints:write", "replay"];

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
        let tenant = self.tenant().await;
        let expired = self
            .make_key("tenants", &tenant, "expired", &["read"])
            .await;
        let expire =
            "UPDATE api_keys SET expires_at = now() - interval '1 minute' WHERE name = 'expired'";
        self.world.sql().await.execute(expire, &[]).await.unwrap();
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

    /// Keys of another tenant and of another organization, keys of this tenant and of its organization
    /// without `read`, and the operator.
    pub(super) async fn ask_as_others(&mut self) {
        let others = self.others().await;
        let key = self.world.key.clone();
        let paths = self.readable_paths().await;
        let hidden = self.not_even_readable();
        let mut own = String::new();
        for path in &paths {
            for asker in &others {
                self.ask_in_the_name_of(asker, ("GET", path), b"").await;
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
        // The tenant's own key sees URLs and answers: there is something to be seen.
        let readable = self.needles.in_text(&own);
        for what in ["URL: path", "URL: query", "payload", "answer"] {
            let seen = readable.contains(&format!("{what} (as it is)"));
            assert!(seen, "{what} in what the tenant reads of its own");
        }
        self.change_as_others(&paths, &others).await;
        for path in self.admin_paths().await {
            let (status, _) = self.ask(Some(ADMIN_TOKEN), "GET", &path, b"").await;
            assert_eq!(status, 200, "{path}");
        }
    }

    /// Two of them may change what they cannot read, and are answered.
    async fn change_as_others(&mut self, paths: &[String], others: &[Asker]) {
        let mut changed = 0;
        for path in paths {
            let verbs: &[&str] = match path.split('/').collect::<Vec<_>>()[..] {
                ["", "v1", "deliveries", _] => &["/retry", "/cancel"],
                ["", "v1", "endpoints", _] => &["", "/disable", "/enable"],
                _ => &[],
            };
            for verb in verbs {
                let method = if verb.is_empty() { "PATCH" } else { "POST" };
                let path = format!("{path}{verb}");
                for asker in others {
                    let asked = (method, path.as_str());
                    let (status, _) = self.ask_in_the_name_of(asker, asked, b"{}").await;
                    assert!(asker.changes || status == 404, "{status}: {path}");
                    changed += usize::from(status == 200 && path.contains("endpoints"));
                }
            }
        }
        // What is not legal any more cannot be patched; it is shown when it is enabled and disabled.
        let least = 2 * 2 * self.failing.ways.len();
        assert!(changed >= least, "{changed} of {least}");
        let made = settings("http://127.0.0.1:8443").to_string();
        for asker in others.iter().filter(|asker| asker.changes) {
            let asked = ("POST", "/v1/endpoints");
            let (status, made) = self.ask_in_the_name_of(asker, asked, made.as_bytes()).await;
            assert_eq!(status, 201, "{made}");
        }
    }

    /// Everybody with a key that may not read what is this tenant's.
    async fn others(&mut self) -> Vec<Asker> {
        let other_tenant = self.new_owner("tenants", "other").await;
        let other_tenant = self.make_key("tenants", &other_tenant, "other", &SCOPES);
        let other_tenant = other_tenant.await;
        let tenant = self.tenant().await;
        let of_tenant = self
            .make_key("tenants", &tenant, "writer", &ALL_BUT_READ)
            .await;
        let organization = self.new_owner("organizations", "own").await;
        let adopt =
            "UPDATE tenants SET organization_id = (SELECT id FROM organizations WHERE name = 'own')
                     WHERE id = (SELECT min(id) FROM tenants)";
        self.world.sql().await.execute(adopt, &[]).await.unwrap();
        let of_organization = self
            .make_key("organizations", &organization, "own", &ALL_BUT_READ)
            .await;
        let stranger = self.new_owner("organizations", "strange").await;
        let stranger = self
            .make_key("organizations", &stranger, "strange", &SCOPES)
            .await;
        let asker = |key, tenant, changes| Asker {
            key,
            tenant,
            changes,
        };
        vec![
            asker(other_tenant, None, false),
            asker(of_tenant, None, true),
            asker(of_organization, Some(tenant.clone()), true),
            asker(stranger, Some(tenant), false),
        ]
    }

    /// Everything that the tenant may read of its own.
    async fn readable_paths(&self) -> Vec<String> {
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
        paths
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

    /// The tenant that all this is about.
    async fn tenant(&self) -> String {
        let first = "SELECT public_id FROM tenants ORDER BY id LIMIT 1";
        let row = self.world.sql().await.query_one(first, &[]).await.unwrap();
        TenantId(row.get(0)).to_string()
    }

    /// A new tenant or organization of this name.
    async fn new_owner(&self, kind: &str, name: &str) -> String {
        let path = format!("/v1/admin/{kind}");
        self.made_by_the_operator(&path, &json!({ "name": name }), "id")
            .await
    }

    /// A new key of a tenant or an organization.
    async fn make_key(&mut self, kind: &str, owner: &str, name: &str, scopes: &[&str]) -> String {
        let path = format!("/v1/admin/{kind}/{owner}/keys");
        let document = json!({ "name": name, "scopes": scopes });
        let key = self.made_by_the_operator(&path, &document, "key").await;
        self.needles.add(&format!("key {name}"), &key);
        key
    }

    async fn made_by_the_operator(&self, path: &str, document: &Value, field: &str) -> String {
        let body = document.to_string();
        let asked = ("POST", path);
        let (status, made) = self
            .world
            .ask_as(Some(ADMIN_TOKEN), asked, body.as_bytes())
            .await;
        assert_eq!(status, 201, "{made}");
        let made: Value = serde_json::from_str(&made).unwrap();
        made[field].as_str().unwrap().to_owned()
    }

    async fn ask_in_the_name_of(
        &mut self,
        asker: &Asker,
        (method, path): (&str, &str),
        body: &[u8],
    ) -> (u16, String) {
        let tenant = asker.tenant.as_deref();
        let tenant = tenant.map(|tenant| ("postrider-tenant", tenant));
        let headers: Vec<_> = tenant.into_iter().collect();
        let request = request_with((method, path), Some(&asker.key), &headers, body);
        let (status, reply) = self.world.exchange(&request).await;
        let place = format!("the reply to {method} {path}: {status}");
        self.written(place, reply.clone());
        (status, reply)
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
