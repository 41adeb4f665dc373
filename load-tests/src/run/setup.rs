//! Tenants, keys and endpoints of a scenario, made through the API like anybody's.

use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::scenario::Scenario;
use crate::client::{ask_json, request};
use crate::generator::Target;

/// Tenants that are made at the same time.
const AT_ONCE: usize = 10;

/// What the generator and the receiver need to know, in the order of the endpoints' numbers.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) endpoints: Vec<Made>,
    per_tenant: usize,
}

/// An endpoint that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) id: String,
    pub(super) target: Target,
    pub(super) secret: String,
}

impl World {
    /// The endpoints' targets: one of every tenant in turn, not ten of one tenant in a row.
    pub(super) fn in_turn(&self) -> Vec<Target> {
        let per_tenant = self.per_tenant.max(1);
        let of = |endpoint| self.endpoints.iter().skip(endpoint).step_by(per_tenant);
        (0..per_tenant)
            .flat_map(of)
            .map(|made| made.target.clone())
            .collect()
    }

    /// One of them. Errors: there are not so many.
    pub(super) fn made(&self, number: usize) -> anyhow::Result<&Made> {
        let made = self.endpoints.get(number);
        made.with_context(|| format!("no endpoint {number}"))
    }

    /// The targets of some endpoints.
    pub(super) fn targets(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<Target> {
        let made = numbers.into_iter().filter_map(|it| self.endpoints.get(it));
        made.map(|made| made.target.clone()).collect()
    }
}

/// Where everything is made.
#[derive(Debug, Clone)]
struct Place {
    api: SocketAddr,
    admin_token: String,
    receiver: SocketAddr,
}

/// Makes them. Endpoint n gets the URL `http://<receiver>/e/<n>`.
pub(super) async fn create(
    scenario: &Scenario,
    api: SocketAddr,
    admin_token: &str,
    receiver: SocketAddr,
) -> anyhow::Result<World> {
    let place = Place {
        api,
        admin_token: admin_token.to_owned(),
        receiver,
    };
    let per_tenant = scenario.endpoints_per_tenant;
    let mut tenants = Vec::new();
    for first in (0..scenario.tenants).step_by(AT_ONCE) {
        let mut group = JoinSet::new();
        for number in first..(first + AT_ONCE).min(scenario.tenants) {
            let place = place.clone();
            let endpoints = number * per_tenant..(number + 1) * per_tenant;
            let fields: Vec<Value> = endpoints.map(|it| scenario.fields(it)).collect();
            group.spawn(async move {
                let made = tenant(number, fields, &place).await;
                made.with_context(|| format!("tenant {number}"))
                    .map(|made| (number, made))
            });
        }
        while let Some(made) = group.join_next().await {
            tenants.push(made??);
        }
    }
    tenants.sort_by_key(|(number, _)| *number);
    Ok(World {
        endpoints: tenants.into_iter().flat_map(|(_, made)| made).collect(),
        per_tenant,
    })
}

/// Makes a tenant with an endpoint of each of these fields.
async fn tenant(number: usize, fields: Vec<Value>, place: &Place) -> anyhow::Result<Vec<Made>> {
    let api = place.api;
    let name = json!({ "name": format!("load-{number}") });
    let made = post(api, "/v1/admin/tenants", &place.admin_token, &name).await?;
    let id = text(&made, "id")?;
    let scopes = ["events:write", "endpoints:write", "read", "replay"];
    let scopes = json!({ "name": "load", "scopes": scopes });
    let path = format!("/v1/admin/tenants/{id}/keys");
    let made = post(api, &path, &place.admin_token, &scopes).await?;
    let key = text(&made, "key")?;
    let first = number * fields.len();
    let mut endpoints = Vec::new();
    for (endpoint, mut fields) in fields.into_iter().enumerate() {
        let event_type = format!("load.t{endpoint}");
        let url = format!("http://{}/e/{}", place.receiver, first + endpoint);
        if let Value::Object(fields) = &mut fields {
            fields.insert("url".to_owned(), json!(url));
            fields.insert("event_types".to_owned(), json!([event_type]));
        }
        let made = post(api, "/v1/endpoints", &key, &fields).await?;
        endpoints.push(Made {
            id: text(&made, "id")?,
            secret: text(&made, "secret")?,
            target: Target {
                path: "/v1/events".to_owned(),
                key: Some(key.clone()),
                event_type: Some(event_type),
            },
        });
    }
    Ok(endpoints)
}

async fn post(api: SocketAddr, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
    ask_json(
        api,
        &request("POST", path, Some(key), body.to_string().as_bytes()),
    )
    .await
}

fn text(reply: &Value, name: &str) -> anyhow::Result<String> {
    let value = reply.get(name).and_then(Value::as_str);
    value
        .map(str::to_owned)
        .with_context(|| format!("no {name} in the reply"))
}
