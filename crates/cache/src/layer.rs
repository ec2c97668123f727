//! The contract of a layer's cache, and the closed set of kinds that the engine dispatches on.

use std::{fmt, ops::Range};

use mlx_rs::{Array, ops::indexing::TryIndexOp};

use crate::{
    CacheError, KvCache, LayerSnapshot, QuantizedCache, RecurrentCache, Result, RotatingCache,
    mask::window_mask,
};

/// Which cached slots each query of a block may attend to.
#[derive(Clone)]
#[non_exhaustive]
pub enum Mask {
    /// Every query sees every key: right for one query at the frontier.
    All,
    /// Query i of L sees the keys up to slot S − L + i.
    Causal,
    /// True where a query may see a key; broadcasts to `[B,H,L,S]`.
    Bool(Array),
}

/// What attention reads after an append. Drop it before the next append: a live view forces MLX to
/// copy the whole buffer on the next write.
#[derive(Clone)]
pub struct View {
    /// Keys after rotary embedding, `[1,K,S,D]`.
    pub keys: Array,
    /// Values, `[1,K,S,D]`.
    pub values: Array,
    /// What each query of the appended block may see.
    pub mask: Mask,
}

impl View {
    /// The view of a full cache that the last `queries` tokens have through a sliding window of `window`
    /// keys, their own included.
    ///
    /// # Shapes
    /// `[1,K,S,D]` → `[1,K,min(S, window − 1 + queries),D]`.
    pub fn narrow(&self, queries: usize, window: usize) -> Result<Self> {
        let (slots, window) = (self.keys.dim(2) as usize, window.max(1));
        if queries == 0 || queries > slots {
            let (expected, got) = (format!("1 to {slots} queries"), format!("{queries} queries"));
            return Err(CacheError::Shape { what: "view through a window", expected, got });
        }
        let past = (slots - queries).min(window - 1);
        let rows = (.., .., (slots - past - queries) as i32.., ..);
        let keys = self.keys.try_index(rows.clone())?;
        Ok(Self { keys, values: self.values.try_index(rows)?, mask: window_mask(queries, past, window)? })
    }
}

/// State of one layer for one sequence.
///
/// An implementer stores rows in slot order from slot 0. `append` moves the offset forward; `rewind`
/// moves it back without evaluating anything; rows behind the offset are never visible again, except
/// through a snapshot that was taken while they were live. Every error leaves the state unchanged.
///
/// Kinds that can go back to any earlier offset (full attention) need none of the defaulted hooks. The
/// others learn from [`begin`](Self::begin) and [`schedule`](Self::schedule) what they must keep.
pub trait LayerCache {
    /// The number of slots written.
    fn offset(&self) -> usize;
    /// Writes L rows at the offset, advances it by L, and returns what the L queries attend to.
    ///
    /// # Shapes
    /// `keys` and `values` are `[1,K,L,D]`; the view is `[1,K,S,D]`.
    fn append(&mut self, keys: &Array, values: &Array) -> Result<View>;
    /// What a read-only reader at the frontier sees; `None` while nothing is cached.
    fn view(&self) -> Result<Option<View>>;
    /// Whether [`rewind`](Self::rewind) to `offset` would succeed.
    fn can_rewind(&self, offset: usize) -> bool;
    /// Moves the offset back. An offset that cannot be reached is an error and changes nothing.
    fn rewind(&mut self, offset: usize) -> Result<()>;
    /// Bytes of the arrays held, unused capacity included and snapshots not.
    fn bytes(&self) -> usize;

    /// Remembers the state that the rows of `slots` lead to: kinds whose rows can be sliced keep just
    /// these rows, kinds that fold the past keep their state at `slots.end`. Nothing is copied before
    /// it is about to be overwritten. An end that is neither the offset nor otherwise still reachable,
    /// and an empty range, are errors.
    fn snapshot(&mut self, slots: Range<usize>) -> Result<LayerSnapshot>;
    /// Whether [`restore`](Self::restore) would accept `path`; the error says why not.
    fn can_restore(&self, path: &[&LayerSnapshot]) -> Result<()>;
    /// Takes the layer to the end of `path`, whose snapshots follow each other without gaps and whose
    /// first starts at or before the offset. Rows before that start stay as they are.
    ///
    /// Should MLX fail in the middle, the layer rests at the end of the last snapshot restored.
    fn restore(&mut self, path: &[&LayerSnapshot]) -> Result<()>;
    /// Bytes that living snapshots of this layer hold as copies.
    fn snapshot_bytes(&self) -> usize;
    /// Gives up: an evaluation failed, so neither the rows nor snapshots of them that are not copied
    /// yet can be trusted. Nothing is copied afterwards, also not when the layer is dropped.
    fn abandon(&mut self);

