//! What both sessions share: the order of committed runs, and reading a context.

use foretoken_model_base::{MTPEmbeddingModel, Model};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

/// The deepest proposal of either head: the largest depth of the MTP defaults.
pub(crate) const MAX_DEPTH: usize = 16;

/// The slot that the next committed run must start at.
#[derive(Debug)]
pub(crate) struct Stream {
    /// One past the last committed slot.
    pub(crate) next: usize,
}

impl Stream {
    /// Checks a run and moves past it; returns its hidden states [1,n,E].
    pub(crate) fn hear<'r>(&mut self, run: CommittedRun<'r>) -> Result<&'r Array, DraftError> {
        if run.slot != self.next {
            return Err(DraftError::Gap { expected: self.next, got: run.slot });
        }
        let rows = run.ids.len();
        match run.hidden.filter(|h| rows > 0 && h.ndim() == 3 && h.dim(0) == 1 && h.dim(1) as usize == rows) {
            Some(hidden) => {
                self.next += rows;
                Ok(hidden)
            }
            None => Err(mismatch(
                "hidden states of a committed run",
                format!("[1,{},E]", rows.max(1)),
                run.hidden.map_or("none".into(), |h| format!("{:?}", h.shape())),
            )),
        }
    }

    /// Fails unless the target's caches end at the last committed slot.
    pub(crate) fn check_target(&self, cx: &DraftCx<'_>) -> Result<(), DraftError> {
        match cx.target.offset() {
            got if got == self.next => Ok(()),
            got => Err(mismatch("target caches", format!("offset {}", self.next), got)),
        }
    }
}

/// The target's embeddings.
pub(crate) fn embeddings(model: &dyn Model) -> Result<&dyn MTPEmbeddingModel, DraftError> {
    model.mtp().ok_or_else(|| mismatch("target", "shared embeddings", model.facts().family))
}

/// A certain token as ids [1,1].
pub(crate) fn one(id: u32) -> Array {
    Array::from_slice(&[id], &[1, 1])
}

/// The last row [1,1,E] of [1,n,E].
pub(crate) fn last_row(rows: &Array) -> Result<Array, DraftError> {
    Ok(rows.try_index((.., -1.., ..))?)
}

pub(crate) fn mismatch(what: &str, expected: impl ToString, got: impl ToString) -> DraftError {
    DraftError::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
}
