//! Randomness that is a function of numbers, never of shapes, order or support.

use std::ops::Range;

use mlx_rs::Array;

use crate::Result;

/// Standard Gumbel noise for every (slot, id), an element-wise hash of seed, slot and id.
///
/// # Shapes
/// `ids` is [n,k] or [k] (the same for every row), one row per slot → [n,k] float32.
pub fn noise(seed: u64, slots: Range<usize>, ids: &Array) -> Result<Array> {
    unimplemented!("{seed} {slots:?} {ids:?}")
}

/// One uniform number in (0,1) per slot, independent of [`noise`] under the same seed.
///
/// # Shapes
/// → [n] float32.
pub fn uniform(seed: u64, slots: Range<usize>) -> Result<Array> {
    unimplemented!("{seed} {slots:?}")
}

/// The SplitMix64 counter stream: independent keys for the draws of one unseeded request.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A stream that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
