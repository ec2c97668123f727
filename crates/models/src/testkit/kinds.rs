//! Small random models whose layers forget: windows of eight tokens, and folded states.

use foretoken_model_base::{Config, Family, LoadOptions, Model, Result, Weights};
use mlx_rs::Array;

use super::{HEAD_SIZE, HEADS, INNER, KV_HEADS, Random, TINY_CONTEXT, TINY_LAYERS, TINY_VOCABULARY, WIDTH};
use crate::{gemma3, qwen3_5};

/// The window of [`tiny_window`].
pub const TINY_WINDOW: usize = 8;
/// Taps of the convolution of [`hyb`].
pub const HYB_KERNEL: usize = 4;

/// Heads of the recurrent layers of [`hyb`], for keys and for values, and their size.
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const STATE_SIZE: usize = 8;

/// A model like [`tiny`](super::tiny) with two window layers and two full ones, in turn.
pub fn tiny_window(seed: u64) -> Result<Box<dyn Model>> {
    build(&gemma3::TEXT_FAMILY, &tiny_window_config_json(), tiny_window_arrays(seed))
}

/// A model like [`tiny`](super::tiny) with two recurrent layers and two full ones, in turn.
pub fn hyb(seed: u64) -> Result<Box<dyn Model>> {
    build(&qwen3_5::TEXT_FAMILY, &hyb_config_json(), hyb_arrays(seed))
}

/// The text of a `config.json` for [`tiny_window`].
pub fn tiny_window_config_json() -> String {
    format!(
        r#"{{"model_type": "gemma3_text", {}, "sliding_window": {TINY_WINDOW}, "sliding_window_pattern": 2,
            "query_pre_attn_scalar": {HEAD_SIZE}, "rope_theta": 100000.0, "rope_local_base_freq": 10000.0}}"#,
        common_keys()
    )
}

/// The text of a `config.json` for [`hyb`].
pub fn hyb_config_json() -> String {
    format!(
        r#"{{"model_type": "qwen3_5_text", {}, "full_attention_interval": 2, "tie_word_embeddings": true,
            "linear_num_key_heads": {KEY_HEADS}, "linear_num_value_heads": {VALUE_HEADS},
            "linear_key_head_dim": {STATE_SIZE}, "linear_value_head_dim": {STATE_SIZE},
            "linear_conv_kernel_dim": {HYB_KERNEL},
            "rope_parameters": {{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}}}"#,
        common_keys()
    )
}

fn common_keys() -> String {
    format!(
        r#""hidden_size": {WIDTH}, "intermediate_size": {INNER}, "num_hidden_layers": {TINY_LAYERS},
            "num_attention_heads": {HEADS}, "num_key_value_heads": {KV_HEADS}, "head_dim": {HEAD_SIZE},
            "rms_norm_eps": 1e-6, "vocab_size": {TINY_VOCABULARY}, "max_position_embeddings": {TINY_CONTEXT}"#
    )
}

/// The tensors of [`tiny_window`] under the names of a checkpoint.
///
/// # Shapes
/// As a Gemma 3 checkpoint stores them: projections `[out,in]`, norms `[size]` around 0.
pub fn tiny_window_arrays(seed: u64) -> Vec<(String, Array)> {
    let mut draw = Draw::new(seed, 0.0);
    draw.matrix("model.embed_tokens", TINY_VOCABULARY, WIDTH);
    // Scaled embeddings would find themselves again in a tied head, and the model repeat one id.
    draw.matrix("lm_head", TINY_VOCABULARY, WIDTH);
    draw.norm("model.norm", WIDTH);
    for layer in 0..TINY_LAYERS {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        for norm in [
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ] {
            draw.norm(&at(norm), WIDTH);
        }
        draw.attention(&at("self_attn"), HEADS * HEAD_SIZE);
        draw.mlp(&at("mlp"));
    }
    draw.out
}

