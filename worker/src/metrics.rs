//! The worker's metrics (contract §7). Labels come from closed sets, never from a tenant, URL or id.
//!
//! What one worker does is counted here; what is true of the whole installation is in [`installation`]. Every label's
//! series is there from the start, with 0: `rate` and `increase` miss the first increment of a series that begins with it.

mod installation;

use std::sync::LazyLock;

use prometheus::core::Collector;
use prometheus::{
    Gauge as FloatGauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGaugeVec, Opts,
};
use shared::domain::attempt::Outcome;
use shared::domain::delivery::DeadLetterClass;
use shared::runtime::telemetry;

pub(crate) use self::installation::{Gauge, Installation, Standing, TOP, Value, number};
use crate::admission::DeferReason;

/// Seconds; from a receiver in the same rack to a long wait, with bounds where people look: 2 s (slow), 5 s (very slow),
/// 15 s (the usual deadline), 20 s (the longest, unless the drain may take longer).
const ATTEMPT_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 60.0,
];
/// Seconds; a statement of a few rows to one that the deadline ends.
const RECORD_BUCKETS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Seconds; from at once to days late.
const LAG_BUCKETS: &[f64] = &[
    0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0,
    86_400.0,
];

/// Seconds; from a look that finds nothing to one that reads a table.
const STEP_BUCKETS: &[f64] = &[0.01, 0.1, 1.0, 10.0, 60.0];

/// Attempts by outcome.
pub(crate) static ATTEMPTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    valid(IntCounterVec::new(
        Opts::new("postrider_attempts_total", "HTTP requests made, by outcome"),
        &["outcome"],
    ))
});

/// Attempts by phase.
pub(crate) static ATTEMPT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    let opts = HistogramOpts::new(
        "postrider_attempt_seconds",
        "Time of an attempt by phase, in seconds",
    );
    valid(HistogramVec::new(
        opts.buckets(ATTEMPT_BUCKETS.to_vec()),
        &["phase"],
    ))
});

/// From accepted to received.
pub(crate) static DELIVERY_LAG: LazyLock<Histogram> = LazyLock::new(|| {
    let opts = HistogramOpts::new(
        "postrider_delivery_lag_seconds",
        "From the creation of a delivery to the receiver's 2xx, in seconds",
    );
    valid(Histogram::with_opts(opts.buckets(LAG_BUCKETS.to_vec())))
});

/// Dead letters by class.
pub(crate) static DEAD_LETTERS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    valid(IntCounterVec::new(
        Opts::new(
            "postrider_dead_letters_total",
            "Deliveries that became dead letters, by class",
        ),
        &["class"],
    ))
});

/// Turns of endpoints that had to wait.
pub(crate) static DEFERRED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    valid(IntCounterVec::new(
        Opts::new(
            "postrider_deferred_total",
            "Turns at which an endpoint could not send, by reason",
        ),
        &["reason"],
    ))
});

/// Breakers that changed their state.
pub(crate) static BREAKER_TRANSITIONS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    valid(IntCounterVec::new(
        Opts::new(
            "postrider_breaker_transitions_total",
            "Circuit breakers of endpoints that changed their state, by the new one",
        ),
        &["to"],
    ))
});

/// Slots.
pub(crate) static SLOTS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "postrider_slots",
        "Slots owned by this worker, and slots without a living owner",
    );
    valid(IntGaugeVec::new(opts, &["state"]))
});

/// Lives that ended by being declared dead.
pub(crate) static LEASE_LOST: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Times this worker was declared dead and started again";
    valid(IntCounter::new("postrider_lease_lost_total", help))
});

/// One record batch.
pub(crate) static RECORD_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let opts = HistogramOpts::new(
        "postrider_record_seconds",
        "Time to record a batch of outcomes, in seconds",
    );
    valid(Histogram::with_opts(opts.buckets(RECORD_BUCKETS.to_vec())))
});

/// The batch at hand.
pub(crate) static RECORD_LAG: LazyLock<FloatGauge> = LazyLock::new(|| {
    let help = "How long the batch of outcomes at hand has been tried to be recorded, in seconds";
    valid(FloatGauge::new("postrider_record_lag_seconds", help))
});

/// Steps of jobs.
pub(crate) static JOB_STEP_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    let opts = HistogramOpts::new(
        "postrider_job_step_seconds",
        "Time of a step of a job that one worker does for all, in seconds",
    );
    valid(HistogramVec::new(
        opts.buckets(STEP_BUCKETS.to_vec()),
        &["job"],
    ))
});

/// Names looked up.
pub(crate) static DNS_LOOKUPS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    valid(IntCounterVec::new(
        Opts::new(
            "postrider_dns_lookups_total",
            "Names resolved, by where the answer came from: fresh (remembered), asked, stale (the \
             last good one, kept through an outage) or failed",
        ),
        &["result"],
    ))
});

/// What the worker's leader found of the installation.
pub(crate) static INSTALLATION: LazyLock<Installation> = LazyLock::new(Installation::default);

/// The parts of an attempt that are measured.
pub(crate) const PHASES: [&str; 6] = ["queue", "dns", "connect", "tls", "first_byte", "total"];
/// What a breaker can turn to.
pub(crate) const BREAKER_STATES: [&str; 3] = ["closed", "open", "half_open"];
/// Where addresses come from.
pub(crate) const LOOKUPS: [&str; 4] = ["fresh", "asked", "stale", "failed"];

/// Registers all of them; the first process part that runs does it for all.
pub(crate) fn register() {
    begin();
    telemetry::register(ATTEMPTS.clone());
    telemetry::register(ATTEMPT_SECONDS.clone());
    telemetry::register(DELIVERY_LAG.clone());
    telemetry::register(DEAD_LETTERS.clone());
    telemetry::register(DEFERRED.clone());
    telemetry::register(BREAKER_TRANSITIONS.clone());
    telemetry::register(SLOTS.clone());
    telemetry::register(DNS_LOOKUPS.clone());
    telemetry::register(LEASE_LOST.clone());
    telemetry::register(RECORD_SECONDS.clone());
    telemetry::register(RECORD_LAG.clone());
    telemetry::register(JOB_STEP_SECONDS.clone());
    telemetry::register(INSTALLATION.clone());
}

/// Begins every series with 0.
fn begin() {
    let outcomes = Outcome::ALL.iter().map(|it| it.name());
    let classes = DeadLetterClass::ALL.iter().map(|it| it.name());
    let reasons = DeferReason::ALL.iter().map(|it| it.name());
    let counters: [(&IntCounterVec, Vec<&str>); 5] = [
        (&*ATTEMPTS, outcomes.collect()),
        (&*DEAD_LETTERS, classes.collect()),
        (&*DEFERRED, reasons.collect()),
        (&*BREAKER_TRANSITIONS, BREAKER_STATES.to_vec()),
        (&*DNS_LOOKUPS, LOOKUPS.to_vec()),
    ];
    for (counter, labels) in counters {
        for label in labels {
            counter.with_label_values(&[label]).inc_by(0);
        }
    }
    for phase in PHASES {
        ATTEMPT_SECONDS.with_label_values(&[phase]);
    }
}

fn valid<M: Collector>(metric: Result<M, prometheus::Error>) -> M {
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants; a wrong one fails every test"
    )]
    metric.expect("a valid metric")
}
