//! What is left of a target distribution after a rejected draft.
//!
//! Leviathan, Kalman, Matias: Fast inference from transformers via speculative decoding, 2023; Chen et
//! al.: Accelerating large language model decoding with speculative sampling, 2023.

use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{column, columns, exp, never, scalar, total, word};
use crate::{Distribution, Result, SampleError};

/// Stands for padding where ids are compared; no vocabulary reaches it.
const NOBODY: u32 = i32::MAX as u32;

impl Distribution {
    /// The normalised positive part of `self − draft`, row by row. Where that is empty or not finite the row
    /// is `self`, so that a broken draft row can never bring back the token it proposed.
    pub fn residual(&self, draft: &Distribution) -> Result<Distribution> {
        if self.rows() != draft.rows() {
            return Err(SampleError::Shape {
                what: "draft distribution",
                expected: format!("{} rows", self.rows()),
                got: format!("{} rows", draft.rows()),
            });
        }
        match self {
            // Either some of the point is left, and it is all there is, or nothing is.
            Self::Point { .. } => Ok(self.clone()),
            Self::Dense { logprobs } => {
                let q = exp(&draft.dense(logprobs.dim(-1))?)?;
                Ok(Self::Dense { logprobs: remainder(logprobs, &q, draft)? })
            }
            Self::Sparse { ids, logprobs } => {
                let q = match draft {
                    Self::Dense { logprobs } => exp(&logprobs.take_along_axis(ids, -1)?)?,
                    Self::Point { ids: point } => ids.eq(column(point)?)?.as_dtype(Dtype::Float32)?,
                    Self::Sparse { ids: theirs, logprobs: q } => matched((ids, logprobs), (theirs, q))?,
                };
                Ok(Self::Sparse { ids: ids.clone(), logprobs: remainder(logprobs, &q, draft)? })
            }
        }
    }
}

/// Log of the normalised max(p − q, 0), or p: log p `[n,k]`, q at the same ids `[n,k]` → `[n,k]`.
fn remainder(logprobs: &Array, q: &Array, draft: &Distribution) -> Result<Array> {
    let left = ops::maximum(exp(logprobs)?.subtract(q)?, scalar(0.0))?;
    let mass = total(&left)?;
    // NaN compares false. A draft row may be NaN only at ids that p does not hold, so it is asked too.
    let mut usable = mass.gt(scalar(0.0))?.logical_and(mass.lt(scalar(f32::INFINITY))?)?;
    if let Distribution::Dense { logprobs: q } | Distribution::Sparse { logprobs: q, .. } = draft {
        usable = usable.logical_and(q.lt(scalar(f32::INFINITY))?.all_axis(-1, true)?)?;
    }
    let normalised = left.log()?.subtract(mass.log()?)?;
    Ok(ops::select(usable, normalised, logprobs)?)
}

/// The draft's probabilities at the target's ids, both sparse → `[n,k]` of the target's columns.
///
/// Both sides are sorted together by 2·id + side; a draft's entry then follows the target's entry of the
/// same id. Memory stays n·(k + k') where comparing every pair would take n·k·k'.
fn matched(target: (&Array, &Array), draft: (&Array, &Array)) -> Result<Array> {
    let key = |(ids, logprobs): (&Array, &Array), side: u32| -> Result<Array> {
        // Padding may repeat an id of its row.
        let ids = ops::select(logprobs.eq(never())?, word(NOBODY), ids)?;
        Ok(ids.multiply(word(2))?.add(word(side))?)
    };
    let keys = ops::concatenate(&[&key(target, 0)?, &key(draft, 1)?], -1)?;
    let (rows, width) = (keys.dim(0), target.0.dim(-1));
    let q = ops::concatenate(&[&ops::zeros::<f32>(target.0.shape())?, &exp(draft.1)?], -1)?;
    let order = ops::argsort_axis(&keys, -1)?;
    let (sorted, values) = (keys.take_along_axis(&order, -1)?, q.take_along_axis(&order, -1)?);
    let following = |a: &Array, end: Array| -> Result<Array> {
        let end = ops::broadcast_to(end, &[rows, 1])?;
        Ok(ops::concatenate(&[&columns(a, 1..a.dim(-1))?, &end], -1)?)
    };
    // The last entry is followed by 0, which no key comes before.
    let same = following(&sorted, word(0))?.eq(sorted.add(word(1))?)?;
    let found = ops::select(same, following(&values, scalar(0.0))?, scalar(0.0))?;
    let spread = ops::zeros::<f32>(keys.shape())?.put_along_axis(order, found, -1)?;
    Ok(columns(&spread, 0..width)?)
}
