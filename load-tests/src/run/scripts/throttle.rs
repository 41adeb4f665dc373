//! A receiver that takes so many in a window answers 429 with the time of its end (field report F39).

use std::time::Duration;

use crate::payload::now_ns;
use crate::receiver::answers::Limit;
use crate::receiver::{Answers, EndpointCounts};
use crate::run::stage::Stage;

/// The figure of the issue: requests for each event.
const MOST_REQUESTS: f64 = 1.5;

pub(super) async fn play(
    stage: &mut Stage<'_>,
    events: usize,
    most: u32,
    window_seconds: u64,
) -> anyhow::Result<()> {
    let limit = Limit::Window {
        most,
        length_ms: window_seconds * 1_000,
    };
    let answers = Answers {
        limit: Some(limit),
        ..Answers::default()
    };
    stage.answer(0..1, answers).await?;
    let windows = u64::try_from(events)? / u64::from(most.max(1)) + 2;
    // As much again, for a window here and there that begins late.
    let longest = Duration::from_secs(windows * window_seconds * 2 + 60);
    let from_ns = now_ns();
    stage.begin(from_ns + 1_000_000_000_000).await?;
    stage.post(stage.world.targets(0..1), events).await?;
    let promised = stage.promised();
    stage.received(promised, longest).await?;
    let took = (now_ns() - from_ns) / 1_000_000;
    stage.measured_until(now_ns());
    stage.end().await?;

    let counts: Vec<EndpointCounts> = stage.system.inquire("endpoints", &(0..1_usize)).await?;
    let counts = counts.first().copied().unwrap_or_default();
    stage.detail("requests", counts.requests);
    stage.detail("throttled", counts.throttled);
    stage.detail("milliseconds_until_all_were_delivered", took);
    let undelivered = promised.saturating_sub(stage.system.taken().await?);
    stage.never_above("events not delivered", Some(undelivered as f64), 0.0);
    let requests = counts.requests as f64 / events.max(1) as f64;
    stage.never_above("requests per event", Some(requests), MOST_REQUESTS);
    let what = "requests of a delivery before its stated time";
    stage.never_above(what, Some(counts.early as f64), 0.0);
    let what = "requests of any delivery before the stated time";
    stage.never_above(what, Some(counts.early_at_endpoint as f64), 0.0);
    Ok(())
}
