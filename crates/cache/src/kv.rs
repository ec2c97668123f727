//! Full key/value cache in one buffer that grows in steps.

use mlx_rs::{
    Array,
    ops::{
        concatenate,
        indexing::{TryIndexMutOp, TryIndexOp},
        zeros_dtype,
    },
};

use crate::{CacheError, LayerCache, Mask, Result, View};

/// Slots added per growth: small enough that a forced copy stays cheap, large enough to be rare.
pub const GROW_SLOTS: usize = 256;

/// Keys and values of every token so far.
///
/// The buffer is written in place, which MLX does only while this is its sole owner; the views that
/// [`LayerCache::append`] returns must be dropped before the next append.
#[derive(Debug, Default)]
pub struct KvCache {
    /// Keys and values, each [1,K,C,D] with capacity C, once the first rows came.
    buffers: Option<(Array, Array)>,
    offset: usize,
}

impl KvCache {
    /// An empty cache. Shapes and dtype are taken from the first rows.
    pub fn new() -> Self {
        Self::default()
    }

    fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, |(keys, _)| keys.dim(2) as usize)
    }

    fn reserve(&mut self, end: usize, keys: &Array, values: &Array) -> Result<()> {
        if end <= self.capacity() {
            return Ok(());
        }
        let grown = end.div_ceil(GROW_SLOTS) * GROW_SLOTS;
        let (old_keys, old_values) = match self.buffers.take() {
            Some((k, v)) => (Some(k), Some(v)),
            None => (None, None),
        };
        self.buffers = Some((grow(old_keys, keys, grown)?, grow(old_values, values, grown)?));
        Ok(())
    }

    fn rows(&self, mask: Mask) -> Result<Option<View>> {
        let Some((keys, values)) = self.buffers.as_ref().filter(|_| self.offset > 0) else {
            return Ok(None);
        };
        let end = self.offset as i32;
        let (keys, values) = (keys.try_index((.., .., ..end, ..))?, values.try_index((.., .., ..end, ..))?);
        Ok(Some(View { keys, values, mask }))
    }
}

/// A buffer of `capacity` slots that starts with the rows of `old` and is shaped like `rows`.
fn grow(old: Option<Array>, rows: &Array, capacity: usize) -> Result<Array> {
    let had = old.as_ref().map_or(0, |o| o.dim(2));
    let shape = [rows.dim(0), rows.dim(1), capacity as i32 - had, rows.dim(3)];
    let fresh = zeros_dtype(&shape, rows.dtype())?;
    match old {
        Some(old) => Ok(concatenate(&[&old, &fresh], 2)?),
        None => Ok(fresh),
    }
}

impl LayerCache for KvCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        check_rows(self.buffers.as_ref(), keys, values)?;
        let rows = keys.dim(2) as usize;
        let (at, end) = (self.offset, self.offset + rows);
        self.reserve(end, keys, values)?;
        if let Some((own_keys, own_values)) = self.buffers.as_mut() {
            own_keys.try_index_mut((.., .., at as i32..end as i32, ..), keys)?;
            own_values.try_index_mut((.., .., at as i32..end as i32, ..), values)?;
        }
        self.offset = end;
        let mask = if rows == 1 { Mask::All } else { Mask::Causal };
        self.rows(mask)?.ok_or_else(|| CacheError::State {
            what: "append",
            expected: "at least one row".into(),
            got: "none".into(),
        })
    }

    fn view(&self) -> Result<Option<View>> {
        self.rows(Mask::All)
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.offset
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        if !self.can_rewind(offset) {
            return Err(CacheError::Offset {
                what: "rewind",
                expected: format!("of at most {}", self.offset),
                got: offset,
            });
        }
        self.offset = offset;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.buffers.as_ref().map_or(0, |(k, v)| k.nbytes() + v.nbytes())
    }
}

fn check_rows(own: Option<&(Array, Array)>, keys: &Array, values: &Array) -> Result<()> {
    let fits = |own: &Array, rows: &Array| {
        own.dim(0) == rows.dim(0) && own.dim(1) == rows.dim(1) && own.dim(3) == rows.dim(3)
    };
    let rank = keys.ndim() == 4 && values.ndim() == 4;
    let same = rank && keys.dim(2) == values.dim(2) && keys.dim(2) > 0;
    let own_fits = own.is_none_or(|(k, v)| rank && fits(k, keys) && fits(v, values));
    if same && own_fits {
        return Ok(());
    }
    Err(CacheError::Shape {
        what: "keys and values",
        expected: own.map_or("[1,K,L,D] with L ≥ 1".into(), |(k, v)| {
            format!("[1,K,L,D] like {:?} and {:?}", k.shape(), v.shape())
        }),
        got: format!("{:?} and {:?}", keys.shape(), values.shape()),
    })
}
