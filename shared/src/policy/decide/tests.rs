use proptest::prelude::*;
use time::macros::datetime;

use super::*;
use crate::domain::endpoint::{Backoff, Preset};
use crate::policy::backoff::cap;
use crate::policy::retry_after::MAX_RETRY_AFTER;

const CREATED: OffsetDateTime = datetime!(2026-11-29 12:00 UTC);
const NOW: OffsetDateTime = datetime!(2026-11-29 12:01 UTC);

fn progress(made: u16, charged: u16) -> Progress {
    Progress {
        attempts_made: made,
        attempts_charged: charged,
        created_at: CREATED,
        deliver_before: None,
    }
}

fn verdict(outcome: Outcome) -> Verdict {
    Verdict::without_request(outcome)
}

fn half() -> UnitInterval {
    UnitInterval::new(0.5).unwrap()
}

fn decided(progress: Progress, verdict: Verdict) -> Decided {
    decide(
        &EndpointSettings::default(),
        &progress,
        &verdict,
        NOW,
        half(),
    )
}

fn seconds_later(seconds: i64) -> OffsetDateTime {
    NOW + time::Duration::seconds(seconds)
}

#[test]
fn each_outcome_has_its_consequence() {
    let cases = [
        (Outcome::Delivered, Decision::Complete, 1),
        (Outcome::Transient, Decision::RetryAt(seconds_later(30)), 1),
        (
            Outcome::Misconfigured,
            Decision::RetryAt(seconds_later(30)),
            1,
        ),
        (Outcome::Throttled, Decision::RetryAt(seconds_later(30)), 0),
        (
            Outcome::Permanent,
            Decision::DeadLetter(DeadLetterClass::Permanent),
            1,
        ),
        (
            Outcome::Gone,
            Decision::DisableEndpoint(CloseReason::Gone),
            1,
        ),
        (
            Outcome::Internal,
            Decision::DeadLetter(DeadLetterClass::Internal),
            0,
        ),
        (
            Outcome::Refused,
            Decision::DeadLetter(DeadLetterClass::Refused),
            0,
        ),
        (
            Outcome::Expired,
            Decision::DeadLetter(DeadLetterClass::Expired),
            0,
        ),
    ];
    assert_eq!(cases.len(), Outcome::ALL.len());
    for (outcome, decision, charged) in cases {
        let decided = decided(progress(1, 0), verdict(outcome));
        assert_eq!(decided.decision, decision, "{outcome:?}");
        assert_eq!(decided.charged, charged, "{outcome:?}");
        assert_eq!(
            decided.reason.is_some(),
            matches!(decision, Decision::DeadLetter(_)),
            "{outcome:?}"
        );
    }
}

#[test]
fn the_ladder_ends_at_max_attempts_with_the_class_of_the_last_outcome() {
    for (outcome, class) in [
        (Outcome::Transient, DeadLetterClass::Transient),
        (Outcome::Misconfigured, DeadLetterClass::Misconfigured),
    ] {
        let fourth = decided(progress(4, 3), verdict(outcome));
        assert!(matches!(fourth.decision, Decision::RetryAt(_)));
        assert_eq!(fourth.charged, 4);

        let fifth = decided(progress(5, 4), verdict(outcome));
        assert_eq!(fifth.decision, Decision::DeadLetter(class));
        assert_eq!(fifth.charged, 5);
    }
}

