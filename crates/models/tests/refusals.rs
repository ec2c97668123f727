//! Configurations and files that a family does not serve: each is refused by name.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::{collections::BTreeMap, fs};

use common::{on_cpu, workspace};
use foretoken_model_base::LoadOptions;
use foretoken_models::load;
use mlx_rs::Array;
use serde_json::{Value, json};

type Tensors = BTreeMap<String, Array>;

/// A golden model whose parts a test changes before it is loaded.
struct Case {
    config: Value,
    tensors: Tensors,
    nested: bool,
}

impl Case {
    fn new(name: &str) -> Self {
        on_cpu();
        let folder = workspace(&format!("golden/{name}"));
        let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        let tensors = Array::load_safetensors(folder.join("model.safetensors")).unwrap();
        let nested = config.get("text_config").is_some();
        Self { config, tensors: tensors.into_iter().collect(), nested }
    }

    fn text(&mut self) -> &mut Value {
        if self.nested { &mut self.config["text_config"] } else { &mut self.config }
    }

    fn error(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        let named = self.tensors.iter().map(|(name, array)| (name.as_str(), array));
        Array::save_safetensors(named, None, folder.path().join("model.safetensors")).unwrap();
        match load(folder.path(), LoadOptions::cpu()) {
            Ok(_) => panic!("this must be refused: {}", self.config),
            Err(error) => error.to_string(),
        }
    }
}

/// Sets one key of the text configuration; null takes it away.
fn refused(name: &str, key: &str, value: Value, parts: &[&str]) {
    let mut case = Case::new(name);
    case.text()[key] = value;
    let path = if case.nested { format!("text_config.{key}") } else { key.to_owned() };
    let text = case.error();
    let first = parts.first().copied().filter(|part| part.contains('.'));
    for part in [first.unwrap_or(&path)].iter().chain(parts) {
        assert!(text.contains(part), "{name}, {key}: {part:?} is not in: {text}");
    }
}

#[test]
fn qwen3_refuses_what_it_does_not_compute() {
    refused("qwen3", "use_sliding_window", json!(true), &["false"]);
    refused("qwen3", "layer_types", json!(["full_attention", "sliding_attention"]), &["sliding_attention"]);
    refused("qwen3", "layer_types", json!(["full_attention"]), &["4 names", "1"]);
    refused("qwen3", "hidden_act", json!("gelu"), &["silu", "gelu"]);
    refused("qwen3", "num_key_value_heads", json!(3), &["divisor", "3"]);
    refused("qwen3", "head_dim", json!(15), &["even", "15"]);
    refused("qwen3", "head_dim", Value::Null, &["nothing"]);
    refused("qwen3", "rope_theta", Value::Null, &["nothing"]);
    refused("qwen3", "rope_theta", json!(-1.0), &["above 0"]);
    refused("qwen3", "rms_norm_eps", json!(-1.0), &["0 or more"]);
    refused(
        "qwen3",
        "rope_scaling",
        json!({"rope_type": "yarn", "factor": 4.0}),
        &["rope_scaling.rope_type", "yarn"],
    );
}

#[test]
fn gemma3_refuses_what_it_does_not_compute() {
    refused("gemma3", "use_bidirectional_attention", json!(true), &["false"]);
    refused("gemma3", "final_logit_softcapping", json!(30.0), &["null", "30"]);
    refused("gemma3", "attn_logit_softcapping", json!(50.0), &["null", "50"]);
    refused("gemma3", "hidden_activation", json!("relu"), &["gelu_pytorch_tanh", "relu"]);
    refused("gemma3", "query_pre_attn_scalar", json!(0), &["above 0"]);
    refused("gemma3", "sliding_window", Value::Null, &["nothing"]);
    let contradiction = vec!["full_attention"; 6].into();
    refused("gemma3", "layer_types", contradiction, &["one full layer in 3"]);
    refused("gemma3", "layer_types", json!(["linear_attention"]), &["linear_attention"]);
}

