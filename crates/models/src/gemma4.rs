//! The dense text models of the Gemma 4 family: sliding and full layers with head sizes of their own,
//! norms on queries, keys and values, proportional rotation in full layers, bounded logits (layout of
//! ml-explore/mlx-lm, `mlx_lm/models/gemma4_text.py`; defaults from huggingface/transformers,
//! `models/gemma4/configuration_gemma4.py`).

use foretoken_cache::{KvCache, Layer, RotatingCache};
use foretoken_model_base::{
    Config, Family, ModelFacts, Result, Weights,
    nn::{Activation, Linear, Mlp, RmsNorm, Rope, attend, join_heads, split_heads},
    weights::Cursor,
};
use mlx_rs::{
    Array,
    ops::{add, multiply},
};

use crate::{
    decoder::{Block, Decoder},
    text::{Kind, Text, VISION, above_zero, activation, epsilon, even, grouped, kinds, refused, without},
};

/// The text model with vision and audio around it.
pub(crate) const FAMILY: Family = Family {
    name: "gemma4",
    ignorable: VISION,
    build: |config, weights| Ok(Box::new(load(config, weights)?)),
    gguf: None,
};

/// The text model alone.
pub(crate) const TEXT_FAMILY: Family = Family { name: "gemma4_text", ..FAMILY };

/// Facts of `config.json` that shape the network.
struct Shape {
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    /// Head size of full layers.
    full_size: usize,
    /// Key/value heads of full layers.
    full_kv_heads: usize,
    /// Whether values of full layers are their keys before norm and rotation.
    values_are_keys: bool,
    epsilon: f32,
    bias: bool,
    window: usize,
    kinds: Vec<Kind>,
}

impl Shape {
    fn read(config: &Config) -> Result<Self> {
        refuse_variants(config)?;
        let kv_heads = config.count("num_key_value_heads")?;
        let values_are_keys = config.flag("attention_k_eq_v")?;
        let own_kv_heads = config.optional_count("num_global_key_value_heads")?;
        let shape = Self {
            width: config.count("hidden_size")?,
            inner: config.count("intermediate_size")?,
            heads: config.count("num_attention_heads")?,
            kv_heads,
            head_size: config.count("head_dim")?,
            full_size: config.optional_count("global_head_dim")?.unwrap_or(512),
            full_kv_heads: own_kv_heads.filter(|_| values_are_keys).unwrap_or(kv_heads),
            values_are_keys,
            epsilon: epsilon(config)?,
            bias: config.flag("attention_bias")?,
            window: config.count("sliding_window")?,
            kinds: kinds(config, config.count("num_hidden_layers")?, None, Kind::Sliding)?,
        };
        grouped(config, "num_key_value_heads", shape.heads, shape.kv_heads)?;
        grouped(config, "num_global_key_value_heads", shape.heads, shape.full_kv_heads)?;
        even(config, "head_dim", shape.head_size)?;
        even(config, "global_head_dim", shape.full_size)?;
        match shape.kinds.last() {
            Some(Kind::Full) => Ok(shape),
            // The reference forces it, against the configuration.
            _ => Err(refused(config, "layer_types", "the last layer to be full_attention", "another kind")),
        }
    }

