//! A tiny Llama written to files of every kind, right and wrong.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::{collections::BTreeMap, fs, path::PathBuf};

use common::{difference, host, logits, on_cpu};
use foretoken_model_base::{LoadOptions, Result, weights::ComputeType};
use foretoken_models::{
    Loaded, load,
    testkit::{TINY_VOCABULARY, tiny, tiny_arrays, tiny_config_json},
};
use mlx_rs::{Array, Dtype, ops};
use tempfile::TempDir;

/// What rounding the weights to 8 significand bits may change: thousandths per product, four layers.
const ROUNDING: f32 = 5e-2;

const SEED: u64 = 5;
const IDS: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 63];

type Tensors = BTreeMap<String, Array>;

struct Folder(TempDir);

impl Folder {
    fn new(config: &str, tensors: &Tensors) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("config.json", config);
        Array::save_safetensors(
            tensors.iter().map(|(k, v)| (k.as_str(), v)),
            None,
            folder.path("model.safetensors"),
        )
        .unwrap();
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self) -> Result<Loaded> {
        load(self.0.path(), LoadOptions::cpu())
    }
}

fn tensors(dtype: Dtype) -> Tensors {
    on_cpu();
    let cast = |(name, array): (String, Array)| (name, array.as_dtype(dtype).unwrap());
    tiny_arrays(SEED).into_iter().map(cast).collect()
}

fn config_with(extra: &str) -> String {
    tiny_config_json().replacen('{', &format!("{{{extra}, "), 1)
}

fn tiny_logits() -> Vec<f32> {
    on_cpu();
    host(&logits(tiny(SEED).unwrap().as_ref(), &IDS, &[IDS.len()]))
}

fn loaded_logits(loaded: &Loaded) -> Vec<f32> {
    host(&logits(loaded.model.as_ref(), &IDS, &[4, 1, 4]))
}

fn refused(result: Result<Loaded>, parts: &[&str]) {
    let Err(error) = result else { panic!("this must be refused") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn tiny_is_the_same_for_a_seed_and_another_for_another() {
    on_cpu();
    let of = |seed| host(&logits(tiny(seed).unwrap().as_ref(), &IDS, &[IDS.len()]));
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let facts = tiny(1).unwrap().facts().clone();
    assert_eq!((facts.layers, facts.width, facts.vocabulary), (4, 32, 64));
    let greedy = common::greedy(tiny(1).unwrap().as_ref(), &IDS, 32);
    let distinct: std::collections::BTreeSet<_> = greedy.iter().collect();
    assert!(distinct.len() > 4, "a test model must not repeat itself: {greedy:?}");
}

#[test]
fn h40_half_precision_without_a_quantization_entry_is_plain() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        // The same rounded weights in a float32 file are the reference: expansion must be exact.
        let half = tensors(dtype);
        let full = half.iter().map(|(k, v)| (k.clone(), v.as_dtype(Dtype::Float32).unwrap())).collect();
        let want = loaded_logits(&Folder::new(&tiny_config_json(), &full).load().unwrap());
        for extra in [r#""x": 0"#, r#""quantization": null"#, r#""quantization": {}"#] {
            let loaded = Folder::new(&config_with(extra), &half).load().unwrap();
            assert_eq!(loaded_logits(&loaded), want, "{dtype:?} with {extra}");
            assert_eq!((loaded.report.quantization, loaded.report.dtype), (None, Dtype::Float32));
        }
        let off = difference(&want, &tiny_logits());
        println!("{dtype:?}: rounding changes the logits by {off:.1e}");
        assert!(off > 0.0 && off <= ROUNDING, "{dtype:?}: {off}");
    }
}

