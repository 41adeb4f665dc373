//! The real scheduler with a store that answers at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::domain::attempt::Outcome;
use shared::domain::delivery::Kind;
use shared::domain::endpoint::{BreakerSettings, EndpointSettings, EndpointState, RateLimit};
use shared::ids::{EndpointId, EndpointKey, Epoch, Incarnation, Slot, TenantKey, lower_bound};
use shared::runtime::clock::BootTime;
use shared::store::endpoint_runtime::Runtime;
use time::OffsetDateTime;
use uuid::Uuid;
use worker::admission::TakeOver;
use worker::endpoint_config::{EndpointConfig, Target};
use worker::job::{EventData, LiveRow, Observed, Ownership};
use worker::scheduler::{
    Effect, Found, Input, Leaving, LoadRequest, LoadedEndpoint, Now, Recorded, Scheduler,
    SchedulerSettings, Taken,
};

use crate::Step;
use crate::reference::{CAP, COOLDOWN, FAILURES, MAX_COOLDOWN, Millis, Reference};

const SLOT: Slot = Slot(1);
const ENDPOINT: EndpointKey = EndpointKey(1);
const TENANT: TenantKey = TenantKey(1);

#[derive(Debug, Clone, Copy)]
struct Flight {
    id: Uuid,
    started: Millis,
    probe: bool,
}

pub(crate) struct Bench {
    scheduler: Scheduler,
    reference: Reference,
    now: Millis,
    limit: Option<(u32, u32)>,
    /// Live deliveries: attempts made, and when they are due.
    live: BTreeMap<Uuid, (u16, Millis)>,
    flights: Vec<Flight>,
    attempts: Vec<(Outcome, Millis)>,
    runtime: Runtime,
    /// As the slot's row keeps it: the last take-over from a dead owner.
    emptied_at: Option<Millis>,
    life: u128,
    epoch: i64,
    numbers: u128,
    problem: Option<String>,
}

fn at(now: Millis) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + Duration::from_millis(now)
}

impl Bench {
    pub(crate) fn new(limit: Option<(u32, u32)>) -> Self {
        let mut bench = Self {
            scheduler: scheduler(),
            reference: Reference::new(limit),
            now: 100_000,
            limit,
            live: BTreeMap::new(),
            flights: Vec::new(),
            attempts: Vec::new(),
            runtime: Runtime::default(),
            emptied_at: None,
            life: 0,
            epoch: 0,
            numbers: 0,
            problem: None,
        };
        bench.take(true);
        bench
    }

    pub(crate) fn problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn on_the_wire(&self) -> usize {
        self.flights.len()
    }

