//! A wave of large payloads from one tenant (field report F36): what do the others notice, and how much
//! is on the wire at once?
//!
//! The others post small events at one rate through three phases: a baseline; a wave, in which a
//! twentieth of all events are as large as the API takes, all of one tenant; and the wave with receivers
//! that answer late, so that large requests pile up until the worker starts no more of them. One that
//! reads slowly would be no other case: a whole payload fits into the kernel's buffers, and the worker
//! holds it until the answer either way.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::phases::Phases;
use crate::generator::{Generator, Pace, Plan};
use crate::payload::now_ns;
use crate::receiver::watch::Watch;
use crate::receiver::{Answers, Numbers, OnTheWire};
use crate::run::stage::{LONG, Stage, nanos, ratio, until};

/// The figure of the report: p99 of the others, wave / baseline.
const MOST: f64 = 2.0;
/// What a permit carries at most, as `docs/sender.md` says.
const PERMIT_BYTES: f64 = 131_072.0;
const MIB: f64 = 1_048_576.0;
/// After so long every late endpoint is known to be slow, not only while a request of its is overdue:
/// the worker has seen some six late answers of each.
const KNOWN: Duration = Duration::from_secs(8);
/// How long the large events that wait may take once they are answered at once again.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub(super) struct Wave {
    /// Events of both sizes.
    pub(super) per_second: f64,
    /// The share of them that is large.
    pub(super) share: f64,
    /// Of a large one.
    pub(super) bytes: usize,
    /// How late its receivers answer in the last phase.
    pub(super) delay_ms: u64,
    /// The worker's.
    pub(super) permits: u32,
}

/// The phases, in boot-clock nanoseconds.
struct Times {
    baseline: Range<u64>,
    /// Answered at once.
    wave: Range<u64>,
    /// Answered late.
    late: Range<u64>,
}

/// What was used at most in one part of the window.
struct Used {
    wire: OnTheWire,
    worker_peak_mb: Option<f64>,
}

/// The same of all parts.
struct Usage {
    baseline: Used,
    wave: Used,
    /// While the worker finds out that the answers are late.
    turning: Used,
    /// From then on.
    late: Used,
}

pub(super) async fn play(stage: &mut Stage<'_>, wave: Wave) -> anyhow::Result<()> {
    let of_one = stage.scenario.endpoints_per_tenant;
    let large = Numbers::from(0..of_one);
    let others = Numbers::from(of_one..stage.scenario.endpoints());
    let pace = Pace::Open {
        per_second: wave.per_second * (1.0 - wave.share),
    };
    let targets = stage.world.targets(others.iter());
    let phases = Phases::new(stage, stage.plan(targets, pace, LONG), 3);
    let [baseline, quick, late] = [0, 1, 2].map(|number| phases.phase(number));
    stage
        .watch(&[
            Watch::of_sent("baseline", &others, baseline.clone()),
            Watch::of_sent("wave", &others, quick.clone()),
            Watch::of_sent("late", &others, late.clone()),
            Watch::of_sent("large ones", &large, quick.clone()),
        ])
        .await?;
    let generator = generator(stage, wave, &large, quick.start..late.end);
    let times = Times {
        baseline,
        wave: quick,
        late,
    };
    let mut usage = None;
    let script = async |stage: &mut Stage<'_>| {
        let running = async {
            until(times.wave.start).await;
            generator.run().await;
            anyhow::Ok(())
        };
        let ((), used) = tokio::try_join!(running, follow(stage, wave, &large, &times))?;
        usage = Some(used);
        Ok(())
    };
    phases.play(stage, script).await?;
    stage.took(&generator);
    let waiting = stage.promised().saturating_sub(stage.system.taken().await?);
    stage.answer(large, stage.scenario.answers).await?;
    stage.received(stage.promised(), LONGEST).await?;
    report_latency(stage).await?;
    let usage = usage.context("nobody saw what was used")?;
    report_usage(stage, wave, &usage, waiting);
    Ok(())
}

/// What posts the large events, in that time.
fn generator(
    stage: &Stage<'_>,
    wave: Wave,
    large: &Numbers,
    sending: Range<u64>,
) -> Arc<Generator> {
    let pace = Pace::Open {
        per_second: wave.per_second * wave.share,
    };
    let measured = Duration::from_nanos(sending.end - sending.start);
    Generator::new(Plan {
        // Each holds a request of this size.
        connections: 8,
        payload_bytes: wave.bytes,
        warmup: Duration::from_nanos(sending.start.saturating_sub(now_ns())),
        ..stage.plan(stage.world.targets(large.iter()), pace, measured)
    })
}

