//! Prompt look-up drafting: what followed the same n tokens before.
//!
//! Text that is edited, quoted or continued repeats itself, and a look-up of the last few tokens costs
//! nothing next to a forward. No model is needed (Saxena, Prompt Lookup Decoding, 2023). This crate is also
//! the one to copy for a new drafter: [`NgramDrafter`] implements the whole contract in one file.

#![deny(missing_docs)]

mod drafter;
mod index;

pub use drafter::{NgramDrafter, NgramOptions};
