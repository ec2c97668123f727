//! The gated feed-forward block.

use mlx_rs::{Array, ops::multiply};

use super::{Activation, Linear};
use crate::{Result, weights::Cursor};

/// down(act(gate(x)) · up(x)), with SiLU unless told otherwise (Shazeer, GLU Variants Improve Transformer).
#[derive(Debug, Clone)]
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    /// Reads `gate_proj`, `up_proj` and `down_proj`.
    pub fn load(at: &Cursor<'_>, width: usize, inner: usize, bias: bool) -> Result<Self> {
        Ok(Self {
            gate: Linear::load(&at.at("gate_proj"), width, inner, bias)?,
            up: Linear::load(&at.at("up_proj"), width, inner, bias)?,
            down: Linear::load(&at.at("down_proj"), inner, width, bias)?,
            activation: Activation::Silu,
        })
    }

    /// The same block with another activation.
    #[must_use]
    pub fn activated(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// # Shapes
    /// `[B,L,E]` → `[B,L,E]`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        self.down.forward(&multiply(self.activation.of(&gate)?, up)?)
    }
}
