//! The API's own metrics (contract §7). Labels only from closed sets.

use std::sync::LazyLock;

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};
use shared::runtime::telemetry::register;
use shared::store::Pool;

/// From half a millisecond to the deadline of a request.
const BUCKETS: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0,
    10.0,
];

pub(crate) static EVENTS_ACCEPTED: LazyLock<IntCounter> = LazyLock::new(|| {
    let metric = IntCounter::new(
        "postrider_events_accepted_total",
        "Events that were answered with 202",
    );
    #[expect(clippy::expect_used, reason = "the name is a constant and valid")]
    metric.expect("a valid metric")
});

pub(crate) static INGEST_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let opts = HistogramOpts::new(
        "postrider_ingest_seconds",
        "From a request's head to the commit of its event",
    );
    #[expect(clippy::expect_used, reason = "the name is a constant and valid")]
    Histogram::with_opts(opts.buckets(BUCKETS.to_vec())).expect("a valid metric")
});

static DB_POOL: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let opts = Opts::new("postrider_db_pool", "Connections of the pool by state");
    #[expect(clippy::expect_used, reason = "name and label are constants and valid")]
    IntGaugeVec::new(opts, &["state"]).expect("a valid metric")
});

pub(crate) static JOURNAL_BYTES: LazyLock<IntGauge> = LazyLock::new(|| {
    let metric = IntGauge::new(
        "postrider_journal_bytes",
        "Bytes of events on local disk that are not in the database yet",
    );
    #[expect(clippy::expect_used, reason = "the name is a constant and valid")]
    metric.expect("a valid metric")
});

pub(crate) static JOURNAL_EVENTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let opts = Opts::new(
        "postrider_journal_events_total",
        "Events that went to local disk, and what became of them afterwards",
    );
    #[expect(clippy::expect_used, reason = "name and label are constants and valid")]
    let metric = IntCounterVec::new(opts, &["what"]).expect("a valid metric");
    for what in ["accepted", "stored", "alias", "refused"] {
        metric.with_label_values(&[what]).inc_by(0);
    }
    metric
});

/// Makes the metrics visible.
pub(crate) fn register_all() {
    register(EVENTS_ACCEPTED.clone());
    register(INGEST_SECONDS.clone());
    register(DB_POOL.clone());
    register(JOURNAL_BYTES.clone());
    register(JOURNAL_EVENTS.clone());
}

/// Notes how the pool stands.
pub(crate) fn observe_pool(pool: &Pool) {
    let status = pool.status();
    let gauge = |state: &str, count: usize| {
        DB_POOL
            .with_label_values(&[state])
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    gauge("idle", status.available);
    gauge("in_use", status.size.saturating_sub(status.available));
    gauge("waiting", status.waiting);
    gauge("max", status.max_size);
}
