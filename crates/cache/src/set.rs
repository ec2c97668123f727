//! All layers of one sequence, moved together.

use std::{
    fmt,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{CacheError, Layer, Result, checkpoint::Schedule, snapshot::Ledger};

/// Names the model that sets were made for, so that a snapshot is not restored into another's.
///
/// A model that wants its sets to exchange snapshots draws one when it is built and passes it to
/// [`CacheSet::with_id`]. [`CacheSet::new`] draws one for that set alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetId(u64);

impl SetId {
    /// An identity that no other call returns.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set {}", self.0)
    }
}

/// The caches of every layer for one sequence.
///
/// Between calls all layers rest at one offset. Rows that may be taken back are appended inside one
/// transaction: [`begin`](Self::begin), any appends, then [`commit`](Self::commit),
/// [`rollback`](Self::rollback) or [`rewind`](Self::rewind), each of which ends it.
///
/// A set without layers (a drafter without state) counts slots all the same, so that callers need no
/// special case: `commit` and [`advance`](Self::advance) move its offset forward, `rewind` back.
#[derive(Debug)]
pub struct CacheSet {
    pub(crate) layers: Vec<Layer>,
    pub(crate) scheduled: Option<Schedule>,
    pub(crate) ledger: Rc<Ledger>,
    id: SetId,
    /// Where a set without layers rests; the layers know it otherwise.
    bare: usize,
    /// The offset at which the open transaction began.
    open: Option<usize>,
}

impl CacheSet {
    /// A set at offset 0 whose snapshots are its own.
    pub fn new(layers: Vec<Layer>) -> Self {
        Self::with_id(SetId::fresh(), layers)
    }

    /// A set at offset 0 that can restore snapshots of every set with the same identity.
    pub fn with_id(id: SetId, layers: Vec<Layer>) -> Self {
        Self { layers, scheduled: None, ledger: Rc::default(), id, bare: 0, open: None }
    }

    /// The identity that snapshots are checked against.
    pub fn id(&self) -> SetId {
        self.id
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
        self.open.unwrap_or_else(|| self.frontier())
    }

    /// Rows appended since the transaction began; 0 outside one.
    pub fn pending(&self) -> usize {
        self.open.map_or(0, |base| self.frontier().saturating_sub(base))
    }

    /// Whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
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

    /// Opens a transaction at the current offset and returns that offset. A second one is an error.
    pub fn begin(&mut self) -> Result<usize> {
        self.open(|layer| layer.get_mut().begin())
    }

    /// Like [`begin`](Self::begin), for rows that are committed together or not at all, as a chunk of a
    /// prompt is: layers that fold the past then need not hold the state after each row.
    pub fn begin_whole(&mut self) -> Result<usize> {
        self.open(|layer| layer.get_mut().begin_whole())
    }

    /// Ends the transaction, keeping the first `kept` rows appended since it began. More rows than
    /// were appended are an error that leaves the transaction open. A set without layers has no rows to
    /// count: it moves on by `kept`.
    pub fn commit(&mut self, kept: usize) -> Result<()> {
        self.check()?;
        let base = self.open.ok_or_else(|| CacheError::State {
            what: "commit",
            expected: "an open transaction".into(),
            got: "none".into(),
        })?;
        let offset = base.saturating_add(kept);
        if self.is_empty() {
            self.bare = offset;
        }
        self.end_at("commit", offset)
    }

    /// Ends the transaction, dropping every row appended since it began. Without one it does nothing.
    pub fn rollback(&mut self) -> Result<()> {
        self.check()?;
        match self.open {
            Some(_) => self.commit(0),
            None => Ok(()),
        }
    }

    /// Whether [`rewind`](Self::rewind) to `offset` would succeed: every layer can go there.
    pub fn can_rewind(&self, offset: usize) -> bool {
        let bare = self.is_empty() && offset > self.bare;
        self.check().is_ok() && !bare && self.layers.iter().all(|layer| layer.get().can_rewind(offset))
    }

