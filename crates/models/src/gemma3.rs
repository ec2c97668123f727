//! The text model of the Gemma 3 family: sliding and full layers, four norms per block, norms stored as
//! w − 1 (layout of ml-explore/mlx-lm, `mlx_lm/models/gemma3_text.py`; names of options also from
//! huggingface/transformers, `models/gemma3/configuration_gemma3.py`).

use foretoken_cache::{KvCache, Layer, RotatingCache};
use foretoken_model_base::{
    Config, Family, ModelFacts, Result, Weights,
    nn::{Activation, Linear, Mlp, RmsNorm, Rope, attend, join_heads, split_heads},
    weights::Cursor,
};
use mlx_rs::{Array, ops::add};

use crate::{
    decoder::{Block, Decoder},
    text::{Kind, Text, VISION, above_zero, activation, epsilon, even, grouped, kinds, refused, without},
};

/// The text model with vision around it.
pub(crate) const FAMILY: Family = Family {
    name: "gemma3",
    ignorable: VISION,
    build: |config, weights| Ok(Box::new(load(config, weights)?)),
    gguf: None,
};

/// The text model alone.
pub(crate) const TEXT_FAMILY: Family = Family { name: "gemma3_text", ..FAMILY };

/// Facts of `config.json` that shape the network. Published configurations leave out what equals the
/// family's defaults.
struct Shape {
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    epsilon: f32,
    bias: bool,
    scale: f32,
    window: usize,
    kinds: Vec<Kind>,
}

impl Shape {
    fn read(config: &Config) -> Result<Self> {
        let or = |key, default| config.optional_count(key).map(|own| own.unwrap_or(default));
        let scalar = config.number("query_pre_attn_scalar")?.unwrap_or(256.0);
        let shape = Self {
            width: config.count("hidden_size")?,
            inner: config.count("intermediate_size")?,
            heads: or("num_attention_heads", 8)?,
            kv_heads: or("num_key_value_heads", 4)?,
            head_size: or("head_dim", 256)?,
            epsilon: epsilon(config)?,
            bias: config.flag("attention_bias")?,
            scale: above_zero(config, "query_pre_attn_scalar", scalar)?.sqrt().recip(),
            window: config.count("sliding_window")?,
            kinds: Self::kinds(config)?,
        };
        grouped(config, "num_key_value_heads", shape.heads, shape.kv_heads)?;
        even(config, "head_dim", shape.head_size)?;
        activation(config, "hidden_activation", GELU)?;
        without(config, &["use_bidirectional_attention"])?;
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = config.number(key)? {
                return Err(refused(config, key, "null", cap));
            }
        }
        Ok(shape)
    }

    /// Every sixth layer is full unless the configuration says otherwise.
    fn kinds(config: &Config) -> Result<Vec<Kind>> {
        let layers = config.count("num_hidden_layers")?;
        let pattern = match config.optional_count("sliding_window_pattern")? {
            Some(own) => Some(own),
            None => config.optional_count("_sliding_window_pattern")?,
        };
        let listed = config.optional_list("layer_types")?.is_some();
        kinds(config, layers, pattern.or((!listed).then_some(6)), Kind::Sliding)
    }

    fn facts(&self, text: &Text<'_>, rope_base: f32) -> Result<ModelFacts> {
        Ok(ModelFacts {
            family: FAMILY.name,
            vocabulary: text.vocabulary()?,
            context_length: text.config.optional_count("max_position_embeddings")?.unwrap_or(131_072),
            layers: self.kinds.len(),
            width: self.width,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            norm_epsilon: self.epsilon,
            rope_base,
            end_tokens: text.end_tokens(),
        })
    }
}

/// Names of the approximated GELU.
const GELU: &[&str] = &["gelu_pytorch_tanh", "gelu_new", "gelu_fast"];

/// Rotations of full and of sliding layers. Newer configurations nest them by kind of layer.
struct Ropes {
    full: Rope,
    full_base: f32,
    sliding: Rope,
}

