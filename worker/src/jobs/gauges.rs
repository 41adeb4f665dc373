//! The gauges job: what is true of the whole installation, found by one worker and shown at its `/metrics`
//! (`metrics::installation`), so that scrapes cost the database nothing.
//!
//! What is exact, and what it costs:
//! - Since when the oldest delivery waits, by reason: some probes per endpoint that has anything waiting
//!   (`store::oldest`), slots in groups, however many rows there are.
//! - Dead letters by class: each range of pages that was counted is remembered. A step counts the last range, where new
//!   ones are, and goes on with the others in turn for as long as [`COUNTING`] lasts. A few million are counted within a
//!   minute or two; what was replayed or deleted in a range leaves when its turn comes. Until each range was counted
//!   once, nothing is shown: too little would be taken for an improvement.
//! - Endpoints by breaker: one read of the endpoints. The slowest: one read of the percentiles, once a minute, as
//!   often as they change.
//! - How old the database's horizon is: one read of its transactions, and what is remembered of the looks before
//!   ([`horizon`]).
//! - How many deliveries are pending and failed is not counted here: the backlog job counts them for its limits anyhow,
//!   and shows them.
//!
//! # Invariants
//! - Bounded: steps take at most a hundredth of the time ([`SHARE`]). Where they would need more they come less often,
//!   and `postrider_gauges_updated_timestamp_seconds` says so.
//! - Reads only: a leader that was declared dead changes nothing (D3), and its values are not shown any more.

mod horizon;

use std::time::Duration;

use shared::domain::delivery::DeadLetterClass;
use shared::ids::{EndpointId, Epoch, SLOT_COUNT, Slot};
use shared::runtime::clock::{BootTime, boot_time};
use shared::store::gauges::{self, Breakers, CLASSES};
use shared::store::leases::Lease;
use shared::store::oldest::{self, Oldest};
use shared::store::stats::{self, Slowest};
use shared::store::{Role, Session, StoreError, partitions};
use time::OffsetDateTime;

use self::horizon::Horizons;
use super::Job;
use crate::metrics::{Gauge, Installation, Standing, TOP, Value, number};

/// How often to look.
const EVERY: Duration = Duration::from_secs(15);
/// A step of so long is followed by a pause of this many times its length.
const SHARE: u32 = 99;
/// Slots in one statement.
const SLOTS: usize = 32;
/// How long a step counts dead letters, and one range more.
const COUNTING: Duration = Duration::from_millis(50);
/// How often percentiles are read.
const PERCENTILES_EVERY: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct Gauges {
    installation: Installation,
    standing: Standing,
    /// Under which lease the rest was found.
    epoch: Option<Epoch>,
    dead_letters: DeadLetters,
    slowest: Option<(BootTime, Slowest)>,
    horizons: Horizons,
}

impl Gauges {
    pub(super) fn new(installation: Installation, standing: Standing) -> Self {
        Self {
            installation,
            standing,
            epoch: None,
            dead_letters: DeadLetters::default(),
            slowest: None,
            horizons: Horizons::default(),
        }
    }
}

impl Job for Gauges {
    const NAME: &'static str = "gauges";
    const ROLE: Role = Role::Worker;

    async fn step(&mut self, session: &mut Session, lease: &Lease) -> Result<Duration, StoreError> {
        let before = boot_time();
        if self.epoch.replace(lease.epoch) != Some(lease.epoch) {
            // Another process may have led since.
            self.dead_letters = DeadLetters::default();
            self.slowest = None;
            self.horizons = Horizons::default();
        }
        let values = self.look(session, before).await?;
        let pause = EVERY.max(boot_time().since(before) * SHARE);
        self.installation.show(lease, &self.standing, values, pause);
        Ok(pause)
    }
}

impl Gauges {
    async fn look(
        &mut self,
        session: &Session,
        before: BootTime,
    ) -> Result<Vec<Value>, StoreError> {
        let now = partitions::database_time(session).await?;
        let mut values = waiting(oldest_of_all(session, now).await?, now);
        values.extend(breakers(gauges::breakers(session, now).await?));
        let in_flight = gauges::in_flight(session).await?;
        values.push(Value::count(Gauge::Deliveries, "in_flight", in_flight));
        values.extend(self.slowest(session, before).await?);
        let age = self.horizons.age(before, gauges::horizon(session).await?);
        values.push(Value::new(Gauge::DatabaseHorizon, age.as_secs_f64()));
        self.dead_letters.count(session, COUNTING).await?;
        if let Some(counts) = self.dead_letters.total() {
            values.extend(dead_letters(counts));
        }
        Ok(values)
    }

