//! The rules of the scheduler, one by one. How they hold together is explored by `tests/model`.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks at one kind of effect"
)]

use std::sync::Arc;

use bytes::Bytes;
use shared::domain::attempt::Outcome;
use shared::domain::delivery::{CloseReason, DeadLetterClass, Kind};
use shared::domain::endpoint::{EndpointSettings, EndpointState};
use shared::ids::{EndpointId, Epoch, lower_bound};
use shared::policy::decide::Decision;
use time::macros::datetime;

use super::*;
use crate::admission::TakeOver;
use crate::endpoint_config::{EndpointConfig, Target};
use crate::job::EventData;
use shared::store::endpoint_runtime::Runtime;

pub(super) const SLOT: Slot = Slot(3);
pub(super) const EPOCH: Epoch = Epoch(7);
pub(super) const ENDPOINT: EndpointKey = EndpointKey(11);
pub(super) const TENANT: TenantKey = TenantKey(1);
const LIMIT: u16 = 2;
const NOTHING: [Uuid; 0] = [];
pub(super) const START: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);

/// A scheduler that owns [`SLOT`], and the clocks.
pub(super) struct Bench {
    pub(super) scheduler: Scheduler,
    passed: Duration,
    life: Incarnation,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with_permits(100)
    }

    pub(super) fn with_permits(max_in_flight: usize) -> Self {
        let settings = SchedulerSettings {
            max_in_flight,
            max_loaded: 1_000,
            max_loaded_bytes: 1 << 20,
            lease_ttl: Duration::from_secs(10),
            lease_margin: Duration::from_secs(2),
        };
        let life = Incarnation(Uuid::from_u128(1));
        let mut bench = Self {
            scheduler: Scheduler::new(settings),
            passed: Duration::from_secs(100),
            life,
        };
        bench.tell(Input::Born(life));
        bench.renew();
        bench.take(SLOT, EPOCH, &[]);
        bench
    }

    pub(super) fn now(&self) -> Now {
        Now {
            boot: BootTime(self.passed),
            database: START + self.passed,
        }
    }

    pub(super) fn wait(&mut self, length: Duration) {
        self.passed += length;
    }

    pub(super) fn renew(&mut self) {
        let sent_at = self.now().boot;
        self.tell(Input::Renewed { sent_at });
    }

    pub(super) fn take(&mut self, slot: Slot, epoch: Epoch, suspects: &[(Uuid, u16)]) {
        self.tell(Input::Acquired {
            slots: vec![Taken {
                slot,
                how: TakeOver {
                    epoch,
                    clean: true,
                    emptied_at: None,
                },
            }],
            suspects: suspects.iter().copied().collect(),
        });
    }

    /// Tells without asking what follows.
    pub(super) fn tell(&mut self, input: Input) {
        let now = self.now();
        self.scheduler.handle(input, now);
    }

    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let now = self.now();
        self.scheduler.effects(now)
    }

    /// The load that is asked for now.
    pub(super) fn asked(&mut self) -> LoadRequest {
        let effects = self.effects();
        let loads = effects.into_iter().filter_map(|effect| match effect {
            Effect::Load(requests) => Some(requests),
            _ => None,
        });
        let mut requests: Vec<LoadRequest> = loads.flatten().collect();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    /// Hints, and answers the load that follows: these rows, of an endpoint in this state.
    pub(super) fn load(&mut self, rows: Vec<LiveRow>) -> Vec<Effect> {
        self.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
        let request = self.asked();
        self.answer(&request, rows, EndpointState::Enabled);
        self.effects()
    }

    pub(super) fn answer(
        &mut self,
        request: &LoadRequest,
        rows: Vec<LiveRow>,
        state: EndpointState,
    ) {
        let config = request
            .config
            .then(|| Arc::new(config(request.endpoint, state)));
        self.tell(Input::Loaded(vec![LoadedEndpoint {
            slot: request.slot,
            epoch: request.epoch,
            endpoint: request.endpoint,
            rows,
            more_ready: false,
            fresh: Vec::new(),
            more_fresh: false,
            walked: None,
            retries_read: request.retry_limit > 0,
            next_due: None,
            config,
            history: request.history.then(Vec::new),
        }]));
    }

    pub(super) fn scan_finds(&mut self, ready: bool, next_due: Option<OffsetDateTime>) {
        let found = Found {
            slot: SLOT,
            endpoint: ENDPOINT,
            tenant: TENANT,
            ready,
            next_due,
            awake: false,
            lines: false,
        };
        self.tell(Input::Scanned {
            slots: vec![(SLOT, EPOCH)],
            found: vec![found],
            took: Duration::ZERO,
        });
    }

    pub(super) fn owner(&self) -> Ownership {
        Ownership {
            incarnation: self.life,
            slot: SLOT,
            epoch: EPOCH,
        }
    }

    pub(super) fn record(&mut self, delivery: Uuid, next_due: Option<OffsetDateTime>) {
        let owner = self.owner();
        self.tell(Input::Recorded(vec![Recorded {
            owner,
            endpoint: ENDPOINT,
            delivery,
            next_due,
            observed: None,
            dead: false,
        }]));
    }
}

