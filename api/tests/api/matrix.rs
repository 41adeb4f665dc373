//! Every route with every kind of caller and id. The routes are those of the document, which a test keeps equal
//! to the table of routes; a path with a parameter that is not known here fails.
//!
//! - S3: what belongs to another tenant looks like what does not exist.

use std::collections::BTreeMap;
use std::net::IpAddr;

use reqwest::Method;
use serde_json::{Value, json};
use shared::ids::DeliveryId;
use shared::testing::TestDatabase;

use crate::app::{ADMIN, Reply, Server, read, text, world};

const ALL_SCOPES: [&str; 7] = [
    "events:write",
    "endpoints:write",
    "read",
    "replay",
    "data:delete",
    "tenants:write",
    "keys:write",
];

/// A key with the right shape that nobody was given.
const UNKNOWN_KEY: &str = "prk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// An operation of the document.
pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The scheme of its security, if any, and the scopes that it needs.
    pub(crate) security: Option<(String, Vec<String>)>,
    body: String,
    /// Its parameters in the query that must be there.
    required_query: Vec<String>,
    problems: BTreeMap<String, Vec<String>>,
}

/// What the requests are made with.
pub(crate) struct World {
    pub(crate) server: Server,
    database: TestDatabase,
    /// By the beginning of the path and the name of the parameter.
    ids: Vec<(&'static str, &'static str, String)>,
    tenant: String,
    other_tenant_key: String,
    pub(crate) organization: String,
    other_organization_key: String,
}

impl Operation {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn placeholders(&self) -> Vec<&str> {
        let found = self.path.split('{').skip(1);
        found.map(|rest| rest.split('}').next().unwrap()).collect()
    }

    /// Those that are ids.
    fn id_names(&self) -> Vec<&str> {
        let mut names = self.placeholders();
        names.retain(|name| !matches!(*name, "owner" | "file" | "type"));
        names
    }

    /// Asserts that the reply is this problem, and that the document says so.
    #[track_caller]
    fn refuses(&self, reply: Reply, status: u16, slug: &str, what: &str) -> Value {
        let told = self.problems.get(&status.to_string());
        assert!(
            told.is_some_and(|slugs| slugs.iter().any(|it| it == slug)),
            "{}: {status} {slug} is not documented",
            self.name()
        );
        assert_eq!(
            (reply.status.as_u16(), reply.header("content-type")),
            (status, "application/problem+json"),
            "{} with {what}: {}",
            self.name(),
            String::from_utf8_lossy(&reply.bytes)
        );
        reply.problem(status, slug)
    }
}

/// The operations of the served document.
pub(crate) async fn operations(server: &Server) -> Vec<Operation> {
    let document = server
        .open(&format!("{}/openapi.json", server.base))
        .await
        .expect(200);
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                security: security(operation),
                body: body(operation),
                required_query: required_query(operation),
                problems: problems(&document, operation),
            });
        }
    }
    operations
}

fn security(operation: &Value) -> Option<(String, Vec<String>)> {
    let requirement = operation["security"][0].as_object().unwrap();
    let (scheme, scopes) = requirement.iter().next()?;
    let scopes = scopes.as_array().unwrap().iter().map(text).collect();
    Some((scheme.clone(), scopes))
}

fn body(operation: &Value) -> String {
    let example = &operation["requestBody"]["content"]["application/json"]["example"];
    if example.is_null() {
        String::new()
    } else {
        example.to_string()
    }
}

fn required_query(operation: &Value) -> Vec<String> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    parameters
        .filter(|it| it["in"] == "query" && it["required"] == true)
        .map(|it| text(&it["name"]))
        .collect()
}

/// The types of problems, by status.
fn problems(document: &Value, operation: &Value) -> BTreeMap<String, Vec<String>> {
    let mut problems = BTreeMap::new();
    for (status, response) in operation["responses"].as_object().unwrap() {
        let response = match response["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
            None => response,
        };
        let examples = &response["content"]["application/problem+json"]["examples"];
        if let Some(examples) = examples.as_object() {
            problems.insert(status.clone(), examples.keys().cloned().collect());
        }
    }
    problems
}

