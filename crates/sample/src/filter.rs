//! Top-k, temperature, top-p and min-p, in this order, on rows that do not see each other.

use mlx_rs::{Array, ops};

use crate::arrays::{best, exp, never, normalise, scalar, total};
use crate::logprobs::top_columns;
use crate::{Result, SamplingOptions};

/// A sum of probabilities that misses `top_p` by this share has reached it: float32 sums round.
const TOP_P_SLACK: f32 = 1e-6;

/// The columns that top-k keeps, ascending: `[n,D]` → `[n,k]` uint32, or `None` when it keeps all.
pub(crate) fn top_k(logits: &Array, k: u32) -> Result<Option<Array>> {
    match i32::try_from(k) {
        Ok(k) if k > 0 && k < logits.dim(-1) => Ok(Some(top_columns(logits, k)?)),
        _ => Ok(None),
    }
}

/// Log probabilities after temperature, top-p and min-p: `[n,k]` float32 → `[n,k]` float32, normalised.
///
/// The temperature is above 0. The best value of a row becomes 0 first, so no temperature overflows.
pub(crate) fn normalised(logits: &Array, options: &SamplingOptions) -> Result<Array> {
    let mut scaled = logits.subtract(best(logits)?)?.divide(scalar(options.temperature))?;
    if options.top_p < 1.0 {
        scaled = top_p(&scaled, options.top_p)?;
    }
    if options.min_p > 0.0 {
        // The best token survives top-p and is 0 here, so shares of it are differences from 0.
        let floor = scalar(options.min_p.ln());
        scaled = ops::select(scaled.ge(floor)?, &scaled, never())?;
    }
    Ok(normalise(&scaled)?)
}

/// Keeps each token before which less than `p` of the mass lies, most likely first; the first always.
fn top_p(scaled: &Array, p: f32) -> Result<Array> {
    let order = ops::argsort_axis(scaled.negative()?, -1)?;
    let sorted = scaled.take_along_axis(&order, -1)?;
    let weights = exp(&sorted)?;
    let before = ops::cumsum(&weights, -1, false, false)?;
    let limit = total(&weights)?.multiply(scalar(p * (1.0 - TOP_P_SLACK)))?;
    let kept = ops::select(before.lt(limit)?, &sorted, never())?;
    Ok(scaled.put_along_axis(&order, &kept, -1)?)
}
