//! Checkpoints as publishers and converters wrap them: the same model must come out.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::{collections::BTreeMap, fs};

use common::{F32_TOLERANCE, difference, greedy, host, logits, on_cpu, workspace};
use foretoken_model_base::{Batch, Hidden, LoadOptions, Model, Result, weights::ComputeType};
use foretoken_models::{
    Loaded, load,
    testkit::{hyb, hyb_arrays, hyb_config_json, tiny_window_arrays, tiny_window_config_json},
};
use mlx_rs::{Array, Dtype, ops};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

type Tensors = BTreeMap<String, Array>;

const SEED: u64 = 5;
const IDS: [u32; 24] = [3, 1, 4, 1, 5, 9, 2, 6, 63, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6];
/// Norms of the same model from two kinds of file, and states that follow from them.
const SAME: f32 = 1e-6;

fn write(config: &Value, tensors: &Tensors) -> TempDir {
    on_cpu();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let named = tensors.iter().map(|(name, array)| (name.as_str(), array));
    Array::save_safetensors(named, None, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn open(config: &Value, tensors: &Tensors) -> Result<Loaded> {
    load(write(config, tensors).path(), LoadOptions::cpu())
}

/// Configuration and tensors of a golden model.
fn golden(name: &str) -> (Value, Tensors) {
    on_cpu();
    let folder = workspace(&format!("golden/{name}"));
    let config = fs::read(folder.join("config.json")).unwrap();
    let tensors = Array::load_safetensors(folder.join("model.safetensors")).unwrap();
    (serde_json::from_slice(&config).unwrap(), tensors.into_iter().collect())
}

fn answer(model: &dyn Model) -> Vec<f32> {
    host(&logits(model, &IDS, &[19, 1, 4]))
}

fn golden_answer(name: &str) -> Vec<f32> {
    on_cpu();
    answer(load(&workspace(&format!("golden/{name}")), LoadOptions::cpu()).unwrap().model.as_ref())
}

/// The bare name of a tensor of a language model.
fn bare(name: &str) -> &str {
    name.strip_prefix("language_model.").unwrap_or(name)
}

/// The same tensors with the trunk under `trunk` and the head at `head`, and parts that are not read.
fn wrapped(tensors: &Tensors, trunk: &str, head: &str) -> Tensors {
    let rename = |(name, array): (&String, &Array)| {
        let name = bare(name);
        let name = match name.strip_prefix("model.") {
            Some(rest) => format!("{trunk}.{rest}"),
            None => name.replacen("lm_head", head, 1),
        };
        (name, array.clone())
    };
    tensors.iter().map(rename).collect()
}

fn with_extras(mut tensors: Tensors, names: &[&str]) -> Tensors {
    tensors.extend(names.iter().map(|name| ((*name).to_owned(), Array::from_slice(&[0.5f32; 4], &[4]))));
    tensors
}

/// The text configuration of a golden model, bare.
fn text_config(config: &Value) -> Map<String, Value> {
    config.get("text_config").unwrap_or(config).as_object().unwrap().clone()
}

#[test]
fn h41_language_models_are_found_under_every_wrapper() {
    let eyes = ["vision_tower.a.weight", "model.visual.b.weight", "multi_modal_projector.c", "mtp.fc.weight"];
    let more = ["model.vision_tower.d", "language_model.mtp.fc.weight", "model.embed_vision.e", "visual.f"];
    for (golden_name, family) in [("gemma3", "gemma3"), ("gemma4", "gemma4"), ("qwen3_5", "qwen3_5")] {
        let (config, tensors) = golden(golden_name);
        let want = golden_answer(golden_name);
        let nested = json!({"model_type": family, "text_config": text_config(&config), "vision_config": {}});
        for (trunk, head) in [
            ("language_model.model", "language_model.lm_head"),
            ("model.language_model", "lm_head"),
            ("language_model.model", "lm_head"),
            ("model", "lm_head"),
        ] {
            let tensors = with_extras(with_extras(wrapped(&tensors, trunk, head), &eyes), &more);
            let loaded = open(&nested, &tensors).unwrap();
            let off = difference(&answer(loaded.model.as_ref()), &want);
            assert!(off <= SAME, "{family} under {trunk}: {off}");
            assert_eq!(loaded.report.ignored.len(), eyes.len() + more.len());
        }
        // A configuration of the text model alone.
        let mut flat = text_config(&config);
        flat.insert("model_type".into(), format!("{family}_text").into());
        let loaded = open(&flat.into(), &wrapped(&tensors, "model", "lm_head")).unwrap();
        assert!(difference(&answer(loaded.model.as_ref()), &want) <= SAME, "{family}_text");
    }
}

#[test]
fn h41_overrides_under_a_wrapper_are_found() {
    // One product of 64 columns in six bits, the others in four.
    let (config, tensors) = golden("gemma3");
    let mut packed = wrapped(&tensors, "language_model.model", "language_model.lm_head");
    let six = "language_model.model.layers.1.mlp.gate_proj";
    let four = "language_model.model.layers.0.mlp.gate_proj";
    for (module, bits) in [(six, 6), (four, 4)] {
        let weight = packed.remove(&format!("{module}.weight")).unwrap();
        let (words, scales, biases) = ops::quantize(&weight, 64, bits).unwrap();
        for (part, array) in [("weight", words), ("scales", scales), ("biases", biases)] {
            packed.insert(format!("{module}.{part}"), array);
        }
    }
    let config_with = |key: &str, bits: i32| {
        let mut quantization = json!({"group_size": 64, "bits": 4});
        quantization[key] = json!({"group_size": 64, "bits": bits});
        json!({"model_type": "gemma3", "text_config": text_config(&config), "quantization": quantization})
    };
    let mut answers = Vec::new();
    for key in [six, "model.layers.1.mlp.gate_proj", "layers.1.mlp.gate_proj"] {
        answers.push(answer(open(&config_with(key, 6), &packed).unwrap().model.as_ref()));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]));
    let Err(error) = open(&config_with(six, 8), &packed) else { panic!("8 bits contradict the width") };
    let text = error.to_string();
    assert!(text.contains(six) && text.contains("8 bits") && text.contains("6 bits"), "{text}");
}

