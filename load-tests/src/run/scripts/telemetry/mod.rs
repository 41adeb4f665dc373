//! What telemetry costs the database: ten million samples in a day, a million deliveries that wait, a million dead
//! letters, and five processes that are scraped every 5 s.
//!
//! The rows are made by SQL (`fill.sql`); then four workers start beside the API and nothing is sent. What statements
//! take is what `pg_stat_statements` says; how long the jobs' steps take is what the workers say.

mod statements;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use shared::runtime::clock::{boot_time, wall_time};
use shared::store::partitions;
use tokio_postgres::Client;

use crate::client::{ask, request};
use crate::latency::Latencies;
use crate::payload::now_ns;
use crate::run::stage::Stage;

/// Beside the API.
const WORKERS: usize = 4;
/// How often each process is scraped.
const SCRAPED_EVERY: Duration = Duration::from_secs(5);
/// For the first step of the statistics, which reads everything, and the first round of dead letters.
const FIRST: Duration = Duration::from_secs(180);
/// Of the time of one database process, in percent.
const MOST_PERCENT: f64 = 1.0;
/// For a step of the statistics, in seconds.
const MOST_SECONDS: f64 = 1.0;

pub(super) async fn play(stage: &mut Stage<'_>, samples: i64) -> anyhow::Result<()> {
    fill(stage.system.postgres.client(), samples).await?;
    for _ in 0..WORKERS {
        stage.system.start_worker()?;
    }
    stage.system.workers_ready().await?;
    let addrs = stage.system.metrics_addrs();
    let first = first_steps(&addrs).await?;
    stage.detail("first_stats_step_seconds", first.seconds);
    stage.begin(u64::MAX).await?;
    statements::forget(stage.system.postgres.client()).await?;
    let began = boot_time();
    let mut latencies = Latencies::new();
    let mut series = 0;
    while boot_time().since(began) < stage.length() {
        let next = boot_time().after(SCRAPED_EVERY);
        series = 0;
        for addr in &addrs {
            let before = now_ns();
            let text = scrape(*addr).await?;
            latencies.record(before, now_ns());
            series += text.lines().filter(|line| !line.starts_with('#')).count();
        }
        tokio::time::sleep(next.since(boot_time())).await;
    }
    let window = boot_time().since(began).as_secs_f64();
    let last = Steps::read(&addrs).await?;
    stage.measured_until(now_ns());
    stage.end().await?;
    tell_statements(stage, window).await?;
    stage.detail("scrapes", json!(latencies.percentiles()));
    stage.detail("series_of_all_processes", series);
    stage.detail("samples", samples);
    let steps = last.count - first.count;
    ensure!(steps >= 1.0, "the statistics made no step in {window} s");
    let each = (last.seconds - first.seconds) / steps;
    stage.detail("stats_steps", steps);
    stage.below("a step of the statistics, s", each, MOST_SECONDS);
    stage.leave_unfinished();
    Ok(())
}

async fn tell_statements(stage: &mut Stage<'_>, window: f64) -> anyhow::Result<()> {
    let spent = statements::spent(stage.system.postgres.client()).await?;
    let percent = |ms: f64| ms / 10.0 / window;
    let gauges = spent.get("gauges").map_or(0.0, |it| it.ms);
    for (module, spent) in spent {
        let figures = json!({ "calls": spent.calls, "ms": spent.ms, "percent": percent(spent.ms) });
        stage.detail(format!("statements of {module}"), figures);
    }
    stage.detail("window_seconds", window);
    stage.below(
        "gauges, % of a database process",
        percent(gauges),
        MOST_PERCENT,
    );
    Ok(())
}

async fn fill(client: &Client, samples: i64) -> anyhow::Result<()> {
    partitions::ensure(client, wall_time(), 0).await?;
    client.batch_execute(include_str!("fill.sql")).await?;
    eprintln!("telemetry: filling");
    client
        .batch_execute(&format!("CALL pg_temp.fill({samples})"))
        .await?;
    eprintln!("telemetry: VACUUM (ANALYZE)");
    Ok(client.batch_execute("VACUUM (ANALYZE)").await?)
}

/// Steps that the statistics made so far, and how long they took.
#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    count: f64,
    seconds: f64,
}

impl Steps {
    async fn read(addrs: &[SocketAddr]) -> anyhow::Result<Self> {
        let mut steps = Self::default();
        for addr in addrs {
            let text = scrape(*addr).await?;
            let value = |part: &str| {
                let series = format!("postrider_job_step_seconds_{part}{{job=\"stats\"}} ");
                let value = text.lines().find_map(|line| line.strip_prefix(&series));
                value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
            };
            steps.count += value("count");
            steps.seconds += value("sum");
        }
        Ok(steps)
    }
}

/// Waits until the statistics read all samples and all dead letters were counted.
async fn first_steps(addrs: &[SocketAddr]) -> anyhow::Result<Steps> {
    let deadline = boot_time().after(FIRST);
    loop {
        let steps = Steps::read(addrs).await?;
        let mut shown = false;
        for addr in addrs {
            shown |= scrape(*addr).await?.contains("postrider_dead_letters{");
        }
        if steps.count >= 1.0 && shown {
            return Ok(steps);
        }
        ensure!(boot_time() < deadline, "no first steps after {FIRST:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn scrape(addr: SocketAddr) -> anyhow::Result<String> {
    let reply = ask(addr, &request("GET", "/metrics", None, b"")).await;
    Ok(String::from_utf8(reply.context("a scrape")?)?)
}
