//! The sequential head: Llama layers over (next token, hidden) pairs, with a cache of their own.

use foretoken_cache::{CacheSet, KvCache, Layer, SetId};
use foretoken_model_base::{
    DraftHead, DraftVocabulary, Hidden, Model, ModelError, Result,
    nn::{Linear, Mlp, RmsNorm, attend, join_heads, split_heads},
    weights::{Cursor, Weights},
};
use mlx_rs::{Array, ops::concatenate};

use crate::head::{DraftRows, Geometry, layers, mlp};

/// A head in the layout of Qwen3.5's: slot S of its cache fuses the embedding of token S+1 with the
/// target's hidden state of slot S, and its out predicts token S+2.
#[derive(Debug)]
pub struct SeqHead {
    /// Snapshots go from one sequence of this head to another.
    id: SetId,
    geometry: Geometry,
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    fuse: Linear,
    layers: Vec<SeqLayer>,
    norm: RmsNorm,
    draft: DraftRows,
}

impl SeqHead {
    /// Builds the head after checking each of its tensors against the target.
    pub fn load(weights: &Weights, model: &dyn Model) -> Result<Self> {
        let geometry = Geometry::of(model.facts())?;
        let (width, count) = (geometry.width, layers(weights, model.facts())?);
        let norm = |name: &str| RmsNorm::load(&weights.at(name), width, geometry.epsilon);
        let layer = |i: usize| SeqLayer::load(&weights.at("layers").at(i), &geometry);
        Ok(Self {
            id: SetId::fresh(),
            embedding_norm: norm("pre_fc_norm_embedding")?,
            hidden_norm: norm("pre_fc_norm_hidden")?,
            fuse: Linear::load(&weights.at("fc"), 2 * width, width, false)?,
            layers: (0..count).map(layer).collect::<Result<_>>()?,
            norm: norm("norm")?,
            draft: DraftRows::load(weights, model)?,
            geometry,
        })
    }
}

impl DraftHead for SeqHead {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        Some(&self.draft.vocabulary)
    }

    fn make_caches(&self) -> CacheSet {
        CacheSet::with_id(self.id, self.layers.iter().map(|_| Layer::Kv(KvCache::new())).collect())
    }

    fn forward(
        &self,
        embeds: &Array,
        hidden: &Array,
        position: usize,
        _target: &CacheSet,
        own: &mut CacheSet,
    ) -> Result<Hidden> {
        check_pairs(embeds, hidden, self.geometry.width)?;
        let fused = [self.embedding_norm.forward(embeds)?, self.hidden_norm.forward(hidden)?];
        let mut x = self.fuse.forward(&concatenate(&fused, -1)?)?; // [1,L,E]
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&self.geometry, x, position, own_layer(own, index, position)?)?;
        }
        let out = self.norm.forward(&x)?;
        Ok(Hidden { last: out.clone(), aux: out })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        self.draft.logits(last)
    }
}

/// One Llama layer.
#[derive(Debug)]
struct SeqLayer {
    input_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
}

impl SeqLayer {
    fn load(at: &Cursor<'_>, g: &Geometry) -> Result<Self> {
        let (attention, joined, kv_joined) =
            (at.at("self_attn"), g.heads * g.head_size, g.kv_heads * g.head_size);
        let norm = |name: &str| RmsNorm::load(&at.at(name), g.width, g.epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            query: Linear::load(&attention.at("q_proj"), g.width, joined, false)?,
            key: Linear::load(&attention.at("k_proj"), g.width, kv_joined, false)?,
            value: Linear::load(&attention.at("v_proj"), g.width, kv_joined, false)?,
            output: Linear::load(&attention.at("o_proj"), joined, g.width, false)?,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp: mlp(&at.at("mlp"), g.width)?,
        })
    }

    /// [1,L,E] → [1,L,E], appending L rows to `own`.
    fn forward(&self, g: &Geometry, x: Array, position: usize, own: &mut Layer) -> Result<Array> {
        let y = self.input_norm.forward(&x)?;
        let queries = split_heads(&self.query.forward(&y)?, g.heads as i32)?;
        let keys = split_heads(&self.key.forward(&y)?, g.kv_heads as i32)?;
        let values = split_heads(&self.value.forward(&y)?, g.kv_heads as i32)?;
        let queries = g.rope.forward(&queries, position)?;
        let view = own.get_mut().append(&g.rope.forward(&keys, position)?, &values)?;
        let attended = join_heads(&attend(&queries, &view, g.scale())?)?;
        let x = x.add(self.output.forward(&attended)?)?;
        let fed = self.mlp.forward(&self.post_attention_norm.forward(&x)?)?;
        Ok(x.add(fed)?)
    }
}

/// The own layer, which must end right before `position`.
fn own_layer(own: &mut CacheSet, index: usize, position: usize) -> Result<&mut Layer> {
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

fn check_pairs(embeds: &Array, hidden: &Array, width: usize) -> Result<()> {
    let fits = |a: &Array| a.ndim() == 3 && a.dim(0) == 1 && a.dim(2) as usize == width;
    if fits(embeds) && fits(hidden) && embeds.dim(1) == hidden.dim(1) && embeds.dim(1) > 0 {
        return Ok(());
    }
    Err(ModelError::Input {
        what: "embeds and hidden",
        expected: format!("both of shape [1,L,{width}] with L ≥ 1"),
        got: format!("{:?} and {:?}", embeds.shape(), hidden.shape()),
    })
}
