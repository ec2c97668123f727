//! Root-mean-square normalisation.

use mlx_rs::{Array, fast::rms_norm};

use crate::{Result, weights::Cursor};

/// x / sqrt(mean(x²) + ε) · w (Zhang and Sennrich, Root Mean Square Layer Normalization).
#[derive(Debug, Clone)]
pub struct RmsNorm {
    /// `[size]`.
    weight: Array,
    epsilon: f32,
}

impl RmsNorm {
    /// Reads `weight`.
    pub fn load(at: &Cursor<'_>, size: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: at.at("weight").tensor(&[size])?, epsilon })
    }

    /// Normalises the last axis.
    ///
    /// # Shapes
    /// `[..., size]` → `[..., size]`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        Ok(rms_norm(x, Some(&self.weight), self.epsilon)?)
    }
}
