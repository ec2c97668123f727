//! What a set can be taken back to: one remembered state per layer, as ranges until they must move.

use std::{
    cell::{Cell, RefCell},
    fmt,
    ops::Range,
    rc::Rc,
};

use mlx_rs::Array;

use crate::{
    CacheError, RecurrentState, Result, SetId, StateSnapshot, WindowSnapshot,
    points::{Points, WindowPoint},
    rows::RowsCell,
    state::Held,
};

/// A remembered run of slots of a [`CacheSet`](crate::CacheSet), for all its layers.
///
/// It holds ranges, not arrays: a second handle on a buffer would make the next write copy all of it.
/// A layer copies the rows out when an append is about to overwrite them, or when its set is dropped
/// first. States of recurrent layers are never written, so these are shared. Dropping the snapshot gives
/// the memory back.
///
/// A set of full-attention layers can be taken to every offset of the range, by way of
/// [`split`](Self::split). Windows and folded states are remembered at the end of the range only, and a
/// merged snapshot remembers those of both: [`reaches`](Self::reaches) and
/// [`restore_point`](Self::restore_point) say where the snapshot can take a set.
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

    /// Whether a set can be taken to `offset` with this snapshot, cut there.
    pub fn reaches(&self, offset: usize) -> bool {
        let inside = offset > self.slots.start && offset <= self.slots.end;
        inside && self.layers.iter().all(|layer| layer.reaches(offset))
    }

    /// The last offset at or before `at_most` that the snapshot [`reaches`](Self::reaches).
    pub fn restore_point(&self, at_most: usize) -> Option<usize> {
        (self.slots.start + 1..=self.slots.end.min(at_most)).rev().find(|offset| self.reaches(*offset))
    }

    /// Two snapshots: of the slots before `at`, and from `at` on. This one stays as it is. The first one
    /// restores to `at` only if this one [`reaches`](Self::reaches) it.
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
    /// What a sliding window held.
    Window(WindowSnapshot),
    /// States of a recurrent layer.
    State(StateSnapshot),
}

impl LayerSnapshot {
    /// A snapshot of a full-attention layer that holds its own rows, for caches that store rows in their
    /// own way. Its bytes are counted in `counter` as long as it, or a part of it, lives.
    ///
    /// # Shapes
    /// `keys` and `values` are `[1,K,L,D]` for a range of L slots.
    pub fn of_rows(slots: Range<usize>, rows: (Array, Array), counter: &Rc<Cell<usize>>) -> Self {
        Self::Rows(RowsSnapshot(RowsCell::detached(slots, vec![rows.0, rows.1], counter)))
    }

    /// The same for a sliding window: the rows that it needs to rest at `slots.end`, which end there; none
    /// where it needs none.
    ///
    /// # Shapes
    /// `keys` and `values` are `[1,K,n,D]` for the last n slots before `slots.end`.
    pub fn of_window(slots: Range<usize>, rows: Option<(Array, Array)>, counter: &Rc<Cell<usize>>) -> Self {
        let end = slots.end;
        let cell = rows.map(|(keys, values)| {
            let range = end.saturating_sub(keys.dim(2) as usize)..end;
            RowsCell::detached(range, vec![keys, values], counter)
        });
        Self::Window(WindowSnapshot(Points::new(slots, WindowPoint(cell))))
    }

    /// The same for a layer that folds the past: its state at `slots.end`.
    pub fn of_state(slots: Range<usize>, state: RecurrentState, counter: &Rc<Cell<usize>>) -> Self {
        Self::State(StateSnapshot(Points::new(slots, Held::fresh(state, counter).share())))
    }

    /// The slots covered.
    pub fn range(&self) -> Range<usize> {
        match self {
            Self::Rows(rows) => rows.range(),
            Self::Window(window) => window.range(),
            Self::State(state) => state.range(),
        }
    }

    /// Bytes held for this snapshot.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.bytes(),
            Self::Window(window) => window.bytes(),
            Self::State(state) => state.bytes(),
        }
    }

    /// Whether a layer can be taken to `offset` with this, cut there.
    pub fn reaches(&self, offset: usize) -> bool {
        match self {
            Self::Rows(rows) => offset > rows.range().start && offset <= rows.range().end,
            Self::Window(window) => window.reaches(offset),
            Self::State(state) => state.reaches(offset),
        }
    }

    /// The slots before `at`, and from `at` on; `at` lies inside the range.
    pub fn split(&self, at: usize) -> Result<(Self, Self)> {
        let slots = self.range();
        if at <= slots.start || at >= slots.end {
            let expected = format!("inside {}..{}", slots.start, slots.end);
            return Err(CacheError::Offset { what: "split", expected, got: at });
        }
        match self {
            Self::Rows(rows) => {
                let (front, back) = rows.0.split(at)?;
                Ok((Self::Rows(RowsSnapshot(front)), Self::Rows(RowsSnapshot(back))))
            }
            Self::Window(window) => {
                let (front, back) = window.0.split(at)?;
                Ok((Self::Window(WindowSnapshot(front)), Self::Window(WindowSnapshot(back))))
            }
            Self::State(state) => {
                let (front, back) = state.0.split(at)?;
                Ok((Self::State(StateSnapshot(front)), Self::State(StateSnapshot(back))))
            }
        }
    }

    /// These slots and those of `next`, which is of the same kind and starts where these end.
    pub fn merge(&self, next: &Self) -> Result<Self> {
        let (end, start) = (self.range().end, next.range().start);
        if start != end {
            let expected = format!("{end} for the second snapshot to start at");
            return Err(CacheError::Offset { what: "merge", expected, got: start });
        }
        match (self, next) {
            (Self::Rows(first), Self::Rows(second)) => {
                Ok(Self::Rows(RowsSnapshot(first.0.merge(&second.0)?)))
            }
            (Self::Window(first), Self::Window(second)) => {
                Ok(Self::Window(WindowSnapshot(first.0.merge(&second.0))))
            }
            (Self::State(first), Self::State(second)) => {
                Ok(Self::State(StateSnapshot(first.0.merge(&second.0))))
            }
            (first, second) => Err(second.foreign("merge", first.kind())),
        }
    }

    pub(crate) fn rows(&self) -> Result<&RowsSnapshot> {
        match self {
            Self::Rows(rows) => Ok(rows),
            other => Err(other.foreign("restore", "rows")),
        }
    }

    pub(crate) fn window(&self) -> Result<&WindowSnapshot> {
        match self {
            Self::Window(window) => Ok(window),
            other => Err(other.foreign("restore", "a window")),
        }
    }

    pub(crate) fn state(&self) -> Result<&StateSnapshot> {
        match self {
            Self::State(state) => Ok(state),
            other => Err(other.foreign("restore", "states")),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Rows(_) => "rows",
            Self::Window(_) => "a window",
            Self::State(_) => "states",
        }
    }

    fn foreign(&self, what: &'static str, expected: &str) -> CacheError {
        let name = |kind| format!("a layer's snapshot of {kind}");
        CacheError::Kind { what, expected: name(expected), got: name(self.kind()) }
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
        self.0.codec().decode(&self.0.read()?)
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
