//! An endpoint was down for long; a backlog waits; it comes back and takes less than could be sent.
//!
//! Endpoint 0 says so in its `rate_limit`, endpoint 1 does not. What is shortened: the cooldown of the
//! open breaker (`Stage::make_probes_due`), nothing else. The backlog is not drained: at 20 a second
//! that takes most of an hour.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::generator::{Generator, Pace, Plan};
use crate::payload::now_ns;
use crate::receiver::answers::Limit;
use crate::receiver::watch::{ALWAYS, Watch};
use crate::receiver::{Answers, Arrival, EndpointCounts};
use crate::run::stage::{Stage, nanos, ratio};

/// Endpoints.
const BOTH: usize = 2;
/// How long it may take until the breakers are open: ten failures over two seconds.
const OPENS: Duration = Duration::from_secs(30);
/// How long the silence is listened to while the breakers are open.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a probe may take to be sent once it is due, and to be answered.
const PROBED: Duration = Duration::from_secs(8);
/// The figure of the issue: the share of requests that is answered 429.
const MOST_THROTTLED: f64 = 0.01;
/// New events may wait behind the backlog for this share of the endpoint's capacity at most: it is
/// what `docs/performance.md` tells. They are 15 % of the capacity, so with a half of it they do not
/// queue up at all.
const LONGEST_WAIT_MS: f64 = 2_000.0;

#[derive(Debug, Clone, Copy)]
pub(super) struct Outage {
    pub(super) pending: usize,
    pub(super) per_second: f64,
    pub(super) new_per_second: f64,
}

/// Endpoint 0 has a limit of its own: what the receiver takes.
pub(super) fn fields(endpoint: usize, per_second: f64) -> Option<Map<String, Value>> {
    let limit = json!({ "per_second": per_second, "burst": 1 });
    (endpoint == 0).then(|| Map::from_iter([("rate_limit".to_owned(), limit)]))
}

pub(super) async fn play(stage: &mut Stage<'_>, outage: Outage) -> anyhow::Result<()> {
    stage.leave_unfinished();
    go_down(stage, outage).await?;
    stay_down(stage).await?;
    come_back(stage, outage).await
}

