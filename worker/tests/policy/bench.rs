//! The scheduler with its store and its receiver, beside the reference machine.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use shared::domain::endpoint::{EndpointState, RateLimit};
use shared::ids::{Epoch, Incarnation, lower_bound};
use shared::policy::backoff::UnitInterval;
use shared::policy::classify::{BodyEnd, Phase, Response, SendError, SendResult};
use shared::policy::decide::Decision;
use shared::runtime::clock::{BootTime, DatabaseClock};
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;
use worker::admission::TakeOver;
use worker::deliver::conclude;
use worker::job::{Job, Record};
use worker::scheduler::{Effect, Input, Now, Recorded, Scheduler, SchedulerSettings, Taken};
use worker::sender::Timings;
use worker::transitions::Change;

use crate::reference::{self, Ended, Reference};
use crate::step::{Reply, Step};
use crate::store::{ENDPOINT, SLOT, Store};

const START: OffsetDateTime = datetime!(2026-11-30 12:00 UTC);
const LEASE: Duration = Duration::from_secs(10);
/// Until a dead worker's slots are taken.
const MISSED: Duration = Duration::from_secs(11);
const TIMEOUT: Duration = Duration::from_secs(2);

/// A request on the wire.
pub(crate) struct Flight {
    pub(crate) job: Box<Job>,
    pub(crate) started: BootTime,
}

pub(crate) struct Bench {
    pub(crate) scheduler: Scheduler,
    pub(crate) store: Store,
    pub(crate) reference: Reference,
    clock: DatabaseClock,
    pub(crate) flights: Vec<Flight>,
    /// Since the beginning, in whole microseconds.
    pub(crate) passed: Duration,
    pub(crate) life: u128,
    epoch: i64,
    events: u128,
    /// The last take-over from a dead owner.
    emptied_at: Option<OffsetDateTime>,
    /// What the owner said last: whether the breaker is open.
    pub(crate) open: bool,
}

pub(crate) fn scheduler() -> Scheduler {
    Scheduler::new(SchedulerSettings {
        max_in_flight: 64,
        max_loaded: 1_000,
        max_loaded_bytes: 1 << 20,
        lease_ttl: LEASE,
        lease_margin: Duration::from_secs(2),
    })
}

impl Bench {
    pub(crate) fn new() -> Self {
        let clock = DatabaseClock::new();
        let boot = BootTime(Duration::from_secs(1_000));
        clock.measured(boot, boot, START);
        let mut bench = Self {
            scheduler: scheduler(),
            store: Store::new(),
            reference: Reference::new(START),
            clock,
            flights: Vec::new(),
            passed: Duration::ZERO,
            life: 1,
            epoch: 0,
            events: 0,
            emptied_at: None,
            open: false,
        };
        bench.take_over(reference::Taken::InOrder);
        bench
    }

