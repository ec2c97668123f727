//! Full key/value cache: every row is kept, in one buffer that grows in steps.

use std::{fmt, ops::Range};

use mlx_rs::Array;

use crate::{
    CacheError, LayerCache, LayerSnapshot, Mask, Result, RowsSnapshot, View,
    rows::{RowsCell, SharedStore},
};

/// Keys and values of every token so far.
///
/// The buffer is written in place, which MLX does only while this is its sole owner; the views that
/// [`LayerCache::append`] returns must be dropped before the next append. Going back moves the offset
/// and nothing else.
#[derive(Default)]
pub struct KvCache {
    store: SharedStore,
    offset: usize,
}

impl KvCache {
    /// An empty cache. Shapes and dtype are taken from the first rows.
    pub fn new() -> Self {
        Self::default()
    }

    fn past(&self, what: &'static str, got: usize) -> CacheError {
        CacheError::Offset { what, expected: format!("of at most {}", self.offset), got }
    }
}

impl LayerCache for KvCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        let mut store = self.store.borrow_mut();
        store.check(self.offset, keys, values)?;
        let rows = keys.dim(2) as usize;
        let end = self.offset + rows;
        let mask = if rows == 1 { Mask::All } else { Mask::Causal };
        let view = store.write(self.offset, keys, values, end)?;
        self.offset = end;
        Ok(View { keys: view.0, values: view.1, mask })
    }

    fn view(&self) -> Result<Option<View>> {
        if self.offset == 0 {
            return Ok(None);
        }
        let (keys, values) = self.store.borrow().slice(0..self.offset)?;
        Ok(Some(View { keys, values, mask: Mask::All }))
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.offset
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(self.past("rewind", offset));
        }
        self.offset = offset;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.store.borrow().bytes()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        if slots.end > self.offset {
            return Err(self.past("snapshot", slots.end));
        }
        if slots.is_empty() {
            let expected = format!("below {}, so that there is at least one slot", slots.end);
            return Err(CacheError::Offset { what: "snapshot", expected, got: slots.start });
        }
        Ok(LayerSnapshot::Rows(RowsSnapshot::new(RowsCell::resident(&self.store, slots))))
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        let mut reached = self.offset;
        for (index, LayerSnapshot::Rows(rows)) in path.iter().copied().enumerate() {
            let slots = rows.range();
            if slots.start > reached || (index > 0 && slots.start < reached) {
                let expected = format!("of at most {reached} to go on from");
                return Err(CacheError::Offset { what: "restore", expected, got: slots.start });
            }
            if !rows.cell().is_resident_in(&self.store) {
                let (keys, values) = rows.read()?;
                self.store.borrow().check(slots.start, &keys, &values)?;
            }
            reached = slots.end;
        }
        Ok(())
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        for LayerSnapshot::Rows(rows) in path {
            let slots = rows.range();
            // Should a write fail, the layer rests where it still holds every row.
            self.offset = slots.start;
            if !rows.cell().is_resident_in(&self.store) {
                let (keys, values) = rows.read()?;
                self.store.borrow_mut().write(slots.start, &keys, &values, slots.end)?;
            }
            self.offset = slots.end;
        }
        Ok(())
    }

    fn snapshot_bytes(&self) -> usize {
        self.store.borrow().copied_bytes()
    }

    fn abandon(&mut self) {
        self.store.borrow_mut().abandon();
    }
}

// Printing an array would wait for it.
impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
