//! What a token was really drawn from.

use std::ops::Range;

use mlx_rs::Array;

use crate::Result;

/// n rows of probabilities over token ids, kept as log probabilities.
///
/// The three kinds mix freely: [`residual`](Self::residual) and [`concat`](Self::concat) are right
/// for all nine pairings. A dense target with a sparse draft is the usual case.
#[derive(Debug, Clone)]
pub enum Distribution {
    /// Every id has a column. −∞ outside the support.
    Dense {
        /// [n,V] float32, normalised.
        logprobs: Array,
    },
    /// k candidates per row. An id appears at most once per row with a finite value; padding is −∞.
    Sparse {
        /// [n,k] uint32.
        ids: Array,
        /// [n,k] float32, normalised.
        logprobs: Array,
    },
    /// One certain id per row.
    Point {
        /// [n] uint32.
        ids: Array,
    },
}

impl Distribution {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        unimplemented!()
    }

    /// The probability of one id per row.
    ///
    /// # Shapes
    /// `ids` [n] → [n] float32.
    pub fn prob(&self, ids: &Array) -> Result<Array> {
        unimplemented!("{ids:?}")
    }

    /// The normalised positive part of `self − draft`, row by row. Where that is empty or not finite the row
    /// is `self`, so that a broken draft row can never bring back the token it proposed.
    pub fn residual(&self, draft: &Distribution) -> Result<Distribution> {
        unimplemented!("{draft:?}")
    }

    /// Some of the rows.
    pub fn slice(&self, rows: Range<usize>) -> Result<Distribution> {
        unimplemented!("{rows:?}")
    }

    /// Rows of several distributions one after the other, of the narrowest kind that holds them all.
    pub fn concat(parts: &[&Distribution]) -> Result<Distribution> {
        unimplemented!("{parts:?}")
    }

    /// One id per row: argmax(log p + noise(seed, first_slot + row, id)).
    ///
    /// # Shapes
    /// → [n] uint32.
    pub fn draw(&self, seed: u64, first_slot: usize) -> Result<Array> {
        unimplemented!("{seed} {first_slot}")
    }
}
