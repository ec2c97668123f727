//! What a head's `config.json` says, checked against the target.

use foretoken_model_base::{Config, Model, ModelError, ModelFacts, Result, nn::Rope};

use crate::load::MODEL_TYPE;

/// The largest block. A configuration that asks for more is taken for a mistake: the masks of a block cost a
/// row each, drawn or not.
pub const MAX_BLOCK: usize = 64;

/// Sizes of a head.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// N.
    pub(crate) block: usize,
    /// The tapped target layers.
    pub(crate) taps: Vec<usize>,
    pub(crate) width: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) epsilon: f32,
    pub(crate) rope: Rope,
}

impl Shape {
    pub(crate) fn read(config: &Config, model: &dyn Model) -> Result<Self> {
        let facts = model.facts();
        check_kind(config)?;
        check_target(config, model)?;
        let head_size = config.count("head_dim")?;
        let base = config.number("rope_theta")?.unwrap_or(facts.rope_base);
        let shape = Self {
            block: config.count("block_size")?,
            taps: config.indices("target_layer_ids")?,
            width: facts.width,
            inner: config.count("intermediate_size")?,
            layers: config.count("num_hidden_layers")?,
            heads: config.count("num_attention_heads")?,
            kv_heads: config.count("num_key_value_heads")?,
            head_size,
            epsilon: config.number("rms_norm_eps")?.unwrap_or(facts.norm_epsilon),
            rope: Rope::from_config(config, head_size, base)?,
        };
        shape.check(facts)?;
        match base > 0.0 {
            true => Ok(shape),
            false => refuse("rope_theta", "a number above 0", base),
        }
    }

    fn check(&self, facts: &ModelFacts) -> Result<()> {
        let layers = facts.layers;
        if self.block > MAX_BLOCK {
            return refuse("block_size", format!("at most {MAX_BLOCK}"), self.block);
        }
        if let Some(layer) = self.taps.iter().find(|&&layer| layer >= layers) {
            return refuse("target_layer_ids", format!("layers of the target, 0 to {}", layers - 1), layer);
        }
        // More of them than the target has say some of it twice.
        if self.taps.is_empty() || self.taps.len() > layers {
            return refuse("target_layer_ids", format!("1 to {layers} layers"), self.taps.len());
        }
        if self.layers > layers {
            return refuse("num_hidden_layers", format!("at most the target's {layers}"), self.layers);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of num_attention_heads {}", self.heads);
            return refuse("num_key_value_heads", expected, self.kv_heads);
        }
        if !self.head_size.is_multiple_of(2) {
            return refuse("head_dim", "an even number", self.head_size);
        }
        match self.epsilon >= 0.0 {
            true => Ok(()),
            false => refuse("rms_norm_eps", "0 or more", self.epsilon),
        }
    }

    /// E·(1 + t), the size of what is known of a slot.
    pub(crate) fn context(&self) -> usize {
        self.width * (1 + self.taps.len())
    }

    /// 1/√D, the scale of attention scores.
    pub(crate) fn scale(&self) -> f32 {
        (self.head_size as f32).sqrt().recip()
    }
}

fn check_kind(config: &Config) -> Result<()> {
    match config.text("model_type")? {
        Some(MODEL_TYPE) => Ok(()),
        other => refuse("model_type", MODEL_TYPE, other.unwrap_or("nothing")),
    }
}

fn check_target(config: &Config, model: &dyn Model) -> Result<()> {
    let facts = model.facts();
    for (key, target) in [("hidden_size", facts.width), ("target_vocab_size", facts.vocabulary)] {
        let got = config.count(key)?;
        if got != target {
            return refuse(key, format!("{target}, the target's"), got);
        }
    }
    match (model.mtp(), model.taps()) {
        (Some(_), Some(_)) => Ok(()),
        _ => refuse("target_layer_ids", "a target that shares its embeddings and inner states", facts.family),
    }
}

fn refuse<T>(what: &str, expected: impl ToString, got: impl ToString) -> Result<T> {
    let (expected, got) = (expected.to_string(), got.to_string());
    Err(ModelError::Config { what: what.into(), expected, got })
}
