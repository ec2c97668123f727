//! The language model inside a checkpoint: where wrappers put its configuration and tensors, and the
//! checks of options that families share.

use foretoken_model_base::{Config, ModelError, Result, Weights, weights::Cursor};

/// The language model inside a checkpoint that may hold more.
pub(crate) struct Text<'a> {
    /// Its configuration.
    pub(crate) config: Config,
    /// Where `embed_tokens`, `layers` and `norm` are.
    pub(crate) trunk: Cursor<'a>,
    /// Where the head is, if there is one.
    pub(crate) head: Cursor<'a>,
    /// Whether the embedding unembeds.
    pub(crate) tied: bool,
    outer: &'a Config,
}

/// Beginnings of names that belong to eyes, ears and draft heads around a language model, and endings of
/// statistics that some converters leave.
pub(crate) const VISION: &[&str] = &[
    ".input_max",
    ".input_min",
    ".output_max",
    ".output_min",
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "language_model.mtp.",
    "model.audio_tower.",
    "model.embed_audio.",
    "model.embed_vision.",
    "model.mtp.",
    "model.multi_modal_projector.",
    "model.vision_embedder.",
    "model.vision_tower.",
    "model.visual.",
    "multi_modal_projector.",
    "rotary_emb.inv_freq",
    "vision_embedder.",
    "vision_tower.",
    "visual.",
];

/// Names of trunk and head: wrapped by converters, wrapped as published, and bare.
const PLACES: [(&str, &str); 3] = [
    ("language_model.model", "language_model.lm_head"),
    ("model.language_model", "lm_head"),
    ("model", "lm_head"),
];

impl<'a> Text<'a> {
    /// Looks for the language model. A head in the file wins over the flag that ties it to the
    /// embedding; `tied` says what an absent flag means.
    pub(crate) fn find(config: &'a Config, weights: &'a Weights, tied: bool) -> Result<Self> {
        let nested = config.section("text_config")?;
        let there = |(trunk, _): &&(&str, &str)| weights.contains(&format!("{trunk}.embed_tokens.weight"));
        let (trunk, head) = PLACES.iter().find(there).unwrap_or(&PLACES[2]);
        let text = nested.unwrap_or_else(|| config.clone());
        let flag = match text.optional_flag("tie_word_embeddings")? {
            Some(flag) => flag,
            None => config.optional_flag("tie_word_embeddings")?.unwrap_or(tied),
        };
        let heads = [*head, "lm_head"].map(|name| weights.at(name));
        let stored = heads.iter().find(|at| at.at("weight").exists());
        Ok(Self {
            tied: flag && stored.is_none(),
            head: stored.unwrap_or(&heads[0]).clone(),
            trunk: weights.at(trunk),
            config: text,
            outer: config,
        })
    }

    /// V: what the configuration says, or how many rows the embedding has.
    pub(crate) fn vocabulary(&self) -> Result<usize> {
        let stated = match self.config.optional_count("vocab_size")? {
            Some(own) => Some(own),
            None => self.outer.optional_count("vocab_size")?,
        };
        let rows = self.trunk.at("embed_tokens.weight").shape().and_then(|shape| shape.first().copied());
        stated.or(rows).map_or_else(|| self.config.count("vocab_size"), Ok)
    }

    /// End tokens that any part of the configuration names.
    pub(crate) fn end_tokens(&self) -> Vec<u32> {
        self.outer.end_tokens().to_vec()
    }

    /// The place of layer `index`.
    pub(crate) fn layer(&self, index: usize) -> Cursor<'a> {
        self.trunk.at("layers").at(index)
    }

    /// The base of the rotary embedding, in whichever place it is.
    pub(crate) fn rope_base(&self) -> Result<f32> {
        let parameters = self.config.section("rope_parameters")?;
        let inner = parameters.map(|p| p.number("rope_theta")).transpose()?.flatten();
        let base = self.config.number("rope_theta")?.or(inner);
        let base = base.ok_or_else(|| refused(&self.config, "rope_theta", "a number above 0", "nothing"))?;
        above_zero(&self.config, "rope_theta", base)
    }
}

