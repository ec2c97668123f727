//! Sliding-window cache: the rows that a window can still see, and some more to go back to.

use std::{fmt, ops::Range, rc::Rc};

use mlx_rs::Array;

use crate::{
    CacheError, LayerCache, LayerSnapshot, Mask, Result, View, WindowSnapshot,
    codec::Codec,
    full::{filled, gapless},
    mask::window_mask,
    points::{Points, WindowPoint},
    rows::{GROW_SLOTS, RowStore, RowsCell, SharedStore},
};

/// Rows that can always be taken back outside a transaction, at most the window itself.
const SPARE_ROWS: usize = 32;

/// Keys and values of the last tokens, for attention in which a query sees `window` keys, its own
/// included.
///
/// Rows lie in slot order in one buffer, and an append goes to the right of the last one, as in a full
/// cache. When the buffer is full, the rows that a query to come, or a rollback, can still ask for move
/// to the front of a new one. So a transaction overwrites nothing, and going back moves the offset and
/// nothing else. The buffer has room for at most three windows and the longest block (or transaction).
pub struct RotatingCache {
    /// What scheduled offsets that were passed need, by ascending offset. It goes before the store, which
    /// would copy for it otherwise.
    captured: Vec<(usize, WindowPoint)>,
    store: SharedStore,
    window: usize,
    offset: usize,
    /// The first slot whose row is still this sequence's.
    valid: usize,
    /// The offset at which the open transaction began.
    open: Option<usize>,
    scheduled: Vec<usize>,
}

impl RotatingCache {
    /// An empty cache. A query sees `window` keys, its own included, so 0 counts as 1. Shapes and dtype
    /// are taken from the first rows.
    pub fn new(window: usize) -> Self {
        Self {
            store: RowStore::shared(Codec::Raw),
            window: window.max(1),
            offset: 0,
            valid: 0,
            open: None,
            scheduled: Vec::new(),
            captured: Vec::new(),
        }
    }

    /// How many keys a query sees, its own included.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The slots that a query at `offset` sees before its own.
    fn seen_before(&self, offset: usize) -> Range<usize> {
        offset.saturating_sub(self.window - 1)..offset
    }

    /// Slots of the buffer once it no longer grows.
    fn steady(&self) -> usize {
        2 * self.window + self.spare()
    }

    fn spare(&self) -> usize {
        SPARE_ROWS.min(self.window)
    }

    /// Makes room for `rows` at the offset, and returns the capacity to grow to when they are written.
    fn make_room(&mut self, rows: usize) -> Result<usize> {
        let mut store = self.store.borrow_mut();
        if self.offset < store.base() || store.capacity() == 0 {
            // Back at a slot before the buffer's first: only where no row is needed.
            store.restart(self.offset, None, 0)?;
            self.valid = self.offset;
        }
        let full = self.offset - store.base() + rows;
        let grown = full.div_ceil(GROW_SLOTS) * GROW_SLOTS;
        if full <= store.capacity().max(self.steady()) {
            return Ok(grown.min(self.steady()).max(full));
        }
        let floor = self.open.unwrap_or(self.offset).min(self.offset);
        let first = self.seen_before(floor).start.saturating_sub(self.spare()).max(self.valid);
        let needed = self.offset - first + rows;
        if first <= store.base() {
            // A transaction longer than the buffer: nothing can go yet.
            return Ok(grown);
        }
        store.keep_only(first..self.offset, needed.max(self.steady()))?;
        self.valid = first;
        Ok(store.capacity())
    }

    /// Remembers what the scheduled offsets that `slots` passed need.
    fn capture(&mut self, passed: Range<usize>) {
        for at in self.scheduled.iter().copied().filter(|at| *at > passed.start && *at <= passed.end) {
            self.captured.push((at, self.point(at)));
        }
    }

    /// What it takes to rest at `offset`, whose rows are held.
    fn point(&self, offset: usize) -> WindowPoint {
        let slots = self.seen_before(offset);
        WindowPoint((!slots.is_empty()).then(|| RowsCell::resident(&self.store, slots)))
    }

