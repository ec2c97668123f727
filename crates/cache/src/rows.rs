//! The buffer behind position-sliceable layers, and the rule that lets snapshots of it be ranges.
//!
//! Invariants:
//! - the store is the only owner of its buffers, so MLX writes them in place;
//! - a resident snapshot is a range of slots, no handle; before any slot of it is overwritten, and
//!   before the store goes away, its rows are copied out;
//! - every change builds the new arrays first and then replaces them all, so a failure changes nothing.

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

use crate::{
    CacheError, Result,
    codec::{Codec, Pair, Planes, RowFacts},
};

/// Slots added per growth: small enough that a forced copy stays cheap, large enough to be rare.
pub const GROW_SLOTS: usize = 256;

/// A store that snapshots can find again as long as it lives.
pub(crate) type SharedStore = Rc<RefCell<RowStore>>;

/// Buffers `[1,K,C,X]` with the same capacity C, and the snapshots that still live in them.
#[derive(Default)]
pub(crate) struct RowStore {
    buffers: Option<Planes>,
    codec: Codec,
    /// The slot at the front of the buffers.
    base: usize,
    /// Snapshots whose rows may still be nowhere else.
    residents: Vec<Weak<RowsCell>>,
    /// No resident snapshot reaches past this slot; lets an append at the frontier skip the search.
    resident_end: usize,
    /// Bytes that snapshots of this store have copied out and still hold.
    copied: Rc<Cell<usize>>,
    abandoned: bool,
}

impl RowStore {
    /// An empty store, for snapshots to find.
    pub(crate) fn shared(codec: Codec) -> SharedStore {
        let store = Rc::new(RefCell::new(Self::default()));
        store.borrow_mut().codec = codec;
        store
    }

    pub(crate) fn codec(&self) -> Codec {
        self.codec
    }