    pub(crate) fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Post(count) => self.post(count),
            Step::Wait(millis) => return self.wait(Duration::from_millis(u64::from(millis))),
            Step::Answer(which, reply) => self.answer(which, reply)?,
            Step::Crash => self.crash(),
            Step::HandOver => {
                self.tell(Input::Release { count: 1 });
                self.reference.leaving = true;
            }
            Step::Limit(tenths, burst) => self.limit(tenths, burst),
            Step::Disable => self.change(EndpointState::Disabled),
            Step::Enable => self.change(EndpointState::Enabled),
            Step::LongPause => return self.long_pause(),
        }
        self.settle()
    }

    // ## Time

    pub(crate) fn now(&self) -> Now {
        Now {
            boot: BootTime(Duration::from_secs(1_000) + self.passed),
            database: START + self.passed,
        }
    }

    /// From due time to due time, the lease kept; all that is allowed goes at once.
    fn wait(&mut self, length: Duration) -> Result<(), String> {
        let end = self.passed + length;
        let mut rounds = 0_u32;
        loop {
            rounds += 1;
            if rounds > 20_000 {
                return Err(format!(
                    "{rounds} rounds for {length:?}, at {:?}: {:?}, {:?}",
                    self.passed,
                    self.scheduler.next_due(),
                    self.reference
                ));
            }
            let now = self.now().database;
            let retries = self.store.live.values().filter_map(|row| row.due);
            let mut dues = self.reference.dues(now);
            dues.extend(self.scheduler.next_due().into_iter().chain(retries));
            let later = dues.into_iter().filter(|due| *due > now).min();
            let next = later.map_or(end, |due| whole_micros(due - START));
            self.passed = next.min(end).max(self.passed + Duration::from_micros(1));
            self.tick();
            self.settle()?;
            if self.passed >= end {
                return Ok(());
            }
        }
    }

    fn tick(&mut self) {
        let sent_at = self.now().boot;
        self.tell(Input::Renewed { sent_at });
        self.tell(Input::Tick);
    }

    pub(crate) fn tell(&mut self, input: Input) {
        let now = self.now();
        self.scheduler.handle(input, now);
    }

    // ## Steps

    fn post(&mut self, count: u8) {
        if self.store.state != EndpointState::Enabled {
            return;
        }
        for _ in 0..count {
            self.events += 1;
            let stamp = lower_bound(self.now().database).as_u128();
            let id = Uuid::from_u128(stamp | 0x7 << 76 | 0x2 << 62 | self.events);
            self.store.insert(id);
        }
        self.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    }

    fn limit(&mut self, tenths: u8, burst: u8) {
        let limit = (tenths > 0).then(|| RateLimit {
            per_second: f64::from(tenths) / 10.0,
            burst: u32::from(burst),
        });
        self.store.change(self.store.state, limit);
        self.reference.limit(limit, self.now().database);
        self.reload();
    }

    fn change(&mut self, state: EndpointState) {
        if self.store.state == state {
            return;
        }
        let now = self.now().database;
        self.store.change(state, self.store.limit);
        if state == EndpointState::Enabled {
            self.store.start_with_probe(now);
            self.reference.enable(now);
        } else {
            self.reference.disable(now);
        }
        self.reload();
    }

    fn reload(&mut self) {
        let (slot, endpoint) = (SLOT, ENDPOINT);
        self.tell(Input::Reload { slot, endpoint });
    }

    fn crash(&mut self) {
        self.scheduler = scheduler();
        self.flights.clear();
        self.passed += MISSED;
        self.life += 1;
        self.take_over(reference::Taken::FromTheDead);
    }

    /// The process wakes up after its lease: nothing starts, and then it lives another life.
    fn long_pause(&mut self) -> Result<(), String> {
        self.passed += 3 * LEASE;
        self.tell(Input::Tick);
        let now = self.now();
        let effects = self.scheduler.effects(now);
        let starts = |effect: &Effect| matches!(effect, Effect::Send(_));
        if effects.iter().any(starts) {
            return Err("a request starts under a lease that ran out".to_owned());
        }
        self.tell(Input::LeaseLost);
        // Whatever it had asked is answered before, or the answers would be of another life.
        for effect in effects {
            self.execute(effect)?;
        }
        self.life += 1;
        self.take_over(reference::Taken::FromTheDead);
        self.settle()
    }

    pub(crate) fn take_over(&mut self, how: reference::Taken) {
        let clean = how == reference::Taken::InOrder;
        self.epoch += 1;
        let now = self.now();
        self.tell(Input::Born(self.incarnation()));
        let sent_at = now.boot;
        self.tell(Input::Renewed { sent_at });
        if !clean {
            self.emptied_at = Some(now.database);
        }
        let taken = TakeOver {
            epoch: Epoch(self.epoch),
            clean,
            emptied_at: self.emptied_at,
        };
        self.tell(Input::Acquired {
            slots: vec![Taken {
                slot: SLOT,
                how: taken,
            }],
            suspects: HashMap::new(),
        });
        self.reference.taken(how, now.database);
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(Uuid::from_u128(self.life))
    }

    // ## The receiver

    fn answer(&mut self, which: u8, reply: Reply) -> Result<(), String> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let flight = self.flights.remove(usize::from(which) % self.flights.len());
        if reply == Reply::Hangs {
            // It is not later than its deadline, whenever it is answered.
            self.passed = self
                .passed
                .max(flight.started.0 + TIMEOUT - Duration::from_secs(1_000));
        }
        let ended = self.now().boot;
        let jitter = UnitInterval::new(0.5).unwrap();
        let result = (result(reply), Timings::default());
        let record = conclude(
            &self.clock,
            *flight.job,
            (flight.started, ended),
            result,
            jitter,
        );
        self.record(&record, reply)
    }

    fn record(&mut self, record: &Record, reply: Reply) -> Result<(), String> {
        let now = self.now();
        let ours = record.owner.incarnation == self.incarnation()
            && record.owner.epoch == Epoch(self.epoch);
        self.store.record(record, ours, now.database);
        let observed = record.observed;
        let recorded = Recorded {
            owner: record.owner,
            endpoint: record.endpoint,
            delivery: record.delivery,
            next_due: match record.decision {
                Decision::RetryAt(at) => Some(at),
                _ => None,
            },
            observed,
            dead: matches!(record.decision, Decision::DeadLetter(_)),
        };
        self.tell(Input::Recorded(vec![recorded]));
        let (Some(observed), true) = (observed, ours) else {
            return Ok(());
        };
        let ended = Ended {
            outcome: observed.outcome,
            started: observed.started_at,
            probe: observed.probe,
            retry_after: match reply {
                Reply::BusyFor(seconds) | Reply::FailsFor(seconds) => Some(seconds),
                _ => None,
            },
            exhausted: observed.exhausted,
        };
        // What follows is judged by what was known before it: the outcome.
        let effects = self.scheduler.effects(now);
        let opened = effects.iter().rev().find_map(opens).unwrap_or(self.open);
        let id = record.delivery;
        self.reference.ended(id, &ended, opened, now.database);
        self.execute_all(effects)
    }
}

fn opens(effect: &Effect) -> Option<bool> {
    match effect {
        Effect::Change(change) => opens_by(change),
        _ => None,
    }
}

pub(crate) fn opens_by(change: &Change) -> Option<bool> {
    change.runtime.as_ref().map(|it| it.opened_at.is_some())
}

fn result(reply: Reply) -> SendResult {
    let (status, retry_after) = match reply {
        Reply::Works => (200, None),
        Reply::Fails => (503, None),
        Reply::FailsFor(seconds) => (503, Some(seconds)),
        Reply::Missing => (404, None),
        Reply::Busy => (429, None),
        Reply::BusyFor(seconds) => (429, Some(seconds)),
        Reply::Refuses => (400, None),
        Reply::Hangs => return Err(SendError::Timeout(Phase::Response)),
    };
    Ok(Response {
        status,
        retry_after: retry_after.map(|seconds| seconds.to_string()),
        redirect: None,
        excerpt: Bytes::new(),
        body: BodyEnd::Whole,
    })
}

/// Rounded up: nothing is due before its time.
fn whole_micros(length: time::Duration) -> Duration {
    let nanos = u64::try_from(length.whole_nanoseconds()).unwrap();
    Duration::from_micros(nanos.div_ceil(1_000))
}
