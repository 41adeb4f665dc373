use std::num::NonZeroU32;

use governor::clock::FakeRelativeClock;
use governor::{Quota as ReferenceQuota, RateLimiter};
use proptest::prelude::*;
use time::macros::datetime;

use super::*;

const START: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);

fn limit(per_second: f64, burst: u32) -> RateLimit {
    RateLimit { per_second, burst }
}

fn quota(per_second: f64, burst: u32) -> Quota {
    Quota::new(&limit(per_second, burst)).unwrap()
}

fn at(seconds: f64) -> OffsetDateTime {
    START + Duration::from_secs_f64(seconds)
}

/// How many tokens are there at once.
fn drain(bucket: &mut Bucket, now: OffsetDateTime, quota: &Quota) -> u32 {
    let mut taken = 0;
    while bucket.take(now, quota).is_ok() {
        taken += 1;
    }
    taken
}

#[test]
fn what_limits_nothing_is_no_quota() {
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(Quota::new(&limit(rate, 1)), None, "{rate}");
    }
    assert_eq!(Quota::new(&limit(1.0, 0)), None);
}

#[test]
fn a_period_is_never_shorter_than_the_rate_allows() {
    let cases = [
        (3.0, 333_333_334),
        (7.0, 142_857_143),
        (0.5, 2_000_000_000),
        (10_000.0, 100_000),
        (0.000_1, 10_000_000_000_000),
        (1e300, 1),
        (1e-300, MAX_PERIOD),
        (f64::MIN_POSITIVE, MAX_PERIOD),
    ];
    for (rate, nanos) in cases {
        assert_eq!(quota(rate, 1).period, nanos, "{rate}");
    }
}

#[test]
fn a_full_bucket_gives_its_burst_and_then_its_rate() {
    let quota = quota(10.0, 5);
    let mut bucket = Bucket::full(START);

    assert_eq!(drain(&mut bucket, START, &quota), 5);
    assert_eq!(bucket.take(START, &quota), Err(at(0.1)));
    assert_eq!(bucket.take(at(0.1), &quota), Ok(()));
    assert!(!bucket.is_full(at(0.599)));
    assert!(bucket.is_full(at(0.6)));
    assert_eq!(drain(&mut bucket, at(60.0), &quota), 5);
}

#[test]
fn o1_who_leaves_half_of_a_bucket_takes_what_is_above_it() {
    for (burst, left) in [(1, 0), (2, 1), (5, 2), (10, 5)] {
        let quota = quota(10.0, burst);
        let mut bucket = Bucket::full(START);
        while bucket.earliest_above_half(&quota) <= START {
            bucket.take(START, &quota).unwrap();
        }
        assert_eq!(drain(&mut bucket, START, &quota), left, "of {burst}");
    }
}

#[test]
fn a_bucket_made_late_is_empty_as_of_the_take_over() {
    let quota = quota(1.0 / 60.0, 1);
    let mut bucket = Bucket::emptied_at(START, &quota);
    assert!(bucket.take(at(59.9), &quota).is_err());
    assert_eq!(
        bucket.take(at(600.0), &quota),
        Ok(()),
        "no wait for nothing"
    );
}

#[test]
fn spent_tokens_stay_spent_when_the_limit_changes() {
    let (slow, fast) = (quota(10.0, 10), quota(11.0, 10));
    let mut bucket = Bucket::full(START);
    assert_eq!(drain(&mut bucket, START, &slow), 10);
    bucket.requota(START, &slow, &fast);
    assert_eq!(drain(&mut bucket, START, &fast), 0);

    let mut bucket = Bucket::full(START);
    for _ in 0..4 {
        bucket.take(START, &slow).unwrap();
    }
    let wide = quota(10.0, 20);
    bucket.requota(START, &slow, &wide);
    assert_eq!(drain(&mut { bucket }, START, &wide), 6, "no gift");
    let narrow = quota(10.0, 5);
    bucket.requota(START, &wide, &narrow);
    assert_eq!(drain(&mut bucket, START, &narrow), 5);
}

#[test]
fn a_limit_lowered_before_a_crash_and_raised_after_it_forgets_nothing() {
    let (wide, narrow) = (quota(0.1, 12), quota(0.1, 1));
    let mut bucket = Bucket::full(START);
    assert_eq!(drain(&mut bucket, START, &wide), 12);
    bucket.requota(START, &wide, &narrow);
    bucket = Bucket::emptied_at(START, &narrow);
    bucket.requota(START, &narrow, &wide);
    assert_eq!(drain(&mut bucket, START, &wide), 0);
}

