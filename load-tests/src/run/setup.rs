//! Tenants, keys and endpoints of a scenario, made through the API like anybody's.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::scenario::Scenario;
use super::system::System;
use crate::client::{Connection, request};
use crate::generator::Target;
use crate::receiver::Change;

/// Tenants that are made at the same time.
const AT_ONCE: usize = 32;

/// What the generator and the receiver need to know, in the order of the endpoints' numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) endpoints: Vec<Made>,
    per_tenant: usize,
    fan_out: usize,
}

/// An endpoint that was made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) id: String,
    pub(super) target: Target,
    pub(super) secret: String,
}

impl World {
    /// What reaches every endpoint once: one of every tenant in turn, not ten of one tenant in a row.
    pub(super) fn in_turn(&self) -> Vec<Target> {
        let per_tenant = self.per_tenant.max(1);
        let of = |endpoint| self.endpoints.iter().skip(endpoint).step_by(per_tenant);
        (0..per_tenant)
            .step_by(self.fan_out.max(1))
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

    /// Makes more tenants with their endpoints, and tells the receiver of them. Endpoint n gets the
    /// URL `http://<receiver>/e/<n>`.
    pub(super) async fn extend(
        &mut self,
        scenario: &Scenario,
        system: &System,
        tenants: Range<usize>,
    ) -> anyhow::Result<()> {
        let first = self.endpoints.len();
        let made = create(scenario, system, tenants).await?;
        self.endpoints.extend(made);
        self.per_tenant = scenario.endpoints_per_tenant;
        self.fan_out = scenario.fan_out;
        let secrets = self.endpoints.iter().map(|it| it.secret.as_str());
        let secrets: Vec<&str> = secrets.collect();
        system.tell("secrets", &secrets).await?;
        let answers = Change {
            endpoints: (first..self.endpoints.len()).into(),
            answers: scenario.answers,
            journal: false,
        };
        system.tell("answers", &[answers]).await
    }
}

/// Where everything is made.
#[derive(Debug, Clone)]
struct Place {
    api: SocketAddr,
    admin_token: String,
    receiver: SocketAddr,
    hosts: usize,
    fan_out: usize,
}

/// In the order of their numbers.
async fn create(
    scenario: &Scenario,
    system: &System,
    tenants: Range<usize>,
) -> anyhow::Result<Vec<Made>> {
    let place = Place {
        api: system.api_addr,
        admin_token: system.admin_token.clone(),
        receiver: system.receiver_addr,
        hosts: scenario.hosts,
        fan_out: scenario.fan_out,
    };
    let per_tenant = scenario.endpoints_per_tenant;
    let mut made = Vec::new();
    let mut running = JoinSet::new();
    let mut waiting = tenants;
    loop {
        while running.len() < AT_ONCE
            && let Some(number) = waiting.next()
        {
            let place = place.clone();
            let endpoints = number * per_tenant..(number + 1) * per_tenant;
            let fields: Vec<Value> = endpoints.map(|it| scenario.fields(it)).collect();
            running.spawn(async move {
                let made = tenant(number, fields, &place).await;
                made.with_context(|| format!("tenant {number}"))
                    .map(|made| (number, made))
            });
        }
        match running.join_next().await {
            Some(one) => made.push(one??),
            None => break,
        }
    }
    made.sort_by_key(|(number, _)| *number);
    Ok(made.into_iter().flat_map(|(_, made)| made).collect())
}

/// Makes a tenant with an endpoint of each of these fields.
async fn tenant(number: usize, fields: Vec<Value>, place: &Place) -> anyhow::Result<Vec<Made>> {
    let mut api = Connection::open(place.api).await?;
    let name = json!({ "name": format!("load-{number}") });
    let made = post(&mut api, "/v1/admin/tenants", &place.admin_token, &name).await?;
    let id = text(&made, "id")?;
    let scopes = ["events:write", "endpoints:write", "read", "replay"];
    let scopes = json!({ "name": "load", "scopes": scopes });
    let path = format!("/v1/admin/tenants/{id}/keys");
    let made = post(&mut api, &path, &place.admin_token, &scopes).await?;
    let key = text(&made, "key")?;
    let first = number * fields.len();
    let mut endpoints = Vec::new();
    for (endpoint, mut fields) in fields.into_iter().enumerate() {
        let event_type = format!("load.t{}", endpoint / place.fan_out.max(1));
        let url = url(first + endpoint, place.receiver, place.hosts);
        if let Value::Object(fields) = &mut fields {
            fields.insert("url".to_owned(), json!(url));
            fields.insert("event_types".to_owned(), json!([event_type]));
        }
        let made = post(&mut api, "/v1/endpoints", &key, &fields).await?;
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

/// Endpoint number n. All of 127.0.0.0/8 is this machine, so it has as many hosts as are asked for.
pub(super) fn url(number: usize, receiver: SocketAddr, hosts: usize) -> String {
    let host = match (hosts, u32::try_from(number % hosts.max(1))) {
        (0 | 1, _) | (_, Err(_)) => receiver.ip().to_string(),
        (_, Ok(host)) => Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + host).to_string(),
    };
    format!("http://{host}:{}/e/{number}", receiver.port())
}

async fn post(api: &mut Connection, path: &str, key: &str, body: &Value) -> anyhow::Result<Value> {
    let request = request("POST", path, Some(key), body.to_string().as_bytes());
    let reply = api
        .exchange(&request)
        .await
        .with_context(|| path.to_owned())?;
    let shown = || String::from_utf8_lossy(reply.body);
    ensure!(reply.status < 300, "{path}: {} {}", reply.status, shown());
    serde_json::from_slice(reply.body).with_context(|| format!("{path}: {}", shown()))
}

fn text(reply: &Value, name: &str) -> anyhow::Result<String> {
    let value = reply.get(name).and_then(Value::as_str);
    value
        .map(str::to_owned)
        .with_context(|| format!("no {name} in the reply"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(tenants: usize, per_tenant: usize, fan_out: usize) -> World {
        let made = |number: usize| Made {
            id: number.to_string(),
            target: Target {
                path: format!("/{}", number / per_tenant),
                key: None,
                event_type: Some((number % per_tenant / fan_out).to_string()),
            },
            secret: String::new(),
        };
        World {
            endpoints: (0..tenants * per_tenant).map(made).collect(),
            per_tenant,
            fan_out,
        }
    }

    #[test]
    fn every_endpoint_is_reached_once_by_a_tenant_in_turn() {
        let shown = |world: &World| {
            let target = |it: Target| format!("{} {}", it.path, it.event_type.unwrap_or_default());
            world.in_turn().into_iter().map(target).collect::<Vec<_>>()
        };

        let single = shown(&world(2, 3, 1));
        assert_eq!(single, ["/0 0", "/1 0", "/0 1", "/1 1", "/0 2", "/1 2"]);
        assert_eq!(shown(&world(2, 4, 2)), ["/0 0", "/1 0", "/0 1", "/1 1"]);
        assert_eq!(shown(&world(2, 4, 4)), ["/0 0", "/1 0"]);
    }

    #[test]
    fn endpoints_share_the_receivers_address_or_have_as_many_hosts_as_asked_for() {
        let receiver = ([127, 0, 0, 1], 9000).into();

        assert_eq!(url(7, receiver, 1), "http://127.0.0.1:9000/e/7");
        assert_eq!(url(300, receiver, 1_000), "http://127.1.1.45:9000/e/300");
        assert_eq!(url(1_300, receiver, 1_000), "http://127.1.1.45:9000/e/1300");
    }
}
