//! The gated delta rule, token by token in float32 (Yang, Kautz and Hatamizadeh, Gated Delta Networks;
//! ml-explore/mlx-lm, `mlx_lm/models/gated_delta.py`).
//!
//! Per value head, with state S `[D_v,D_k]`:
//!
//! ```text
//! S ← g·S + β·(v − (g·S)·k)·kᵀ        y = S·q
//! ```

use mlx_rs::{
    Array, Dtype,
    fast::rms_norm,
    ops::{
        add, broadcast_to, exp, indexing::TryIndexOp, logaddexp, multiply, negative, stack, subtract,
        zeros_dtype,
    },
};

use super::scaled;
use crate::{ModelError, Result};

/// Guards the length of queries and keys against zero.
const LENGTH_EPSILON: f32 = 1e-6;

/// What the L tokens of a block put into the rule, all float32.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// Queries of length 1/√D_k `[B,L,H_k,D_k]`.
    pub queries: Array,
    /// Keys of length 1 `[B,L,H_k,D_k]`.
    pub keys: Array,
    /// `[B,L,H_v,D_v]`; H_v is a multiple of H_k, and neighbours share a key head.
    pub values: Array,
    /// g, what remains of the state, 0 to 1 `[B,L,H_v]`.
    pub decay: Array,
    /// β, the share of the correction that is written, 0 to 1 `[B,L,H_v]`.
    pub rate: Array,
}

/// The state before the first token.
///
/// # Shapes
/// `[1,H_v,D_v,D_k]` float32.
pub fn blank(heads: usize, value_size: usize, key_size: usize) -> Result<Array> {
    Ok(zeros_dtype(&[1, heads as i32, value_size as i32, key_size as i32], Dtype::Float32)?)
}

/// g = exp(−e^a · softplus(x + b)) for the layer's `rate_log` a and `bias` b.
///
/// # Shapes
/// `x` `[B,L,H]`, the others `[H]` → `[B,L,H]`; all float32.
pub fn decay(x: &Array, rate_log: &Array, bias: &Array) -> Result<Array> {
    let step = logaddexp(add(x, bias)?, Array::from_f32(0.0))?;
    Ok(exp(negative(multiply(exp(rate_log)?, step)?)?)?)
}

/// Vectors brought to the length `length`.
///
/// # Shapes
/// `[...,D]` float32 → `[...,D]`.
pub fn of_length(x: &Array, length: f32) -> Result<Array> {
    // The root of a mean is the root of a sum over √D, and so is the guard inside it.
    let size = x.dim(-1) as f32;
    scaled(&rms_norm(x, None, LENGTH_EPSILON / size)?, length / size.sqrt())
}

/// Runs the rule over a block: the outputs, and the state after the last token. `after` gets the number
/// of tokens folded so far and the state they lead to.
///
/// A token costs the same operations whatever block it comes in, so a state does not depend on how a
/// sequence was cut.
///
/// # Shapes
/// `state` `[B,H_v,D_v,D_k]` float32 → (`[B,L,H_v,D_v]`, `[B,H_v,D_v,D_k]`).
pub fn run(inputs: &Inputs, state: &Array, mut after: impl FnMut(usize, &Array)) -> Result<(Array, Array)> {
    let heads = inputs.values.dim(2);
    let (queries, keys) = (shared(&inputs.queries, heads)?, shared(&inputs.keys, heads)?);
    let mut state = state.clone();
    let mut outputs = Vec::new();
    for t in 0..inputs.values.dim(1) {
        let row = |x: &Array| x.try_index((.., t, ..));
        // [B,H_v,1,D_k], [B,H_v,1,D_k] and [B,H_v,D_v].
        let (q, k) = (row(&queries)?.expand_dims(2)?, row(&keys)?.expand_dims(2)?);
        let (v, rate) = (row(&inputs.values)?, row(&inputs.rate)?.expand_dims(2)?);
        let decay = row(&inputs.decay)?.expand_dims_axes(&[2, 3])?;
        let faded = multiply(&state, decay)?;
        let recalled = multiply(&faded, &k)?.sum_axis(-1, None)?;
        let correction = multiply(subtract(v, recalled)?, rate)?.expand_dims(3)?;
        state = add(faded, multiply(correction, k)?)?;
        outputs.push(multiply(&state, q)?.sum_axis(-1, None)?);
        after(outputs.len(), &state);
    }
    if outputs.is_empty() {
        let (expected, got) = ("at least one token".into(), "none".into());
        return Err(ModelError::Input { what: "gated delta block", expected, got });
    }
    Ok((stack(&outputs, 1)?, state))
}

/// `[B,L,H_k,D]` → `[B,L,H_v,D]`: neighbouring value heads share a key head.
fn shared(x: &Array, heads: i32) -> Result<Array> {
    let [batch, length, own, size] = *x.shape() else {
        let (expected, got) = ("shape [B,L,H,D]".into(), format!("{:?}", x.shape()));
        return Err(ModelError::Input { what: "gated delta queries and keys", expected, got });
    };
    if own == heads {
        return Ok(x.clone());
    }
    let copies = broadcast_to(x.expand_dims(3)?, &[batch, length, own, heads / own.max(1), size])?;
    Ok(copies.reshape(&[batch, length, heads, size])?)
}