/// One endpoint answers 503, the other closes the connection, until their breakers are open; then the
/// backlog comes.
async fn go_down(stage: &mut Stage<'_>, outage: Outage) -> anyhow::Result<()> {
    let down = Answers {
        status: 503,
        ..Answers::default()
    };
    let silent = Answers {
        hang_up: true,
        ..Answers::default()
    };
    stage.answer(0..1, down).await?;
    stage.answer(1..BOTH, silent).await?;
    let targets = stage.world.targets(0..BOTH);
    let pace = Pace::Open { per_second: 40.0 };
    let generator = Generator::new(stage.plan(targets.clone(), pace, OPENS));
    let opened = async {
        let from_ns = now_ns();
        while stage.system.postgres.breakers_open().await? < i64::try_from(BOTH)? {
            if now_ns() - from_ns > nanos(OPENS) {
                return anyhow::Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Some((now_ns() - from_ns) as f64 / 1e9))
    };
    let opened = tokio::select! {
        opened = opened => opened?,
        () = generator.run() => None,
    };
    stage.took(&generator);
    stage.at_most("seconds until both breakers are open", opened, 15.0);
    eprintln!("  posting {} events for each endpoint", outage.pending);
    stage.post(targets, outage.pending * BOTH).await
}

/// While the breakers are open nothing is sent; a probe that is due is one request.
async fn stay_down(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    // What was on its way when they opened.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let quiet_from = counts(stage).await?;
    tokio::time::sleep(SILENCE).await;
    let quiet = difference(&counts(stage).await?, &quiet_from);
    let what = "requests to a down endpoint while its breaker is open";
    stage.never_above(what, most(&quiet), 0.0);

    stage.make_probes_due().await?;
    tokio::time::sleep(PROBED).await;
    let probes = difference(&counts(stage).await?, &quiet_from);
    stage.detail("probes_of_each_endpoint", probes.clone());
    stage.never_above("probes when one is due", most(&probes), 1.0);
    Ok(())
}

/// Both come back and take so many a second; the probe is made due; new events are posted meanwhile.
async fn come_back(stage: &mut Stage<'_>, outage: Outage) -> anyhow::Result<()> {
    let limit = Limit::Bucket {
        per_second: outage.per_second,
        burst: outage.per_second,
        retry_after: true,
    };
    let up = Answers {
        delay_ms: 20,
        limit: Some(limit),
        ..Answers::default()
    };
    stage.journal(0..BOTH, up).await?;
    stage.make_probes_due().await?;
    let back_ns = now_ns();
    let openings = openings(stage).await?;
    let before = counts(stage).await?;

    let pace = Pace::Open {
        per_second: outage.new_per_second * BOTH as f64,
    };
    let generator = Generator::new(Plan {
        warmup: stage.warmup(),
        ..stage.plan(stage.world.targets(0..BOTH), pace, stage.length())
    });
    let window = generator.window();
    let of = |name: &str, endpoint: usize, sent, arrived| Watch {
        name: name.to_owned(),
        endpoints: (endpoint..endpoint + 1).into(),
        sent,
        arrived,
    };
    let new = back_ns..u64::MAX;
    stage
        .watch(&[
            of("new", 0, new.clone(), ALWAYS),
            of("new", 1, new, ALWAYS),
            of("backlog", 0, 0..back_ns, window.clone()),
            of("backlog", 1, 0..back_ns, window.clone()),
        ])
        .await?;
    stage.begin(window.end).await?;
    generator.run().await;
    stage.end().await?;
    stage.took(&generator);
    tokio::time::sleep(Duration::from_secs(3)).await;

    let after = counts(stage).await?;
    report(stage, &before, &after).await?;
    let arrivals: Vec<Vec<Arrival>> = stage.system.inquire("arrivals", &(0..BOTH)).await?;
    let over_time: Vec<_> = arrivals.iter().map(|it| throttled(it, back_ns)).collect();
    stage.detail("throttled_in_each_10_s_since_back", over_time);
    let posted = generator.tally().accepted() as f64 / BOTH as f64;
    waits(stage, posted).await?;
    let again = match (self::openings(stage).await?, openings) {
        (Some(after), before) => Some(after - before.unwrap_or(0.0)),
        (None, _) => None,
    };
    stage.never_above("openings since the endpoints are back", again, 0.0);
    Ok(())
}

async fn report(
    stage: &mut Stage<'_>,
    before: &[EndpointCounts],
    after: &[EndpointCounts],
) -> anyhow::Result<()> {
    let names = ["with a limit", "without a limit"];
    for ((name, before), after) in names.into_iter().zip(before).zip(after) {
        let requests = (after.requests - before.requests) as f64;
        let throttled = (after.throttled - before.throttled) as f64;
        let what = format!("share of 429, {name}");
        stage.at_most(&what, ratio(throttled, requests), MOST_THROTTLED);
        let early = after.early_at_endpoint - before.early_at_endpoint;
        let what = format!("requests before the stated time, {name}");
        stage.never_above(&what, Some(early as f64), 0.0);
    }
    let requests = difference_of(after, before, |it| it.requests);
    let throttled = difference_of(after, before, |it| it.throttled);
    stage.detail("requests_since_back", requests);
    stage.detail("throttled_since_back", throttled);
    Ok(())
}

/// 429s in each ten seconds since an instant.
fn throttled(arrivals: &[Arrival], since_ns: u64) -> Vec<u64> {
    let mut counts = Vec::new();
    for Arrival { at_ns, status, .. } in arrivals {
        let tens = at_ns.saturating_sub(since_ns) / 10_000_000_000;
        let tens = usize::try_from(tens).unwrap_or(0);
        if counts.len() <= tens {
            counts.resize(tens + 1, 0);
        }
        if let Some(count) = counts.get_mut(tens).filter(|_| *status == 429) {
            *count += 1;
        }
    }
    counts
}

async fn waits(stage: &mut Stage<'_>, posted: f64) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [limited, unlimited, backlog_limited, backlog_unlimited] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    stage.latency("new_with_a_limit_ms", limited);
    stage.latency("new_without_a_limit_ms", unlimited);
    let drained = [backlog_limited, backlog_unlimited].map(|it| it.deliveries);
    stage.detail("backlog_delivered_in_the_window", drained.to_vec());
    for (name, new) in [("with a limit", limited), ("without a limit", unlimited)] {
        let what = format!("new events that came, {name}");
        stage.at_least(&what, ratio(new.deliveries as f64, posted), 0.95);
        let came = (new.deliveries > 0).then_some(new.latency_ms.p99);
        let what = format!("p99 of new events' waits, ms, {name}");
        stage.at_most(&what, came, LONGEST_WAIT_MS);
    }
    Ok(())
}

async fn openings(stage: &Stage<'_>) -> anyhow::Result<Option<f64>> {
    let name = "postrider_breaker_transitions_total";
    stage.system.metric(name, "to=\"open\"").await
}

async fn counts(stage: &Stage<'_>) -> anyhow::Result<Vec<EndpointCounts>> {
    stage.system.inquire("endpoints", &(0..BOTH)).await
}

fn difference(after: &[EndpointCounts], before: &[EndpointCounts]) -> Vec<u64> {
    difference_of(after, before, |it| it.requests)
}

fn difference_of(
    after: &[EndpointCounts],
    before: &[EndpointCounts],
    of: impl Fn(&EndpointCounts) -> u64,
) -> Vec<u64> {
    let pairs = after.iter().zip(before);
    pairs
        .map(|(after, before)| of(after) - of(before))
        .collect()
}

fn most(counts: &[u64]) -> Option<f64> {
    counts.iter().max().map(|most| *most as f64)
}
