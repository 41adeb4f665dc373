//! Thousands of events are sent again while live traffic goes on (field report F82): what do live events
//! notice, those of the endpoint that is replayed and those of the others?
//!
//! Endpoint 0 refused everything for a while, and so did endpoint 1, which has a `rate_limit` since; the dead
//! letters of that time are replayed. Live traffic runs at one rate through a baseline and through the replay,
//! and goes to both of them as well. What is replayed carries the stamp of its first time: by that the
//! receiver's books tell it from what is live.

mod asked;

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::asked::{Asked, ask};
use super::phases::Phases;
use crate::generator::Pace;
use crate::payload::now_ns;
use crate::receiver::watch::{Seen, Watch};
use crate::receiver::{Answers, Arrival, Numbers};
use crate::run::rate::Promise;
use crate::run::stage::{LONG, Stage, nanos, ratio, until};
use crate::run::starts::align;

/// The figure of the report: p99 of live events, during the replay / before it.
const MOST: f64 = 2.0;
/// Endpoints that are replayed: the first ones.
const BOTH: usize = 2;
/// Requests at once, of the one without a limit: enough for the rate, of which replays have half.
const AT_ONCE: u16 = 64;
/// The bucket of the one with a limit.
const BURST: u32 = 10;
/// What `policy::replay` makes at once on top of the rate, in seconds of it.
const AHEAD: f64 = 0.2;
/// So much later than it was decided a request may start on a busy machine, in nanoseconds.
const LATE_START: u64 = 10_000_000;
/// How long all that was refused may take to become dead letters.
const DIES: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, Serialize)]
pub(in crate::run) struct Again {
    /// Events of endpoint 0, and how many of them are sent again per second.
    pub(in crate::run) events: usize,
    pub(in crate::run) per_second: f64,
    /// Events of endpoint 1, and its limit.
    pub(in crate::run) limited: usize,
    pub(in crate::run) limit: f64,
    /// Live events per second, over all endpoints.
    pub(in crate::run) live: f64,
}

pub(super) fn fields(endpoint: usize) -> Option<Map<String, Value>> {
    let at_once = || Map::from_iter([("max_in_flight".to_owned(), json!(AT_ONCE))]);
    (endpoint == 0).then(at_once)
}

pub(super) async fn play(stage: &mut Stage<'_>, again: Again) -> anyhow::Result<()> {
    let since = stage.system.postgres.now().await?;
    let first = refuse(stage, again).await?;
    let until_then = stage.system.postgres.now().await?;
    let time = |rate: f64| json!({ "since": since, "until": until_then, "rate_per_second": rate });
    let limit = json!({ "rate_limit": { "per_second": again.limit, "burst": BURST } });
    ask(stage, 1, ("PATCH", ""), &limit).await?;
    stage.journal(0..BOTH, stage.scenario.answers).await?;

    let pace = Pace::Open {
        per_second: again.live,
    };
    let load = stage.plan(stage.world.in_turn(), pace, LONG);
    let phases = Phases::new(stage, load, 2);
    let [before, during] = [0, 1].map(|number| phases.phase(number));
    watch(stage, first, [&before, &during]).await?;
    let mut asked = None;
    let script = async |stage: &mut Stage<'_>| {
        until(during.start).await;
        let of = (0, again.events);
        let replay = Asked::begin(stage, "replay", of, time(again.per_second)).await?;
        let of = (1, again.limited);
        let limited = Asked::begin(stage, "limited replay", of, time(again.limit)).await?;
        let both = asked.insert([replay, limited]);
        for replay in &*both {
            replay.is_refused_twice(stage).await?;
        }
        follow(stage, both, &during).await
    };
    phases.play(stage, script).await?;
    let asked = asked.context("nothing was replayed")?;
    finish(stage, &asked, again).await?;
    // Nothing is left that the same request could find.
    let same = Asked::begin(stage, "same replay", (0, 0), time(again.per_second)).await?;
    let (_seconds, nothing) = same.ended(stage, Duration::from_secs(60)).await?;
    same.check(stage, &nothing);
    report(stage, again).await?;
    limits_kept(stage, again).await
}

