use proptest::prelude::*;
use time::macros::datetime;

use super::*;

const START: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);
const THRESHOLD: u16 = 10;
const COOLDOWN: Duration = Duration::from_secs(300);
const MAX_COOLDOWN: Duration = Duration::from_secs(3_600);

fn at(seconds: f64) -> OffsetDateTime {
    START + Duration::from_secs_f64(seconds)
}

fn ended(signal: Signal, started_at: OffsetDateTime) -> Ended {
    Ended {
        signal,
        started_at,
        probe: false,
    }
}

/// A request that takes no time.
fn answer(breaker: &mut Breaker, signal: Signal, now: OffsetDateTime) -> Option<Transition> {
    breaker.ended(&ended(signal, now), now, THRESHOLD)
}

/// The due probe goes out and ends so.
fn probe(breaker: &mut Breaker, signal: Signal, now: OffsetDateTime) -> Option<Transition> {
    assert_eq!(breaker.passage(now), Passage::Probe);
    breaker.probe_started();
    assert_eq!(breaker.state(), State::HalfOpen);
    assert_eq!(breaker.passage(now), Passage::ProbeOut);
    let ended = Ended {
        signal,
        started_at: now,
        probe: true,
    };
    breaker.ended(&ended, now, THRESHOLD)
}

fn opened() -> Breaker {
    let mut breaker = Breaker::closed();
    assert_eq!(breaker.ladder_exhausted(START), Some(Transition::Opened));
    breaker
}

#[test]
fn ten_failures_over_two_seconds_open_it() {
    let mut breaker = Breaker::closed();
    for second in 0..9 {
        assert_eq!(
            answer(&mut breaker, Signal::Failure, at(second.into())),
            None
        );
        assert_eq!(breaker.passage(at(second.into())), Passage::Free);
    }
    assert_eq!(
        answer(&mut breaker, Signal::Failure, at(9.0)),
        Some(Transition::Opened)
    );
    assert_eq!(breaker.consecutive_failures(), 10);
    assert_eq!(breaker.passage(at(308.9)), Passage::Wait(at(309.0)));
    assert_eq!(breaker.passage(at(309.0)), Passage::Probe);
}

#[test]
fn a_restart_of_50_ms_under_10_parallel_requests_opens_nothing() {
    let mut breaker = Breaker::closed();
    for n in 0..40 {
        let now = at(0.05 * f64::from(n) / 40.0);
        assert_eq!(answer(&mut breaker, Signal::Failure, now), None);
    }
    assert_eq!(answer(&mut breaker, Signal::Success, at(0.06)), None);
    assert_eq!(answer(&mut breaker, Signal::Failure, at(10.0)), None);
    assert_eq!(breaker.consecutive_failures(), 1);
}

#[test]
fn ten_parallel_requests_that_hang_until_their_deadline_open_it() {
    let mut breaker = Breaker::closed();
    let transitions: Vec<_> = (0..10)
        .map(|_| breaker.ended(&ended(Signal::Failure, START), at(15.0), THRESHOLD))
        .collect();
    assert_eq!(transitions[8..], [None, Some(Transition::Opened)]);
}

#[test]
fn only_a_success_resets_the_count() {
    let mut breaker = Breaker::closed();
    for second in 0..9 {
        answer(&mut breaker, Signal::Failure, at(second.into()));
    }
    for signal in [Signal::Alive, Signal::Silent, Signal::Gone] {
        assert_eq!(answer(&mut breaker, signal, at(9.0)), None);
        assert_eq!(breaker.consecutive_failures(), 9, "{signal:?}");
    }
    answer(&mut breaker, Signal::Success, at(9.0));
    assert_eq!(breaker.consecutive_failures(), 0);
}

