//! One tenant drains a large backlog; another posts a few events per second. How long do these wait,
//! and does the first one use what the second does not?

use std::ops::Range;
use std::time::Duration;

use crate::generator::{Generator, Pace};
use crate::payload::now_ns;
use crate::receiver::watch::{ALWAYS, Watch};
use crate::run::stage::{Stage, nanos, per_second, ratio, until};

/// The figure of the issue, in milliseconds.
const LONGEST_WAIT: f64 = 1_000.0;
/// What the hot tenant keeps of its throughput when the other one is there.
const KEPT: f64 = 0.9;

pub(super) async fn play(stage: &mut Stage<'_>, backlog: usize, rate: f64) -> anyhow::Result<()> {
    let of_hot = 0..stage.scenario.endpoints_per_tenant;
    let of_other = of_hot.end..of_hot.end + 1;
    stage.system.stop_workers().await?;
    eprintln!("  posting a backlog of {backlog} while no worker runs");
    stage
        .post(stage.world.targets(of_hot.clone()), backlog)
        .await?;

    let started_ns = now_ns();
    stage.system.start_worker()?;
    stage.system.workers_ready().await?;
    stage.received(1, Duration::from_secs(60)).await?;
    stage.detail(
        "first_delivery_after_ms",
        (now_ns() - started_ns) / 1_000_000,
    );

    let alone_ns = now_ns() + nanos(stage.warmup());
    let both_ns = alone_ns + nanos(stage.length());
    let end_ns = both_ns + nanos(stage.length());
    let arriving = |name: &str, arrived| Watch {
        name: name.to_owned(),
        endpoints: of_hot.clone().into(),
        sent: ALWAYS,
        arrived,
    };
    let waits = Watch::of_sent("other", &of_other.clone().into(), both_ns..end_ns);
    let (alone, both) = (alone_ns..both_ns, both_ns..end_ns);
    stage
        .watch(&[
            arriving("alone", alone.clone()),
            arriving("with the other", both.clone()),
            waits,
        ])
        .await?;
    until(alone_ns).await;
    stage.begin(end_ns).await?;
    until(both_ns).await;
    let pace = Pace::Open { per_second: rate };
    let generator = Generator::new(stage.plan(
        stage.world.targets(of_other),
        pace,
        Duration::from_nanos(end_ns.saturating_sub(now_ns())),
    ));
    generator.run().await;
    stage.took(&generator);
    stage.end().await?;
    let left = stage.promised().saturating_sub(stage.system.taken().await?);
    stage.detail("worker_peak_mb", stage.system.worker_peak_mb());
    tokio::time::sleep(Duration::from_secs(2)).await;
    report(stage, &alone, &both).await?;
    stage.at_least("backlog left when the window ends", Some(left as f64), 1.0);
    Ok(())
}

async fn report(
    stage: &mut Stage<'_>,
    alone: &Range<u64>,
    both: &Range<u64>,
) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [hot_alone, hot_both, other] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    let hot_alone = per_second(hot_alone.deliveries, alone);
    let hot_both = per_second(hot_both.deliveries, both);
    stage.latency("other_waits_ms", other);
    stage.detail("hot_alone_per_second", hot_alone.round());
    stage.detail("hot_with_the_other_per_second", hot_both.round());
    let arrived = (other.deliveries > 0).then_some(other.latency_ms.p99);
    stage.at_most("p99 of the other's waits, ms", arrived, LONGEST_WAIT);
    let what = "the hot tenant's throughput, with the other / alone";
    stage.at_least(what, ratio(hot_both, hot_alone), KEPT);
    Ok(())
}
