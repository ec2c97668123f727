//! The Llama family (layout of ml-explore/mlx-lm, `mlx_lm/models/llama.py`).

use foretoken_cache::{CacheSet, KvCache, Layer, SetId};
use foretoken_model_base::{
    Batch, Config, Family, Hidden, HiddenTaps, MTPEmbeddingModel, Model, ModelError, ModelFacts, Result,
    Weights,
    nn::{Embedding, Linear, Mlp, RmsNorm, Rope, attend, join_heads, split_heads},
    weights::Cursor,
};
use mlx_rs::{Array, ops::add};

use crate::{
    decoder::{layers, single},
    gguf,
    taps::Taps,
};

/// The family's entry in the table.
pub(crate) const FAMILY: Family = Family {
    name: "llama",
    // Frequencies that old converters stored; they follow from the configuration.
    ignorable: &["rotary_emb.inv_freq"],
    build: |config, weights| Ok(Box::new(Llama::load(config, weights)?)),
    gguf: Some(gguf::LLAMA),
};

/// Facts of `config.json` that shape the network.
struct Shape {
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    epsilon: f32,
    attention_bias: bool,
    mlp_bias: bool,
}

impl Shape {
    fn read(config: &Config) -> Result<Self> {
        let (width, heads) = (config.count("hidden_size")?, config.count("num_attention_heads")?);
        let kv_heads = config.optional_count("num_key_value_heads")?.unwrap_or(heads);
        let shape = Self {
            width,
            inner: config.count("intermediate_size")?,
            heads,
            kv_heads,
            head_size: config.optional_count("head_dim")?.unwrap_or(width / heads),
            epsilon: config.number("rms_norm_eps")?.unwrap_or(1e-6),
            attention_bias: config.flag("attention_bias")?,
            mlp_bias: config.flag("mlp_bias")?,
        };
        shape.check(config)?;
        Ok(shape)
    }

    /// Refuses what this file does not compute.
    fn check(&self, config: &Config) -> Result<()> {
        let refuse = |what: &str, expected: String, got: String| {
            Err(ModelError::Config { what: what.into(), expected, got })
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads {}", self.heads);
            return refuse("num_key_value_heads", expected, self.kv_heads.to_string());
        }
        if self.head_size == 0 || !self.head_size.is_multiple_of(2) {
            return refuse("head_dim", "an even number".into(), self.head_size.to_string());
        }
        if self.epsilon < 0.0 {
            return refuse("rms_norm_eps", "0 or more".into(), self.epsilon.to_string());
        }
        match config.text("hidden_act")? {
            None | Some("silu" | "swish") => {}
            Some(other) => return refuse("hidden_act", "silu".into(), format!("{other:?}")),
        }
        match config.optional_list("layer_types")? {
            Some(kinds) if kinds.iter().any(|kind| kind != "full_attention") => {
                refuse("layer_types", "full_attention only".into(), format!("{kinds:?}"))
            }
            _ => Ok(()),
        }
    }
}

struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    heads: i32,
    kv_heads: i32,
    scale: f32,
}

