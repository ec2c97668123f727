//! Seeded draws.

use mlx_rs::Array;
use mlx_rs::ops::indexing;

use crate::arrays::{pick, positions};
use crate::{Distribution, Result, noise};

impl Distribution {
    /// One id per row: argmax(log p + noise(seed, first_slot + row, id)).
    ///
    /// A row without support is the caller's error: its id means nothing, see [`Self::support`].
    ///
    /// # Shapes
    /// → `[n]` uint32.
    pub fn draw(&self, seed: u64, first_slot: usize) -> Result<Array> {
        let slots = first_slot..first_slot + self.rows();
        match self {
            Self::Point { ids } => Ok(ids.clone()),
            Self::Dense { logprobs } => {
                let noise = noise(seed, slots, &positions(logprobs.dim(-1))?)?;
                Ok(indexing::argmax_axis(logprobs.add(noise)?, -1, false)?)
            }
            Self::Sparse { ids, logprobs } => {
                let scores = logprobs.add(noise(seed, slots, ids)?)?;
                Ok(pick(ids, &indexing::argmax_axis(scores, -1, false)?)?)
            }
        }
    }
}
