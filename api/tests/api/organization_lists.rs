//! Lists across an organization's tenants.

use std::collections::{HashMap, HashSet};

use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{ADMIN, Reply, Server, text, world};

/// An organization with a key.
pub(crate) struct Organization<'a> {
    server: &'a Server,
    pub(crate) id: String,
    pub(crate) key: String,
}

impl<'a> Organization<'a> {
    pub(crate) async fn new(server: &'a Server) -> Self {
        let made = server
            .post("/v1/admin/organizations", ADMIN, &json!({"name": "SaaS"}))
            .await
            .expect(201);
        let id = text(&made["id"]);
        let keys = format!("/v1/admin/organizations/{id}/keys");
        let key = server.post(&keys, ADMIN, &json!({})).await.expect(201);
        Self {
            server,
            id,
            key: text(&key["key"]),
        }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        tenant: &str,
        body: &Value,
    ) -> Reply {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [("postrider-tenant", tenant)];
        self.server
            .send(method, path, Some(&self.key), body, &headers)
            .await
    }

    async fn all(&self, path: &str) -> Value {
        self.send(Method::GET, path, "*", &Value::Null)
            .await
            .expect(200)
    }

    /// The tenant with the organization's own name, with an endpoint.
    async fn tenant(&self, name: &str) -> String {
        let body = json!({"url": "http://127.0.0.1/hook"});
        self.send(Method::POST, "/v1/endpoints", &format!("ext:{name}"), &body)
            .await
            .expect(201);
        let tenants = self.server.get("/v1/tenants", &self.key).await.expect(200);
        let tenants = tenants["data"].as_array().unwrap().clone();
        let found = tenants.iter().find(|tenant| tenant["external_id"] == name);
        text(&found.unwrap()["id"])
    }

    async fn publish(&self, tenant: &str, event_type: &str) -> Value {
        let event = json!({"type": event_type, "payload": 1});
        self.send(Method::POST, "/v1/events", tenant, &event)
            .await
            .expect(202)
    }

    /// Every row of a list, two at a time.
    async fn walk(&self, path: &str) -> Vec<Value> {
        let mut rows = Vec::new();
        let mut cursor = String::new();
        loop {
            let joiner = if path.contains('?') { '&' } else { '?' };
            let page = self.all(&format!("{path}{joiner}limit=2{cursor}")).await;
            rows.extend(page["data"].as_array().unwrap().clone());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return rows,
            }
        }
    }
}

#[tokio::test]
async fn an_organization_lists_rows_of_all_its_tenants_newest_first_and_of_no_other() {
    // S3
    let (_database, server) = world().await;
    let (one, two) = (
        Organization::new(&server).await,
        Organization::new(&server).await,
    );
    let mut owners: HashMap<String, String> = HashMap::new();
    let mut expected = Vec::new();
    for round in 0..3 {
        for name in ["a", "b", "c"] {
            let tenant = one.tenant(name).await;
            let event = one.publish(&tenant, &format!("type.{name}")).await;
            owners.insert(text(&event["id"]), tenant);
            expected.push(text(&event["id"]));
            let theirs = two.tenant(name).await;
            two.publish(&theirs, &format!("type.{round}")).await;
        }
    }
    expected.reverse();

    let events = one.walk("/v1/events").await;
    let ids: Vec<String> = events.iter().map(|row| text(&row["id"])).collect();
    let seen: HashSet<&String> = ids.iter().collect();
    assert_eq!(seen.len(), 9, "each once");
    assert_eq!(seen, expected.iter().collect());
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");
    for event in &events {
        assert_eq!(event["tenant_id"], owners[&text(&event["id"])]);
    }
    let of_type = one.walk("/v1/events?type=type.b").await;
    assert_eq!(of_type.len(), 3);
    assert!(of_type.iter().all(|row| row["type"] == "type.b"));

    let deliveries = one.walk("/v1/deliveries").await;
    assert_eq!(
        deliveries.len(),
        18,
        "the endpoints of rounds before get it too"
    );
    for delivery in &deliveries {
        assert_eq!(delivery["tenant_id"], owners[&text(&delivery["event_id"])]);
    }
    assert_eq!(one.walk("/v1/deliveries?status=pending").await.len(), 18);
    assert!(
        one.walk("/v1/deliveries?status=dead_letter")
            .await
            .is_empty()
    );

    let endpoints = one.walk("/v1/endpoints").await;
    assert_eq!(endpoints.len(), 9);
    let tenants: HashSet<String> = owners.values().cloned().collect();
    let shown: HashSet<String> = endpoints
        .iter()
        .map(|row| text(&row["tenant_id"]))
        .collect();
    assert_eq!(shown, tenants);
    assert_eq!(two.walk("/v1/events").await.len(), 9);
}

#[tokio::test]
async fn every_tenant_at_once_is_for_lists_and_for_organizations() {
    let (_database, server) = world().await;
    let organization = Organization::new(&server).await;
    let tenant = server.tenant("alone").await;
    let event = json!({"type": "a", "payload": 1});

    organization
        .send(Method::POST, "/v1/events", "*", &event)
        .await
        .problem(400, "invalid-parameter");
    server
        .send(
            Method::GET,
            "/v1/events",
            Some(&tenant.key),
            "",
            &[("postrider-tenant", "*")],
        )
        .await
        .problem(403, "missing-scope");
    organization
        .send(
            Method::GET,
            "/v1/deliveries?endpoint_id=ep_01kb9h2v3cfzqt9m6w8x5y7r2n",
            "*",
            &Value::Null,
        )
        .await
        .problem(400, "invalid-parameter");
    assert!(organization.walk("/v1/events").await.is_empty());
}