#[test]
fn the_cooldown_doubles_up_to_an_hour_and_starts_anew_after_a_success() {
    let mut breaker = opened();
    let mut cooldowns = Vec::new();
    for _ in 0..6 {
        cooldowns.push(breaker.cooldown().unwrap().as_secs());
        let due = breaker.probe_at().unwrap();
        assert_eq!(
            probe(&mut breaker, Signal::Failure, due),
            Some(Transition::Reopened)
        );
        assert_eq!(breaker.opened_at(), Some(START), "one outage");
    }
    assert_eq!(cooldowns, [300, 600, 1_200, 2_400, 3_600, 3_600]);

    let due = breaker.probe_at().unwrap();
    assert_eq!(
        probe(&mut breaker, Signal::Success, due),
        Some(Transition::Closed)
    );
    assert_eq!(breaker.consecutive_failures(), 0);
    breaker.ladder_exhausted(due);
    assert_eq!(breaker.cooldown(), Some(COOLDOWN));
}

#[test]
fn an_answer_of_any_kind_to_the_probe_closes() {
    for signal in [Signal::Success, Signal::Alive] {
        let mut breaker = opened();
        assert_eq!(
            probe(&mut breaker, signal, at(300.0)),
            Some(Transition::Closed)
        );
        assert_eq!(breaker.passage(at(300.0)), Passage::Free);
        assert_eq!(
            answer(&mut breaker, Signal::Failure, at(400.0)),
            None,
            "{signal:?}"
        );
    }
}

#[test]
fn three_probes_that_say_nothing_end_in_the_same_cooldown_again() {
    for signal in [Signal::Silent, Signal::Gone] {
        let mut breaker = opened();
        assert_eq!(probe(&mut breaker, signal, at(300.0)), None);
        assert_eq!(probe(&mut breaker, signal, at(300.1)), None);
        assert_eq!(
            probe(&mut breaker, signal, at(300.2)),
            Some(Transition::Reopened)
        );
        assert_eq!(breaker.cooldown(), Some(COOLDOWN));
        assert_eq!(breaker.passage(at(300.2)), Passage::Wait(at(600.2)));
        assert_eq!(probe(&mut breaker, signal, at(600.2)), None, "counted anew");
    }
}

#[test]
fn drains_and_dropped_permits_are_no_failures() {
    let mut breaker = opened();
    for _ in 0..100 {
        assert_eq!(breaker.passage(at(300.0)), Passage::Probe);
        breaker.probe_started();
        breaker.probe_lost();
    }
    assert_eq!(breaker.cooldown(), Some(COOLDOWN));
    assert_eq!(
        probe(&mut breaker, Signal::Success, at(300.0)),
        Some(Transition::Closed)
    );
}