#[test]
fn a_limit_changed_every_second_starves_nothing() {
    let quotas = [quota(0.1, 1), quota(0.1 + 1e-6, 1)];
    let changes = quotas.iter().cycle().zip(quotas.iter().cycle().skip(1));
    let mut bucket = Bucket::emptied_at(START, &quotas[0]);
    let mut taken = 0;
    for (second, (old, new)) in (1..=1_000_u32).zip(changes) {
        let now = at(f64::from(second));
        bucket.requota(now, old, new);
        taken += u32::from(bucket.take(now, new).is_ok());
    }
    assert!((90..=100).contains(&taken), "{taken}");
}

#[test]
fn the_end_of_the_calendar_is_no_end_of_the_law() {
    let end = datetime!(9999-12-31 23:59:59.999_999_999 UTC);
    let quota = quota(0.000_1, 10_000);
    let mut bucket = Bucket::full(end);
    assert_eq!(drain(&mut bucket, end, &quota), 10_000);
    assert_eq!(bucket.earliest(&quota), end);
    assert_eq!(bucket.position(), end);

    let beginning = datetime!(-9999-01-01 0:00 UTC);
    assert_eq!(Bucket::full(beginning).earliest(&quota), beginning);
}

#[test]
fn a_position_is_rounded_up_to_what_postgresql_keeps() {
    for (nanos, expected) in [(0, 0), (1, 1_000), (999, 1_000), (1_000, 1_000)] {
        let bucket = Bucket::full(START + Duration::from_nanos(nanos));
        assert_eq!(bucket.position(), START + Duration::from_nanos(expected));
    }
    let before_1970 = datetime!(1969-12-31 23:59:59.999_999_500 UTC);
    let rounded = Bucket::full(before_1970).position();
    assert_eq!(rounded, OffsetDateTime::UNIX_EPOCH);
}

fn any_limit() -> impl Strategy<Value = RateLimit> {
    let rate = prop_oneof![0.000_1..1.0, 1.0..100.0, 100.0..10_000.0_f64];
    let burst = prop_oneof![1..=20_u32, 1..=10_000_u32];
    (rate, burst).prop_map(|(per_second, burst)| limit(per_second, burst))
}

/// Waits of about the length that matters to a rate: from none to a few tokens.
fn wait(limit: &RateLimit, tokens: f64) -> Duration {
    Duration::from_secs_f64(tokens / limit.per_second)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// R1: the same verdict as the reference implementation for each arrival.
    #[test]
    fn verdicts_are_those_of_governor(
        rate in any_limit(),
        arrivals in prop::collection::vec(prop_oneof![Just(0.0), 0.0..2.0, 0.0..50.0_f64], 1..300),
    ) {
        let ours = Quota::new(&rate).unwrap();
        let period = Duration::from_nanos(u64::try_from(ours.period).unwrap());
        let reference = ReferenceQuota::with_period(period)
            .unwrap()
            .allow_burst(NonZeroU32::new(rate.burst).unwrap());
        let clock = FakeRelativeClock::default();
        let reference = RateLimiter::direct_with_clock(reference, clock.clone());
        let mut bucket = Bucket::full(START);
        let mut now = START;
        for tokens in arrivals {
            let passed = wait(&rate, tokens);
            clock.advance(passed);
            now += passed;
            prop_assert_eq!(bucket.take(now, &ours).is_ok(), reference.check().is_ok());
        }
    }

    #[test]
    fn a_refusal_names_the_first_instant_that_will_do(
        rate in any_limit(),
        arrivals in prop::collection::vec(0.0..1.5_f64, 1..50),
    ) {
        let quota = Quota::new(&rate).unwrap();
        let mut bucket = Bucket::emptied_at(START, &quota);
        let mut now = START;
        for tokens in arrivals {
            now += wait(&rate, tokens);
            if let Err(earliest) = bucket.take(now, &quota) {
                prop_assert!(now < earliest);
                let just_before = earliest - Duration::from_nanos(1);
                prop_assert_eq!({ bucket }.take(just_before, &quota), Err(earliest));
                prop_assert_eq!({ bucket }.take(earliest, &quota), Ok(()));
            }
        }
    }
}

