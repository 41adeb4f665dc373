//! Endpoints with a limit and more than enough to do, three workers; one is killed, one is paused past
//! its lease and goes on. R1 is checked at the receiver, over every window there is.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::bail;

use crate::client::{Connection, request};
use crate::payload::now_ns;
use crate::receiver::Arrival;
use crate::run::rate::Promise;
use crate::run::stage::{Stage, nanos, per_second, until};

/// Longer than a lease (10 s): whoever is paused for so long is declared dead meanwhile.
const PAUSE: Duration = Duration::from_secs(14);
/// What a worker that was paused may still send: its in-flight limit (the endpoints' default).
const IN_FLIGHT: f64 = 10.0;
/// When what it had on its way has arrived.
const SETTLED: Duration = Duration::from_secs(2);
/// Between two measurements of how late something can be.
const PROBE: Duration = Duration::from_millis(10);
/// The least jitter that is allowed for, in nanoseconds.
const LEAST_JITTER: u64 = 10_000_000;
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

    let (times, jitter_ns) = disturb(stage).await?;
    stage.leave_unfinished();
    stage.allow_duplicates(u64::try_from(all)? * 2 * 10);

    let arrivals: Vec<Vec<Arrival>> = stage.system.inquire("arrivals", &(0..all)).await?;
    let series: Vec<Vec<u64>> = arrivals
        .iter()
        .map(|arrivals| arrivals.iter().map(|(at_ns, _)| *at_ns).collect())
        .collect();
    let promise = Promise {
        per_second: rate,
        burst,
        jitter_ns: LEAST_JITTER.max(2 * jitter_ns),
    };
    check(stage, &series, &times, promise);
    use_of(stage, &series, &times, rate);
    Ok(())
}

/// Kills the busiest worker after a quarter of the window, pauses the one that is the busiest at half;
/// meanwhile measures by how much requests can be late here.
async fn disturb(stage: &mut Stage<'_>) -> anyhow::Result<(Times, u64)> {
    let from_ns = now_ns();
    let window = from_ns..from_ns + nanos(stage.length());
    stage.begin(window.end).await?;
    let jitter_ns = Cell::new(0);
    let jitter = jitter(stage.system.receiver_addr, &jitter_ns);
    let script = async {
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
        anyhow::Ok((killed_ns, goes_on_ns))
    };
    let (killed_ns, goes_on_ns) = tokio::select! {
        times = script => times?,
        ended = jitter => bail!("the receiver does not answer: {ended:?}"),
    };
    let times = Times {
        window,
        killed_ns,
        goes_on_ns,
    };
    Ok((times, jitter_ns.get()))
}

/// Keeps the longest of many small exchanges with the receiver: scheduling and loopback, there and
/// back. Ends only with an error.
async fn jitter(receiver: SocketAddr, longest: &Cell<u64>) -> std::io::Result<()> {
    let question = request("GET", "/raw", None, b"");
    let mut connection = Connection::open(receiver).await?;
    loop {
        let from_ns = now_ns();
        connection.exchange(&question).await?;
        longest.set(longest.get().max(now_ns() - from_ns));
        tokio::time::sleep(PROBE).await;
    }
}

/// R1 in every window; with a worker's in-flight limit more only in those after it was paused.
fn check(stage: &mut Stage<'_>, series: &[Vec<u64>], times: &Times, promise: Promise) {
    let worst = |from_ns: u64, until_ns: u64| {
        let part = |all: &Vec<u64>| {
            let part: Vec<u64> = all
                .iter()
                .copied()
                .filter(|at_ns| (from_ns..until_ns).contains(at_ns))
                .collect();
            promise.excess(&part)
        };
        series.iter().map(part).reduce(f64::max)
    };
    let settled_ns = times.goes_on_ns + nanos(SETTLED);
    let jitter_ms = promise.jitter_ns as f64 / 1e6;
    stage.detail("jitter_allowed_ms", jitter_ms);
    let before = worst(0, times.goes_on_ns);
    stage.never_above("requests above R1 before the pause ends", before, 0.0);
    let after = worst(settled_ns, u64::MAX);
    stage.never_above("requests above R1 afterwards", after, 0.0);
    let through = worst(0, u64::MAX);
    stage.never_above(
        "requests above R1 with the paused one's",
        through,
        IN_FLIGHT,
    );
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