#[test]
fn end_tokens_of_the_inner_configuration_count() {
    let (config, tensors) = golden("qwen3_5");
    let mut text = text_config(&config);
    text.insert("eos_token_id".into(), json!([9, 4]));
    let nested = json!({"model_type": "qwen3_5", "text_config": text, "eos_token_id": 7});
    let loaded = open(&nested, &tensors).unwrap();
    assert_eq!(loaded.model.facts().end_tokens, [4, 7, 9]);
    assert_eq!(loaded.config.end_tokens(), [4, 7, 9]);
}

#[test]
fn a_head_in_the_file_wins_over_the_flag() {
    let (config, mut tensors) = golden("gemma3");
    let own = golden_answer("gemma3");
    // The flag says nothing, and the head in the file counts; the same when it lies.
    let mut tied = config.clone();
    tied["tie_word_embeddings"] = json!(true);
    assert_eq!(answer(open(&tied, &tensors).unwrap().model.as_ref()), own);
    // Without one the embedding unembeds.
    tensors.remove("lm_head.weight");
    let shared = answer(open(&config, &tensors).unwrap().model.as_ref());
    tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
    let copied = answer(open(&config, &tensors).unwrap().model.as_ref());
    assert!(difference(&shared, &copied) <= SAME);
    assert!(difference(&shared, &own) > F32_TOLERANCE);
}

#[test]
fn a_sparse_configuration_takes_the_familys_defaults() {
    // Published configurations of the larger Gemma 3 leave out heads, vocabulary and bases.
    let config = json!({"model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6,
        "head_dim": 8, "sliding_window": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}});
    on_cpu();
    let mut tensors = Tensors::new();
    let mut put = |name: String, shape: &[i32]| {
        tensors.insert(name, ops::full::<f32>(shape, Array::from_f32(0.01)).unwrap());
    };
    put("language_model.model.embed_tokens.weight".into(), &[48, 32]);
    put("language_model.model.norm.weight".into(), &[32]);
    for layer in 0..6 {
        let at = |part: &str| format!("language_model.model.layers.{layer}.{part}.weight");
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            put(at(&format!("{norm}_layernorm")), &[32]);
        }
        for (part, shape) in [("q", [64, 32]), ("k", [32, 32]), ("v", [32, 32]), ("o", [32, 64])] {
            put(at(&format!("self_attn.{part}_proj")), &shape);
        }
        for part in ["self_attn.q_norm", "self_attn.k_norm"] {
            put(at(part), &[8]);
        }
        for (part, shape) in [("gate", [64, 32]), ("up", [64, 32]), ("down", [32, 64])] {
            put(at(&format!("mlp.{part}_proj")), &shape);
        }
    }
    let loaded = open(&config, &tensors).unwrap();
    let facts = loaded.model.facts();
    assert_eq!((facts.heads, facts.kv_heads, facts.vocabulary), (8, 4, 48));
    assert_eq!((facts.rope_base, facts.context_length), (1e6, 131_072));
    let kinds: Vec<_> =
        loaded.model.make_caches().layers().iter().map(foretoken_cache::Layer::kind).collect();
    assert_eq!(kinds[..5], ["sliding window"; 5]);
    assert_eq!(kinds[5], "full attention");
}

#[test]
fn rotations_nested_by_kind_of_layer_are_the_same() {
    let (config, tensors) = golden("gemma3");
    let mut nested = config.as_object().unwrap().clone();
    nested.remove("rope_theta");
    nested.remove("rope_local_base_freq");
    nested.remove("sliding_window_pattern");
    nested.insert("_sliding_window_pattern".into(), json!(3));
    let kinds = ["sliding_attention", "sliding_attention", "full_attention"].repeat(2);
    nested.insert("layer_types".into(), json!(kinds));
    nested.insert(
        "rope_parameters".into(),
        json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    );
    let loaded = open(&nested.into(), &tensors).unwrap();
    assert_eq!(answer(loaded.model.as_ref()), golden_answer("gemma3"));
    assert_eq!(loaded.model.facts().rope_base, 1e6);
}

