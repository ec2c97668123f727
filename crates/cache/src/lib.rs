//! State of past tokens for MLX language models.
//!
//! This crate knows arrays, not models. A [`CacheSet`] holds one sequence: one [`Layer`] per model
//! layer, all resting at one offset between calls.
//!
//! - **Kinds.** [`KvCache`] keeps every key and value, [`QuantizedCache`] keeps them in 8 or 4 bits,
//!   [`RotatingCache`] keeps those that a sliding window sees, [`RecurrentCache`] keeps a folded state.
//! - **Transaction.** Speculation appends rows that may be taken back, so every set offers one
//!   transaction ([`CacheSet::begin`], [`CacheSet::commit`], [`CacheSet::rollback`]) and every exit
//!   path ends it.
//! - **Snapshots.** [`CacheSet::snapshot`] remembers slots without copying them; they are copied when
//!   a later append is about to overwrite them, and [`CacheSet::restore`] brings them back.
//!   [`CacheSet::schedule`] names the offsets to capture while a block is written.
//! - **Reuse.** A [`prefix::PrefixCache`] keeps snapshots of earlier requests and takes the sets of the
//!   next one to the longest beginning that its prompt shares with them.
//! - **Conformance.** The feature `testkit` brings random tests for any [`LayerCache`], against an oracle
//!   that recomputes everything from scratch.
//! - **In place.** A layer's buffer is written in place as long as the layer is its sole owner.
//!   Nothing here keeps a second handle on a buffer, and callers must not keep a [`View`].
//!
//! # Shapes
//! B batch, L query length, S cached length, H heads, K key/value heads, D head size, E model width,
//! V vocabulary, N draft depth, C capacity in slots. Lengths are tokens, sizes are bytes.

#![deny(missing_docs)]

mod checkpoint;
mod codec;
mod error;
mod full;
mod kv;
mod layer;
mod mask;
mod points;
pub mod prefix;
mod quantized;
mod recurrent;
mod rotating;
mod rows;
mod set;
mod snapshot;
mod state;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use error::{CacheError, Result};
pub use kv::KvCache;
pub use layer::{Layer, LayerCache, Mask, View};
pub use points::{StateSnapshot, WindowSnapshot};
pub use quantized::{KvFormat, QuantizedCache};
pub use recurrent::RecurrentCache;
pub use rotating::RotatingCache;
pub use rows::GROW_SLOTS;
pub use set::{CacheSet, SetId};
pub use snapshot::{LayerSnapshot, RowsSnapshot, Snapshot};
pub use state::RecurrentState;
