//! Events and deliveries for the classic design, inserted by SQL.

use std::net::SocketAddr;
use std::time::Duration;

use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::super::database;
use super::super::scenario::Scenario;
use super::super::setup::{World, url};
use super::super::system::System;
use crate::payload::{self, Stamp, now_ns};

/// How often more is inserted.
const EVERY: Duration = Duration::from_millis(10);
/// Events in one statement, at most.
const BATCH: u64 = 1_000;

/// An event of each payload, and its deliveries to so many endpoints from a number on.
const INSERT: &str = "
WITH e AS (
  INSERT INTO events (id, type, payload) SELECT u.id, 'load', u.payload FROM unnest($1::uuid[], $2::text[]) u(id, payload))
INSERT INTO deliveries (event_id, endpoint_id)
SELECT u.id, p.id FROM unnest($1::uuid[], $3::int4[]) u(id, number)
JOIN endpoints p ON p.number >= u.number AND p.number < u.number + $4::int4";

/// How fast.
#[derive(Debug, Clone, Copy)]
pub(super) enum Feed {
    /// So many deliveries inserted and not yet received, at most.
    Closed { backlog: u64 },
    /// So many events per second.
    Open { per_second: f64 },
}

/// Inserts.
pub(super) struct Feeder {
    client: Client,
    insert: Statement,
    payload: Vec<u8>,
    /// Groups of endpoints that an event goes to.
    groups: u64,
    fan_out: u64,
    /// Events so far.
    fed: u64,
}

impl Feeder {
    pub(super) async fn new(
        database: &str,
        schema: &str,
        scenario: &Scenario,
        world: &World,
        receiver: SocketAddr,
    ) -> anyhow::Result<Self> {
        const ENDPOINTS: &str = "INSERT INTO endpoints (number, url, secret) SELECT number - 1, url, secret \
             FROM unnest($1::text[], $2::text[]) WITH ORDINALITY u(url, secret, number)";
        let client = database::connect(database).await?;
        client.batch_execute(schema).await?;
        let count = world.endpoints.len();
        let urls: Vec<String> = (0..count).map(|it| url(it, receiver, 1)).collect();
        let secrets: Vec<&str> = world
            .endpoints
            .iter()
            .map(|it| it.secret.as_str())
            .collect();
        client.execute(ENDPOINTS, &[&urls, &secrets]).await?;
        client.batch_execute("ANALYZE").await?;
        let fan_out = scenario.fan_out.max(1);
        Ok(Self {
            insert: client.prepare(INSERT).await?,
            client,
            payload: payload::blank(scenario.payload_bytes),
            groups: u64::try_from((count / fan_out).max(1))?,
            fan_out: u64::try_from(fan_out)?,
            fed: 0,
        })
    }

    /// Inserts until an instant of the boot clock, in nanoseconds.
    pub(super) async fn feed(
        &mut self,
        feed: Feed,
        until_ns: u64,
        system: &System,
    ) -> anyhow::Result<()> {
        let (began_ns, before) = (now_ns(), self.fed);
        let taken_before = system.taken().await?;
        while now_ns() < until_ns {
            match feed {
                Feed::Closed { backlog } => {
                    let taken = system.taken().await?.saturating_sub(taken_before);
                    let waiting = ((self.fed - before) * self.fan_out).saturating_sub(taken);
                    let more = backlog.saturating_sub(waiting) / self.fan_out;
                    self.insert_events(vec![now_ns(); usize::try_from(more.min(BATCH))?])
                        .await?;
                }
                Feed::Open { per_second } => {
                    let each = Duration::from_secs(1).div_f64(per_second.max(0.001));
                    let each_ns = u64::try_from(each.as_nanos())?;
                    let due = |number: u64| began_ns + number * each_ns;
                    let numbers = (self.fed - before)..;
                    let due = numbers.map(due).take_while(|at| *at <= now_ns());
                    self.insert_events(due.collect()).await?;
                }
            }
            tokio::time::sleep(EVERY).await;
        }
        Ok(())
    }

    /// Inserts so many deliveries at once.
    pub(super) async fn insert(&mut self, deliveries: u64) -> anyhow::Result<()> {
        let mut left = deliveries / self.fan_out;
        while left > 0 {
            let more = left.min(BATCH);
            self.insert_events(vec![now_ns(); usize::try_from(more)?])
                .await?;
            left -= more;
        }
        Ok(self.client.batch_execute("VACUUM (ANALYZE)").await?)
    }

    /// An event for each of these instants.
    async fn insert_events(&mut self, due_ns: Vec<u64>) -> anyhow::Result<()> {
        if due_ns.is_empty() {
            return Ok(());
        }
        let mut ids = Vec::with_capacity(due_ns.len());
        let mut payloads = Vec::with_capacity(due_ns.len());
        let mut first = Vec::with_capacity(due_ns.len());
        for sent_ns in due_ns {
            let stamp = Stamp {
                sent_ns,
                ..Stamp::default()
            };
            payload::write(&mut self.payload, stamp);
            ids.push(Uuid::new_v4());
            payloads.push(String::from_utf8_lossy(&self.payload).into_owned());
            first.push(i32::try_from(self.fed % self.groups * self.fan_out)?);
            self.fed += 1;
        }
        let fan_out = i32::try_from(self.fan_out)?;
        self.client
            .execute(&self.insert, &[&ids, &payloads, &first, &fan_out])
            .await?;
        Ok(())
    }
}
