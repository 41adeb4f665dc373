//! The classic design, measured beside ours: same database server, same receiver, same payloads,
//! same endpoints. What it is: `load-tests/baseline/README.md`.
//!
//! It runs when our programs have stopped, so neither takes the other's share of the machine. Its
//! events are inserted by SQL ([`feed`]), which costs it less than an API would.

mod feed;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::process::Command;

use self::feed::{Feed, Feeder};
use super::outcome::Outcome;
use super::process::Process;
use super::scenario::{Beside, Scenario};
use super::scripts::slow_endpoints::{hang, spread};
use super::setup::World;
use super::stage::{nanos, until};
use super::system::System;
use crate::latency::Percentiles;
use crate::payload::now_ns;
use crate::receiver::watch::Watch;
use crate::receiver::{Change, Numbers};

/// Processes of the worker.
const PROCESSES: usize = 3;
/// Before the measured window: the processes start, and what waits builds up.
const WARMUP: Duration = Duration::from_secs(4);
const WINDOW: Duration = Duration::from_secs(12);
const SHORT_WINDOW: Duration = Duration::from_secs(2);
/// What it is made of.
const SCHEMA: &str = include_str!("../../../baseline/schema.sql");
const WORKER: &str = include_str!("../../../baseline/worker.py");

/// What the classic design reached.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Baseline {
    pub(super) what: &'static str,
    pub(super) deliveries_per_second: f64,
    /// From the insert (in an open loop: from when it was due) to receipt, of what was inserted in the window and
    /// arrived, in milliseconds.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) seconds: f64,
    /// Where it drains a backlog: the same with 500 ms of sleep after full batches too.
    pub(super) with_sleep_per_second: Option<f64>,
    /// Where endpoints hang: deliveries to the healthy, of what they got before.
    pub(super) healthy_share: Option<f64>,
    /// Where endpoints hang: the p99 of the healthy before.
    pub(super) healthy_p99_before: Option<f64>,
}

/// How many times better ours is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Ratio {
    pub(super) of: &'static str,
    pub(super) times: f64,
}

