//! The same at 60 % of what the machine can do: some endpoints hang, then half of all.

use std::time::Duration;

use super::phases::Phases;
use super::slow_endpoints::{hang, recover, spread};
use crate::generator::{Backlog, Generator, Pace, Plan};
use crate::payload::now_ns;
use crate::receiver::Numbers;
use crate::receiver::watch::Watch;
use crate::run::stage::{LONG, Stage, per_second, ratio, until};

const SECOND: u64 = 1_000_000_000;
/// The share of the capacity that is offered.
const SHARE: f64 = 0.6;
/// The figure of the issue.
const MOST: f64 = 1.5;
/// How long what is under way may take to arrive.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) async fn play(stage: &mut Stage<'_>, hanging: usize) -> anyhow::Result<()> {
    let all = stage.scenario.endpoints();
    let capacity = capacity(stage).await?;
    stage.detail("capacity_per_second", capacity.round());

    let (some, _) = spread(hanging, all);
    let (half, healthy) = spread(all / 2, all);
    // Those that hang first hang on in the second phase.
    let healthy: Numbers = healthy.iter().filter(|it| !some.contains(*it)).collect();
    let bad: Numbers = some.iter().chain(half.iter()).collect();
    let pace = Pace::Open {
        per_second: capacity * SHARE,
    };
    let load = Plan {
        connections: 256,
        ..stage.plan(stage.world.in_turn(), pace, LONG)
    };
    let phases = Phases::new(stage, load, 3);
    let [baseline, some_hang, half_hang] = [0, 1, 2].map(|number| phases.phase(number));
    let (some_ns, half_ns) = (some_hang.start, half_hang.start);
    stage
        .watch(&[
            Watch::of_sent("baseline", &healthy, baseline),
            Watch::of_sent("some", &healthy, some_hang),
            Watch::of_sent("first second", &healthy, some_ns..some_ns + SECOND),
            Watch::of_sent("half", &healthy, half_hang),
        ])
        .await?;
    let script = async |stage: &mut Stage<'_>| {
        until(some_ns).await;
        stage.answer(some.clone(), hang()).await?;
        until(half_ns).await;
        stage.answer(half.clone(), hang()).await
    };
    phases.play(stage, script).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    report(stage).await?;
    recover(stage, bad).await
}

/// Deliveries per second that are sustained when all endpoints answer.
async fn capacity(stage: &mut Stage<'_>) -> anyhow::Result<f64> {
    let backlog = Some(Backlog {
        fan_out: 1,
        most: 2_000,
        receiver: stage.system.receiver_addr,
    });
    let pace = Pace::Closed { backlog };
    let generator = Generator::new(Plan {
        connections: 128,
        warmup: stage.warmup(),
        ..stage.plan(stage.world.in_turn(), pace, stage.length() / 3)
    });
    let window = generator.window();
    let count = async {
        until(window.start).await;
        let (before, from_ns) = (stage.system.taken().await?, now_ns());
        until(window.end).await;
        let after = stage.system.taken().await?;
        anyhow::Ok(per_second(after - before, &(from_ns..now_ns())))
    };
    let ((), capacity) = tokio::join!(generator.run(), count);
    stage.took(&generator);
    let promised = stage.promised();
    stage.received(promised, LONGEST).await?;
    capacity
}

async fn report(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [baseline, some, first, half] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    stage.latency("healthy_baseline_ms", baseline);
    stage.latency("healthy_while_some_hang_ms", some);
    stage.latency("healthy_first_second_ms", first);
    stage.latency("healthy_while_half_hang_ms", half);
    let before = baseline.latency_ms.p99;
    let to_baseline = |it: f64| ratio(it, before);
    let what = "p99 of the healthy, while some hang / baseline";
    stage.at_most(what, to_baseline(some.latency_ms.p99), MOST);
    let what = "p99 of the healthy, first second / baseline";
    stage.at_most(what, to_baseline(first.latency_ms.p99), MOST);
    let served = |it: u64| ratio(it as f64, baseline.deliveries as f64);
    let what = "deliveries to the healthy while some hang, the same";
    stage.at_least(what, served(some.deliveries), 0.99);
    let what = "deliveries to the healthy while half hang, the same";
    stage.at_least(what, served(half.deliveries), 0.95);
    Ok(())
}
