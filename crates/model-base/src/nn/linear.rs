//! Products with a weight matrix, plain or packed.

use mlx_rs::{
    Array,
    ops::{add, indexing::take_axis, matmul, quantized_matmul},
};

use crate::{
    Result,
    weights::{Affine, Cursor, LoadOptions, Matrix, settled},
};

/// y = x·Wᵀ + b for a checkpoint's W [out,in].
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Product,
    /// [out].
    bias: Option<Array>,
}

/// A matrix in the layout that its product reads fastest.
#[derive(Debug, Clone)]
pub(crate) enum Product {
    /// [in,out]: in memory order for BLAS, elsewhere a view of [out,in].
    Dense(Array),
    Affine(Affine),
}

impl Product {
    /// `matrix` is [out,in].
    pub(crate) fn new(matrix: Matrix, options: &LoadOptions) -> Result<Self> {
        Ok(match matrix {
            Matrix::Dense(rows) if options.input_major(rows.dtype()) => {
                Product::Dense(settled(rows.transpose()?.contiguous()?)?)
            }
            Matrix::Dense(rows) => Product::Dense(rows.transpose()?),
            Matrix::Affine(packed) => Product::Affine(packed),
        })
    }

    /// Rows of W: [...] → [..., in].
    pub(crate) fn rows(&self, ids: &Array) -> Result<Array> {
        let columns = match self {
            Product::Affine(packed) => return packed.rows(ids),
            Product::Dense(weight) => take_axis(weight, ids, 1)?,
        };
        // [in, ...] → [..., in].
        let axes: Vec<i32> = (1..columns.ndim() as i32).chain([0]).collect();
        Ok(columns.transpose_axes(&axes)?)
    }

    /// [..., in] → [..., out].
    pub(crate) fn of(&self, x: &Array) -> Result<Array> {
        Ok(match self {
            Product::Dense(weight) => matmul(x, weight)?,
            Product::Affine(a) => {
                quantized_matmul(x, &a.weight, &a.scales, &a.biases, true, a.group, a.bits)?
            }
        })
    }
}

impl Linear {
    /// Reads `weight`, and `bias` when the configuration says that there is one.
    pub fn load(at: &Cursor<'_>, input: usize, output: usize, bias: bool) -> Result<Self> {
        let weight = Product::new(at.matrix(output, input)?, at.weights().options())?;
        let bias = if bias { Some(at.at("bias").tensor(&[output])?) } else { None };
        Ok(Self { weight, bias })
    }

    /// Rows of W for chosen outputs; a bias is not part of them.
    ///
    /// # Shapes
    /// [n] → [n,in].
    pub fn rows(&self, ids: &Array) -> Result<Array> {
        self.weight.rows(ids)
    }

    /// The product.
    ///
    /// # Shapes
    /// [..., in] → [..., out].
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let y = self.weight.of(x)?;
        Ok(match &self.bias {
            Some(bias) => add(y, bias)?,
            None => y,
        })
    }
}
