//! Attention over cached keys and values.

use foretoken_cache::{Mask, View};
use mlx_rs::{
    Array,
    fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention},
};

use crate::{ModelError, Result};

/// Softmax attention; key/value heads may be fewer than query heads.
///
/// # Shapes
/// `queries` `[B,H,L,D]`, keys and values of the view `[B,K,S,D]` → `[B,H,L,D]`.
pub fn attend(queries: &Array, view: &View, scale: f32) -> Result<Array> {
    let mask = match &view.mask {
        Mask::All => None,
        Mask::Causal => Some(ScaledDotProductAttentionMask::Causal),
        Mask::Bool(allowed) => Some(ScaledDotProductAttentionMask::Array(allowed)),
        other => {
            return Err(ModelError::Input {
                what: "attention mask",
                expected: "all, causal or bool".into(),
                got: format!("{other:?}"),
            });
        }
    };
    Ok(scaled_dot_product_attention(queries, &view.keys, &view.values, scale, mask, None)?)
}

/// Splits a projection into heads.
///
/// # Shapes
/// `[B,L,H·D]` → `[B,H,L,D]`.
pub fn split_heads(x: &Array, heads: i32) -> Result<Array> {
    let (batch, length, size) = (x.dim(0), x.dim(1), x.dim(2) / heads.max(1));
    Ok(x.reshape(&[batch, length, heads, size])?.swap_axes(1, 2)?)
}

/// Joins heads again.
///
/// # Shapes
/// `[B,H,L,D]` → `[B,L,H·D]`.
pub fn join_heads(x: &Array) -> Result<Array> {
    let (batch, heads, length, size) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
    Ok(x.swap_axes(1, 2)?.reshape(&[batch, length, heads * size])?)
}