    async fn slowest(
        &mut self,
        session: &Session,
        now: BootTime,
    ) -> Result<Vec<Value>, StoreError> {
        let known = self.slowest.take();
        let slowest = match known.filter(|(at, _)| now.since(*at) < PERCENTILES_EVERY) {
            Some(known) => known,
            None => (
                now,
                stats::slowest(session, i64::try_from(TOP).unwrap_or(0)).await?,
            ),
        };
        let values = slow(&slowest.1);
        self.slowest = Some(slowest);
        Ok(values)
    }
}

/// Since when the oldest delivery of the installation waits.
async fn oldest_of_all(session: &Session, now: OffsetDateTime) -> Result<Oldest, StoreError> {
    let slots: Vec<Slot> = (0..SLOT_COUNT).map(Slot).collect();
    let mut found = Oldest::default();
    for some in slots.chunks(SLOTS) {
        found = found.or(oldest::of_slots(&**session, some, now).await?);
    }
    Ok(found)
}

fn waiting(oldest: Oldest, now: OffsetDateTime) -> Vec<Value> {
    let reasons = [
        ("admissible", oldest.admissible),
        ("breaker", oldest.breaker),
        ("rate_limited", oldest.rate_limited),
        ("ordered", oldest.ordered),
    ];
    let value = |(reason, since): (&'static str, Option<OffsetDateTime>)| {
        let seconds = since.map_or(0.0, |since| (now - since).as_seconds_f64());
        Value::with(Gauge::OldestPending, reason, seconds.max(0.0))
    };
    reasons.into_iter().map(value).collect()
}

fn breakers(breakers: Breakers) -> [Value; 3] {
    [
        Value::count(Gauge::BreakerEndpoints, "closed", breakers.closed),
        Value::count(Gauge::BreakerEndpoints, "open", breakers.open),
        Value::count(Gauge::BreakerEndpoints, "half_open", breakers.half_open),
    ]
}

fn slow(slowest: &Slowest) -> Vec<Value> {
    let mut values = vec![
        Value::new(Gauge::SlowEndpoints, number(slowest.slow)),
        Value::new(Gauge::DegradingEndpoints, number(slowest.degrading)),
    ];
    let top = slowest.endpoints.iter().map(|(id, p95_ms)| {
        let id = EndpointId(*id).to_string();
        Value::with(Gauge::EndpointP95, id, p95_ms / 1_000.0)
    });
    values.extend(top);
    values
}

fn dead_letters(counts: [u64; CLASSES]) -> Vec<Value> {
    let all = Value::count(Gauge::Deliveries, "dead_letter", counts.iter().sum());
    let classes = DeadLetterClass::ALL.iter().zip(counts);
    let of_class = |(class, count): (&DeadLetterClass, u64)| {
        Value::count(Gauge::DeadLetters, class.name(), count)
    };
    classes.map(of_class).chain([all]).collect()
}

/// Dead letters by ranges of pages, as they were when each was counted last.
#[derive(Debug, Default)]
pub(super) struct DeadLetters {
    ranges: Vec<Option<[u64; CLASSES]>>,
    /// Whose turn it is.
    next: usize,
}

impl DeadLetters {
    /// Counts the last range, and others in turn until the time is over or all were counted.
    pub(super) async fn count(
        &mut self,
        session: &Session,
        time: Duration,
    ) -> Result<(), StoreError> {
        let before = boot_time();
        let count = gauges::dead_letter_ranges(session).await?;
        if count > self.ranges.len() {
            // New ones first, with the one that was the last until now.
            self.next = self.ranges.len().saturating_sub(1);
        }
        self.ranges.resize(count, None);
        let Some((last, others)) = self.ranges.split_last_mut() else {
            return Ok(());
        };
        *last = Some(gauges::dead_letters(session, others.len()).await?);
        for _ in 0..others.len() {
            if boot_time().since(before) >= time {
                break;
            }
            let range = self.next % others.len();
            let counts = gauges::dead_letters(session, range).await?;
            if let Some(known) = others.get_mut(range) {
                *known = Some(counts);
            }
            self.next = range + 1;
        }
        Ok(())
    }

    /// In all, by class; `None` while there are ranges that were not counted yet.
    pub(super) fn total(&self) -> Option<[u64; CLASSES]> {
        let mut total = [0_u64; CLASSES];
        for range in &self.ranges {
            for (sum, count) in total.iter_mut().zip((*range)?) {
                *sum += count;
            }
        }
        Some(total)
    }
}