impl Ropes {
    fn read(config: &Config, size: usize) -> Result<Self> {
        let nested = config.section("rope_parameters")?;
        let section = |key: &str| nested.as_ref().map(|n| n.section(key)).transpose().map(Option::flatten);
        let (full, sliding) = (section("full_attention")?, section("sliding_attention")?);
        let base = |own: &Option<Config>, key: &str, default: f32| -> Result<f32> {
            let inner = own.as_ref().map(|s| s.number("rope_theta")).transpose()?.flatten();
            above_zero(config, key, inner.or(config.number(key)?).unwrap_or(default))
        };
        let full_base = base(&full, "rope_theta", 1_000_000.0)?;
        let sliding_base = base(&sliding, "rope_local_base_freq", 10_000.0)?;
        Ok(Self {
            full: match &full {
                Some(own) => Rope::from_scaling(own, size, full_base)?,
                None => Rope::from_config(config, size, full_base)?,
            },
            full_base,
            sliding: match &sliding {
                Some(own) => Rope::from_scaling(own, size, sliding_base)?,
                None => Rope::new(size, sliding_base),
            },
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
            q_norm: RmsNorm::load_shifted(&at.at("q_norm"), size, shape.epsilon)?,
            k_norm: RmsNorm::load_shifted(&at.at("k_norm"), size, shape.epsilon)?,
            rope: rope.clone(),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            scale: shape.scale,
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

struct Gemma3Block {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    pre_mlp_norm: RmsNorm,
    mlp: Mlp,
    post_mlp_norm: RmsNorm,
    /// `None` in full layers.
    window: Option<usize>,
}

impl Gemma3Block {
    fn load(at: &Cursor<'_>, shape: &Shape, ropes: &Ropes, kind: Kind) -> Result<Self> {
        let norm = |name| RmsNorm::load_shifted(&at.at(name), shape.width, shape.epsilon);
        let full = kind == Kind::Full;
        let rope = if full { &ropes.full } else { &ropes.sliding };
        let mlp = Mlp::load(&at.at("mlp"), shape.width, shape.inner, false)?;
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::load(&at.at("self_attn"), shape, rope)?,
            post_attention_norm: norm("post_attention_layernorm")?,
            pre_mlp_norm: norm("pre_feedforward_layernorm")?,
            mlp: mlp.activated(Activation::GeluTanh),
            post_mlp_norm: norm("post_feedforward_layernorm")?,
            window: (!full).then_some(shape.window),
        })
    }
}

impl Block for Gemma3Block {
    fn make_cache(&self) -> Layer {
        match self.window {
            Some(window) => Layer::Rotating(RotatingCache::new(window)),
            None => Layer::Kv(KvCache::new()),
        }
    }

    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        let attended = self.attention.forward(&self.input_norm.forward(x)?, offset, cache)?;
        let x = add(x, self.post_attention_norm.forward(&attended)?)?;
        let fed = self.mlp.forward(&self.pre_mlp_norm.forward(&x)?)?;
        Ok(add(&x, self.post_mlp_norm.forward(&fed)?)?)
    }
}

fn load(config: &Config, weights: &Weights) -> Result<Decoder<Gemma3Block>> {
    let text = Text::find(config, weights, true)?;
    let shape = Shape::read(&text.config)?;
    let ropes = Ropes::read(&text.config, shape.head_size)?;
    let facts = shape.facts(&text, ropes.full_base)?;
    let block = |(i, kind): (usize, &Kind)| Gemma3Block::load(&text.layer(i), &shape, &ropes, *kind);
    let blocks = shape.kinds.iter().enumerate().map(block).collect::<Result<_>>()?;
    let scale = Some(rounded((shape.width as f32).sqrt()));
    Ok(Decoder { scale, ..Decoder::load(facts, &text, true, blocks)? })
}

/// The nearest bfloat16, ties to even: the family was trained with an embedding scale of that type.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn embedding_scales_are_bfloat16() {
        for (exact, want) in
            [(8.0, 8.0), (1152f32.sqrt(), 34.0), (2560f32.sqrt(), 50.5), (3840f32.sqrt(), 62.0)]
        {
            assert_eq!(rounded(exact), want);
        }
    }
}
