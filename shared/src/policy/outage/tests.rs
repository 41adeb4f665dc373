use proptest::prelude::*;
use time::macros::datetime;

use super::*;
use crate::domain::endpoint::{Backoff, Preset};

const START: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_window_reaches_back_to_what_began_to_fail_a_ladder_before() {
    let opened = START + 2 * HOUR;
    let closed = START + 5 * HOUR;
    let window = |failing| recovery_window(opened, failing, closed, HOUR);

    assert_eq!(
        window(None),
        Window {
            from: START + HOUR,
            until: closed
        }
    );
    assert_eq!(window(Some(START)).from, START - HOUR);
    assert_eq!(
        window(Some(closed)).from,
        START + HOUR,
        "a later failure narrows nothing"
    );
    let early = recovery_window(opened, None, START, HOUR);
    assert_eq!(
        early,
        Window {
            from: START,
            until: START
        },
        "a clock that went back"
    );
}

#[test]
fn failing_counts_from_the_first_failure_after_the_last_success() {
    let mut failing = Failing::default();
    let hours = |n: u32| START + n * HOUR;

    assert!(failing.ended(Outcome::Transient, hours(1)));
    assert!(!failing.ended(Outcome::Misconfigured, hours(2)));
    assert!(!failing.ended(Outcome::Throttled, hours(3)));
    assert_eq!(failing.since(), Some(hours(1)));

    assert!(failing.ended(Outcome::Delivered, hours(4)));
    assert_eq!(failing, Failing::default());
    assert!(
        !failing.ended(Outcome::Delivered, hours(5)),
        "nothing to store"
    );

    assert!(failing.ended(Outcome::Permanent, hours(6)));
    assert_eq!(failing.since(), Some(hours(6)));
}

#[test]
fn ten_refusals_without_a_success_are_an_outage_nine_are_not() {
    let mut failing = Failing::default();
    for n in 0..9 {
        failing.ended(Outcome::Permanent, START + n * HOUR);
        failing.ended(Outcome::Throttled, START);
        assert_eq!(failing.refusing_since(), None);
    }
    assert!(failing.ended(Outcome::Permanent, START + 9 * HOUR));
    assert_eq!(failing.refusing_since(), Some(START));
    assert!(!failing.ended(Outcome::Permanent, START + 10 * HOUR));
    assert_eq!(
        Failing::restored(failing.since(), failing.refusing_since()).refusing_since(),
        Some(START)
    );

    assert!(failing.ended(Outcome::Delivered, START + 11 * HOUR));
    assert_eq!(failing.refusing_since(), None);
    for _ in 0..9 {
        failing.ended(Outcome::Permanent, START);
    }
    assert_eq!(failing.refusing_since(), None);
}

#[test]
fn one_bad_payload_among_good_ones_is_no_outage() {
    let mut failing = Failing::default();
    for _ in 0..1_000 {
        failing.ended(Outcome::Permanent, START);
        failing.ended(Outcome::Delivered, START);
    }
    assert_eq!(failing.refusing_since(), None);
    assert_eq!(
        disable_due(failing.since(), START + 1_000 * HOUR, 120 * HOUR),
        Disable::Not
    );
}

#[test]
fn an_endpoint_is_given_up_after_its_time_and_told_at_half() {
    let limit = 120 * HOUR;
    let after = |n: u32| disable_due(Some(START), START + n * HOUR, limit);
    assert_eq!(
        [after(0), after(59), after(60)],
        [Disable::Not, Disable::Not, Disable::Soon]
    );
    assert_eq!(
        [after(119), after(120), after(9_999)],
        [Disable::Soon, Disable::Due, Disable::Due]
    );
    assert_eq!(disable_due(None, START, limit), Disable::Not);
    assert_eq!(
        disable_due(Some(START), START + 9_999 * HOUR, Duration::ZERO),
        Disable::Not
    );
    assert_eq!(
        disable_due(Some(START), START - HOUR, limit),
        Disable::Not,
        "a clock that went back"
    );
}

#[test]
fn ladders_have_the_documented_lengths() {
    let fast = EndpointSettings::default();
    assert_eq!(longest_ladder(&fast), Duration::from_secs(900 + 5 * 15));

    let standard_webhooks = Backoff::Preset(Preset::StandardWebhooks);
    let standard = EndpointSettings {
        backoff: standard_webhooks,
        max_attempts: standard_webhooks.default_attempts(),
        ..EndpointSettings::default()
    };
    let hours = 2 + 5 + 10 + 14 + 20 + 24;
    let seconds = hours * 3_600 + 35 * 60 + 5 + 10 * 15;
    assert_eq!(longest_ladder(&standard), Duration::from_secs(seconds));

    let endless = EndpointSettings {
        max_attempts: u16::MAX,
        ..standard
    };
    assert_eq!(longest_ladder(&endless), endless.max_age());
}

fn any_instant() -> impl Strategy<Value = OffsetDateTime> {
    (-377_705_116_800_i64..=253_402_300_799)
        .prop_map(|seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap())
}

proptest! {
    #[test]
    fn no_instant_of_the_calendar_breaks_the_rules(
        opened in any_instant(),
        failing in prop::option::of(any_instant()),
        closed in any_instant(),
        length in (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, n)| Duration::new(s, n)),
    ) {
        let window = recovery_window(opened, failing, closed, length);
        prop_assert!(window.from <= window.until);
        prop_assert!(window.from <= opened || closed <= opened);
        let now = disable_due(failing, closed, length);
        prop_assert!(failing.is_some() || now == Disable::Not);
    }
}
