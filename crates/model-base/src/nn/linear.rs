//! Products with a weight matrix, plain or packed.

use mlx_rs::{
    Array,
    ops::{add, indexing::take_axis, matmul, quantized_matmul},
};

use crate::{
    Result,
    weights::{Affine, Cursor, Matrix, settled},
};

/// y = x·Wᵀ + b for a checkpoint's W `[out,in]`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Product,
    /// `[out]`.
    bias: Option<Array>,
}

/// A matrix ready for products. Floats stay as the checkpoint has them, `[out,in]`, on every device:
/// measured with OpenBLAS on two cores, the transposed view of `[out,in]` is as fast as a copy in `[in,out]`
/// or faster (an unembedding of 49152 rows takes half the time), and a row is one run of memory.
#[derive(Debug, Clone)]
pub(crate) enum Product {
    Dense {
        /// `[out,in]`.
        rows: Array,
        /// The same memory as `[in,out]`.
        view: Array,
    },
    Affine(Affine),
}

impl Product {
    /// `matrix` is `[out,in]`.
    pub(crate) fn new(matrix: Matrix) -> Result<Self> {
        Ok(match matrix {
            Matrix::Dense(rows) => Product::Dense { view: settled(rows.transpose()?)?, rows },
            Matrix::Affine(packed) => Product::Affine(packed),
        })
    }

    /// Rows of W: `[...]` → `[..., in]`.
    pub(crate) fn rows(&self, ids: &Array) -> Result<Array> {
        match self {
            Product::Dense { rows, .. } => Ok(take_axis(rows, ids, 0)?),
            Product::Affine(packed) => packed.rows(ids),
        }
    }

    /// `[..., in]` → `[..., out]`.
    pub(crate) fn of(&self, x: &Array) -> Result<Array> {
        Ok(match self {
            Product::Dense { view, .. } => matmul(x, view)?,
            Product::Affine(a) => {
                quantized_matmul(x, &a.weight, &a.scales, &a.biases, true, a.group, a.bits)?
            }
        })
    }
}

impl Linear {
    /// Reads `weight`, and `bias` when the configuration says that there is one.
    pub fn load(at: &Cursor<'_>, input: usize, output: usize, bias: bool) -> Result<Self> {
        let weight = Product::new(at.matrix(output, input)?)?;
        let bias = if bias { Some(at.at("bias").tensor(&[output])?) } else { None };
        Ok(Self { weight, bias })
    }

    /// Rows of W for chosen outputs; a bias is not part of them.
    ///
    /// # Shapes
    /// `[n]` → `[n,in]`.
    pub fn rows(&self, ids: &Array) -> Result<Array> {
        self.weight.rows(ids)
    }

    /// The product.
    ///
    /// # Shapes
    /// `[..., in]` → `[..., out]`.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let y = self.weight.of(x)?;
        Ok(match &self.bias {
            Some(bias) => add(y, bias)?,
            None => y,
        })
    }
}