pub(super) fn config(key: EndpointKey, state: EndpointState) -> EndpointConfig {
    EndpointConfig {
        key,
        id: EndpointId(Uuid::nil()),
        version: 1,
        state,
        settings: EndpointSettings {
            max_in_flight: LIMIT,
            ..EndpointSettings::default()
        },
        ordered: false,
        runtime: Runtime::default(),
        locked: false,
        target: Target::none(),
    }
}

/// A delivery made at this second.
pub(super) fn id(second: u64) -> Uuid {
    let made = lower_bound(START + Duration::from_secs(second));
    Uuid::from_u128(made.as_u128() | 0x7 << 76 | 0x2 << 62)
}

pub(super) fn row(id: Uuid) -> LiveRow {
    LiveRow {
        id,
        event_id: id,
        tenant: TENANT,
        attempts_made: 0,
        attempts_charged: 0,
        kind: Kind::Live,
        due_at: None,
        first_at: None,
        order: None,
        event: Some(Arc::new(EventData {
            event_type: "order.created".to_owned(),
            payload: Bytes::from_static(b"{}"),
            deliver_before: None,
            trace: None,
        })),
    }
}

pub(super) fn failed(id: Uuid) -> LiveRow {
    LiveRow {
        attempts_made: 1,
        attempts_charged: 1,
        ..row(id)
    }
}

pub(super) fn sent(effects: &[Effect]) -> Vec<Uuid> {
    let jobs = effects.iter().filter_map(|effect| match effect {
        Effect::Send(job) => Some(job.row.id),
        _ => None,
    });
    jobs.collect()
}

fn closings(effects: &[Effect]) -> Vec<&[Uuid]> {
    let closings = effects.iter().filter_map(|effect| match effect {
        Effect::Chore(Chore::Close(close)) => Some(close.except.as_slice()),
        _ => None,
    });
    closings.collect()
}

fn released(effects: &[Effect]) -> Vec<(Slot, Epoch)> {
    let releases = effects.iter().filter_map(|effect| match effect {
        Effect::Release(slots) => Some(slots),
        _ => None,
    });
    releases
        .flatten()
        .map(|leaving| (leaving.slot, leaving.epoch))
        .collect()
}

// ## Loads, tombstones and the cursor

#[test]
fn a_row_that_is_recorded_during_a_load_is_not_sent_again_by_it() {
    let mut bench = Bench::new();
    assert_eq!(sent(&bench.load(vec![row(id(1))])), [id(1)]);

    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let older = bench.asked();
    bench.record(id(1), None);
    bench.answer(&older, vec![row(id(1)), row(id(2))], EndpointState::Enabled);

    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn a_retry_that_is_due_while_a_load_hides_it_is_loaded_by_the_next() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(1))]);
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let older = bench.asked();

    let due = bench.now().database;
    bench.record(id(1), Some(due));
    bench.answer(&older, vec![], EndpointState::Enabled);
    let next = bench.asked();
    bench.answer(&next, vec![failed(id(1))], EndpointState::Enabled);

    assert!(next.retry_limit > 0, "{next:?}");
    assert_eq!(sent(&bench.effects()), [id(1)]);
}