    /// Everything on the wire is delivered.
    pub(crate) fn all_well(&mut self) {
        while !self.flights.is_empty() {
            self.step(Step::End(Outcome::Delivered, 0, 5, 0));
        }
    }

    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Post(count) => {
                for _ in 0..count {
                    self.numbers += 1;
                    let id = lower_bound(at(self.now)).as_u128() | 0x7 << 76 | self.numbers;
                    self.live.insert(Uuid::from_u128(id), (0, 0));
                }
                self.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
            }
            Step::Wait(length) => {
                self.now += u64::from(length);
                self.renew();
                self.tell(Input::Tick);
            }
            Step::End(outcome, which, took, retry_after) => {
                if let Some(last) = self.flights.len().checked_sub(1) {
                    let flight = self.flights.remove(usize::from(which) % (last + 1));
                    self.now += u64::from(took);
                    self.renew();
                    self.end(flight, outcome, u64::from(retry_after) * 1_000);
                }
            }
            Step::Crash => {
                self.flights.clear();
                self.now += 12_000;
                let now = self.now;
                self.reference.taken_over(true, now);
                self.runtime.parked_until = None;
                self.emptied_at = Some(now);
                self.take(false);
            }
            Step::HandOver => self.hand_over(),
        }
        self.settle();
    }

    fn end(&mut self, flight: Flight, outcome: Outcome, retry_after: Millis) {
        // Only 429 and 503 ask to be left alone.
        let asks = matches!(outcome, Outcome::Throttled | Outcome::Transient) && retry_after > 0;
        let retry_after = if asks { retry_after } else { 0 };
        let spent = (flight.started, self.now);
        self.reference
            .ended(outcome, spent, flight.probe, retry_after);
        self.attempts.push((outcome, flight.started));
        let again = matches!(
            outcome,
            Outcome::Transient | Outcome::Misconfigured | Outcome::Throttled
        );
        let due = self.now + 500;
        if again {
            let row = self.live.get_mut(&flight.id).unwrap();
            *row = (row.0 + 1, due);
        } else {
            self.live.remove(&flight.id);
        }
        let observed = Observed {
            outcome,
            started_at: at(flight.started),
            took: Duration::from_millis(self.now - flight.started),
            timed_out: false,
            retry_after: asks.then(|| Duration::from_millis(retry_after)),
            exhausted: None,
            probe: flight.probe,
            notice: false,
        };
        self.tell(Input::Recorded(vec![Recorded {
            owner: self.owner(),
            endpoint: ENDPOINT,
            delivery: flight.id,
            next_due: again.then(|| at(due)),
            observed: Some(observed),
            dead: outcome == Outcome::Permanent,
        }]));
    }

    /// What is on the wire is delivered and recorded, then the slot goes.
    fn hand_over(&mut self) {
        self.tell(Input::Release { count: 1 });
        for flight in std::mem::take(&mut self.flights) {
            self.live.remove(&flight.id);
            self.attempts.push((Outcome::Delivered, flight.started));
            self.reference.recorded_late();
            let owner = self.owner();
            self.tell(Input::Recorded(vec![Recorded {
                owner,
                endpoint: ENDPOINT,
                delivery: flight.id,
                next_due: None,
                observed: None,
                dead: false,
            }]));
        }
        let leaving = self.settle();
        let Some(leaving) = leaving.into_iter().next() else {
            self.problem = Some("a slot with nothing on the wire is not handed over".to_owned());
            return;
        };
        if let Some(endpoint) = leaving.endpoints.first() {
            self.runtime.bucket = endpoint.bucket;
            self.runtime.parked_until = endpoint.parked_until;
        }
        let now = self.now;
        self.reference.taken_over(false, now);
        self.take(true);
    }

    fn take(&mut self, clean: bool) {
        self.scheduler = scheduler();
        self.life += 1;
        self.epoch += 1;
        let taken = Taken {
            slot: SLOT,
            how: TakeOver {
                epoch: Epoch(self.epoch),
                clean,
                emptied_at: self.emptied_at.map(at),
            },
        };
        self.tell(Input::Born(Incarnation(Uuid::from_u128(self.life))));
        self.renew();
        self.tell(Input::Acquired {
            slots: vec![taken],
            suspects: HashMap::new(),
        });
    }

    fn owner(&self) -> Ownership {
        Ownership {
            incarnation: Incarnation(Uuid::from_u128(self.life)),
            slot: SLOT,
            epoch: Epoch(self.epoch),
        }
    }

    fn times(&self) -> Now {
        Now {
            boot: BootTime(Duration::from_millis(self.now)),
            database: at(self.now),
        }
    }

    fn renew(&mut self) {
        let sent_at = self.times().boot;
        self.tell(Input::Renewed { sent_at });
    }

    fn tell(&mut self, input: Input) {
        let now = self.times();
        self.scheduler.handle(input, now);
    }

    /// Carries out what follows until nothing more does.
    fn settle(&mut self) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        for _ in 0..1_000 {
            let now = self.times();
            let effects = self.scheduler.effects(now);
            if effects.is_empty() {
                return leaving;
            }
            for effect in effects {
                match effect {
                    Effect::Scan(slots) => self.scan(slots),
                    Effect::Load(requests) => self.load(&requests),
                    Effect::Send(job) => self.send(job.row.id, job.probe),
                    Effect::Release(slots) => leaving.extend(slots),
                    Effect::Change(change) => {
                        if let Some(runtime) = change.runtime {
                            self.runtime = Runtime {
                                bucket: self.runtime.bucket,
                                parked_until: self.runtime.parked_until,
                                ..runtime
                            };
                        }
                    }
                    Effect::Revive { owner, .. } => self.tell(Input::Revived {
                        slot: owner.slot,
                        epoch: owner.epoch,
                        endpoint: ENDPOINT,
                        deliveries: Some(vec![]),
                    }),
                    Effect::Expire { owner, .. } => self.tell(Input::Expired {
                        slot: owner.slot,
                        epoch: owner.epoch,
                        endpoint: ENDPOINT,
                        more: false,
                    }),
                    Effect::FindOutages { slots, .. } => self.tell(Input::Outages {
                        slots,
                        found: Some(vec![]),
                    }),
                    other => self.problem = Some(format!("unexpected: {other:?}")),
                }
            }
        }
        self.problem = Some("the scheduler does not come to rest".to_owned());
        leaving
    }

    fn send(&mut self, id: Uuid, probe: bool) {
        let (expected, problem) = self.reference.start(self.now, self.flights.len());
        self.problem = self.problem.take().or(problem);
        if probe != expected && self.problem.is_none() {
            self.problem = Some(format!("probe: {probe}, by the reference: {expected}"));
        }
        self.flights.push(Flight {
            id,
            started: self.now,
            probe,
        });
    }

    fn scan(&mut self, slots: Vec<(Slot, Epoch)>) {
        let due = self.live.values().filter(|(made, _)| *made > 0);
        let next_due = due.map(|(_, due)| at(*due)).min();
        let ready = self.live.values().any(|(made, _)| *made == 0);
        let awake = self.runtime.opened_at.is_some() || self.runtime.recovery.is_some();
        let found = Found {
            slot: SLOT,
            endpoint: ENDPOINT,
            tenant: TENANT,
            ready,
            next_due,
            lines: false,
            awake,
        };
        let something = ready || next_due.is_some() || awake;
        self.tell(Input::Scanned {
            slots,
            found: something.then_some(found).into_iter().collect(),
            took: Duration::ZERO,
        });
    }

    fn load(&mut self, requests: &[LoadRequest]) {
        let answers = requests
            .iter()
            .map(|request| self.answer(request))
            .collect();
        self.tell(Input::Loaded(answers));
    }

    fn answer(&self, request: &LoadRequest) -> LoadedEndpoint {
        let live = |id: &Uuid, made: u16| LiveRow {
            id: *id,
            event_id: *id,
            tenant: TENANT,
            attempts_made: made,
            attempts_charged: made,
            kind: Kind::Live,
            first_at: None,
            order: None,
            event: Some(Arc::new(EventData {
                event_type: "order.created".to_owned(),
                payload: Bytes::from_static(b"{}"),
                deliver_before: None,
            })),
        };
        let ready = |cursor: Uuid, limit: usize| -> Vec<LiveRow> {
            let rows = self
                .live
                .iter()
                .filter(|(id, (made, _))| *made == 0 && **id > cursor);
            rows.take(limit).map(|(id, _)| live(id, 0)).collect()
        };
        let mut retries: Vec<_> = self
            .live
            .iter()
            .filter(|(_, (made, _))| *made > 0)
            .collect();
        retries.sort_by_key(|(_, (_, due))| *due);
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            retries.into_iter().partition(|(_, (_, due))| *due <= now);
        let more_due = due.len() > request.retry_limit;
        let mut rows: Vec<_> = due
            .into_iter()
            .take(request.retry_limit)
            .map(|(id, (made, _))| live(id, *made))
            .collect();
        let fresh_rows = ready(request.cursor, request.ready_limit);
        let more_ready = request.ready_limit > 0 && fresh_rows.len() >= request.ready_limit;
        rows.extend(fresh_rows);
        let fresh = request
            .fresh
            .map_or(vec![], |(cursor, limit)| ready(cursor, limit));
        let next = later.first().map(|(_, (_, due))| at(*due));
        let attempts = self.attempts.iter().rev();
        let history = attempts.map(|(outcome, started)| (*outcome, at(*started)));
        LoadedEndpoint {
            slot: request.slot,
            epoch: request.epoch,
            endpoint: request.endpoint,
            rows,
            more_ready,
            more_fresh: request.fresh.is_some_and(|(_, limit)| fresh.len() >= limit),
            fresh,
            walked: None,
            retries_read: request.retry_limit > 0,
            next_due: if more_due { Some(at(now)) } else { next },
            config: request.config.then(|| Arc::new(self.config())),
            history: request.history.then(|| history.collect()),
        }
    }

    fn config(&self) -> EndpointConfig {
        let limit = self.limit.map(|(per_second, burst)| RateLimit {
            per_second: f64::from(per_second),
            burst,
        });
        EndpointConfig {
            key: ENDPOINT,
            id: EndpointId(Uuid::nil()),
            version: 1,
            state: EndpointState::Enabled,
            settings: EndpointSettings {
                max_in_flight: u16::try_from(CAP).unwrap(),
                rate_limit: limit,
                breaker: BreakerSettings {
                    failures: u16::try_from(FAILURES).unwrap(),
                    cooldown_seconds: u32::try_from(COOLDOWN / 1_000).unwrap(),
                    max_cooldown_seconds: u32::try_from(MAX_COOLDOWN / 1_000).unwrap(),
                },
                ..EndpointSettings::default()
            },
            ordered: false,
            runtime: self.runtime.clone(),
            locked: false,
            target: Target {
                url: None,
                headers: http::HeaderMap::new(),
                secrets: Vec::new(),
            },
        }
    }
}

fn scheduler() -> Scheduler {
    Scheduler::new(SchedulerSettings {
        max_in_flight: 100,
        max_loaded: 1_000,
        max_loaded_bytes: 1 << 20,
        lease_ttl: Duration::from_secs(30),
        lease_margin: Duration::from_secs(2),
    })
}
