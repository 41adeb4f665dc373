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

/// What the generator and the receiver need to know.
#[derive(Debug, Default)]
pub(super) struct World {
    /// One per endpoint, in the order of their numbers.
    pub(super) targets: Vec<Target>,
    /// The endpoints' secrets, in the same order.
    pub(super) secrets: Vec<String>,
}

/// Makes them. Endpoint n gets the URL `http://<receiver>/e/<n>`.
pub(super) async fn create(
    scenario: &Scenario,
    api: SocketAddr,
    admin_token: &str,
    receiver: SocketAddr,
) -> anyhow::Result<World> {
    let mut tenants = Vec::new();
    for first in (0..scenario.tenants).step_by(AT_ONCE) {
        let mut group = JoinSet::new();
        for number in first..(first + AT_ONCE).min(scenario.tenants) {
            let endpoints = scenario.endpoints_per_tenant;
            let token = admin_token.to_owned();
            group.spawn(async move {
                let made = tenant(number, endpoints, api, &token, receiver).await;
                made.with_context(|| format!("tenant {number}"))
                    .map(|made| (number, made))
            });
        }
        while let Some(made) = group.join_next().await {
            tenants.push(made??);
        }
    }
    tenants.sort_by_key(|(number, _)| *number);
    // An event of every tenant in turn, not ten of one tenant in a row.
    let mut world = World::default();
    for (_, (targets, secrets)) in &mut tenants {
        world.secrets.append(secrets);
        world.targets.append(targets);
    }
    let per_tenant = scenario.endpoints_per_tenant.max(1);
    let in_turn = (0..per_tenant).flat_map(|endpoint| {
        world
            .targets
            .iter()
            .skip(endpoint)
            .step_by(per_tenant)
            .cloned()
    });
    world.targets = in_turn.collect();
    Ok(world)
}

async fn tenant(
    number: usize,
    endpoints: usize,
    api: SocketAddr,
    admin_token: &str,
    receiver: SocketAddr,
) -> anyhow::Result<(Vec<Target>, Vec<String>)> {
    let name = json!({ "name": format!("load-{number}") });
    let made = post(api, "/v1/admin/tenants", admin_token, &name).await?;
    let id = text(&made, "id")?;
    let scopes = json!({ "name": "load", "scopes": ["events:write", "endpoints:write", "read"] });
    let made = post(
        api,
        &format!("/v1/admin/tenants/{id}/keys"),
        admin_token,
        &scopes,
    )
    .await?;
    let key = text(&made, "key")?;
    let (mut targets, mut secrets) = (Vec::new(), Vec::new());
    for endpoint in 0..endpoints {
        let event_type = format!("load.t{endpoint}");
        let url = format!("http://{receiver}/e/{}", number * endpoints + endpoint);
        let endpoint = json!({ "url": url, "event_types": [event_type] });
        let made = post(api, "/v1/endpoints", &key, &endpoint).await?;
        secrets.push(text(&made, "secret")?);
        targets.push(Target {
            path: "/v1/events".to_owned(),
            key: Some(key.clone()),
            event_type: Some(event_type),
        });
    }
    Ok((targets, secrets))
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
