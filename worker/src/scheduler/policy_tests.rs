//! Delivery policy as the scheduler carries it out: breaker and probe, buckets, shares, recovery.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks at one kind of effect"
)]

use std::sync::Arc;

use bytes::Bytes;
use shared::domain::attempt::Outcome;
use shared::domain::endpoint::{EndpointSettings, EndpointState, RateLimit};
use shared::domain::notice::NoticeKind;
use shared::ids::{Epoch, lower_bound};

use super::share::PERMIT_BYTES;
use super::tests::{Bench, ENDPOINT, EPOCH, SLOT, START, TENANT, config, id, row, sent};
use super::*;
use crate::admission::{Gate, TakeOver};
use crate::endpoint_config::EndpointConfig;
use crate::job::{EventData, Observed};

const COOLDOWN: Duration = Duration::from_secs(300);

impl Bench {
    /// Answers a load with these rows and this configuration, if it was asked for.
    fn answer_as(&mut self, request: &LoadRequest, rows: Vec<LiveRow>, config: EndpointConfig) {
        self.answer_more(request, rows, config, false);
    }

    fn answer_more(
        &mut self,
        request: &LoadRequest,
        rows: Vec<LiveRow>,
        config: EndpointConfig,
        more: bool,
    ) {
        self.tell(Input::Loaded(vec![LoadedEndpoint {
            slot: request.slot,
            epoch: request.epoch,
            endpoint: request.endpoint,
            rows,
            more_ready: more,
            fresh: Vec::new(),
            more_fresh: false,
            walked: None,
            retries_read: request.retry_limit > 0,
            next_due: None,
            config: request.config.then(|| Arc::new(config)),
            history: request.history.then(Vec::new),
        }]));
    }

    fn hint(&mut self) {
        self.tell(Input::Hint(vec![(SLOT, ENDPOINT)]));
    }

    /// The record of a request that started when it took this long, seen from now.
    fn ended(&mut self, delivery: Uuid, outcome: Outcome, took: Duration) {
        self.ended_as(delivery, outcome, took, |observed| observed);
    }

    fn ended_as(
        &mut self,
        delivery: Uuid,
        outcome: Outcome,
        took: Duration,
        change: impl FnOnce(Observed) -> Observed,
    ) {
        let probe = self
            .scheduler
            .in_flight
            .iter()
            .any(|((_, id), flight)| *id == delivery && flight.probe);
        let observed = change(Observed {
            outcome,
            started_at: self.now().database - took,
            took,
            timed_out: false,
            retry_after: None,
            exhausted: None,
            probe,
            notice: false,
        });
        let owner = self.owner();
        self.tell(Input::Recorded(vec![Recorded {
            owner,
            endpoint: ENDPOINT,
            delivery,
            next_due: None,
            observed: Some(observed),
            dead: observed.exhausted.is_some(),
        }]));
    }

    /// Fails one delivery after the other until `count` have failed, half a second apart.
    fn fail(&mut self, count: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for number in 0..count {
            self.wait(Duration::from_millis(500));
            self.renew();
            self.hint();
            let request = self.asked();
            self.answer_as(&request, vec![row(id(number))], with(|_| {}));
            assert_eq!(sent(&self.effects()), [id(number)]);
            self.ended(id(number), Outcome::Transient, Duration::from_millis(5));
        }
        effects.extend(self.effects());
        effects
    }

    fn open(&mut self) {
        self.fail(10);
        assert!(self.is_open());
    }

    fn is_open(&self) -> bool {
        self.scheduler.endpoints.get(&ENDPOINT).unwrap().is_open()
    }

    fn pass(&mut self, length: Duration) {
        self.wait(length);
        self.renew();
        self.tell(Input::Tick);
    }
}

fn with(change: impl FnOnce(&mut EndpointSettings)) -> EndpointConfig {
    let mut config = config(ENDPOINT, EndpointState::Enabled);
    change(&mut config.settings);
    config
}

fn limited(per_second: f64, burst: u32) -> EndpointConfig {
    with(|settings| {
        settings.rate_limit = Some(RateLimit { per_second, burst });
        settings.max_in_flight = 100;
    })
}

fn loads(effects: &[Effect]) -> Vec<LoadRequest> {
    let loads = effects.iter().filter_map(|effect| match effect {
        Effect::Load(requests) => Some(requests.clone()),
        _ => None,
    });
    loads.flatten().collect()
}

fn told(effects: &[Effect]) -> Vec<NoticeKind> {
    let changes = effects.iter().filter_map(|effect| match effect {
        Effect::Change(change) => Some(&change.notices),
        _ => None,
    });
    changes.flatten().map(|(kind, _)| *kind).collect()
}

fn revivals(effects: &[Effect]) -> Vec<usize> {
    let revivals = effects.iter().filter_map(|effect| match effect {
        Effect::Chore(Chore::Revive(revive)) => Some(revive.count),
        _ => None,
    });
    revivals.collect()
}

// ## The breaker

#[test]
fn ten_failures_open_the_breaker_and_nothing_is_loaded_or_sent_until_the_probe() {
    let mut bench = Bench::new();
    let effects = bench.fail(10);

    bench.hint();
    bench.scan_finds(true, None);
    bench.pass(COOLDOWN - Duration::from_secs(1));
    let waiting = bench.effects();

    assert_eq!(told(&effects), [NoticeKind::EndpointOpened]);
    assert_eq!((sent(&waiting), loads(&waiting).len()), (vec![], 0));
}

