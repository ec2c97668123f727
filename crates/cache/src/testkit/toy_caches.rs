//! Small caches that keep everything, written against the contract alone, and faults to put into them.

use std::{cell::Cell, ops::Range, rc::Rc};

use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp},
};

use crate::{
    CacheError, LayerCache, LayerSnapshot, Mask, RecurrentState, Result, View, mask::window_mask,
    testkit::Folding,
};

/// What is broken about a toy; each is a fault that a real cache had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// A query sees one key more than its window.
    WideWindow,
    /// A snapshot is a view: restoring it brings back whatever its slots hold by then.
    ViewSnapshot,
    /// One of the layers below does not go back with the others. Needs rows of two heads.
    StaleLayer,
    /// After a rejection the state still holds the rejected tokens.
    KeptToken,
    /// After a rejection the convolution tail still holds the rejected inputs.
    KeptTail,
    /// The bytes of dropped snapshots are never given back.
    KeptBytes,
}

/// One row of one head: key and value, `[1,1,1,D]` each.
type Row = (Array, Array);

/// A cache of keys and values that keeps the row of every slot, one lane of rows per head.
pub struct Toy {
    window: Option<usize>,
    fault: Fault,
    lanes: Vec<Lane>,
    offset: usize,
    copied: Rc<Cell<usize>>,
    /// The largest number of bytes that snapshots ever held.
    peak: Cell<usize>,
}

/// The rows of one head; each head stands for a layer of its own.
#[derive(Default)]
struct Lane {
    /// `None` where a window was restored without the rows before it.
    rows: Vec<Option<Row>>,
    offset: usize,
}

impl Toy {
    /// An empty cache whose queries see `window` keys, or all.
    pub fn new(window: Option<usize>, fault: Fault) -> Self {
        let (lanes, copied) = (Vec::new(), Rc::default());
        Self { window, fault, lanes, offset: 0, copied, peak: Cell::new(0) }
    }

    /// The first slot that a query in slot `own` sees.
    fn first_seen(&self, own: usize) -> usize {
        let window = match self.fault {
            Fault::WideWindow => self.window.map(|window| window + 1),
            _ => self.window,
        };
        window.map_or(0, |window| (own + 1).saturating_sub(window))
    }

    /// The rows of `slots` in every lane, `[1,K,n,D]`; `None` if there are no slots.
    fn gather(&self, slots: Range<usize>) -> Result<Option<Row>> {
        if slots.is_empty() {
            return Ok(None);
        }
        let lost = || CacheError::Lost { from: slots.start, to: slots.end, reason: "no such rows".into() };
        let side = |pick: fn(&Row) -> &Array| -> Result<Array> {
            let lane = |lane: &Lane| -> Result<Array> {
                let rows = lane.rows.get(slots.clone()).ok_or_else(lost)?;
                let rows: Option<Vec<&Array>> = rows.iter().map(|row| row.as_ref().map(pick)).collect();
                Ok(concatenate(&rows.ok_or_else(lost)?, 2)?)
            };
            let lanes = self.lanes.iter().map(lane).collect::<Result<Vec<Array>>>()?;
            Ok(concatenate(&lanes.iter().collect::<Vec<_>>(), 1)?)
        };
        Ok(Some((side(|row| &row.0)?, side(|row| &row.1)?)))
    }

    /// Writes rows `[1,K,L,D]` where every lane stands.
    fn push(&mut self, keys: &Array, values: &Array) -> Result<()> {
        self.lanes.resize_with(keys.dim(1) as usize, Lane::default);
        for (head, lane) in self.lanes.iter_mut().enumerate() {
            let head = head as i32;
            for row in 0..keys.dim(2) {
                let index = (.., head..head + 1, row..row + 1, ..);
                let row = (keys.try_index(index.clone())?, values.try_index(index)?);
                if lane.rows.len() <= lane.offset {
                    lane.rows.resize(lane.offset + 1, None);
                }
                lane.rows[lane.offset] = Some(row);
                lane.offset += 1;
            }
        }
        self.offset += keys.dim(2) as usize;
        Ok(())
    }

