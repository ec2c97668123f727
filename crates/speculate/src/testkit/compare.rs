//! Comparing what two sessions know, on the host.

use std::fmt;

use foretoken_cache::{CacheSet, Layer};
use mlx_rs::{Array, Dtype, error::Exception};

use crate::Result;

/// Largest |a − b| over largest |b| that still counts as equal: rows of one forward and of several sum in
/// another order, and a hidden state has passed through a whole model.
const STATE_TOLERANCE: f32 = 1e-3;

/// Below this a largest value counts as zero.
const SMALL: f32 = 1e-6;

/// How two states differ.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// Other token ids, or another number of them.
    Ids,
    /// Other lengths.
    Length {
        /// The fresh session's.
        expected: usize,
        /// The subject's.
        got: usize,
    },
    /// Values, relative to the largest.
    Values(f32),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Ids => f.write_str("their ids"),
            Difference::Length { expected, got } => write!(f, "their length ({got} instead of {expected})"),
            Difference::Values(largest) => write!(f, "{largest:.3e} of the largest value"),
        }
    }
}

/// How two rows of numbers differ; `None` within the tolerance. Equal infinities do not differ.
pub(crate) fn rows(got: &[f32], want: &[f32]) -> Option<Difference> {
    if got.len() != want.len() {
        return Some(Difference::Length { expected: want.len(), got: got.len() });
    }
    let largest = want.iter().filter(|v| v.is_finite()).fold(SMALL, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(want).filter(|(a, b)| a != b).map(|(a, b)| (a - b).abs()).fold(0.0, worse);
    let relative = worst / largest;
    (relative.is_nan() || relative > STATE_TOLERANCE).then_some(Difference::Values(relative))
}

/// The larger number; not a number is worst.
fn worse(a: f32, b: f32) -> f32 {
    if b.is_nan() || b > a { b } else { a }
}

/// How two cache sets differ in offset or contents.
pub(crate) fn sets(got: &CacheSet, want: &CacheSet) -> Result<Option<Difference>> {
    if got.offset() != want.offset() {
        return Ok(Some(Difference::Length { expected: want.offset(), got: got.offset() }));
    }
    let (got, want) = (contents(got)?, contents(want)?);
    Ok(got.iter().zip(&want).find_map(|(a, b)| rows(a, b)))
}

/// Everything a set holds: keys and values of each layer, or tail and state where a layer folds the past.
pub(crate) fn contents(set: &CacheSet) -> Result<Vec<Vec<f32>>> {
    let mut all = Vec::new();
    for layer in set.layers() {
        let arrays = match layer {
            Layer::Recurrent(folded) => {
                let state = folded.state()?;
                [state.tail, state.state]
            }
            _ => layer.get().view()?.map_or([None, None], |view| [Some(view.keys), Some(view.values)]),
        };
        for array in arrays.iter().flatten() {
            all.push(floats(array)?);
        }
    }
    Ok(all)
}

/// A number that changes when any bit of the contents does (Fowler, Noll, Vo: FNV-1a).
pub(crate) fn fingerprint(set: &CacheSet) -> Result<u64> {
    let words = contents(set)?;
    let hash = |hash: u64, value: &f32| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
    Ok(words.iter().flatten().fold(0xcbf2_9ce4_8422_2325 ^ set.offset() as u64, hash))
}

pub(crate) fn floats(array: &Array) -> Result<Vec<f32>> {
    let row_major = array.as_dtype(Dtype::Float32)?.contiguous()?;
    Ok(row_major.to_vec_exact().map_err(|err| Exception::custom(err.to_string()))?)
}
