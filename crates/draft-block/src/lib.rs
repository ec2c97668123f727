//! Block drafting: one forward fills a block of mask positions from tapped target layers.
//!
//! The idea is that of DFlash (arXiv 2602.06036): a small stack reads the current token and N − 1 masks at
//! once, in both directions, and attends what the target knew at every committed slot. Its keys and values for
//! those slots are computed once and stay in caches of its own, so that a proposal costs one forward of N rows,
//! however deep it is. The rows of a block do not see each other's tokens.
//!
//! - [`load`] reads a head from a folder that [`is_block_head`] recognises;
//! - [`BlockHead`] is the network, [`BlockDrafter`] the drafter around any
//!   [`BlockDraft`](foretoken_model_base::BlockDraft).

#![deny(missing_docs)]

mod drafter;
mod head;
mod layer;
mod load;
mod session;
mod shape;
mod waiting;

pub use drafter::{BlockDrafter, FLUSH_TOKENS};
pub use head::BlockHead;
pub use load::{MODEL_TYPE, drafter, is_block_head, load, load_options};
pub use shape::MAX_BLOCK;
