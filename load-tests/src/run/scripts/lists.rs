//! How long every list of the API takes with millions of attempts in the database.
//!
//! The rows are made by SQL (`lists/fill.sql`); the questions go to the API as anybody's, one after the other. Lists that
//! know `until` are read at their newest, in their middle and at their oldest; the others from end to end.

mod questions;

use anyhow::Context as _;
use serde_json::{Value, json};
use shared::ids::{EndpointId, TenantId};
use shared::runtime::clock::wall_time;
use shared::store::partitions;
use time::format_description::well_known::Rfc3339;
use tokio_postgres::Client;
use uuid::Uuid;

use self::questions::{QUESTIONS, Question, Who};
use crate::client::{Connection, ask_json, request, request_with};
use crate::latency::{Latencies, Percentiles};
use crate::payload::now_ns;
use crate::run::stage::Stage;

/// Days of history: as long as events and attempts are kept by default.
const DAYS: i64 = 30;
/// Deliveries that are made for each thousand attempts: a quarter of them needs two.
const DELIVERIES: i64 = 810;
/// Pages of a walk, in a list that knows `until`.
const PAGES: usize = 20;
/// Pages of any other walk: from end to end, as far as there is an end.
const MOST_PAGES: usize = 500;
/// How often each list is asked, at least: its p99 is then the third longest.
const SAMPLES: u64 = 200;
/// What a page may hold: the default, and the most.
const LIMITS: [u32; 2] = [50, 250];
/// How old the newest row of a walk is, in hours: one begins in the outage of five days ago.
const AGES: [Option<i64>; 4] = [None, Some(5 * 24 + 10), Some(15 * 24), Some(29 * 24 + 20)];
/// No list may take longer, in milliseconds.
const MOST_MS: f64 = 50.0;

/// Whom the questions go to, and what they are about.
struct Asker {
    connection: Connection,
    organization_key: String,
    large_key: String,
    small_key: String,
    admin_token: String,
    /// What stands in braces in a question's path.
    names: Vec<(&'static str, String)>,
}

pub(super) async fn play(stage: &mut Stage<'_>, attempts: i64) -> anyhow::Result<()> {
    let organization_key = organization(stage).await?;
    fill(stage.system.postgres.client(), attempts).await?;
    let count = count(stage.system.postgres.client()).await?;
    stage.detail("attempts", count);
    stage.at_least("attempts in the table", Some(count as f64), attempts as f64);
    let mut asker = Asker::new(stage, organization_key).await?;
    stage.begin(u64::MAX).await?;
    let mut slowest = (0.0, String::new());
    for question in QUESTIONS {
        let (latency, rows) = asker.measure(question).await?;
        eprintln!(
            "{question}: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms, {rows} rows",
            latency.p50, latency.p99, latency.max
        );
        if latency.p99 >= slowest.0 {
            slowest = (latency.p99, question.to_string());
        }
        if latency.p99 >= MOST_MS {
            stage.below(&format!("p99 of {question}, ms"), latency.p99, MOST_MS);
        }
        let mut figures = json!(latency);
        if let Value::Object(figures) = &mut figures {
            figures.insert("rows".to_owned(), rows.into());
        }
        stage.detail(question.to_string(), figures);
    }
    stage.measured_until(now_ns());
    stage.end().await?;
    stage.detail("slowest", slowest.1);
    stage.below("p99 of the slowest list, ms", slowest.0, MOST_MS);
    stage.leave_unfinished();
    Ok(())
}

/// Makes the organization that all tenants will belong to, and a key of it.
async fn organization(stage: &Stage<'_>) -> anyhow::Result<String> {
    let post = async |path: &str, body: Value| -> anyhow::Result<Value> {
        let token = Some(stage.system.admin_token.as_str());
        let question = request("POST", path, token, body.to_string().as_bytes());
        ask_json(stage.system.api_addr, &question).await
    };
    let made = post("/v1/admin/organizations", json!({ "name": "load" })).await?;
    let id = text(&made, "/id")?;
    let path = format!("/v1/admin/organizations/{id}/keys");
    let key = json!({ "name": "load", "scopes": ["read", "keys:write"] });
    let made = post(&path, key).await?;
    Ok(text(&made, "/key")?.to_owned())
}

async fn fill(client: &Client, attempts: i64) -> anyhow::Result<()> {
    let now = wall_time();
    // Each call makes its day's and the day before's.
    for back in (0..=DAYS + 2).step_by(2) {
        partitions::ensure(client, now - time::Duration::days(back), 0).await?;
    }
    client.batch_execute(include_str!("lists/fill.sql")).await?;
    let deliveries = attempts * DELIVERIES / 1_000 / DAYS;
    for back in (0..DAYS).rev() {
        let day = i32::try_from(back)?;
        client
            .execute("SELECT load.day($1, $2)", &[&day, &deliveries])
            .await?;
        eprintln!("lists: {} of {DAYS} days are filled", DAYS - back);
    }
    client.execute("SELECT load.rest($1)", &[&attempts]).await?;
    eprintln!("lists: VACUUM (ANALYZE)");
    Ok(client.batch_execute("VACUUM (ANALYZE)").await?)
}

async fn count(client: &Client) -> anyhow::Result<i64> {
    Ok(client
        .query_one("SELECT count(*) FROM attempts", &[])
        .await?
        .get(0))
}

impl Asker {
    async fn new(stage: &Stage<'_>, organization_key: String) -> anyhow::Result<Self> {
        const ENDPOINTS: &str = "
SELECT t.public_id, ARRAY(SELECT e.public_id FROM unnest(l.endpoints) WITH ORDINALITY u(id, place) JOIN endpoints e USING (id) ORDER BY place)
FROM load.tenants l JOIN tenants t ON t.id = l.tenant_id WHERE l.number < 2 ORDER BY l.number";
        let key = |number: usize| {
            let target = stage
                .world
                .targets([number * stage.scenario.endpoints_per_tenant]);
            target
                .into_iter()
                .find_map(|it| it.key)
                .context("a tenant has no key")
        };
        let client = stage.system.postgres.client();
        let tenants = client.query(ENDPOINTS, &[]).await?;
        let [large, small] = &*tenants else {
            anyhow::bail!("two tenants were expected");
        };
        let mut names = vec![("{tenant}", TenantId(large.try_get(0)?).to_string())];
        let endpoints: Vec<Uuid> = large.try_get(1)?;
        let places = ["{busy}", "{silent}", "{rare}", "{other}"];
        names.extend(
            places
                .into_iter()
                .zip(endpoints)
                .map(|(name, id)| (name, EndpointId(id).to_string())),
        );
        let endpoints: Vec<Uuid> = small.try_get(1)?;
        names.extend(
            endpoints
                .first()
                .map(|id| ("{its}", EndpointId(*id).to_string())),
        );
        let mut asker = Self {
            connection: Connection::open(stage.system.api_addr).await?,
            organization_key,
            large_key: key(0)?,
            small_key: key(1)?,
            admin_token: stage.system.admin_token.clone(),
            names,
        };
        for (name, path) in [
            ("{event}", "/v1/events?limit=1"),
            ("{delivery}", "/v1/deliveries?status=delivered&limit=1"),
        ] {
            let reply = asker.ask(Who::Large, path).await?;
            let id = text(&reply, "/data/0/id")?.to_owned();
            asker.names.push((name, id));
        }
        let audit = asker
            .ask(Who::Large, "/v1/audit-log?action=endpoint.updated&limit=1")
            .await?;
        let object = text(&audit, "/data/0/object/id")?;
        asker.names.push(("{object}", object.to_owned()));
        Ok(asker)
    }

