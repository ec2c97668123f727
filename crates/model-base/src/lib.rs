//! Contracts for language models on MLX, their weights, and the layers they share.
//!
//! # Shapes
//! The glossary of the workspace: B batch, L query length, S cached length, H heads, K key/value
//! heads, D head size, E model width, V vocabulary, N draft depth.

mod batch;
mod draft;
mod error;
mod model;

pub use batch::Batch;
pub use draft::{
    BlockDraft, DraftHead, DraftVocabulary, MTPDefaults, MTPDefaultsProvider, MTPDraftModel,
    MTPEmbeddingModel,
};
pub use error::{ModelError, Result};
pub use model::{Hidden, HiddenTaps, Model, ModelFacts};