#[test]
fn ten_failures_at_once_are_one_event_and_open_nothing() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let rows: Vec<_> = (0..10).map(|number| row(id(number))).collect();
    bench.answer_as(&request, rows, with(|settings| settings.max_in_flight = 10));
    assert_eq!(sent(&bench.effects()).len(), 10);

    for number in 0..10 {
        bench.ended(id(number), Outcome::Transient, Duration::from_millis(50));
    }

    assert!(!bench.is_open());
}

/// B1
#[test]
fn when_the_cooldown_is_over_one_delivery_is_the_probe_and_the_others_wait_for_it() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();

    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_more(&request, vec![row(id(50))], with(|_| {}), true);
    let probes = bench.effects();
    bench.hint();
    bench.scan_finds(true, None);
    bench.pass(Duration::from_secs(5));
    let meanwhile = bench.effects();

    assert_eq!(request.ready_limit, 1);
    assert_eq!(sent(&probes), [id(50)]);
    assert_eq!((sent(&meanwhile), loads(&meanwhile).len()), (vec![], 0));
}

/// O1
#[test]
fn a_probe_keeps_to_the_endpoints_limit_on_requests_in_flight() {
    let one = |settings: &mut EndpointSettings| settings.max_in_flight = 1;
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(1))], with(one));
    assert_eq!(sent(&bench.effects()), [id(1)]);
    let mut enabled = with(one);
    enabled.version += 1;
    enabled.runtime.enabled_at = Some(bench.now().database);
    bench.tell(Input::Reload {
        slot: SLOT,
        endpoint: ENDPOINT,
    });
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(2))], enabled);
    let full = bench.effects();

    bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(2))], with(one));

    assert!(bench.is_open());
    assert_eq!((sent(&full), sent(&bench.effects())), (vec![], vec![id(2)]));
}

#[test]
fn a_probe_that_fails_doubles_the_cooldown() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    bench.effects();
    bench.ended(id(50), Outcome::Transient, Duration::from_secs(1));
    bench.effects();
    bench.hint();

    bench.pass(2 * COOLDOWN - Duration::from_secs(1));
    let early = bench.effects();
    bench.pass(Duration::from_secs(1));

    assert_eq!(loads(&early).len(), 0);
    assert_eq!(bench.asked().ready_limit, 1);
}

#[test]
fn a_probe_that_was_not_sent_is_made_again_at_once() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    assert_eq!(sent(&bench.effects()), [id(50)]);

    let owner = bench.owner();
    bench.tell(Input::NotSent {
        owner,
        endpoint: ENDPOINT,
        delivery: id(50),
    });
    let again = bench.asked();
    bench.answer_as(&again, vec![row(id(50))], with(|_| {}));

    assert_eq!(sent(&bench.effects()), [id(50)]);
}

#[test]
fn a_success_of_the_probe_closes_the_breaker_and_sending_ramps_up() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let many = |settings: &mut EndpointSettings| settings.max_in_flight = 10;
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(many));
    bench.effects();

    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));
    let closed = bench.effects();
    let request = loads(&closed).remove(0);
    let rows: Vec<_> = (100..110).map(|number| row(id(number))).collect();
    bench.answer_as(&request, rows, with(many));
    let first = sent(&bench.effects());
    // Level by level: the next one after some rounds of the one before.
    let mut most = 0;
    for number in 100..104 {
        bench.ended(id(number), Outcome::Delivered, Duration::from_millis(5));
        most = most.max(sent(&bench.effects()).len());
    }

    assert_eq!(told(&closed), [NoticeKind::EndpointClosed]);
    assert_eq!((first, most), (vec![id(100)], 2));
}

#[test]
fn a_ladder_that_is_exhausted_without_a_success_since_it_began_opens_the_breaker() {
    for (success_first, opens) in [(false, true), (true, false)] {
        let mut bench = Bench::new();
        bench.hint();
        let request = bench.asked();
        bench.answer_as(&request, vec![row(id(1)), row(id(2))], with(|_| {}));
        bench.effects();
        let began = bench.now().database - Duration::from_secs(60);
        if success_first {
            bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));
        }

        bench.ended_as(id(2), Outcome::Transient, Duration::from_millis(5), |it| {
            Observed {
                exhausted: Some(began),
                ..it
            }
        });
        // What was tried before this owner came is read first.
        let effects = bench.effects();
        if let Some(request) = loads(&effects).into_iter().find(|request| request.history) {
            bench.answer_as(&request, vec![], with(|_| {}));
        }

        assert_eq!(bench.is_open(), opens, "{success_first}");
    }
}

#[test]
fn what_was_tried_under_the_last_owner_counts() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(1)), row(id(2))], with(|_| {}));
    bench.effects();

    bench.ended(id(1), Outcome::Transient, Duration::from_millis(5));
    let request = loads(&bench.effects()).remove(0);
    assert!(request.history);
    let before = |seconds| bench.now().database - Duration::from_secs(seconds);
    let history = (1..=9).map(|second| (Outcome::Transient, before(10 * second)));
    let history = Some(history.collect());
    let mut loaded = vec![LoadedEndpoint {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        rows: vec![],
        more_ready: false,
        fresh: vec![],
        more_fresh: false,
        walked: None,
        retries_read: false,
        next_due: None,
        config: None,
        history,
    }];
    bench.tell(Input::Loaded(std::mem::take(&mut loaded)));
    bench.ended(id(2), Outcome::Transient, Duration::from_millis(5));

    assert!(bench.is_open());
}

// ## Buckets

/// R1
#[test]
fn an_endpoint_gets_its_burst_and_then_its_rate() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let rows: Vec<_> = (0..10).map(|number| row(id(number))).collect();
    bench.answer_as(&request, rows, limited(2.0, 3));
    // Full: nobody can have sent before.
    assert_eq!(sent(&bench.effects()).len(), 3);

    bench.pass(Duration::from_millis(499));
    let early = sent(&bench.effects());
    bench.pass(Duration::from_millis(1));
    let one = sent(&bench.effects());
    bench.pass(Duration::from_secs(1));

    assert_eq!((early.len(), one.len()), (0, 1));
    assert_eq!(sent(&bench.effects()).len(), 2);
}