#[test]
fn a_429_never_spends_the_ladder_and_waits_longer_each_time() {
    let hasty = EndpointSettings {
        backoff: Backoff::doubling(0, 0),
        ..EndpointSettings::default()
    };
    let waits = |made, draw| {
        let decided = decide(
            &hasty,
            &progress(made, 4),
            &verdict(Outcome::Throttled),
            NOW,
            UnitInterval::new(draw).unwrap(),
        );
        assert_eq!(decided.charged, 4);
        assert!(!decided.exhausted);
        let Decision::RetryAt(next) = decided.decision else {
            panic!("{:?}", decided.decision);
        };
        (next - NOW).as_seconds_f64()
    };
    let longest: Vec<f64> = [1, 2, 3, 12, 13, 14, MAX_ATTEMPTS_MADE - 1]
        .map(|made| waits(made, 1.0))
        .to_vec();
    assert_eq!(longest, [1.0, 2.0, 4.0, 2_048.0, 3_600.0, 3_600.0, 3_600.0]);
    assert_eq!(
        [waits(1, 0.0), waits(2, 0.0), waits(20, 0.0)],
        [1.0, 1.0, 1_800.0]
    );
}

#[test]
fn days_of_429s_are_some_hundred_requests() {
    let settings = EndpointSettings {
        backoff: Backoff::doubling(1, 1),
        ..EndpointSettings::default()
    };
    let mut now = CREATED;
    for made in 1..=300 {
        let decided = decide(
            &settings,
            &progress(made, 0),
            &verdict(Outcome::Throttled),
            now,
            half(),
        );
        let Decision::RetryAt(next) = decided.decision else {
            let throttled = Decision::DeadLetter(DeadLetterClass::Throttled);
            assert_eq!(decided.decision, throttled);
            return;
        };
        now = next;
    }
    panic!("still going after 300 requests");
}

#[test]
fn only_a_ladder_that_failed_to_its_end_is_exhausted() {
    for &outcome in Outcome::ALL {
        let failure = matches!(outcome, Outcome::Transient | Outcome::Misconfigured);
        assert!(!decided(progress(4, 3), verdict(outcome)).exhausted);
        assert_eq!(
            decided(progress(5, 4), verdict(outcome)).exhausted,
            failure,
            "{outcome:?}"
        );
    }
    let hurried = Progress {
        deliver_before: Some(seconds_later(1)),
        ..progress(1, 0)
    };
    let decided = decided(hurried, verdict(Outcome::Transient));
    assert_eq!(
        decided.decision,
        Decision::DeadLetter(DeadLetterClass::Expired)
    );
    assert!(
        !decided.exhausted,
        "a short life says nothing about the endpoint"
    );
}

#[test]
fn an_attempt_that_is_nobodys_fault_is_forgiven_three_times_and_repeated_at_once() {
    let lost = Verdict {
        blameless: true,
        ..verdict(Outcome::Transient)
    };
    for (made, charged, expected) in [
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
        (4, 0, 1),
        (5, 1, 2),
        (6, 4, 4),
        (8, 4, 5),
    ] {
        let decided = decided(progress(made, charged), lost);
        assert_eq!(decided.charged, expected, "made {made}, charged {charged}");
        assert_eq!(decided.forgiven, expected == charged);
        if decided.forgiven {
            let Decision::RetryAt(next) = decided.decision else {
                panic!("{decided:?}");
            };
            assert!(next <= seconds_later(1), "{next}");
        }
    }
}

#[test]
fn without_a_socket_nothing_is_charged_and_it_is_sent_again_within_half_a_minute() {
    let short = Verdict {
        blameless: true,
        ..verdict(Outcome::Internal)
    };
    let mut waits = Vec::new();
    for made in [1, 2, 3, 5, 6, 100] {
        let decided = decided(progress(made, 4), short);
        assert_eq!(decided.charged, 4, "{made}");
        assert!(decided.forgiven && !decided.exhausted, "{made}");
        let Decision::RetryAt(next) = decided.decision else {
            panic!("{decided:?}");
        };
        waits.push((next - NOW).as_seconds_f64());
    }
    assert_eq!(waits, [1.0, 1.5, 3.0, 12.0, 22.5, 22.5]);

    let old = Progress {
        created_at: NOW - time::Duration::days(5),
        ..progress(1, 0)
    };
    assert_eq!(
        decided(old, short).decision,
        Decision::DeadLetter(DeadLetterClass::Expired)
    );
}

