//! Token embeddings, which also unembed in models that tie the two.

use mlx_rs::Array;

use super::linear::Product;
use crate::{Result, weights::Cursor};

/// A table of V rows of width E.
///
/// One copy `[V,E]` serves both directions.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// As the weight of a product from width E to vocabulary V.
    table: Product,
}

impl Embedding {
    /// Reads `weight`.
    pub fn load(at: &Cursor<'_>, vocabulary: usize, width: usize) -> Result<Self> {
        Ok(Self { table: Product::new(at.matrix(vocabulary, width)?)? })
    }

    /// The rows of ids. Ids are not checked against V: the caller does.
    ///
    /// # Shapes
    /// `[...]` → `[..., E]`.
    pub fn rows(&self, ids: &Array) -> Result<Array> {
        self.table.rows(ids)
    }

    /// Logits by the same table.
    ///
    /// # Shapes
    /// `[..., E]` → `[..., V]`.
    pub fn unembed(&self, x: &Array) -> Result<Array> {
        self.table.of(x)
    }
}