#[test]
fn o1_replays_leave_half_of_a_bucket_to_what_comes_in_which_is_loaded_beside_them() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, (0..70).map(replay).collect(), limited(10.0, 4));
    assert_eq!(sent(&bench.effects()), [id(0), id(1)]);

    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(100))], limited(10.0, 4));
    let live = sent(&bench.effects());
    bench.pass(Duration::from_millis(199));
    let early = sent(&bench.effects());
    bench.pass(Duration::from_millis(1));

    assert_eq!((live, early), (vec![id(100)], vec![]));
    assert_eq!(sent(&bench.effects()), [id(2)], "three tokens");
}

#[test]
fn o1_r1_a_replay_of_an_endpoint_that_is_always_at_its_limit_gets_every_fifth_token() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let live = (0..30).map(|number| row(id(number)));
    let rows = live.chain((100..110).map(replay)).collect();
    bench.answer_as(&request, rows, limited(10.0, 4));
    let mut order = sent(&bench.effects());

    for _ in 0..16 {
        bench.pass(Duration::from_millis(100));
        order.extend(sent(&bench.effects()));
    }

    let places = order.iter().enumerate().filter(|(_, it)| **it >= id(100));
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    assert_eq!((order.len(), places), (20, vec![4, 9, 14, 19]));
}

/// R1
#[test]
fn after_a_crash_a_bucket_is_empty_as_of_the_take_over_and_handed_over_it_stands_where_it_stood() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let rows: Vec<_> = (0..10).map(|number| row(id(number))).collect();
    bench.answer_as(&request, rows.clone(), limited(1.0, 5));
    assert_eq!(sent(&bench.effects()).len(), 5);
    for number in 0..5 {
        bench.record(id(number), None);
    }
    bench.tell(Input::Drain);
    let handed_over = bench.effects().into_iter().find_map(|effect| match effect {
        Effect::Release(slots) => slots.into_iter().next(),
        _ => None,
    });
    let position = handed_over.unwrap().endpoints.first().unwrap().bucket;
    let empty = bench.now().database + Duration::from_secs(5);
    assert_eq!(position, Some((empty, 1)));

    let mut next = Bench::new();
    next.tell(Input::Released(vec![(SLOT, EPOCH)]));
    let emptied_at = Some(next.now().database);
    next.tell(Input::Acquired {
        slots: vec![Taken {
            slot: SLOT,
            how: TakeOver {
                epoch: EPOCH,
                clean: false,
                emptied_at,
            },
        }],
        suspects: HashMap::new(),
    });
    next.pass(Duration::from_secs(2));
    next.hint();
    let request = next.asked();
    next.answer_as(&request, rows, limited(1.0, 5));

    assert_eq!(sent(&next.effects()).len(), 2, "two seconds' worth");
}

/// R1
#[test]
fn what_was_counted_under_another_limit_gives_no_token() {
    let taken = TakeOver {
        epoch: EPOCH,
        clean: true,
        emptied_at: None,
    };
    // Handed over with twelve spent at 10/s, and first looked at after a change to 0.1/s.
    let mut slower = limited(0.1, 12);
    slower.version = 2;
    slower.runtime.bucket = Some((START + Duration::from_millis(1_200), 1));
    let gate = Gate::new(&slower, taken, None, START);
    // And the other way round: an old position does not block it for longer than an empty bucket.
    let mut faster = limited(10.0, 12);
    faster.version = 2;
    faster.runtime.bucket = Some((START + Duration::from_secs(120), 1));
    let other = Gate::new(&faster, taken, None, START);

    let admits = |gate: &Gate, config: &EndpointConfig, after| {
        gate.admit(config, 0, START + Duration::from_millis(after)) == Admission::Send
    };
    assert!(!admits(&gate, &slower, 9_999) && admits(&gate, &slower, 10_000));
    assert!(!admits(&other, &faster, 99) && admits(&other, &faster, 100));
}

#[test]
fn a_receiver_that_asks_to_be_left_alone_is() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let rows: Vec<_> = (0..10).map(|number| row(id(number))).collect();
    bench.answer_as(&request, rows, with(|settings| settings.max_in_flight = 1));
    bench.effects();
    bench.ended_as(id(0), Outcome::Throttled, Duration::from_millis(5), |it| {
        Observed {
            retry_after: Some(Duration::from_secs(60)),
            ..it
        }
    });

    bench.pass(Duration::from_secs(58));
    let early = bench.effects();
    bench.pass(Duration::from_secs(2));
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(1))], with(|_| {}));

    assert_eq!((sent(&early).len(), loads(&early).len()), (0, 0));
    assert_eq!(sent(&bench.effects()), [id(1)]);
}

// ## Shares

/// O1
#[test]
fn endpoints_that_hang_leave_half_of_the_permits_to_those_that_answer() {
    let mut bench = Bench::with_permits(16);
    let endpoint = |key: i64| EndpointKey(key);
    bench.hint();
    let request = bench.asked();
    let rows = vec![row(id(0)), row(id(1))];
    bench.answer_as(&request, rows, with(|_| {}));
    bench.effects();
    bench.ended(id(0), Outcome::Delivered, Duration::from_millis(5));
    bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));

    let hanging: Vec<_> = (100..120).map(|key| (SLOT, endpoint(key))).collect();
    bench.tell(Input::Hint(hanging));
    let requests = loads(&bench.effects());
    for (number, request) in (1_000..).step_by(10).zip(&requests) {
        let rows = (0..4).map(|more| row(id(number + more))).collect();
        let mut config = config(request.endpoint, EndpointState::Enabled);
        config.settings.max_in_flight = 4;
        bench.answer_as(request, rows, config);
    }
    let hanging = sent(&bench.effects()).len();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(2)), row(id(3))], with(|_| {}));
    let healthy = sent(&bench.effects());

    assert_eq!((hanging, healthy), (8, vec![id(2), id(3)]));
}

