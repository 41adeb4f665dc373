//! The real scheduler beside a reference machine of breaker, token bucket, parking and caps, under random
//! schedules of events, outcomes, crashes and hand-overs of one endpoint. What fails is shrunk by proptest
//! to a short list of steps.
//!
//! The reference is written from the table of architecture §6 and the wording of R1, and shares no code with
//! `shared::policy`: it keeps every start of a request and counts windows. At each start it is asked whether
//! that was allowed (B1, R1, O1); at the end the receiver is well, and everything must have been sent.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test: what should not be stops it, and the rest of a match is what is not looked at"
)]

mod bench;
mod reference;

use proptest::prelude::*;
use shared::domain::attempt::Outcome;

use bench::Bench;

/// What happens next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// So many events come in.
    Post(u8),
    /// Milliseconds pass.
    Wait(u32),
    /// A request ends so: which of those on the wire, after how long, with seconds of `Retry-After`.
    End(Outcome, u8, u16, u8),
    /// The owner is killed; another one takes over.
    Crash,
    /// The owner hands over in order.
    HandOver,
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![
        4 => Just(Outcome::Delivered),
        4 => Just(Outcome::Transient),
        1 => Just(Outcome::Misconfigured),
        1 => Just(Outcome::Throttled),
        1 => Just(Outcome::Permanent),
    ];
    let wait = prop_oneof![1_u32..50, 50_u32..3_000, 3_000_u32..20_000];
    prop_oneof![
        3 => (1_u8..6).prop_map(Step::Post),
        5 => wait.prop_map(Step::Wait),
        9 => (outcome, any::<u8>(), 1_u16..900, prop_oneof![4 => Just(0_u8), 1 => 1_u8..6])
            .prop_map(|(outcome, which, took, retry_after)| Step::End(outcome, which, took, retry_after)),
        1 => Just(Step::Crash),
        1 => Just(Step::HandOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// B1, R1, O1, and no wedge: what waits is sent when the receiver is well again.
    #[test]
    fn nothing_starts_that_the_reference_forbids_and_everything_is_sent_in_the_end(
        steps in prop::collection::vec(step(), 1..120),
        limit in prop_oneof![Just(None), (1_u32..20, 1_u32..6).prop_map(Some)],
    ) {
        let mut bench = Bench::new(limit);
        for step in &steps {
            bench.step(*step);
            if let Some(problem) = bench.problem() {
                return Err(TestCaseError::fail(format!("after {step:?}: {problem}")));
            }
        }
        // Cooldowns double up to 12 s, waits for a token last a second at most.
        for _ in 0..400 {
            bench.all_well();
            bench.step(Step::Wait(500));
            if let Some(problem) = bench.problem() {
                return Err(TestCaseError::fail(format!("at the end: {problem}")));
            }
        }
        prop_assert_eq!(bench.waiting(), 0, "deliveries that nobody sends");
    }
}

#[test]
fn a_breaker_opens_and_closes_in_a_known_schedule() {
    let mut bench = Bench::new(None);
    bench.step(Step::Post(1));
    for _ in 0..3 {
        assert_eq!(bench.on_the_wire(), 1);
        bench.step(Step::End(Outcome::Transient, 0, 10, 0));
        bench.step(Step::Wait(1_000));
    }
    bench.step(Step::Post(3));
    assert_eq!(bench.on_the_wire(), 0, "open");

    bench.step(Step::Wait(3_000));
    assert_eq!(bench.on_the_wire(), 1, "the probe");
    bench.step(Step::End(Outcome::Delivered, 0, 10, 0));
    assert_eq!(bench.on_the_wire(), 1, "the ramp");
    assert_eq!(bench.problem(), None);
}
