//! Structured output: JSON schemas, regular expressions and Lark grammars as token masks.
//!
//! A [`TokenTable`] is built once for a model, a [`CompiledGrammar`] once for a schema; each answer then
//! begins a [`Constraint`](foretoken_sample::Constraint) of its own. The matching is done by
//! [`llguidance`]; this crate adds what a decoder needs around it: several end tokens, rollback, forced
//! runs, bounds on schemas that have none, and errors before anything is evaluated.

#![deny(missing_docs)]

mod bounds;
mod compile;
mod error;
mod place;
mod table;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use bounds::JsonOptions;
pub use compile::CompiledGrammar;
pub use error::{GrammarError, Result};
pub use table::TokenTable;