fn with_payload(bytes: usize, second: u64) -> LiveRow {
    LiveRow {
        event: Some(Arc::new(EventData {
            event_type: "report.ready".to_owned(),
            payload: Bytes::from(vec![b' '; bytes]),
            deliver_before: None,
            trace: None,
        })),
        ..row(id(second))
    }
}

/// O1, F36: also where none of them is in memory, so that others' rows do not come behind megabytes.
#[test]
fn of_large_payloads_few_are_loaded_at_a_time() {
    let large = |second| with_payload(2 * PERMIT_BYTES, second);
    let many = || with(|settings| settings.max_in_flight = 64);
    let mut bench = Bench::with_permits(64);
    bench.hint();
    let unknown = bench.asked();
    bench.answer_as(&unknown, vec![large(1)], many());
    bench.effects();
    bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));

    bench.hint();
    let known = bench.asked();
    assert!(unknown.ready_limit > 10, "{unknown:?}");
    assert_eq!(known.ready_limit, 2, "{known:?}");
}

/// O1, F36: large payloads take more permits, of their own endpoint and of the worker.
#[test]
fn what_is_on_the_wire_is_bounded_in_bytes_and_large_events_leave_small_ones_their_share() {
    let large = |second| with_payload(3 * PERMIT_BYTES + 1, second);
    let many = || with(|settings| settings.max_in_flight = 64);
    let mut bench = Bench::with_permits(64);
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(0))], many());
    bench.effects();
    bench.ended(id(0), Outcome::Delivered, Duration::from_millis(5));
    bench.tell(Input::Hint(vec![
        (SLOT, ENDPOINT),
        (SLOT, EndpointKey(100)),
    ]));
    let requests = loads(&bench.effects());
    for request in &requests {
        let rows = if request.endpoint == ENDPOINT {
            (1..10).map(large).collect()
        } else {
            (20..23).map(|second| row(id(second))).collect()
        };
        bench.answer_as(request, rows, many());
    }

    let sent = sent(&bench.effects());

    let of = |from, to| {
        sent.iter()
            .filter(|it| (id(from)..id(to)).contains(*it))
            .count()
    };
    // Four permits each: sixteen are a quarter of what the others leave.
    assert_eq!((of(1, 10), of(20, 23)), (4, 3));
    assert_eq!(bench.scheduler.permits_held, 4 * 4 + 3);
    bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));
    assert_eq!(bench.scheduler.permits_held, 3 * 4 + 3);
}

// ## Recovery

#[test]
fn a_probe_takes_a_dead_letter_when_nothing_is_pending() {
    let mut bench = Bench::new();
    bench.open();
    let opened = bench.effects();

    bench.pass(COOLDOWN);
    let due = bench.effects();
    bench.tell(Input::Revived {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        deliveries: Some(vec![id(70)]),
    });
    let request = bench.asked();
    bench.answer_as(&request, vec![replay(70)], with(|_| {}));

    assert_eq!((revivals(&opened), revivals(&due)), (vec![], vec![1]));
    assert_eq!(sent(&bench.effects()), [id(70)]);
}

fn replay(number: u64) -> LiveRow {
    LiveRow {
        kind: shared::domain::delivery::Kind::AutoReplay,
        ..row(id(number))
    }
}

#[test]
fn the_dead_letters_of_an_outage_are_made_live_after_the_ramp_until_there_are_none() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    bench.effects();
    // With a limit of two, one success is half of the ramp.
    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));
    let asked = bench.effects();
    for request in loads(&asked) {
        bench.answer_as(&request, vec![], with(|_| {}));
    }
    let mut first = asked;
    first.extend(bench.effects());
    let revived = |deliveries: Vec<Uuid>| Input::Revived {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        deliveries: Some(deliveries),
    };
    bench.tell(revived(vec![id(70)]));
    let mut second = bench.effects();
    for request in loads(&second) {
        bench.answer_as(&request, vec![replay(70)], with(|_| {}));
    }
    second.extend(bench.effects());
    bench.ended(id(70), Outcome::Delivered, Duration::from_millis(5));
    second.extend(bench.effects());
    bench.tell(revived(vec![]));
    let ended = bench.effects();

    assert_eq!((revivals(&first).len(), sent(&second)), (1, vec![id(70)]));
    assert_eq!(told(&ended), [NoticeKind::DeliveryRecovered]);
    assert_eq!(revivals(&bench.effects()), [0_usize; 0]);
}

#[test]
fn what_an_outage_left_is_replayed_when_the_first_probe_of_another_owner_succeeds() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let mut stored = with(|_| {});
    stored.runtime.opened_at = Some(bench.now().database - COOLDOWN);
    stored.runtime.next_probe_at = Some(bench.now().database);
    bench.answer_as(&request, vec![row(id(50))], stored);
    assert_eq!(sent(&bench.effects()), [id(50)]);

    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));
    let mut effects = bench.effects();
    for request in loads(&effects) {
        bench.answer_as(&request, vec![], with(|_| {}));
    }
    effects.extend(bench.effects());

    assert_eq!(revivals(&effects).len(), 1);
}