impl World {
    async fn new() -> Self {
        let (database, server) = world().await;
        Self::of(database, server).await
    }

    pub(crate) async fn of(database: TestDatabase, server: Server) -> Self {
        server.ready().await;
        let (organization, key) = server.organization("SaaS", &json!({})).await;
        let (_, other_organization_key) = server.organization("Other", &json!({})).await;
        let tenant = server
            .post("/v1/tenants", &key, &json!({"name": "acme"}))
            .await
            .expect(201);
        let tenant = text(&tenant["id"]);
        let all = key_of(&server, "tenants", &tenant, &json!({})).await;
        let endpoint = json!({"url": "https://receiver.example/"});
        let endpoint = server
            .post("/v1/endpoints", &all.0, &endpoint)
            .await
            .expect(201);
        let event = json!({"type": "a.b", "payload": 1});
        let event = server.post("/v1/events", &all.0, &event).await.expect(202);
        let other_tenant_key = server.tenant("other").await.key;
        let dead = json!({"type": "a.b", "payload": 2});
        let dead = server.post("/v1/events", &all.0, &dead).await.expect(202);
        let dead = text(&dead["deliveries"][0]["id"]);
        die(&database, &dead).await;
        let replay = server
            .post("/v1/dead-letters/replay", &all.0, &json!({"ids": [dead]}))
            .await
            .expect(202);
        let own = server
            .post("/v1/tenants", &key, &json!({"name": "own"}))
            .await
            .expect(201);
        let own_key = format!("/v1/tenants/{}/keys", text(&own["id"]));
        let own_key = server.post(&own_key, &key, &json!({})).await.expect(201);
        let removed = json!({"type": "a.b", "payload": 3});
        let removed = server.post("/v1/events", &all.0, &removed).await;
        let removed = format!("/v1/events/{}/payload", text(&removed.expect(202)["id"]));
        let removal = server.delete(&removed, &all.0).await.expect(202);
        let removal = text(&removal["id"]);
        Self {
            ids: vec![
                ("/v1/event-types/", "type", "a.b".to_owned()),
                ("/v1/dead-letters/", "id", dead),
                ("/v1/replays/", "id", text(&replay["id"])),
                ("/v1/removals/", "id", removal.clone()),
                ("/v1/tenants/", "id", text(&own["id"])),
                ("/v1/tenants/", "key", text(&own_key["id"])),
                ("/v1/admin/removals/", "id", removal),
                ("/v1/admin/organizations/", "id", organization.clone()),
                ("/v1/events/", "id", text(&event["id"])),
                ("/v1/deliveries/", "id", text(&event["deliveries"][0]["id"])),
                ("/v1/endpoints/", "id", text(&endpoint["id"])),
                ("/v1/admin/", "owner", "tenants".to_owned()),
                ("/v1/admin/", "id", tenant.clone()),
                ("/v1/admin/", "key", all.1),
                ("/docs/", "file", "start.js".to_owned()),
            ],
            server,
            database,
            tenant,
            other_tenant_key,
            organization,
            other_organization_key,
        }
    }

    /// The id that stands in a path for this parameter.
    fn id(&self, operation: &Operation, name: &str) -> String {
        let mut ids = self.ids.iter();
        let found = ids.find(|(path, known, _)| operation.path.starts_with(path) && *known == name);
        found
            .unwrap_or_else(|| panic!("{}: what stands for {{{name}}}?", operation.name()))
            .2
            .clone()
    }

    /// The path with its parameters, of which `changed` has another value.
    pub(crate) fn path(&self, operation: &Operation, changed: Option<(&str, &str)>) -> String {
        let mut path = operation.path.clone();
        for name in operation.placeholders() {
            let id = match changed {
                Some((other, value)) if other == name => value.to_owned(),
                _ => self.id(operation, name),
            };
            path = path.replace(&format!("{{{name}}}"), &id);
        }
        for (position, name) in operation.required_query.iter().enumerate() {
            assert_eq!(
                name,
                "endpoint",
                "{}: what stands for it?",
                operation.name()
            );
            let sign = if position == 0 { '?' } else { '&' };
            let mut ids = self.ids.iter();
            let endpoint = ids.find(|(path, ..)| *path == "/v1/endpoints/").unwrap();
            let endpoint = &endpoint.2;
            path.push_str(&format!("{sign}{name}={endpoint}"));
        }
        path
    }

