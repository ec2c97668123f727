//! State of layers that fold the past: a convolution tail and a recurrent state, whole at each offset.

use std::{cell::Cell, fmt, ops::Range, rc::Rc};

use mlx_rs::Array;

use crate::{
    CacheError, LayerCache, LayerSnapshot, RecurrentState, Result, StateSnapshot, View,
    full::{filled, gapless},
    points::Points,
    state::{Held, StateForm},
};

/// A block of more rows leaves a tail that is copied out before the next one: the tail is a view of the
/// inputs of the whole block, and these would stay alive in every layer.
const BULKY_ROWS: usize = 32;

/// The state of one recurrent layer.
///
/// A forward reads [`state`](Self::state), asks [`stops`](Self::stops) after which rows of its block
/// the state is wanted, and hands these over, lazily built, with [`advance`](Self::advance). Outside
/// transactions and schedules that is the state after the last row. A folded state cannot be cut, so
/// going back means taking a state that was handed over: inside a transaction every row's, because
/// drafts may be rejected after any of them; at a scheduled offset that offset's. Offset 0, where
/// there is no state, can always be reached.
#[derive(Default)]
pub struct RecurrentCache {
    offset: usize,
    /// States held, by ascending offset; the last is the one at `offset`. None at offset 0.
    states: Vec<(usize, Held)>,
    form: Option<StateForm>,
    open: Option<Open>,
    scheduled: Vec<usize>,
    /// Whether the newest tail is a view of so many rows that it is worth a copy of its own.
    bulky: bool,
    /// Bytes of states that only snapshots hold.
    released: Rc<Cell<usize>>,
    abandoned: bool,
}

/// A transaction: where it began, and whether it may end between its rows.
struct Open {
    base: usize,
    whole: bool,
}

impl RecurrentCache {
    /// A cache before the first token.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state that the next block goes on from; both parts are `None` before the first token, which
    /// stands for zeros.
    pub fn state(&self) -> Result<RecurrentState> {
        match self.states.last() {
            Some((_, held)) => held.read(),
            None if self.abandoned => Err(lost()),
            None => Ok(RecurrentState::default()),
        }
    }

    /// After how many rows of a block of `rows` the state is wanted: ascending, `rows` itself last.
    pub fn stops(&self, rows: usize) -> Vec<usize> {
        let every = self.open.as_ref().is_some_and(|open| !open.whole);
        let wanted = |row: &usize| every || *row == rows || self.scheduled.contains(&(self.offset + row));
        (1..=rows).filter(wanted).collect()
    }

    /// Whether more than the last state of a block of `rows` is wanted.
    pub fn wants_interior(&self, rows: usize) -> bool {
        self.stops(rows).len() > 1
    }

    /// Moves on by `rows` rows. `states` holds the state after each of the [`stops`](Self::stops), or
    /// after each row, whichever the forward has at hand.
    ///
    /// # Shapes
    /// Every tail is `[1,k−1,C]`, every state of one shape, for example `[1,Hv,Dv,Dk]`; shapes and types
    /// are taken from the first.
    pub fn advance(&mut self, rows: usize, states: impl IntoIterator<Item = RecurrentState>) -> Result<()> {
        if self.abandoned {
            return Err(lost());
        }
        let states: Vec<RecurrentState> = states.into_iter().collect();
        let stops = self.stops(rows);
        if rows == 0 || (states.len() != stops.len() && states.len() != rows) {
            return Err(CacheError::Shape {
                what: "recurrent states of a block",
                expected: format!("one after each of rows {stops:?}, or after each of {rows} rows"),
                got: format!("{} states", states.len()),
            });
        }
        let form = self.form.clone().unwrap_or_else(|| states[0].form());
        states.iter().try_for_each(|state| form.admit(&state.form()))?;
        let all = states.len() == rows;
        for (index, state) in states.into_iter().enumerate() {
            let row = if all { index + 1 } else { stops[index] };
            if stops.contains(&row) {
                self.states.push((self.offset + row, Held::fresh(state, &self.released)));
            }
        }
        self.form = Some(form);
        self.offset += rows;
        self.bulky = rows > BULKY_ROWS;
        self.prune();
        Ok(())
    }

