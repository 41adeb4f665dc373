//! Endpoints with a limit and more than enough to do, three workers; one is killed, one is paused past
//! its lease and goes on. R1 is checked over every window there is: by the starts of the requests, which
//! it is about, and by their arrivals, with the ways there that the run itself measured.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use crate::payload::now_ns;
use crate::receiver::Arrival;
use crate::run::rate::Promise;
use crate::run::stage::{Stage, nanos, per_second, until};
use crate::run::starts::align;

/// Longer than a lease (10 s): whoever is paused for so long is declared dead meanwhile.
const PAUSE: Duration = Duration::from_secs(14);
/// What a worker that was paused may still send: its in-flight limit (the endpoints' default).
const IN_FLIGHT: f64 = 10.0;
/// When what it had on its way has arrived.
const SETTLED: Duration = Duration::from_secs(2);
/// So much later than it was decided a request may start on a busy machine, in nanoseconds.
const LATE_START: u64 = 10_000_000;
/// The share of the allowed requests that has to be used while nothing is disturbed.
const USED: f64 = 0.95;

/// When what happened, boot-clock nanoseconds.
struct Times {
    window: Range<u64>,
    killed_ns: u64,
    goes_on_ns: u64,
}

pub(super) async fn play(stage: &mut Stage<'_>, rate: f64, burst: f64) -> anyhow::Result<()> {
    let all = stage.scenario.endpoints();
    stage.journal(0..all, stage.scenario.answers).await?;
    let wanted = Duration::from_secs_f64(stage.scenario.seconds * rate * 1.5).as_secs();
    let events = usize::try_from(wanted)? * all;
    // The slots are spread over the workers by then.
    tokio::time::sleep(stage.warmup()).await;
    stage.post(stage.world.in_turn(), events).await?;

    let times = disturb(stage).await?;
    stage.leave_unfinished();
    stage.allow_duplicates(u64::try_from(all)? * 2 * 10);

    let arrivals: Vec<Vec<Arrival>> = stage.system.inquire("arrivals", &(0..all)).await?;
    let promise = Promise {
        per_second: rate,
        burst,
        jitter_ns: LATE_START,
    };
    check(stage, &arrivals, &times, promise).await?;
    let came = |arrivals: &Vec<Arrival>| arrivals.iter().map(|it| it.at_ns).collect();
    let came: Vec<Vec<u64>> = arrivals.iter().map(came).collect();
    use_of(stage, &came, &times, rate);
    Ok(())
}

/// Kills the busiest worker after a quarter of the window, pauses the one that is the busiest at half.
async fn disturb(stage: &mut Stage<'_>) -> anyhow::Result<Times> {
    let from_ns = now_ns();
    let window = from_ns..from_ns + nanos(stage.length());
    stage.begin(window.end).await?;
    until(window.start + nanos(stage.length() / 4)).await;
    let victim = stage.system.busiest_worker().await?;
    eprintln!("  killing a worker");
    stage.system.kill_worker(victim).await?;
    let killed_ns = now_ns();
    until(window.start + nanos(stage.length() / 2)).await;
    let victim = stage.system.busiest_worker().await?;
    eprintln!("  pausing a worker for {PAUSE:?}");
    stage.system.pause_worker(victim, PAUSE).await?;
    let goes_on_ns = now_ns();
    until(window.end).await;
    stage.end().await?;
    // What was on its way is recorded.
    tokio::time::sleep(SETTLED).await;
    Ok(Times {
        window,
        killed_ns,
        goes_on_ns,
    })
}