impl Attention {
    fn load(at: &Cursor<'_>, shape: &Shape) -> Result<Self> {
        let (width, bias) = (shape.width, shape.attention_bias);
        let (inner, kv) = (shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
        Ok(Self {
            q: Linear::load(&at.at("q_proj"), width, inner, bias)?,
            k: Linear::load(&at.at("k_proj"), width, kv, bias)?,
            v: Linear::load(&at.at("v_proj"), width, kv, bias)?,
            o: Linear::load(&at.at("o_proj"), inner, width, bias)?,
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: (shape.head_size as f32).sqrt().recip(),
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, rope: &Rope, offset: usize, cache: &mut Layer) -> Result<Array> {
        let q = split_heads(&self.q.forward(x)?, self.heads)?;
        let k = split_heads(&self.k.forward(x)?, self.kv_heads)?;
        let v = split_heads(&self.v.forward(x)?, self.kv_heads)?;
        let (q, k) = (rope.forward(&q, offset)?, rope.forward(&k, offset)?);
        let view = cache.get_mut().append(&k, &v)?;
        self.o.forward(&join_heads(&attend(&q, &view, self.scale)?)?)
    }
}

struct Block {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(at: &Cursor<'_>, shape: &Shape) -> Result<Self> {
        let norm = |name| RmsNorm::load(&at.at(name), shape.width, shape.epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::load(&at.at("self_attn"), shape)?,
            post_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(&at.at("mlp"), shape.width, shape.inner, shape.mlp_bias)?,
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, rope: &Rope, offset: usize, cache: &mut Layer) -> Result<Array> {
        let x = add(x, self.attention.forward(&self.input_norm.forward(x)?, rope, offset, cache)?)?;
        Ok(add(&x, self.mlp.forward(&self.post_norm.forward(&x)?)?)?)
    }
}

struct Llama {
    facts: ModelFacts,
    /// Snapshots go from one sequence of this model to another.
    id: SetId,
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    /// `None` when the embedding unembeds.
    head: Option<Linear>,
    rope: Rope,
}

impl Llama {
    fn load(config: &Config, weights: &Weights) -> Result<Self> {
        let shape = Shape::read(config)?;
        let facts = facts(config, &shape)?;
        let (width, vocabulary, model) = (shape.width, facts.vocabulary, weights.at("model"));
        // A head in the file wins over the flag: converters forget to clear the flag.
        let head = weights.at("lm_head");
        let tied = config.flag("tie_word_embeddings")? && !head.at("weight").exists();
        let block = |i| Block::load(&model.at("layers").at(i), &shape);
        Ok(Self {
            id: SetId::fresh(),
            embedding: Embedding::load(&model.at("embed_tokens"), vocabulary, width)?,
            blocks: (0..facts.layers).map(block).collect::<Result<_>>()?,
            norm: RmsNorm::load(&model.at("norm"), width, shape.epsilon)?,
            head: if tied { None } else { Some(Linear::load(&head, width, vocabulary, false)?) },
            rope: rope(config, weights, &shape, facts.rope_base)?,
            facts,
        })
    }

    /// `[B,L]` → `[B,L,E]`, the state to unembed; `taps` sees the others.
    fn pass(&self, batch: &Batch, caches: &mut [&mut CacheSet], taps: &mut Taps<'_>) -> Result<Array> {
        let (offset, set) = single(batch, caches, self.blocks.len())?;
        let mut x = self.embedding.rows(&batch.ids)?;
        for (i, block) in self.blocks.iter().enumerate() {
            let layer = set.layer_mut(i).ok_or_else(|| layers(self.blocks.len(), i))?;
            x = block.forward(&x, &self.rope, offset, layer)?;
            taps.pass(i, &x);
        }
        self.norm.forward(&x)
    }
}

fn facts(config: &Config, shape: &Shape) -> Result<ModelFacts> {
    let parameters = config.section("rope_parameters")?;
    let inner = parameters.map(|p| p.number("rope_theta")).transpose()?.flatten();
    Ok(ModelFacts {
        family: FAMILY.name,
        vocabulary: config.count("vocab_size")?,
        context_length: config.optional_count("max_position_embeddings")?.unwrap_or(2048),
        layers: config.count("num_hidden_layers")?,
        width: shape.width,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_size: shape.head_size,
        norm_epsilon: shape.epsilon,
        rope_base: config.number("rope_theta")?.or(inner).unwrap_or(10_000.0),
        end_tokens: config.end_tokens().to_vec(),
    })
}

/// GGUF files carry the scaling as one factor per pair instead of its parameters.
fn rope(config: &Config, weights: &Weights, shape: &Shape, base: f32) -> Result<Rope> {
    let factors = weights.at("rope_freqs.weight");
    if factors.exists() {
        return Rope::with_factors(shape.head_size, base, &factors.floats(shape.head_size / 2)?);
    }
    Rope::from_config(config, shape.head_size, base)
}

impl Model for Llama {
    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn make_caches(&self) -> CacheSet {
        CacheSet::with_id(self.id, self.blocks.iter().map(|_| Layer::Kv(KvCache::new())).collect())
    }

    fn forward(&self, batch: &Batch, caches: &mut [&mut CacheSet]) -> Result<Hidden> {
        let last = self.pass(batch, caches, &mut Taps::none())?;
        Ok(Hidden { aux: last.clone(), last })
    }

    fn unembed(&self, last: &Array) -> Result<Array> {
        match &self.head {
            Some(head) => head.forward(last),
            None => self.embedding.unembed(last),
        }
    }

    fn mtp(&self) -> Option<&dyn MTPEmbeddingModel> {
        Some(self)
    }

    fn taps(&self) -> Option<&dyn HiddenTaps> {
        Some(self)
    }
}

impl HiddenTaps for Llama {
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

impl MTPEmbeddingModel for Llama {
    fn token_embeddings(&self, ids: &Array) -> Result<Array> {
        self.embedding.rows(ids)
    }

    fn output_rows(&self, ids: &Array) -> Result<Array> {
        match &self.head {
            Some(head) => head.rows(ids),
            None => self.embedding.rows(ids),
        }
    }
}
