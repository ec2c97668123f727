//! Seeded draws.

use mlx_rs::Array;
use mlx_rs::ops::{self, indexing};

use crate::arrays::{pick, positions, scalar};
use crate::masks::gap;
use crate::{Distribution, Result, noise};

impl Distribution {
    /// One id per row: argmax(log p + noise(seed, first_slot + row, id)).
    ///
    /// A row without support is the caller's error: its id means nothing, see [`Self::support`].
    ///
    /// # Shapes
    /// → `[n]` uint32.
    pub fn draw(&self, seed: u64, first_slot: usize) -> Result<Array> {
        match self.scores(seed, first_slot)? {
            Some(scores) => self.chosen(&scores),
            None => Ok(self.sparse()?.0.squeeze_axes(&[-1])?),
        }
    }

    /// Like [`draw`](Self::draw), with how far each chosen score lies above the next best: what rounding
    /// would have to move to change the token. Infinite where nothing else can be drawn.
    ///
    /// # Shapes
    /// → (`[n]` uint32, `[n]` float32).
    pub fn draw_with_margin(&self, seed: u64, first_slot: usize) -> Result<(Array, Array)> {
        match self.scores(seed, first_slot)? {
            Some(scores) => Ok((self.chosen(&scores)?, gap(&scores)?)),
            None => {
                let ids = self.draw(seed, first_slot)?;
                let margins = ops::full::<f32>(ids.shape(), scalar(f32::INFINITY))?;
                Ok((ids, margins))
            }
        }
    }

    /// log p + noise `[n,k]`; `None` for points.
    fn scores(&self, seed: u64, first_slot: usize) -> Result<Option<Array>> {
        let slots = first_slot..first_slot + self.rows();
        Ok(match self {
            Self::Point { .. } => None,
            Self::Dense { logprobs } => {
                let noise = noise(seed, slots, &positions(logprobs.dim(-1))?)?;
                Some(logprobs.add(noise)?)
            }
            Self::Sparse { ids, logprobs } => Some(logprobs.add(noise(seed, slots, ids)?)?),
        })
    }

    /// The ids of the best scores: `[n,k]` → `[n]`.
    fn chosen(&self, scores: &Array) -> Result<Array> {
        let best = indexing::argmax_axis(scores, -1, false)?;
        match self {
            Self::Sparse { ids, .. } => Ok(pick(ids, &best)?),
            _ => Ok(best),
        }
    }
}
