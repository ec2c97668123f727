//! State of past tokens for MLX language models.
//!
//! This crate knows arrays, not models. A [`CacheSet`] holds one sequence: one [`Layer`] per model
//! layer, all resting at one offset between calls. Speculation appends rows that may be taken back,
//! so every set offers one transaction ([`CacheSet::begin`], [`CacheSet::commit`],
//! [`CacheSet::rollback`]) and every exit path ends it.
//!
//! # Shapes
//! B batch, L query length, S cached length, H heads, K key/value heads, D head size, E model width,
//! V vocabulary, N draft depth. Lengths are tokens, sizes are bytes.

mod error;
mod kv;
mod layer;
mod set;

pub use error::{CacheError, Result};
pub use kv::{GROW_SLOTS, KvCache};
pub use layer::{Layer, LayerCache, Mask, View};
pub use set::CacheSet;
