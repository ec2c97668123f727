//! What a set can be taken back to: one remembered state per layer, as ranges until they must move.

use std::{
    cell::{Cell, RefCell},
    fmt,
    ops::Range,
    rc::Rc,
};

use mlx_rs::Array;

use crate::{CacheError, Result, SetId, rows::RowsCell};

/// A remembered run of slots of a [`CacheSet`](crate::CacheSet), for all its layers.
///
/// It holds ranges, not arrays: a second handle on a buffer would make the next write copy all of it.
/// A layer copies the rows out when an append is about to overwrite them, or when its set is dropped
/// first. Dropping the snapshot gives the copies' memory back.
pub struct Snapshot {
    set: SetId,
    slots: Range<usize>,
    layers: Vec<LayerSnapshot>,
    ledger: Rc<Ledger>,
}

impl Snapshot {
    pub(crate) fn new(
        set: SetId,
        slots: Range<usize>,
        layers: Vec<LayerSnapshot>,
        ledger: &Rc<Ledger>,
    ) -> Self {
        Self { set, slots, layers, ledger: ledger.enter() }
    }

    /// The model that the set was made for, as far as the set was told.
    pub fn set(&self) -> SetId {
        self.set
    }

    /// The slots covered. Restoring takes a set to the end of the range.
    pub fn range(&self) -> Range<usize> {
        self.slots.clone()
    }

    /// One snapshot per layer, in model order.
    pub fn layers(&self) -> &[LayerSnapshot] {
        &self.layers
    }

    /// Bytes held as copies; 0 as long as every row is still in its slot.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerSnapshot::bytes).sum()
    }

    /// Two snapshots: of the slots before `at`, and from `at` on. This one stays as it is.
    pub fn split(&self, at: usize) -> Result<(Self, Self)> {
        self.usable()?;
        if at <= self.slots.start || at >= self.slots.end {
            let expected = format!("inside {}..{}", self.slots.start, self.slots.end);
            return Err(CacheError::Offset { what: "split", expected, got: at });
        }
        let halves = self.layers.iter().map(|layer| layer.split(at));
        let (front, back) = halves.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let part = |slots, layers| Self::new(self.set, slots, layers, &self.ledger);
        Ok((part(self.slots.start..at, front), part(at..self.slots.end, back)))
    }

    /// One snapshot of these slots and those of `next`, which must start where these end. Both stay as
    /// they are.
    pub fn merge(&self, next: &Self) -> Result<Self> {
        self.usable()?;
        next.usable()?;
        next.belongs("merge", self.set, self.layers.len())?;
        if next.slots.start != self.slots.end {
            let expected = format!("{} for the second snapshot to start at", self.slots.end);
            return Err(CacheError::Offset { what: "merge", expected, got: next.slots.start });
        }
        let pairs = self.layers.iter().zip(&next.layers);
        let layers = pairs.map(|(first, second)| first.merge(second)).collect::<Result<Vec<_>>>()?;
        Ok(Self::new(self.set, self.slots.start..next.slots.end, layers, &self.ledger))
    }

    /// Fails if the set was poisoned: a copy made for a failed evaluation may be wrong as well.
    pub(crate) fn usable(&self) -> Result<()> {
        match self.ledger.poisoned() {
            Some(reason) => Err(CacheError::Lost { from: self.slots.start, to: self.slots.end, reason }),
            None => Ok(()),
        }
    }

    /// Fails unless this is a snapshot of a set with this identity and number of layers.
    pub(crate) fn belongs(&self, what: &'static str, set: SetId, layers: usize) -> Result<()> {
        if self.set == set && self.layers.len() == layers {
            return Ok(());
        }
        let name = |set, layers| format!("{set} with {layers} layers");
        let (expected, got) = (name(set, layers), name(self.set, self.layers.len()));
        Err(CacheError::Foreign { what, expected, got })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.ledger.leave();
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut snapshot = f.debug_struct("Snapshot");
        snapshot.field("set", &self.set).field("slots", &self.slots).field("bytes", &self.bytes());
        snapshot.finish_non_exhaustive()
    }
}

/// What one layer remembers.
#[derive(Debug)]
#[non_exhaustive]
pub enum LayerSnapshot {
    /// Rows of a layer that can be cut at any slot.
    Rows(RowsSnapshot),
}

impl LayerSnapshot {
    /// Bytes held as copies.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.bytes(),
        }
    }

    fn split(&self, at: usize) -> Result<(Self, Self)> {
        match self {
            Self::Rows(rows) => {
                let (front, back) = rows.0.split(at)?;
                Ok((Self::Rows(RowsSnapshot(front)), Self::Rows(RowsSnapshot(back))))
            }
        }
    }

    fn merge(&self, next: &Self) -> Result<Self> {
        match (self, next) {
            (Self::Rows(first), Self::Rows(second)) => {
                Ok(Self::Rows(RowsSnapshot(first.0.merge(&second.0)?)))
            }
        }
    }
}

/// Rows of a layer that can be cut at any slot.
pub struct RowsSnapshot(Rc<RowsCell>);

impl RowsSnapshot {
    pub(crate) fn new(cell: Rc<RowsCell>) -> Self {
        Self(cell)
    }

    pub(crate) fn cell(&self) -> &RowsCell {
        &self.0
    }

    /// The slots covered.
    pub fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// Bytes held as a copy; 0 as long as the rows are still in their slots.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The keys and values. Drop them before the next append: they may be views of the layer's buffer.
    ///
    /// # Shapes
    /// Both are `[1,K,L,D]` for a range of L slots.
    pub fn read(&self) -> Result<(Array, Array)> {
        self.0.read()
    }
}

impl fmt::Debug for RowsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowsSnapshot").field("slots", &self.range()).field("bytes", &self.bytes()).finish()
    }
}

/// What a set and its snapshots know of each other, also after one of them is gone.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Snapshots alive.
    live: Cell<usize>,
    poisoned: RefCell<Option<String>>,
}

impl Ledger {
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    pub(crate) fn poison(&self, reason: String) {
        self.poisoned.replace(Some(reason));
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        self.poisoned.borrow().clone()
    }

    fn enter(self: &Rc<Self>) -> Rc<Self> {
        self.live.set(self.live.get() + 1);
        Rc::clone(self)
    }

    fn leave(&self) {
        self.live.set(self.live.get() - 1);
    }
}
