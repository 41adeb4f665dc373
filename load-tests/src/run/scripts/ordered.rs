//! Ordered endpoints: many keys, some failures, a worker killed; and what one key gets when the
//! receiver takes its time (field report F56).

use std::ops::Range;
use std::time::Duration;

use crate::generator::{Backlog, Generator, Pace, Plan};
use crate::payload::now_ns;
use crate::receiver::order::OrderCounts;
use crate::receiver::{Answers, Arrival};
use crate::run::stage::{Stage, nanos, per_second, ratio, until};

/// The share of requests that fails.
const FAIL: f64 = 0.02;
/// How long the slow receivers take for each answer, in milliseconds.
const DELAY_MS: u64 = 100;
/// The keys of the second slow endpoint: the default of requests at once.
const PARALLEL: u32 = 10;
/// How long the slow ones are watched.
const SLOW: Duration = Duration::from_secs(8);
const LONGEST: Duration = Duration::from_secs(90);

pub(super) async fn play(stage: &mut Stage<'_>, keys: u32) -> anyhow::Result<()> {
    let last = stage.scenario.endpoints();
    let (one, parallel) = (last - 2, last - 1);
    per_key(stage, one, parallel).await?;
    many_keys(stage, 0..one, keys).await?;

    let order: OrderCounts = stage.system.inquire("order", &()).await?;
    if let Some(trouble) = order.first_trouble {
        stage.detail("first_trouble", trouble);
    }
    stage.detail("keys", order.keys);
    stage.detail("requests", order.requests);
    let wrong = order.backwards + order.overtaking;
    stage.never_above("requests out of order", Some(wrong as f64), 0.0);
    // At most the last one of a key, and of those only what was on the wire of the killed worker.
    let in_flight = u64::try_from(last)? * 10;
    let what = "repeats after a 2xx";
    stage.never_above(what, Some(order.repeats as f64), in_flight as f64);
    stage.allow_duplicates(in_flight);
    Ok(())
}

/// One key can be at one request per round trip; keys in parallel at as many as may be in flight.
async fn per_key(stage: &mut Stage<'_>, one: usize, parallel: usize) -> anyhow::Result<()> {
    let slow = Answers {
        delay_ms: DELAY_MS,
        ..Answers::default()
    };
    stage.journal(one..parallel + 1, slow).await?;
    let length = if stage.scenario.short { SLOW / 4 } else { SLOW };
    let ideal = 1_000.0 / DELAY_MS as f64;
    for (endpoint, keys) in [(one, 1), (parallel, PARALLEL)] {
        // A little more than they can deliver in the time.
        let events = length.as_secs_f64() * ideal * f64::from(keys) * 1.1;
        let generator = Generator::new(Plan {
            keys,
            connections: usize::try_from(keys)?,
            most: Some(usize::try_from(Duration::from_secs_f64(events).as_secs())?),
            ..stage.plan(
                stage.world.targets([endpoint]),
                Pace::Closed { backlog: None },
                LONGEST,
            )
        });
        generator.run().await;
        stage.took(&generator);
    }
    let promised = stage.promised();
    stage.received(promised, LONGEST).await?;
    let arrivals: Vec<Vec<Arrival>> = stage
        .system
        .inquire("arrivals", &(one..parallel + 1))
        .await?;
    let rates: Vec<f64> = arrivals.iter().map(|it| steady(it)).collect();
    let [single, several] = rates.as_slice() else {
        anyhow::bail!("two endpoints were asked for");
    };
    stage.detail("per_second_of_one_key_at_100_ms", *single);
    stage.detail("per_second_of_ten_keys_at_100_ms", *several);
    stage.at_least("one key / what 100 ms allow", ratio(*single, ideal), 0.8);
    stage.at_least("ten keys / one key", ratio(*several, *single), 8.0);
    Ok(())
}

/// Requests per second between the first and the last.
fn steady(arrivals: &[Arrival]) -> f64 {
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return 0.0;
    };
    let count = u64::try_from(arrivals.len()).unwrap_or(u64::MAX);
    per_second(count.saturating_sub(1), &(first.at_ns..last.at_ns))
}

async fn many_keys(
    stage: &mut Stage<'_>,
    endpoints: Range<usize>,
    keys: u32,
) -> anyhow::Result<()> {
    let failing = Answers {
        fail: FAIL,
        ..Answers::default()
    };
    stage.answer(endpoints.clone(), failing).await?;
    let backlog = Some(Backlog {
        fan_out: 1,
        most: keys,
        receiver: stage.system.receiver_addr,
    });
    let generator = Generator::new(Plan {
        keys,
        connections: 128,
        warmup: stage.warmup(),
        ..stage.plan(
            stage.world.targets(endpoints),
            Pace::Closed { backlog },
            stage.length(),
        )
    });
    let window = generator.window();
    let half_ns = window.start + nanos(stage.length() / 2);
    let running = async {
        generator.run().await;
        anyhow::Ok(())
    };
    let script = async {
        until(window.start).await;
        stage.begin(window.end).await?;
        let before = stage.system.taken().await?;
        until(half_ns).await;
        let undisturbed = stage.system.taken().await? - before;
        stage.detail(
            "deliveries_per_second_before_the_kill",
            per_second(undisturbed, &(window.start..now_ns())).round(),
        );
        let victim = stage.system.busiest_worker().await?;
        eprintln!("  killing a worker");
        stage.system.kill_worker(victim).await?;
        until(window.end).await;
        stage.end().await
    };
    tokio::try_join!(running, script)?;
    stage.took(&generator);
    let promised = stage.promised();
    stage.received(promised, LONGEST).await?;
    Ok(())
}
