//! One replay, through the API like anybody's: asked for, asked for once more, followed to its end.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{Connection, ask_json, request};
use crate::payload::now_ns;
use crate::run::stage::{Stage, nanos};

/// How long the API may take until it answers with an id: it only writes down what is asked for.
const AT_ONCE_MS: f64 = 1_000.0;
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Asked {
    name: &'static str,
    endpoint: usize,
    events: usize,
    body: Value,
    id: String,
    from_ns: u64,
}

impl Asked {
    /// Asks for a replay of `events` events.
    pub(super) async fn begin(
        stage: &mut Stage<'_>,
        name: &'static str,
        (endpoint, events): (usize, usize),
        body: Value,
    ) -> anyhow::Result<Self> {
        let from_ns = now_ns();
        let replay = ask(stage, endpoint, ("POST", "/replay"), &body).await?;
        let answered_ms = (now_ns() - from_ns) as f64 / 1e6;
        let what = format!("{name}: ms until its id is known");
        stage.at_most(&what, Some(answered_ms), AT_ONCE_MS);
        let id = replay.get("id").and_then(Value::as_str);
        Ok(Self {
            id: id.context("a replay without an id")?.to_owned(),
            name,
            endpoint,
            events,
            body,
            from_ns,
        })
    }

    /// The same request while it runs is refused, with the id of the one that runs.
    pub(super) async fn is_refused_twice(&self, stage: &mut Stage<'_>) -> anyhow::Result<()> {
        let made = stage.world.made(self.endpoint)?;
        let path = format!("/v1/endpoints/{}/replay", made.id);
        let key = made.target.key.as_deref();
        let same = request("POST", &path, key, self.body.to_string().as_bytes());
        let mut connection = Connection::open(stage.system.api_addr).await?;
        let reply = connection.exchange(&same).await?;
        let named = String::from_utf8_lossy(reply.body).contains(&self.id);
        let begun = if reply.status == 409 && named {
            0.0
        } else {
            1.0
        };
        let what = format!("{}: begun once more while it runs", self.name);
        stage.never_above(&what, Some(begun), 0.0);
        Ok(())
    }

    /// How far it is, told to who watches the run.
    pub(super) async fn look(&self, stage: &Stage<'_>) -> anyhow::Result<Value> {
        let seen = self.seen(stage).await?;
        let [done, total] = ["done", "total"].map(|it| number(&seen, it));
        eprintln!("  {}: {done} of {total} found are delivered", self.name);
        Ok(seen)
    }

    /// Deliveries that are to come.
    pub(super) async fn left(&self, stage: &Stage<'_>) -> anyhow::Result<f64> {
        let seen = self.look(stage).await?;
        Ok(self.events as f64 - number(&seen, "done"))
    }

    async fn seen(&self, stage: &Stage<'_>) -> anyhow::Result<Value> {
        let key = stage.world.made(self.endpoint)?.target.key.as_deref();
        let path = format!("/v1/replays/{}", self.id);
        ask_json(stage.system.api_addr, &request("GET", &path, key, b"")).await
    }

    /// Waits for its end: how many seconds it took, and its summary.
    pub(super) async fn ended(
        &self,
        stage: &Stage<'_>,
        longest: Duration,
    ) -> anyhow::Result<(f64, Value)> {
        let deadline = now_ns() + nanos(longest);
        loop {
            let replay = self.seen(stage).await?;
            if replay.get("finished_at").is_some_and(Value::is_string) {
                let seconds = (now_ns() - self.from_ns) as f64 / 1e9;
                eprintln!("  {}: finished after {seconds:.1} s", self.name);
                return Ok((seconds, replay));
            }
            ensure!(now_ns() < deadline, "{} goes on: {replay}", self.name);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Its summary has to say that all were found and delivered, and nothing else.
    pub(super) fn check(&self, stage: &mut Stage<'_>, summary: &Value) {
        let expected = [
            ("status", json!("finished")),
            ("total", json!(self.events)),
            ("total_is_lower_bound", json!(false)),
            ("done", json!(self.events)),
            ("failed", json!(0)),
            ("skipped", json!(0)),
            ("not_replayable", json!([])),
        ];
        let is_wrong = |(name, it): &&(&str, Value)| summary.get(name) != Some(it);
        let wrong = expected.iter().filter(is_wrong).count();
        let what = format!("{}: wrong fields in its summary", self.name);
        stage.never_above(&what, Some(wrong as f64), 0.0);
    }
}

/// Asks the API about an endpoint, as its tenant.
pub(super) async fn ask(
    stage: &Stage<'_>,
    endpoint: usize,
    (method, what): (&str, &str),
    body: &Value,
) -> anyhow::Result<Value> {
    let made = stage.world.made(endpoint)?;
    let path = format!("/v1/endpoints/{}{what}", made.id);
    let key = made.target.key.as_deref();
    let request = request(method, &path, key, body.to_string().as_bytes());
    ask_json(stage.system.api_addr, &request).await
}

fn number(replay: &Value, name: &str) -> f64 {
    replay.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}