    /// Lets go of every state that nothing can ask for any more.
    fn prune(&mut self) {
        let (at, open, scheduled) = (self.offset, &self.open, &self.scheduled);
        let in_transaction = |offset: usize| open.as_ref().is_some_and(|open| offset >= open.base);
        let wanted = |offset: usize| offset == at || in_transaction(offset) || scheduled.contains(&offset);
        self.states.retain(|(offset, _)| wanted(*offset));
    }

    fn find(&self, offset: usize) -> Option<&Held> {
        self.states.iter().find(|(at, _)| *at == offset).map(|(_, held)| held)
    }

    fn unreached(&self, what: &'static str, got: usize) -> CacheError {
        let held: Vec<usize> = self.states.iter().map(|(offset, _)| *offset).collect();
        CacheError::Offset { what, expected: format!("with a state that is held: one of {held:?}"), got }
    }

    fn open(&mut self, whole: bool) {
        if let (true, Some((_, held))) = (std::mem::take(&mut self.bulky), self.states.last()) {
            // The block is evaluated by now. If the copy fails, so will whatever reads the tail.
            let _ = held.settle();
        }
        self.open = Some(Open { base: self.offset, whole });
    }
}

impl LayerCache for RecurrentCache {
    fn offset(&self) -> usize {
        self.offset
    }

    /// A recurrent layer takes states, not rows: this is an error.
    fn append(&mut self, _: &Array, _: &Array) -> Result<View> {
        Err(rowless("append"))
    }

    /// A recurrent layer has no keys and values to look at: this is an error.
    fn view(&self) -> Result<Option<View>> {
        Err(rowless("view"))
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset == 0 || self.find(offset).is_some()
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(self.unreached("rewind", offset));
        }
        self.states.retain(|(at, _)| *at <= offset);
        self.offset = offset;
        self.prune();
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.states.iter().map(|(_, held)| held.held_bytes()).sum()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        filled(&slots)?;
        let held = self.find(slots.end).ok_or_else(|| self.unreached("snapshot", slots.end))?;
        held.read()?;
        held.settle()?;
        Ok(LayerSnapshot::State(StateSnapshot(Points::new(slots, held.share()))))
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        gapless(path, self.offset)?;
        path.iter().try_for_each(|snapshot| snapshot.state().map(drop))?;
        let Some(last) = path.last() else { return Ok(()) };
        let cell = last.state()?.0.last()?;
        cell.read()?;
        self.form.as_ref().map_or(Ok(()), |form| form.admit(&cell.form()))
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        let Some(last) = path.last() else { return Ok(()) };
        let last = last.state()?;
        let held = Held::take(last.0.last()?);
        (self.offset, self.form) = (last.range().end, Some(held.form()));
        self.states = vec![(self.offset, held)];
        Ok(())
    }

    fn snapshot_bytes(&self) -> usize {
        self.released.get()
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        self.states.iter().for_each(|(_, held)| held.lose());
    }

    fn begin(&mut self) {
        self.open(false);
    }

    fn begin_whole(&mut self) {
        self.open(true);
    }

    fn end(&mut self) {
        self.open = None;
        self.prune();
    }

    fn schedule(&mut self, offsets: &[usize]) {
        self.scheduled = offsets.to_vec();
    }

    fn unschedule(&mut self) {
        self.scheduled.clear();
        self.prune();
    }
}

fn lost() -> CacheError {
    CacheError::LostState { reason: "the evaluation that made it failed".into() }
}

fn rowless(what: &'static str) -> CacheError {
    CacheError::Kind { what, expected: "a layer of keys and values".into(), got: "a recurrent layer".into() }
}

// Printing an array would wait for it.
impl fmt::Debug for RecurrentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecurrentCache")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
