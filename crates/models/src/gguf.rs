//! How GGUF files hold the families: names of tensors, and the configuration in the metadata.

use foretoken_model_base::{
    Config, GgufFamily, ModelError, Result,
    weights::{GgufFile, Renamed},
};
use serde_json::{Map, Value, json};

/// Llama, and the many models that share its graph.
pub(crate) const LLAMA: GgufFamily = GgufFamily { architecture: "llama", config, rename };

/// Names outside the blocks.
const TOP: &[(&str, &str)] = &[
    ("output.weight", "lm_head.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("token_embd.weight", "model.embed_tokens.weight"),
];

/// Modules of a block.
const BLOCK: &[(&str, &str)] = &[
    ("attn_k", "self_attn.k_proj"),
    ("attn_norm", "input_layernorm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_up", "mlp.up_proj"),
];

fn rename(config: &Config, name: &str) -> Option<Renamed> {
    let find = |table: &[(&str, &'static str)], key: &str| Some(table.iter().find(|(k, _)| *k == key)?.1);
    if let Some(name) = find(TOP, name) {
        return Some(Renamed { name: name.into(), interleaved_heads: None });
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (module, part) = rest.rsplit_once('.')?;
    // Queries and keys are stored for interleaved rotation; cached keys must be half-split, which is
    // what draft heads that read them were trained on.
    let key = match module {
        "attn_q" => Some("num_attention_heads"),
        "attn_k" => Some("num_key_value_heads"),
        _ => None,
    };
    Some(Renamed {
        name: format!("model.layers.{layer}.{}.{part}", find(BLOCK, module)?),
        interleaved_heads: key.and_then(|key| config.count(key).ok()),
    })
}

fn config(file: &GgufFile) -> Result<Config> {
    let meta = file.metadata();
    let count = |key: &str| meta.get_u64(&format!("llama.{key}"));
    let number = |key: &str| meta.get_f32(&format!("llama.{key}"));
    if let Some(experts) = count("expert_count").filter(|&n| n > 0) {
        return Err(refuse("llama.expert_count", "0, a dense model", experts));
    }
    let heads = count("attention.head_count");
    let vocabulary = file.shape("token_embd.weight").and_then(|s| s.first()).map(|&n| n as u64);
    let values = [
        ("model_type", Some(json!("llama"))),
        ("hidden_size", count("embedding_length").map(Value::from)),
        ("intermediate_size", count("feed_forward_length").map(Value::from)),
        ("num_hidden_layers", count("block_count").map(Value::from)),
        ("num_attention_heads", heads.map(Value::from)),
        ("num_key_value_heads", count("attention.head_count_kv").or(heads).map(Value::from)),
        ("head_dim", count("attention.key_length").map(Value::from)),
        ("vocab_size", vocabulary.map(Value::from)),
        ("max_position_embeddings", count("context_length").map(Value::from)),
        ("rms_norm_eps", number("attention.layer_norm_rms_epsilon").map(Value::from)),
        ("rope_theta", number("rope.freq_base").map(Value::from)),
        ("rope_scaling", scaling(file)?),
        // A head in the file wins over this flag.
        ("tie_word_embeddings", Some(json!(true))),
        ("attention_bias", Some(json!(file.shape("blk.0.attn_q.bias").is_some()))),
        ("mlp_bias", Some(json!(file.shape("blk.0.ffn_up.bias").is_some()))),
        ("eos_token_id", end_tokens(file)),
    ];
    let map: Map<_, _> = values.into_iter().filter_map(|(k, v)| Some((k.to_owned(), v?))).collect();
    let config = Config::from_json(map.into())?;
    check_rotation(file, &config)?;
    Ok(config)
}

fn end_tokens(file: &GgufFile) -> Option<Value> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let ids: Vec<u32> = keys.iter().filter_map(|key| file.metadata().get_u32(key)).collect();
    (!ids.is_empty()).then(|| json!(ids))
}

fn scaling(file: &GgufFile) -> Result<Option<Value>> {
    let meta = file.metadata();
    match meta.get_str("llama.rope.scaling.type") {
        None | Some("none") => Ok(None),
        Some("linear") => {
            let factor = meta.get_f32("llama.rope.scaling.factor").unwrap_or(1.0);
            Ok(Some(json!({"rope_type": "linear", "factor": factor})))
        }
        Some(other) => Err(refuse("llama.rope.scaling.type", "none or linear", format!("{other:?}"))),
    }
}

/// Whole heads are rotated; a part of them is another graph.
fn check_rotation(file: &GgufFile, config: &Config) -> Result<()> {
    let head = match config.optional_count("head_dim")? {
        Some(size) => size,
        None => config.count("hidden_size")? / config.count("num_attention_heads")?,
    };
    match file.metadata().get_u64("llama.rope.dimension_count") {
        Some(rotated) if rotated != head as u64 => {
            Err(refuse("llama.rope.dimension_count", &format!("the head size {head}"), rotated))
        }
        _ => Ok(()),
    }
}

fn refuse(what: &str, expected: &str, got: impl ToString) -> ModelError {
    ModelError::Config { what: what.into(), expected: expected.into(), got: got.to_string() }
}
