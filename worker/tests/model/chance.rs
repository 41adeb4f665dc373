//! Chance that can be repeated: all of a run follows from its seed.

/// SplitMix64: eight lines that will never change, so that a seed written down today finds the same
/// run in ten years.
#[derive(Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 (included) to `end` (excluded).
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.draw() % end }
    }

    /// From `from` to `to`, both included.
    pub(crate) const fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// So many times in a thousand.
    pub(crate) const fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// From 0 to 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1 << 20)).unwrap()) / f64::from(1 << 20)
    }

    pub(crate) fn pick<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        these.get(usize::try_from(self.below(u64::try_from(these.len()).unwrap())).unwrap())
    }
}
