//! The network: block layers between the target's embeddings and its unembedding.

use foretoken_cache::{CacheSet, KvCache, Layer, SetId};
use foretoken_model_base::{
    BlockDraft, Config, DraftVocabulary, MTPEmbeddingModel, Model, ModelError, Result,
    nn::{Linear, RmsNorm},
    weights::Weights,
};
use mlx_rs::{
    Array,
    ops::{broadcast_to, concatenate, multiply},
};

use crate::{layer::BlockLayer, shape::Shape};

/// A block head whose layers attend (embedding, tapped states) of every committed slot.
///
/// What is known of a slot, `[E·(1+t)]`, is the token's embedding and the t tapped states, each divided by its
/// own root mean square, and all weighted by `context_norm`. Layers have no biases; logits are the target's own
/// unembedding of the last state, or rows of it for the ids of `draft_token_ids`, or `lm_head` when the file
/// has one.
#[derive(Debug)]
pub struct BlockHead {
    /// Snapshots go from one sequence of this head to another.
    id: SetId,
    shape: Shape,
    /// `[1,1,E]`.
    mask: Array,
    /// Divides by the root mean square.
    level: RmsNorm,
    /// `[E·(1+t)]`.
    weight: Array,
    layers: Vec<BlockLayer>,
    norm: RmsNorm,
    vocabulary: Option<DraftVocabulary>,
    /// `None` where the target unembeds.
    unembedding: Option<Linear>,
}

impl BlockHead {
    /// Builds the head after checking its configuration and each of its tensors against the target.
    pub fn load(config: &Config, weights: &Weights, model: &dyn Model) -> Result<Self> {
        let shape = Shape::read(config, model)?;
        let layer = |i: usize| BlockLayer::load(&weights.at("layers").at(i), &shape);
        let (vocabulary, unembedding) = unembedding(weights, model)?;
        Ok(Self {
            id: SetId::fresh(),
            mask: weights.at("mask_embedding").tensor(&[shape.width])?.reshape(&[1, 1, -1])?,
            level: RmsNorm::unscaled(shape.epsilon),
            weight: weights.at("context_norm").at("weight").tensor(&[shape.context()])?,
            layers: (0..shape.layers).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(&weights.at("norm"), shape.width, shape.epsilon)?,
            vocabulary,
            unembedding,
            shape,
        })
    }

    /// `[1,L,E]` and `[1,L,E·t]` → `[1,L,E·(1+t)]`.
    fn context(&self, embeds: &Array, taps: &Array) -> Result<Array> {
        let (width, rows) = (self.shape.width as i32, embeds.dim(1));
        let parts = concatenate(&[embeds, taps], -1)?.reshape(&[1, rows, -1, width])?;
        let level = self.level.forward(&parts)?.reshape(&[1, rows, -1])?;
        Ok(multiply(level, &self.weight)?)
    }

    /// The own layer, which must end right before `position`.
    fn own_layer<'o>(&self, own: &'o mut CacheSet, index: usize, position: usize) -> Result<&'o mut Layer> {
        let found = own.layer(index).map(|layer| layer.get().offset());
        match own.layer_mut(index) {
            Some(layer) if found == Some(position) => Ok(layer),
            _ => Err(ModelError::Input {
                what: "draft cache",
                expected: format!("layer {index} at offset {position}"),
                got: found.map_or("no such layer".into(), |offset| offset.to_string()),
            }),
        }
    }
}

impl BlockDraft for BlockHead {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        self.vocabulary.as_ref()
    }

    fn block(&self) -> usize {
        self.shape.block
    }

    fn layers(&self) -> &[usize] {
        &self.shape.taps
    }

    fn make_caches(&self) -> CacheSet {
        CacheSet::with_id(self.id, self.layers.iter().map(|_| Layer::Kv(KvCache::new())).collect())
    }

    fn append(&self, embeds: &Array, taps: &Array, position: usize, own: &mut CacheSet) -> Result<()> {
        let width = self.shape.width;
        check("embeddings", embeds, embeds.shape().get(1).copied().unwrap_or(0).max(1), width)?;
        check("tapped states", taps, embeds.dim(1), width * self.shape.taps.len())?;
        let context = self.context(embeds, taps)?;
        for (index, layer) in self.layers.iter().enumerate() {
            layer.append(&self.shape, &context, position, self.own_layer(own, index, position)?)?;
        }
        Ok(())
    }

    fn draft_block(&self, embeds: &Array, position: usize, own: &mut CacheSet) -> Result<Array> {
        check("embedding of the current token", embeds, 1, self.shape.width)?;
        let mut x = embeds.clone();
        if self.shape.block > 1 {
            let masks = [1, self.shape.block as i32 - 1, self.shape.width as i32];
            x = concatenate(&[embeds, &broadcast_to(&self.mask, &masks)?], 1)?; // [1,N,E]
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&self.shape, &x, position, self.own_layer(own, index, position)?)?;
        }
        self.norm.forward(&x)
    }

    fn unembed(&self, last: &Array, target: &dyn Model) -> Result<Array> {
        match &self.unembedding {
            Some(own) => own.forward(last),
            None => target.unembed(last),
        }
    }
}

/// The draft vocabulary, unless it is the target's, and the rows that unembed, unless the target does.
fn unembedding(weights: &Weights, model: &dyn Model) -> Result<(Option<DraftVocabulary>, Option<Linear>)> {
    let facts = model.facts();
    let ids = weights.at("draft_token_ids");
    let vocabulary = match ids.exists() {
        true => Some(DraftVocabulary::new(ids.ids()?, facts.vocabulary)?),
        false => None,
    };
    let columns = vocabulary.as_ref().map_or(facts.vocabulary, DraftVocabulary::len);
    let head = weights.at("lm_head");
    if head.at("weight").exists() {
        return Ok((vocabulary, Some(Linear::load(&head, facts.width, columns, false)?)));
    }
    let rows = match (&vocabulary, model.mtp()) {
        (Some(vocabulary), Some(target)) => Some(gathered(vocabulary, target, weights, facts.width)?),
        _ => None,
    };
    Ok((vocabulary, rows))
}

/// The target's rows for the draft vocabulary, gathered once.
fn gathered(
    vocabulary: &DraftVocabulary,
    target: &dyn MTPEmbeddingModel,
    weights: &Weights,
    width: usize,
) -> Result<Linear> {
    let rows = target.output_rows(vocabulary.array())?; // [D,E]
    // Through a table of weights, so that the rows get the layout of every other product.
    let table = Weights::from_arrays([("rows.weight".into(), rows)], *weights.options());
    Linear::load(&table.at("rows"), width, vocabulary.len(), false)
}

fn check(what: &'static str, array: &Array, rows: i32, width: usize) -> Result<()> {
    let expected = [1, rows, width as i32];
    match array.shape() == expected {
        true => Ok(()),
        false => Err(ModelError::Input {
            what,
            expected: format!("shape {expected:?}"),
            got: format!("{:?}", array.shape()),
        }),
    }
}