    pub(crate) async fn send(
        &self,
        operation: &Operation,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Reply {
        let method = operation.method.clone();
        self.server
            .send(method, path, None, operation.body.clone(), headers)
            .await
    }

    async fn with_key(&self, operation: &Operation, path: &str, key: &str) -> Reply {
        let bearer = format!("Bearer {key}");
        self.send(operation, path, &[("authorization", &bearer)])
            .await
    }

    /// A key for this operation's scheme with these scopes.
    pub(crate) async fn key(&self, scheme: &str, scopes: &[&str]) -> (String, String) {
        let scopes = json!({"scopes": scopes});
        match scheme {
            "key" => key_of(&self.server, "tenants", &self.tenant, &scopes).await,
            _ => key_of(&self.server, "organizations", &self.organization, &scopes).await,
        }
    }
}

/// What waits under this id is dead.
async fn die(database: &TestDatabase, delivery: &str) {
    let id: DeliveryId = delivery.parse().unwrap();
    let kill = "WITH gone AS (DELETE FROM ready WHERE id = $1 RETURNING *)
        INSERT INTO dead_letters (tenant_id, endpoint_id, id, event_id, class, reason, attempts_made, kind, root_id)
        SELECT tenant_id, endpoint_id, id, event_id, 1, 'all its attempts are used', 5, 0, id FROM gone";
    let session = database.session().await;
    assert_eq!(session.execute(kill, &[&id.0]).await.unwrap(), 1);
}

/// A new key and its id.
pub(crate) async fn key_of(
    server: &Server,
    owner: &str,
    id: &str,
    body: &Value,
) -> (String, String) {
    let path = format!("/v1/admin/{owner}/{id}/keys");
    let made = server.post(&path, ADMIN, body).await.expect(201);
    (text(&made["key"]), text(&made["id"]))
}

/// An id of the same kind that was never given out.
fn unknown(id: &str) -> String {
    let (prefix, _) = id.split_once('_').unwrap();
    format!("{prefix}_00000000000000000000000001")
}

pub(crate) fn scopes_for(scheme: &str) -> &'static [&'static str] {
    if scheme == "key" {
        &ALL_SCOPES[..5]
    } else {
        &ALL_SCOPES
    }
}

#[tokio::test]
async fn no_route_answers_without_a_key_that_exists() {
    let world = World::new().await;
    for operation in operations(&world.server).await {
        let path = world.path(&operation, None);
        let wrong: [&[(&str, &str)]; 6] = [
            &[],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer nonsense")],
            &[("authorization", "Basic dXNlcjpwYXNz")],
            &[("authorization", "Bearer \u{fc}")],
            &[("authorization", &format!("Bearer {UNKNOWN_KEY}"))],
        ];
        for headers in wrong {
            let reply = world.send(&operation, &path, headers).await;
            if operation.security.is_none() {
                assert_eq!(reply.status, 200, "{} {headers:?}", operation.name());
                continue;
            }
            assert_eq!(reply.header("www-authenticate"), "Bearer");
            operation.refuses(reply, 401, "unauthorized", &format!("{headers:?}"));
        }
    }
}