    /// The slot at the front of the buffers.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// C, the slots that fit without growing.
    pub(crate) fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, |planes| planes[0].dim(2) as usize)
    }

    /// Bytes of the buffers, unused slots included.
    pub(crate) fn bytes(&self) -> usize {
        self.buffers.as_deref().map_or(0, plane_bytes)
    }

    /// Bytes that living snapshots hold as copies.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.copied.get()
    }

    /// The rows of `slots` as views; they must be dropped before the next write.
    pub(crate) fn slice(&self, slots: Range<usize>) -> Result<Planes> {
        match &self.buffers {
            Some(buffers) if !self.abandoned => slice_planes(buffers, &self.local(&slots)),
            Some(_) => Err(lost(&slots, "the evaluation that wrote them failed")),
            None => Err(lost(&slots, "the layer holds no rows")),
        }
    }

    /// The rows of `slots` as keys and values `[1,K,n,D]`; views, where the codec allows.
    pub(crate) fn read(&self, slots: Range<usize>) -> Result<Pair> {
        self.codec.decode(&self.slice(slots)?)
    }

    /// Writes rows at slot `at`, in buffers of at least `capacity` slots if they must grow for it. On
    /// failure nothing has changed, but snapshots of the slots may hold their own copies by then.
    ///
    /// # Shapes
    /// The planes are `[1,K,L,X]` and were found to fit by [`check`](Self::check) or
    /// [`check_planes`](Self::check_planes).
    pub(crate) fn write(&mut self, at: usize, rows: &[Array], capacity: usize) -> Result<()> {
        let end = at + rows[0].dim(2) as usize;
        self.copy_out(&(at..end))?;
        let place = self.local(&(at..end));
        let own = |index: usize| self.buffers.as_ref().map(|planes| &planes[index]);
        let planes = rows.iter().enumerate();
        let planes = planes.map(|(index, rows)| put(own(index), &place, rows, capacity));
        self.buffers = Some(planes.collect::<Result<_>>()?);
        Ok(())
    }

    /// Moves the rows of `slots` to the front of new buffers of `capacity` slots; all others are gone.
    /// Snapshots of the moved rows stay residents, because a resident knows its slots, not their places.
    pub(crate) fn keep_only(&mut self, slots: Range<usize>, capacity: usize) -> Result<()> {
        let rows = match slots.is_empty() {
            true => None,
            false => Some(self.slice(slots.clone())?),
        };
        self.copy_out(&(0..slots.start))?;
        self.copy_out(&(slots.end..usize::MAX))?;
        self.refill(slots.start, rows, capacity)
    }

    /// Starts over with `rows` at slot `base`, in new buffers of `capacity` slots. Without rows the old
    /// buffers are used again.
    ///
    /// # Shapes
    /// The planes are `[1,K,L,X]` and were found to fit by [`check_planes`](Self::check_planes).
    pub(crate) fn restart(&mut self, base: usize, rows: Option<Planes>, capacity: usize) -> Result<()> {
        self.copy_out(&(0..usize::MAX))?;
        self.refill(base, rows, capacity)
    }

    /// Whether the rows can be written at slot `at`.
    ///
    /// # Shapes
    /// `keys` and `values` must be `[1,K,L,D]` with L ≥ 1 and the K, D and dtype of the rows already held.
    pub(crate) fn check(&self, at: usize, keys: &Array, values: &Array) -> Result<()> {
        let own = self.facts()?;
        let got = || format!("{:?} and {:?}", keys.shape(), values.shape());
        let ranked = keys.ndim() == 4 && values.ndim() == 4 && keys.dim(0) == 1 && values.dim(0) == 1;
        let paired = ranked && keys.dim(1) == values.dim(1) && keys.dim(2) == values.dim(2);
        if !paired || keys.size() == 0 || values.size() == 0 {
            let expected = own.map_or("[1,K,L,D] with L ≥ 1".into(), |own| own.shapes());
            return Err(CacheError::Shape { what: "keys and values", expected, got: got() });
        }
        let rows = RowFacts::of(keys, values);
        own.map_or(Ok(()), |own| own.admit(&rows, got))?;
        self.codec.check(&rows)?;
        let most = i32::MAX as usize / GROW_SLOTS * GROW_SLOTS;
        let end = at.saturating_add(keys.dim(2) as usize);
        if end > most {
            let expected = format!("of at most {most} after the append");
            return Err(CacheError::Offset { what: "append", expected, got: end });
        }
        Ok(())
    }

    /// Whether planes that `codec` made can be written.
    pub(crate) fn check_planes(&self, codec: Codec, rows: &[Array]) -> Result<()> {
        if codec != self.codec {
            let (expected, got) = (self.codec.to_string(), codec.to_string());
            return Err(CacheError::Kind { what: "rows of a snapshot", expected, got });
        }
        let facts = codec.facts(rows)?;
        self.facts()?.map_or(Ok(()), |own| own.admit(&facts, || facts.shapes()))
    }

    /// Forgets the resident snapshots without copying: what the buffers hold is unknown.
    pub(crate) fn abandon(&mut self) {
        self.abandoned = true;
        self.residents.clear();
    }

    fn facts(&self) -> Result<Option<RowFacts>> {
        self.buffers.as_deref().map(|planes| self.codec.facts(planes)).transpose()
    }

    /// The places of `slots` in the buffers.
    fn local(&self, slots: &Range<usize>) -> Range<i32> {
        (slots.start - self.base) as i32..(slots.end - self.base) as i32
    }

    fn refill(&mut self, base: usize, rows: Option<Planes>, capacity: usize) -> Result<()> {
        if let Some(rows) = rows {
            let grown = rows.iter().map(|plane| grow(Some(plane), plane, capacity));
            self.buffers = Some(grown.collect::<Result<_>>()?);
        }
        self.base = base;
        Ok(())
    }

    /// Gives every resident snapshot that meets `slots` its own copy of its rows.
    fn copy_out(&mut self, slots: &Range<usize>) -> Result<()> {
        if slots.start >= self.resident_end {
            return Ok(());
        }
        let living: Vec<Rc<RowsCell>> = self.residents.iter().filter_map(Weak::upgrade).collect();
        for cell in living.iter().filter(|cell| meets(&cell.range, slots)) {
            if let Some(buffers) = self.buffers.as_ref().filter(|_| !cell.is_copied()) {
                cell.keep(compact(buffers, &self.local(&cell.range))?);
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
    codec: Codec,
    home: Weak<RefCell<RowStore>>,
    copy: RefCell<Option<Planes>>,
    copied: Rc<Cell<usize>>,
}

impl RowsCell {
    /// A snapshot of slots that `store` holds now. It costs no bytes.
    pub(crate) fn resident(store: &SharedStore, range: Range<usize>) -> Rc<Self> {
        let mut inner = store.borrow_mut();
        let (codec, copied) = (inner.codec, Rc::clone(&inner.copied));
        let home = Rc::downgrade(store);
        let cell = Rc::new(Self { range, codec, home, copy: RefCell::new(None), copied });
        inner.resident_end = inner.resident_end.max(cell.range.end);
        inner.residents.retain(|other| other.strong_count() > 0);
        inner.residents.push(Rc::downgrade(&cell));
        cell
    }

    /// A snapshot that holds its own rows from the start; their bytes are counted in `counter`.
    pub(crate) fn detached(range: Range<usize>, rows: Planes, counter: &Rc<Cell<usize>>) -> Rc<Self> {
        let (codec, copied) = (Codec::Raw, Rc::clone(counter));
        let cell = Self { range, codec, home: Weak::new(), copy: RefCell::new(None), copied };
        cell.keep(rows);
        Rc::new(cell)
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(crate) fn codec(&self) -> Codec {
        self.codec
    }

    /// Bytes of the copy; 0 while the rows are still in their store.
    pub(crate) fn bytes(&self) -> usize {
        self.copy.borrow().as_deref().map_or(0, plane_bytes)
    }

    /// Whether the rows are still in their slots of `store`.
    pub(crate) fn is_resident_in(&self, store: &SharedStore) -> bool {
        !self.is_copied() && self.home.ptr_eq(&Rc::downgrade(store))
    }

    /// The rows: the copy, or views of the store that must be dropped before its next write.
    pub(crate) fn read(&self) -> Result<Planes> {
        match self.copy.borrow().as_ref() {
            Some(planes) => Ok(planes.clone()),
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
        let planes = first.iter().zip(&second).map(|(first, second)| concatenate(&[first, second], 2));
        let planes = planes.collect::<std::result::Result<Planes, _>>()?;
        async_eval(&planes)?;
        Ok(self.copied(range, planes))
    }

    /// A snapshot of `range`, which lies inside this one's.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Rc<Self>> {
        let Some(own) = self.copy.borrow().clone() else {
            let store = self.home.upgrade().ok_or_else(|| lost(&self.range, GONE))?;
            return Ok(Self::resident(&store, range));
        };
        let (from, to) = (range.start - self.range.start, range.end - self.range.start);
        Ok(self.copied(range, compact(&own, &(from as i32..to as i32))?))
    }

    fn is_copied(&self) -> bool {
        self.copy.borrow().is_some()
    }

    fn copied(&self, range: Range<usize>, rows: Planes) -> Rc<Self> {
        let (home, copied) = (Weak::clone(&self.home), Rc::clone(&self.copied));
        let cell = Self { range, codec: self.codec, home, copy: RefCell::new(None), copied };
        cell.keep(rows);
        Rc::new(cell)
    }

    fn keep(&self, rows: Planes) {
        self.copied.set(self.copied.get() + plane_bytes(&rows));
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

fn plane_bytes(planes: &[Array]) -> usize {
    planes.iter().map(Array::nbytes).sum()
}

/// `own` with `rows` at `place`, grown to `capacity` if it is too small.
fn put(own: Option<&Array>, place: &Range<i32>, rows: &Array, capacity: usize) -> Result<Array> {
    let buffer = match own {
        Some(own) if place.end <= own.dim(2) => own.clone(),
        _ => grow(own, rows, capacity)?,
    };
    let index = (.., .., place.clone(), ..);
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
fn compact(buffers: &[Array], place: &Range<i32>) -> Result<Planes> {
    let planes = slice_planes(buffers, place)?;
    let planes = planes.iter().map(Array::contiguous).collect::<std::result::Result<Planes, _>>()?;
    async_eval(&planes)?;
    Ok(planes)
}

fn slice_planes(planes: &[Array], place: &Range<i32>) -> Result<Planes> {
    planes.iter().map(|plane| Ok(plane.try_index((.., .., place.clone(), ..))?)).collect()
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
        store.write(0, &[filled(2, 3, 1.0), filled(2, 3, 1.0)], GROW_SLOTS).expect("fits");
        // Past `check` on purpose: three heads do not broadcast to two, and the keys come first.
        let uneven = [filled(2, 2, 9.0), filled(3, 2, 9.0)];
        store.write(1, &uneven, GROW_SLOTS).expect_err("values with three heads");
        store.write(300, &uneven, 2 * GROW_SLOTS).expect_err("values that cannot grow");
        let (keys, values) = store.read(0..3).expect("still held");
        assert_eq!((host(&keys), host(&values)), (vec![1.0; 12], vec![1.0; 12]));
        assert_eq!(store.bytes(), 2 * 2 * GROW_SLOTS * 2 * 4, "both buffers have one step each");
    }
}
