//! How many events a second are made durable, with nobody to deliver them.

use crate::generator::{Generator, Pace, Plan, Target};
use crate::run::stage::{Stage, per_second, until};

/// Endpoints that batches are for: each has a request of its own in memory.
const MOST_TARGETS: usize = 20;

pub(super) async fn play(
    stage: &mut Stage<'_>,
    batch: usize,
    connections: usize,
) -> anyhow::Result<()> {
    stage.system.stop_workers().await?;
    let mut targets = stage.world.targets(0..stage.scenario.endpoints());
    if batch > 1 {
        targets.truncate(MOST_TARGETS);
        for Target { path, .. } in &mut targets {
            path.push_str("/batch");
        }
    }
    let closed = Pace::Closed { backlog: None };
    let generator = Generator::new(Plan {
        connections,
        batch,
        warmup: stage.warmup(),
        ..stage.plan(targets, closed, stage.length())
    });
    let window = generator.window();
    let measuring = async {
        until(window.start).await;
        stage.begin(window.end).await?;
        until(window.end).await;
        stage.end().await
    };
    let ((), measured) = tokio::join!(generator.run(), measuring);
    measured?;
    stage.took(&generator);
    let accepted = generator.tally().report().accepted_in_window;
    let rate = per_second(accepted, &window);
    stage.detail("accepted_per_second", rate.round());
    stage.leave_unfinished();
    Ok(())
}
