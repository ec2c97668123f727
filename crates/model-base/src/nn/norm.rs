//! Root-mean-square normalisation.

use mlx_rs::{
    Array,
    fast::rms_norm,
    ops::{add, ones_dtype},
};

use crate::{
    Result,
    weights::{Cursor, settled},
};

/// x / sqrt(mean(x²) + ε) · w (Zhang and Sennrich, Root Mean Square Layer Normalization).
#[derive(Debug, Clone)]
pub struct RmsNorm {
    /// `[size]`; `None` stands for ones.
    weight: Option<Array>,
    epsilon: f32,
}

impl RmsNorm {
    /// Reads `weight`.
    pub fn load(at: &Cursor<'_>, size: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: Some(at.at("weight").tensor(&[size])?), epsilon })
    }

    /// Reads `weight` of a checkpoint that stores w − 1.
    pub fn load_shifted(at: &Cursor<'_>, size: usize, epsilon: f32) -> Result<Self> {
        let stored = at.at("weight").tensor(&[size])?;
        let weight = settled(add(&stored, ones_dtype(&[1], stored.dtype())?)?)?;
        Ok(Self { weight: Some(weight), epsilon })
    }

    /// Without weights.
    pub fn unscaled(epsilon: f32) -> Self {
        Self { weight: None, epsilon }
    }

    /// Normalises the last axis.
    ///
    /// # Shapes
    /// `[..., size]` → `[..., size]`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        Ok(rms_norm(x, self.weight.as_ref(), self.epsilon)?)
    }
}
