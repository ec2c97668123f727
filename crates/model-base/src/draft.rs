//! Contracts between a target model and the heads that draft for it.

use foretoken_cache::CacheSet;
use mlx_rs::Array;

use crate::{Hidden, Model, ModelError, Result};

/// The target's embeddings, shared with its MTP heads.
pub trait MTPEmbeddingModel {
    /// Token embeddings, scaled as the family scales them.
    ///
    /// # Shapes
    /// `[B,L]` → `[B,L,E]`.
    fn token_embeddings(&self, ids: &Array) -> Result<Array>;
    /// Rows of the unembedding for chosen ids.
    ///
    /// # Shapes
    /// `[n]` → `[n,E]`.
    fn output_rows(&self, ids: &Array) -> Result<Array>;
}

/// The target ids that a head's logit columns stand for, ascending.
#[derive(Debug, Clone)]
pub struct DraftVocabulary {
    ids: Vec<u32>,
    array: Array,
}

impl DraftVocabulary {
    /// Checks that the ids ascend and lie inside the target's vocabulary.
    pub fn new(ids: Vec<u32>, target_vocabulary: usize) -> Result<Self> {
        if let Some(pair) = ids.windows(2).find(|w| w[0] >= w[1]) {
            return Err(ModelError::Input {
                what: "draft_token_ids",
                expected: "strictly ascending ids".into(),
                got: format!("{} before {}", pair[0], pair[1]),
            });
        }
        match ids.last() {
            Some(&last) if (last as usize) < target_vocabulary => {
                let array = Array::from_slice(&ids, &[ids.len() as i32]);
                Ok(Self { ids, array })
            }
            last => Err(ModelError::Input {
                what: "draft_token_ids",
                expected: format!("at least one id, all below {target_vocabulary}"),
                got: format!("{last:?}"),
            }),
        }
    }

    /// The ids on the host.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The ids as an array `[D]` uint32.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// The number of columns D.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Never true: an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

/// A head that drafts one position at a time without caches of its own.
pub trait MTPDraftModel {
    /// The target ids of the logit columns; `None` means the target's vocabulary.
    fn vocabulary(&self) -> Option<&DraftVocabulary>;
    /// One step: logits and the hidden state that the next step continues from.
    ///
    /// The head attends the target's caches as they are and must not write them; `position` stays the
    /// same for every step of a proposal.
    ///
    /// # Shapes
    /// `input_embeds` `[B,1,2E]`, the token embedding followed by the hidden state → (`[B,1,D]`, `[B,1,E]`).
    fn draft(&self, input_embeds: &Array, position: usize, target: &CacheSet) -> Result<(Array, Array)>;
}

/// A head with caches of its own that extends a sequence of (token, hidden) pairs.
pub trait DraftHead {
    /// The target ids of the logit columns; `None` means the target's vocabulary.
    fn vocabulary(&self) -> Option<&DraftVocabulary>;
    /// Empty caches for one sequence.
    fn make_caches(&self) -> CacheSet;
    /// Appends L pairs at `position` to the head's own caches.
    ///
    /// # Shapes
    /// `embeds` and `hidden` `[1,L,E]` → `[1,L,E]`.
    fn forward(
        &self,
        embeds: &Array,
        hidden: &Array,
        position: usize,
        target: &CacheSet,
        own: &mut CacheSet,
    ) -> Result<Hidden>;
    /// Draft logits of hidden states.
    ///
    /// # Shapes
    /// `[1,L,E]` → `[1,L,D]`.
    fn unembed(&self, last: &Array) -> Result<Array>;
}

/// A head that fills a whole block of mask positions in one forward, with caches of its own.
///
/// Its caches hold one row for each committed slot, computed once from what the target knows there. A block
/// attends those rows and itself, in both directions, so its own rows change with every block and never stay.
pub trait BlockDraft {
    /// The target ids of the logit columns; `None` means the target's vocabulary.
    fn vocabulary(&self) -> Option<&DraftVocabulary>;
    /// N, the number of positions that one forward fills.
    fn block(&self) -> usize;
    /// The t target layers whose states it conditions on.
    fn layers(&self) -> &[usize];
    /// Empty caches for one sequence.
    fn make_caches(&self) -> CacheSet;
    /// Appends L committed slots, the first of them at `position`, where the caches must rest.
    ///
    /// # Shapes
    /// `embeds` `[1,L,E]` of the tokens, `taps` `[1,L,E·t]`, the states after [`layers`](Self::layers).
    fn append(&self, embeds: &Array, taps: &Array, position: usize, own: &mut CacheSet) -> Result<()>;
    /// The states of a block that begins with the current token at `position`, where the caches must rest.
    /// Row j predicts the token after slot `position + j`. The block's rows stay in the caches: the caller
    /// rewinds them to `position`, also after an error.
    ///
    /// # Shapes
    /// `embeds` `[1,1,E]` of the current token → `[1,N,E]`.
    fn draft_block(&self, embeds: &Array, position: usize, own: &mut CacheSet) -> Result<Array>;
    /// Draft logits of states, by rows of its own or as the target unembeds.
    ///
    /// # Shapes
    /// `[1,L,E]` → `[1,L,D]`.
    fn unembed(&self, last: &Array, target: &dyn Model) -> Result<Array>;
}

/// Draft depths to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MTPDefaults {
    /// Depth of the first rounds.
    pub initial_draft_tokens: usize,
    /// Depth never exceeded.
    pub max_draft_tokens: usize,
    /// Whether to speculate at all.
    pub enabled: bool,
}

impl Default for MTPDefaults {
    fn default() -> Self {
        Self { initial_draft_tokens: 4, max_draft_tokens: 16, enabled: true }
    }
}

/// A model that prefers other depths than the defaults.
pub trait MTPDefaultsProvider {
    /// The preferred values; a 0 means the default.
    fn mtp_defaults(&self) -> MTPDefaults;
}

impl MTPDefaults {
    /// The values in force: zeros replaced by the defaults, the initial depth cut to the largest.
    pub fn resolve(provider: Option<&dyn MTPDefaultsProvider>) -> Self {
        let (asked, base) = (provider.map_or_else(Self::default, |p| p.mtp_defaults()), Self::default());
        let or = |value: usize, default: usize| if value == 0 { default } else { value };
        let max_draft_tokens = or(asked.max_draft_tokens, base.max_draft_tokens);
        let initial_draft_tokens =
            or(asked.initial_draft_tokens, base.initial_draft_tokens).min(max_draft_tokens);
        Self { initial_draft_tokens, max_draft_tokens, enabled: asked.enabled }
    }
}
