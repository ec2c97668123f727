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

/// Halvings of the range of thresholds. The range is about 16 wide in log probability, so what is left of
/// it is 1e-6, the rounding of such a number in float32.
const HALVINGS: usize = 24;

/// Keeps each token before which less than `p` of the mass lies, most likely first, of equal tokens the
/// lower id; the first always.
///
/// Sorting a whole vocabulary costs more than the forward's last layer. The threshold is halved in instead:
/// at `high` the mass at or above is still short of the limit, at `low` it has reached it. Tokens between
/// the two differ by rounding only and are taken in the order of their ids.
fn top_p(scaled: &Array, p: f32) -> Result<Array> {
    let weights = exp(scaled)?;
    let all = total(&weights)?;
    let limit = all.multiply(scalar(p * (1.0 - TOP_P_SLACK)))?;
    let at_least = |threshold: &Array| -> Result<Array> {
        Ok(total(&ops::select(scaled.ge(threshold)?, &weights, scalar(0.0))?)?)
    };
    // Tokens below this share of what may be dropped weigh less than it all together.
    let dropped = (1.0 - p).max(f32::EPSILON) / scaled.dim(-1) as f32;
    let mut low = all.multiply(scalar(dropped))?.log()?.subtract(scalar(1.0))?;
    // The best token is 0.
    let mut high = scalar(f32::MIN_POSITIVE);
    for _ in 0..HALVINGS {
        let middle = low.add(&high)?.multiply(scalar(0.5))?;
        let short = at_least(&middle)?.lt(&limit)?;
        high = ops::select(&short, &middle, &high)?;
        low = ops::select(&short, &low, &middle)?;
    }
    let sure = scaled.ge(&high)?;
    let edge = scaled.ge(&low)?.logical_and(sure.logical_not()?)?;
    let edge_weights = ops::select(&edge, &weights, scalar(0.0))?;
    let before = ops::cumsum(&edge_weights, -1, false, false)?.add(at_least(&high)?)?;
    let kept = sure.logical_or(edge.logical_and(before.lt(limit)?)?)?;
    Ok(ops::select(kept, scaled, never())?)
}
