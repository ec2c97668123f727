//! Exact mode: every forward while decoding has the same shape for a slot, whatever a round drafts.
//!
//! Kernels may sum in another order for another number of rows, for another place among the rows, and for
//! another number of keys, so plain and speculative logits can differ in their last bits. Here the slots
//! after the prompt are cut into blocks of W, and the forward for a slot always covers its whole block: the
//! block's earlier tokens are forwarded again, drafts and padding fill the rest. A slot then has one row
//! index, one number of keys and one set of shapes in plain and in speculative decoding, and the contents of
//! later rows cannot reach it. Equal bits follow on every backend whose kernels are deterministic.

use std::rc::Rc;

use foretoken_cache::{CacheSet, Snapshot};

use crate::{Result, SpeculateError};

/// The width of exact mode: wide enough for drafts that pay, and a whole tile of the matrix kernels.
pub const EXACT_WIDTH: usize = 8;

/// The blocks of one request in exact mode.
#[derive(Debug, Clone)]
pub struct Exact {
    width: usize,
    /// The state at the start of the current block, for layers that cannot go back by themselves.
    start: Option<Rc<Snapshot>>,
}

impl Exact {
    /// Blocks of `width` rows, at least one.
    pub fn new(width: usize) -> Self {
        Self { width: width.max(1), start: None }
    }

    /// Rows of every forward.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first slot of the block that holds `slot`; blocks are counted from `origin`.
    fn block(&self, slot: usize, origin: usize) -> usize {
        slot - (slot - origin) % self.width
    }

    /// How many drafts may follow the token at `slot`.
    pub(crate) fn room(&self, slot: usize, origin: usize) -> usize {
        self.block(slot, origin) + self.width - 1 - slot
    }

    /// Takes the caches from `slot` back to the start of its block, which is returned.
    pub(crate) fn enter(&mut self, target: &mut CacheSet, slot: usize, origin: usize) -> Result<usize> {
        let start = self.block(slot, origin);
        if start == slot {
            // The range is empty at the very beginning, where every layer can go back.
            self.start = match start {
                0 => None,
                _ => Some(Rc::new(target.snapshot(start - 1..start)?)),
            };
        } else if target.can_rewind(start) {
            target.rewind(start)?;
        } else {
            match self.start.as_ref().filter(|kept| kept.range().end == start) {
                Some(kept) => target.restore(kept)?,
                None => return Err(unreachable(start, slot)),
            }
        }
        Ok(start)
    }
}

fn unreachable(start: usize, slot: usize) -> SpeculateError {
    SpeculateError::Input {
        what: "exact mode",
        expected: format!("caches that can go back to slot {start}"),
        got: format!("caches at slot {slot} that cannot; decode without exact mode"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_from_the_first_decoded_slot() {
        let exact = Exact::new(4);
        let blocks: Vec<usize> = (7..16).map(|slot| exact.block(slot, 7)).collect();
        assert_eq!(blocks, [7, 7, 7, 7, 11, 11, 11, 11, 15]);
        let room: Vec<usize> = (7..12).map(|slot| exact.room(slot, 7)).collect();
        assert_eq!(room, [3, 2, 1, 0, 3]);
        assert_eq!(Exact::new(0).width(), 1);
    }
}