#[test]
fn a_known_row_is_not_taken_in_twice_however_it_is_found() {
    let mut bench = Bench::new();
    assert_eq!(sent(&bench.load(vec![row(id(1))])), [id(1)]);

    let again = bench.load(vec![row(id(1))]);
    bench.scan_finds(true, None);
    let scanned = bench.asked();
    bench.answer(&scanned, vec![row(id(1))], EndpointState::Enabled);

    assert_eq!(sent(&again), NOTHING);
    assert_eq!(sent(&bench.effects()), NOTHING);
}

#[test]
fn a_load_looks_back_a_little_and_after_a_scan_to_the_beginning() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(60))]);

    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let hinted = bench.asked();
    bench.answer(&hinted, vec![], EndpointState::Enabled);
    bench.scan_finds(true, None);
    let scanned = bench.asked();

    let back = id(60).as_u128() - hinted.cursor.as_u128();
    assert_eq!(back >> 80, endpoint::CURSOR_TRAIL_MS);
    assert_eq!(scanned.cursor, Uuid::nil());
}

#[test]
fn a_scan_that_comes_during_a_load_is_not_forgotten_when_the_load_ends() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(60))]);
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let older = bench.asked();

    bench.scan_finds(true, None);
    bench.answer(&older, vec![row(id(61))], EndpointState::Enabled);
    let next = bench.asked();

    assert_eq!(next.cursor, Uuid::nil());
}

#[test]
fn what_was_loaded_under_an_earlier_epoch_is_not_taken_in() {
    let mut bench = Bench::new();
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let older = bench.asked();

    bench.tell(Input::Released(vec![(SLOT, EPOCH)]));
    bench.take(SLOT, Epoch(EPOCH.0 + 2), &[]);
    bench.answer(&older, vec![row(id(1))], EndpointState::Enabled);

    assert_eq!(sent(&bench.effects()), NOTHING);
}

#[test]
fn a_load_that_failed_is_made_again_after_a_pause() {
    let mut bench = Bench::new();
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let request = bench.asked();
    bench.tell(Input::LoadFailed(vec![request]));
    let at_once = bench.effects();

    bench.wait(Duration::from_millis(501));
    bench.tell(Input::Tick);
    let request = bench.asked();

    assert!(
        !at_once
            .iter()
            .any(|effect| matches!(effect, Effect::Load(_)))
    );
    assert_eq!((request.endpoint, request.config), (ENDPOINT, true));
}

#[test]
fn nothing_waits_in_memory_for_a_configuration_that_changed() {
    let mut bench = Bench::with_permits(1);
    let loaded = bench.load(vec![row(id(1)), row(id(2)), row(id(3))]);
    bench.tell(Input::Reload {
        slot: SLOT,
        endpoint: ENDPOINT,
    });
    let request = bench.asked();
    assert_eq!(bench.scheduler.loaded_rows, 0);
    bench.record(id(1), None);
    let stale = bench.effects();
    bench.answer(
        &request,
        vec![row(id(2)), row(id(3))],
        EndpointState::Enabled,
    );

    assert_eq!((sent(&loaded), sent(&stale)), (vec![id(1)], vec![]));
    assert!(request.config && request.cursor.is_nil(), "{request:?}");
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

// ## Slots

#[test]
fn idle_slots_leave_first_and_busy_ones_when_their_requests_are_recorded() {
    let mut bench = Bench::new();
    bench.take(Slot(4), EPOCH, &[]);
    bench.load(vec![row(id(1)), row(id(2)), row(id(3))]);

    bench.tell(Input::Release { count: 1 });
    let idle = bench.effects();
    bench.tell(Input::Released(released(&idle)));
    bench.tell(Input::Release { count: 1 });
    let busy = bench.effects();
    bench.record(id(1), None);
    bench.record(id(2), None);
    let ended = bench.effects();
    bench.tell(Input::Released(released(&ended)));

    assert_eq!(released(&idle), [(Slot(4), EPOCH)]);
    assert_eq!(released(&busy), []);
    assert_eq!(
        (sent(&ended), released(&ended)),
        (vec![], vec![(SLOT, EPOCH)])
    );
    assert_eq!((bench.scheduler.owned(), bench.scheduler.sent()), (0, 0));
}

#[test]
fn a_slot_on_its_way_out_takes_no_new_work() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(1))]);
    bench.tell(Input::Release { count: 1 });

    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    bench.scan_finds(true, None);

    let effects = bench.effects();
    assert!(effects.is_empty(), "{effects:?}");
}

