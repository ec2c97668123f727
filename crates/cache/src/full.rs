//! Every row since slot 0 in one store that grows in steps: what layers of full attention share.

use std::ops::Range;

use mlx_rs::Array;

use crate::{
    CacheError, LayerSnapshot, Mask, Result, RowsSnapshot, View,
    codec::Codec,
    rows::{GROW_SLOTS, RowStore, RowsCell, SharedStore},
};

/// Rows `0..offset`. Going back moves the offset and nothing else.
pub(crate) struct FullRows {
    store: SharedStore,
    offset: usize,
}

impl FullRows {
    pub(crate) fn new(codec: Codec) -> Self {
        Self { store: RowStore::shared(codec), offset: 0 }
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        let mut store = self.store.borrow_mut();
        store.check(self.offset, keys, values)?;
        let rows = keys.dim(2) as usize;
        let end = self.offset + rows;
        let planes = store.codec().encode(keys, values)?;
        store.write(self.offset, &planes, stepped(end))?;
        let mask = if rows == 1 { Mask::All } else { Mask::Causal };
        let (keys, values) = store.read(0..end)?;
        self.offset = end;
        Ok(View { keys, values, mask })
    }

    pub(crate) fn view(&self) -> Result<Option<View>> {
        if self.offset == 0 {
            return Ok(None);
        }
        let (keys, values) = self.store.borrow().read(0..self.offset)?;
        Ok(Some(View { keys, values, mask: Mask::All }))
    }

    pub(crate) fn rewind(&mut self, offset: usize) -> Result<()> {
        if offset > self.offset {
            return Err(self.past("rewind", offset));
        }
        self.offset = offset;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.store.borrow().bytes()
    }

    pub(crate) fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        if slots.end > self.offset {
            return Err(self.past("snapshot", slots.end));
        }
        filled(&slots)?;
        Ok(LayerSnapshot::Rows(RowsSnapshot::new(RowsCell::resident(&self.store, slots))))
    }

    pub(crate) fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        gapless(path, self.offset)?;
        let store = self.store.borrow();
        for rows in path.iter().map(|snapshot| snapshot.rows()) {
            let rows = rows?;
            if !rows.cell().is_resident_in(&self.store) {
                store.check_planes(rows.cell().codec(), &rows.cell().read()?)?;
            }
        }
        Ok(())
    }

    pub(crate) fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.can_restore(path)?;
        for rows in path.iter().map(|snapshot| snapshot.rows()) {
            let rows = rows?;
            let slots = rows.range();
            // Should a write fail, the layer rests where it still holds every row.
            self.offset = slots.start;
            if !rows.cell().is_resident_in(&self.store) {
                let planes = rows.cell().read()?;
                self.store.borrow_mut().write(slots.start, &planes, stepped(slots.end))?;
            }
            self.offset = slots.end;
        }
        Ok(())
    }

    pub(crate) fn snapshot_bytes(&self) -> usize {
        self.store.borrow().copied_bytes()
    }

    pub(crate) fn abandon(&mut self) {
        self.store.borrow_mut().abandon();
    }

    fn past(&self, what: &'static str, got: usize) -> CacheError {
        CacheError::Offset { what, expected: format!("of at most {}", self.offset), got }
    }
}

/// Fails unless a snapshot of `slots` would hold a slot.
pub(crate) fn filled(slots: &Range<usize>) -> Result<()> {
    match slots.is_empty() {
        false => Ok(()),
        true => Err(CacheError::Offset {
            what: "snapshot",
            expected: format!("below {}, so that there is at least one slot", slots.end),
            got: slots.start,
        }),
    }
}

/// Fails unless the snapshots of `path` follow each other from a slot that a layer at `offset` has.
pub(crate) fn gapless(path: &[&LayerSnapshot], offset: usize) -> Result<()> {
    let mut reached = offset;
    for (index, snapshot) in path.iter().enumerate() {
        let slots = snapshot.range();
        if slots.start > reached || (index > 0 && slots.start < reached) {
            let expected = format!("of at most {reached} to go on from");
            return Err(CacheError::Offset { what: "restore", expected, got: slots.start });
        }
        reached = slots.end;
    }
    Ok(())
}

fn stepped(slots: usize) -> usize {
    slots.div_ceil(GROW_SLOTS) * GROW_SLOTS
}
