//! Gauges of the whole installation, which the worker with a job's lease shows.
//!
//! A job shows what it found with [`Installation::show`]; scrapes read that from memory and ask the database nothing.
//!
//! # Invariants
//! - Two processes never both show a gauge: each scrape asks whether the life that found the values still stands
//!   ([`Standing`]), by a clock that counts suspensions, and a lease is free for another process only when it does not.
//! - Nothing is shown for long after its job stopped finding it: no alert rests on what was true an hour ago.
//! - Labels are from closed sets, but for `endpoint`, of which there are [`TOP`] at most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};
use shared::ids::Incarnation;
use shared::runtime::budgets;
use shared::runtime::clock::{BootTime, DatabaseClock, boot_time};
use shared::store::leases::Lease;
use tokio::sync::watch;

use super::valid;
use crate::lease::Ownerships;

/// Endpoints that have a series of their own: the slowest.
pub(crate) const TOP: usize = 20;
/// How long values are shown after the next ones should have come.
const GRACE: Duration = Duration::from_secs(60);

/// What can be shown: name, label and help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gauge {
    Deliveries,
    OldestPending,
    DeadLetters,
    BreakerEndpoints,
    SlowEndpoints,
    DegradingEndpoints,
    EndpointP95,
    DatabaseHorizon,
    Updated,
}

impl Gauge {
    const ALL: [Self; 9] = [
        Self::Deliveries,
        Self::OldestPending,
        Self::DeadLetters,
        Self::BreakerEndpoints,
        Self::SlowEndpoints,
        Self::DegradingEndpoints,
        Self::EndpointP95,
        Self::DatabaseHorizon,
        Self::Updated,
    ];

    const fn definition(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Deliveries => (
                "postrider_deliveries",
                &["status"],
                "Deliveries that are not final, and open dead letters; pending and failed include those on the wire, \
                 in_flight are those under way for over 500 ms, at most 2000 of a worker",
            ),
            Self::OldestPending => (
                "postrider_oldest_pending_seconds",
                &["reason"],
                "How long the oldest delivery that is due waits, by what it waits for; 0: none does",
            ),
            Self::DeadLetters => (
                "postrider_dead_letters",
                &["class"],
                "Dead letters that were not replayed, by class",
            ),
            Self::BreakerEndpoints => (
                "postrider_breaker_endpoints",
                &["state"],
                "Enabled endpoints by the state of their circuit breaker",
            ),
            Self::SlowEndpoints => (
                "postrider_slow_endpoints",
                &[],
                "Endpoints that are flagged as slow",
            ),
            Self::DegradingEndpoints => (
                "postrider_degrading_endpoints",
                &[],
                "Endpoints that are flagged as slower than the day before",
            ),
            Self::EndpointP95 => (
                "postrider_endpoint_p95_seconds",
                &["endpoint"],
                "95th percentile of the response time over 24 hours, of the 20 slowest endpoints with 20 samples",
            ),
            Self::DatabaseHorizon => (
                "postrider_database_horizon_seconds",
                &[],
                "How far back the oldest snapshot of the database looks; VACUUM cleans nothing that was deleted since",
            ),
            Self::Updated => (
                "postrider_gauges_updated_timestamp_seconds",
                &["job"],
                "When the gauges of the installation were found, by the job that finds them",
            ),
        }
    }
}

/// One value with its label, if its gauge has one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub(crate) gauge: Gauge,
    pub(crate) label: Option<String>,
    pub(crate) value: f64,
}

impl Value {
    pub(crate) fn new(gauge: Gauge, value: f64) -> Self {
        Self {
            gauge,
            label: None,
            value,
        }
    }

    pub(crate) fn with(gauge: Gauge, label: impl Into<String>, value: f64) -> Self {
        Self {
            gauge,
            label: Some(label.into()),
            value,
        }
    }

    /// A count; beyond 2⁵³ nobody looks at the last digit.
    pub(crate) fn count(gauge: Gauge, label: impl Into<String>, count: u64) -> Self {
        Self::with(gauge, label, number(count))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating point numbers"
)]
pub(crate) const fn number(count: u64) -> f64 {
    count as f64
}

/// Whether lives of this process stand. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) owned: watch::Receiver<Ownerships>,
    pub(crate) ttl: Duration,
}

impl Standing {
    /// Whether nobody can have declared it dead.
    fn of(&self, incarnation: Incarnation) -> bool {
        let standing = self.ttl.saturating_sub(budgets::LEASE_MARGIN);
        let renewed = self.clock.measured_ago().is_some_and(|ago| ago < standing);
        renewed && self.owned.borrow().incarnation == Some(incarnation)
    }
}

#[derive(Debug)]
struct Shown {
    values: Vec<Value>,
    by: Incarnation,
    standing: Standing,
    until: BootTime,
}

impl Shown {
    fn may_be_seen(&self) -> bool {
        boot_time() < self.until && self.standing.of(self.by)
    }
}

/// What this process shows, by job. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Installation {
    vecs: BTreeMap<Gauge, GaugeVec>,
    shown: Arc<Mutex<BTreeMap<&'static str, Shown>>>,
}

impl Default for Installation {
    fn default() -> Self {
        let vec = |gauge: Gauge| {
            let (name, labels, help) = gauge.definition();
            (gauge, valid(GaugeVec::new(Opts::new(name, help), labels)))
        };
        Self {
            vecs: Gauge::ALL.into_iter().map(vec).collect(),
            shown: Arc::default(),
        }
    }
}