/// Makes the large ones' answers late when it is time, and sees what is used.
async fn follow(
    stage: &Stage<'_>,
    wave: Wave,
    large: &Numbers,
    times: &Times,
) -> anyhow::Result<Usage> {
    let late = Answers {
        delay_ms: wave.delay_ms,
        ..stage.scenario.answers
    };
    let known_ns = times.late.start + nanos(KNOWN);
    used(stage).await?;
    let baseline = used_until(stage, times.baseline.end).await?;
    let quick = used_until(stage, times.wave.end).await?;
    stage.answer(large.clone(), late).await?;
    Ok(Usage {
        baseline,
        wave: quick,
        turning: used_until(stage, known_ns).await?,
        late: used_until(stage, times.late.end).await?,
    })
}

async fn used_until(stage: &Stage<'_>, at_ns: u64) -> anyhow::Result<Used> {
    until(at_ns).await;
    used(stage).await
}

/// What was used at most since this was last asked.
async fn used(stage: &Stage<'_>) -> anyhow::Result<Used> {
    let used = Used {
        wire: stage.system.inquire("wire", &()).await?,
        worker_peak_mb: stage.system.worker_peak_mb(),
    };
    stage.system.forget_worker_peaks()?;
    Ok(used)
}

async fn report_latency(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let seen = stage.seen().await?;
    let [baseline, wave, late, large] = seen.as_slice() else {
        anyhow::bail!("the receiver saw {} watches", seen.len());
    };
    stage.latency("others_baseline_ms", baseline);
    stage.latency("others_in_the_wave_ms", wave);
    stage.latency("others_while_large_are_late_ms", late);
    stage.latency("large_in_the_wave_ms", large);
    let before = baseline.latency_ms.p99;
    let what = "p99 of the others, in the wave / baseline";
    stage.at_most(what, ratio(wave.latency_ms.p99, before), MOST);
    let what = "p99 of the others, large answered late / baseline";
    stage.at_most(what, ratio(late.latency_ms.p99, before), MOST);
    let fewer = wave.deliveries.min(late.deliveries);
    let served = ratio(fewer as f64, baseline.deliveries as f64);
    stage.at_least("deliveries to the others, the same", served, 0.99);
    Ok(())
}

/// `waiting`: large events that are accepted and not sent when the window ends.
fn report_usage(stage: &mut Stage<'_>, wave: Wave, usage: &Usage, waiting: u64) {
    let mib = |used: &Used| used.wire.most_bytes as f64 / MIB;
    let parts = [
        ("baseline", &usage.baseline),
        ("wave", &usage.wave),
        ("turning", &usage.turning),
        ("late", &usage.late),
    ];
    let each = |of: &dyn Fn(&Used) -> Value| -> Value {
        let named = parts.iter().map(|(name, used)| (*name, of(used)));
        named.collect()
    };
    stage.detail("worker_peak_mb", each(&|it| json!(it.worker_peak_mb)));
    let rounded = |used: &Used| (mib(used) * 100.0).round() / 100.0;
    stage.detail("mib_on_the_wire", each(&|it| json!(rounded(it))));
    let requests = each(&|it| json!(it.wire.most_requests));
    stage.detail("requests_on_the_wire", requests);

    let carried_by = |permits: u32| f64::from(permits) * PERMIT_BYTES / MIB;
    let most = parts.iter().map(|(_, used)| mib(used)).fold(0.0, f64::max);
    let what = "MiB on the wire at once";
    stage.never_above(what, Some(most), carried_by(wave.permits));
    // The small ones of the others, a KiB each, are on the wire as well.
    let half = carried_by(wave.permits.div_ceil(2)) + f64::from(wave.permits) / 1_024.0;
    let what = "the same, late ones in their half of the permits";
    stage.never_above(what, Some(mib(&usage.late)), half);
    // Else nobody was held back, and the bounds show nothing.
    let what = "large events that wait at the end";
    stage.at_least(what, Some(waiting as f64), f64::from(wave.permits));
}
