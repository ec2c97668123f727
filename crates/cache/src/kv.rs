//! Full key/value cache: every row is kept, in one buffer that grows in steps.

use std::{fmt, ops::Range};

use mlx_rs::Array;

use crate::{LayerCache, LayerSnapshot, Result, View, codec::Codec, full::FullRows};

/// Keys and values of every token so far.
///
/// The buffer is written in place, which MLX does only while this is its sole owner; the views that
/// [`LayerCache::append`] returns must be dropped before the next append. Going back moves the offset
/// and nothing else.
pub struct KvCache(FullRows);

impl KvCache {
    /// An empty cache. Shapes and dtype are taken from the first rows.
    pub fn new() -> Self {
        Self(FullRows::new(Codec::Raw))
    }
}

impl Default for KvCache {
    fn default() -> Self {
        Self::new()
    }
}

impl LayerCache for KvCache {
    fn offset(&self) -> usize {
        self.0.offset()
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        self.0.append(keys, values)
    }

    fn view(&self) -> Result<Option<View>> {
        self.0.view()
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.0.offset()
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        self.0.rewind(offset)
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        self.0.snapshot(slots)
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        self.0.can_restore(path)
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.0.restore(path)
    }

    fn snapshot_bytes(&self) -> usize {
        self.0.snapshot_bytes()
    }

    fn abandon(&mut self) {
        self.0.abandon();
    }
}

// Printing an array would wait for it.
impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("offset", &self.offset())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
