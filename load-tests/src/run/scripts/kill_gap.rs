//! One of several workers is killed under a steady load: how long do its endpoints get nothing?
//!
//! Measured at the receiver. Requests that the killed worker had sent may still be read for an
//! instant after its end: what arrives within [`ON_THEIR_WAY`] of it is no sign of a new owner.

use std::time::Duration;

use serde_json::json;

use crate::generator::{Generator, Pace};
use crate::payload::now_ns;
use crate::receiver::Arrival;
use crate::run::stage::{Stage, nanos};

/// In nanoseconds.
const ON_THEIR_WAY: u64 = 50_000_000;
/// From the beginning of the load to the kill.
const BEFORE: Duration = Duration::from_secs(3);
/// From then to its end: more than the floor allows.
const AFTER: Duration = Duration::from_secs(20);

pub(super) async fn play(
    stage: &mut Stage<'_>,
    kills: usize,
    per_second: f64,
) -> anyhow::Result<()> {
    let all = 0..stage.scenario.endpoints();
    stage.journal(all.clone(), stage.scenario.answers).await?;
    // What was on the wire comes again, at most: so much for each endpoint of the killed.
    stage.allow_duplicates(u64::try_from(all.len() * 10 * kills)?);
    let (mut gaps, mut endpoints) = (Vec::new(), 0);
    for number in 1..=kills {
        stage.system.workers_balanced().await?;
        let killed = kill(stage, per_second).await?;
        let arrivals: Vec<Vec<Arrival>> = stage.system.inquire("arrivals", &all).await?;
        let of_killed = killed.endpoints.iter().filter_map(|it| arrivals.get(*it));
        let found: Vec<Option<f64>> = of_killed.map(|it| killed.gap(it)).collect();
        endpoints += found.len();
        eprintln!("  kill {number} of {kills}: the gaps in seconds: {found:?}");
        gaps.extend(found.into_iter().flatten());
        stage.system.start_worker()?;
        stage.system.workers_ready().await?;
    }
    gaps.sort_by(f64::total_cmp);
    let longest = gaps.last().copied().filter(|_| gaps.len() == endpoints);
    stage.detail("gap_seconds", longest);
    stage.detail("gap_seconds_p50", gaps.get(gaps.len() / 2).copied());
    stage.detail("gap_seconds_shortest", gaps.first().copied());
    stage.detail("endpoints_of_the_killed", endpoints);
    Ok(())
}

/// A worker that was killed.
struct Killed {
    /// Those that it owned.
    endpoints: Vec<usize>,
    /// From before the kill to after it; boot-clock nanoseconds.
    from_ns: u64,
    dead_ns: u64,
}

impl Killed {
    /// Seconds from the kill to the first request that another worker made.
    fn gap(&self, arrivals: &[Arrival]) -> Option<f64> {
        let new = self.dead_ns + ON_THEIR_WAY;
        let first = arrivals.iter().map(|it| it.at_ns).find(|at| *at > new)?;
        Some(((first - self.from_ns) as f64 / 1e6).round() / 1e3)
    }
}

/// Kills the worker with the most endpoints while events come in for all.
async fn kill(stage: &mut Stage<'_>, per_second: f64) -> anyhow::Result<Killed> {
    let targets = stage.world.in_turn();
    let plan = stage.plan(targets, Pace::Open { per_second }, BEFORE + AFTER);
    let generator = Generator::new(plan);
    stage.begin(generator.window().end).await?;
    let killing = async {
        tokio::time::sleep(BEFORE).await;
        let busiest = stage.system.busiest_worker().await?;
        let id = stage.system.worker_id(busiest)?;
        let endpoints = stage.system.postgres.owned_by(id).await?;
        let from_ns = now_ns();
        stage.system.kill_worker(busiest).await?;
        anyhow::Ok(Killed {
            endpoints,
            from_ns,
            dead_ns: now_ns(),
        })
    };
    let ((), killed) = tokio::join!(generator.run(), killing);
    stage.took(&generator);
    let killed = killed?;
    stage.end().await?;
    let promised = stage.promised();
    stage.received(promised, AFTER).await?;
    let window = json!({ "endpoints": killed.endpoints.len(), "load_ms": nanos(BEFORE + AFTER) / 1_000_000 });
    stage.detail("last_kill", window);
    Ok(killed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_ends_with_the_first_request_of_another_worker() {
        let killed = Killed {
            endpoints: vec![0],
            from_ns: 1_000_000_000,
            dead_ns: 1_010_000_000,
        };
        let at = |at_ns| Arrival {
            at_ns,
            status: 200,
            delivery: 1,
        };
        let arrivals = [900_000_000, 1_020_000_000, 9_500_000_000, 9_600_000_000].map(at);

        assert_eq!(killed.gap(&arrivals), Some(8.5));
        assert_eq!(killed.gap(&arrivals[..2]), None);
    }
}