#[test]
fn slots_that_come_in_after_the_drain_began_leave_at_once() {
    let mut bench = Bench::new();
    bench.tell(Input::Drain);
    let first = bench.effects();
    bench.tell(Input::Released(released(&first)));

    bench.take(Slot(9), EPOCH, &[]);

    assert_eq!(released(&first), [(SLOT, EPOCH)]);
    assert_eq!(released(&bench.effects()), [(Slot(9), EPOCH)]);
}

#[test]
fn the_hand_over_of_an_earlier_epoch_does_not_take_a_slot_away() {
    let mut bench = Bench::new();

    bench.tell(Input::Released(vec![(SLOT, Epoch(EPOCH.0 - 1))]));

    assert_eq!(bench.scheduler.owned(), 1);
}

#[test]
fn a_lost_slot_is_forgotten_with_all_that_was_loaded_of_it() {
    let mut bench = Bench::with_permits(1);
    bench.load(vec![row(id(1)), row(id(2))]);

    bench.tell(Input::Released(vec![(SLOT, EPOCH)]));
    bench.record(id(1), None);

    assert_eq!(sent(&bench.effects()), NOTHING);
    assert_eq!(bench.scheduler.loaded_rows, 0);
}

// ## Permits and the lease

#[test]
fn an_endpoint_has_its_limit_on_the_wire_until_an_outcome_is_recorded() {
    let mut bench = Bench::new();
    let first = bench.load((1..=4).map(|second| row(id(second))).collect());
    let meanwhile = bench.effects();
    bench.record(id(1), None);
    let after = bench.effects();

    assert_eq!(sent(&first), [id(1), id(2)]);
    assert_eq!((sent(&meanwhile), sent(&after)), (vec![], vec![id(3)]));
    assert_eq!(bench.scheduler.sent(), 2);
}

#[test]
fn a_worker_has_its_permits_and_no_more() {
    let mut bench = Bench::with_permits(1);

    let first = bench.load(vec![row(id(1)), row(id(2))]);
    bench.record(id(1), None);

    assert_eq!(sent(&first), [id(1)]);
    assert_eq!(sent(&bench.effects()), [id(2)]);
}

#[test]
fn nothing_starts_in_the_last_two_seconds_of_a_lease_or_while_recording_lags() {
    let mut bench = Bench::new();
    bench.wait(Duration::from_secs(8));
    let late = bench.load(vec![row(id(1))]);
    bench.tell(Input::RecordingBehind(true));
    bench.renew();
    let behind = bench.effects();
    bench.tell(Input::RecordingBehind(false));

    assert_eq!((sent(&late), sent(&behind)), (vec![], vec![]));
    assert_eq!(sent(&bench.effects()), [id(1)]);
}

#[test]
fn a_request_of_an_earlier_life_holds_its_permit_until_it_is_recorded() {
    let mut bench = Bench::with_permits(1);
    bench.load(vec![row(id(1))]);
    let before = bench.owner();

    bench.tell(Input::LeaseLost);
    bench.life = Incarnation(Uuid::from_u128(2));
    bench.tell(Input::Born(bench.life));
    bench.renew();
    bench.take(SLOT, EPOCH, &[]);
    let again = bench.load(vec![row(id(1)), row(id(2))]);
    let both = bench.scheduler.sent();
    bench.tell(Input::Recorded(vec![Recorded {
        owner: before,
        endpoint: ENDPOINT,
        delivery: id(1),
        next_due: None,
        observed: None,
        dead: false,
    }]));

    assert_eq!((sent(&again), both), (vec![], 1));
    assert_eq!(
        (sent(&bench.effects()), bench.scheduler.sent()),
        (vec![id(1)], 1)
    );
}