#[test]
fn gemma4_refuses_what_it_does_not_compute() {
    refused("gemma4", "enable_moe_block", json!(true), &["false"]);
    refused("gemma4", "hidden_size_per_layer_input", json!(256), &["0", "256"]);
    refused("gemma4", "hidden_size_per_layer_input", Value::Null, &["0", "256"]);
    refused("gemma4", "num_kv_shared_layers", json!(2), &["0", "2"]);
    refused("gemma4", "per_layer_config", json!({}), &["nothing"]);
    refused("gemma4", "use_bidirectional_attention", json!("all"), &["vision", "all"]);
    refused("gemma4", "final_logit_softcapping", json!(-30.0), &["above 0"]);
    refused("gemma4", "global_head_dim", json!(31), &["even", "31"]);
    refused("gemma4", "layer_types", Value::Null, &["one name per layer"]);
    let last = vec!["sliding_attention"; 6].into();
    refused("gemma4", "layer_types", last, &["the last layer"]);
    let odd = json!({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.1}});
    refused("gemma4", "rope_parameters", odd, &["rope_parameters.full_attention.partial_rotary_factor"]);
    let unknown = json!({"sliding_attention": {"rope_type": "dynamic"}});
    refused(
        "gemma4",
        "rope_parameters",
        unknown,
        &["rope_parameters.sliding_attention.rope_type", "dynamic"],
    );
}

#[test]
fn qwen3_5_refuses_what_it_does_not_compute() {
    refused("qwen3_5", "attn_output_gate", json!(false), &["true"]);
    refused("qwen3_5", "num_experts", json!(64), &["dense", "64"]);
    refused("qwen3_5", "linear_num_key_heads", json!(3), &["divisor", "3"]);
    refused("qwen3_5", "linear_conv_kernel_dim", json!(1), &["2 or more"]);
    refused("qwen3_5", "linear_value_head_dim", Value::Null, &["nothing"]);
    refused("qwen3_5", "hidden_act", json!("relu"), &["silu", "relu"]);
    let list = ["linear_attention", "full_attention", "linear_attention", "full_attention"];
    refused("qwen3_5", "layer_types", json!(list), &["one full layer in 4"]);
    refused("qwen3_5", "layer_types", json!(["sliding_attention"]), &["sliding_attention"]);
    let share = json!({"rope_theta": 1e4, "partial_rotary_factor": 2.0});
    refused("qwen3_5", "rope_parameters", share, &["text_config.rope_parameters.partial_rotary_factor", "2"]);
}

#[test]
fn a_missing_tensor_is_named() {
    for (name, tensor) in [
        ("qwen3", "model.layers.2.self_attn.k_norm.weight"),
        ("qwen3", "model.embed_tokens.weight"),
        ("gemma3", "model.layers.1.pre_feedforward_layernorm.weight"),
        ("gemma4", "model.layers.3.layer_scalar"),
        ("qwen3_5", "language_model.model.layers.1.linear_attn.A_log"),
        ("qwen3_5", "language_model.model.layers.0.linear_attn.conv1d.weight"),
        ("qwen3_5", "language_model.model.norm.weight"),
    ] {
        let mut case = Case::new(name);
        assert!(case.tensors.remove(tensor).is_some(), "{name} has {tensor}");
        let text = case.error();
        let bare = tensor.strip_prefix("language_model.").unwrap_or(tensor);
        assert!(text.contains(bare) && text.contains("no tensor"), "{name}: {text}");
    }
}

#[test]
fn a_tensor_that_nothing_uses_is_named() {
    for name in ["qwen3", "gemma3", "gemma4", "qwen3_5"] {
        let mut case = Case::new(name);
        case.tensors.insert("model.layers.0.self_attn.extra.weight".into(), Array::from_slice(&[1f32], &[1]));
        assert!(case.error().contains("self_attn.extra.weight"), "{name}");
    }
    // Values that are keys leave no place for a projection of values.
    let mut case = Case::new("gemma4");
    case.config["attention_k_eq_v"] = json!(true);
    case.config["num_global_key_value_heads"] = Value::Null;
    assert!(case.error().contains("v_proj"));
}

#[test]
fn an_unknown_member_of_a_family_is_refused_with_the_known_names() {
    let mut case = Case::new("qwen3_5");
    case.config["model_type"] = json!("qwen3_5_moe");
    let text = case.error();
    for part in ["model_type", "qwen3_5_moe", "gemma3_text", "gemma4", "llama", "qwen3, qwen3_5"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