/// How a layer looks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At everything.
    Full,
    /// At the last so many tokens, itself included.
    Sliding,
    /// At a folded state.
    Linear,
}

/// The kind of each layer: `layer_types`, or every `interval`-th full and `other` between. Both must agree
/// where both are given.
pub(crate) fn kinds(config: &Config, layers: usize, every: Option<usize>, other: Kind) -> Result<Vec<Kind>> {
    let by_interval = |n: usize| -> Vec<Kind> {
        (1..=layers).map(|i| if i.is_multiple_of(n) { Kind::Full } else { other }).collect()
    };
    let named = |name: String| match (name.as_str(), other) {
        ("full_attention", _) => Ok(Kind::Full),
        ("sliding_attention", Kind::Sliding) => Ok(Kind::Sliding),
        ("linear_attention", Kind::Linear) => Ok(Kind::Linear),
        _ => {
            Err(refused(config, "layer_types", &format!("full or {other:?} attention"), format!("{name:?}")))
        }
    };
    let Some(list) = config.optional_list("layer_types")? else {
        let expected = "one name per layer";
        return every.map(by_interval).ok_or_else(|| refused(config, "layer_types", expected, "nothing"));
    };
    let kinds = list.into_iter().map(named).collect::<Result<Vec<_>>>()?;
    if kinds.len() != layers {
        return Err(refused(config, "layer_types", &format!("{layers} names"), kinds.len()));
    }
    match every {
        Some(n) if by_interval(n) != kinds => {
            let expected = format!("one full layer in {n}, as the configuration also says");
            Err(refused(config, "layer_types", &expected, format!("{kinds:?}")))
        }
        _ => Ok(kinds),
    }
}

/// Refuses a value that is not the one this program computes.
pub(crate) fn refused(config: &Config, key: &str, expected: &str, got: impl ToString) -> ModelError {
    ModelError::Config { what: config.path(key), expected: expected.into(), got: got.to_string() }
}

/// Refuses options that change the graph: each must be absent or false.
pub(crate) fn without(config: &Config, keys: &[&str]) -> Result<()> {
    match keys.iter().find_map(|key| config.flag(key).map(|on| on.then_some(*key)).transpose()) {
        Some(Ok(key)) => Err(refused(config, key, "false", "true")),
        Some(Err(error)) => Err(error),
        None => Ok(()),
    }
}

/// Refuses an activation other than those named.
pub(crate) fn activation(config: &Config, key: &str, names: &[&str]) -> Result<()> {
    match config.text(key)? {
        Some(other) if !names.contains(&other) => Err(refused(config, key, names[0], format!("{other:?}"))),
        _ => Ok(()),
    }
}

/// Query and key/value heads that can share.
pub(crate) fn grouped(config: &Config, key: &str, heads: usize, kv_heads: usize) -> Result<()> {
    match heads.is_multiple_of(kv_heads) {
        true => Ok(()),
        false => Err(refused(config, key, &format!("a divisor of {heads} query heads"), kv_heads)),
    }
}

/// A head size whose halves pair up.
pub(crate) fn even(config: &Config, key: &str, size: usize) -> Result<()> {
    match size > 0 && size.is_multiple_of(2) {
        true => Ok(()),
        false => Err(refused(config, key, "an even number", size)),
    }
}

pub(crate) fn above_zero(config: &Config, key: &str, value: f32) -> Result<f32> {
    if value > 0.0 { Ok(value) } else { Err(refused(config, key, "a number above 0", value)) }
}

/// ε of the norms.
pub(crate) fn epsilon(config: &Config) -> Result<f32> {
    match config.number("rms_norm_eps")?.unwrap_or(1e-6) {
        negative if negative < 0.0 => Err(refused(config, "rms_norm_eps", "0 or more", negative)),
        epsilon => Ok(epsilon),
    }
}