    /// Takes every layer back to `offset` and ends the transaction, if one is open. All layers can, or
    /// nothing changes.
    pub fn rewind(&mut self, offset: usize) -> Result<()> {
        self.check()?;
        self.end_at("rewind", offset)
    }

    /// Moves a set without layers forward by `rows`, as an append would move its layers.
    pub fn advance(&mut self, rows: usize) -> Result<()> {
        self.check()?;
        if !self.is_empty() {
            let got = format!("{} layers, which move when rows are appended", self.len());
            return Err(CacheError::State { what: "advance", expected: "a set without layers".into(), got });
        }
        self.bare = self.bare.saturating_add(rows);
        Ok(())
    }

    /// Fails unless all layers rest at one offset.
    pub fn level(&self) -> Result<()> {
        let want = self.frontier();
        match self.layers.iter().find(|l| l.get().offset() != want) {
            Some(other) => Err(CacheError::Offset {
                what: "layers of one set",
                expected: want.to_string(),
                got: other.get().offset(),
            }),
            None => Ok(()),
        }
    }

    /// Marks the set as unusable after a failed evaluation; every later call that can fail says why,
    /// and its snapshots are lost. Drop it: rolling back cannot help.
    pub fn poison(&mut self, reason: impl Into<String>) {
        self.ledger.poison(reason.into());
        self.layers.iter_mut().for_each(|layer| layer.get_mut().abandon());
    }

    /// Whether an evaluation failed while rows of this set were in flight.
    pub fn is_poisoned(&self) -> bool {
        self.ledger.poisoned().is_some()
    }

    /// Bytes of all layers, unused capacity included and snapshots not.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|l| l.get().bytes()).sum()
    }

    /// Bytes that living snapshots of this set hold as copies.
    pub fn snapshot_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.get().snapshot_bytes()).sum()
    }

    /// Snapshots of this set that are alive.
    pub fn snapshots(&self) -> usize {
        self.ledger.live()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.ledger.poisoned() {
            Some(reason) => Err(CacheError::Poisoned { reason }),
            None => Ok(()),
        }
    }

    pub(crate) fn closed(&self, what: &'static str) -> Result<()> {
        match self.open {
            Some(base) => Err(CacheError::State {
                what,
                expected: "no open transaction".into(),
                got: format!("one at offset {base}"),
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn rest_at(&mut self, offset: usize) {
        self.bare = offset;
    }

    /// Takes every layer back to `offset`. All layers can, or nothing changes.
    pub(crate) fn rewind_layers(&mut self, what: &'static str, offset: usize) -> Result<()> {
        let stuck = self.layers.iter().find(|l| !l.get().can_rewind(offset)).map(|l| l.get().offset());
        let ahead = (self.is_empty() && offset > self.bare).then_some(self.bare);
        if let Some(at) = stuck.or(ahead) {
            let expected = format!("that every layer reaches (one is at {at})");
            return Err(CacheError::Offset { what, expected, got: offset });
        }
        if let Err(error) = self.layers.iter_mut().try_for_each(|l| l.get_mut().rewind(offset)) {
            self.poison(format!("a layer refused an offset that it had promised: {error}"));
            return Err(error);
        }
        self.bare = offset;
        Ok(())
    }

    fn end_at(&mut self, what: &'static str, offset: usize) -> Result<()> {
        self.rewind_layers(what, offset)?;
        if self.open.take().is_some() {
            self.layers.iter_mut().for_each(|layer| layer.get_mut().end());
        }
        Ok(())
    }

    fn open(&mut self, tell: impl FnMut(&mut Layer)) -> Result<usize> {
        self.check()?;
        self.closed("begin")?;
        self.level()?;
        let base = self.frontier();
        self.layers.iter_mut().for_each(tell);
        self.open = Some(base);
        Ok(base)
    }

    /// The offset of the layers, transaction or not.
    fn frontier(&self) -> usize {
        self.layers.first().map_or(self.bare, |layer| layer.get().offset())
    }
}

impl Default for CacheSet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}
