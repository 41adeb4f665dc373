//! Hours' worth of deliveries go through as fast as they can, to thousands of hosts of which some fail in several ways. Does
//! anything grow that should not (field reports F86, F89)?

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use shared::runtime::clock::boot_time;

use crate::generator::{Backlog, Generator, Pace, Plan};
use crate::payload::now_ns;
use crate::receiver::{Answers, Numbers};
use crate::run::sample::{self, slope};
use crate::run::stage::{LONG, Stage};

/// How often everything is looked at.
const EVERY: Duration = Duration::from_secs(5);
const SHORT_EVERY: Duration = Duration::from_millis(500);
/// Memory may grow so much in what stands for an hour, in percent.
const MOST_PERCENT: f64 = 1.0;
/// Files, threads and dead rows may be so much more in the last quarter than in the second.
const MOST_RATIO: f64 = 1.25;
/// Events accepted and not yet received: those that wait for a broken endpoint are among them.
const BACKLOG: u32 = 8_000;

/// How much.
#[derive(Debug, Clone, Copy, Serialize)]
pub(in crate::run) struct Soak {
    pub(in crate::run) hours: f64,
    /// Deliveries in what stands for an hour, in each of its seconds.
    pub(in crate::run) per_second: u32,
    /// Endpoints that close every connection without an answer.
    pub(in crate::run) broken: usize,
}

impl Soak {
    pub(in crate::run) fn short(self) -> Self {
        Self {
            hours: self.hours.min(0.05),
            ..self
        }
    }

    /// With ten endpoints each.
    pub(in crate::run) fn tenants(self) -> usize {
        if self.hours < 0.5 { 20 } else { 2_000 }
    }

    fn an_hour(self) -> f64 {
        f64::from(self.per_second) * 3_600.0
    }

    /// In all. Errors: more than anybody waits for.
    fn deliveries(self) -> anyhow::Result<usize> {
        let seconds = Duration::try_from_secs_f64(self.hours * 3_600.0)?.as_secs();
        Ok(usize::try_from(seconds * u64::from(self.per_second))?)
    }
}

pub(super) async fn play(stage: &mut Stage<'_>, soak: Soak) -> anyhow::Result<()> {
    break_some(stage, soak).await?;
    let backlog = Backlog {
        most: BACKLOG,
        fan_out: 1,
        receiver: stage.system.receiver_addr,
    };
    let pace = Pace::Closed {
        backlog: Some(backlog),
    };
    let generator = Generator::new(Plan {
        connections: 256,
        most: Some(soak.deliveries()?),
        ..stage.plan(stage.world.in_turn(), pace, LONG)
    });
    stage.begin(u64::MAX).await?;
    let mut samples = Vec::new();
    let mut running = std::pin::pin!(generator.run());
    let every = if stage.scenario.short {
        SHORT_EVERY
    } else {
        EVERY
    };
    let began = boot_time();
    loop {
        tokio::select! {
            () = &mut running => break,
            () = tokio::time::sleep(every) => {
                stage.system.check()?;
                let at = boot_time().since(began).as_secs_f64();
                samples.push(look(stage, at).await?);
            }
        }
    }
    stage.measured_until(now_ns());
    stage.end().await?;
    stage.took(&generator);
    judge(stage, soak, &samples);
    let samples: Vec<Value> = samples.iter().map(Sample::told).collect();
    stage.detail("samples", samples);
    // Those of the broken endpoints stay with the system.
    stage.leave_unfinished();
    Ok(())
}

/// A quarter of the endpoints fails by an answer (the scenario's), one by a closed connection, one by
/// another answer and late, one never; and a few always.
async fn break_some(stage: &Stage<'_>, soak: Soak) -> anyhow::Result<()> {
    let all = stage.scenario.endpoints();
    let share = stage.scenario.answers.fail;
    let every_fourth = |first: usize| (first..all).step_by(4);
    let failing = |fail_status, delay_ms, fail| Answers {
        fail,
        fail_status,
        delay_ms,
        ..Answers::default()
    };
    let changes = [
        (every_fourth(0), failing(503, 0, share)),
        (every_fourth(1), failing(0, 0, share)),
        (every_fourth(2), failing(500, 20, share)),
        (every_fourth(3), failing(503, 0, 0.0)),
    ];
    for (endpoints, answers) in changes {
        stage
            .answer(endpoints.collect::<Numbers>(), answers)
            .await?;
    }
    let broken = (0..all).step_by(all.div_ceil(soak.broken.max(1)));
    let broken: Numbers = broken.collect();
    let hang_up = Answers {
        hang_up: true,
        ..Answers::default()
    };
    stage.answer(broken, hang_up).await
}

