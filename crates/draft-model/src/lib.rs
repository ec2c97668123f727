//! Drafting with a second, smaller model.
//!
//! Any [`Model`](foretoken_model_base::Model) can draft for any other that reads the same tokens.
//! [`check_vocabulary`] compares the two tokenizers, and its result is the only way to a [`ModelDrafter`]:
//! ids of another vocabulary would be legal numbers that mean other words.

#![deny(missing_docs)]

mod drafter;
mod session;
mod vocabulary;

pub use drafter::{CATCH_UP_TOKENS, ModelDrafter};
pub use vocabulary::{SharedVocabulary, TokenTable, VocabularyError, check_vocabulary};
