//! The buffer behind position-sliceable layers, and the rule that lets snapshots of it be ranges.
//!
//! Invariants:
//! - the store is the only owner of its two buffers, so MLX writes them in place;
//! - a resident snapshot is a range of slots, no handle; before any slot of it is overwritten, and
//!   before the store goes away, its rows are copied out;
//! - every change builds the new arrays first and then replaces both, so a failure changes nothing.

use std::{
    cell::{Cell, Ref, RefCell},
    ops::Range,
    rc::{Rc, Weak},
};

use mlx_rs::{
    Array,
    error::Exception,
    ops::{
        concatenate,
        indexing::{IndexUpdateError, TryIndexOp, TryIndexUpdateOp, UpdateMode},
        zeros_dtype,
    },
    transforms::async_eval,
};

use crate::{CacheError, Result};

/// Slots added per growth: small enough that a forced copy stays cheap, large enough to be rare.
pub const GROW_SLOTS: usize = 256;

/// Keys and values of the same slots, each `[1,K,n,D]`; the two may differ in D.
pub(crate) type Pair = (Array, Array);

/// A store that snapshots can find again as long as it lives.
pub(crate) type SharedStore = Rc<RefCell<RowStore>>;

/// Two buffers `[1,K,C,D]` with the same capacity C, and the snapshots that still live in them.
#[derive(Default)]
pub(crate) struct RowStore {
    buffers: Option<Pair>,
    /// Snapshots whose rows may still be nowhere else.
    residents: Vec<Weak<RowsCell>>,
    /// No resident snapshot reaches past this slot; lets an append at the frontier skip the search.
    resident_end: usize,
    /// Bytes that snapshots of this store have copied out and still hold.
    copied: Rc<Cell<usize>>,
    abandoned: bool,
}

impl RowStore {
    /// Bytes of both buffers, unused slots included.
    pub(crate) fn bytes(&self) -> usize {
        self.buffers.as_ref().map_or(0, |(k, v)| k.nbytes() + v.nbytes())
    }

    /// Bytes that living snapshots hold as copies.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.copied.get()
    }

    /// The rows of `slots` as views; they must be dropped before the next write.
    pub(crate) fn slice(&self, slots: Range<usize>) -> Result<Pair> {
        match &self.buffers {
            Some(buffers) if !self.abandoned => slice_pair(buffers, slots.start as i32..slots.end as i32),
            Some(_) => Err(lost(&slots, "the evaluation that wrote them failed")),
            None => Err(lost(&slots, "the layer holds no rows")),
        }
    }

    /// Writes rows at slot `at` and returns views of the slots `..end`, where the rows end. On failure
    /// nothing has changed, but snapshots of the slots may hold their own copies by then.
    ///
    /// # Shapes
    /// `keys` and `values` are `[1,K,L,D]` and were found to fit by [`check`](Self::check); the views are
    /// `[1,K,end,D]`.
    pub(crate) fn write(&mut self, at: usize, keys: &Array, values: &Array, end: usize) -> Result<Pair> {
        self.copy_out(&(at..end))?;
        let own = self.buffers.as_ref();
        let keys = put(own.map(|(k, _)| k), at..end, keys)?;
        let values = put(own.map(|(_, v)| v), at..end, values)?;
        let written = (keys, values);
        let view = slice_pair(&written, 0..end as i32)?;
        self.buffers = Some(written);
        Ok(view)
    }

    /// Whether the rows can be written at slot `at`.
    ///
    /// # Shapes
    /// `keys` and `values` must be `[1,K,L,D]` with L ≥ 1 and the K, D and dtype of the rows already held.
    pub(crate) fn check(&self, at: usize, keys: &Array, values: &Array) -> Result<()> {
        self.check_shape(keys, values)?;
        if let Some((own_keys, own_values)) = &self.buffers {
            check_dtype("keys", own_keys, keys)?;
            check_dtype("values", own_values, values)?;
        }
        let most = i32::MAX as usize / GROW_SLOTS * GROW_SLOTS;
        let end = at.saturating_add(keys.dim(2) as usize);
        if end > most {
            let expected = format!("of at most {most} after the append");
            return Err(CacheError::Offset { what: "append", expected, got: end });
        }
        Ok(())
    }

    /// Forgets the resident snapshots without copying: what the buffers hold is unknown.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
        self.residents.clear();
    }

    fn check_shape(&self, keys: &Array, values: &Array) -> Result<()> {
        let own = self.buffers.as_ref();
        let ranked = keys.ndim() == 4 && values.ndim() == 4 && keys.dim(0) == 1 && values.dim(0) == 1;
        let paired = ranked && keys.dim(1) == values.dim(1) && keys.dim(2) == values.dim(2);
        let filled = ranked && keys.size() > 0 && values.size() > 0;
        let fits = |own: &Array, rows: &Array| own.dim(1) == rows.dim(1) && own.dim(3) == rows.dim(3);
        if paired && filled && own.is_none_or(|(k, v)| fits(k, keys) && fits(v, values)) {
            return Ok(());
        }
        Err(CacheError::Shape {
            what: "keys and values",
            expected: own.map_or("[1,K,L,D] with L ≥ 1".into(), |(k, v)| {
                format!("[1,{},L,{}] and [1,{},L,{}] with L ≥ 1", k.dim(1), k.dim(3), v.dim(1), v.dim(3))
            }),
            got: format!("{:?} and {:?}", keys.shape(), values.shape()),
        })
    }

    /// Gives every resident snapshot that meets `slots` its own copy of its rows.
    fn copy_out(&mut self, slots: &Range<usize>) -> Result<()> {
        if slots.start >= self.resident_end {
            return Ok(());
        }
        let living: Vec<Rc<RowsCell>> = self.residents.iter().filter_map(Weak::upgrade).collect();
        for cell in living.iter().filter(|cell| meets(&cell.range, slots)) {
            if let Some(buffers) = self.buffers.as_ref().filter(|_| !cell.is_copied()) {
                cell.keep(compact(buffers, &cell.range)?);
            }
        }
        let resident = |cell: &&Rc<RowsCell>| !cell.is_copied();
        self.residents = living.iter().filter(resident).map(Rc::downgrade).collect();
        self.resident_end = living.iter().filter(resident).map(|cell| cell.range.end).max().unwrap_or(0);
        Ok(())
    }
}