/// The tensors of [`hyb`] under the names of a converted checkpoint.
///
/// # Shapes
/// As a converted Qwen3.5 checkpoint stores them: projections `[out,in]`, norms `[size]` around 1, the
/// convolution `[C,K,1]`.
pub fn hyb_arrays(seed: u64) -> Vec<(String, Array)> {
    let mut draw = Draw::new(seed, 1.0);
    draw.matrix("model.embed_tokens", TINY_VOCABULARY, WIDTH);
    draw.norm("model.norm", WIDTH);
    for layer in 0..TINY_LAYERS {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        draw.norm(&at("input_layernorm"), WIDTH);
        draw.norm(&at("post_attention_layernorm"), WIDTH);
        match layer % 2 {
            0 => draw.delta(&at("linear_attn")),
            // Queries and gates come from one projection.
            _ => draw.attention(&at("self_attn"), 2 * HEADS * HEAD_SIZE),
        }
        draw.mlp(&at("mlp"));
    }
    draw.out
}

fn build(family: &Family, config: &str, arrays: Vec<(String, Array)>) -> Result<Box<dyn Model>> {
    let weights = Weights::from_arrays(arrays, LoadOptions::cpu());
    let model = (family.build)(&Config::parse(config)?, &weights)?;
    weights.finish(&[])?;
    Ok(model)
}

/// Draws tensors one after the other.
struct Draw {
    random: Random,
    /// What norms are drawn around.
    around: f32,
    out: Vec<(String, Array)>,
}

impl Draw {
    fn new(seed: u64, around: f32) -> Self {
        Self { random: Random(seed), around, out: Vec::new() }
    }

    fn push(&mut self, name: String, shape: &[i32], value: impl Fn(f32) -> f32) {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| value(self.random.next())).collect();
        self.out.push((name, Array::from_slice(&values, shape)));
    }

    fn matrix(&mut self, module: &str, rows: usize, columns: usize) {
        let scale = 3.0 / (columns as f32).sqrt();
        self.push(format!("{module}.weight"), &[rows as i32, columns as i32], |x| x * scale);
    }

    fn norm(&mut self, module: &str, size: usize) {
        let around = self.around;
        self.push(format!("{module}.weight"), &[size as i32], |x| around + 0.2 * x);
    }

    fn attention(&mut self, at: &str, queries: usize) {
        let kv = KV_HEADS * HEAD_SIZE;
        for (part, rows, columns) in [
            ("q_proj", queries, WIDTH),
            ("k_proj", kv, WIDTH),
            ("v_proj", kv, WIDTH),
            ("o_proj", WIDTH, HEADS * HEAD_SIZE),
        ] {
            self.matrix(&format!("{at}.{part}"), rows, columns);
        }
        self.norm(&format!("{at}.q_norm"), HEAD_SIZE);
        self.norm(&format!("{at}.k_norm"), HEAD_SIZE);
    }

    fn mlp(&mut self, at: &str) {
        for (part, rows, columns) in
            [("gate_proj", INNER, WIDTH), ("up_proj", INNER, WIDTH), ("down_proj", WIDTH, INNER)]
        {
            self.matrix(&format!("{at}.{part}"), rows, columns);
        }
    }

    fn delta(&mut self, at: &str) {
        let (keys, values) = (KEY_HEADS * STATE_SIZE, VALUE_HEADS * STATE_SIZE);
        let channels = 2 * keys + values;
        for (part, rows, columns) in [
            ("in_proj_qkv", channels, WIDTH),
            ("in_proj_z", values, WIDTH),
            ("in_proj_b", VALUE_HEADS, WIDTH),
            ("in_proj_a", VALUE_HEADS, WIDTH),
            ("out_proj", WIDTH, values),
        ] {
            self.matrix(&format!("{at}.{part}"), rows, columns);
        }
        let kernel = [channels as i32, HYB_KERNEL as i32, 1];
        self.push(format!("{at}.conv1d.weight"), &kernel, |x| x * 0.7);
        // States that fade over tens of tokens, so that a wrong one shows for long.
        self.push(format!("{at}.A_log"), &[VALUE_HEADS as i32], |x| x - 2.0);
        self.push(format!("{at}.dt_bias"), &[VALUE_HEADS as i32], |x| 0.5 * x);
        // Stored as it is in every checkpoint.
        self.push(format!("{at}.norm.weight"), &[STATE_SIZE as i32], |x| 1.0 + 0.2 * x);
    }
}