    /// Asks a list until it was asked often enough; how long that took, and how many rows came.
    async fn measure(&mut self, question: &Question) -> anyhow::Result<(Percentiles, usize)> {
        let mut latencies = Latencies::new();
        let mut rows = 0;
        let path = self
            .names
            .iter()
            .fold(question.path.to_owned(), |path, (name, value)| {
                path.replace(name, value)
            });
        while latencies.percentiles().samples < SAMPLES {
            for (age, limit) in AGES
                .into_iter()
                .flat_map(|age| LIMITS.map(|limit| (age, limit)))
            {
                let parameters = match (question.shape(), age) {
                    (Shape::Single, _) => None,
                    (Shape::Timed, Some(hours)) => {
                        let until =
                            (wall_time() - time::Duration::hours(hours)).format(&Rfc3339)?;
                        Some(format!("limit={limit}&until={until}"))
                    }
                    (Shape::Timed | Shape::Whole, _) => Some(format!("limit={limit}")),
                };
                let first = match parameters {
                    None => path.clone(),
                    Some(parameters) if path.contains('?') => format!("{path}&{parameters}"),
                    Some(parameters) => format!("{path}?{parameters}"),
                };
                rows += self.walk(question, &first, &mut latencies).await?;
            }
        }
        Ok((latencies.percentiles(), rows))
    }

    /// From a page to the next; how many rows there were.
    async fn walk(
        &mut self,
        question: &Question,
        first: &str,
        latencies: &mut Latencies,
    ) -> anyhow::Result<usize> {
        let most = match question.shape() {
            Shape::Single => 1,
            Shape::Timed => PAGES,
            Shape::Whole => MOST_PAGES,
        };
        let mut rows = 0;
        let mut path = first.to_owned();
        for _page in 0..most {
            let began = now_ns();
            let page = self.ask(question.who, &path).await?;
            latencies.record(began, now_ns());
            rows += page
                .pointer("/data")
                .and_then(Value::as_array)
                .map_or(1, Vec::len);
            let Some(cursor) = page.pointer("/next_cursor").and_then(Value::as_str) else {
                break;
            };
            path = format!("{first}&cursor={cursor}");
        }
        Ok(rows)
    }

    async fn ask(&mut self, who: Who, path: &str) -> anyhow::Result<Value> {
        let (key, headers): (_, &[(&str, &str)]) = match who {
            Who::Large => (&self.large_key, &[]),
            Who::Small => (&self.small_key, &[]),
            Who::Organization => (&self.organization_key, &[]),
            Who::AllTenants => (&self.organization_key, &[("postrider-tenant", "*")]),
            Who::Admin => (&self.admin_token, &[]),
        };
        let question = request_with(("GET", path), Some(key), headers, b"");
        let reply = self
            .connection
            .exchange(&question)
            .await
            .with_context(|| path.to_owned())?;
        anyhow::ensure!(
            reply.status == 200,
            "{path}: {} {}",
            reply.status,
            String::from_utf8_lossy(reply.body)
        );
        Ok(serde_json::from_slice(reply.body)?)
    }
}

/// A text of a reply.
fn text<'v>(reply: &'v Value, pointer: &str) -> anyhow::Result<&'v str> {
    let value = reply.pointer(pointer).and_then(Value::as_str);
    value.with_context(|| format!("no {pointer} in the reply"))
}

/// How a question can be read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// There is one page.
    Single,
    /// From any instant on.
    Timed,
    /// From end to end.
    Whole,
}