/// What happens to the bucket of an endpoint in its life.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// So many requests want to go at once.
    Take(u32),
    /// Time passes, in tokens of the present rate.
    Pass(f64),
    /// The owner dies; another one takes over now and makes the bucket later.
    Crash { made_after: f64 },
    /// The owner releases the slot, another one goes on from the stored position.
    HandOver,
    /// The owner forgets the bucket if it may.
    Evict,
    /// The limit is changed.
    Requota(RateLimit),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => prop_oneof![1..5_u32, Just(u32::MAX)].prop_map(Event::Take),
        6 => prop_oneof![0.0..2.0, 0.0..100.0_f64].prop_map(Event::Pass),
        1 => (0.0..20.0_f64).prop_map(|made_after| Event::Crash { made_after }),
        1 => Just(Event::HandOver),
        1 => Just(Event::Evict),
        2 => any_life_limit().prop_map(Event::Requota),
    ]
}

/// Bursts small enough to compare every pair of requests.
fn any_life_limit() -> impl Strategy<Value = RateLimit> {
    (prop_oneof![0.000_1..1.0, 1.0..10_000.0_f64], 1..=30_u32)
        .prop_map(|(per_second, burst)| limit(per_second, burst))
}

/// A request that started, and the limit it started under.
type Taken = (OffsetDateTime, usize);

/// The requests of a life, and the limits that held one after the other.
fn live(first: RateLimit, events: &[Event]) -> (Vec<Taken>, Vec<RateLimit>) {
    let (mut limits, mut taken) = (vec![first], Vec::new());
    let mut quota = Quota::new(&first).unwrap();
    let mut bucket = Bucket::full(START);
    let mut now = START;
    for event in events {
        let limit = *limits.last().unwrap();
        match *event {
            Event::Take(wanted) => {
                for _ in 0..wanted {
                    if bucket.take(now, &quota).is_err() {
                        break;
                    }
                    taken.push((now, limits.len() - 1));
                }
            }
            Event::Pass(tokens) => now += wait(&limit, tokens),
            Event::Crash { made_after } => {
                let take_over = now;
                now += wait(&limit, made_after);
                bucket = Bucket::emptied_at(take_over, &quota);
            }
            Event::HandOver => bucket = Bucket::handed_over(bucket.position()),
            Event::Evict if bucket.is_full(now) => bucket = Bucket::full(now),
            Event::Evict => {}
            Event::Requota(new) => {
                let next = Quota::new(&new).unwrap();
                bucket.requota(now, &quota, &next);
                quota = next;
                limits.push(new);
            }
        }
    }
    (taken, limits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// R1
    #[test]
    fn no_window_holds_more_than_rate_times_its_length_and_a_burst(
        first in any_life_limit(),
        events in prop::collection::vec(any_event(), 1..80),
    ) {
        let (taken, limits) = live(first, &events);
        for (from, &(begin, first_limit)) in taken.iter().enumerate() {
            let (mut rate, mut burst) = (0.0_f64, 0);
            let mut seen = first_limit;
            for (count, &(end, last_limit)) in (1_u32..).zip(&taken[from..]) {
                for limit in &limits[seen..=last_limit] {
                    rate = rate.max(limit.per_second);
                    burst = burst.max(limit.burst);
                }
                seen = last_limit;
                let allowed = rate * (end - begin).as_seconds_f64() + f64::from(burst);
                prop_assert!(f64::from(count) <= allowed + 1e-6, "{count} of {allowed}");
            }
        }
    }

    #[test]
    fn nothing_it_is_given_makes_it_panic(
        rates in prop::array::uniform2((any::<f64>(), any::<u32>())),
        instants in prop::array::uniform3(-377_705_116_800_i64..=253_402_300_799),
    ) {
        let quotas: Vec<Quota> = rates
            .iter()
            .filter_map(|&(rate, burst)| Quota::new(&limit(rate.abs(), burst)))
            .collect();
        let [begin, now, later] =
            instants.map(|seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap());
        for old in &quotas {
            for new in &quotas {
                let mut bucket = Bucket::emptied_at(begin, old);
                let _verdict = bucket.take(now, old);
                bucket.requota(later, old, new);
                let mut next = Bucket::handed_over(bucket.position());
                let _verdict = next.take(later, new);
                let _full = next.is_full(now);
            }
        }
    }
}