    /// Rows appended from here on may be taken back: until [`end`](Self::end), `rewind` must reach
    /// every offset from this one on.
    fn begin(&mut self) {}
    /// Like [`begin`](Self::begin), for rows that are kept together or not at all: until
    /// [`end`](Self::end), `rewind` must reach this offset and the last one.
    fn begin_whole(&mut self) {
        self.begin();
    }
    /// The rows up to the offset are final; whatever was kept since `begin` may go.
    fn end(&mut self) {}
    /// Until [`unschedule`](Self::unschedule), [`snapshot`](Self::snapshot) must succeed at each of
    /// these offsets once rows were appended past it and not taken back. They ascend and lie ahead.
    fn schedule(&mut self, _offsets: &[usize]) {}
    /// Drops what was captured for a schedule and not turned into a snapshot.
    fn unschedule(&mut self) {}
}

/// The kinds of layer state that a model can use.
#[derive(Debug)]
#[non_exhaustive]
pub enum Layer {
    /// Full attention: every key and value is kept.
    Kv(KvCache),
    /// Full attention in fewer bits: every key and value is kept, approximately.
    Quantized(QuantizedCache),
    /// Sliding-window attention: the last keys and values are kept.
    Rotating(RotatingCache),
    /// No attention: the past is folded into a state.
    Recurrent(RecurrentCache),
}

impl Layer {
    /// The layer behind its contract, for reading.
    pub fn get(&self) -> &dyn LayerCache {
        match self {
            Layer::Kv(kv) => kv,
            Layer::Quantized(packed) => packed,
            Layer::Rotating(window) => window,
            Layer::Recurrent(state) => state,
        }
    }

    /// The layer behind its contract, for writing.
    pub fn get_mut(&mut self) -> &mut dyn LayerCache {
        match self {
            Layer::Kv(kv) => kv,
            Layer::Quantized(packed) => packed,
            Layer::Rotating(window) => window,
            Layer::Recurrent(state) => state,
        }
    }

    /// The layer for appending keys and values; an error if it has none.
    pub fn attention_mut(&mut self) -> Result<&mut dyn LayerCache> {
        match self {
            Layer::Recurrent(_) => Err(self.kind_error("attention", "a layer of keys and values")),
            _ => Ok(self.get_mut()),
        }
    }

    /// The layer for handing over recurrent states; an error if it holds keys and values.
    pub fn recurrent_mut(&mut self) -> Result<&mut RecurrentCache> {
        match self {
            Layer::Recurrent(state) => Ok(state),
            _ => Err(self.kind_error("recurrence", "a recurrent layer")),
        }
    }

    /// Like [`LayerCache::view`], for readers that attend the rows again and must see them as they came;
    /// an error where the layer cannot show that.
    pub fn raw_view(&self) -> Result<Option<View>> {
        match self {
            Layer::Quantized(_) => {
                Err(self.kind_error("raw view", "a layer of keys and values as they came"))
            }
            _ => self.get().view(),
        }
    }

    /// What the kind is called in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Layer::Kv(_) => "full attention",
            Layer::Quantized(_) => "quantized full attention",
            Layer::Rotating(_) => "sliding window",
            Layer::Recurrent(_) => "recurrent",
        }
    }

    fn kind_error(&self, what: &'static str, expected: &str) -> CacheError {
        CacheError::Kind { what, expected: expected.into(), got: format!("one of kind {}", self.kind()) }
    }
}

// Printing an array would wait for it, so shapes stand for the arrays.

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mask::All => f.write_str("All"),
            Mask::Causal => f.write_str("Causal"),
            Mask::Bool(mask) => f.debug_tuple("Bool").field(&mask.shape()).finish(),
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut view = f.debug_struct("View");
        view.field("keys", &self.keys.shape()).field("values", &self.values.shape());
        view.field("mask", &self.mask).finish()
    }
}