    fn unreached(&self, what: &'static str, got: usize) -> CacheError {
        let (from, to) = (self.valid, self.offset);
        let expected = format!("whose {} slots before it are among {from}..{to}", self.window - 1);
        CacheError::Offset { what, expected, got }
    }

    fn is_resident(&self, rows: &Rc<RowsCell>) -> bool {
        rows.is_resident_in(&self.store)
    }
}

impl LayerCache for RotatingCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        self.store.borrow().check(self.offset, keys, values)?;
        let rows = keys.dim(2) as usize;
        let capacity = self.make_room(rows)?;
        let (start, end) = (self.offset, self.offset + rows);
        let seen = self.seen_before(start).start;
        let mask = window_mask(rows, start - seen, self.window)?;
        let (keys, values) = {
            let mut store = self.store.borrow_mut();
            let planes = store.codec().encode(keys, values)?;
            store.write(start, &planes, capacity)?;
            store.read(seen..end)?
        };
        self.offset = end;
        self.capture(start..end);
        Ok(View { keys, values, mask })
    }

    /// What a query at the offset, whose own key is not cached, sees of the cache.
    fn view(&self) -> Result<Option<View>> {
        let slots = self.seen_before(self.offset);
        if slots.is_empty() {
            return Ok(None);
        }
        let (keys, values) = self.store.borrow().read(slots)?;
        Ok(Some(View { keys, values, mask: Mask::All }))
    }

    fn can_rewind(&self, offset: usize) -> bool {
        let needed = self.seen_before(offset);
        offset <= self.offset && (needed.is_empty() || needed.start >= self.valid)
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(self.unreached("rewind", offset));
        }
        self.offset = offset;
        self.valid = self.valid.min(offset);
        self.captured.retain(|(at, _)| *at <= offset);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.store.borrow().bytes()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        filled(&slots)?;
        let captured = self.captured.iter().find(|(at, _)| *at == slots.end);
        let point = match captured {
            Some((_, point)) => point.clone(),
            None if self.can_rewind(slots.end) => self.point(slots.end),
            None => return Err(self.unreached("snapshot", slots.end)),
        };
        Ok(LayerSnapshot::Window(WindowSnapshot(Points::new(slots, point))))
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        gapless(path, self.offset)?;
        path.iter().try_for_each(|snapshot| snapshot.window().map(drop))?;
        let Some(last) = path.last() else { return Ok(()) };
        let (last, end) = (last.window()?, last.range().end);
        let held = last.0.last()?.0.as_ref();
        let slots = held.map_or(end..end, |rows| rows.range());
        if slots != self.seen_before(end) {
            return Err(CacheError::Kind {
                what: "restore",
                expected: format!("a snapshot of a window of {}", self.window),
                got: format!("one that remembers slots {slots:?}"),
            });
        }
        match held {
            Some(rows) if !self.is_resident(rows) => {
                self.store.borrow().check_planes(rows.codec(), &rows.read()?)
            }
            _ => Ok(()),
        }
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        let Some(last) = path.last() else { return Ok(()) };
        let end = last.range().end;
        let first = self.seen_before(end).start;
        let held = last.window()?.0.last()?.0.as_ref();
        if !held.is_some_and(|rows| self.is_resident(rows)) {
            let rows = held.map(|rows| rows.read()).transpose()?;
            let capacity = (end - first).max(self.steady());
            self.store.borrow_mut().restart(first, rows, capacity)?;
        }
        (self.offset, self.valid) = (end, first);
        self.captured.clear();
        Ok(())
    }

    fn snapshot_bytes(&self) -> usize {
        self.store.borrow().copied_bytes()
    }

    fn abandon(&mut self) {
        self.store.borrow_mut().abandon();
    }

    fn begin(&mut self) {
        self.open = Some(self.offset);
    }

    fn end(&mut self) {
        self.open = None;
    }

    fn schedule(&mut self, offsets: &[usize]) {
        self.scheduled = offsets.to_vec();
    }

    fn unschedule(&mut self) {
        self.scheduled.clear();
        self.captured.clear();
    }
}

// Printing an array would wait for it.
impl fmt::Debug for RotatingCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RotatingCache")
            .field("window", &self.window)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
