//! The text models of the Qwen3.5 family: three layers with a gated delta rule to one with gated
//! attention (layout of ml-explore/mlx-lm, `mlx_lm/models/qwen3_5.py` and `qwen3_next.py`; names of
//! options also from huggingface/transformers, `models/qwen3_5/configuration_qwen3_5.py`).

use foretoken_cache::{KvCache, Layer, RecurrentCache, RecurrentState};
use foretoken_model_base::{
    Config, Family, ModelFacts, Result, Weights,
    nn::{
        Activation, ConvLayout, Linear, Mlp, RmsNorm, Rope, ShortConv, attend, gated_delta, join_heads,
        split_heads,
    },
    weights::Cursor,
};
use mlx_rs::{
    Array, Dtype,
    ops::{add, indexing::TryIndexOp, multiply, sigmoid},
};

use crate::{
    decoder::{Block, Decoder},
    text::{Kind, Text, VISION, above_zero, activation, epsilon, grouped, kinds, refused, without},
};

/// The text model, bare or with vision around it.
pub(crate) const FAMILY: Family = Family {
    name: "qwen3_5",
    ignorable: VISION,
    build: |config, weights| Ok(Box::new(load(config, weights)?)),
    gguf: None,
};

/// The text model under its own name.
pub(crate) const TEXT_FAMILY: Family = Family { name: "qwen3_5_text", ..FAMILY };

/// Facts of `config.json` that shape the network.
struct Shape {
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    epsilon: f32,
    bias: bool,
    delta: DeltaShape,
    kinds: Vec<Kind>,
}

/// Facts of the recurrent layers.
struct DeltaShape {
    key_heads: usize,
    key_size: usize,
    value_heads: usize,
    value_size: usize,
    kernel: usize,
}

impl Shape {
    fn read(config: &Config) -> Result<Self> {
        let (width, heads) = (config.count("hidden_size")?, config.count("num_attention_heads")?);
        let shape = Self {
            width,
            inner: config.count("intermediate_size")?,
            heads,
            kv_heads: config.count("num_key_value_heads")?,
            head_size: config.optional_count("head_dim")?.unwrap_or(width / heads),
            epsilon: epsilon(config)?,
            bias: config.flag("attention_bias")?,
            delta: DeltaShape::read(config)?,
            kinds: Self::kinds(config)?,
        };
        grouped(config, "num_key_value_heads", shape.heads, shape.kv_heads)?;
        activation(config, "hidden_act", &["silu", "swish"])?;
        if config.optional_flag("attn_output_gate")? == Some(false) {
            return Err(refused(config, "attn_output_gate", "true", "false"));
        }
        if let Some(experts) = config.number("num_experts")?.filter(|n| *n != 0.0) {
            return Err(refused(config, "num_experts", "0, a dense model", experts));
        }
        without(config, &["use_sliding_window"])?;
        Ok(shape)
    }

    /// Every fourth layer is full unless the configuration says otherwise.
    fn kinds(config: &Config) -> Result<Vec<Kind>> {
        let layers = config.count("num_hidden_layers")?;
        let interval = config.optional_count("full_attention_interval")?;
        let listed = config.optional_list("layer_types")?.is_some();
        kinds(config, layers, interval.or((!listed).then_some(4)), Kind::Linear)
    }