impl Bench {
    /// The breaker opens, its probe ends so, and nothing else is pending.
    fn probed(&mut self, outcome: Outcome, max_in_flight: u16) -> Vec<Effect> {
        let limit = |settings: &mut EndpointSettings| settings.max_in_flight = max_in_flight;
        self.open();
        self.tell(Input::Reload {
            slot: SLOT,
            endpoint: ENDPOINT,
        });
        let request = self.asked();
        self.answer_as(&request, vec![], with(limit));
        self.hint();
        self.pass(COOLDOWN);
        let request = self.asked();
        self.answer_as(&request, vec![row(id(50))], with(limit));
        self.effects();
        self.ended(id(50), outcome, Duration::from_millis(5));
        let mut effects = self.effects();
        for request in loads(&effects) {
            self.answer_as(&request, vec![], with(limit));
        }
        effects.extend(self.effects());
        effects
    }

    fn revived(&mut self, deliveries: Vec<Uuid>) {
        self.tell(Input::Revived {
            slot: SLOT,
            epoch: EPOCH,
            endpoint: ENDPOINT,
            deliveries: Some(deliveries),
        });
    }
}

#[test]
fn dead_letters_are_not_asked_for_again_while_the_last_of_them_wait() {
    let mut bench = Bench::new();
    let first = bench.probed(Outcome::Delivered, 2);
    bench.revived(vec![id(70)]);
    let request = bench.asked();
    bench.answer_as(&request, vec![replay(70)], with(|_| {}));
    let second = bench.effects();
    // The answer to what was asked when the first was live.
    bench.revived(vec![]);
    bench.pass(Duration::from_secs(1));
    let waiting = bench.effects();
    bench.ended(id(70), Outcome::Delivered, Duration::from_millis(5));
    let last = bench.effects();

    assert_eq!((revivals(&first).len(), sent(&second)), (1, vec![id(70)]));
    assert_eq!((revivals(&waiting).len(), revivals(&last).len()), (0, 1));
}

#[test]
fn a_recovery_does_not_wait_for_a_replay_that_was_cancelled() {
    let mut bench = Bench::new();
    bench.probed(Outcome::Delivered, 2);
    bench.revived(vec![id(70)]);
    let request = bench.asked();
    bench.revived(vec![]);
    bench.answer_as(&request, vec![], with(|_| {}));
    let asked = bench.effects();
    bench.revived(vec![]);

    assert_eq!(revivals(&asked).len(), 1);
    assert_eq!(told(&bench.effects()), [NoticeKind::DeliveryRecovered]);
}

#[test]
fn a_recovery_with_nothing_else_to_send_is_its_own_ramp_if_the_receiver_takes_events() {
    for (outcome, replays) in [(Outcome::Delivered, 1), (Outcome::Permanent, 0)] {
        let mut bench = Bench::new();

        let effects = bench.probed(outcome, 10);

        assert!(!bench.is_open());
        assert_eq!(revivals(&effects).len(), replays, "{outcome:?}");
    }
}

#[test]
fn a_breaker_that_opens_again_looks_for_dead_letters_to_probe_with_again() {
    let mut bench = Bench::new();
    bench.probed(Outcome::Delivered, 2);
    bench.revived(vec![]);
    bench.effects();
    for number in 0..10 {
        bench.pass(Duration::from_millis(500));
        let (slot, endpoint, tenant) = (SLOT, ENDPOINT, TENANT);
        bench.tell(Input::RetriesDue {
            slot,
            endpoint,
            tenant,
        });
        let request = bench.asked();
        let retry = LiveRow {
            attempts_made: 1,
            ..row(id(number))
        };
        bench.answer_as(&request, vec![retry], with(|_| {}));
        bench.effects();
        bench.ended(id(number), Outcome::Transient, Duration::from_millis(5));
    }
    bench.effects();
    assert!(bench.is_open());

    bench.pass(COOLDOWN);

    assert_eq!(revivals(&bench.effects()), [1]);
}

#[test]
fn an_answer_from_before_a_probe_failed_does_not_say_that_there_is_nothing_to_probe_with() {
    let mut bench = Bench::new();
    bench.open();
    bench.pass(COOLDOWN);
    assert_eq!(revivals(&bench.effects()), [1]);
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    assert_eq!(sent(&bench.effects()), [id(50)]);
    bench.pass(Duration::from_secs(1));
    bench.ended(id(50), Outcome::Transient, Duration::from_secs(1));
    bench.revived(vec![]);
    bench.effects();

    bench.pass(2 * COOLDOWN);

    assert_eq!(revivals(&bench.effects()), [1]);
}

#[test]
fn an_answer_that_came_too_late_says_nothing_about_another_outage() {
    let mut bench = Bench::new();
    bench.probed(Outcome::Delivered, 2);
    // It opens again before the answer to what was asked about the first.
    bench.fail(10);
    bench.revived(vec![]);
    bench.effects();

    bench.pass(COOLDOWN);

    assert_eq!(revivals(&bench.effects()), [1]);
}

#[test]
fn a_new_event_does_not_wait_for_the_end_of_an_outages_backlog() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_more(&request, vec![row(id(50))], with(|_| {}), true);
    bench.effects();
    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));

    let request = loads(&bench.effects()).remove(0);
    let (cursor, _) = request.fresh.unwrap();
    let backlog: Vec<_> = (100..104).map(|number| row(id(number))).collect();
    let closed = bench.now().database;
    let new = Uuid::from_u128(lower_bound(closed + Duration::from_millis(2)).as_u128() | 0x7 << 76);
    bench.tell(Input::Loaded(vec![LoadedEndpoint {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        rows: backlog,
        more_ready: true,
        fresh: vec![row(new)],
        more_fresh: false,
        walked: None,
        retries_read: false,
        next_due: None,
        config: None,
        history: None,
    }]));
    let mut order = Vec::new();
    for _ in 0..3 {
        let sent = sent(&bench.effects());
        for delivery in &sent {
            bench.ended(*delivery, Outcome::Delivered, Duration::from_millis(5));
        }
        order.extend(sent);
    }

    assert!(cursor >= lower_bound(START));
    let place = order.iter().position(|delivery| *delivery == new);
    assert!(place.is_some_and(|place| place <= 1), "{place:?} {order:?}");
}

