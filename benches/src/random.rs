//! Random models with windows and folded states, large enough that arithmetic and not dispatch is measured:
//! the test models with every width, head and state sixteen times as large (4 layers, width 512, head and
//! state size 128, vocabulary 1,024), and windows of 512 keys.

use std::rc::Rc;

use anyhow::{Context, Result};
use foretoken_model_base::{Config, LoadOptions, Model, Weights, find_family};
use foretoken_models::{
    FAMILIES,
    testkit::{hyb_arrays, hyb_config_json, tiny_window_arrays, tiny_window_config_json},
};
use mlx_rs::{Array, random};
use serde_json::{Value, json};

/// How much larger the benchmarks' models are than the tests'.
const SCALE: i32 = 16;
/// The window, in keys.
const WINDOW: usize = 512;
/// Longer than any benchmark's sequence.
const CONTEXT: usize = 8192;
/// The configuration's sizes that grow.
const SIZES: [&str; 7] = [
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
    "query_pre_attn_scalar",
    "linear_key_head_dim",
    "linear_value_head_dim",
];

/// Two window layers and two full ones, in turn.
pub fn random_window() -> Result<Rc<dyn Model>> {
    build(&tiny_window_config_json(), tiny_window_arrays(7), 0.0)
}

/// Two recurrent layers and two full ones, in turn.
pub fn random_hybrid() -> Result<Rc<dyn Model>> {
    build(&hyb_config_json(), hyb_arrays(7), 1.0)
}

fn build(config: &str, arrays: Vec<(String, Array)>, norms_around: f32) -> Result<Rc<dyn Model>> {
    mlx_rs::Device::try_default()?;
    let mut config: Value = serde_json::from_str(config)?;
    for key in SIZES {
        if let Some(size) = config[key].as_i64() {
            config[key] = json!(size * i64::from(SCALE));
        }
    }
    config["max_position_embeddings"] = json!(CONTEXT);
    if config.get("sliding_window").is_some() {
        config["sliding_window"] = json!(WINDOW);
    }
    let name = config["model_type"].as_str().context("a configuration names its family")?;
    let family = find_family(FAMILIES, name)?;
    let arrays = arrays.into_iter().enumerate().map(|(index, (name, array))| {
        let array = enlarged(&name, &array, norms_around, index as u64)?;
        Ok((name, array))
    });
    let weights = Weights::from_arrays(arrays.collect::<Result<Vec<_>>>()?, LoadOptions::detect()?);
    let model = (family.build)(&Config::parse(&config.to_string())?, &weights)?;
    weights.finish(family.ignorable)?;
    Ok(Rc::from(model))
}

/// A tensor of the same name with larger sizes, drawn as the tests' models draw theirs.
fn enlarged(name: &str, small: &Array, norms_around: f32, seed: u64) -> Result<Array> {
    // Heads are as many as before, and so is what each head has one of.
    if name.ends_with("A_log") || name.ends_with("dt_bias") {
        return Ok(small.clone());
    }
    let shape: Vec<i32> = match *small.shape() {
        [size] => vec![size * SCALE],
        [heads, columns] if name.contains("in_proj_a") || name.contains("in_proj_b") => {
            vec![heads, columns * SCALE]
        }
        [rows, columns] => vec![rows * SCALE, columns * SCALE],
        [channels, taps, one] => vec![channels * SCALE, taps, one],
        ref other => anyhow::bail!("{name}: no rule for shape {other:?}"),
    };
    let (mean, spread) = match shape[..] {
        [_] if name.contains("linear_attn.norm") => (1.0, 0.1),
        [_] => (norms_around, 0.1),
        [_, columns] => (0.0, (columns as f32).sqrt().recip()),
        _ => (0.0, 0.4),
    };
    Ok(random::normal::<f32>(&shape, Some(mean), Some(spread), &random::key(seed)?)?)
}