#[test]
fn requests_from_before_the_opening_change_nothing_neither_while_open_nor_after() {
    let mut breaker = Breaker::closed();
    for second in 1..=10 {
        answer(&mut breaker, Signal::Failure, at(second.into()));
    }
    let open = breaker;
    for signal in [
        Signal::Success,
        Signal::Failure,
        Signal::Alive,
        Signal::Silent,
    ] {
        assert_eq!(
            breaker.ended(&ended(signal, at(9.0)), at(20.0), THRESHOLD),
            None
        );
        assert_eq!(breaker, open);
    }
    breaker.probe_now(at(30.0));
    assert_eq!(
        probe(&mut breaker, Signal::Success, at(30.0)),
        Some(Transition::Closed)
    );
    for _ in 0..20 {
        assert_eq!(
            breaker.ended(&ended(Signal::Failure, at(9.0)), at(31.0), THRESHOLD),
            None
        );
    }
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn a_lost_process_makes_its_probe_again() {
    let mut breaker = opened();
    breaker.probe_started();
    let restored = Breaker::restored(
        breaker.opened_at().unwrap(),
        breaker.cooldown().unwrap(),
        breaker.probe_at().unwrap(),
        Some(START),
    );
    assert_eq!(restored.state(), State::Open);
    assert_eq!(restored.passage(at(300.0)), Passage::Probe);
}

#[test]
fn the_run_read_at_a_take_over_counts_unless_something_good_came_since() {
    let mut breaker = Breaker::closed();
    answer(&mut breaker, Signal::Failure, at(100.0));
    breaker.counted(9, START);
    assert_eq!(breaker.consecutive_failures(), 9);
    breaker.counted(3, START);
    assert_eq!(breaker.consecutive_failures(), 9, "the larger");
    assert_eq!(
        answer(&mut breaker, Signal::Failure, at(100.1)),
        Some(Transition::Opened)
    );

    let mut breaker = Breaker::closed();
    answer(&mut breaker, Signal::Success, START);
    breaker.counted(9, START);
    assert_eq!(breaker.consecutive_failures(), 0);
}

#[test]
fn enabling_starts_with_a_probe_at_once_in_any_state() {
    let mut breaker = Breaker::closed();
    breaker.probe_now(at(1.0));
    assert_eq!(breaker.cooldown(), Some(COOLDOWN));
    assert_eq!(
        probe(&mut breaker, Signal::Failure, at(1.0)),
        Some(Transition::Reopened)
    );
    breaker.probe_now(at(2.0));
    assert_eq!(breaker.passage(at(2.0)), Passage::Probe);

    breaker.probe_started();
    breaker.probe_now(at(3.0));
    assert_eq!(breaker.passage(at(3.0)), Passage::ProbeOut, "never two");
    let old = Ended {
        signal: Signal::Failure,
        started_at: at(2.0),
        probe: true,
    };
    assert_eq!(
        breaker.ended(&old, at(4.0), THRESHOLD),
        None,
        "of the old configuration"
    );
    assert_eq!(
        probe(&mut breaker, Signal::Success, at(4.0)),
        Some(Transition::Closed)
    );
}

#[test]
fn a_slow_endpoint_has_half_of_the_threshold() {
    assert_eq!(lowered_threshold(THRESHOLD, None), 10);
    assert_eq!(lowered_threshold(THRESHOLD, Some(5_000)), 10);
    assert_eq!(lowered_threshold(THRESHOLD, Some(5_001)), 5);
    assert_eq!(lowered_threshold(THRESHOLD, Some(u32::MAX)), 5);
    for (own, lowered) in [(4, 3), (3, 3), (2, 2), (1, 1), (100, 50)] {
        assert_eq!(lowered_threshold(own, Some(6_000)), lowered, "{own}");
    }
}

#[test]
fn the_end_of_the_calendar_does_not_break_it() {
    let end = datetime!(9999-12-31 23:59:59.999_999_999 UTC);
    let mut breaker = Breaker::closed();
    for _ in 0..20 {
        answer(&mut breaker, Signal::Failure, end);
    }
    breaker.ladder_exhausted(end);
    assert_eq!(breaker.probe_at(), Some(end));
    assert_eq!(
        probe(&mut breaker, Signal::Success, end),
        Some(Transition::Closed)
    );
}

#[test]
fn every_outcome_has_the_signal_of_the_design() {
    for &outcome in Outcome::ALL {
        let expected = match outcome {
            Outcome::Delivered => Signal::Success,
            Outcome::Transient | Outcome::Misconfigured => Signal::Failure,
            Outcome::Throttled | Outcome::Permanent => Signal::Alive,
            Outcome::Gone => Signal::Gone,
            Outcome::Internal | Outcome::Refused | Outcome::Expired => Signal::Silent,
        };
        assert_eq!(Signal::of(outcome), expected);
    }
}

const SIGNALS: [Signal; 5] = [
    Signal::Success,
    Signal::Failure,
    Signal::Alive,
    Signal::Silent,
    Signal::Gone,
];

/// What an endpoint's owner may live through.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A delivery wants to go.
    Start,
    /// A request on the wire ends.
    End(prop::sample::Index, Signal),
    /// One of them is dropped unsent.
    Lose(prop::sample::Index),
    /// Milliseconds pass.
    Pass(u32),
    LadderExhausted,
    Enabled,
    Counted(u16),
    /// The process dies with what it has on the wire; the next one reads what was stored.
    Crash,
}

fn any_event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        8 => Just(Event::Start),
        6 => (index(), prop::sample::select(&SIGNALS[..])).prop_map(|(i, s)| Event::End(i, s)),
        3 => index().prop_map(|i| Event::End(i, Signal::Failure)),
        1 => index().prop_map(Event::Lose),
        4 => prop_oneof![0..100_u32, 0..5_000_u32, 0..4_000_000_u32].prop_map(Event::Pass),
        1 => Just(Event::LadderExhausted),
        1 => Just(Event::Enabled),
        1 => (0..20_u16).prop_map(Event::Counted),
        1 => Just(Event::Crash),
    ]
}

