use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;
use time::macros::datetime;

use super::*;

const START: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);
const CAP: u16 = 10;

fn at(nanos: u64) -> OffsetDateTime {
    START + Duration::from_nanos(nanos)
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap()
}

const fn ms(count: u64) -> u64 {
    count * 1_000_000
}

const fn s(count: u64) -> u64 {
    ms(count * 1_000)
}

#[derive(Clone, Copy)]
struct Reply {
    ok: bool,
    takes: u64,
    retry_after: Option<u64>,
}

/// An endpoint behind the limit with an endless backlog, as the scheduler treats it: requests while
/// the limit allows, its pause after each, nothing while parked. Times in nanoseconds, no chance.
struct Run {
    requests: u64,
    delivered: u64,
    throttled: u64,
    lasted: u64,
}

impl Run {
    fn share_of_429(&self) -> f64 {
        self.throttled as f64 / self.requests as f64
    }

    fn per_second(&self) -> f64 {
        self.delivered as f64 / (self.lasted as f64 / 1e9)
    }
}

/// When it ends, when it started, whether it succeeds, and `Retry-After`.
type OnWire = (u64, u64, bool, Option<u64>);

fn run(mut receiver: impl FnMut(u64) -> Reply, until: u64, deliveries: u64) -> Run {
    let mut limit = AdaptiveLimit::recovering();
    let mut wire: BinaryHeap<Reverse<OnWire>> = BinaryHeap::new();
    let (mut now, mut quiet_until) = (0, 0);
    let mut run = Run {
        requests: 0,
        delivered: 0,
        throttled: 0,
        lasted: 0,
    };
    while now < until && run.delivered < deliveries {
        let wanted = |run: &Run, wire: usize| run.delivered + (wire as u64) < deliveries;
        while now >= quiet_until && wanted(&run, wire.len()) && limit.allows(wire.len(), CAP) {
            let reply = receiver(now);
            run.requests += 1;
            wire.push(Reverse((
                now + reply.takes,
                now,
                reply.ok,
                reply.retry_after,
            )));
        }
        let woken = Some(quiet_until)
            .filter(|&at| at > now && wanted(&run, wire.len()) && limit.allows(wire.len(), CAP));
        let ends = wire.peek().map(|Reverse((ends, ..))| *ends);
        now = woken.into_iter().chain(ends).min().unwrap();
        while let Some(&Reverse((ends, started, ok, retry_after))) = wire.peek()
            && ends <= now
        {
            wire.pop();
            if ok {
                run.delivered += 1;
                limit.succeeded(CAP);
            } else {
                run.throttled += 1;
                limit.throttled(at(started), at(now));
                let park = retry_after.unwrap_or(nanos(PARK));
                quiet_until = quiet_until.max(now + park);
            }
            let pause = limit.pause(Duration::from_nanos(now - started));
            quiet_until = quiet_until.max(now + nanos(pause));
        }
    }
    run.lasted = now;
    run
}

/// 429 to what does not fit a token bucket; never says for how long.
fn token_bucket(per_second: u64, burst: u64, takes: u64) -> impl FnMut(u64) -> Reply {
    let period = s(1) / per_second;
    let mut full_at = 0;
    move |now| {
        let ok = full_at <= now + (burst - 1) * period;
        if ok {
            full_at = full_at.max(now) + period;
        }
        Reply {
            ok,
            takes,
            retry_after: None,
        }
    }
}

#[test]
fn a_receiver_of_20_a_second_says_429_to_less_than_1_percent_from_the_first_second() {
    for burst in [1, 2, 3, 5, 10, 20] {
        for takes in [1, 2, 5, 10, 20, 50].map(ms) {
            let run = run(token_bucket(20, burst, takes), s(60), u64::MAX);
            let (share, rate) = (run.share_of_429(), run.per_second());
            let case = format!("burst {burst}, {takes} ns: {share} of 429, {rate}/s");
            assert!(share < 0.01, "{case}");
            assert!(rate >= 0.6 * 20.0, "{case}");
        }
    }
}

#[test]
fn in_the_long_run_429s_stay_under_half_a_percent() {
    for burst in [1, 5, 20] {
        for takes in [2, 5, 50].map(ms) {
            let run = run(token_bucket(20, burst, takes), s(3_600), u64::MAX);
            let (share, rate) = (run.share_of_429(), run.per_second());
            let case = format!("burst {burst}, {takes} ns: {share} of 429, {rate}/s");
            assert!(share < 0.005, "{case}");
            assert!(rate >= 0.8 * 20.0, "{case}");
        }
    }
}

#[test]
fn a_window_of_10_a_minute_takes_100_deliveries_with_at_most_150_requests() {
    for takes in [2, 5, 50, 300].map(ms) {
        let (mut window, mut taken) = (0, 0);
        let run = run(
            |now| {
                if now / s(60) != window {
                    (window, taken) = (now / s(60), 0);
                }
                taken += 1;
                let left = (window + 1) * s(60) - now;
                Reply {
                    ok: taken <= 10,
                    takes,
                    retry_after: (taken > 10).then(|| left.div_ceil(s(1)) * s(1)),
                }
            },
            u64::MAX / 2,
            100,
        );
        assert_eq!(run.delivered, 100);
        assert!(run.requests <= 150, "{}", run.requests);
        assert!(run.lasted <= s(600), "{}", run.lasted);
    }
}