/// What everything holds at one instant.
struct Sample {
    at_seconds: f64,
    deliveries: u64,
    processes: Vec<(String, sample::Holds)>,
    tables: sample::Tables,
}

async fn look(stage: &Stage<'_>, at_seconds: f64) -> anyhow::Result<Sample> {
    let programs = stage.system.programs().into_iter();
    Ok(Sample {
        at_seconds,
        deliveries: stage.system.taken().await?,
        processes: programs
            .filter_map(|(name, id)| Some((name, sample::process(id)?)))
            .collect(),
        tables: sample::tables(stage.system.postgres.client()).await?,
    })
}

impl Sample {
    fn told(&self) -> Value {
        let processes = self.processes.iter();
        let processes: serde_json::Map<String, Value> = processes
            .map(|(name, holds)| (name.clone(), json!(holds)))
            .collect();
        json!({
            "at_seconds": (self.at_seconds * 10.0).round() / 10.0,
            "deliveries": self.deliveries,
            "processes": processes,
            "dead_rows": self.tables.dead_rows,
            "bytes": self.tables.bytes,
            "database_bytes": self.tables.database_bytes,
        })
    }

    fn of(&self, process: &str) -> Option<sample::Holds> {
        let mut processes = self.processes.iter();
        processes.find(|(name, _)| name == process).map(|it| it.1)
    }

    fn dead_rows(&self) -> f64 {
        self.tables.dead_rows.values().sum::<i64>() as f64
    }
}

/// Slopes after the first eighth; the last quarter beside the second.
fn judge(stage: &mut Stage<'_>, soak: Soak, samples: &[Sample]) {
    let eighth = samples.len() / 8;
    let settled = samples.get(eighth..).unwrap_or_default();
    for process in ["api", "worker"] {
        let points: Vec<(f64, f64)> = settled
            .iter()
            .filter_map(|it| {
                Some((
                    it.deliveries as f64 / soak.an_hour(),
                    it.of(process)?.rss_kb as f64,
                ))
            })
            .collect();
        let mean = points.iter().map(|it| it.1).sum::<f64>() / points.len().max(1) as f64;
        let percent = slope(&points).map(|it| 100.0 * it / mean);
        let what = format!("memory of the {process}, % more an hour");
        stage.at_most(&what, percent, MOST_PERCENT);
        stage.detail(format!("{process}_mean_mb"), (mean / 1_024.0).round());
        let files = growth(samples, |it| {
            it.of(process).map_or(0.0, |it| it.files as f64)
        });
        stage.at_most(
            &format!("files of the {process}, last / second quarter"),
            files,
            MOST_RATIO,
        );
        let threads = growth(samples, |it| {
            it.of(process).map_or(0.0, |it| it.threads as f64)
        });
        stage.at_most(
            &format!("threads of the {process}, the same"),
            threads,
            MOST_RATIO,
        );
    }
    stage.at_most(
        "dead rows, the same",
        growth(samples, Sample::dead_rows),
        MOST_RATIO,
    );
    let hours = samples
        .last()
        .map_or(0.0, |it| it.deliveries as f64 / soak.an_hour());
    stage.detail("hours", (hours * 100.0).round() / 100.0);
    stage.detail("hosts", stage.scenario.hosts);
}

/// The most in the last quarter, by the most in the second.
fn growth(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let quarter = samples.len() / 4;
    let most = |range: std::ops::Range<usize>| {
        let samples = samples.get(range).unwrap_or_default();
        samples.iter().map(&of).fold(0.0, f64::max)
    };
    let (second, last) = (most(quarter..2 * quarter), most(3 * quarter..samples.len()));
    (second > 0.0).then(|| last / second)
}
