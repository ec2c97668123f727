//! Contracts for language models on MLX, their weights, and the layers they share.
//!
//! # Shapes
//! The glossary of the workspace: B batch, L query length, S cached length, H heads, K key/value
//! heads, D head size, E model width, V vocabulary, N draft depth.

#![deny(missing_docs)]

mod batch;
mod config;
mod draft;
mod error;
mod model;
pub mod nn;
mod registry;
pub mod weights;

pub use batch::Batch;
pub use config::Config;
pub use draft::{
    BlockDraft, DraftHead, DraftVocabulary, MTPDefaults, MTPDefaultsProvider, MTPDraftModel,
    MTPEmbeddingModel,
};
pub use error::{ModelError, Result};
pub use model::{Hidden, HiddenTaps, Model, ModelFacts};
pub use registry::{Family, GgufFamily, find_family, find_gguf_family};
pub use weights::{LoadOptions, LoadReport, Weights};