/// The toy as it would have been published: kernels [C,1,K], norms around 0.
fn published(arrays: &[(String, Array)]) -> Tensors {
    let shifted = [
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
        "model.norm.weight",
        "q_norm.weight",
        "k_norm.weight",
    ];
    let change = |(name, array): &(String, Array)| {
        let array = if name.ends_with("conv1d.weight") {
            array.swap_axes(1, 2).unwrap().contiguous().unwrap()
        } else if shifted.iter().any(|tail| name.ends_with(tail)) {
            array.subtract(Array::from_f32(1.0)).unwrap()
        } else {
            array.clone()
        };
        array.eval().unwrap();
        (name.clone(), array)
    };
    arrays.iter().map(change).collect()
}

fn hidden(model: &dyn Model) -> Hidden {
    let batch = Batch::from_ids(&IDS, 0).unwrap();
    model.forward(&batch, &mut [&mut model.make_caches()]).unwrap()
}

#[test]
fn h44_norms_are_shifted_once_whatever_draft_heads_the_file_has() {
    on_cpu();
    let arrays = hyb_arrays(SEED);
    let config: Value = serde_json::from_str(&hyb_config_json()).unwrap();
    let want = hyb(SEED).unwrap();
    let (converted, raw): (Tensors, Tensors) = (arrays.iter().cloned().collect(), published(&arrays));
    for tensors in [converted, raw] {
        for heads in [&["mtp.norm.weight", "mtp.fc.weight"][..], &[]] {
            let loaded = open(&config, &with_extras(tensors.clone(), heads)).unwrap();
            assert_eq!(loaded.report.draft.inside, !heads.is_empty());
            // Each norm shows in the states, which are bounded by the last one.
            let off =
                difference(&host(&hidden(loaded.model.as_ref()).last), &host(&hidden(want.as_ref()).last));
            assert!(off <= F32_TOLERANCE, "{off}");
            let ids = greedy(loaded.model.as_ref(), &IDS[..8], 40);
            assert_eq!(ids, greedy(want.as_ref(), &IDS[..8], 40));
        }
    }
}

#[test]
fn h44_a_kernel_of_neither_layout_is_refused() {
    on_cpu();
    let config: Value = serde_json::from_str(&hyb_config_json()).unwrap();
    let mut tensors: Tensors = hyb_arrays(SEED).into_iter().collect();
    let name = "model.layers.0.linear_attn.conv1d.weight";
    tensors.insert(name.into(), ops::zeros::<f32>(&[64, 4, 2]).unwrap());
    let Err(error) = open(&config, &tensors) else { panic!("neither layout") };
    assert!(error.to_string().contains(name) && error.to_string().contains("[64, 4, 2]"), "{error}");
    // Nor may two layers disagree.
    let mut tensors: Tensors = hyb_arrays(SEED).into_iter().collect();
    let second = "model.layers.2.linear_attn.conv1d.weight";
    tensors.insert(second.into(), tensors[second].swap_axes(1, 2).unwrap().contiguous().unwrap());
    let Err(error) = open(&config, &tensors) else { panic!("two layouts") };
    assert!(error.to_string().contains(second), "{error}");
}

#[test]
fn windows_and_states_matter_to_what_the_toys_say() {
    on_cpu();
    let say = |config: &str, tensors: Vec<(String, Array)>| {
        let config = serde_json::from_str(config).unwrap();
        greedy(open(&config, &tensors.into_iter().collect()).unwrap().model.as_ref(), &IDS[..8], 60)
    };
    let window = tiny_window_config_json();
    let other = window.replacen("\"sliding_window\": 8", "\"sliding_window\": 7", 1);
    assert_ne!(say(&window, tiny_window_arrays(SEED)), say(&other, tiny_window_arrays(SEED)));
    let mut forgetful = hyb_arrays(SEED);
    for (name, array) in &mut forgetful {
        if name.ends_with("A_log") {
            *array = Array::from_slice(&[4f32; 4], &[4]);
        }
    }
    assert_ne!(say(&hyb_config_json(), hyb_arrays(SEED)), say(&hyb_config_json(), forgetful));
}

/// Activations of 8 significand bits through six layers.
const HALF_TOLERANCE: f32 = 0.1;

#[test]
fn half_floats_stay_half_floats() {
    for name in ["qwen3", "gemma3", "gemma4", "qwen3_5"] {
        on_cpu();
        let options = LoadOptions { compute: ComputeType::Bf16, ..LoadOptions::cpu() };
        let loaded = load(&workspace(&format!("golden/{name}")), options).unwrap();
        let got = logits(loaded.model.as_ref(), &IDS, &[19, 1, 4]);
        assert_eq!(got.dtype(), Dtype::Bfloat16, "{name}");
        let off = difference(&host(&got), &golden_answer(name));
        println!("{name} in bfloat16: largest difference {off:.1e}");
        assert!(off <= HALF_TOLERANCE, "{name}: {off}");
    }
}