#[test]
fn a_receiver_with_4_at_once_is_kept_busy_with_less_than_1_percent_429() {
    let mut busy: Vec<u64> = Vec::new();
    let run = run(
        |now| {
            busy.retain(|&until| until > now);
            let ok = busy.len() < 4;
            if ok {
                busy.push(now + ms(200));
            }
            Reply {
                ok,
                takes: if ok { ms(200) } else { ms(2) },
                retry_after: None,
            }
        },
        s(600),
        u64::MAX,
    );
    assert!(run.share_of_429() < 0.01, "{}", run.share_of_429());
    assert!(run.per_second() >= 0.8 * 20.0, "{}", run.per_second());
}

#[test]
fn a_healthy_receiver_is_back_at_the_cap_within_150_successes() {
    let mut limit = AdaptiveLimit::recovering();
    let mut levels = Vec::new();
    assert!(!limit.is_ramped(CAP));
    for _ in 0..150 {
        levels.push(
            (1..=usize::from(CAP))
                .filter(|n| limit.allows(n - 1, CAP))
                .count(),
        );
        limit.succeeded(CAP);
    }
    assert_eq!(
        levels[..5],
        [1, 1, 1, 1, 2],
        "two rounds and a half of each level"
    );
    assert!(levels.is_sorted(), "{levels:?}");
    assert_eq!(levels[149], 10);
    assert!(limit.is_ramped(CAP));
    assert_eq!(limit, AdaptiveLimit::at(CAP));
}

#[test]
fn only_a_request_that_started_after_a_cut_cuts_again() {
    let mut limit = AdaptiveLimit::at(8);
    for started in [0, 1, 2, 3] {
        limit.throttled(at(started), at(10 + started));
    }
    assert!(limit.allows(3, 8) && !limit.allows(4, 8));
    limit.timed_out(at(5), at(20));
    assert!(limit.allows(3, 8));
    limit.timed_out(at(21), at(30));
    assert!(limit.allows(1, 8) && !limit.allows(2, 8));
}

#[test]
fn a_time_out_never_makes_a_pace_of_it_nor_a_faster_one() {
    let mut limit = AdaptiveLimit::at(CAP);
    for n in 0..20 {
        limit.timed_out(at(s(n)), at(s(n)));
    }
    assert_eq!(limit.pause(Duration::from_secs(15)), Duration::ZERO);

    let mut limit = AdaptiveLimit::at(1);
    limit.throttled(at(0), at(1));
    let pause = limit.pause(Duration::from_millis(40));
    assert_eq!(pause, Duration::from_millis(40));
    limit.timed_out(at(s(1)), at(s(2)));
    assert_eq!(limit.pause(Duration::from_millis(40)), pause);
}

#[test]
fn a_cut_ends_the_ramp() {
    let mut limit = AdaptiveLimit::recovering();
    limit.throttled(at(0), at(1));
    assert!(limit.is_ramped(CAP));
}

#[test]
fn the_pause_is_bounded_from_both_sides() {
    let mut limit = AdaptiveLimit::at(1);
    for n in 0..100 {
        limit.throttled(at(s(n)), at(s(n)));
    }
    assert_eq!(limit.pause(Duration::ZERO), Duration::from_millis(127));
    assert_eq!(limit.pause(Duration::MAX), Duration::from_secs(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// O1, and no state from which it does not come back.
    #[test]
    fn whatever_happens_it_stays_in_its_bounds_and_comes_back(
        steps in prop::collection::vec((0..3_u8, 0..5_000_u64, any::<bool>()), 0..200),
        cap in prop_oneof![1..=16_u16, any::<u16>()],
        response in any::<u64>(),
    ) {
        let mut limit = AdaptiveLimit::recovering();
        let mut now = 0;
        for (what, passed, late) in steps {
            now += ms(passed);
            let started = if late { now.saturating_sub(s(20)) } else { now };
            match what {
                0 => limit.succeeded(cap),
                1 => limit.throttled(at(started), at(now)),
                _ => limit.timed_out(at(started), at(now)),
            }
            prop_assert!(limit.allows(0, cap), "one may always go");
            prop_assert!(!limit.allows(usize::from(cap.max(1)), cap));
            prop_assert!(!limit.allows(usize::MAX, cap));
            prop_assert!(limit.pause(Duration::from_nanos(response)) <= Duration::from_secs(1));
            prop_assert!((1.0 / 128.0..=f64::from(cap.max(1))).contains(&limit.level));
        }
        for _ in 0..30_000 {
            limit.succeeded(cap.min(16));
        }
        prop_assert_eq!(limit.level, f64::from(cap.clamp(1, 16)));
    }
}
