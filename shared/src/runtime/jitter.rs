//! Chance: the only place that draws random numbers. Policy takes what was drawn as an argument.
//!
//! The generator is the thread's own, seeded and reseeded by the operating system, and fit for
//! secrets.

use rand::RngExt as _;

use crate::policy::backoff::UnitInterval;

/// Random bytes, fit for secrets and keys.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    generator().random()
}

/// A number from 0 (included) to 1 (excluded), all equally likely.
#[must_use]
pub fn fraction() -> f64 {
    generator().random()
}

/// A draw for policy, all equally likely.
#[must_use]
pub fn draw() -> UnitInterval {
    #[expect(clippy::expect_used, reason = "a fraction is from 0 to 1")]
    UnitInterval::new(fraction()).expect("from 0 to 1")
}

/// A whole number below `end`, all equally likely; 0 when `end` is 0.
#[must_use]
pub fn below(end: u64) -> u64 {
    if end == 0 {
        return 0;
    }
    generator().random_range(0..end)
}

fn generator() -> impl rand::Rng {
    #[expect(clippy::disallowed_methods, reason = "this is where chance comes from")]
    rand::rng()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_range_and_differ() {
        for _ in 0..1_000 {
            assert!((0.0..1.0).contains(&fraction()));
            assert!(below(3) < 3);
            assert!((0.0..1.0).contains(&draw().get()));
        }
        assert_eq!(below(0), 0);
        assert_ne!(bytes::<32>(), bytes::<32>());
    }
}
