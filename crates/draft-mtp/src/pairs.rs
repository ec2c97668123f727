//! Complete (next token, hidden) pairs that wait to be written to a sequential head's cache.

use mlx_rs::{
    Array,
    error::Exception,
    ops::{concatenate, indexing::TryIndexOp},
};

/// A queue of pairs in slot order.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    next: Vec<u32>,
    /// Hidden states [1,k,E], together as long as `next`.
    hidden: Vec<Array>,
}

impl Pairs {
    /// The number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.next.len()
    }

    /// Adds pairs: `next` k tokens, `hidden` [1,k,E].
    pub(crate) fn push(&mut self, next: &[u32], hidden: Array) {
        self.next.extend_from_slice(next);
        self.hidden.push(hidden);
    }

    /// The first `count` pairs: next tokens, and hidden states [1,count,E].
    pub(crate) fn front(&mut self, count: usize) -> Result<(&[u32], Array), Exception> {
        let hidden = self.joined()?.try_index((.., ..count as i32, ..))?;
        Ok((&self.next[..count], hidden))
    }

    /// Drops the first `count` pairs once they are written. What remains is cut out of the array it
    /// came in, so that a few pairs do not keep a whole prefill chunk alive once they are evaluated.
    pub(crate) fn advance(&mut self, count: usize) -> Result<(), Exception> {
        if count >= self.len() {
            *self = Self::default();
            return Ok(());
        }
        let rest = self.joined()?.try_index((.., count as i32.., ..))?.contiguous()?;
        self.next.drain(..count);
        self.hidden = vec![rest];
        Ok(())
    }

    /// The hidden states of the pairs that still wait, for an early evaluation.
    pub(crate) fn hidden(&self) -> &[Array] {
        &self.hidden
    }

    fn joined(&mut self) -> Result<&Array, Exception> {
        if self.hidden.len() != 1 {
            self.hidden = vec![concatenate(&self.hidden, 1)?];
        }
        Ok(&self.hidden[0])
    }
}
