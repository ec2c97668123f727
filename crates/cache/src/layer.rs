//! The contract of a layer's cache, and the closed set of kinds that the engine dispatches on.

use mlx_rs::Array;

use crate::{KvCache, Result};

/// Which cached slots each query of a block may attend to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Mask {
    /// Every query sees every key: right for one query at the frontier.
    All,
    /// Query i of L sees the keys up to slot S − L + i.
    Causal,
    /// True where a query may see a key; broadcasts to [B,H,L,S].
    Bool(Array),
}

/// What attention reads after an append. Drop it before the next append: a live view forces MLX to
/// copy the whole buffer on the next write.
#[derive(Debug, Clone)]
pub struct View {
    /// Keys after rotary embedding, [1,K,S,D].
    pub keys: Array,
    /// Values, [1,K,S,D].
    pub values: Array,
    /// What each query of the appended block may see.
    pub mask: Mask,
}

/// State of one layer for one sequence.
///
/// An implementer stores rows in slot order from slot 0. `append` moves the offset forward; `rewind`
/// moves it back without evaluating anything; rows behind the offset are never visible again.
pub trait LayerCache {
    /// The number of slots written.
    fn offset(&self) -> usize;
    /// Writes L rows at the offset, advances it by L, and returns what the L queries attend to.
    ///
    /// # Shapes
    /// `keys` and `values` are [1,K,L,D]; the view is [1,K,S,D].
    fn append(&mut self, keys: &Array, values: &Array) -> Result<View>;
    /// What a read-only reader at the frontier sees; `None` while nothing is cached.
    fn view(&self) -> Result<Option<View>>;
    /// Whether [`rewind`](Self::rewind) to `offset` would succeed.
    fn can_rewind(&self, offset: usize) -> bool;
    /// Moves the offset back. An offset that cannot be reached is an error and changes nothing.
    fn rewind(&mut self, offset: usize) -> Result<()>;
    /// Bytes of the arrays held.
    fn bytes(&self) -> usize;
}

/// The kinds of layer state that a model can use.
#[derive(Debug)]
#[non_exhaustive]
pub enum Layer {
    /// Full attention: every key and value is kept.
    Kv(KvCache),
}

impl Layer {
    /// The layer behind its contract, for reading.
    pub fn get(&self) -> &dyn LayerCache {
        match self {
            Layer::Kv(kv) => kv,
        }
    }

    /// The layer behind its contract, for writing.
    pub fn get_mut(&mut self) -> &mut dyn LayerCache {
        match self {
            Layer::Kv(kv) => kv,
        }
    }
}
