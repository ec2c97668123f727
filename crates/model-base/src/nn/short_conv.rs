//! The short causal convolution of gated delta layers.

use mlx_rs::{
    Array, Dtype,
    ops::{add, concatenate, indexing::TryIndexOp, multiply, zeros_dtype},
};

use crate::{
    ModelError, Result,
    weights::{Cursor, settled},
};

/// The order of a stored kernel's axes, which tells an original checkpoint from a converted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvLayout {
    /// `[C,1,K]`: as the model was published. Its norms store w − 1 as well.
    Published,
    /// `[C,K,1]`: as MLX computes; converters bring norms to w at the same time.
    Converted,
}

impl ConvLayout {
    /// The layout of `weight` of this module. Nothing else tells the two kinds of checkpoint apart:
    /// draft heads come with both.
    pub fn of(at: &Cursor<'_>, channels: usize, kernel: usize) -> Result<Self> {
        let weight = at.at("weight");
        match weight.shape() {
            Some(&[c, 1, k]) if (c, k) == (channels, kernel) && kernel > 1 => Ok(Self::Published),
            // A missing tensor is named when it is read.
            Some(&[c, k, 1]) if (c, k) == (channels, kernel) => Ok(Self::Converted),
            None => Ok(Self::Converted),
            Some(other) => Err(ModelError::Tensor {
                what: weight.name().into(),
                expected: format!("shape [{channels}, 1, {kernel}] or [{channels}, {kernel}, 1]"),
                got: format!("{other:?}"),
                next: "check that config and weights belong to the same model",
            }),
        }
    }
}

/// `y[t] = Σ w[j] · x[t − (K−1) + j]` for each channel alone, in float32.
#[derive(Debug, Clone)]
pub struct ShortConv {
    /// One row per tap, oldest first `[K,C]` float32.
    taps: Array,
}

impl ShortConv {
    /// Reads `weight`, stored in this layout.
    pub fn load(at: &Cursor<'_>, channels: usize, kernel: usize, layout: ConvLayout) -> Result<Self> {
        let shape = match layout {
            ConvLayout::Published => [channels, 1, kernel],
            ConvLayout::Converted => [channels, kernel, 1],
        };
        let weight = at.at("weight").tensor(&shape)?.as_dtype(Dtype::Float32)?;
        let taps = weight.reshape(&[channels as i32, kernel as i32])?.transpose()?;
        Ok(Self { taps: settled(taps.contiguous()?)? })
    }

    /// Inputs before the first token.
    ///
    /// # Shapes
    /// `[1,K−1,C]` float32.
    pub fn silence(&self) -> Result<Array> {
        Ok(zeros_dtype(&[1, self.taps.dim(0) - 1, self.taps.dim(1)], Dtype::Float32)?)
    }

    /// The outputs for L new inputs after the K−1 before them, and all of these inputs in order.
    ///
    /// Every output sums its taps in the same order, whatever L is.
    ///
    /// # Shapes
    /// `before` `[1,K−1,C]`, `x` `[1,L,C]` → (`[1,L,C]`, `[1,K−1+L,C]`), all float32.
    pub fn forward(&self, before: &Array, x: &Array) -> Result<(Array, Array)> {
        let length = x.dim(1);
        let inputs = concatenate(&[before, x], 1)?;
        let tap = |j: i32| -> Result<Array> {
            let rows = inputs.try_index((.., j..j + length, ..))?;
            Ok(multiply(rows, self.taps.try_index(j)?)?)
        };
        let mut sum = tap(0)?;
        for j in 1..self.taps.dim(0) {
            sum = add(sum, tap(j)?)?;
        }
        Ok((sum, inputs))
    }
}
