//! The laws of what is remembered.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

const START: BootTime = BootTime(Duration::from_secs(1_000_000));

fn found(last: u8, ttl: u64) -> Reply {
    Ok(Found {
        addresses: Arc::new([Ipv4Addr::new(1, 1, 1, last).into()]),
        ttl: Duration::from_secs(ttl),
    })
}

fn not_found(failure: LookupFailed, ttl: Option<u64>) -> Reply {
    Err(NotFound {
        failure,
        ttl: ttl.map(Duration::from_secs),
    })
}

fn later(seconds: f64) -> BootTime {
    START.after(Duration::from_secs_f64(seconds))
}

#[test]
fn an_answer_holds_for_its_ttl_within_limits() {
    use LookupFailed::{NoAddress, NoSuchName, Overloaded, Refused, ServerFailure, TimedOut};
    let cases = [
        (found(1, 0), 1.0),
        (found(1, 1), 1.0),
        (found(1, 17), 17.0),
        (found(1, 30), 30.0),
        (found(1, 4_294_967_295), 30.0),
        (not_found(NoSuchName, None), 5.0),
        (not_found(NoSuchName, Some(0)), 5.0),
        (not_found(NoAddress, Some(12)), 12.0),
        (not_found(NoAddress, Some(86_400)), 30.0),
        (not_found(ServerFailure, Some(86_400)), 2.0),
        (not_found(TimedOut, None), 2.0),
        (not_found(Refused, None), 2.0),
        (not_found(Overloaded, None), 2.0),
    ];
    for (reply, seconds) in cases {
        let entry = Entry::after(None, reply.clone(), START);
        assert!(entry.fresh(later(seconds - 0.001)).is_some(), "{reply:?}");
        assert_eq!(entry.fresh(later(seconds)), None, "{reply:?}");
    }
}

#[test]
fn n2_the_last_good_answer_stands_in_for_an_hour_and_no_longer() {
    let Ok(Found { addresses, .. }) = found(1, 30) else {
        unreachable!()
    };
    let good = Entry::after(None, found(1, 30), START);
    let mut entry = good;
    for seconds in [30, 100, 1_800, 3_629] {
        let now = later(f64::from(seconds));
        entry = Entry::after(Some(entry), LookupFailed::ServerFailure.into_reply(), now);
        assert_eq!(entry.given(now), Given::Stale(Arc::clone(&addresses)));
    }
    assert_eq!(entry.usable(later(3_630.0)), None);
    assert_eq!(
        entry.given(later(3_630.0)),
        Given::Failed(LookupFailed::ServerFailure)
    );
}

#[test]
fn a_good_answer_ends_an_outage_at_once() {
    let entry = Entry::after(None, found(1, 30), START);
    let entry = Entry::after(
        Some(entry),
        LookupFailed::TimedOut.into_reply(),
        later(40.0),
    );
    let entry = Entry::after(Some(entry), found(2, 30), later(41.0));
    let Ok(Found { addresses, .. }) = found(2, 30) else {
        unreachable!()
    };
    assert_eq!(entry.fresh(later(41.0)), Some(Given::Addresses(addresses)));
}

impl LookupFailed {
    fn into_reply(self) -> Reply {
        not_found(self, None)
    }
}

fn replies() -> impl Strategy<Value = Reply> {
    use LookupFailed::{NoAddress, NoSuchName, Overloaded, Refused, ServerFailure, TimedOut};
    let failures = prop::sample::select(vec![
        NoSuchName,
        NoAddress,
        ServerFailure,
        TimedOut,
        Refused,
        Overloaded,
    ]);
    prop_oneof![
        (any::<u8>(), 0..100_000_u64).prop_map(|(last, ttl)| found(last, ttl)),
        (failures, prop::option::of(0..100_000_u64))
            .prop_map(|(failure, ttl)| not_found(failure, ttl)),
    ]
}

/// A name's history: after how long the next look-up ended, and with what.
fn histories() -> impl Strategy<Value = Vec<(u64, Reply)>> {
    prop::collection::vec((0..6_000_u64, replies()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// N1 and N2 against the plain history instead of what the entry makes of it.
    #[test]
    fn n1_n2_what_is_given_is_the_last_word_or_stands_in_for_silence(
        history in histories(),
        after in 0..6_000_u64,
    ) {
        let mut now = START;
        let mut entry = None;
        let mut last_word: Option<(BootTime, Reply)> = None;
        for (pause, reply) in &history {
            now = now.after(Duration::from_secs(*pause));
            if reply.as_ref().map_or_else(|none| none.failure.is_answer(), |_| true) {
                last_word = Some((now, reply.clone()));
            }
            entry = Some(Entry::after(entry, reply.clone(), now));
        }
        let asked_at = now.after(Duration::from_secs(after));
        let given = entry.unwrap().given(asked_at);
        let silent_for = |at| asked_at.since(at);
        let usable_for = |ttl: Duration| {
            ttl.clamp(Duration::from_secs(1), Duration::from_secs(30)) + Duration::from_secs(3_600)
        };

        match (given, last_word, history.last()) {
            (Given::Addresses(given), Some((_, Ok(found))), Some((_, Ok(_)))) => {
                prop_assert_eq!(given, found.addresses);
            }
            (Given::Stale(given), Some((at, Ok(found))), Some((_, Err(_)))) => {
                prop_assert_eq!(given, found.addresses);
                prop_assert!(silent_for(at) < usable_for(found.ttl));
            }
            (Given::Failed(failure), Some((at, Ok(found))), Some((_, Err(last)))) => {
                prop_assert_eq!(failure, last.failure);
                prop_assert!(silent_for(at) >= usable_for(found.ttl));
            }
            (Given::Failed(failure), Some((_, Err(_))) | None, Some((_, Err(last)))) => {
                prop_assert_eq!(failure, last.failure);
            }
            (given, said, _) => prop_assert!(false, "{given:?} though DNS said {said:?}"),
        }
    }

    #[test]
    fn nothing_is_given_without_asking_for_longer_than_half_a_minute(reply in replies()) {
        let entry = Entry::after(None, reply, START);
        prop_assert_eq!(entry.fresh(later(30.0)), None);
    }
}