/// D8
#[test]
fn what_waits_behind_an_open_breaker_is_ended_when_it_is_too_old() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();

    bench.pass(Duration::from_secs(61));
    let expiries = bench
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Chore(Chore::Expire(expire)) => Some(expire.older_than),
            _ => None,
        });

    let age = Duration::from_secs(5 * 86_400);
    assert_eq!(expiries.collect::<Vec<_>>(), [bench.now().database - age]);
}

#[test]
fn an_outage_whose_owner_died_before_it_was_stored_is_found_and_the_breaker_opens() {
    let mut bench = Bench::new();
    let (epoch, taken_at) = bench.take_from_the_dead();
    let died = taken_at - Duration::from_secs(3_600);
    let asked = bench.effects().into_iter().find_map(|effect| match effect {
        Effect::Chore(Chore::FindOutages { slots, taken_at }) => Some((slots, taken_at)),
        _ => None,
    });
    bench.tell(Input::Outages {
        slots: vec![(SLOT, epoch)],
        found: Some(vec![(SLOT, ENDPOINT, TENANT, died)]),
    });
    let request = bench.asked();
    bench.answer_as(&request, vec![], with(|_| {}));
    let opened = bench.effects();
    bench.pass(COOLDOWN);
    let window = bench.effects().into_iter().find_map(|effect| match effect {
        Effect::Chore(Chore::Revive(revive)) => Some(revive.window),
        _ => None,
    });

    assert_eq!(asked, Some((vec![(SLOT, epoch)], taken_at)));
    assert_eq!(told(&opened), [NoticeKind::EndpointOpened]);
    assert!(bench.is_open());
    assert!(window.unwrap().from <= died, "{window:?}");
}

impl Bench {
    fn take_from_the_dead(&mut self) -> (Epoch, time::OffsetDateTime) {
        self.tell(Input::Released(vec![(SLOT, EPOCH)]));
        let (epoch, taken_at) = (Epoch(EPOCH.0 + 1), self.now().database);
        self.tell(Input::Acquired {
            slots: vec![Taken {
                slot: SLOT,
                how: TakeOver {
                    epoch,
                    clean: false,
                    emptied_at: Some(taken_at),
                },
            }],
            suspects: HashMap::new(),
        });
        (epoch, taken_at)
    }
}

#[test]
fn a_slot_leaves_in_doubt_while_nobody_has_looked_into_its_last_owners_death() {
    let mut bench = Bench::new();
    bench.take_from_the_dead();
    bench.tell(Input::Drain);

    let left = bench.effects().into_iter().find_map(|effect| match effect {
        Effect::Release(slots) => slots.first().map(|it| it.doubtful),
        _ => None,
    });

    assert_eq!(left, Some(true));
}

#[test]
fn an_outage_that_another_owner_saw_begin_begins_with_its_first_failure() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(1))], with(|_| {}));
    bench.effects();
    let before = bench.now().database - Duration::from_secs(40_000);
    bench.ended_as(id(1), Outcome::Transient, Duration::from_millis(5), |it| {
        Observed {
            exhausted: Some(it.started_at),
            ..it
        }
    });
    let request = loads(&bench.effects()).remove(0);
    let history = Some(vec![(Outcome::Transient, before)]);
    bench.tell(Input::Loaded(vec![LoadedEndpoint {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        rows: vec![],
        more_ready: false,
        fresh: vec![],
        more_fresh: false,
        walked: None,
        retries_read: request.retry_limit > 0,
        next_due: None,
        config: None,
        history,
    }]));

    let stored = bench.effects().into_iter().find_map(|effect| match effect {
        Effect::Change(change) => change.runtime,
        _ => None,
    });

    assert!(bench.is_open());
    assert_eq!(stored.and_then(|it| it.failing_since), Some(before));
}

#[test]
fn a_late_success_of_what_was_on_the_wire_does_not_shorten_an_outage() {
    let mut bench = Bench::new();
    bench.fail(9);
    let began = bench.now().database - Duration::from_millis(8 * 500 + 5);
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(20)), row(id(21))], with(|_| {}));
    assert_eq!(sent(&bench.effects()).len(), 2);
    bench.ended(id(20), Outcome::Transient, Duration::from_millis(5));
    assert!(bench.is_open());

    bench.ended(id(21), Outcome::Delivered, Duration::from_millis(5));
    bench.hint();
    bench.pass(COOLDOWN);
    let request = loads(&bench.effects()).remove(0);
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    bench.effects();
    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));

    let windows = bench
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Change(change) => change.runtime.and_then(|it| it.recovery),
            _ => None,
        });
    let ladder = shared::policy::outage::longest_ladder(&EndpointSettings::default());
    let from: Vec<_> = windows.map(|window| window.from).collect();
    assert_eq!(from.first(), Some(&(began - ladder)));
}

