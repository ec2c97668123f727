//! What both head styles need: telling the style, checks against the target, the parts they share.

use foretoken_model_base::{
    DraftVocabulary, MTPEmbeddingModel, Model, ModelError, ModelFacts, Result,
    nn::{Linear, Mlp, Rope},
    weights::{ComputeType, Cursor, LoadOptions, Weights},
};
use mlx_rs::{Array, Dtype};

/// The tensor that only single-position heads have.
const SINGLE_MARK: &str = "pre_projection.weight";
/// The tensor that only sequential heads have.
const SEQUENTIAL_MARK: &str = "fc.weight";
/// The target ids of the logit columns.
const DRAFT_IDS: &str = "draft_token_ids";
/// What to do about a head that cannot be used.
pub(crate) const NEXT: &str = "use a head that was trained for this target, or --draft none";

/// The two kinds of heads. Their files carry no configuration, only tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadStyle {
    /// Reads the target's caches at one fixed position; see [`SingleHead`](crate::SingleHead).
    Single,
    /// Extends a cache of its own; see [`SeqHead`](crate::SeqHead).
    Sequential,
}

impl HeadStyle {
    /// The style that the tensors' names belong to. Both at once, or neither, is an error.
    pub fn of(weights: &Weights) -> Result<Self> {
        match (weights.contains(SINGLE_MARK), weights.contains(SEQUENTIAL_MARK)) {
            (true, false) => Ok(Self::Single),
            (false, true) => Ok(Self::Sequential),
            (both, _) => Err(misfit(
                &format!("{SINGLE_MARK} or {SEQUENTIAL_MARK}"),
                "one of the two, which tells a single-position head from a sequential one",
                if both { "both" } else { "neither" },
            )),
        }
    }
}

/// How to load a head for this model: in the type of the target's embeddings, which is float32 on the
/// CPU and the half type that the target itself computes in elsewhere.
pub fn load_options(model: &dyn Model) -> Result<LoadOptions> {
    let probe = embeddings(model)?.token_embeddings(&Array::from_slice(&[0u32], &[1, 1]))?;
    let compute = if probe.dtype() == Dtype::Bfloat16 { ComputeType::Bf16 } else { ComputeType::F32 };
    Ok(LoadOptions { compute, ..LoadOptions::detect()? })
}

/// Sizes that a head takes from its target, checked to make sense together.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) epsilon: f32,
    pub(crate) rope: Rope,
}

impl Geometry {
    pub(crate) fn of(facts: &ModelFacts) -> Result<Self> {
        let ModelFacts { width, heads, kv_heads, head_size, norm_epsilon, rope_base, .. } = *facts;
        if kv_heads == 0 || head_size == 0 || heads % kv_heads != 0 {
            let got = format!("{heads} heads of size {head_size} over {kv_heads} key/value heads");
            return Err(misfit("target", "whole groups of query heads", got));
        }
        let rope = Rope::new(head_size, rope_base);
        Ok(Self { width, heads, kv_heads, head_size, epsilon: norm_epsilon, rope })
    }

    /// 1/√D, the scale of attention scores.
    pub(crate) fn scale(&self) -> f32 {
        (self.head_size as f32).sqrt().recip()
    }
}

/// The number of layers that the tensor names speak of, checked to be between 1 and the target's.
pub(crate) fn layers(weights: &Weights, facts: &ModelFacts) -> Result<usize> {
    let index = |name: &str| name.strip_prefix("layers.")?.split('.').next()?.parse::<usize>().ok();
    match weights.names().filter_map(index).max().map_or(0, |last| last.saturating_add(1)) {
        layers if (1..=facts.layers).contains(&layers) => Ok(layers),
        other => {
            let expected = format!("1 to {} layers, as many as the target has", facts.layers);
            Err(misfit("layers", expected, other))
        }
    }
}

/// The gated MLP at this place; its inner width is the head's own choice.
pub(crate) fn mlp(at: &Cursor<'_>, width: usize) -> Result<Mlp> {
    let gate = at.at("gate_proj").at("weight");
    let inner = match gate.shape() {
        Some(&[inner, _]) if inner > 0 => inner,
        Some(other) => return Err(misfit(gate.name(), format!("[M,{width}]"), format!("{other:?}"))),
        None => return Err(misfit(gate.name(), format!("[M,{width}]"), "no tensor of that name")),
    };
    Mlp::load(at, width, inner, false)
}

/// The draft vocabulary with the target's unembedding rows for it, gathered once.
#[derive(Debug)]
pub(crate) struct DraftRows {
    pub(crate) vocabulary: DraftVocabulary,
    unembedding: Linear,
}

impl DraftRows {
    pub(crate) fn load(weights: &Weights, model: &dyn Model) -> Result<Self> {
        let vocabulary = vocabulary(weights, model.facts().vocabulary)?;
        let rows = embeddings(model)?.output_rows(vocabulary.array())?; // [D,E]
        // Through a table of weights, so that the rows get the layout of every other product.
        let table = Weights::from_arrays([("rows.weight".into(), rows)], *weights.options());
        let unembedding = Linear::load(&table.at("rows"), model.facts().width, vocabulary.len(), false)?;
        Ok(Self { vocabulary, unembedding })
    }

    /// Draft logits of outs: [B,L,E] → [B,L,D].
    pub(crate) fn logits(&self, out: &Array) -> Result<Array> {
        self.unembedding.forward(out)
    }
}

fn vocabulary(weights: &Weights, target: usize) -> Result<DraftVocabulary> {
    if weights.shape(DRAFT_IDS) == Some(&[0]) {
        return Err(misfit(DRAFT_IDS, "at least one id", "none"));
    }
    let ids = weights.at(DRAFT_IDS).ids()?;
    if let Some(outside) = ids.iter().find(|&&id| id as usize >= target) {
        return Err(misfit(DRAFT_IDS, format!("ids below the target's vocabulary {target}"), outside));
    }
    DraftVocabulary::new(ids, target).map_err(|error| match error {
        ModelError::Input { expected, got, .. } => misfit(DRAFT_IDS, expected, got),
        other => other,
    })
}

pub(crate) fn misfit(what: &str, expected: impl ToString, got: impl ToString) -> ModelError {
    ModelError::Tensor { what: what.into(), expected: expected.to_string(), got: got.to_string(), next: NEXT }
}

fn embeddings(model: &dyn Model) -> Result<&dyn MTPEmbeddingModel> {
    model.mtp().ok_or_else(|| {
        misfit(
            "embeddings",
            "a target that shares its embeddings with draft heads",
            format!("family {}", model.facts().family),
        )
    })
}
