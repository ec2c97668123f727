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
    Ok(normalise(&relative(logits, options)?)?)
}

/// The same up to a number per row, which no draw can tell; the best token of a row is 0.
pub(crate) fn relative(logits: &Array, options: &SamplingOptions) -> Result<Array> {
    let mut scaled = logits.subtract(best(logits)?)?.divide(scalar(options.temperature))?;
    if options.top_p < 1.0 {
        scaled = top_p(&scaled, options.top_p)?;
    }
    if options.min_p > 0.0 {
        // The best token survives top-p and is 0 here, so shares of it are differences from 0.
        let floor = scalar(options.min_p.ln());
        scaled = ops::select(scaled.ge(floor)?, &scaled, never())?;
    }
    Ok(scaled)
}

/// Rows up to this width are sorted: a few large steps, where halving takes many small ones.
const SORTED_WIDTH: i32 = 16_384;

/// Halvings of the range of thresholds. The range is about 14 wide in log probability, so what is left of
/// it is 1e-5: far below the rounding of logits that were computed from packed weights.
const HALVINGS: usize = 20;

/// Keeps each token before which less than `p` of the mass lies, most likely first, of equal tokens the
/// lower id; the first always.
fn top_p(scaled: &Array, p: f32) -> Result<Array> {
    match scaled.dim(-1) <= SORTED_WIDTH {
        true => top_p_sorted(scaled, p),
        false => top_p_halved(scaled, p),
    }
}

fn top_p_sorted(scaled: &Array, p: f32) -> Result<Array> {
    let order = ops::argsort_axis(scaled.negative()?, -1)?;
    let sorted = scaled.take_along_axis(&order, -1)?;
    let weights = exp(&sorted)?;
    let before = ops::cumsum(&weights, -1, false, false)?;
    let limit = total(&weights)?.multiply(scalar(p * (1.0 - TOP_P_SLACK)))?;
    let kept = ops::select(before.lt(limit)?, &sorted, never())?;
    Ok(scaled.put_along_axis(&order, &kept, -1)?)
}

/// Sorting a whole vocabulary costs as much as a quarter of a small model's forward. The threshold is
/// halved in instead: at `high` the mass at or above is still short of the limit, at `low` it has reached
/// it. What lies between the two is equal but for rounding, and is taken in the order of ids.
fn top_p_halved(scaled: &Array, p: f32) -> Result<Array> {
    let weights = exp(scaled)?;
    let all = total(&weights)?;
    let limit = all.multiply(scalar(p * (1.0 - TOP_P_SLACK)))?;
    // Tokens below this share of what may be dropped weigh less than it all together.
    let dropped = (1.0 - p).max(f32::EPSILON) / scaled.dim(-1) as f32;
    let mut low = all.multiply(scalar(dropped))?.log()?;
    // The best token is 0.
    let mut high = scalar(f32::MIN_POSITIVE);
    for _ in 0..HALVINGS {
        let middle = low.add(&high)?.multiply(scalar(0.5))?;
        let short = at_least(scaled, &weights, &middle)?.lt(&limit)?;
        high = ops::select(&short, &middle, &high)?;
        low = ops::select(&short, &low, &middle)?;
    }
    let sure = scaled.ge(&high)?;
    let edge = scaled.ge(&low)?.logical_and(sure.logical_not()?)?;
    let before = ops::cumsum(&weights.multiply(&edge)?, -1, false, false)?;
    let before = before.add(at_least(scaled, &weights, &high)?)?;
    let kept = sure.logical_or(edge.logical_and(before.lt(limit)?)?)?;
    Ok(ops::select(kept, scaled, never())?)
}

/// The mass of tokens at or above a threshold `[n,1]` → `[n,1]`. A product is far cheaper than a selection.
fn at_least(scaled: &Array, weights: &Array, threshold: &Array) -> Result<Array> {
    Ok(total(&weights.multiply(scaled.ge(threshold)?)?)?)
}

#[cfg(test)]
mod tests {
    use mlx_rs::Device;
    use proptest::prelude::*;

    use super::*;

    fn kept(row: &Array) -> Vec<bool> {
        let values: Vec<f32> = row.contiguous().unwrap().to_vec_exact().unwrap();
        values.into_iter().map(|value| value > f32::NEG_INFINITY).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Halving keeps what sorting keeps: in steep, flat and tied rows, with tokens that cannot be drawn.
        #[test]
        fn halving_keeps_what_sorting_keeps(
            kinds in prop::collection::vec(0_u32..9, 8..300),
            step in prop::sample::select(vec![0.0_f32, 0.3, 2.0, 20.0]),
            p in prop::sample::select(vec![1e-4_f32, 0.13, 0.5, 0.83, 0.957, 0.9993]),
        ) {
            Device::try_default().unwrap();
            Device::set_default(&Device::cpu());
            let value = |&kind: &u32| if kind == 8 { f32::NEG_INFINITY } else { -(kind as f32) * step };
            let row: Vec<f32> = kinds.iter().map(value).collect();
            prop_assume!(row.iter().any(|x| x.is_finite()));
            let row = Array::from_slice(&row, &[1, row.len() as i32]);
            let row = row.subtract(best(&row).unwrap()).unwrap();
            let (a, b) = (kept(&top_p_halved(&row, p).unwrap()), kept(&top_p_sorted(&row, p).unwrap()));
            // Where the mass meets the limit to the last bit, one token more or less may stay.
            let differ = a.iter().zip(&b).filter(|(a, b)| a != b).count();
            let exactly_met = differ == 1 && step == 0.0;
            prop_assert!(differ == 0 || exactly_met, "{} tokens differ", differ);
        }
    }
}