#[test]
fn tenants_and_then_endpoints_take_turns() {
    let mut bench = Bench::with_permits(1);
    let endpoints = [(1, 1), (2, 1), (3, 2)];
    let mut requests = Vec::new();
    for (key, _) in endpoints {
        bench.tell(Input::Hint(vec![(SLOT, EndpointKey(key))]));
    }
    for effect in bench.effects() {
        if let Effect::Load(batch) = effect {
            requests.extend(batch);
        }
    }
    // The first takes the one permit: the others queue up behind it.
    for (request, (key, tenant)) in requests.iter().zip(endpoints) {
        let rows = (1..=3).map(|second| LiveRow {
            tenant: TenantKey(tenant),
            ..row(id(second + 10 * u64::try_from(key).unwrap()))
        });
        bench.answer(request, rows.collect(), EndpointState::Enabled);
    }

    let mut order = Vec::new();
    for _ in 0..6 {
        for effect in bench.effects() {
            if let Effect::Send(job) = effect {
                order.push(job.endpoint.key.0);
                let (owner, endpoint) = (job.owner, job.endpoint.key);
                bench.tell(Input::Recorded(vec![Recorded {
                    owner,
                    endpoint,
                    delivery: job.row.id,
                    next_due: None,
                    observed: None,
                    dead: false,
                }]));
            }
        }
    }

    assert_eq!(order, [1, 3, 2, 3, 1, 3]);
}

// ## Ends without a request

#[test]
fn what_is_too_old_becomes_a_dead_letter_without_a_request() {
    let mut bench = Bench::new();
    let age = EndpointSettings::default().max_age();
    let mut gone_by = row(id(100));
    let event = EventData {
        event_type: "order.created".to_owned(),
        payload: Bytes::new(),
        deliver_before: Some(bench.now().database),
        trace: None,
    };
    gone_by.event = Some(Arc::new(event));
    let old = Uuid::from_u128(lower_bound(START + bench.passed - age).as_u128() - (1 << 80));

    let effects = bench.load(vec![row(old), gone_by]);

    let settled = effects.iter().filter_map(|effect| match effect {
        Effect::Settle(record) => Some((record.outcome, record.decision, record.attempt.is_none())),
        _ => None,
    });
    let expired = (
        Outcome::Expired,
        Decision::DeadLetter(DeadLetterClass::Expired),
        true,
    );
    assert_eq!(settled.collect::<Vec<_>>(), [expired, expired]);
    assert_eq!(sent(&effects), NOTHING);
}

#[test]
fn a_delivery_without_its_event_is_our_fault() {
    let mut bench = Bench::new();
    let lost = LiveRow {
        event: None,
        ..row(id(1))
    };

    let effects = bench.load(vec![lost]);

    let is_internal = |effect: &Effect| matches!(effect, Effect::Settle(record) if record.outcome == Outcome::Internal);
    assert!(effects.iter().any(is_internal), "{effects:?}");
}

#[test]
fn what_was_expunged_is_closed_without_a_request_and_is_no_probe() {
    let mut bench = Bench::new();
    let mut expunged = row(id(1));
    let event = EventData {
        event_type: "order.created".to_owned(),
        payload: Bytes::new(),
        deliver_before: None,
        trace: None,
    };
    expunged.event = Some(Arc::new(event));

    let effects = bench.load(vec![expunged, row(id(2))]);

    let settled = effects.iter().filter_map(|effect| match effect {
        Effect::Settle(record) => Some((
            record.delivery,
            record.decision,
            record.attempt.is_none(),
            record.observed,
        )),
        _ => None,
    });
    let closed = Decision::Close(CloseReason::Expunged);
    assert_eq!(settled.collect::<Vec<_>>(), [(id(1), closed, true, None)]);
    assert_eq!(sent(&effects), [id(2)]);
}

// ## Closing

#[test]
fn what_waits_for_a_disabled_endpoint_is_closed_but_for_what_is_on_the_wire() {
    let mut bench = Bench::with_permits(1);
    bench.load(vec![row(id(1)), row(id(2))]);
    bench.tell(Input::Reload {
        slot: SLOT,
        endpoint: ENDPOINT,
    });
    let request = bench.asked();

    bench.answer(
        &request,
        vec![row(id(1)), row(id(2))],
        EndpointState::Disabled,
    );
    let first = bench.effects();
    let closed = |more| Input::Closed {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        more,
    };
    bench.tell(closed(true));
    let second = bench.effects();
    bench.tell(closed(false));
    bench.record(id(1), None);
    let third = bench.effects();

    assert_eq!(closings(&first), [&[id(1)]]);
    assert_eq!(closings(&second), [&[id(1)]]);
    assert!(closings(&third).is_empty() && sent(&third).is_empty());
}

