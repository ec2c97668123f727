//! What the tests share: models, heads, and reads.

use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

use foretoken_cache::CacheSet;
use foretoken_draft_block::{BlockDrafter, BlockHead};
use foretoken_model_base::{
    Batch, BlockDraft, Config, DraftVocabulary, LoadOptions, Model, ModelFacts, Result, Weights,
};
use foretoken_sample::SplitMix64;
use foretoken_speculate::{
    Drafter,
    testkit::{self, Played, Request, on_cpu},
};
use mlx_rs::{Array, Dtype, ops::zeros_like};

/// The trained head and its target.
pub(crate) const HEAD: &str = "golden/llama-block";

/// A path of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    let full = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    assert!(full.exists(), "{path} is missing: run `cargo xtask model`");
    full
}

pub(crate) fn golden(name: &str) -> Rc<dyn Model> {
    on_cpu();
    let folder = repository(&format!("golden/{name}"));
    Rc::from(foretoken_models::load(&folder, LoadOptions::cpu()).unwrap().model)
}

pub(crate) fn tiny() -> Rc<dyn Model> {
    on_cpu();
    Rc::from(foretoken_models::testkit::tiny(7).unwrap())
}

/// The trained head for the golden `llama`.
pub(crate) fn trained(model: &dyn Model) -> Rc<BlockHead> {
    let folder = repository(HEAD);
    let weights = Weights::open(&folder.join("model.safetensors"), LoadOptions::cpu()).unwrap();
    Rc::new(BlockHead::load(&Config::open(&folder).unwrap(), &weights, model).unwrap())
}

pub(crate) fn drafter(head: Rc<dyn BlockDraft>) -> Rc<dyn Drafter> {
    Rc::new(BlockDrafter::new(head))
}

/// The configuration of a head with two layers, blocks of `block` and these taps.
pub(crate) fn config(facts: &ModelFacts, block: usize, taps: &[usize]) -> String {
    let ModelFacts { width, vocabulary, heads, kv_heads, head_size, .. } = facts;
    format!(
        r#"{{"model_type": "foretoken_block", "block_size": {block}, "target_layer_ids": {taps:?}, "hidden_size": {width},
            "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": {heads},
            "num_key_value_heads": {kv_heads}, "head_dim": {head_size}, "target_vocab_size": {vocabulary}}}"#
    )
}

/// The tensors of such a head, drawn at random.
pub(crate) fn tensors(facts: &ModelFacts, taps: usize, seed: u64) -> Vec<(String, Array)> {
    let ModelFacts { width, heads, kv_heads, head_size, .. } = *facts;
    let (context, queries, kv, inner) = (width * (1 + taps), heads * head_size, kv_heads * head_size, 48);
    let mut make = Maker { random: SplitMix64::new(seed), tensors: Vec::new() };
    make.tensor("mask_embedding", &[width]);
    make.tensor("context_norm.weight", &[context]);
    make.tensor("norm.weight", &[width]);
    for i in 0..2 {
        let at = |name: &str| format!("layers.{i}.{name}.weight");
        make.tensor(&at("input_layernorm"), &[width]);
        make.tensor(&at("post_attention_layernorm"), &[width]);
        for (name, rows, columns) in [
            ("self_attn.q_proj", queries, width),
            ("self_attn.k_proj", kv, width),
            ("self_attn.v_proj", kv, width),
            ("self_attn.context_k_proj", kv, context),
            ("self_attn.context_v_proj", kv, context),
            ("self_attn.o_proj", width, queries),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ] {
            make.tensor(&at(name), &[rows, columns]);
        }
    }
    make.tensors
}

/// A head with random weights.
pub(crate) fn random(model: &dyn Model, block: usize, taps: &[usize], seed: u64) -> Rc<BlockHead> {
    let facts = model.facts();
    let weights = Weights::from_arrays(tensors(facts, taps.len(), seed), LoadOptions::cpu());
    let config = Config::parse(&config(facts, block, taps)).unwrap();
    Rc::new(BlockHead::load(&config, &weights, model).unwrap())
}

struct Maker {
    random: SplitMix64,
    tensors: Vec<(String, Array)>,
}

impl Maker {
    /// Norms around 1, everything else so that products keep their size.
    fn tensor(&mut self, name: &str, shape: &[usize]) {
        let (scale, around) = match shape {
            [_, columns] => (1.7 / (*columns as f32).sqrt(), 0.0),
            _ if name.contains("norm") => (0.2, 1.0),
            _ => (1.0, 0.0),
        };
        let mut next = || (self.random.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| around + scale * next()).collect();
        let shape: Vec<i32> = shape.iter().map(|&n| n as i32).collect();
        self.tensors.push((name.into(), Array::from_slice(&values, &shape)));
    }
}

/// A head that sees nothing of the tapped states.
pub(crate) struct Zeroed(pub(crate) Rc<BlockHead>);

impl BlockDraft for Zeroed {
    fn vocabulary(&self) -> Option<&DraftVocabulary> {
        self.0.vocabulary()
    }

    fn block(&self) -> usize {
        self.0.block()
    }

    fn layers(&self) -> &[usize] {
        self.0.layers()
    }

    fn make_caches(&self) -> CacheSet {
        self.0.make_caches()
    }

    fn append(&self, embeds: &Array, taps: &Array, position: usize, own: &mut CacheSet) -> Result<()> {
        self.0.append(embeds, &zeros_like(taps)?, position, own)
    }

    fn draft_block(&self, embeds: &Array, position: usize, own: &mut CacheSet) -> Result<Array> {
        self.0.draft_block(embeds, position, own)
    }

    fn unembed(&self, last: &Array, target: &dyn Model) -> Result<Array> {
        self.0.unembed(last, target)
    }
}

/// Reads tokens into empty target caches: logits `[1,n,V]` and the states that the head taps.
pub(crate) fn read(
    model: &dyn Model,
    head: &dyn BlockDraft,
    target: &mut CacheSet,
    ids: &[u32],
) -> (Array, Array) {
    let batch = Batch::from_ids(ids, 0).unwrap();
    let (hidden, taps) = model.taps().unwrap().forward_both(&batch, &mut [target], head.layers()).unwrap();
    (model.unembed(&hidden.last).unwrap(), taps)
}

/// Embeddings `[1,n,E]`.
pub(crate) fn embeds(model: &dyn Model, ids: &[u32]) -> Array {
    model.mtp().unwrap().token_embeddings(&Array::from_slice(ids, &[1, ids.len() as i32])).unwrap()
}

pub(crate) fn host(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).unwrap().contiguous().unwrap();
    array.try_as_slice::<f32>().unwrap().to_vec()
}

/// The best column of each row.
pub(crate) fn best(logits: &Array) -> Vec<u32> {
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
    host(logits).chunks(logits.dim(-1) as usize).map(best).collect()
}

/// max|a−b| / max|b|.
pub(crate) fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "as many values");
    assert!(got.iter().all(|v| v.is_finite()), "values are finite");
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0f32, |m, v| m.max(v.abs()));
    largest(&mut got.iter().zip(want).map(|(a, b)| a - b)) / largest(&mut want.iter().copied())
}

/// Plays a request that must neither fail nor lose its drafter.
pub(crate) fn play(model: &Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, asked: &Request) -> Played {
    let played = testkit::play(model.clone(), drafter, asked).unwrap();
    assert!(played.error.is_none(), "{:?}", played.error);
    assert_eq!(played.runs.iter().find_map(|run| run.speculation_ended.as_deref()), None);
    played
}
