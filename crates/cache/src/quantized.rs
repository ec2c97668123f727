//! Full key/value cache in fewer bits: every row is kept, packed in affine groups.

use std::{fmt, ops::Range};

use mlx_rs::Array;

use crate::{CacheError, LayerCache, LayerSnapshot, Result, View, codec::Codec, full::FullRows};

/// How keys and values are packed: numbers of `bits` bits, in groups along D that share a scale and a
/// bias (MLX's affine quantization).
///
/// Within a group, a number comes back with an error of at most one step, (max − min) / (2^bits − 1) of
/// that group; half a step is usual. For a head whose numbers lie in ±1 a step is 0.008 at 8 bits and
/// 0.13 at 4 bits. The scale and bias of a group are stored in the type of the rows, and bfloat16 rounds
/// them to 8 significant bits, which adds up to 1/256 of the group's largest magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvFormat {
    bits: i32,
    group: i32,
}

impl KvFormat {
    /// 4 or 8 bits, in groups of 32 or 64; anything else is an error.
    pub fn new(bits: usize, group: usize) -> Result<Self> {
        let bad = |what, expected: &str, got: usize| {
            Err(CacheError::Kind { what, expected: expected.into(), got: got.to_string() })
        };
        match (bits, group) {
            (4 | 8, 32 | 64) => Ok(Self { bits: bits as i32, group: group as i32 }),
            (4 | 8, other) => bad("group of quantized keys and values", "32 or 64", other),
            (other, _) => bad("bits of quantized keys and values", "4 or 8", other),
        }
    }

    /// Bits of a number.
    pub fn bits(&self) -> usize {
        self.bits as usize
    }

    /// Numbers that share a scale; head sizes must be multiples of it.
    pub fn group(&self) -> usize {
        self.group as usize
    }
}

/// Keys and values of every token so far, packed.
///
/// Rows are packed when they are appended and never again, so going back, snapshots and restores are as
/// exact as in a [`KvCache`](crate::KvCache). A view holds unpacked copies of all rows: attention reads
/// what the packed numbers stand for, at the cost of unpacking them in every step. Readers that need the
/// numbers as they came ask [`Layer::raw_view`](crate::Layer::raw_view), which refuses.
pub struct QuantizedCache {
    rows: FullRows,
    format: KvFormat,
}

impl QuantizedCache {
    /// An empty cache. Shapes and dtype are taken from the first rows, whose head sizes must be multiples
    /// of the group.
    pub fn new(format: KvFormat) -> Self {
        let codec = Codec::Affine { bits: format.bits, group: format.group };
        Self { rows: FullRows::new(codec), format }
    }

    /// How the rows are packed.
    pub fn format(&self) -> KvFormat {
        self.format
    }
}

impl LayerCache for QuantizedCache {
    fn offset(&self) -> usize {
        self.rows.offset()
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<View> {
        self.rows.append(keys, values)
    }

    fn view(&self) -> Result<Option<View>> {
        self.rows.view()
    }

    fn can_rewind(&self, offset: usize) -> bool {
        offset <= self.rows.offset()
    }

    fn rewind(&mut self, offset: usize) -> Result<()> {
        self.rows.rewind(offset)
    }

    fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot> {
        self.rows.snapshot(slots)
    }

    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()> {
        self.rows.can_restore(path)
    }

    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()> {
        self.rows.restore(path)
    }

    fn snapshot_bytes(&self) -> usize {
        self.rows.snapshot_bytes()
    }

    fn abandon(&mut self) {
        self.rows.abandon();
    }
}

// Printing an array would wait for it.
impl fmt::Debug for QuantizedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuantizedCache")
            .field("format", &self.format)
            .field("offset", &self.offset())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
