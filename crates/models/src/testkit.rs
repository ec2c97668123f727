//! Small random models for tests of other crates.

mod kinds;

use foretoken_model_base::{Config, LoadOptions, Model, Result, Weights};
use mlx_rs::Array;

use crate::llama;

pub use kinds::{
    HYB_KERNEL, TINY_WINDOW, hyb, hyb_arrays, hyb_config_json, tiny_window, tiny_window_arrays,
    tiny_window_config_json,
};

/// Widths of [`tiny`]: model, heads, key/value heads, head size, feed-forward.
const WIDTH: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_SIZE: usize = 8;
const INNER: usize = 64;

/// The vocabulary of [`tiny`].
pub const TINY_VOCABULARY: usize = 64;
/// The layers of [`tiny`].
pub const TINY_LAYERS: usize = 4;
/// The context length of [`tiny`].
pub const TINY_CONTEXT: usize = 512;

/// A Llama of four layers, width 32 and vocabulary 64 with random float32 weights, built by the same
/// code as any checkpoint. A seed gives the same model everywhere.
pub fn tiny(seed: u64) -> Result<Box<dyn Model>> {
    let weights = Weights::from_arrays(tiny_arrays(seed), LoadOptions::cpu());
    let model = (llama::FAMILY.build)(&tiny_config()?, &weights)?;
    weights.finish(&[])?;
    Ok(model)
}

/// The configuration of [`tiny`].
pub fn tiny_config() -> Result<Config> {
    Config::parse(&tiny_config_json())
}

/// The text of a `config.json` for [`tiny`].
pub fn tiny_config_json() -> String {
    format!(
        r#"{{"model_type": "llama", "hidden_size": {WIDTH}, "intermediate_size": {INNER},
            "num_hidden_layers": {TINY_LAYERS}, "num_attention_heads": {HEADS},
            "num_key_value_heads": {KV_HEADS}, "head_dim": {HEAD_SIZE}, "rms_norm_eps": 1e-5,
            "vocab_size": {TINY_VOCABULARY}, "max_position_embeddings": {TINY_CONTEXT},
            "rope_theta": 10000.0, "tie_word_embeddings": true}}"#
    )
}

/// The tensors of [`tiny`] under the names of a checkpoint.
///
/// # Shapes
/// As a Llama checkpoint stores them: projections `[out,in]`, norms `[E]`.
pub fn tiny_arrays(seed: u64) -> Vec<(String, Array)> {
    let mut random = Random(seed);
    let mut out = vec![
        matrix("model.embed_tokens", TINY_VOCABULARY, WIDTH, &mut random),
        norm("model.norm", &mut random),
    ];
    let (inner, kv) = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE);
    for layer in 0..TINY_LAYERS {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        out.push(norm(&at("input_layernorm"), &mut random));
        out.push(norm(&at("post_attention_layernorm"), &mut random));
        for (part, rows, columns) in [
            ("self_attn.q_proj", inner, WIDTH),
            ("self_attn.k_proj", kv, WIDTH),
            ("self_attn.v_proj", kv, WIDTH),
            ("self_attn.o_proj", WIDTH, inner),
            ("mlp.gate_proj", INNER, WIDTH),
            ("mlp.up_proj", INNER, WIDTH),
            ("mlp.down_proj", WIDTH, INNER),
        ] {
            out.push(matrix(&at(part), rows, columns, &mut random));
        }
    }
    out
}

/// Weights with a variance of 3/columns: enough for logits that differ, little enough to stay finite.
fn matrix(module: &str, rows: usize, columns: usize, random: &mut Random) -> (String, Array) {
    let scale = 3.0 / (columns as f32).sqrt();
    let values: Vec<f32> = (0..rows * columns).map(|_| random.next() * scale).collect();
    (format!("{module}.weight"), Array::from_slice(&values, &[rows as i32, columns as i32]))
}

fn norm(module: &str, random: &mut Random) -> (String, Array) {
    let values: Vec<f32> = (0..WIDTH).map(|_| 1.0 + random.next() * 0.2).collect();
    (format!("{module}.weight"), Array::from_slice(&values, &[WIDTH as i32]))
}

/// SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators).
struct Random(u64);

impl Random {
    /// Uniform in [−1, 1).
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
