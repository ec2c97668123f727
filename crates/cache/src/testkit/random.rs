//! The kit's own random numbers: the same on every machine, for ever.

/// A SplitMix64 sequence (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
#[derive(Debug, Clone)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of one of many numbered cases of a seed.
    pub fn case(seed: u64, case: u64) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next() ^ case.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// A number below `bound`; 0 if the bound is 0. The bias is far below what a test could see.
    pub fn below(&mut self, bound: usize) -> usize {
        match bound {
            0 => 0,
            _ => (self.next() % bound as u64) as usize,
        }
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