/// R1 in every window; with a worker's in-flight limit more only in those that end after it was paused.
async fn check(
    stage: &mut Stage<'_>,
    arrivals: &[Vec<Arrival>],
    times: &Times,
    promise: Promise,
) -> anyhow::Result<()> {
    let recorded = stage.system.postgres.starts().await?;
    let starts = align(arrivals, &recorded);
    stage.detail("requests_not_recorded", starts.unrecorded);
    let by_start = &starts.by_endpoint;
    let before = 0..times.goes_on_ns;
    let settled = times.goes_on_ns + nanos(SETTLED)..u64::MAX;
    let worst = most_above(by_start, &before, promise);
    stage.never_above("requests above R1 before the pause ends", worst, 0.0);
    let worst = most_above(by_start, &settled, promise);
    stage.never_above("requests above R1 afterwards", worst, 0.0);
    let worst = most_above(by_start, &(0..u64::MAX), promise);
    stage.never_above("requests above R1 with the paused one's", worst, IN_FLIGHT);
    stage.detail("worst_window", worst_window(by_start, times, promise));

    let came = |it: &Vec<Arrival>| {
        let came = it.iter().filter(|it| before.contains(&it.at_ns));
        came.copied().collect::<Vec<Arrival>>()
    };
    let came: Vec<Vec<Arrival>> = arrivals.iter().map(came).collect();
    let jitter_ns = promise.jitter_ns + align(&came, &recorded).jitter_ns;
    let instants = |it: &Vec<Arrival>| it.iter().map(|it| it.at_ns).collect();
    let came: Vec<Vec<u64>> = came.iter().map(instants).collect();
    let on_arrival = Promise {
        jitter_ns,
        ..promise
    };
    stage.detail("jitter_allowed_on_arrival_ms", jitter_ns as f64 / 1e6);
    let worst = most_above(&came, &before, on_arrival);
    stage.never_above("requests above R1 on arrival, before that", worst, 0.0);
    Ok(())
}

/// The most requests above the promise at any endpoint, of those within some time.
fn most_above(series: &[Vec<u64>], within: &Range<u64>, promise: Promise) -> Option<f64> {
    let part = |all: &Vec<u64>| {
        let part = all.iter().copied().filter(|at_ns| within.contains(at_ns));
        promise.worst(&part.collect::<Vec<u64>>()).excess
    };
    series.iter().map(part).reduce(f64::max)
}

/// Where the worst window of all endpoints is, in milliseconds since the measured window began.
fn worst_window(series: &[Vec<u64>], times: &Times, promise: Promise) -> Value {
    let worst = series.iter().map(|it| promise.worst(it)).enumerate();
    let worst = worst.max_by(|(_, one), (_, other)| one.excess.total_cmp(&other.excess));
    let since = |at_ns: u64| (at_ns as f64 - times.window.start as f64) / 1e6;
    worst.map_or(Value::Null, |(endpoint, worst)| {
        json!({
            "endpoint": endpoint,
            "excess": worst.excess,
            "from_ms": since(worst.window.start),
            "until_ms": since(worst.window.end),
            "killed_ms": since(times.killed_ns),
            "goes_on_ms": since(times.goes_on_ns),
        })
    })
}

fn use_of(stage: &mut Stage<'_>, series: &[Vec<u64>], times: &Times, rate: f64) {
    let share = |window: &Range<u64>| {
        let all = series.iter().flatten();
        let count = all.filter(|at_ns| window.contains(at_ns)).count();
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        per_second(count, window) / (rate * series.len().max(1) as f64)
    };
    let undisturbed = times.window.start..times.killed_ns;
    let what = "share of the allowed requests that is used, undisturbed";
    stage.at_least(what, Some(share(&undisturbed)), USED);
    stage.detail("share_used_in_the_whole_window", share(&times.window));
    let gaps = series
        .iter()
        .filter_map(|it| longest_gap(it, &times.window));
    let longest = gaps.max().map(|gap_ns| gap_ns / 1_000_000);
    stage.detail("longest_gap_of_an_endpoint_ms", longest);
    let tail = (times.goes_on_ns + nanos(SETTLED)).min(times.window.end)..times.window.end;
    stage.detail("share_used_after_the_pause", share(&tail));
}

/// The longest time without a request in the window.
fn longest_gap(arrivals_ns: &[u64], window: &Range<u64>) -> Option<u64> {
    let inside = arrivals_ns.iter().filter(|at_ns| window.contains(at_ns));
    let ends = inside.clone().skip(1).chain([&window.end]);
    inside.zip(ends).map(|(from, until)| until - from).max()
}
