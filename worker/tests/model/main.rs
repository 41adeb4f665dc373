//! Model check of lease, fence, recorder and scan: the worker's real scheduler, tenure, loader answers
//! and records, in several processes, against a simulated database, receivers and clock.
//!
//! Each seed is one run: crashes, pauses, lost answers, late scans, an absent database, changes by the
//! API; then the faults stop and everything must end. D3, D4, D5, D6, B1, R1 and O1 hold at every step,
//! no healthy worker sends twice (see [`check`]), and at the end D8: nothing waits, no breaker stays open, and
//! nothing that died in an outage stays dead.
//!
//! - `POSTRIDER_MODEL_SEEDS=20000 cargo test -p postrider-worker --test model --release` explores more, from
//!   `POSTRIDER_MODEL_FIRST` on.
//! - `POSTRIDER_MODEL_SEED=17 cargo test -p postrider-worker --test model one_seed -- --nocapture` runs
//!   one again and prints how it came to its end (`POSTRIDER_MODEL_TRACE` lines of it).
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::cast_precision_loss,
    clippy::float_arithmetic,
    reason = "a test: what should not be stops it, and the rest of a match is what is not looked at"
)]

mod calls;
mod chance;
mod check;
mod commands;
mod faults;
mod lease;
mod loader;
mod order;
mod policy;
mod receiver;
mod recorder;
mod store;
mod transitions;
mod worker;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use check::{Invariant, Mutation, Violation};
use world::{Counts, World};

/// Seeds of the short form, part of every test run.
const SEEDS: u64 = 400;
/// A mutation is noticed within so many; the rarest needs some hundreds.
const MUTATED_SEEDS: u64 = 5_000;

struct Failure {
    seed: u64,
    violation: Violation,
    trace: Vec<String>,
}

fn explore(seed: u64, mutation: Mutation) -> Result<Counts, Failure> {
    let mut world = World::new(seed, mutation, None);
    let Some(violation) = run(&mut world) else {
        return Ok(world.counts);
    };
    // The same run again, and this time it is written down.
    let mut world = World::new(
        seed,
        mutation,
        Some(setting("POSTRIDER_MODEL_TRACE").unwrap_or(60)),
    );
    let again = run(&mut world);
    assert_eq!(
        again.map(|found| found.invariant),
        Some(violation.invariant),
        "seed {seed}"
    );
    let trace = world.trace.unwrap_or_default().0.into();
    Err(Failure {
        seed,
        violation,
        trace,
    })
}

fn run(world: &mut World) -> Option<Violation> {
    catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Some(Violation {
            invariant: Invariant::Panic,
            text: text.unwrap_or_default(),
        })
    })
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn report(failure: &Failure) -> String {
    format!(
        "seed {} violates {}\n{}\nagain: POSTRIDER_MODEL_SEED={} POSTRIDER_MODEL_TRACE=2000 cargo test -p postrider-worker --test model one_seed",
        failure.seed,
        failure.violation,
        failure.trace.join("\n"),
        failure.seed
    )
}

/// F88 too: a worker ends between any two of its writes, and yet nothing is left in a state that nobody leads it out of.
#[test]
fn the_invariants_hold_in_all_explored_runs() {
    let mut sum = Counts::default();
    let runs = setting("POSTRIDER_MODEL_SEEDS").unwrap_or(SEEDS);
    let first = setting("POSTRIDER_MODEL_FIRST").unwrap_or(0);
    for seed in first..first + runs {
        match explore(seed, Mutation::None) {
            Ok(counts) => sum.add(&counts),
            Err(failure) => panic!("{}", report(&failure)),
        }
    }
    println!("{runs} runs: {sum:?}");
}

#[test]
fn one_seed() {
    let Some(seed) = setting("POSTRIDER_MODEL_SEED") else {
        return;
    };
    match explore(seed, Mutation::None) {
        Ok(counts) => println!("seed {seed}: {counts:?}"),
        Err(failure) => panic!("{}", report(&failure)),
    }
}

/// The first seed whose run notices the mutation, and what it violates.
fn caught(mutation: Mutation, within: u64) -> Option<Failure> {
    (0..within).find_map(|seed| explore(seed, mutation).err())
}

#[test]
fn every_mutation_is_noticed() {
    let cases: [(Mutation, &[Invariant]); 17] = [
        (Mutation::NoFence, &[Invariant::Fence]),
        (Mutation::SnapshotFence, &[Invariant::Fence]),
        (Mutation::StaleLoads, &[Invariant::Repeated]),
        (Mutation::TakeOverSnapshot, &[Invariant::Repeated]),
        (Mutation::RecordsRepeat, &[Invariant::Final]),
        (Mutation::EndlessLease, &[Invariant::Lease]),
        (Mutation::DeathDoesNotWait, &[Invariant::Fence]),
        (
            Mutation::BlindTakeOver,
            &[Invariant::Repeated, Invariant::Fence, Invariant::Rate],
        ),
        (Mutation::NoComparison, &[Invariant::Lost]),
        (Mutation::BlindClosing, &[Invariant::Closed]),
        (Mutation::NotHeads, &[Invariant::Order]),
        (Mutation::FullAfterCrash, &[Invariant::Rate]),
        (Mutation::NoHandOver, &[Invariant::Rate]),
        (Mutation::TwoProbes, &[Invariant::Probe]),
        (Mutation::OutagesForgotten, &[Invariant::Replay]),
        (Mutation::ReplaysOfReplays, &[Invariant::Replay]),
        (Mutation::AlwaysClean, &[Invariant::Replay]),
    ];
    for (mutation, expected) in cases {
        let Some(failure) = caught(mutation, MUTATED_SEEDS) else {
            panic!("{mutation:?} is not noticed in {MUTATED_SEEDS} runs");
        };
        let (seed, violation) = (failure.seed, &failure.violation);
        println!("{mutation:?}: seed {seed}: {violation}");
        assert!(
            expected.contains(&violation.invariant),
            "{mutation:?}: {}",
            report(&failure)
        );
    }
}
