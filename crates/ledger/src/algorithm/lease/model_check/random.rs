//! Random numbers that depend only on a seed (SplitMix64), so that each schedule can be played again.

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Returns true in this share of all cases, in percent.
    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        let index = usize::try_from(self.below(all.len() as u64)).unwrap();
        all[index]
    }
}
