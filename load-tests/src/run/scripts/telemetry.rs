//! What telemetry costs the database: ten million samples in a day, a million deliveries that wait, a million dead
//! letters, and five processes that are scraped every 5 s.
//!
//! The rows are made by SQL (`fill.sql`), in the window too; four workers run beside the API, and nothing is sent. What statements
//! take is what `pg_stat_statements` says; how long the jobs' steps take is what the workers say.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use shared::runtime::clock::{boot_time, wall_time};
use shared::store::partitions;
use tokio_postgres::Client;

use super::statements;
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
/// For the next one.
const LONGEST: Duration = Duration::from_secs(600);
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
    let mut last = first;
    let mut sent = samples;
    // A step that took long is followed by a long pause.
    while boot_time().since(began) < stage.length() || last.count <= first.count {
        ensure!(
            boot_time().since(began) < LONGEST,
            "the statistics made no step"
        );
        let next = boot_time().after(SCRAPED_EVERY);
        sent += attempt(stage.system.postgres.client(), sent, samples).await?;
        (series, last) = (0, Steps::default());
        for addr in &addrs {
            let before = now_ns();
            let text = scrape(*addr).await?;
            latencies.record(before, now_ns());
            series += text.lines().filter(|line| !line.starts_with('#')).count();
            last = last.and(&text);
        }
        tokio::time::sleep(next.since(boot_time())).await;
    }
    let window = boot_time().since(began).as_secs_f64();
    stage.measured_until(now_ns());
    stage.end().await?;
    tell_statements(stage, window).await?;
    stage.detail("scrapes", json!(latencies.percentiles()));
    stage.detail("series_of_all_processes", series);
    stage.detail("samples", samples);
    stage.detail("attempts_in_the_window", sent - samples);
    let computed = "SELECT count(*) FROM endpoint_stats WHERE computed_at >= now() - $1::float8 * interval '1 s'";
    let client = stage.system.postgres.client();
    let computed: i64 = client.query_one(computed, &[&window]).await?.get(0);
    stage.detail("endpoints_computed", computed);
    let steps = last.count - first.count;
    let each = (last.seconds - first.seconds) / steps;
    stage.detail("stats_steps", steps);
    stage.below("a step of the statistics, s", each, MOST_SECONDS);
    stage.leave_unfinished();
    Ok(())
}

async fn tell_statements(stage: &mut Stage<'_>, window: f64) -> anyhow::Result<()> {
    let spent = statements::spent(stage.system.postgres.client()).await?;
    let percent = |ms: f64| ms / 10.0 / window;
    let of_gauges = ["gauges", "oldest"].into_iter();
    let gauges: f64 = of_gauges
        .filter_map(|it| spent.get(it))
        .map(|it| it.ms)
        .sum();
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
    client
        .batch_execute(include_str!("telemetry/fill.sql"))
        .await?;
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
            steps = steps.and(&scrape(*addr).await?);
        }
        Ok(steps)
    }

    /// And those of one more process.
    fn and(self, text: &str) -> Self {
        let value = |part: &str| {
            let series = format!("postrider_job_step_seconds_{part}{{job=\"stats\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        Self {
            count: self.count + value("count"),
            seconds: self.seconds + value("sum"),
        }
    }
}

/// Makes as many attempts as come between two scrapes, where `samples` come in a day.
async fn attempt(client: &Client, first: i64, samples: i64) -> anyhow::Result<i64> {
    let count = (samples * i64::try_from(SCRAPED_EVERY.as_secs())? / 86_400).max(1);
    let call =
        format!("CALL pg_temp.attempt({first}, {count}, now() - interval '1 s', interval '0 s')");
    client.batch_execute(&call).await?;
    Ok(count)
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
