//! The gated feed-forward block.

use mlx_rs::{
    Array,
    ops::{multiply, sigmoid},
};

use super::Linear;
use crate::{Result, weights::Cursor};

/// down(silu(gate(x)) · up(x)) (Shazeer, GLU Variants Improve Transformer).
#[derive(Debug, Clone)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// Reads `gate_proj`, `up_proj` and `down_proj`.
    pub fn load(at: &Cursor<'_>, width: usize, inner: usize, bias: bool) -> Result<Self> {
        Ok(Self {
            gate: Linear::load(&at.at("gate_proj"), width, inner, bias)?,
            up: Linear::load(&at.at("up_proj"), width, inner, bias)?,
            down: Linear::load(&at.at("down_proj"), inner, width, bias)?,
        })
    }

    /// # Shapes
    /// `[B,L,E]` → `[B,L,E]`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        let silu = multiply(&gate, sigmoid(&gate)?)?;
        self.down.forward(&multiply(silu, up)?)
    }
}
