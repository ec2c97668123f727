//! Probabilities that are reported, and the check that raw logits can be sampled at all.

use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{best, columns, float32, normalise, pick, scalar};
use crate::{Result, SampleError};

/// Whether each row of raw logits can be sampled: no NaN, no +∞, not all −∞.
///
/// # Shapes
/// `[n,D]` → `[n]` bool.
pub fn finite_rows(logits: &Array) -> Result<Array> {
    let logits = float32(logits)?;
    // A comparison with NaN is false.
    let bounded = logits.lt(scalar(f32::INFINITY))?.all_axis(-1, false)?;
    let possible = logits.gt(scalar(f32::NEG_INFINITY))?.any_axis(-1, false)?;
    Ok(bounded.logical_and(possible)?)
}

/// Log probabilities to report, from raw logits before penalties, temperature and filters.
#[derive(Debug, Clone)]
pub struct Logprobs {
    /// Of the chosen ids, `[n]` or `[n,c]` float32.
    pub chosen: Array,
    /// The most likely ids, best first, `[n,k]` uint32.
    pub top_ids: Array,
    /// Their log probabilities, `[n,k]` float32.
    pub top: Array,
}

/// The full-vocabulary log-softmax at the chosen ids and the `top` most likely ids.
///
/// Of equal ids the lowest comes first; `top` above V gives V columns.
///
/// # Shapes
/// `logits` `[n,V]`, `chosen` `[n]`, or `[n,c]` for several ids in each row.
pub fn logprobs(logits: &Array, chosen: &Array, top: usize) -> Result<Logprobs> {
    let &[rows, width] = logits.shape() else {
        return Err(shape("logits", "[n,V]".into(), logits));
    };
    if chosen.shape() != [rows] && !matches!(*chosen.shape(), [n, _] if n == rows) {
        return Err(shape("chosen ids", format!("[{rows}] or [{rows},c]"), chosen));
    }
    let logits = float32(logits)?;
    let all = normalise(&logits.subtract(best(&logits)?)?)?;
    let chosen = match chosen.ndim() {
        1 => pick(&all, chosen)?,
        _ => all.take_along_axis(chosen, -1)?,
    };
    let top = i32::try_from(top).unwrap_or(i32::MAX).min(width);
    if top == 0 {
        let (top_ids, top) =
            (ops::zeros_dtype(&[rows, 0], Dtype::Uint32)?, ops::zeros_dtype(&[rows, 0], Dtype::Float32)?);
        return Ok(Logprobs { chosen, top_ids, top });
    }
    let candidates = top_columns(&all, top)?;
    let values = all.take_along_axis(&candidates, -1)?;
    let order = ops::argsort_axis(values.negative()?, -1)?;
    let (top_ids, top) = (candidates.take_along_axis(&order, -1)?, values.take_along_axis(&order, -1)?);
    Ok(Logprobs { chosen, top_ids, top })
}

/// The columns of the k largest values of each row, ascending, 1 ≤ k ≤ D: `[n,D]` → `[n,k]` uint32.
pub(crate) fn top_columns(values: &Array, k: i32) -> Result<Array> {
    let order = ops::argpartition_axis(values.negative()?, k - 1, -1)?;
    Ok(ops::sort_axis(columns(&order, 0..k)?, -1)?)
}

fn shape(what: &'static str, expected: String, got: &Array) -> SampleError {
    SampleError::Shape { what, expected, got: format!("{:?}", got.shape()) }
}