#[test]
fn the_last_success_is_the_one_that_started_last() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let three = |settings: &mut EndpointSettings| settings.max_in_flight = 3;
    let rows = vec![row(id(1)), row(id(2)), row(id(3))];
    bench.answer_as(&request, rows, with(three));
    bench.effects();
    bench.wait(Duration::from_secs(10));
    let began = bench.now().database - Duration::from_secs(5);
    bench.ended(id(1), Outcome::Delivered, Duration::from_secs(1));
    bench.ended(id(2), Outcome::Delivered, Duration::from_secs(9));

    bench.ended_as(id(3), Outcome::Transient, Duration::from_secs(1), |it| {
        Observed {
            exhausted: Some(began),
            ..it
        }
    });

    assert!(!bench.is_open());
}

#[test]
fn an_outage_that_was_over_before_it_was_found_is_recovered_from_and_opens_nothing() {
    let mut bench = Bench::new();
    let (epoch, taken_at) = bench.take_from_the_dead();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(1))], with(|_| {}));
    assert_eq!(sent(&bench.effects()), [id(1)]);
    let owner = Ownership {
        epoch,
        ..bench.owner()
    };
    bench.tell(Input::Recorded(vec![Recorded {
        owner,
        endpoint: ENDPOINT,
        delivery: id(1),
        next_due: None,
        observed: Some(Observed {
            outcome: Outcome::Delivered,
            started_at: bench.now().database,
            took: Duration::from_millis(5),
            timed_out: false,
            retry_after: None,
            exhausted: None,
            probe: false,
            notice: false,
        }),
        dead: false,
    }]));
    let died = taken_at - Duration::from_secs(3_600);
    bench.tell(Input::Outages {
        slots: vec![(SLOT, epoch)],
        found: Some(vec![(SLOT, ENDPOINT, TENANT, died)]),
    });
    let mut effects = bench.effects();
    for request in loads(&effects) {
        bench.answer_as(&request, vec![], with(|_| {}));
    }
    effects.extend(bench.effects());

    assert!(!bench.is_open());
    assert_eq!(revivals(&effects).len(), 1);
}

/// Endpoints that come, are sent to once and go: what is kept of them does not grow with their number.
#[test]
fn what_is_kept_of_endpoints_that_have_gone_quiet_is_bounded() {
    let mut bench = Bench::with_permits(10_000);
    let mut most = 0;
    for round in 0..20_i64 {
        let keys: Vec<_> = (round * 2_000..(round + 1) * 2_000)
            .map(EndpointKey)
            .collect();
        bench.tell(Input::Hint(keys.iter().map(|key| (SLOT, *key)).collect()));
        loop {
            let effects = bench.effects();
            let (requests, jobs) = (loads(&effects), jobs(effects));
            if requests.is_empty() && jobs.is_empty() {
                break;
            }
            let answers = requests.iter().map(|request| LoadedEndpoint {
                slot: SLOT,
                epoch: EPOCH,
                endpoint: request.endpoint,
                rows: if request.ready_limit == 0 {
                    vec![]
                } else {
                    vec![row(id(u64::try_from(request.endpoint.0).unwrap()))]
                },
                more_ready: false,
                fresh: vec![],
                more_fresh: false,
                walked: None,
                retries_read: request.retry_limit > 0,
                next_due: None,
                config: request.config.then(|| {
                    let mut limited = limited(0.1, 3);
                    limited.key = request.endpoint;
                    Arc::new(limited)
                }),
                history: request.history.then(Vec::new),
            });
            let answers = answers.collect();
            bench.tell(Input::Loaded(answers));
            for (endpoint, delivery) in jobs {
                let owner = bench.owner();
                bench.tell(Input::Recorded(vec![Recorded {
                    owner,
                    endpoint,
                    delivery,
                    next_due: None,
                    observed: None,
                    dead: false,
                }]));
            }
        }
        bench.pass(Duration::from_secs(61));
        bench.effects();
        let kept = bench.scheduler.endpoints.len() + bench.scheduler.buckets.len();
        most = most.max(kept);
    }

    bench.pass(Duration::from_secs(61));
    assert!(most <= 2 * 2_000, "{most} endpoints were kept at once");
    assert_eq!(bench.scheduler.endpoints.len(), 0);
    assert_eq!(bench.scheduler.buckets.len(), 0);
    assert_eq!(bench.scheduler.starts.len(), 0);
}

fn jobs(effects: Vec<Effect>) -> Vec<(EndpointKey, Uuid)> {
    let jobs = effects.into_iter().filter_map(|effect| match effect {
        Effect::Send(job) => Some((job.endpoint.key, job.row.id)),
        _ => None,
    });
    jobs.collect()
}

// ## Found in review

/// O1
#[test]
fn what_may_not_be_sent_for_a_while_takes_no_room_in_memory() {
    for throttled in [false, true] {
        let mut bench = Bench::new();
        bench.hint();
        let request = bench.asked();
        let rows: Vec<_> = (0..10).map(|number| row(id(number))).collect();
        let config = if throttled {
            with(|settings| settings.max_in_flight = 1)
        } else {
            limited(0.01, 1)
        };
        bench.answer_as(&request, rows, config);
        assert_eq!(sent(&bench.effects()), [id(0)]);
        bench.ended_as(
            id(0),
            if throttled {
                Outcome::Throttled
            } else {
                Outcome::Delivered
            },
            Duration::from_millis(5),
            |it| Observed {
                retry_after: throttled.then_some(Duration::from_secs(100)),
                ..it
            },
        );
        let meanwhile = bench.effects();
        bench.hint();
        bench.scan_finds(true, None);
        bench.pass(Duration::from_secs(50));
        let waiting = bench.effects();
        let kept = bench.scheduler.loaded_rows;
        bench.pass(Duration::from_secs(51));
        let request = bench.asked();
        bench.answer_as(&request, vec![row(id(1))], with(|_| {}));

        assert_eq!((loads(&meanwhile).len(), loads(&waiting).len()), (0, 0));
        assert_eq!(kept, 0, "throttled: {throttled}");
        assert_eq!(sent(&bench.effects()), [id(1)]);
    }
}