#[test]
fn a_retry_past_the_end_of_life_is_a_dead_letter_at_once() {
    let late = |created_at, deliver_before, outcome| {
        let progress = Progress {
            created_at,
            deliver_before,
            ..progress(1, 0)
        };
        decided(progress, verdict(outcome)).decision
    };
    let expired = Decision::DeadLetter(DeadLetterClass::Expired);
    let old = NOW - time::Duration::days(5);

    assert_eq!(
        late(CREATED, Some(seconds_later(30)), Outcome::Transient),
        expired
    );
    assert_eq!(
        late(CREATED, Some(seconds_later(31)), Outcome::Transient),
        Decision::RetryAt(seconds_later(30))
    );
    assert_eq!(late(old, None, Outcome::Transient), expired);
    assert_eq!(
        late(old, Some(seconds_later(9_000)), Outcome::Misconfigured),
        expired
    );
    assert_eq!(
        late(old, None, Outcome::Throttled),
        Decision::DeadLetter(DeadLetterClass::Throttled)
    );
}

#[test]
fn an_exhausted_ladder_is_named_so_even_at_the_end_of_life() {
    let progress = Progress {
        created_at: NOW - time::Duration::days(9),
        ..progress(5, 4)
    };
    let decided = decided(progress, verdict(Outcome::Transient));
    assert_eq!(
        decided.decision,
        Decision::DeadLetter(DeadLetterClass::Transient)
    );
}

prop_compose! {
    fn any_settings()(
        base_seconds in prop_oneof![0_u32..=600, any::<u32>()],
        max_seconds in prop_oneof![0_u32..=604_800, any::<u32>()],
        preset in prop::bool::weighted(0.2),
        max_attempts in prop_oneof![0_u16..=50, any::<u16>()],
        max_age_seconds in prop_oneof![0_u32..=864_000, any::<u32>()],
    ) -> EndpointSettings {
        EndpointSettings {
            backoff: if preset {
                Backoff::Preset(Preset::StandardWebhooks)
            } else {
                Backoff::doubling(base_seconds, max_seconds)
            },
            max_attempts,
            max_age_seconds,
            ..EndpointSettings::default()
        }
    }
}

fn any_instant() -> impl Strategy<Value = OffsetDateTime> {
    prop_oneof![
        1_700_000_000_i64..=1_900_000_000,
        -377_705_116_800_i64..=253_402_300_799,
    ]
    .prop_map(|seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap())
}