#[test]
fn rows_that_a_scan_finds_of_a_disabled_endpoint_are_not_closed_before_it_is_read_again() {
    let mut bench = Bench::new();
    bench.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    let request = bench.asked();
    bench.answer(&request, vec![], EndpointState::Disabled);
    bench.effects();
    bench.tell(Input::Closed {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        more: false,
    });

    bench.scan_finds(true, None);
    let request = bench.asked();
    bench.answer(&request, vec![row(id(1))], EndpointState::Enabled);
    let effects = bench.effects();

    assert!(request.config);
    assert_eq!((sent(&effects), closings(&effects).len()), (vec![id(1)], 0));
}

// ## Suspects

#[test]
fn suspects_go_one_at_a_time_beside_the_others() {
    let mut bench = Bench::new();
    bench.take(SLOT, EPOCH, &[(id(1), 1), (id(2), 1)]);

    let first = bench.load(vec![row(id(1)), row(id(2)), row(id(3))]);
    bench.record(id(3), None);
    let meanwhile = bench.effects();
    bench.record(id(1), None);
    let second = bench.effects();

    assert_eq!(sent(&first), [id(1), id(3)]);
    assert_eq!((sent(&meanwhile), sent(&second)), (vec![], vec![id(2)]));
    let is_suspect = |effect: &Effect| matches!(effect, Effect::Send(job) if job.suspect);
    assert_eq!(first.iter().filter(|effect| is_suspect(effect)).count(), 1);
}

#[test]
fn a_suspect_keeps_to_the_limit_of_its_endpoint_and_is_not_lost_by_waiting() {
    let mut bench = Bench::new();
    bench.load(vec![row(id(1)), row(id(2))]);
    bench.scheduler.suspects.insert(id(3), 1);

    let full = bench.load(vec![row(id(3))]);
    bench.record(id(1), None);

    assert_eq!(sent(&full), NOTHING);
    assert_eq!(sent(&bench.effects()), [id(3)]);
}

#[test]
fn what_becomes_suspect_while_it_waits_goes_alone_as_well() {
    let mut bench = Bench::with_permits(2);
    bench.load(vec![row(id(1)), row(id(2)), row(id(3))]);
    bench.take(Slot(9), EPOCH, &[(id(2), 1), (id(3), 1)]);
    let request = bench.asked();
    bench.answer(
        &request,
        vec![row(id(2)), row(id(3))],
        EndpointState::Enabled,
    );

    bench.record(id(1), None);
    let first = bench.effects();
    bench.record(id(2), None);

    assert_eq!(sent(&first), [id(2)]);
    assert_eq!(sent(&bench.effects()), [id(3)]);
}

#[test]
fn what_was_on_the_wire_in_three_workers_that_died_is_a_dead_letter() {
    let mut bench = Bench::new();
    bench.take(SLOT, EPOCH, &[(id(1), 2), (id(2), 3)]);

    let effects = bench.load(vec![row(id(2)), row(id(1))]);
    bench.record(id(2), None);
    let after = bench.effects();

    let settled = effects.iter().filter_map(|effect| match effect {
        Effect::Settle(record) => Some((record.delivery, record.decision)),
        _ => None,
    });
    let internal = Decision::DeadLetter(DeadLetterClass::Internal);
    assert_eq!(settled.collect::<Vec<_>>(), [(id(2), internal)]);
    assert_eq!((sent(&effects), sent(&after)), (vec![], vec![id(1)]));
}

#[test]
fn a_suspect_that_was_not_sent_after_all_is_found_again() {
    let mut bench = Bench::new();
    bench.take(SLOT, EPOCH, &[(id(1), 1)]);
    bench.load(vec![row(id(1))]);

    let owner = bench.owner();
    bench.tell(Input::NotSent {
        owner,
        endpoint: ENDPOINT,
        delivery: id(1),
    });
    let permits = bench.scheduler.sent();
    let request = bench.asked();
    bench.answer(&request, vec![row(id(1))], EndpointState::Enabled);

    assert_eq!(permits, 0);
    assert_eq!(sent(&bench.effects()), [id(1)]);
}