    fn facts(&self, text: &Text<'_>) -> Result<ModelFacts> {
        Ok(ModelFacts {
            family: FAMILY.name,
            vocabulary: text.vocabulary()?,
            context_length: text.config.optional_count("max_position_embeddings")?.unwrap_or(32_768),
            layers: self.kinds.len(),
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

impl DeltaShape {
    fn read(config: &Config) -> Result<Self> {
        let shape = Self {
            key_heads: config.count("linear_num_key_heads")?,
            key_size: config.count("linear_key_head_dim")?,
            value_heads: config.count("linear_num_value_heads")?,
            value_size: config.count("linear_value_head_dim")?,
            kernel: config.count("linear_conv_kernel_dim")?,
        };
        grouped(config, "linear_num_key_heads", shape.value_heads, shape.key_heads)?;
        match shape.kernel {
            // The place of the kernel's axis tells the two kinds of checkpoint apart.
            0 | 1 => Err(refused(config, "linear_conv_kernel_dim", "2 or more", shape.kernel)),
            _ => Ok(shape),
        }
    }

    fn keys(&self) -> usize {
        self.key_heads * self.key_size
    }

    fn values(&self) -> usize {
        self.value_heads * self.value_size
    }

    /// C, what the convolution runs over: queries, keys and values.
    fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// The norms of blocks and heads, as this checkpoint stores them.
struct Norms {
    layout: ConvLayout,
    epsilon: f32,
}

impl Norms {
    /// A published checkpoint stores w − 1; a converted one has draft heads just as well.
    fn read(text: &Text<'_>, shape: &Shape) -> Result<Self> {
        let Some(first) = shape.kinds.iter().position(|kind| *kind == Kind::Linear) else {
            let expected = "at least one linear_attention layer";
            return Err(refused(&text.config, "layer_types", expected, "none"));
        };
        let conv = text.layer(first).at("linear_attn").at("conv1d");
        let layout = ConvLayout::of(&conv, shape.delta.channels(), shape.delta.kernel)?;
        Ok(Self { layout, epsilon: shape.epsilon })
    }

    fn shifted(&self) -> bool {
        self.layout == ConvLayout::Published
    }

    fn load(&self, at: &Cursor<'_>, size: usize) -> Result<RmsNorm> {
        match self.shifted() {
            true => RmsNorm::load_shifted(at, size, self.epsilon),
            false => RmsNorm::load(at, size, self.epsilon),
        }
    }
}

/// Attention whose output is gated per element; queries and gates come from one projection.
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
    size: i32,
}

impl Attention {
    fn load(at: &Cursor<'_>, shape: &Shape, norms: &Norms, rope: &Rope) -> Result<Self> {
        let (width, size, bias) = (shape.width, shape.head_size, shape.bias);
        let (inner, kv) = (shape.heads * size, shape.kv_heads * size);
        Ok(Self {
            q: Linear::load(&at.at("q_proj"), width, 2 * inner, bias)?,
            k: Linear::load(&at.at("k_proj"), width, kv, bias)?,
            v: Linear::load(&at.at("v_proj"), width, kv, bias)?,
            o: Linear::load(&at.at("o_proj"), inner, width, bias)?,
            q_norm: norms.load(&at.at("q_norm"), size)?,
            k_norm: norms.load(&at.at("k_norm"), size)?,
            rope: rope.clone(),
            heads: shape.heads as i32,
            kv_heads: shape.kv_heads as i32,
            size: size as i32,
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        // [1,H,L,2D], each head's query followed by its gate.
        let both = split_heads(&self.q.forward(x)?, self.heads)?;
        let gate = both.try_index((.., .., .., self.size..))?;
        let q = self.q_norm.forward(&both.try_index((.., .., .., ..self.size))?)?;
        let k = self.k_norm.forward(&split_heads(&self.k.forward(x)?, self.kv_heads)?)?;
        let v = split_heads(&self.v.forward(x)?, self.kv_heads)?;
        let (q, k) = (self.rope.forward(&q, offset)?, self.rope.forward(&k, offset)?);
        let view = cache.attention_mut()?.append(&k, &v)?;
        let attended = attend(&q, &view, (self.size as f32).sqrt().recip())?;
        self.o.forward(&join_heads(&multiply(attended, sigmoid(gate)?)?)?)
    }
}

/// The gated delta net: a short convolution, the delta rule, and a gated norm.
struct Delta {
    in_qkv: Linear,
    in_z: Linear,
    in_b: Linear,
    in_a: Linear,
    conv: ShortConv,
    /// `[H_v]` float32.
    rate_log: Array,
    /// `[H_v]` float32.
    bias: Array,
    norm: RmsNorm,
    out: Linear,
    shape: DeltaSizes,
}

/// [`DeltaShape`] as MLX counts.
struct DeltaSizes {
    key_heads: i32,
    key_size: i32,
    value_heads: i32,
    value_size: i32,
    kernel: i32,
}

impl Delta {
    fn load(at: &Cursor<'_>, shape: &Shape, norms: &Norms) -> Result<Self> {
        let (width, delta) = (shape.width, &shape.delta);
        let linear = |name, output| Linear::load(&at.at(name), width, output, false);
        let heads = delta.value_heads;
        Ok(Self {
            in_qkv: linear("in_proj_qkv", delta.channels())?,
            in_z: linear("in_proj_z", delta.values())?,
            in_b: linear("in_proj_b", heads)?,
            in_a: linear("in_proj_a", heads)?,
            conv: ShortConv::load(&at.at("conv1d"), delta.channels(), delta.kernel, norms.layout)?,
            rate_log: at.at("A_log").float32(&[heads])?,
            bias: at.at("dt_bias").float32(&[heads])?,
            // This norm is stored as it is in every checkpoint.
            norm: RmsNorm::load(&at.at("norm"), delta.value_size, shape.epsilon)?,
            out: Linear::load(&at.at("out_proj"), delta.values(), width, false)?,
            shape: DeltaSizes {
                key_heads: delta.key_heads as i32,
                key_size: delta.key_size as i32,
                value_heads: heads as i32,
                value_size: delta.value_size as i32,
                kernel: delta.kernel as i32,
            },
        })
    }

    /// `[1,L,E]` → `[1,L,E]`.
    fn forward(&self, x: &Array, cache: &mut RecurrentCache) -> Result<Array> {
        let length = x.dim(1);
        let qkv = self.in_qkv.forward(x)?.as_dtype(Dtype::Float32)?;
        let before = cache.state()?;
        let tail = before.tail.map_or_else(|| self.conv.silence(), Ok)?;
        let state = before.state.map_or_else(|| self.blank(), Ok)?;
        let (mixed, seen) = self.conv.forward(&tail, &qkv)?;
        let inputs = self.inputs(x, &Activation::Silu.of(&mixed)?)?;
        let stops = cache.stops(length as usize);
        let mut states = Vec::new();
        let (y, _) = gated_delta::run(&inputs, &state, |folded, state| {
            if stops.contains(&folded) {
                states.push((folded as i32, state.clone()));
            }
        })?;
        let at = |(folded, state): (i32, Array)| -> Result<RecurrentState> {
            let tail = seen.try_index((.., folded..folded + self.shape.kernel - 1, ..))?;
            Ok(RecurrentState { tail: Some(tail), state: Some(state) })
        };
        cache.advance(length as usize, states.into_iter().map(at).collect::<Result<Vec<_>>>()?)?;
        self.out.forward(&self.gated(x, &y)?)
    }

    /// What the block puts into the rule, from what the convolution made of it `[1,L,C]`.
    fn inputs(&self, x: &Array, mixed: &Array) -> Result<gated_delta::Inputs> {
        let s = &self.shape;
        let keys = s.key_heads * s.key_size;
        let part = |from: i32, to: i32, heads: i32, size: i32| -> Result<Array> {
            let rows = mixed.try_index((.., .., from..to))?;
            Ok(rows.reshape(&[1, x.dim(1), heads, size])?)
        };
        let q = part(0, keys, s.key_heads, s.key_size)?;
        let k = part(keys, 2 * keys, s.key_heads, s.key_size)?;
        let v = part(2 * keys, mixed.dim(2), s.value_heads, s.value_size)?;
        let float = |linear: &Linear| -> Result<Array> { Ok(linear.forward(x)?.as_dtype(Dtype::Float32)?) };
        Ok(gated_delta::Inputs {
            queries: gated_delta::of_length(&q, (s.key_size as f32).sqrt().recip())?,
            keys: gated_delta::of_length(&k, 1.0)?,
            values: v,
            decay: gated_delta::decay(&float(&self.in_a)?, &self.rate_log, &self.bias)?,
            rate: sigmoid(float(&self.in_b)?)?,
        })
    }

    /// The outputs, normed per head and gated by the block's own projection.
    ///
    /// `y` `[1,L,H_v,D_v]` float32 → `[1,L,H_v·D_v]` in the type of `x`.
    fn gated(&self, x: &Array, y: &Array) -> Result<Array> {
        let z = self.in_z.forward(x)?.as_dtype(Dtype::Float32)?;
        let gate = Activation::Silu.of(&z)?;
        let normed = self.norm.forward(&y.as_dtype(x.dtype())?)?.as_dtype(Dtype::Float32)?;
        let normed = normed.reshape(gate.shape())?;
        Ok(multiply(normed, gate)?.as_dtype(x.dtype())?)
    }

    fn blank(&self) -> Result<Array> {
        let s = &self.shape;
        gated_delta::blank(s.value_heads as usize, s.value_size as usize, s.key_size as usize)
    }
}

enum Mixer {
    Attention(Attention),
    Delta(Delta),
}

struct Qwen35Block {
    input_norm: RmsNorm,
    mixer: Mixer,
    post_norm: RmsNorm,
    mlp: Mlp,
}

impl Qwen35Block {
    fn load(at: &Cursor<'_>, shape: &Shape, norms: &Norms, mixer: Mixer) -> Result<Self> {
        Ok(Self {
            input_norm: norms.load(&at.at("input_layernorm"), shape.width)?,
            mixer,
            post_norm: norms.load(&at.at("post_attention_layernorm"), shape.width)?,
            mlp: Mlp::load(&at.at("mlp"), shape.width, shape.inner, false)?,
        })
    }
}

impl Block for Qwen35Block {
    fn make_cache(&self) -> Layer {
        match self.mixer {
            Mixer::Attention(_) => Layer::Kv(KvCache::new()),
            Mixer::Delta(_) => Layer::Recurrent(RecurrentCache::new()),
        }
    }

    fn forward(&self, x: &Array, offset: usize, cache: &mut Layer) -> Result<Array> {
        let normed = self.input_norm.forward(x)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(&normed, offset, cache)?,
            Mixer::Delta(delta) => delta.forward(&normed, cache.recurrent_mut()?)?,
        };
        let x = add(x, mixed)?;
        Ok(add(&x, self.mlp.forward(&self.post_norm.forward(&x)?)?)?)
    }
}

/// The rotation of a part of each head: a quarter unless the configuration says otherwise.
fn rope(config: &Config, size: usize, base: f32) -> Result<Rope> {
    let key = "partial_rotary_factor";
    let section = config.section("rope_parameters")?;
    let inner = section.as_ref().map(|s| s.number(key)).transpose()?.flatten();
    let share = inner.or(config.number(key)?).unwrap_or(0.25);
    let share = above_zero(config, key, share)?;
    Rope::partial(section.as_ref().unwrap_or(config), size, share, base)
}

fn load(config: &Config, weights: &Weights) -> Result<Decoder<Qwen35Block>> {
    let text = Text::find(config, weights, false)?;
    let shape = Shape::read(&text.config)?;
    let norms = Norms::read(&text, &shape)?;
    let facts = shape.facts(&text)?;
    let rope = rope(&text.config, shape.head_size, facts.rope_base)?;
    let block = |(i, kind): (usize, &Kind)| {
        let at = text.layer(i);
        let mixer = match kind {
            Kind::Linear => Mixer::Delta(Delta::load(&at.at("linear_attn"), &shape, &norms)?),
            _ => Mixer::Attention(Attention::load(&at.at("self_attn"), &shape, &norms, &rope)?),
        };
        Qwen35Block::load(&at, &shape, &norms, mixer)
    };
    let blocks = shape.kinds.iter().enumerate().map(block).collect::<Result<_>>()?;
    Decoder::load(facts, &text, norms.shifted(), blocks)
}
