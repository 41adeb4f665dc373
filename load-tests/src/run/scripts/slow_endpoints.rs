//! Some endpoints hang until the deadline: what do the healthy ones notice, from the first second?
//!
//! The baseline is measured in the same run, before, at the same rate. Every tenant has some of the
//! hanging endpoints, so neither turn of the scheduler helps.

use super::phases::Phases;
use crate::generator::Pace;
use crate::receiver::watch::Watch;
use crate::receiver::{Answers, Numbers};
use crate::run::stage::{LONG, Stage, ratio, until};

/// The figure of the issue.
const MOST: f64 = 1.5;
const SECOND: u64 = 1_000_000_000;

pub(super) async fn play(
    stage: &mut Stage<'_>,
    hanging: usize,
    per_second: f64,
) -> anyhow::Result<()> {
    let all = stage.scenario.endpoints();
    let (bad, healthy) = spread(hanging, all);
    let load = stage.plan(stage.world.in_turn(), Pace::Open { per_second }, LONG);
    let phases = Phases::new(stage, load, 2);
    let [baseline, hanging] = [0, 1].map(|number| phases.phase(number));
    let hang_ns = hanging.start;
    stage
        .watch(&[
            Watch::of_sent("baseline", &healthy, baseline),
            Watch::of_sent("hanging", &healthy, hanging),
            Watch::of_sent("first second", &healthy, hang_ns..hang_ns + SECOND),
        ])
        .await?;
    let script = async |stage: &mut Stage<'_>| {
        until(hang_ns).await;
        stage.answer(bad.clone(), hang()).await
    };
    phases.play(stage, script).await?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    report(stage).await?;
    recover(stage, bad).await
}

async fn report(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [baseline, hanging, first] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    stage.latency("healthy_baseline_ms", baseline);
    stage.latency("healthy_while_hanging_ms", hanging);
    stage.latency("healthy_first_second_ms", first);
    let [before, while_hanging, at_first] = [baseline, hanging, first].map(|it| it.latency_ms.p99);
    let what = "p99 of the healthy, while hanging / baseline";
    stage.at_most(what, ratio(while_hanging, before), MOST);
    stage.detail("ratio", ratio(while_hanging, before));
    stage.detail("ratio_of_the_first_second", ratio(at_first, before));
    let served = ratio(hanging.deliveries as f64, baseline.deliveries as f64);
    stage.at_least("deliveries to the healthy, the same", served, 0.99);
    Ok(())
}

/// What the hanging ones were sent comes to an end too, so that a lost one is seen.
pub(super) async fn recover(stage: &mut Stage<'_>, bad: Numbers) -> anyhow::Result<()> {
    stage.answer(bad, stage.scenario.answers).await?;
    let open = stage.system.postgres.breakers_open().await?;
    stage.detail("breakers_open_at_the_end", open);
    stage.make_probes_due().await
}

pub(in crate::run) fn hang() -> Answers {
    Answers {
        hang: true,
        ..Answers::default()
    }
}

/// `some` of `all` numbers, evenly spread, and the others.
pub(in crate::run) fn spread(some: usize, all: usize) -> (Numbers, Numbers) {
    let chosen = |number: &usize| (number + 1) * some / all > number * some / all;
    let others = |number: &usize| !chosen(number);
    (
        (0..all).filter(chosen).collect(),
        (0..all).filter(others).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hanging_ones_are_spread_over_the_tenants() {
        for (some, all) in [(5, 20), (10, 200), (100, 200), (1, 3)] {
            let (these, others) = spread(some, all);

            assert_eq!(these.iter().count(), some);
            assert_eq!(others.iter().count(), all - some);
            let half = these.iter().filter(|it| *it < all / 2).count();
            assert!(half.abs_diff(some / 2) <= 1, "{these:?}");
        }
    }
}