prop_compose! {
    fn any_case()(
        settings in any_settings(),
        made in prop_oneof![1_u16..=60, 1..=u16::MAX],
        charged in any::<prop::sample::Index>(),
        created_at in any_instant(),
        waited in prop_oneof![0_i64..=864_000, Just(0)],
        deliver_before in proptest::option::of(any_instant()),
        outcome in prop::sample::select(Outcome::ALL),
        wait in proptest::option::of(1..=MAX_RETRY_AFTER.as_secs()),
        blameless in any::<bool>(),
        draw in 0.0..=1.0_f64,
    ) -> (EndpointSettings, Progress, Verdict, OffsetDateTime, UnitInterval) {
        let limit = usize::from(made.min(settings.max_attempts.saturating_add(1)));
        let attempts_charged = u16::try_from(charged.index(limit.max(1))).unwrap();
        let progress = Progress { attempts_made: made, attempts_charged, created_at, deliver_before };
        let verdict = Verdict { outcome, retry_after: wait.map(Duration::from_secs), blameless };
        let now = created_at.checked_add(time::Duration::seconds(waited)).unwrap_or(created_at);
        (settings, progress, verdict, now, UnitInterval::new(draw).unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    #[test]
    fn d4_charged_never_passes_max_attempts_and_rises_by_at_most_one(
        (settings, progress, verdict, now, jitter) in any_case()
    ) {
        let decided = decide(&settings, &progress, &verdict, now, jitter);
        prop_assert!(decided.charged <= settings.max_attempts.max(progress.attempts_charged));
        prop_assert!(decided.charged >= progress.attempts_charged);
        prop_assert!(decided.charged - progress.attempts_charged <= 1);
        if matches!(decided.decision, Decision::RetryAt(_)) {
            prop_assert!(decided.charged < settings.max_attempts);
        }
    }

    #[test]
    fn d5_a_retry_is_neither_in_the_past_nor_further_than_the_bound_nor_after_the_end(
        (settings, progress, verdict, now, jitter) in any_case()
    ) {
        let decided = decide(&settings, &progress, &verdict, now, jitter);
        if let Decision::RetryAt(next) = decided.decision {
            prop_assert!(next >= now);
            prop_assert!(next <= later(now, cap(&settings.backoff).max(MAX_RETRY_AFTER)));
            prop_assert!(next < later(progress.created_at, settings.max_age()));
            prop_assert!(progress.deliver_before.is_none_or(|end| next < end));
        }
    }

    #[test]
    fn d5_retry_after_only_delays(
        (settings, progress, verdict, now, jitter) in any_case()
    ) {
        let without = Verdict { retry_after: None, ..verdict };
        let plain = decide(&settings, &progress, &without, now, jitter);
        let asked = decide(&settings, &progress, &verdict, now, jitter);
        prop_assert_eq!(plain.charged, asked.charged);
        match (plain.decision, asked.decision) {
            (Decision::RetryAt(plain), Decision::RetryAt(asked)) => {
                prop_assert!(plain <= asked);
                if let Some(wait) = verdict.retry_after {
                    prop_assert!(asked >= now + wait);
                }
            }
            (Decision::RetryAt(_), Decision::DeadLetter(class)) => {
                prop_assert!(matches!(class, DeadLetterClass::Expired | DeadLetterClass::Throttled));
            }
            (plain, asked) => prop_assert_eq!(plain, asked),
        }
    }

    /// D4, D8: a ladder of transient failures and lost requests ends, whatever the delays.
    #[test]
    fn every_ladder_ends(
        max_attempts in 1_u16..=30,
        losses in proptest::collection::vec(any::<bool>(), 40),
        draw in 0.0..=1.0_f64,
    ) {
        let settings = EndpointSettings { max_attempts, ..EndpointSettings::default() };
        let jitter = UnitInterval::new(draw).unwrap();
        let mut now = CREATED;
        let mut charged = 0;
        for (made, blameless) in (1..).zip(losses) {
            let verdict = Verdict { blameless, ..verdict(Outcome::Transient) };
            let decided = decide(&settings, &progress(made, charged), &verdict, now, jitter);
            charged = decided.charged;
            if let Decision::RetryAt(next) = decided.decision {
                now = next;
                continue;
            }
            prop_assert_eq!(decided.decision, Decision::DeadLetter(DeadLetterClass::Transient));
            prop_assert!(made <= max_attempts + MAX_FORGIVEN);
            return Ok(());
        }
        prop_assert!(false, "still going after 40 attempts");
    }
}

#[test]
fn a_test_has_one_attempt_and_leaves_no_dead_letter() {
    let failed = Decision::Close(CloseReason::TestFailed);
    for (outcome, expected) in [
        (Outcome::Delivered, Decision::Complete),
        (Outcome::Transient, failed),
        (Outcome::Misconfigured, failed),
        (Outcome::Throttled, failed),
        (Outcome::Permanent, failed),
        (Outcome::Internal, failed),
        (Outcome::Refused, failed),
        (Outcome::Expired, failed),
        (Outcome::Gone, Decision::DisableEndpoint(CloseReason::Gone)),
    ] {
        let last = EndpointSettings::default().max_attempts;
        for made in [1, last] {
            let of_a_test = decided(progress(made, made - 1), verdict(outcome)).of_a_test();
            assert_eq!((of_a_test.decision, of_a_test.exhausted), (expected, false));
        }
    }
    assert_eq!(
        CloseReason::TestFailed.status(),
        crate::domain::delivery::Status::Cancelled
    );
}
