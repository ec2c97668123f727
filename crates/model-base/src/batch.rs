//! What one forward reads.

use mlx_rs::Array;

use crate::{ModelError, Result};

/// Token ids of one forward, with each row's place in its sequence.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Token ids `[B,L]` uint32; may be lazy.
    pub ids: Array,
    /// The slot of each row's first token, B entries.
    pub offsets: Vec<usize>,
    /// How many of the L tokens of each row count, B entries.
    pub lengths: Vec<usize>,
}

impl Batch {
    /// One sequence: ids `[1,L]` that start at slot `offset`.
    pub fn single(ids: Array, offset: usize) -> Result<Self> {
        match *ids.shape() {
            [1, length] if length > 0 => {
                Ok(Self { ids, offsets: vec![offset], lengths: vec![length as usize] })
            }
            ref other => Err(ModelError::Input {
                what: "batch ids",
                expected: "shape [1,L] with L ≥ 1".into(),
                got: format!("{other:?}"),
            }),
        }
    }

    /// One sequence from ids on the host.
    pub fn from_ids(ids: &[u32], offset: usize) -> Result<Self> {
        Self::single(Array::from_slice(ids, &[1, ids.len() as i32]), offset)
    }
}