#[tokio::test]
async fn no_route_answers_to_a_key_that_was_revoked_or_has_expired() {
    let world = World::new().await;
    let session = world.database.session().await;
    for (number, operation) in operations(&world.server).await.into_iter().enumerate() {
        let Some((scheme, _)) = &operation.security else {
            continue;
        };
        if scheme == "admin" {
            continue;
        }
        // From many addresses: one alone would have to wait after so many failures.
        let from = IpAddr::from([127, 0, 1, u8::try_from(number).unwrap()]);
        let from = reqwest::Client::builder().local_address(from).build();
        let from = from.unwrap();
        let path = world.path(&operation, None);
        let all = scopes_for(scheme);
        for column in ["revoked_at", "expires_at"] {
            let (key, id) = world.key(scheme, all).await;
            let hint: String = key.chars().take(10).collect();
            let change = format!("UPDATE api_keys SET {column} = now() WHERE hint = $1");
            assert_eq!(session.execute(&change, &[&hint]).await.unwrap(), 1, "{id}");
            let url = format!("{}{path}", world.server.base);
            let request = from
                .request(operation.method.clone(), url)
                .bearer_auth(&key);
            let request = request.body(operation.body.clone());
            let reply = read(request.send().await.unwrap()).await;
            operation.refuses(reply, 401, "unauthorized", column);
        }
    }
}

#[tokio::test]
async fn every_route_needs_the_scope_that_it_says_and_no_other() {
    let world = World::new().await;
    for operation in operations(&world.server).await {
        let Some((scheme, scopes)) = &operation.security else {
            continue;
        };
        if scheme == "admin" {
            for key in [&world.other_tenant_key, &world.other_organization_key] {
                let path = world.path(&operation, None);
                let reply = world.with_key(&operation, &path, key).await;
                operation.refuses(reply, 401, "unauthorized", "another's key");
            }
            continue;
        }
        let [scope] = scopes.as_slice() else {
            panic!("{}", operation.name())
        };
        let all = scopes_for(scheme);
        let others: Vec<&str> = all.iter().copied().filter(|it| it != scope).collect();
        let (without, _) = world.key(scheme, &others).await;
        let path = world.path(&operation, None);
        let reply = world.with_key(&operation, &path, &without).await;
        let problem = operation.refuses(reply, 403, "missing-scope", "all other scopes");
        assert!(
            text(&problem["detail"]).contains(scope.as_str()),
            "{problem}"
        );

        // Of an id that does not exist: so that nothing is changed or deleted.
        let (with, _) = world.key(scheme, &[scope]).await;
        let names = operation.id_names();
        let changed = names
            .first()
            .map(|name| unknown(&world.id(&operation, name)));
        let path = world.path(&operation, names.first().copied().zip(changed.as_deref()));
        let reply = world.with_key(&operation, &path, &with).await;
        if names.is_empty() {
            assert!(
                reply.status.is_success(),
                "{}: {}",
                operation.name(),
                reply.status
            );
        } else {
            operation.refuses(reply, 404, "not-found", "the scope alone");
        }
        if scheme == "organization" {
            let reply = world
                .with_key(&operation, &path, &world.other_tenant_key)
                .await;
            operation.refuses(reply, 403, "missing-scope", "a tenant's key");
        }
    }
}

