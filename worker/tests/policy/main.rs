//! Delivery policy as a whole: the real scheduler beside a small machine that was written from the table of
//! architecture §6, for one endpoint and a store that answers at once, through any sequence of events,
//! outcomes, waits, crashes, hand-overs and changes. Shrinks to a case that can be read.
//!
//! After each step the scheduler has sent nothing that the [`reference`] machine forbids (B1, R1, the caps of
//! O1), and waits with nothing that it allows: no wedge.
//!
//! `POSTRIDER_POLICY_CASES=200000 cargo test -p postrider-worker --test policy` tries more.
//!
//! Not here: several workers and lost answers, which is what `tests/model` is for.
#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::float_arithmetic,
    reason = "a test: what should not be stops it, and the rest of a match is what is not looked at"
)]

mod bench;
mod reference;
mod shell;
mod step;
mod store;

use proptest::prelude::*;

use bench::Bench;
use step::{Step, steps};

/// Of some forty steps each.
fn cases() -> u32 {
    let wanted = std::env::var("POSTRIDER_POLICY_CASES").ok();
    wanted
        .and_then(|wanted| wanted.parse().ok())
        .unwrap_or(10_000)
}

fn run(steps: &[Step]) -> Result<(), String> {
    let mut bench = Bench::new();
    for (number, step) in steps.iter().enumerate() {
        bench
            .step(*step)
            .map_err(|what| format!("step {}, {step:?}: {what}", number + 1))?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// B1, R1, O1
    #[test]
    fn what_is_sent_is_what_the_table_allows(steps in steps()) {
        if let Err(what) = run(&steps) {
            prop_assert!(false, "{what}");
        }
    }
}

/// Every rule is met in a run that can be followed by hand.
#[test]
fn an_outage_from_its_first_failure_to_its_end() {
    use step::Reply::{Fails, Works};
    use step::Step::{Answer, Crash, HandOver, Post, Wait};

    let outage = [
        Post(2),
        Answer(0, Fails),
        Wait(1_000),
        Answer(0, Fails),
        Wait(2_000),
        Answer(0, Fails),
        Crash,
        Wait(3_000),
        HandOver,
        Answer(0, Fails),
        Wait(6_000),
        Answer(0, Works),
        Post(3),
        Wait(10_000),
    ];

    assert_eq!(run(&outage), Ok(()));
}