/// A scheduler that obeys the breaker.
struct Owner {
    breaker: Breaker,
    now: OffsetDateTime,
    /// When each request on the wire started, and whether it is the probe.
    wire: Vec<(OffsetDateTime, bool)>,
}

impl Owner {
    fn start(&mut self) {
        match self.breaker.passage(self.now) {
            Passage::Free => self.wire.push((self.now, false)),
            Passage::Probe => {
                self.breaker.probe_started();
                self.wire.push((self.now, true));
            }
            Passage::Wait(until) => assert!(self.now < until),
            Passage::ProbeOut => assert_eq!(self.probes(), 1, "waits for a probe that is not out"),
        }
    }

    fn end(&mut self, index: usize, signal: Signal) {
        let (started_at, probe) = self.wire.swap_remove(index);
        let before = self.breaker.state();
        let ended = Ended {
            signal,
            started_at,
            probe,
        };
        let transition = self.breaker.ended(&ended, self.now, THRESHOLD);
        let after = self.breaker.state();
        match transition {
            Some(Transition::Opened) => assert_eq!((before, after), (State::Closed, State::Open)),
            Some(Transition::Reopened) => {
                assert_eq!((before, after), (State::HalfOpen, State::Open));
            }
            Some(Transition::Closed) => {
                assert_eq!((before, after), (State::HalfOpen, State::Closed));
            }
            None => assert!(before == after || (before, after) == (State::HalfOpen, State::Open)),
        }
    }

    fn live(&mut self, event: Event) {
        match event {
            Event::Start => self.start(),
            Event::End(_, _) | Event::Lose(_) if self.wire.is_empty() => {}
            Event::End(index, signal) => self.end(index.index(self.wire.len()), signal),
            Event::Lose(index) => {
                let (_, probe) = self.wire.swap_remove(index.index(self.wire.len()));
                if probe {
                    self.breaker.probe_lost();
                }
            }
            Event::Pass(millis) => self.now += Duration::from_millis(millis.into()),
            Event::LadderExhausted => {
                let closed = self.breaker.state() == State::Closed;
                assert_eq!(self.breaker.ladder_exhausted(self.now).is_some(), closed);
            }
            Event::Enabled => self.breaker.probe_now(self.now),
            Event::Counted(run) => self.breaker.counted(run, self.now),
            Event::Crash => {
                self.wire.clear();
                self.breaker = match (
                    self.breaker.opened_at(),
                    self.breaker.cooldown(),
                    self.breaker.probe_at(),
                ) {
                    (Some(opened), Some(cooldown), Some(probe)) => {
                        Breaker::restored(opened, cooldown, probe, None)
                    }
                    _ => Breaker::closed(),
                };
            }
        }
    }

    fn probes(&self) -> usize {
        self.wire.iter().filter(|(_, probe)| *probe).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// B1
    #[test]
    fn at_most_one_probe_is_out_and_every_state_leads_back_to_closed(
        events in prop::collection::vec(any_event(), 1..200),
    ) {
        let mut owner = Owner {
            breaker: Breaker::closed(),
            now: START,
            wire: Vec::new(),
        };
        for event in events {
            owner.live(event);
            prop_assert!(owner.probes() <= 1);
            prop_assert_eq!(owner.probes() == 1, owner.breaker.state() == State::HalfOpen);
            if let Some(cooldown) = owner.breaker.cooldown() {
                prop_assert!((COOLDOWN..=MAX_COOLDOWN).contains(&cooldown));
                prop_assert!(owner.breaker.probe_at().unwrap() <= owner.now + MAX_COOLDOWN);
            }
        }
        while !owner.wire.is_empty() {
            owner.end(0, Signal::Silent);
        }
        if let Some(due) = owner.breaker.probe_at() {
            owner.now = owner.now.max(due);
            owner.start();
            owner.end(0, Signal::Success);
        }
        prop_assert_eq!(owner.breaker.passage(owner.now), Passage::Free);
    }
}