#[test]
fn a_success_corrects_what_is_stored_as_failing() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    let mut failing = with(|_| {});
    failing.runtime.failing_since = Some(START);
    bench.answer_as(&request, vec![row(id(0)), row(id(1))], failing);
    bench.effects();

    bench.ended(id(0), Outcome::Delivered, Duration::from_millis(5));
    let first = bench.effects();
    bench.ended(id(1), Outcome::Delivered, Duration::from_millis(5));

    assert_eq!(stored(&first), [None]);
    assert_eq!(stored(&bench.effects()).len(), 0, "once");
}

/// Since when the endpoint is stored as failing, for each time that something is stored.
fn stored(effects: &[Effect]) -> Vec<Option<OffsetDateTime>> {
    let changes = effects.iter().filter_map(|effect| match effect {
        Effect::Change(change) => change.runtime.as_ref(),
        _ => None,
    });
    changes.map(|runtime| runtime.failing_since).collect()
}

/// One event now and then, each under an owner that knows of none before.
#[test]
fn refusals_before_this_owner_count() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(0))], with(|_| {}));
    bench.effects();
    bench.ended(id(0), Outcome::Permanent, Duration::from_millis(5));

    let request = loads(&bench.effects()).remove(0);
    assert!(request.history);
    let before = |minutes: u64| bench.now().database - Duration::from_secs(60 * minutes);
    let history = (0..10_u64).map(|minutes| (Outcome::Permanent, before(minutes)));
    let history = Some(history.collect());
    bench.tell(Input::Loaded(vec![LoadedEndpoint {
        history,
        ..nothing(&request)
    }]));

    assert_eq!(told(&bench.effects()), [NoticeKind::EndpointMisconfigured]);
}

fn nothing(request: &LoadRequest) -> LoadedEndpoint {
    LoadedEndpoint {
        slot: request.slot,
        epoch: request.epoch,
        endpoint: request.endpoint,
        rows: vec![],
        more_ready: false,
        fresh: vec![],
        more_fresh: false,
        retries_read: false,
        next_due: None,
        walked: None,
        config: None,
        history: None,
    }
}

#[test]
fn a_disabled_endpoint_is_forgotten_although_its_breaker_is_open() {
    let mut bench = Bench::new();
    bench.open();
    bench.tell(Input::Reload {
        slot: SLOT,
        endpoint: ENDPOINT,
    });
    let request = bench.asked();
    let disabled = config(ENDPOINT, EndpointState::Disabled);
    bench.answer_as(&request, vec![], disabled);
    bench.effects();
    bench.tell(Input::Closed {
        slot: SLOT,
        epoch: EPOCH,
        endpoint: ENDPOINT,
        more: false,
    });
    bench.effects();

    bench.pass(Duration::from_secs(61));
    bench.pass(Duration::from_secs(61));

    assert_eq!(bench.scheduler.endpoints.len(), 0);
}

#[test]
fn a_request_of_an_earlier_epoch_that_hangs_makes_nobody_slow() {
    let mut bench = Bench::new();
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(0)), row(id(1))], with(|_| {}));
    bench.effects();
    let before = bench.owner();

    bench.tell(Input::Released(vec![(SLOT, EPOCH)]));
    let epoch = Epoch(EPOCH.0 + 1);
    bench.take(SLOT, epoch, &[]);
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![], with(|_| {}));
    bench.pass(Duration::from_secs(5));
    for delivery in [id(0), id(1)] {
        bench.tell(Input::Recorded(vec![Recorded {
            owner: before,
            endpoint: ENDPOINT,
            delivery,
            next_due: None,
            observed: None,
            dead: false,
        }]));
    }
    bench.hint();
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(2))], with(|_| {}));
    bench.effects();
    let owner = Ownership { epoch, ..before };
    let observed = Observed {
        outcome: Outcome::Delivered,
        started_at: bench.now().database,
        took: Duration::from_millis(5),
        timed_out: false,
        retry_after: None,
        exhausted: None,
        probe: false,
        notice: false,
    };
    bench.tell(Input::Recorded(vec![Recorded {
        owner,
        endpoint: ENDPOINT,
        delivery: id(2),
        next_due: None,
        observed: Some(observed),
        dead: false,
    }]));

    let endpoint = bench.scheduler.endpoints.get(&ENDPOINT).unwrap();
    assert!(!endpoint.pace.is_slow());
}

#[test]
fn what_was_on_the_wire_when_an_outage_ended_and_died_belongs_to_it() {
    let mut bench = Bench::new();
    bench.open();
    bench.hint();
    bench.pass(COOLDOWN);
    let request = bench.asked();
    bench.answer_as(&request, vec![row(id(50))], with(|_| {}));
    bench.effects();
    bench.ended(id(50), Outcome::Delivered, Duration::from_millis(5));
    let request = loads(&bench.effects()).remove(0);
    bench.answer_as(&request, vec![row(id(51))], with(|_| {}));
    bench.effects();
    let closed = bench.now().database;

    // Recorded late: it started before the probe succeeded.
    bench.pass(Duration::from_secs(20));
    let began = closed - Duration::from_secs(60);
    bench.ended_as(id(51), Outcome::Transient, Duration::from_secs(25), |it| {
        Observed {
            exhausted: Some(began),
            ..it
        }
    });

    let windows = bench
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Change(change) => change.runtime.and_then(|it| it.recovery),
            _ => None,
        });
    let until = windows.map(|window| window.until).max();
    assert_eq!(until, Some(bench.now().database));
}
