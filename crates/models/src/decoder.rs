//! What the families share above their blocks: a stack between an embedding and a head.

use foretoken_cache::{CacheError, CacheSet, Layer, SetId};
use foretoken_model_base::{
    Batch, Hidden, HiddenTaps, MTPEmbeddingModel, Model, ModelError, ModelFacts, Result,
    nn::{Embedding, Linear, RmsNorm, scaled, soft_cap},
};
use mlx_rs::Array;

use crate::{taps::Taps, text::Text};

/// One layer of a family.
pub(crate) trait Block {
    /// The empty state of this layer for one sequence.
    fn make_cache(&self) -> Layer;
    /// `[1,L,E]` → `[1,L,E]` for tokens that start at slot `offset`.
    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array>;
}

/// A decoder: embedding, blocks, norm, head.
pub(crate) struct Decoder<B> {
    pub(crate) facts: ModelFacts,
    /// Snapshots go from one sequence of this model to another.
    pub(crate) id: SetId,
    pub(crate) embedding: Embedding,
    /// Embeddings are multiplied by this.
    pub(crate) scale: Option<f32>,
    pub(crate) blocks: Vec<B>,
    pub(crate) norm: RmsNorm,
    /// `None` when the embedding unembeds.
    pub(crate) head: Option<Linear>,
    /// Logits are bounded by this.
    pub(crate) cap: Option<f32>,
}

impl<B: Block> Decoder<B> {
    /// Reads what is around the blocks; `shifted` checkpoints store norms as w − 1.
    pub(crate) fn load(facts: ModelFacts, part: &Text<'_>, shifted: bool, blocks: Vec<B>) -> Result<Self> {
        let (width, vocabulary) = (facts.width, facts.vocabulary);
        let norm = part.trunk.at("norm");
        let load = if shifted { RmsNorm::load_shifted } else { RmsNorm::load };
        let head = || Linear::load(&part.head, width, vocabulary, false);
        Ok(Self {
            id: SetId::fresh(),
            embedding: Embedding::load(&part.trunk.at("embed_tokens"), vocabulary, width)?,
            scale: None,
            norm: load(&norm, width, facts.norm_epsilon)?,
            head: if part.tied { None } else { Some(head()?) },
            cap: None,
            facts,
            blocks,
        })
    }

    /// `[B,L]` → `[B,L,E]`, the state to unembed; `taps` sees the others.
    fn pass(&self, batch: &Batch, caches: &mut [&mut CacheSet], taps: &mut Taps<'_>) -> Result<Array> {
        let (offset, set) = single(batch, caches, self.blocks.len())?;
        let mut x = self.token_embeddings(&batch.ids)?;
        for (i, block) in self.blocks.iter().enumerate() {
            let layer = set.layer_mut(i).ok_or_else(|| layers(self.blocks.len(), i))?;
            x = block.forward(&x, offset, layer)?;
            taps.pass(i, &x);
        }
        self.norm.forward(&x)
    }
}

impl<B: Block> Model for Decoder<B> {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        CacheSet::with_id(self.id, self.blocks.iter().map(Block::make_cache).collect())
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        let last = self.pass(batch, caches, &mut Taps::none())?;
        Ok(Hidden { aux: last.clone(), last })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        let logits = match &self.head {
            Some(head) => head.forward(last)?,
            None => self.embedding.unembed(last)?,
        };
        match self.cap {
            Some(cap) => soft_cap(&logits, cap),
            None => Ok(logits),
        }
    }

    fn mtp(&self) -> Option<&dyn MTPEmbeddingModel> {
        Some(self)
    }

    fn taps(&self) -> Option<&dyn HiddenTaps> {
        Some(self)
    }
}

impl<B: Block> HiddenTaps for Decoder<B> {
    fn forward_tapped(
        &self,
        batch: &Batch,
        caches: &mut [&mut CacheSet],
        layers: &[usize],
    ) -> Result<Hidden> {
        let mut taps = Taps::new(layers, self.blocks.len())?;
        let last = self.pass(batch, caches, &mut taps)?;
        Ok(Hidden { last, aux: taps.joined()? })
    }
}

impl<B: Block> MTPEmbeddingModel for Decoder<B> {
    fn token_embeddings(&self, ids: &Array) -> Result<Array> {
        let rows = self.embedding.rows(ids)?;
        match self.scale {
            Some(scale) => scaled(&rows, scale),
            None => Ok(rows),
        }
    }

    fn output_rows(&self, ids: &Array) -> Result<Array> {
        match &self.head {
            Some(head) => head.rows(ids),
            None => self.embedding.rows(ids),
        }
    }
}

/// The only row of the batch and its caches, which must rest where the batch begins.
pub(crate) fn single<'a>(
    batch: &Batch,
    caches: &'a mut [&mut CacheSet],
    want: usize,
) -> Result<(usize, &'a mut CacheSet)> {
    let rows = batch.offsets.len();
    let ([set], [offset]) = (caches, &batch.offsets[..]) else {
        return Err(input("batch rows and cache sets", "one of each", format!("{rows} rows")));
    };
    if set.len() != want {
        return Err(layers(want, set.len()));
    }
    let at = set.layer(0).map_or(0, |layer| layer.get().offset());
    if at != *offset {
        return Err(input("batch offset", &format!("{at}, where the caches rest"), offset.to_string()));
    }
    Ok((*offset, set))
}

pub(crate) fn layers(want: usize, got: usize) -> ModelError {
    let got = got.to_string();
    CacheError::Shape { what: "layers of the cache set", expected: want.to_string(), got }.into()
}

fn input(what: &'static str, expected: &str, got: String) -> ModelError {
    ModelError::Input { what, expected: expected.into(), got }
}