    /// Head size and key/value heads of a layer.
    fn heads_of(&self, kind: Kind) -> (usize, usize) {
        match kind {
            Kind::Full => (self.full_size, self.full_kv_heads),
            _ => (self.head_size, self.kv_heads),
        }
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

/// Refuses the parts of other members of the family.
fn refuse_variants(config: &Config) -> Result<()> {
    without(config, &["enable_moe_block"])?;
    activation(config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    // 256 in the small members, also where the key is left out.
    match config.number("hidden_size_per_layer_input")? {
        Some(0.0) => {}
        Some(size) => return Err(refused(config, "hidden_size_per_layer_input", "0", size)),
        None => return Err(refused(config, "hidden_size_per_layer_input", "0", "nothing, which means 256")),
    }
    if let Some(shared) = config.number("num_kv_shared_layers")?.filter(|n| *n != 0.0) {
        return Err(refused(config, "num_kv_shared_layers", "0", shared));
    }
    if config.section("per_layer_config")?.is_some() {
        return Err(refused(config, "per_layer_config", "nothing", "an object"));
    }
    // Vision tokens alone look ahead under "vision", and there are none.
    match config.text("use_bidirectional_attention")? {
        None | Some("vision") => Ok(()),
        Some(other) => {
            Err(refused(config, "use_bidirectional_attention", "null or vision", format!("{other:?}")))
        }
    }
}

/// The rotation of one kind of layer, and its base.
fn rope(config: &Config, kind: Kind, size: usize) -> Result<(Rope, f32)> {
    let (key, base) = match kind {
        Kind::Full => ("full_attention", 1_000_000.0),
        _ => ("sliding_attention", 10_000.0),
    };
    let section = match config.section("rope_parameters")? {
        Some(all) => all.section(key)?,
        // Without the section a quarter of full heads turns.
        None if kind == Kind::Full => {
            return Ok((Rope::proportional(size, size / 4 / 2 * 2, base, 1.0), base));
        }
        None => None,
    };
    let Some(section) = section else { return Ok((Rope::new(size, base), base)) };
    let base = above_zero(&section, "rope_theta", section.number("rope_theta")?.unwrap_or(10_000.0))?;
    Ok((Rope::from_scaling(&section, size, base)?, base))
}

struct Attention {
    q: Linear,
    k: Linear,
    /// `None` where values are keys before norm and rotation.
    v: Option<Linear>,
    o: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    v_norm: RmsNorm,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
}

impl Attention {
    fn load(at: &Cursor<'_>, shape: &Shape, kind: Kind, rope: &Rope) -> Result<Self> {
        let (width, bias, epsilon) = (shape.width, shape.bias, shape.epsilon);
        let (size, kv_heads) = shape.heads_of(kind);
        let (inner, kv) = (shape.heads * size, kv_heads * size);
        let own_values = !(shape.values_are_keys && kind == Kind::Full);
        let v = || Linear::load(&at.at("v_proj"), width, kv, bias);
        Ok(Self {
            q: Linear::load(&at.at("q_proj"), width, inner, bias)?,
            k: Linear::load(&at.at("k_proj"), width, kv, bias)?,
            v: if own_values { Some(v()?) } else { None },
            o: Linear::load(&at.at("o_proj"), inner, width, bias)?,
            q_norm: RmsNorm::load(&at.at("q_norm"), size, epsilon)?,
            k_norm: RmsNorm::load(&at.at("k_norm"), size, epsilon)?,
            v_norm: RmsNorm::unscaled(epsilon),
            rope: rope.clone(),
            heads: shape.heads as i32,
            kv_heads: kv_heads as i32,
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        let q = self.q_norm.forward(&split_heads(&self.q.forward(x)?, self.heads)?)?;
        let k = split_heads(&self.k.forward(x)?, self.kv_heads)?;
        let v = match &self.v {
            Some(v) => self.v_norm.forward(&split_heads(&v.forward(x)?, self.kv_heads)?)?,
            None => self.v_norm.forward(&k)?,
        };
        let k = self.k_norm.forward(&k)?;
        let (q, k) = (self.rope.forward(&q, offset)?, self.rope.forward(&k, offset)?);
        let view = cache.attention_mut()?.append(&k, &v)?;
        // Normed queries and keys need no further scale.
        self.o.forward(&join_heads(&attend(&q, &view, 1.0)?)?)
    }
}

struct Gemma4Block {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    pre_mlp_norm: RmsNorm,
    mlp: Mlp,
    post_mlp_norm: RmsNorm,
    /// Multiplies what the block returns `[1]`.
    scalar: Array,
    /// `None` in full layers.
    window: Option<usize>,
}

impl Gemma4Block {
    fn load(at: &Cursor<'_>, shape: &Shape, kind: Kind, rope: &Rope) -> Result<Self> {
        let norm = |name| RmsNorm::load(&at.at(name), shape.width, shape.epsilon);
        let mlp = Mlp::load(&at.at("mlp"), shape.width, shape.inner, false)?;
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::load(&at.at("self_attn"), shape, kind, rope)?,
            post_attention_norm: norm("post_attention_layernorm")?,
            pre_mlp_norm: norm("pre_feedforward_layernorm")?,
            mlp: mlp.activated(Activation::GeluTanh),
            post_mlp_norm: norm("post_feedforward_layernorm")?,
            scalar: at.at("layer_scalar").tensor(&[1])?,
            window: (kind != Kind::Full).then_some(shape.window),
        })
    }
}

impl Block for Gemma4Block {
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
        let x = add(&x, self.post_mlp_norm.forward(&fed)?)?;
        Ok(multiply(x, &self.scalar)?)
    }
}

fn load(config: &Config, weights: &Weights) -> Result<Decoder<Gemma4Block>> {
    let text = Text::find(config, weights, true)?;
    let shape = Shape::read(&text.config)?;
    let (full, full_base) = rope(&text.config, Kind::Full, shape.full_size)?;
    let (sliding, _) = rope(&text.config, Kind::Sliding, shape.head_size)?;
    let cap = text.config.number("final_logit_softcapping")?;
    let cap = cap.map(|cap| above_zero(&text.config, "final_logit_softcapping", cap)).transpose()?;
    let facts = shape.facts(&text, full_base)?;
    let block = |(i, kind): (usize, &Kind)| {
        let rope = if *kind == Kind::Full { &full } else { &sliding };
        Gemma4Block::load(&text.layer(i), &shape, *kind, rope)
    };
    let blocks = shape.kinds.iter().enumerate().map(block).collect::<Result<_>>()?;
    let scale = Some((shape.width as f32).sqrt());
    Ok(Decoder { scale, cap, ..Decoder::load(facts, &text, false, blocks)? })
}
