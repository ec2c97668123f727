//! What the integration tests share: files of the repository, random heads, a way to decode.

#![allow(dead_code)] // Each test binary uses a part of this.

use std::{
    cell::OnceCell,
    collections::HashMap,
    path::{Path, PathBuf},
    rc::Rc,
};

use foretoken_model_base::{LoadOptions, Model, ModelFacts, Weights};
use foretoken_sample::SplitMix64;
use foretoken_speculate::{
    Drafter,
    testkit::{self, Played, Request},
};
use mlx_rs::Array;

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    let full = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    assert!(full.exists(), "{path} is missing: run `cargo xtask model`");
    full
}

thread_local! {
    static SMOLLM2: OnceCell<Rc<dyn Model>> = const { OnceCell::new() };
}

/// The model that the shipped heads were trained for. Tests of one thread share it: it is immutable.
pub(crate) fn smollm2() -> Rc<dyn Model> {
    testkit::on_cpu();
    let load = || {
        let file = repository("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
        Rc::from(foretoken_models::load(&file, LoadOptions::cpu()).expect("SmolLM2 loads").model)
    };
    SMOLLM2.with(|model| Rc::clone(model.get_or_init(load)))
}

/// A small golden model: vocabulary 160.
pub(crate) fn golden_llama() -> Rc<dyn Model> {
    testkit::on_cpu();
    Rc::from(foretoken_models::load(&repository("golden/llama"), LoadOptions::cpu()).expect("loads").model)
}

/// A smaller random one: vocabulary 64.
pub(crate) fn tiny() -> Rc<dyn Model> {
    testkit::on_cpu();
    Rc::from(foretoken_models::testkit::tiny(7).expect("builds"))
}

/// A shipped head for SmolLM2: `single` or `seq`.
pub(crate) fn shipped(style: &str, model: &dyn Model) -> Rc<dyn Drafter> {
    let file = repository(&format!("models/smollm2-135m-mtp/mtp-{style}.safetensors"));
    foretoken_draft_mtp::load(&file, model).expect("the head fits")
}

/// The two styles.
pub(crate) const STYLES: [&str; 2] = ["single", "seq"];

/// A drafter with random weights for any target.
pub(crate) fn random_drafter(style: &str, model: &dyn Model, seed: u64) -> Rc<dyn Drafter> {
    let weights = Weights::from_arrays(random_head(style, model.facts(), seed), LoadOptions::cpu());
    foretoken_draft_mtp::drafter(weights, model).expect("the head fits")
}

/// Tensors of a head with random weights; every fifth target id is outside its vocabulary.
pub(crate) fn random_head(style: &str, facts: &ModelFacts, seed: u64) -> Vec<(String, Array)> {
    let mut make = Maker { random: SplitMix64::new(seed), tensors: Vec::new() };
    let (width, queries, inner) = (facts.width, facts.heads * facts.head_size, 48);
    let layers = if style == "single" { 2 } else { 1 };
    if style == "single" {
        make.tensor("pre_projection.weight", &[width, 2 * width]);
        make.tensor("post_projection.weight", &[width, width]);
    } else {
        make.tensor("fc.weight", &[width, 2 * width]);
        make.tensor("pre_fc_norm_embedding.weight", &[width]);
        make.tensor("pre_fc_norm_hidden.weight", &[width]);
    }
    make.tensor("norm.weight", &[width]);
    for i in 0..layers {
        let at = |name: &str| format!("layers.{i}.{name}.weight");
        make.tensor(&at("input_layernorm"), &[width]);
        make.tensor(&at("post_attention_layernorm"), &[width]);
        make.tensor(&at("self_attn.q_proj"), &[queries, width]);
        make.tensor(&at("self_attn.o_proj"), &[width, queries]);
        make.tensor(&at("mlp.gate_proj"), &[inner, width]);
        make.tensor(&at("mlp.up_proj"), &[inner, width]);
        make.tensor(&at("mlp.down_proj"), &[width, inner]);
        if style == "single" {
            make.tensor(&at("self_attn.q_norm"), &[facts.head_size]);
            make.tensor(&at("pre_feedforward_layernorm"), &[width]);
            make.tensor(&at("post_feedforward_layernorm"), &[width]);
        } else {
            make.tensor(&at("self_attn.k_proj"), &[facts.kv_heads * facts.head_size, width]);
            make.tensor(&at("self_attn.v_proj"), &[facts.kv_heads * facts.head_size, width]);
        }
    }
    let ids: Vec<i32> = (0..facts.vocabulary as i32).filter(|id| id % 5 != 4).collect();
    make.tensors.push(("draft_token_ids".into(), Array::from_slice(&ids, &[ids.len() as i32])));
    make.tensors
}

struct Maker {
    random: SplitMix64,
    tensors: Vec<(String, Array)>,
}

impl Maker {
    /// Matrices with a variance of 1/columns, vectors near 1.
    fn tensor(&mut self, name: &str, shape: &[usize]) {
        let size = shape.iter().product();
        let uniform = |r: &mut SplitMix64| (r.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        let (centre, spread) = match shape {
            [_, columns] => (0.0, (3.0 / *columns as f32).sqrt()),
            _ => (1.0, 0.2),
        };
        let values: Vec<f32> = (0..size).map(|_| centre + spread * uniform(&mut self.random)).collect();
        let shape: Vec<i32> = shape.iter().map(|&d| d as i32).collect();
        self.tensors.push((name.into(), Array::from_slice(&values, &shape)));
    }
}

/// Plays a request to its end and fails if it did not end well.
pub(crate) fn play(model: &Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, request: &Request) -> Played {
    let played = testkit::play(model.clone(), drafter, request).expect("the request is legal");
    assert!(played.error.is_none(), "{:?}", played.error);
    let ended = played.runs.iter().find_map(|run| run.speculation_ended.as_deref());
    assert_eq!(ended, None, "speculation ended");
    played
}

/// One chat of the recorded trace.
pub(crate) struct Trace {
    pub(crate) prompt: Vec<u32>,
    pub(crate) plain: Vec<u32>,
    rounds: HashMap<&'static str, Vec<(usize, usize)>>,
}

impl Trace {
    /// Tokens that the recording stopped at.
    pub(crate) const LIMIT: usize = 128;
    /// The constant depth of the recording.
    pub(crate) const DEPTH: usize = 4;
    /// Tokens that end an answer of SmolLM2.
    pub(crate) const ENDS: [u32; 2] = [0, 2];

    /// All four chats.
    pub(crate) fn all() -> Vec<Self> {
        let text = std::fs::read_to_string(repository("golden/smollm2-greedy-trace.json")).expect("readable");
        let chats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        chats.as_array().expect("a list of chats").iter().map(Self::read).collect()
    }

    /// The whole chat, greedy; depth 0 decodes plainly.
    pub(crate) fn request(&self, depth: usize) -> Request {
        Request { ends: Self::ENDS.to_vec(), ..Request::greedy(&self.prompt, Self::LIMIT, depth) }
    }

    /// The recorded rounds: drafted and accepted.
    pub(crate) fn rounds(&self, style: &str) -> &[(usize, usize)] {
        &self.rounds[style]
    }

    fn read(chat: &serde_json::Value) -> Self {
        let number = |value: &serde_json::Value| value.as_u64().expect("a number") as usize;
        let list = |value: &serde_json::Value| -> Vec<usize> {
            value.as_array().expect("a list").iter().map(number).collect()
        };
        let ids = |key: &str| list(&chat[key]).into_iter().map(|id| id as u32).collect();
        let rounds = |style: &'static str| {
            let rounds = chat[style]["rounds"].as_array().expect("rounds").iter();
            (style, rounds.map(|round| (number(&round[0]), number(&round[1]))).collect())
        };
        Self { prompt: ids("prompt_ids"), plain: ids("plain"), rounds: STYLES.map(rounds).into() }
    }
}
