//! Hostile texts against the rules that strangers' input meets first: URLs and addresses, headers,
//! `Retry-After`, keys and signatures.
//!
//! `make fuzz` runs this for long (`POSTRIDER_FUZZ_CASES`); the tests run a short form of the same.
//!
//! # Why
//! Text that is random all over is refused at its first character and tests nothing behind it. So
//! texts are put together from parts that parsers disagree about, and each file has a test that
//! enough of them are taken.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and the line says where"
)]

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

mod headers;
mod retry_after;
mod signatures;
mod urls;

/// Cases of each rule in the tests: a second or two of a debug build.
const SHORT: u32 = 2_000;

/// Enough for a share in percent.
const SAMPLES: usize = 1_000;

fn config() -> ProptestConfig {
    let cases = std::env::var("POSTRIDER_FUZZ_CASES").ok();
    // A number that is misspelled must not pass for a long run.
    let cases = cases.map(|text| text.parse().unwrap());
    ProptestConfig {
        cases: cases.unwrap_or(SHORT),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// How many of a hundred values a rule takes, the same in every run.
fn percent_taken<S: Strategy>(values: &S, takes: impl Fn(S::Value) -> bool) -> usize {
    let mut runner = TestRunner::deterministic();
    let taken = (0..SAMPLES)
        .filter(|_| takes(values.new_tree(&mut runner).unwrap().current()))
        .count();
    taken * 100 / SAMPLES
}