/// Both endpoints refuse what they get, for good. When it was sent, boot-clock nanoseconds.
async fn refuse(stage: &mut Stage<'_>, again: Again) -> anyhow::Result<Range<u64>> {
    let from_ns = now_ns();
    let refuses = Answers {
        status: 422,
        ..Answers::default()
    };
    stage.answer(0..BOTH, refuses).await?;
    for (endpoint, events) in [again.events, again.limited].into_iter().enumerate() {
        eprintln!("  posting {events} events that endpoint {endpoint} refuses");
        let targets = stage.world.targets(endpoint..endpoint + 1);
        stage.post(targets, events).await?;
    }
    let all = i64::try_from(again.events + again.limited)?;
    let deadline = now_ns() + nanos(DIES);
    loop {
        let (dead, closed) = stage.system.postgres.ended_undelivered().await?;
        if dead == all {
            return Ok(from_ns..now_ns());
        }
        let state = format!("{dead} of {all} became dead letters, {closed} were skipped");
        anyhow::ensure!(now_ns() < deadline, state);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Live events before and during the replay, of each of both endpoints and of the others; and what comes again.
async fn watch(
    stage: &Stage<'_>,
    first: Range<u64>,
    [before, during]: [&Range<u64>; 2],
) -> anyhow::Result<()> {
    let mut watches = Vec::new();
    for endpoints in [0..1, 1..BOTH, BOTH..stage.scenario.endpoints()].map(Numbers::from) {
        watches.push(Watch::of_sent("before", &endpoints, before.clone()));
        watches.push(Watch::of_sent("during", &endpoints, during.clone()));
    }
    for endpoint in 0..BOTH {
        watches.push(Watch {
            arrived: during.start..u64::MAX,
            ..Watch::of_sent("again", &(endpoint..endpoint + 1).into(), first.clone())
        });
    }
    stage.watch(&watches).await
}

/// Tells how far they are, until the window ends; they should be at work still.
async fn follow(stage: &mut Stage<'_>, asked: &[Asked], during: &Range<u64>) -> anyhow::Result<()> {
    let part = (during.end - during.start) / 10;
    for number in 1..10 {
        until(during.start + part * number).await;
        for replay in asked {
            replay.look(stage).await?;
        }
    }
    until(during.end).await;
    let mut least = f64::INFINITY;
    for replay in asked {
        least = least.min(replay.left(stage).await?);
    }
    let what = "events that either replay has left when the window ends";
    stage.at_least(what, Some(least), 1.0);
    Ok(())
}

/// Both at once: each takes its own time.
async fn finish(
    stage: &mut Stage<'_>,
    [replay, limited]: &[Asked; BOTH],
    again: Again,
) -> anyhow::Result<()> {
    let longest = |events: usize, per_second: f64| {
        Duration::from_secs_f64(events as f64 / per_second * 4.0 + 60.0)
    };
    let (of_replay, of_limited) = tokio::try_join!(
        replay.ended(stage, longest(again.events, again.per_second)),
        limited.ended(stage, longest(again.limited, again.limit)),
    )?;
    let named = [
        ("replay", replay, of_replay, again.events),
        ("limited_replay", limited, of_limited, again.limited),
    ];
    for (name, asked, (seconds, summary), events) in named {
        asked.check(stage, &summary);
        let rounded = |figure: f64| (figure * 10.0).round() / 10.0;
        let per_second = rounded(events as f64 / seconds);
        let took =
            json!({ "seconds": rounded(seconds), "per_second": per_second, "summary": summary });
        stage.detail(name, took);
    }
    Ok(())
}

async fn report(stage: &mut Stage<'_>, again: Again) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [live @ .., replayed, limited] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    let names = [
        (
            "the replayed endpoint",
            "replayed_before_ms",
            "replayed_during_ms",
        ),
        ("the limited one", "limited_before_ms", "limited_during_ms"),
        ("the others", "others_before_ms", "others_during_ms"),
    ];
    for ((whose, before_ms, during_ms), pair) in names.into_iter().zip(live.chunks_exact(2)) {
        let [before, during] = pair else { continue };
        stage.latency(before_ms, before);
        stage.latency(during_ms, during);
        let grew = ratio(during.latency_ms.p99, before.latency_ms.p99);
        stage.at_most(&format!("live p99 of {whose}, during / before"), grew, MOST);
        let served = ratio(during.deliveries as f64, before.deliveries as f64);
        let what = format!("live deliveries to {whose}, the same");
        stage.at_least(&what, served, 0.99);
    }
    // All events came in the end, or some are lost: so as many deliveries as events are one of each.
    let off = |seen: &Seen, events: usize| {
        let off = [seen.deliveries, seen.requests].map(|it| it as f64 - events as f64);
        off.into_iter().map(f64::abs).fold(0.0, f64::max)
    };
    let most = off(replayed, again.events).max(off(limited, again.limited));
    stage.never_above(
        "replayed requests that are not one per event",
        Some(most),
        0.0,
    );
    Ok(())
}

/// The replay's own rate and the endpoint's limit, over every window that there is.
async fn limits_kept(stage: &mut Stage<'_>, again: Again) -> anyhow::Result<()> {
    let arrivals: Vec<Vec<Arrival>> = stage.system.inquire("arrivals", &(0..BOTH)).await?;
    let recorded = stage.system.postgres.starts().await?;
    let starts = align(&arrivals, &recorded).by_endpoint;
    let live = again.live / stage.scenario.endpoints() as f64;
    let of_replay = Promise {
        per_second: again.per_second + live,
        burst: again.per_second * AHEAD + f64::from(AT_ONCE),
        jitter_ns: LATE_START,
    };
    let of_endpoint = Promise {
        per_second: again.limit,
        burst: f64::from(BURST),
        jitter_ns: LATE_START,
    };
    let named = [
        ("the replay's rate", of_replay),
        ("the endpoint's limit", of_endpoint),
    ];
    for ((whose, promise), starts) in named.into_iter().zip(&starts) {
        let what = format!("requests above {whose}");
        stage.never_above(&what, Some(promise.worst(starts).excess), 0.0);
    }
    Ok(())
}
