//! Snapshots of layers that cannot be cut at any slot: a run of slots with the offsets it restores to.

use std::{fmt, ops::Range, rc::Rc};

use mlx_rs::Array;

use crate::{CacheError, RecurrentState, Result, rows::RowsCell, state::StateCell};

/// What a layer needs to rest at one offset.
pub(crate) trait Point: Clone {
    /// Bytes held for snapshots alone.
    fn bytes(&self) -> usize;
    /// Whether [`cut`](Self::cut) succeeds for every earlier offset.
    fn cuttable(&self) -> bool;
    /// What is needed to rest at the earlier offset `at`.
    fn cut(&self, at: usize) -> Result<Self>;
}

/// A run of slots, and the points inside it that a layer can be taken to.
pub(crate) struct Points<P> {
    slots: Range<usize>,
    /// Ascending offsets in `slots.start + 1 ..= slots.end`, each with what it takes.
    points: Vec<(usize, P)>,
}

impl<P: Point> Points<P> {
    pub(crate) fn new(slots: Range<usize>, point: P) -> Self {
        Self { points: vec![(slots.end, point)], slots }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.slots.clone()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.points.iter().map(|(_, point)| point.bytes()).sum()
    }

    /// Whether this, cut at `offset`, restores to it.
    pub(crate) fn reaches(&self, offset: usize) -> bool {
        let inside = offset > self.slots.start && offset <= self.slots.end;
        let mut points = self.points.iter();
        inside && points.any(|(at, point)| *at == offset || (*at > offset && point.cuttable()))
    }

    /// What restores to the end of the slots.
    pub(crate) fn last(&self) -> Result<&P> {
        match self.points.last() {
            Some((at, point)) if *at == self.slots.end => Ok(point),
            last => Err(CacheError::Offset {
                what: "restore",
                expected: match last {
                    Some((at, _)) => format!("that was captured (the last in the snapshot is {at})"),
                    None => "that was captured (the snapshot has none)".into(),
                },
                got: self.slots.end,
            }),
        }
    }

    /// The slots before `at`, and from `at` on. The front restores to `at` only if that was captured.
    pub(crate) fn split(&self, at: usize) -> Result<(Self, Self)> {
        let middle = self.points.partition_point(|(offset, _)| *offset <= at);
        let (front, back) = self.points.split_at(middle);
        let (mut front, back) = (front.to_vec(), back.to_vec());
        let missing = front.last().is_none_or(|(offset, _)| *offset < at);
        if let Some((_, point)) = back.iter().find(|(_, point)| missing && point.cuttable()) {
            front.push((at, point.cut(at)?));
        }
        let front = Self { slots: self.slots.start..at, points: front };
        Ok((front, Self { slots: at..self.slots.end, points: back }))
    }

    /// The slots of both, with the points of both.
    pub(crate) fn merge(&self, next: &Self) -> Self {
        let points = self.points.iter().chain(&next.points).cloned().collect();
        Self { slots: self.slots.start..next.slots.end, points }
    }
}

/// The rows that a window needs to rest at an offset; none for a window of one slot.
#[derive(Clone)]
pub(crate) struct WindowPoint(pub(crate) Option<Rc<RowsCell>>);

impl Point for WindowPoint {
    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |rows| rows.bytes())
    }

    fn cuttable(&self) -> bool {
        // Nothing has slid away yet: every earlier offset needs a part of the same rows.
        self.0.as_ref().is_some_and(|rows| rows.range().start == 0)
    }

    fn cut(&self, at: usize) -> Result<Self> {
        Ok(Self(self.0.as_ref().map(|rows| rows.part(0..at)).transpose()?))
    }
}

impl Point for Rc<StateCell> {
    fn bytes(&self) -> usize {
        StateCell::bytes(self)
    }

    fn cuttable(&self) -> bool {
        false
    }

    fn cut(&self, at: usize) -> Result<Self> {
        let expected = "the offset of a captured state".into();
        Err(CacheError::Offset { what: "split", expected, got: at })
    }
}

/// What a sliding window held at some offsets of a run of slots.
pub struct WindowSnapshot(pub(crate) Points<WindowPoint>);

impl WindowSnapshot {
    /// The slots covered.
    pub fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// Bytes held as copies; 0 as long as the rows are still in their slots.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Whether this, cut at `offset`, restores to it.
    pub fn reaches(&self, offset: usize) -> bool {
        self.0.reaches(offset)
    }

    /// The rows needed at the end of the slots, the last of them just before it; `None` where none are.
    /// Drop them before the next append: they may be views of the layer's buffer.
    ///
    /// # Shapes
    /// Both are `[1,K,n,D]`.
    pub fn read(&self) -> Result<Option<(Array, Array)>> {
        self.0.last()?.0.as_ref().map(|rows| rows.codec().decode(&rows.read()?)).transpose()
    }
}

/// States of a recurrent layer at some offsets of a run of slots.
pub struct StateSnapshot(pub(crate) Points<Rc<StateCell>>);

impl StateSnapshot {
    /// The slots covered.
    pub fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// Bytes held; 0 as long as the layer needs the same states itself.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Whether this, cut at `offset`, restores to it.
    pub fn reaches(&self, offset: usize) -> bool {
        self.0.reaches(offset)
    }

    /// The state at the end of the slots.
    pub fn read(&self) -> Result<RecurrentState> {
        self.0.last()?.read()
    }
}

impl fmt::Debug for WindowSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut snapshot = f.debug_struct("WindowSnapshot");
        snapshot.field("slots", &self.range()).field("bytes", &self.bytes()).finish()
    }
}

impl fmt::Debug for StateSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut snapshot = f.debug_struct("StateSnapshot");
        snapshot.field("slots", &self.range()).field("bytes", &self.bytes()).finish()
    }
}