    /// Whether what a query in slot `offset` sees of earlier slots is there.
    fn has(&self, offset: usize) -> bool {
        let first = self.window.map_or(0, |window| (offset + 1).saturating_sub(window));
        let holds = |lane: &Lane| {
            let rows = lane.rows.get(first..offset);
            rows.is_some_and(|rows| rows.iter().all(Option::is_some))
        };
        first == offset || self.lanes.iter().all(holds)
    }

    fn refuse(&self, what: &'static str, got: usize) -> CacheError {
        CacheError::Offset { what, expected: format!("whose rows are held, up to {}", self.offset), got }
    }
}

impl LayerCache for Toy {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        let (start, queries) = (self.offset, keys.dim(2) as usize);
        self.push(keys, values)?;
        let first = self.first_seen(start);
        let (keys, values) = self.gather(first..self.offset)?.ok_or_else(|| self.refuse("append", start))?;
        let wide = usize::from(self.fault == Fault::WideWindow);
        let window = self.window.map_or(usize::MAX, |window| window + wide);
        Ok(View { keys, values, mask: window_mask(queries, start - first, window)? })
    }

    fn view(&self) -> Result<Option<View>> {
        let rows = self.gather(self.first_seen(self.offset)..self.offset)?;
        Ok(rows.map(|(keys, values)| View { keys, values, mask: Mask::All }))
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.offset && self.has(offset)
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(self.refuse("rewind", offset));
        }
        let stale = usize::from(self.fault == Fault::StaleLayer);
        let lanes = self.lanes.len() - stale.min(self.lanes.len());
        self.lanes.iter_mut().take(lanes).for_each(|lane| lane.offset = offset);
        self.offset = offset;
        Ok(())
    }

    fn bytes(&self) -> usize {
        let rows = self.lanes.iter().flat_map(|lane| lane.rows.iter().flatten());
        rows.map(|(key, value)| key.nbytes() + value.nbytes()).sum()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        if slots.is_empty() || slots.end > self.offset || !self.has(slots.end) {
            return Err(self.refuse("snapshot", slots.end));
        }
        let snapshot = match self.window {
            None => {
                let rows = self.gather(slots.clone())?.ok_or_else(|| self.refuse("snapshot", slots.end))?;
                LayerSnapshot::of_rows(slots, rows, &self.copied)
            }
            Some(window) => {
                let rows = self.gather((slots.end + 1).saturating_sub(window)..slots.end)?;
                LayerSnapshot::of_window(slots, rows, &self.copied)
            }
        };
        self.peak.set(self.peak.get().max(self.copied.get()));
        Ok(snapshot)
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        crate::full::gapless(path, self.offset)?;
        match path.last() {
            Some(LayerSnapshot::Window(window)) => window.read().map(drop),
            _ => Ok(()),
        }
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        let last = path.len().saturating_sub(1);
        for (index, snapshot) in path.iter().enumerate() {
            let slots = snapshot.range();
            let (first, rows) = match snapshot {
                LayerSnapshot::Rows(rows) => (slots.start, Some(rows.read()?)),
                LayerSnapshot::Window(window) if index == last => {
                    let rows = window.read()?;
                    (slots.end - rows.as_ref().map_or(0, |(keys, _)| keys.dim(2) as usize), rows)
                }
                _ => (slots.end, None),
            };
            let aliased = self.lanes.iter().all(|lane| lane.rows.len() >= slots.end);
            if self.fault != Fault::ViewSnapshot || !aliased || self.lanes.is_empty() {
                for lane in &mut self.lanes {
                    // A window's snapshot says nothing about the rows before it.
                    let keep = if self.window.is_some() { 0 } else { first };
                    lane.rows.truncate(keep);
                    lane.rows.resize(first, None);
                    lane.offset = first;
                }
                self.offset = first;
                if let Some((keys, values)) = rows {
                    if self.lanes.is_empty() {
                        let fresh = || Lane { rows: vec![None; first], offset: first };
                        self.lanes.resize_with(keys.dim(1) as usize, fresh);
                    }
                    self.push(&keys, &values)?;
                }
            }
            self.lanes.iter_mut().for_each(|lane| lane.offset = slots.end);
            self.offset = slots.end;
        }
        Ok(())
    }

    fn snapshot_bytes(&self) -> usize {
        match self.fault {
            Fault::KeptBytes => self.peak.get(),
            _ => self.copied.get(),
        }
    }

    fn abandon(&mut self) {}
}