impl Installation {
    /// Shows what a job found, instead of what it showed before; the next values come after `pause`.
    pub(crate) fn show(
        &self,
        lease: &Lease,
        standing: &Standing,
        mut values: Vec<Value>,
        pause: Duration,
    ) {
        let updated = standing.clock.now().unix_timestamp();
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds since 1970 fit for longer than time_t"
        )]
        values.push(Value::with(Gauge::Updated, lease.name, updated as f64));
        let shown = Shown {
            values,
            by: lease.owner,
            standing: standing.clone(),
            until: boot_time().after(pause).after(GRACE),
        };
        let mut all = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(lease.name, shown);
    }

    /// Shows nothing of a job any more: its lease is about to be given back.
    pub(crate) fn hide(&self, job: &'static str) {
        let mut all = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(job);
    }
}

impl Collector for Installation {
    fn desc(&self) -> Vec<&Desc> {
        self.vecs.values().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Held to the end: the vectors are filled anew by each scrape.
        let mut all = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_job, shown| shown.may_be_seen());
        for vec in self.vecs.values() {
            vec.reset();
        }
        for value in all.values().flat_map(|shown| &shown.values) {
            if let Some(vec) = self.vecs.get(&value.gauge) {
                let labels: Vec<&str> = value.label.as_deref().into_iter().collect();
                vec.with_label_values(&labels).set(value.value);
            }
        }
        self.vecs.values().flat_map(Collector::collect).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use shared::ids::Epoch;
    use shared::runtime::clock::wall_time;
    use uuid::Uuid;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    struct Process {
        installation: Installation,
        standing: Standing,
        owned: watch::Sender<Ownerships>,
        lease: Lease,
    }

    impl Process {
        fn renewed(ago: Duration) -> Self {
            let owner = Incarnation(Uuid::new_v4());
            let (owned, ownerships) = watch::channel(Ownerships {
                incarnation: Some(owner),
                slots: HashSet::new(),
            });
            let clock = Arc::new(DatabaseClock::new());
            let sent = BootTime(boot_time().0 - ago);
            clock.measured(sent, sent, wall_time() - ago);
            Self {
                installation: Installation::default(),
                standing: Standing {
                    clock,
                    owned: ownerships,
                    ttl: TTL,
                },
                owned,
                lease: Lease {
                    name: "gauges",
                    owner,
                    epoch: Epoch(1),
                },
            }
        }

        fn show(&self, values: Vec<Value>) {
            self.installation
                .show(&self.lease, &self.standing, values, Duration::ZERO);
        }

        /// The values of a gauge, by label.
        fn seen(&self, gauge: Gauge) -> Vec<(String, f64)> {
            let (name, _, _) = gauge.definition();
            let families = self.installation.collect();
            let family = families.iter().find(|family| family.name() == name);
            let metrics = family.map(MetricFamily::get_metric).unwrap_or_default();
            let mut seen: Vec<(String, f64)> = metrics
                .iter()
                .map(|metric| {
                    let label = metric.get_label().first();
                    let label = label.map(|pair| pair.value().to_owned());
                    (label.unwrap_or_default(), metric.get_gauge().get_value())
                })
                .collect();
            seen.sort_by(|one, two| one.0.cmp(&two.0));
            seen
        }
    }

    fn deliveries(status: &str, count: u64) -> Value {
        Value::count(Gauge::Deliveries, status, count)
    }

    #[test]
    fn new_values_of_a_job_replace_its_old_ones_and_no_other_jobs() {
        let process = Process::renewed(Duration::ZERO);
        process.show(vec![deliveries("pending", 1), deliveries("failed", 2)]);
        let other = Lease {
            name: "backlog",
            ..process.lease
        };
        let values = vec![deliveries("in_flight", 3)];
        process
            .installation
            .show(&other, &process.standing, values, Duration::ZERO);

        process.show(vec![deliveries("pending", 5)]);

        let seen = process.seen(Gauge::Deliveries);
        let of = |name: &str, value| (name.to_owned(), value);
        assert_eq!(seen, [of("in_flight", 3.0), of("pending", 5.0)]);
        let jobs: Vec<String> = process
            .seen(Gauge::Updated)
            .into_iter()
            .map(|it| it.0)
            .collect();
        assert_eq!(jobs, ["backlog", "gauges"]);
    }

    #[test]
    fn nothing_is_shown_when_the_life_that_found_it_may_be_over() {
        for (ago, seen) in [(7, 1), (8, 0), (3_600, 0)] {
            let process = Process::renewed(Duration::from_secs(ago));
            process.show(vec![deliveries("pending", 1)]);
            assert_eq!(process.seen(Gauge::Deliveries).len(), seen, "{ago} s ago");
        }
        for next in [None, Some(Incarnation(Uuid::new_v4()))] {
            let process = Process::renewed(Duration::ZERO);
            process.show(vec![deliveries("pending", 1)]);
            process.owned.send_modify(|owned| owned.incarnation = next);
            assert_eq!(process.seen(Gauge::Deliveries), [], "{next:?}");
            assert_eq!(process.seen(Gauge::Updated), [], "{next:?}");
        }
    }

    #[test]
    fn nothing_is_shown_of_a_lease_that_was_given_back() {
        let process = Process::renewed(Duration::ZERO);
        process.show(vec![deliveries("pending", 1)]);

        process.installation.hide("gauges");

        assert_eq!(process.seen(Gauge::Deliveries), []);
    }

    #[test]
    fn nothing_is_shown_for_long_after_its_job_stopped() {
        let process = Process::renewed(Duration::ZERO);
        process.show(vec![deliveries("pending", 1)]);
        let mut all = process.installation.shown.lock().unwrap();
        let shown = all.get_mut("gauges").unwrap();
        assert!(shown.until.since(boot_time()) <= GRACE);
        shown.until = boot_time();
        drop(all);

        assert_eq!(process.seen(Gauge::Deliveries), []);
    }
}
