//! A backlog is drained, and nothing new comes: how fast, and with how much memory.

use std::time::Duration;

use crate::payload::now_ns;
use crate::run::sample;
use crate::run::stage::Stage;

/// Events in one request.
const BATCH: usize = 100;
/// For all of it: at a quarter of the floor.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a worker has had nothing to do when its memory is looked at again.
const IDLE: Duration = Duration::from_secs(15);

pub(super) async fn play(stage: &mut Stage<'_>, events: usize) -> anyhow::Result<()> {
    fill(stage, events).await?;
    drain(stage).await
}

/// The same, and what it takes. The database's part of the memory is not the worker's.
pub(super) async fn remember(stage: &mut Stage<'_>, events: usize) -> anyhow::Result<()> {
    stage.detail("endpoints", stage.scenario.endpoints());
    fill(stage, events).await?;
    drain(stage).await?;
    stage.detail("worker_peak_mb", stage.system.worker_peak_mb());
    stage.system.settle().await?;
    let idle = if stage.scenario.short {
        Duration::from_secs(1)
    } else {
        IDLE
    };
    tokio::time::sleep(idle).await;
    for (name, id) in stage.system.programs() {
        let kilobytes = sample::process(id).map(|it| it.rss_kb);
        let megabytes = kilobytes.map(|it| it / 1_024);
        stage.detail(format!("{name}_idle_mb"), megabytes);
    }
    Ok(())
}

async fn fill(stage: &mut Stage<'_>, events: usize) -> anyhow::Result<()> {
    stage.system.stop_workers().await?;
    eprintln!("  posting a backlog of {events} while no worker runs");
    let targets = stage.world.in_turn();
    let batch = (events / targets.len().max(1)).clamp(1, BATCH);
    let began_ns = now_ns();
    stage.post_batches(targets, (events / batch, batch)).await?;
    stage.detail("posted_in_ms", (now_ns() - began_ns) / 1_000_000);
    Ok(())
}

/// From the start of a worker's process to the last receipt.
async fn drain(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let started_ns = now_ns();
    stage.system.start_worker()?;
    stage.begin(u64::MAX).await?;
    stage.system.workers_ready().await?;
    stage.received(1, LONGEST).await?;
    let first_ms = (now_ns() - started_ns) / 1_000_000;
    stage.detail("first_delivery_after_ms", first_ms);
    let promised = stage.promised();
    stage.received(promised, LONGEST).await?;
    stage.end().await?;
    let last_ns = stage.system.counts().await?.last_receipt_ns;
    stage.measured_until(last_ns);
    stage.detail(
        "drained_in_ms",
        last_ns.saturating_sub(started_ns) / 1_000_000,
    );
    Ok(())
}