/// S3
#[tokio::test]
async fn what_belongs_to_another_tenant_looks_like_what_does_not_exist() {
    let world = World::new().await;
    for operation in operations(&world.server).await {
        let Some((scheme, _)) = &operation.security else {
            continue;
        };
        let other: Vec<(&str, String)> = match scheme.as_str() {
            "key" => vec![(
                "authorization",
                format!("Bearer {}", world.other_tenant_key),
            )],
            "admin" => vec![("authorization", format!("Bearer {ADMIN}"))],
            _ => vec![(
                "authorization",
                format!("Bearer {}", world.other_organization_key),
            )],
        };
        let other: Vec<(&str, &str)> = other
            .iter()
            .map(|(name, it)| (*name, it.as_str()))
            .collect();
        for name in operation.id_names() {
            let id = world.id(&operation, name);
            let unknown = world.path(&operation, Some((name, &unknown(&id))));
            let unknown = world.send(&operation, &unknown, &other).await;
            if scheme != "admin" {
                let mine = world
                    .send(&operation, &world.path(&operation, None), &other)
                    .await;
                assert_eq!(mine.bytes, unknown.bytes, "{}", operation.name());
                assert_eq!(
                    seen(&mine),
                    seen(&unknown),
                    "{}: a header tells them apart",
                    operation.name()
                );
            }
            operation.refuses(unknown, 404, "not-found", name);
            // Behind a tenant that does not exist for it, nothing else is looked at.
            let behind = scheme == "organization" && operation.id_names().first() != Some(&name);
            let malformed = ["nonsense", "evt_", "%00", "..%2f"];
            for malformed in malformed.into_iter().filter(|_| !behind) {
                let path = world.path(&operation, Some((name, malformed)));
                let reply = world.send(&operation, &path, &other).await;
                operation.refuses(reply, 400, "invalid-parameter", malformed);
            }
        }
        if scheme == "key" {
            let path = world.path(&operation, None);
            let bearer = format!("Bearer {}", world.other_organization_key);
            let headers = [
                ("authorization", bearer.as_str()),
                ("postrider-tenant", &world.tenant),
            ];
            let reply = world.send(&operation, &path, &headers).await;
            let of_nobody = unknown(&world.tenant);
            let headers = [
                ("authorization", bearer.as_str()),
                ("postrider-tenant", &of_nobody),
            ];
            let nobodys = world.send(&operation, &path, &headers).await;
            assert_eq!(reply.bytes, nobodys.bytes, "{}", operation.name());
            operation.refuses(reply, 404, "not-found", "another organization's key");
        }
    }
}

/// All headers but those that differ with every reply.
fn seen(reply: &Reply) -> Vec<(String, String)> {
    let headers = reply.headers.iter();
    headers
        .filter(|(name, _)| !matches!(name.as_str(), "x-request-id" | "date"))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

#[tokio::test]
async fn every_list_takes_the_parameters_that_it_says_and_no_other() {
    let world = World::new().await;
    let document = world
        .server
        .open(&format!("{}/openapi.json", world.server.base))
        .await;
    let document = document.expect(200);
    for operation in operations(&world.server).await {
        let parameters = &document["paths"][&operation.path]["get"]["parameters"];
        let parameters = parameters.as_array().into_iter().flatten();
        let mut documented: Vec<String> = parameters
            .filter(|it| it["in"] == "query")
            .map(|it| text(&it["name"]))
            .collect();
        if operation.method != Method::GET || documented.is_empty() {
            continue;
        }
        let key = match operation
            .security
            .as_ref()
            .map(|(scheme, _)| scheme.as_str())
        {
            Some("admin") => ADMIN.to_owned(),
            Some(scheme) => world.key(scheme, scopes_for(scheme)).await.0,
            None => UNKNOWN_KEY.to_owned(),
        };
        let path = world.path(&operation, None);
        let sign = if path.contains('?') { '&' } else { '?' };
        let reply = world
            .with_key(&operation, &format!("{path}{sign}nonsense=1"), &key)
            .await;
        let problem = operation.refuses(reply, 400, "invalid-parameter", "nonsense=1");
        let detail = text(&problem["detail"]);
        let (_, known) = detail.split_once("known: ").unwrap();
        let mut known: Vec<String> = known.split(", ").map(str::to_owned).collect();
        known.sort();
        documented.sort();
        assert_eq!(known, documented, "{}", operation.name());
    }
}

#[tokio::test]
async fn every_path_answers_methods_that_it_does_not_have_with_those_that_it_has() {
    let world = World::new().await;
    let mut allowed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let operations = operations(&world.server).await;
    for operation in &operations {
        let methods = allowed.entry(operation.path.clone()).or_default();
        methods.push(operation.method.to_string());
    }
    for operation in &operations {
        let path = world.path(operation, None);
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ] {
            let methods = &mut allowed.get_mut(&operation.path).unwrap();
            if methods.contains(&method.to_string()) {
                continue;
            }
            let reply = world.server.send(method, &path, None, "", &[]).await;
            let mut told: Vec<String> = reply
                .header("allow")
                .split(", ")
                .map(str::to_owned)
                .collect();
            told.sort();
            methods.sort();
            assert_eq!(&told, *methods, "{path}");
            reply.problem(405, "method-not-allowed");
        }
    }
}
