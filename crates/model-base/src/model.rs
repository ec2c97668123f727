//! The contract of a target model.

use foretoken_cache::CacheSet;
use mlx_rs::Array;

use crate::{Batch, MTPDefaultsProvider, MTPEmbeddingModel, Result};

/// What the rest of the program needs to know about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFacts {
    /// The family's name, for example `llama`.
    pub family: &'static str,
    /// V, the number of token ids.
    pub vocabulary: usize,
    /// The longest sequence in tokens.
    pub context_length: usize,
    /// The number of layers.
    pub layers: usize,
    /// E, the width of the hidden state.
    pub width: usize,
    /// H, query heads.
    pub heads: usize,
    /// K, key/value heads.
    pub kv_heads: usize,
    /// D, the size of a head.
    pub head_size: usize,
    /// Epsilon of the RMS norms.
    pub norm_epsilon: f32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// End tokens that the configuration names.
    pub end_tokens: Vec<u32>,
}

/// What a forward returns.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// The state to unembed `[B,L,E]`.
    pub last: Array,
    /// The state that a drafter conditions on `[B,L,E]`; usually the same array.
    pub aux: Array,
}

/// A loaded model: immutable, object-safe, without tokenizer, files or caches of its own.
///
/// A forward builds arrays and evaluates nothing.
pub trait Model {
    /// Fixed facts.
    fn facts(&self) -> &ModelFacts;
    /// Empty caches for one sequence, one layer each.
    fn make_caches(&self) -> CacheSet;
    /// Appends the batch to the caches, one set per batch row, and returns the hidden states.
    ///
    /// # Shapes
    /// `batch.ids` `[B,L]` → `[B,L,E]`.
    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden>;
    /// Logits of hidden states.
    ///
    /// # Shapes
    /// `[B,L,E]` → `[B,L,V]`.
    fn unembed(&self, last: &Array) -> Result<Array>;
    /// The embeddings that MTP heads share with the target.
    fn mtp(&self) -> Option<&dyn MTPEmbeddingModel> {
        None
    }
    /// Draft depths that this model prefers.
    fn mtp_defaults(&self) -> Option<&dyn MTPDefaultsProvider> {
        None
    }
    /// Hidden states of inner layers.
    fn taps(&self) -> Option<&dyn HiddenTaps> {
        None
    }
}

/// Models that can report the hidden states of inner layers.
pub trait HiddenTaps {
    /// Like [`Model::forward`], with the states after the named layers concatenated in `aux`.
    ///
    /// # Shapes
    /// `batch.ids` `[B,L]` → `aux` `[B,L,E·layers.len()]`.
    fn forward_tapped(&self, batch: &Batch, caches: &mut [&mut CacheSet], layers: &[usize])
    -> Result<Hidden>;
    /// Like [`Model::forward`], and beside it the states after the named layers, concatenated. A model whose
    /// `aux` is another array than `last` overrides this.
    ///
    /// # Shapes
    /// `batch.ids` `[B,L]` → `[B,L,E]` and `[B,L,E·layers.len()]`.
    fn forward_both(
        &self,
        batch: &Batch,
        caches: &mut [&mut CacheSet],
        layers: &[usize],
    ) -> Result<(Hidden, Array)> {
        let Hidden { last, aux: tapped } = self.forward_tapped(batch, caches, layers)?;
        Ok((Hidden { aux: last.clone(), last }, tapped))
    }
}
