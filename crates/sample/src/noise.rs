//! Randomness that is a function of numbers, never of shapes, order or support.
//!
//! Seed and slot are mixed on the host into 64 bits per row; each element then costs two rounds of a
//! 32-bit finaliser on the device. Every step is exact integer arithmetic, so the same three numbers give
//! the same noise in a row of the whole vocabulary and in a row of forty candidates.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{column, scalar, shift_right, word, xor};
use crate::{Result, SampleError};

/// Separates the streams of [`noise`] and [`uniform`] under one seed.
const NOISE_DOMAIN: u64 = 0x6775_6d62_656c_0001;
const UNIFORM_DOMAIN: u64 = 0x756e_6966_6f72_0002;

/// 2⁻³².
const TINY: f32 = 1.0 / 4_294_967_296.0;

/// The largest float32 below 1.
const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// Elements per group of the logarithms. Vector units may compute a group and its left-over tail with
/// different code; whole groups keep the value of an element free of its place.
const LANES: i32 = 64;

/// Standard Gumbel noise for every (slot, id), an element-wise hash of seed, slot and id.
///
/// With h the 32-bit hash, v = (h + ½)/2³² and g = −ln(−ln v), which is never infinite.
///
/// # Shapes
/// `ids` is `[n,k]` or `[k]` (the same for every row), one row per slot → `[n,k]` float32.
pub fn noise(seed: u64, slots: Range<usize>, ids: &Array) -> Result<Array> {
    let rows = slots.len() as i32;
    match *ids.shape() {
        [_] => {}
        [n, _] if n == rows => {}
        ref other => {
            return Err(SampleError::Shape {
                what: "noise ids",
                expected: format!("[k] or [{rows},k]"),
                got: format!("{other:?}"),
            });
        }
    }
    gumbel(&hash(seed, slots, ids)?)
}

/// One uniform number in (0,1) per slot, independent of [`noise`] under the same seed.
///
/// # Shapes
/// → `[n]` float32.
pub fn uniform(seed: u64, slots: Range<usize>) -> Result<Array> {
    let rows = slots.len() as i32;
    let values = slots.map(|slot| {
        let high = (row_key(seed, slot, UNIFORM_DOMAIN) >> 32) as f64;
        // Rounding to float32 may reach 1, which would reject a certain token.
        (((high + 0.5) * f64::from(TINY)) as f32).min(BELOW_ONE)
    });
    Ok(Array::from_slice(&values.collect::<Vec<f32>>(), &[rows]))
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
        self.state = self.state.wrapping_add(GOLDEN);
        mix64(self.state)
    }
}

/// 2⁶⁴ divided by the golden ratio: the step of the counter.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 64 bits for one row: element `slot` of the counter stream that starts at the hashed seed.
fn row_key(seed: u64, slot: usize, domain: u64) -> u64 {
    let start = mix64(mix64(seed.wrapping_add(GOLDEN)) ^ domain);
    mix64(start.wrapping_add(GOLDEN.wrapping_mul(slot as u64 + 1)))
}

/// The 32-bit hash of (seed, slot, id): `[k]` or `[n,k]` → `[n,k]` uint32.
fn hash(seed: u64, slots: Range<usize>, ids: &Array) -> Result<Array> {
    let rows = slots.len() as i32;
    let keys: Vec<u64> = slots.map(|slot| row_key(seed, slot, NOISE_DOMAIN)).collect();
    let words = |shift: u32| -> Vec<u32> { keys.iter().map(|key| (key >> shift) as u32).collect() };
    let (low, high) = (Array::from_slice(&words(0), &[rows]), Array::from_slice(&words(32), &[rows]));
    let first = finalise(&xor(&ids.as_dtype(Dtype::Uint32)?, &column(&low)?)?)?;
    finalise(&first.add(column(&high)?)?)
}

/// The finaliser of MurmurHash3 (Austin Appleby, aappleby/smhasher src/MurmurHash3.cpp), a bijection.
fn finalise(x: &Array) -> Result<Array> {
    let x = xor(x, &shift_right(x, 16)?)?.multiply(word(0x85eb_ca6b))?;
    let x = xor(&x, &shift_right(&x, 13)?)?.multiply(word(0xc2b2_ae35))?;
    Ok(xor(&x, &shift_right(&x, 16)?)?)
}

/// g = −ln(−ln v) of v = (h + ½)/2³², any shape.
///
/// Near 1 the float v loses what 1 − v still has, and 1 − v is exact in integers: (~h + ½)/2³². Hence
/// ln v = ln a · (1 − v)/(1 − a) for a float a next to v, accurate everywhere and without a branch
/// (Goldberg: What every computer scientist should know about floating-point arithmetic, 1991, theorem 4).
fn gumbel(h: &Array) -> Result<Array> {
    let (flat, size) = (h.flatten(None, None)?, h.size() as i32);
    let padding = (LANES - size % LANES) % LANES;
    let flat = if padding == 0 { flat } else { ops::pad(&flat, &[(0, padding)], None, None)? };
    let share = |h: &Array| h.as_dtype(Dtype::Float32)?.add(scalar(0.5))?.multiply(scalar(TINY));
    let rest = share(&word(u32::MAX).subtract(&flat)?)?;
    let v = ops::minimum(share(&flat)?, scalar(BELOW_ONE))?;
    let minus_log = v.log()?.multiply(rest.divide(v.add(scalar(-1.0))?)?)?;
    let g = minus_log.log()?.negative()?;
    let g = if padding == 0 { g } else { g.try_index(0..size)? };
    Ok(g.reshape(h.shape())?)
}

#[cfg(test)]
mod tests;
