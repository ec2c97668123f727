//! How keys and values lie in a row store: the planes that hold them, and the way back.

use std::fmt;

use mlx_rs::{
    Array, Dtype,
    ops::{dequantize, quantize},
};

use crate::{CacheError, Result};

/// Keys and values of the same slots, each `[1,K,n,D]`; the two may differ in D.
pub(crate) type Pair = (Array, Array);

/// Arrays `[1,K,n,X]` that together hold the same n slots.
pub(crate) type Planes = Vec<Array>;

/// How a store holds its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Codec {
    /// Keys and values as they came: two planes.
    #[default]
    Raw,
    /// Affine groups along D: packed numbers, scales and biases, of keys and then of values.
    Affine { bits: i32, group: i32 },
}

/// What rows must have in common to share a store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowFacts {
    heads: i32,
    /// Head sizes of keys and values.
    sizes: [i32; 2],
    dtypes: [Dtype; 2],
}

impl Codec {
    /// The planes of new rows.
    ///
    /// # Shapes
    /// `keys` and `values` are `[1,K,L,D]`.
    pub(crate) fn encode(self, keys: &Array, values: &Array) -> Result<Planes> {
        match self {
            Codec::Raw => Ok(vec![keys.clone(), values.clone()]),
            Codec::Affine { bits, group } => {
                let (keys, key_scales, key_biases) = quantize(keys, group, bits)?;
                let (values, value_scales, value_biases) = quantize(values, group, bits)?;
                Ok(vec![keys, key_scales, key_biases, values, value_scales, value_biases])
            }
        }
    }

    /// Keys and values `[1,K,n,D]` of planes that this codec made.
    pub(crate) fn decode(self, planes: &[Array]) -> Result<Pair> {
        match (self, planes) {
            (Codec::Raw, [keys, values]) => Ok((keys.clone(), values.clone())),
            (Codec::Affine { bits, group }, [keys, k_scales, k_biases, values, v_scales, v_biases]) => {
                let keys = dequantize(keys, k_scales, k_biases, group, bits)?;
                Ok((keys, dequantize(values, v_scales, v_biases, group, bits)?))
            }
            _ => Err(unreadable(planes.len())),
        }
    }

    /// What rows in these planes have in common.
    pub(crate) fn facts(self, planes: &[Array]) -> Result<RowFacts> {
        match (self, planes) {
            (Codec::Raw, [keys, values]) => Ok(RowFacts::of(keys, values)),
            (Codec::Affine { bits, .. }, [keys, k_scales, _, values, v_scales, _]) => Ok(RowFacts {
                heads: keys.dim(1),
                sizes: [keys.dim(3) * 32 / bits, values.dim(3) * 32 / bits],
                dtypes: [k_scales.dtype(), v_scales.dtype()],
            }),
            _ => Err(unreadable(planes.len())),
        }
    }

    /// Fails if rows like these cannot be encoded.
    pub(crate) fn check(self, rows: &RowFacts) -> Result<()> {
        let Codec::Affine { group, .. } = self else { return Ok(()) };
        match rows.sizes.iter().find(|size| **size % group != 0) {
            None => Ok(()),
            Some(size) => Err(CacheError::Shape {
                what: "keys and values to quantize",
                expected: format!("[1,K,L,D] with D in whole groups of {group}"),
                got: format!("D = {size}"),
            }),
        }
    }
}

impl RowFacts {
    /// # Shapes
    /// `keys` and `values` are `[1,K,L,D]`.
    pub(crate) fn of(keys: &Array, values: &Array) -> Self {
        Self {
            heads: keys.dim(1),
            sizes: [keys.dim(3), values.dim(3)],
            dtypes: [keys.dtype(), values.dtype()],
        }
    }

    /// The shapes that fit, for an error.
    pub(crate) fn shapes(&self) -> String {
        let (heads, [keys, values]) = (self.heads, self.sizes);
        format!("[1,{heads},L,{keys}] and [1,{heads},L,{values}] with L ≥ 1")
    }

    /// Fails unless `rows` can follow rows like these; `got` describes their shapes.
    pub(crate) fn admit(&self, rows: &Self, got: impl FnOnce() -> String) -> Result<()> {
        if (self.heads, self.sizes) != (rows.heads, rows.sizes) {
            let what = "keys and values";
            return Err(CacheError::Shape { what, expected: self.shapes(), got: got() });
        }
        for (index, what) in ["keys", "values"].into_iter().enumerate() {
            let (expected, got) = (self.dtypes[index], rows.dtypes[index]);
            if expected != got {
                return Err(CacheError::Dtype { what, expected, got });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Raw => f.write_str("rows as they came"),
            Codec::Affine { bits, group } => write!(f, "rows of {bits} bits in groups of {group}"),
        }
    }
}

fn unreadable(planes: usize) -> CacheError {
    CacheError::Kind {
        what: "rows of a snapshot",
        expected: "the planes of this kind of layer".into(),
        got: format!("{planes} planes"),
    }
}
