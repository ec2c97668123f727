//! Model families, one file each, and the table of them.

#![deny(missing_docs)]

mod decoder;
mod gemma3;
mod gemma4;
mod gguf;
mod llama;
mod load;
mod packed;
mod qwen3;
mod qwen3_5;
mod taps;
#[cfg(feature = "testkit")]
pub mod testkit;
mod text;

use foretoken_model_base::Family;

pub use load::{Loaded, load};
pub use packed::{kv_format, with_packed_kv};

/// Every family, sorted by name.
pub const FAMILIES: &[Family] = &[
    gemma3::FAMILY,
    gemma3::TEXT_FAMILY,
    gemma4::FAMILY,
    gemma4::TEXT_FAMILY,
    llama::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5::TEXT_FAMILY,
];
