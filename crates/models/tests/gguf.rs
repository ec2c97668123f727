//! A tiny Llama in a GGUF file: names, row order and configuration.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::collections::BTreeMap;

use common::{F32_TOLERANCE, difference, host, logits, on_cpu};
use foretoken_model_base::{LoadOptions, Result};
use foretoken_models::{
    Loaded, load,
    testkit::{tiny, tiny_arrays},
};
use mlx_rs::Array;

const SEED: u64 = 11;
const IDS: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];

/// The checkpoint's names beside those of GGUF files.
const NAMES: [(&str, &str); 12] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

enum Meta {
    U32(u32),
    F32(f32),
    Text(&'static str),
}

fn metadata() -> BTreeMap<&'static str, Meta> {
    BTreeMap::from([
        ("general.architecture", Meta::Text("llama")),
        ("llama.block_count", Meta::U32(4)),
        ("llama.context_length", Meta::U32(512)),
        ("llama.embedding_length", Meta::U32(32)),
        ("llama.feed_forward_length", Meta::U32(64)),
        ("llama.attention.head_count", Meta::U32(4)),
        ("llama.attention.head_count_kv", Meta::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("llama.rope.freq_base", Meta::F32(10_000.0)),
        ("llama.rope.dimension_count", Meta::U32(8)),
        ("tokenizer.ggml.eos_token_id", Meta::U32(7)),
        ("tokenizer.ggml.eot_token_id", Meta::U32(3)),
    ])
}

/// The rows of each head as a converter stores them: (i, i + D/2) become neighbours.
fn interleaved(array: &Array, heads: i32) -> Array {
    let (rows, columns) = (array.dim(0), array.dim(1));
    let halves = array.reshape(&[heads, 2, rows / heads / 2, columns]).unwrap();
    halves.swap_axes(1, 2).unwrap().reshape(&[rows, columns]).unwrap()
}

fn tensors() -> BTreeMap<String, Array> {
    let convert = |(name, array): (String, Array)| {
        let array = match &name {
            q if q.contains("q_proj") => interleaved(&array, 4),
            k if k.contains("k_proj") => interleaved(&array, 2),
            _ => array,
        };
        (NAMES.iter().fold(name, |name, (from, to)| name.replace(from, to)), array)
    };
    on_cpu();
    tiny_arrays(SEED).into_iter().map(convert).collect()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn file(metadata: &BTreeMap<&'static str, Meta>, tensors: &BTreeMap<String, Array>) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut out, key);
        match value {
            Meta::U32(n) => out.extend([4u32.to_le_bytes(), n.to_le_bytes()].concat()),
            Meta::F32(n) => out.extend([6u32.to_le_bytes(), n.to_le_bytes()].concat()),
            Meta::Text(t) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, t);
            }
        }
    }
    let mut data = Vec::new();
    for (name, array) in tensors {
        text(&mut out, name);
        out.extend((array.ndim() as u32).to_le_bytes());
        array.shape().iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(host(array).iter().flat_map(|v| v.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

fn open(bytes: &[u8]) -> Result<Loaded> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, bytes).unwrap();
    load(&path, LoadOptions::cpu())
}

fn refused(result: Result<Loaded>, parts: &[&str]) {
    let Err(error) = result else { panic!("this must be refused") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_gguf_file_is_the_same_model_as_its_checkpoint() {
    let loaded = open(&file(&metadata(), &tensors())).unwrap();
    let of = |model| host(&logits(model, &IDS, &[IDS.len()]));
    let off = difference(&of(loaded.model.as_ref()), &of(tiny(SEED).unwrap().as_ref()));
    println!("largest difference {off:.1e}");
    assert!(off <= F32_TOLERANCE, "{off}");
    assert_eq!(loaded.model.facts().end_tokens, [3, 7]);
    assert_eq!(loaded.gguf.unwrap().get_u32("llama.block_count"), Some(4));
}

#[test]
fn stored_rotation_factors_change_the_result() {
    let mut with = tensors();
    with.insert("rope_freqs.weight".into(), Array::from_slice(&[1f32, 1.0, 1.0, 1.0], &[4]));
    let of = |tensors: &BTreeMap<String, Array>| {
        let loaded = open(&file(&metadata(), tensors)).unwrap();
        host(&logits(loaded.model.as_ref(), &IDS, &[IDS.len()]))
    };
    let (plain, ones) = (of(&tensors()), of(&with));
    assert!(difference(&ones, &plain) <= F32_TOLERANCE);
    with.insert("rope_freqs.weight".into(), Array::from_slice(&[1f32, 2.0, 4.0, 8.0], &[4]));
    assert!(difference(&of(&with), &plain) > F32_TOLERANCE);
    with.insert("rope_freqs.weight".into(), Array::from_slice(&[1f32, 2.0, 4.0, 0.0], &[4]));
    refused(open(&file(&metadata(), &with)), &["rope_freqs.weight", "above 0"]);
}

#[test]
fn metadata_that_does_not_fit_is_refused() {
    let with = |key: &'static str, value| {
        let mut changed = metadata();
        changed.insert(key, value);
        open(&file(&changed, &tensors()))
    };
    refused(with("general.architecture", Meta::Text("mamba9")), &["one of: llama", "mamba9"]);
    refused(with("general.architecture", Meta::U32(1)), &["general.architecture"]);
    refused(with("llama.expert_count", Meta::U32(8)), &["expert_count", "8"]);
    refused(with("llama.rope.scaling.type", Meta::Text("yarn")), &["scaling.type", "yarn"]);
    refused(with("llama.rope.dimension_count", Meta::U32(4)), &["dimension_count", "4"]);
    refused(with("llama.attention.head_count", Meta::U32(0)), &["num_attention_heads"]);
    refused(with("llama.attention.head_count_kv", Meta::U32(3)), &["num_key_value_heads"]);
    refused(with("llama.block_count", Meta::U32(5)), &["model.layers.4"]);
    refused(with("llama.block_count", Meta::U32(u32::MAX)), &["num_hidden_layers"]);
    refused(with("llama.block_count", Meta::U32(3)), &["model.layers.3", "does not use"]);
    let mut without = metadata();
    without.remove("llama.embedding_length");
    refused(open(&file(&without, &tensors())), &["hidden_size", "nothing"]);
}

#[test]
fn truncated_models_are_never_half_loaded() {
    let whole = file(&metadata(), &tensors());
    for cut in [0, 3, 4, 20, 100, 1000, whole.len() / 2, whole.len() - 1] {
        assert!(open(&whole[..cut]).is_err(), "cut at {cut}");
    }
}
