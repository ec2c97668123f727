//! Element-wise functions of families.

use std::f32::consts::PI;

use mlx_rs::{
    Array, Dtype,
    ops::{add, divide, multiply, sigmoid, tanh},
};

use crate::Result;

/// The non-linearity of a gated feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · σ(x) (Elfwing et al., Sigmoid-Weighted Linear Units).
    Silu,
    /// x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks and Gimpel, Gaussian Error Linear Units).
    GeluTanh,
}

impl Activation {
    /// The function, element by element, in the type of `x`.
    ///
    /// # Shapes
    /// `[...]` → `[...]`.
    pub fn of(self, x: &Array) -> Result<Array> {
        match self {
            Self::Silu => Ok(multiply(x, sigmoid(x)?)?),
            Self::GeluTanh => gelu_tanh(x),
        }
    }
}

/// x times a constant, in the type of `x`: a float32 factor would lift 16-bit floats.
///
/// # Shapes
/// `[...]` → `[...]`.
pub fn scaled(x: &Array, factor: f32) -> Result<Array> {
    Ok(multiply(x, constant(factor, x.dtype())?)?)
}

/// cap · tanh(x / cap): bounds x smoothly (Gemma Team, Gemma 2).
///
/// # Shapes
/// `[...]` → `[...]`.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    let cap = constant(cap, x.dtype())?;
    Ok(multiply(tanh(divide(x, &cap)?)?, &cap)?)
}

fn gelu_tanh(x: &Array) -> Result<Array> {
    let cube = multiply(multiply(x, x)?, x)?;
    let bent = scaled(&add(x, scaled(&cube, 0.044_715)?)?, (2.0 / PI).sqrt())?;
    let gate = add(tanh(bent)?, constant(1.0, x.dtype())?)?;
    Ok(multiply(scaled(x, 0.5)?, gate)?)
}

/// A number as an array of one type.
fn constant(value: f32, dtype: Dtype) -> Result<Array> {
    Ok(Array::from_f32(value).as_dtype(dtype)?)
}
