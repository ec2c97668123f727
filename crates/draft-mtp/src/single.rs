//! The single-position head: no cache, re-attends the target's last layers at one fixed position.

use foretoken_cache::{CacheError, CacheSet, Layer, View};
use foretoken_model_base::{
    DraftVocabulary, MTPDraftModel, Model, ModelError, Result,
    nn::{Linear, Mlp, RmsNorm, attend, join_heads, split_heads},
    weights::{Cursor, Weights},
};
use mlx_rs::Array;

use crate::head::{DraftRows, Geometry, layers, mlp};

/// A head whose layer i of n reads the keys and values of target layer L − n + i.
///
/// Every step of a proposal keeps the position of the last committed slot, because a query at that
/// position is what the head was trained to ask the cached keys with.
#[derive(Debug)]
pub struct SingleHead {
    geometry: Geometry,
    pre_projection: Linear,
    layers: Vec<SingleLayer>,
    norm: RmsNorm,
    post_projection: Linear,
    draft: DraftRows,
    /// The target layer that the first layer reads.
    first_target_layer: usize,
}

impl SingleHead {
    /// Builds the head after checking each of its tensors against the target.
    pub fn load(weights: &Weights, model: &dyn Model) -> Result<Self> {
        let facts = model.facts();
        let geometry = Geometry::of(facts)?;
        let (width, count) = (geometry.width, layers(weights, facts)?);
        let layer = |i: usize| SingleLayer::load(&weights.at("layers").at(i), &geometry);
        let first_target_layer = facts.layers - count;
        for read in model.make_caches().layers().iter().skip(first_target_layer) {
            check_kind(read)?;
        }
        Ok(Self {
            pre_projection: Linear::load(&weights.at("pre_projection"), 2 * width, width, false)?,
            layers: (0..count).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(&weights.at("norm"), width, geometry.epsilon)?,
            post_projection: Linear::load(&weights.at("post_projection"), width, width, false)?,
            draft: DraftRows::load(weights, model)?,
            first_target_layer,
            geometry,
        })
    }

    /// What layer `index` reads: exactly the slots up to `position`.
    fn view(&self, target: &CacheSet, index: usize, position: usize) -> Result<View> {
        let layer = self.first_target_layer + index;
        let view = match target.layer(layer) {
            Some(read) => check_kind(read).and_then(|()| Ok(read.raw_view()?))?,
            None => None,
        };
        let expected = [1, self.geometry.kv_heads, position + 1, self.geometry.head_size];
        let fits = |rows: &Array| rows.shape().iter().map(|&d| d as usize).eq(expected);
        match view {
            Some(view) if fits(&view.keys) && fits(&view.values) => Ok(view),
            other => Err(ModelError::Input {
                what: "target cache",
                expected: format!("keys and values {expected:?} in layer {layer}"),
                got: other.map_or("none".into(), |v| format!("{:?}, {:?}", v.keys.shape(), v.values.shape())),
            }),
        }
    }
}

impl MTPDraftModel for SingleHead {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        Some(&self.draft.vocabulary)
    }

    fn draft(&self, input_embeds: &Array, position: usize, target: &CacheSet) -> Result<(Array, Array)> {
        check_input(input_embeds, 2 * self.geometry.width)?;
        let mut x = self.pre_projection.forward(input_embeds)?; // [B,1,E]
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&self.geometry, x, position, &self.view(target, index, position)?)?;
        }
        let out = self.post_projection.forward(&self.norm.forward(&x)?)?;
        Ok((self.draft.logits(&out)?, out))
    }
}

/// One layer: attention over the target's rows, then an MLP, each between two norms.
#[derive(Debug)]
struct SingleLayer {
    input_norm: RmsNorm,
    query: Linear,
    query_norm: RmsNorm,
    output: Linear,
    post_attention_norm: RmsNorm,
    pre_feedforward_norm: RmsNorm,
    mlp: Mlp,
    post_feedforward_norm: RmsNorm,
}

impl SingleLayer {
    fn load(at: &Cursor<'_>, g: &Geometry) -> Result<Self> {
        let norm = |name: &str| RmsNorm::load(&at.at(name), g.width, g.epsilon);
        let (attention, joined) = (at.at("self_attn"), g.heads * g.head_size);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            query: Linear::load(&attention.at("q_proj"), g.width, joined, false)?,
            query_norm: RmsNorm::load(&attention.at("q_norm"), g.head_size, g.epsilon)?,
            output: Linear::load(&attention.at("o_proj"), joined, g.width, false)?,
            post_attention_norm: norm("post_attention_layernorm")?,
            pre_feedforward_norm: norm("pre_feedforward_layernorm")?,
            mlp: mlp(&at.at("mlp"), g.width)?,
            post_feedforward_norm: norm("post_feedforward_layernorm")?,
        })
    }

    /// [B,1,E] → [B,1,E].
    fn forward(&self, g: &Geometry, x: Array, position: usize, view: &View) -> Result<Array> {
        let queries = self.query.forward(&self.input_norm.forward(&x)?)?;
        let queries = self.query_norm.forward(&split_heads(&queries, g.heads as i32)?)?;
        let attended = join_heads(&attend(&g.rope.forward(&queries, position)?, view, g.scale())?)?;
        let x = x.add(self.post_attention_norm.forward(&self.output.forward(&attended)?)?)?;
        let fed = self.mlp.forward(&self.pre_feedforward_norm.forward(&x)?)?;
        Ok(x.add(self.post_feedforward_norm.forward(&fed)?)?)
    }
}

/// The head was trained on every row of its layers as it came: a window has lost some, a folded state has
/// none, and a packed cache shows others.
fn check_kind(layer: &Layer) -> Result<()> {
    match layer {
        Layer::Kv(_) => Ok(()),
        other => Err(CacheError::Kind {
            what: "mtp-single, which reads the target's keys and values again",
            expected: "layers of full attention that show them as they came".into(),
            got: format!("{}; use a head with a cache of its own, or --draft none", other.kind()),
        }
        .into()),
    }
}

fn check_input(input: &Array, width: usize) -> Result<()> {
    match *input.shape() {
        [_, 1, got] if got as usize == width => Ok(()),
        ref other => Err(ModelError::Input {
            what: "input_embeds",
            expected: format!("shape [B,1,{width}]"),
            got: format!("{other:?}"),
        }),
    }
}