impl Drop for RowStore {
    fn drop(&mut self) {
        // A copy that cannot be made leaves its snapshot lost, which its reader is told.
        let _ = self.copy_out(&(0..usize::MAX));
    }
}

/// The rows of one snapshot: a range of its store's slots, or its own copy once they had to move.
pub(crate) struct RowsCell {
    range: Range<usize>,
    home: Weak<RefCell<RowStore>>,
    copy: RefCell<Option<Pair>>,
    copied: Rc<Cell<usize>>,
}

impl RowsCell {
    /// A snapshot of slots that `store` holds now. It costs no bytes.
    pub(crate) fn resident(store: &SharedStore, range: Range<usize>) -> Rc<Self> {
        let mut inner = store.borrow_mut();
        let copied = Rc::clone(&inner.copied);
        let cell = Rc::new(Self { range, home: Rc::downgrade(store), copy: RefCell::new(None), copied });
        inner.resident_end = inner.resident_end.max(cell.range.end);
        inner.residents.retain(|other| other.strong_count() > 0);
        inner.residents.push(Rc::downgrade(&cell));
        cell
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Bytes of the copy; 0 while the rows are still in their store.
    pub(crate) fn bytes(&self) -> usize {
        self.copy.borrow().as_ref().map_or(0, |(k, v)| k.nbytes() + v.nbytes())
    }

    /// Whether the rows are still in their slots of `store`.
    pub(crate) fn is_resident_in(&self, store: &SharedStore) -> bool {
        !self.is_copied() && self.home.ptr_eq(&Rc::downgrade(store))
    }

    /// The rows: the copy, or views of the store that must be dropped before its next write.
    pub(crate) fn read(&self) -> Result<Pair> {
        match self.copy.borrow().as_ref() {
            Some((keys, values)) => Ok((keys.clone(), values.clone())),
            None => self.with_home(|store| store.slice(self.range.clone()))?,
        }
    }

    /// Two snapshots of the slots before and from `at`, which lies inside the range.
    pub(crate) fn split(&self, at: usize) -> Result<(Rc<Self>, Rc<Self>)> {
        Ok((self.part(self.range.start..at)?, self.part(at..self.range.end)?))
    }

    /// One snapshot of these slots and those of `next`, which starts where these end.
    pub(crate) fn merge(&self, next: &Self) -> Result<Rc<Self>> {
        let range = self.range.start..next.range.end;
        if let Some(store) = self.home.upgrade().filter(|s| self.is_resident_in(s) && next.is_resident_in(s))
        {
            return Ok(Self::resident(&store, range));
        }
        let (first, second) = (self.read()?, next.read()?);
        let keys = concatenate(&[&first.0, &second.0], 2)?;
        let values = concatenate(&[&first.1, &second.1], 2)?;
        async_eval([&keys, &values])?;
        Ok(self.copied(range, (keys, values)))
    }

    /// A snapshot of `range`, which lies inside this one's.
    fn part(&self, range: Range<usize>) -> Result<Rc<Self>> {
        let Some(own) = self.copy.borrow().as_ref().map(|(k, v)| (k.clone(), v.clone())) else {
            let store = self.home.upgrade().ok_or_else(|| lost(&self.range, GONE))?;
            return Ok(Self::resident(&store, range));
        };
        let local = range.start - self.range.start..range.end - self.range.start;
        Ok(self.copied(range, compact(&own, &local)?))
    }

    fn is_copied(&self) -> bool {
        self.copy.borrow().is_some()
    }

    fn copied(&self, range: Range<usize>, rows: Pair) -> Rc<Self> {
        let (home, copied) = (Weak::clone(&self.home), Rc::clone(&self.copied));
        let cell = Self { range, home, copy: RefCell::new(None), copied };
        cell.keep(rows);
        Rc::new(cell)
    }

    fn keep(&self, rows: Pair) {
        self.copied.set(self.copied.get() + rows.0.nbytes() + rows.1.nbytes());
        self.copy.replace(Some(rows));
    }

    fn with_home<T>(&self, f: impl FnOnce(Ref<'_, RowStore>) -> T) -> Result<T> {
        let home = self.home.upgrade().ok_or_else(|| lost(&self.range, GONE))?;
        Ok(f(home.borrow()))
    }
}

impl Drop for RowsCell {
    fn drop(&mut self) {
        self.copied.set(self.copied.get() - self.bytes());
    }
}

const GONE: &str = "its cache set was dropped";

fn lost(slots: &Range<usize>, reason: &str) -> CacheError {
    CacheError::Lost { from: slots.start, to: slots.end, reason: reason.into() }
}

fn meets(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// `own` with `rows` at `slots`, grown in whole steps if it is too small.
fn put(own: Option<&Array>, slots: Range<usize>, rows: &Array) -> Result<Array> {
    let buffer = match own {
        Some(own) if slots.end <= own.dim(2) as usize => own.clone(),
        _ => grow(own, rows, slots.end.div_ceil(GROW_SLOTS) * GROW_SLOTS)?,
    };
    let index = (.., .., slots.start as i32..slots.end as i32, ..);
    buffer.try_index_update(index, rows, UpdateMode::Replace).map_err(|error| match error {
        IndexUpdateError::Exception(exception) => exception.into(),
        other => Exception::custom(other.to_string()).into(),
    })
}

/// A buffer of `capacity` slots that starts with the rows of `own` and is shaped like `rows`.
fn grow(own: Option<&Array>, rows: &Array, capacity: usize) -> Result<Array> {
    let had = own.map_or(0, |own| own.dim(2));
    let shape = [1, rows.dim(1), capacity as i32 - had, rows.dim(3)];
    let fresh = zeros_dtype(&shape, rows.dtype())?;
    match own {
        Some(own) => Ok(concatenate(&[own, &fresh], 2)?),
        None => Ok(fresh),
    }
}

/// Copies of `slots` that hold nothing else alive. Evaluation starts at once: a pending copy would be
/// a second owner of the buffer and force the next write to copy all of it. (One that still runs when
/// the write is scheduled has the same effect, once.)
fn compact(buffers: &Pair, slots: &Range<usize>) -> Result<Pair> {
    let (keys, values) = slice_pair(buffers, slots.start as i32..slots.end as i32)?;
    let (keys, values) = (keys.contiguous()?, values.contiguous()?);
    async_eval([&keys, &values])?;
    Ok((keys, values))
}

fn slice_pair((keys, values): &Pair, slots: Range<i32>) -> Result<Pair> {
    let keys = keys.try_index((.., .., slots.clone(), ..))?;
    Ok((keys, values.try_index((.., .., slots, ..))?))
}

fn check_dtype(what: &'static str, own: &Array, rows: &Array) -> Result<()> {
    match own.dtype() == rows.dtype() {
        true => Ok(()),
        false => Err(CacheError::Dtype { what, expected: own.dtype(), got: rows.dtype() }),
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::{Device, ops::full};

    use super::*;

    fn filled(heads: i32, slots: i32, with: f32) -> Array {
        full::<f32>(&[1, heads, slots, 2], Array::from_f32(with)).expect("a small array")
    }

    fn host(array: &Array) -> Vec<f32> {
        array.contiguous().expect("contiguous").to_vec_exact().expect("float32 numbers")
    }

    #[test]
    fn values_that_cannot_be_written_leave_the_keys_as_they_were() {
        Device::try_default().expect("MLX answers");
        Device::set_default(&Device::cpu());
        let mut store = RowStore::default();
        store.write(0, &filled(2, 3, 1.0), &filled(2, 3, 1.0), 3).expect("fits");
        // Past `check` on purpose: three heads do not broadcast to two, and the keys come first.
        store.write(1, &filled(2, 2, 9.0), &filled(3, 2, 9.0), 3).expect_err("values with three heads");
        store.write(300, &filled(2, 2, 9.0), &filled(3, 2, 9.0), 302).expect_err("values that cannot grow");
        let (keys, values) = store.slice(0..3).expect("still held");
        assert_eq!((host(&keys), host(&values)), (vec![1.0; 12], vec![1.0; 12]));
        assert_eq!(store.bytes(), 2 * 2 * GROW_SLOTS * 2 * 4, "both buffers have one step each");
    }
}