/// A cache of folded states that keeps the state after every token.
pub struct ToyState {
    fault: Fault,
    /// The state at offset i + 1; `None` where a later one was restored.
    states: Vec<Option<RecurrentState>>,
    offset: usize,
    copied: Rc<Cell<usize>>,
    peak: Cell<usize>,
}

impl ToyState {
    /// A cache before the first token.
    pub fn new(fault: Fault) -> Self {
        Self { fault, states: Vec::new(), offset: 0, copied: Rc::default(), peak: Cell::new(0) }
    }

    /// The state at `offset`; zeros stand for 0.
    fn at(&self, offset: usize) -> Option<RecurrentState> {
        match offset {
            0 => Some(RecurrentState::default()),
            _ => self.states.get(offset - 1).cloned().flatten(),
        }
    }

    fn refuse(&self, what: &'static str, got: usize) -> CacheError {
        CacheError::Offset { what, expected: format!("with a state, up to {}", self.offset), got }
    }
}

impl Folding for ToyState {
    fn state(&self) -> Result<RecurrentState> {
        self.at(self.offset).ok_or_else(|| self.refuse("state", self.offset))
    }

    fn stops(&self, rows: usize) -> Vec<usize> {
        (1..=rows).collect()
    }

    fn advance(&mut self, rows: usize, states: Vec<RecurrentState>) -> Result<()> {
        self.states.truncate(self.offset);
        self.states.resize(self.offset, None);
        self.states.extend(states.into_iter().map(Some));
        self.offset += rows;
        Ok(())
    }
}

impl LayerCache for ToyState {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, _: &Array, _: &Array) -> Result<View> {
        Err(self.refuse("append", self.offset))
    }

    fn view(&self) -> Result<Option<View>> {
        Err(self.refuse("view", self.offset))
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.offset && self.at(offset).is_some()
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(self.refuse("rewind", offset));
        }
        if let (Some(now), true) = (self.at(self.offset), offset > 0 && offset < self.offset) {
            match self.fault {
                Fault::KeptToken => {
                    let tail = self.at(offset).and_then(|state| state.tail);
                    self.states[offset - 1] = Some(RecurrentState { tail, state: now.state });
                }
                Fault::KeptTail => {
                    let state = self.at(offset).and_then(|state| state.state);
                    self.states[offset - 1] = Some(RecurrentState { tail: now.tail, state });
                }
                _ => {}
            }
        }
        self.states.truncate(offset);
        self.offset = offset;
        Ok(())
    }

    fn bytes(&self) -> usize {
        let arrays = self.states.iter().flatten().flat_map(|state| state.tail.iter().chain(&state.state));
        arrays.map(Array::nbytes).sum()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        let state = self.at(slots.end).filter(|_| !slots.is_empty() && slots.end <= self.offset);
        let state = state.ok_or_else(|| self.refuse("snapshot", slots.end))?;
        let snapshot = LayerSnapshot::of_state(slots, state, &self.copied);
        self.peak.set(self.peak.get().max(self.copied.get()));
        Ok(snapshot)
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        crate::full::gapless(path, self.offset)?;
        path.last().map_or(Ok(()), |last| last.state()?.read().map(drop))
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        let Some(last) = path.last() else { return Ok(()) };
        let state = last.state()?.read()?;
        self.offset = last.range().end;
        self.states = vec![None; self.offset - 1];
        self.states.push(Some(state));
        Ok(())
    }

    fn snapshot_bytes(&self) -> usize {
        match self.fault {
            Fault::KeptBytes => self.peak.get(),
            _ => self.copied.get(),
        }
    }

    fn abandon(&mut self) {}
}