/// A Python with what the worker needs; what is missing otherwise.
pub(super) async fn python(path: &Path) -> Result<PathBuf, String> {
    let imported = Command::new(path)
        .args(["-c", "import psycopg2, requests"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    match imported {
        Ok(status) if status.success() => Ok(path.to_owned()),
        Ok(_) | Err(_) => Err(format!(
            "baseline: {} has no psycopg2 and requests (scripts/bootstrap load installs them)",
            path.display()
        )),
    }
}

/// Measures it. Our programs have stopped.
pub(super) async fn measure(
    system: &mut System,
    scenario: &Scenario,
    world: &World,
    (python, beside): (&Path, Beside),
) -> anyhow::Result<Baseline> {
    eprintln!("{}: the baseline", scenario.name);
    let url = system.postgres.create_database("classic").await?;
    let feeder = Feeder::new(&url, SCHEMA, scenario, world, system.receiver_addr).await?;
    let mut run = Run {
        window: if scenario.short { SHORT_WINDOW } else { WINDOW },
        workers: Vec::new(),
        python,
        url,
        system,
        feeder,
    };
    match beside {
        Beside::Drain { deliveries } => run.drain(deliveries).await,
        Beside::Closed { backlog } => run.load(Feed::Closed { backlog }).await,
        Beside::Open { per_second } => run.load(Feed::Open { per_second }).await,
        Beside::Hanging {
            hanging,
            per_second,
        } => run.hang(hanging, scenario, per_second).await,
    }
}

struct Run<'r> {
    window: Duration,
    workers: Vec<Process>,
    python: &'r Path,
    url: String,
    system: &'r mut System,
    feeder: Feeder,
}

impl Run<'_> {
    fn start(&mut self, always_sleep: bool) -> anyhow::Result<()> {
        let program = self.system.dir().join("baseline.py");
        std::fs::write(&program, WORKER)?;
        for number in 1..=PROCESSES {
            let mut command = Command::new(self.python);
            command.arg(&program).args(["--database", &self.url]);
            if always_sleep {
                command.arg("--always-sleep");
            }
            let log = format!("baseline-{number}");
            let worker = self.system.start_beside("the baseline", &log, command)?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// They have nothing to hand over: a transaction that is cut is rolled back.
    async fn kill(&mut self) -> anyhow::Result<()> {
        for mut worker in self.workers.drain(..) {
            worker.check()?;
            worker.child.kill().await?;
        }
        Ok(())
    }

    async fn load(&mut self, feed: Feed) -> anyhow::Result<Baseline> {
        self.start(false)?;
        let from_ns = now_ns() + nanos(WARMUP);
        let window = from_ns..from_ns + nanos(self.window);
        self.system.tell("measure", &window).await?;
        self.feeder.feed(feed, window.end, self.system).await?;
        let baseline = self.counted().await?;
        self.kill().await?;
        Ok(baseline)
    }

    async fn drain(&mut self, deliveries: u64) -> anyhow::Result<Baseline> {
        let deliveries = deliveries.min(if self.window == WINDOW {
            deliveries
        } else {
            10_000
        });
        self.feeder.insert(deliveries).await?;
        let slow = self.drained(true).await?;
        let baseline = self.drained(false).await?;
        Ok(Baseline {
            with_sleep_per_second: Some(slow.deliveries_per_second),
            ..baseline
        })
    }

    async fn drained(&mut self, always_sleep: bool) -> anyhow::Result<Baseline> {
        self.start(always_sleep)?;
        let from_ns = now_ns() + nanos(WARMUP);
        let window = from_ns..from_ns + nanos(self.window);
        self.system.tell("measure", &window).await?;
        until(window.end).await;
        let baseline = self.counted().await?;
        self.kill().await?;
        Ok(baseline)
    }

    async fn hang(
        &mut self,
        hanging: usize,
        scenario: &Scenario,
        per_second: f64,
    ) -> anyhow::Result<Baseline> {
        let (bad, healthy) = spread(hanging, scenario.endpoints());
        self.start(false)?;
        let from_ns = now_ns() + nanos(WARMUP);
        let hang_ns = from_ns + nanos(self.window);
        let end_ns = hang_ns + nanos(self.window);
        let watched = |name: &str, range| Watch {
            arrived: 0..end_ns,
            ..Watch::of_sent(name, &healthy, range)
        };
        let watches = [
            watched("before", from_ns..hang_ns),
            watched("hanging", hang_ns..end_ns),
        ];
        self.system.tell("watch", &watches).await?;
        self.system.tell("measure", &(hang_ns..end_ns)).await?;
        let feed = Feed::Open { per_second };
        self.feeder.feed(feed, hang_ns, self.system).await?;
        answer(self.system, bad, hang()).await?;
        self.feeder.feed(feed, end_ns, self.system).await?;
        self.kill().await?;
        let seen: Vec<crate::receiver::watch::Seen> = self.system.inquire("seen", &()).await?;
        let [before, while_hanging] = seen.as_slice() else {
            anyhow::bail!("the receiver saw {} watches", seen.len());
        };
        let share = while_hanging.deliveries as f64 / before.deliveries.max(1) as f64;
        Ok(Baseline {
            deliveries_per_second: rounded(
                while_hanging.deliveries as f64 / self.window.as_secs_f64(),
            ),
            p50: some(&while_hanging.latency_ms).map(|it| it.p50),
            p99: some(&while_hanging.latency_ms).map(|it| it.p99),
            healthy_share: Some(rounded(share)),
            healthy_p99_before: Some(before.latency_ms.p99),
            ..self.counted().await?
        })
    }

    async fn counted(&self) -> anyhow::Result<Baseline> {
        let counts = self.system.counts().await?;
        let wrong = counts.signatures_bad + counts.malformed;
        anyhow::ensure!(wrong == 0, "{wrong} requests were not as they should be");
        let seconds = self.window.as_secs_f64();
        Ok(Baseline {
            what: "the classic worker in Python: 3 processes, SKIP LOCKED batches of 50 in one transaction across the HTTP calls",
            deliveries_per_second: rounded(counts.deliveries_in_window as f64 / seconds),
            p50: some(&counts.latency_ms).map(|it| it.p50),
            p99: some(&counts.latency_ms).map(|it| it.p99),
            seconds,
            with_sleep_per_second: None,
            healthy_share: None,
            healthy_p99_before: None,
        })
    }
}

async fn answer(
    system: &System,
    endpoints: Numbers,
    answers: crate::receiver::Answers,
) -> anyhow::Result<()> {
    let change = Change {
        endpoints,
        answers,
        journal: false,
    };
    system.tell("answers", &[change]).await
}

/// What has samples.
fn some(latency: &Percentiles) -> Option<&Percentiles> {
    (latency.samples > 0).then_some(latency)
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Baseline {
    /// How many times better ours is: in what is sustained, or in the p99 at the same rate. `None`:
    /// one of the two has no such figure.
    pub(super) fn ratio(&self, ours: &Outcome) -> Option<Ratio> {
        let (of, better, worse) = match ours.scenario.baseline? {
            Beside::Closed { .. } | Beside::Drain { .. } => (
                "deliveries_per_second",
                ours.throughput_per_second,
                self.deliveries_per_second,
            ),
            Beside::Open { .. } => ("p99", self.p99?, ours.latency_ms.p99),
            Beside::Hanging { .. } => {
                let p99 = ours.details.get("healthy_while_hanging_ms");
                let p99 = p99.and_then(|it| it.get("p99")?.as_f64());
                ("p99 of the healthy", self.p99?, p99?)
            }
        };
        (worse > 0.0 && better > 0.0).then(|| Ratio {
            of,
            times: (better / worse * 10.0).round() / 10.0,
        })
    }
}
