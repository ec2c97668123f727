//! A cursor that walks names as the checkpoint spells them.

use std::fmt::Display;

use mlx_rs::{Array, Dtype};

use super::{Affine, Coding, Matrix, Weights, settled};
use crate::{ModelError, Result};

/// A place in the table: `weights.at("model").at("layers").at(3)` stands at `model.layers.3`.
///
/// Reading a tensor records it as used.
#[derive(Clone)]
pub struct Cursor<'a> {
    weights: &'a Weights,
    name: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(weights: &'a Weights, name: String) -> Self {
        Self { weights, name }
    }

    /// One part further down.
    pub fn at(&self, part: impl Display) -> Self {
        Self { weights: self.weights, name: format!("{}.{part}", self.name) }
    }

    /// The full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table.
    pub fn weights(&self) -> &'a Weights {
        self.weights
    }

    /// Whether a tensor of exactly this name exists.
    pub fn exists(&self) -> bool {
        self.weights.contains(&self.name)
    }

    /// The stated shape of the tensor of exactly this name.
    pub fn shape(&self) -> Option<&'a [usize]> {
        self.weights.shape(&self.name)
    }

    /// The float tensor of this name in the computing type.
    ///
    /// # Shapes
    /// Exactly `shape`, else an error that names the tensor and both shapes.
    pub fn tensor(&self, shape: &[usize]) -> Result<Array> {
        let (name, entry) = self.weights.entry(&self.name)?;
        if entry.shape != shape {
            return Err(misfit(name, format!("shape {shape:?}"), format!("{:?}", entry.shape)));
        }
        // A type that nothing reads gets its own message from the reader.
        if !entry.coding.is_float() && !matches!(entry.coding, Coding::Other(_)) {
            return Err(misfit(name, "float weights".into(), entry.coding.name().into()));
        }
        self.weights.float(name, entry)
    }

    /// The float tensor of this name in float32, whatever the computing type is.
    ///
    /// # Shapes
    /// As [`tensor`](Self::tensor).
    pub fn float32(&self, shape: &[usize]) -> Result<Array> {
        let computed = self.tensor(shape)?;
        if computed.dtype() == Dtype::Float32 {
            return Ok(computed);
        }
        let (name, entry) = self.weights.entry(&self.name)?;
        self.weights.float_as(name, entry, Dtype::Float32)
    }

    /// The float tensor of this name on the host.
    ///
    /// # Shapes
    /// `[n]`, exactly `size`.
    pub fn floats(&self, size: usize) -> Result<Vec<f32>> {
        let array = settled(self.tensor(&[size])?.as_dtype(Dtype::Float32)?)?;
        let values = array.try_as_slice::<f32>();
        Ok(values.map_err(|e| misfit(&self.name, "float weights".into(), e.to_string()))?.to_vec())
    }

    /// The token ids of this name, int32 or uint32.
    ///
    /// # Shapes
    /// `[n]`.
    pub fn ids(&self) -> Result<Vec<u32>> {
        let (name, entry) = self.weights.entry(&self.name)?;
        let bad = |got: String| misfit(name, "a list of token ids, int32 or uint32".into(), got);
        if entry.shape.len() != 1 || !matches!(entry.coding, Coding::I32 | Coding::U32 | Coding::I64) {
            return Err(bad(format!("{} of shape {:?}", entry.coding.name(), entry.shape)));
        }
        let ids = settled(self.weights.plain(name, entry)?.as_dtype(Dtype::Int64)?)?;
        let id = |&id: &i64| u32::try_from(id).map_err(|_| bad(format!("id {id}")));
        ids.try_as_slice::<i64>().map_err(|e| bad(e.to_string()))?.iter().map(id).collect()
    }

    /// The matrix of the module of this name: `weight`, with `scales` and `biases` when packed.
    ///
    /// # Shapes
    /// `[rows, columns]` after expansion.
    pub fn matrix(&self, rows: usize, columns: usize) -> Result<Matrix> {
        Matrix::read(self, rows, columns)
    }

    /// The packed words of this name.
    pub(super) fn words(&self) -> Result<Array> {
        let (name, entry) = self.weights.entry(&self.name)?;
        match entry.coding {
            Coding::U32 => self.weights.plain(name, entry),
            other => Err(misfit(name, "packed words, uint32".into(), other.name().into())),
        }
    }

    /// The matrix of this name in the affine layout, when it is stored in blocks that fit it.
    pub(super) fn blocks(&self) -> Result<Option<Affine>> {
        let (name, entry) = self.weights.entry(&self.name)?;
        self.weights.packed(name, entry)
    }
}

pub(super) fn misfit(name: &str, expected: String, got: String) -> ModelError {
    ModelError::Tensor {
        what: name.into(),
        expected,
        got,
        next: "check that config and weights belong to the same model",
    }
}