#[test]
fn packed_weights_can_stay_packed() {
    let mut packed = Tensors::new();
    for (name, array) in tensors(Dtype::Float32) {
        let Some(module) = name.strip_suffix(".weight").filter(|_| array.ndim() == 2) else {
            packed.insert(name, array);
            continue;
        };
        let (weight, scales, biases) = ops::quantize(&array, 32, 8).unwrap();
        for (part, array) in [("weight", weight), ("scales", scales), ("biases", biases)] {
            packed.insert(format!("{module}.{part}"), array);
        }
    }
    let folder = Folder::new(&config_with(r#""quantization": {"group_size": 32, "bits": 8}"#), &packed);
    let expanded = folder.load().unwrap();
    assert_eq!(expanded.report.quantization, Some((32, 8)));
    let keep = LoadOptions { expand: false, compute: ComputeType::F32, ..LoadOptions::gpu() };
    let kept = load(folder.0.path(), keep).unwrap();
    let off = difference(&loaded_logits(&kept), &loaded_logits(&expanded));
    println!("packed against expanded: largest difference {off:.1e}");
    assert!(off <= common::F32_TOLERANCE);
}

#[test]
fn an_untied_head_wins_over_the_flag() {
    let mut all = tensors(Dtype::Float32);
    let head = ops::negative(&all["model.embed_tokens.weight"]).unwrap();
    all.insert("lm_head.weight".into(), head);
    let loaded = Folder::new(&tiny_config_json(), &all).load().unwrap();
    let want: Vec<f32> = tiny_logits().iter().map(|v| -v).collect();
    assert!(difference(&loaded_logits(&loaded), &want) <= common::F32_TOLERANCE);
    let ids = Array::from_slice(&[63u32, 0], &[2]);
    let mtp = loaded.model.mtp().unwrap();
    let (rows, embeddings) = (mtp.output_rows(&ids).unwrap(), mtp.token_embeddings(&ids).unwrap());
    assert_eq!((rows.shape(), embeddings.shape()), (&[2, 32][..], &[2, 32][..]));
    let negated: Vec<f32> = host(&embeddings).iter().map(|v| -v).collect();
    assert_eq!(host(&rows), negated);
    let table = host(&all["model.embed_tokens.weight"]);
    assert_eq!(host(&embeddings)[..32], table[63 * 32..]);
}

#[test]
fn a_missing_tensor_is_named() {
    let mut all = tensors(Dtype::Float32);
    all.remove("model.layers.2.mlp.down_proj.weight");
    refused(Folder::new(&tiny_config_json(), &all).load(), &["model.layers.2.mlp.down_proj.weight", "check"]);
    let mut all = tensors(Dtype::Float32);
    all.retain(|name, _| !name.starts_with("model.layers.3"));
    refused(Folder::new(&tiny_config_json(), &all).load(), &["model.layers.3.input_layernorm.weight"]);
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let mut all = tensors(Dtype::Float32);
    all.insert("model.layers.1.self_attn.k_proj.weight".into(), Array::from_slice(&[0f32; 64], &[2, 32]));
    let parts = ["model.layers.1.self_attn.k_proj.weight", "[16, 32]", "[2, 32]", "config"];
    refused(Folder::new(&tiny_config_json(), &all).load(), &parts);
}

#[test]
fn an_unused_tensor_is_an_error_unless_it_carries_nothing() {
    let mut all = tensors(Dtype::Float32);
    all.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), Array::from_slice(&[1f32], &[1]));
    let loaded = Folder::new(&tiny_config_json(), &all).load().unwrap();
    assert_eq!(loaded.report.ignored, ["model.layers.0.self_attn.rotary_emb.inv_freq"]);
    all.insert("model.layers.0.self_attn.q_proj.bias".into(), Array::from_slice(&[0f32; 32], &[32]));
    refused(Folder::new(&tiny_config_json(), &all).load(), &["q_proj.bias", "does not use"]);
}

#[test]
fn unknown_architectures_and_bad_configs_are_refused() {
    let all = tensors(Dtype::Float32);
    let with = |from: &str, to: &str| {
        let config = tiny_config_json();
        assert!(config.contains(from));
        Folder::new(&config.replacen(from, to, 1), &all).load()
    };
    refused(with(r#""llama""#, r#""mamba9""#), &["model_type", "one of: ", "llama", "mamba9"]);
    refused(with(r#""model_type": "llama","#, ""), &["model_type", "nothing"]);
    refused(with(r#""hidden_size": 32"#, r#""hidden_size": "32""#), &["hidden_size", "\"32\""]);
    refused(with(r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 3"#), &["num_key_value_heads"]);
    refused(with(r#""head_dim": 8"#, r#""head_dim": 7"#), &["head_dim", "even"]);
    refused(with(r#""num_attention_heads": 4"#, r#""num_attention_heads": 0"#), &["num_attention_heads"]);
    refused(
        with(r#""hidden_size": 32"#, r#""hidden_act": "gelu", "hidden_size": 32"#),
        &["hidden_act", "gelu"],
    );
    refused(with(r#""vocab_size": 64"#, r#""vocab_size": 65"#), &["model.embed_tokens.weight", "[65, 32]"]);
    let scaled = r#""rope_scaling": {"rope_type": "yarn"}, "vocab_size": 64"#;
    refused(with(r#""vocab_size": 64"#, scaled), &["rope_type", "yarn"]);
    let folder = Folder::new("{", &all);
    refused(folder.load(), &["config.json", "JSON"]);
    refused(load(&folder.path("absent"), LoadOptions::cpu()), &["config.json"]);
}

#[test]
fn batches_that_contradict_the_caches_are_refused() {
    use foretoken_model_base::Batch;
    on_cpu();
    let model = tiny(SEED).unwrap();
    let mut caches = model.make_caches();
    let batch = Batch::from_ids(&IDS, 3).unwrap();
    assert!(model.forward(&batch, &mut [&mut caches]).is_err(), "the caches rest at 0");
    assert!(model.forward(&batch, &mut []).is_err(), "no caches");
    let mut short = foretoken_cache::CacheSet::new(Vec::new());
    let batch = Batch::from_ids(&IDS, 0).unwrap();
    assert!(model.forward(&batch, &mut [&mut short]).is_err(), "no layers");
    assert!(model.forward(&batch, &mut [&mut caches]).is_ok());
    assert!(Batch::from_ids(&[], 0).is_err());
    assert_eq!(model.facts().vocabulary, TINY_VOCABULARY);
}
