//! Model families, one file each, and the table of them.

#![deny(missing_docs)]

mod gguf;
mod llama;
mod load;
#[cfg(feature = "testkit")]
pub mod testkit;

use foretoken_model_base::Family;

pub use load::{Loaded, load};

/// Every family, sorted by name.
pub const FAMILIES: &[Family] = &[llama::FAMILY];
