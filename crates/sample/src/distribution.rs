//! What a token was really drawn from.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};

use crate::arrays::{column, columns, exp, never, pick, positions, scalar, word};
use crate::{Result, SampleError};

/// n rows of probabilities over token ids, kept as log probabilities.
///
/// The three kinds mix freely: [`residual`](Self::residual) and [`concat`](Self::concat) are right
/// for all nine pairings. A dense target with a sparse draft is the usual case.
#[derive(Debug, Clone)]
pub enum Distribution {
    /// Every id has a column. −∞ outside the support.
    Dense {
        /// `[n,V]` float32, normalised.
        logprobs: Array,
    },
    /// k candidates per row. An id appears at most once per row with a finite value; padding is −∞.
    Sparse {
        /// `[n,k]` uint32.
        ids: Array,
        /// `[n,k]` float32, normalised.
        logprobs: Array,
    },
    /// One certain id per row.
    Point {
        /// `[n]` uint32.
        ids: Array,
    },
}

impl Distribution {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense { logprobs } | Self::Sparse { logprobs, .. } => logprobs.dim(0) as usize,
            Self::Point { ids } => ids.dim(0) as usize,
        }
    }

    /// The probability of one id per row.
    ///
    /// # Shapes
    /// `ids` `[n]` → `[n]` float32.
    pub fn prob(&self, ids: &Array) -> Result<Array> {
        let rows = self.rows() as i32;
        if ids.shape() != [rows] {
            return Err(shape("ids", format!("[{rows}]"), format!("{:?}", ids.shape())));
        }
        match self {
            Self::Dense { logprobs } => Ok(exp(&pick(logprobs, ids)?)?),
            Self::Sparse { ids: own, logprobs } => {
                let found = ops::select(own.eq(column(ids)?)?, exp(logprobs)?, scalar(0.0))?;
                Ok(found.sum_axis(-1, false)?)
            }
            Self::Point { ids: own } => Ok(own.eq(ids)?.as_dtype(Dtype::Float32)?),
        }
    }

    /// Whether each row has an id that can be drawn; false for rows of NaN. Filters may hide a single NaN:
    /// [`finite_rows`](crate::finite_rows) of the raw logits tells whether a row was sound.
    ///
    /// # Shapes
    /// → `[n]` bool.
    pub fn support(&self) -> Result<Array> {
        match self {
            Self::Dense { logprobs } | Self::Sparse { logprobs, .. } => {
                Ok(logprobs.gt(never())?.any_axis(-1, false)?)
            }
            Self::Point { ids } => Ok(ops::ones_dtype(ids.shape(), Dtype::Bool)?),
        }
    }

    /// Some of the rows.
    pub fn slice(&self, rows: Range<usize>) -> Result<Distribution> {
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(shape("rows", format!("a range within 0..{}", self.rows()), format!("{rows:?}")));
        }
        let range = rows.start as i32..rows.end as i32;
        let cut = |array: &Array| array.try_index(range.clone());
        Ok(match self {
            Self::Dense { logprobs } => Self::Dense { logprobs: cut(logprobs)? },
            Self::Sparse { ids, logprobs } => Self::Sparse { ids: cut(ids)?, logprobs: cut(logprobs)? },
            Self::Point { ids } => Self::Point { ids: cut(ids)? },
        })
    }

    /// Rows of several distributions one after the other, of the narrowest kind that holds them all.
    ///
    /// Dense parts must be equally wide and hold every id of the others.
    pub fn concat(parts: &[&Distribution]) -> Result<Distribution> {
        let Some(&first) = parts.first() else {
            return Err(shape("distributions", "at least one".into(), "none".into()));
        };
        if parts.len() == 1 {
            return Ok(first.clone());
        }
        let dense = parts.iter().filter(|part| matches!(part, Self::Dense { .. }));
        if let Some(width) = dense.map(|part| part.width()).max() {
            let rows = parts.iter().map(|part| part.dense(width)).collect::<Result<Vec<_>>>()?;
            return Ok(Self::Dense { logprobs: join(&rows)? });
        }
        if parts.iter().all(|part| matches!(part, Self::Point { .. })) {
            let ids = parts.iter().map(|part| Ok(part.sparse()?.0.squeeze_axes(&[-1])?));
            return Ok(Self::Point { ids: join(&ids.collect::<Result<Vec<_>>>()?)? });
        }
        let width = parts.iter().map(|part| part.width()).max().unwrap_or(1);
        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        for part in parts {
            let (own, values) = part.sparse()?;
            let wider = [(0, 0), (0, width - values.dim(-1))];
            ids.push(ops::pad(own, &wider, None, None)?);
            logprobs.push(ops::pad(values, &wider, never(), None)?);
        }
        Ok(Self::Sparse { ids: join(&ids)?, logprobs: join(&logprobs)? })
    }

    /// Columns per row; a point counts as one.
    pub(crate) fn width(&self) -> i32 {
        match self {
            Self::Dense { logprobs } | Self::Sparse { logprobs, .. } => logprobs.dim(-1),
            Self::Point { .. } => 1,
        }
    }

    /// Log probabilities with one column per id → `[n,width]` float32.
    pub(crate) fn dense(&self, width: i32) -> Result<Array> {
        match self {
            Self::Dense { logprobs } if logprobs.dim(-1) == width => Ok(logprobs.clone()),
            Self::Dense { logprobs } => {
                Err(shape("dense rows", format!("[n,{width}]"), format!("{:?}", logprobs.shape())))
            }
            Self::Point { ids } => {
                let hit = positions(width)?.eq(column(ids)?)?;
                Ok(ops::select(hit, scalar(0.0), never())?)
            }
            Self::Sparse { ids, logprobs } => {
                // Padding may repeat an id of the row, so it goes to one column more, which is cut off.
                let places = ops::select(logprobs.eq(never())?, word(width as u32), ids)?;
                let empty = ops::full::<f32>(&[logprobs.dim(0), width + 1], never())?;
                Ok(columns(&empty.put_along_axis(places, logprobs, -1)?, 0..width)?)
            }
        }
    }

    /// Ids and log probabilities `[n,k]` of a sparse or point distribution.
    pub(crate) fn sparse(&self) -> Result<(Array, Array)> {
        match self {
            Self::Sparse { ids, logprobs } => Ok((ids.clone(), logprobs.clone())),
            Self::Point { ids } => {
                let certain = ops::zeros_dtype(&[ids.dim(0), 1], Dtype::Float32)?;
                Ok((column(ids)?, certain))
            }
            Self::Dense { logprobs } => {
                let ids = ops::broadcast_to(positions(logprobs.dim(-1))?, logprobs.shape())?;
                Ok((ids, logprobs.clone()))
            }
        }
    }
}

fn join(parts: &[Array]) -> Result<Array> {
    Ok(ops::concatenate(&parts.iter().collect::<Vec<_>>(), 0)?)
}

fn shape(what: &'static str, expected: String, got: String) -> SampleError {
    SampleError::Shape { what, expected, got }
}
