//! All layers of one sequence, moved together.

use crate::{CacheError, Layer, Result};

/// The caches of every layer for one sequence.
///
/// Between calls all layers rest at one offset. Rows that may be taken back are appended inside one
/// transaction: [`begin`](Self::begin), any appends, then [`commit`](Self::commit) or
/// [`rollback`](Self::rollback).
#[derive(Debug, Default)]
pub struct CacheSet {
    layers: Vec<Layer>,
    offset: usize,
    open: Option<usize>,
    poisoned: Option<String>,
}

impl CacheSet {
    /// A set at offset 0.
    pub fn new(layers: Vec<Layer>) -> Self {
        Self { layers, ..Self::default() }
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether the set has no layers (a drafter without state).
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The offset that all layers rest at; inside a transaction, the offset it began at.
    pub fn offset(&self) -> usize {
        self.open.unwrap_or(self.layers.first().map_or(self.offset, |l| l.get().offset()))
    }

    /// A layer for reading; `None` past the last.
    pub fn layer(&self, index: usize) -> Option<&Layer> {
        self.layers.get(index)
    }

    /// A layer for appending. A model's forward is the only caller.
    pub fn layer_mut(&mut self, index: usize) -> Option<&mut Layer> {
        self.layers.get_mut(index)
    }

    /// Every layer, in model order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Opens a transaction at the current offset and returns that offset.
    pub fn begin(&mut self) -> Result<usize> {
        self.check()?;
        if let Some(base) = self.open {
            return Err(CacheError::State {
                what: "begin",
                expected: "no open transaction".into(),
                got: format!("one at offset {base}"),
            });
        }
        self.level()?;
        let base = self.offset();
        self.open = Some(base);
        Ok(base)
    }

    /// Ends the transaction, keeping the first `kept` rows appended since it began.
    pub fn commit(&mut self, kept: usize) -> Result<()> {
        self.check()?;
        let base = self.open.ok_or_else(|| CacheError::State {
            what: "commit",
            expected: "an open transaction".into(),
            got: "none".into(),
        })?;
        self.rewind_layers(base + kept)?;
        self.open = None;
        Ok(())
    }

    /// Ends the transaction, dropping every row appended since it began. Without one it does nothing.
    pub fn rollback(&mut self) -> Result<()> {
        self.check()?;
        match self.open {
            Some(_) => self.commit(0),
            None => Ok(()),
        }
    }

    /// Takes every layer back to `offset`. All layers can, or nothing changes.
    pub fn rewind(&mut self, offset: usize) -> Result<()> {
        self.check()?;
        self.open = None;
        self.rewind_layers(offset)
    }

    fn rewind_layers(&mut self, offset: usize) -> Result<()> {
        if let Some(stuck) = self.layers.iter().find(|l| !l.get().can_rewind(offset)) {
            return Err(CacheError::Offset {
                what: "rewind",
                expected: format!("that every layer reaches (one is at {})", stuck.get().offset()),
                got: offset,
            });
        }
        self.layers.iter_mut().try_for_each(|l| l.get_mut().rewind(offset))?;
        self.offset = offset;
        Ok(())
    }

    /// Fails unless all layers rest at one offset.
    pub fn level(&self) -> Result<()> {
        let want = self.offset();
        match self.layers.iter().find(|l| l.get().offset() != want) {
            Some(other) => Err(CacheError::Offset {
                what: "layers of one set",
                expected: want.to_string(),
                got: other.get().offset(),
            }),
            None => Ok(()),
        }
    }

    /// Marks the set as unusable after a failed evaluation; every later call says why.
    pub fn poison(&mut self, reason: impl Into<String>) {
        self.poisoned = Some(reason.into());
    }

    /// Whether an evaluation failed while rows of this set were in flight.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// Bytes of all layers.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|l| l.get().bytes()).sum()
    }

    fn check(&self) -> Result<()> {
        match &self.poisoned {
            Some(reason) => Err(CacheError::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}
