//! The Qwen3 family: Llama with norms on queries and keys (layout of ml-explore/mlx-lm,
//! `mlx_lm/models/qwen3.py`).

use foretoken_cache::{KvCache, Layer};
use foretoken_model_base::{
    Config, Family, ModelFacts, Result, Weights,
    nn::{Linear, Mlp, RmsNorm, Rope, attend, join_heads, split_heads},
    weights::Cursor,
};
use mlx_rs::{Array, ops::add};

use crate::{
    decoder::{Block, Decoder},
    text::{Kind, Text, activation, epsilon, even, grouped, kinds, without},
};

/// The family's entry in the table.
pub(crate) const FAMILY: Family = Family {
    name: "qwen3",
    ignorable: &["rotary_emb.inv_freq"],
    build: |config, weights| Ok(Box::new(load(config, weights)?)),
    gguf: None,
};

/// Facts of `config.json` that shape the network.
struct Shape {
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    epsilon: f32,
    bias: bool,
}

impl Shape {
    fn read(config: &Config) -> Result<Self> {
        let shape = Self {
            width: config.count("hidden_size")?,
            inner: config.count("intermediate_size")?,
            layers: config.count("num_hidden_layers")?,
            heads: config.count("num_attention_heads")?,
            kv_heads: config.count("num_key_value_heads")?,
            head_size: config.count("head_dim")?,
            epsilon: epsilon(config)?,
            bias: config.flag("attention_bias")?,
        };
        grouped(config, "num_key_value_heads", shape.heads, shape.kv_heads)?;
        even(config, "head_dim", shape.head_size)?;
        activation(config, "hidden_act", &["silu", "swish"])?;
        without(config, &["use_sliding_window"])?;
        kinds(config, shape.layers, Some(1), Kind::Full)?;
        Ok(shape)
    }

    fn facts(&self, text: &Text<'_>) -> Result<ModelFacts> {
        Ok(ModelFacts {
            family: FAMILY.name,
            vocabulary: text.vocabulary()?,
            context_length: text.config.optional_count("max_position_embeddings")?.unwrap_or(32_768),
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            norm_epsilon: self.epsilon,
            rope_base: text.rope_base()?,
            end_tokens: text.end_tokens(),
        })
    }
}

struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
    scale: f32,
}

impl Attention {
    fn load(at: &Cursor<'_>, shape: &Shape, rope: &Rope) -> Result<Self> {
        let (width, size, bias) = (shape.width, shape.head_size, shape.bias);
        let (inner, kv) = (shape.heads * size, shape.kv_heads * size);
        Ok(Self {
            q: Linear::load(&at.at("q_proj"), width, inner, bias)?,
            k: Linear::load(&at.at("k_proj"), width, kv, bias)?,
            v: Linear::load(&at.at("v_proj"), width, kv, bias)?,
            o: Linear::load(&at.at("o_proj"), inner, width, bias)?,
            q_norm: RmsNorm::load(&at.at("q_norm"), size, shape.epsilon)?,
            k_norm: RmsNorm::load(&at.at("k_norm"), size, shape.epsilon)?,
            rope: rope.clone(),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: (size as f32).sqrt().recip(),
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        let q = self.q_norm.forward(&split_heads(&self.q.forward(x)?, self.heads)?)?;
        let k = self.k_norm.forward(&split_heads(&self.k.forward(x)?, self.kv_heads)?)?;
        let v = split_heads(&self.v.forward(x)?, self.kv_heads)?;
        let (q, k) = (self.rope.forward(&q, offset)?, self.rope.forward(&k, offset)?);
        let view = cache.attention_mut()?.append(&k, &v)?;
        self.o.forward(&join_heads(&attend(&q, &view, self.scale)?)?)
    }
}

struct Qwen3Block {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl Qwen3Block {
    fn load(at: &Cursor<'_>, shape: &Shape, rope: &Rope) -> Result<Self> {
        let norm = |name| RmsNorm::load(&at.at(name), shape.width, shape.epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::load(&at.at("self_attn"), shape, rope)?,
            post_norm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(&at.at("mlp"), shape.width, shape.inner, false)?,
        })
    }
}

impl Block for Qwen3Block {
    fn make_cache(&self) -> Layer {
        Layer::Kv(KvCache::new())
    }

    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        let x = add(x, self.attention.forward(&self.input_norm.forward(x)?, offset, cache)?)?;
        Ok(add(&x, self.mlp.forward(&self.post_norm.forward(&x)?)?)?)
    }
}

fn load(config: &Config, weights: &Weights) -> Result<Decoder<Qwen3Block>> {
    let text = Text::find(config, weights, false)?;
    let shape = Shape::read(&text.config)?;
    let facts = shape.facts(&text)?;
    let rope = Rope::from_config(&text.config, shape.head_size, facts.rope_base)?;
    let block = |i| Qwen3Block::load(&text.layer(i), &shape, &rope);
    let blocks = (0..shape.layers).map(block).collect::<Result<_>>()?;
    Decoder::load(facts, &text, false, blocks)
}
