//! Layers against values worked out by hand.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use foretoken_cache::{Mask, View};
use foretoken_model_base::{
    Config, LoadOptions, Weights,
    nn::{Embedding, Linear, Mlp, RmsNorm, Rope, attend, join_heads, split_heads},
};
use mlx_rs::Array;

use common::{host, on_cpu, refused};

/// float32 rounding of a handful of operations on values near 1.
const TOLERANCE: f32 = 1e-5;

fn array(values: &[f32], shape: &[i32]) -> Array {
    Array::from_slice(values, shape)
}

fn weights(tensors: &[(&str, &[f32], &[i32])]) -> Weights {
    on_cpu();
    let held = tensors.iter().map(|(name, values, shape)| (name.to_string(), array(values, shape)));
    Weights::from_arrays(held.collect::<Vec<_>>(), LoadOptions::cpu())
}

fn near(got: &Array, want: &[f32]) {
    let got = host(got);
    assert_eq!(got.len(), want.len());
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(off <= TOLERANCE, "off by {off}: {got:?} instead of {want:?}");
}

#[test]
fn linear_multiplies_by_the_transposed_matrix_and_adds_the_bias() {
    let w = weights(&[
        ("m.weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]),
        ("m.bias", &[0.5, 0.0, -0.5], &[3]),
    ]);
    let x = array(&[1.0, -1.0], &[1, 1, 2]);
    let plain = Linear::load(&w.at("m"), 2, 3, false).unwrap();
    near(&plain.forward(&x).unwrap(), &[-1.0, -1.0, -1.0]);
    let biased = Linear::load(&w.at("m"), 2, 3, true).unwrap();
    near(&biased.forward(&x).unwrap(), &[-0.5, -1.0, -1.5]);
    near(&biased.rows(&Array::from_slice(&[2u32, 0], &[2])).unwrap(), &[5.0, 6.0, 1.0, 2.0]);
    refused(Linear::load(&w.at("m"), 3, 2, false), &["m.weight", "[2, 3]", "[3, 2]"]);
    refused(Linear::load(&w.at("n"), 2, 3, false), &["n.weight"]);
}

#[test]
fn embedding_serves_both_directions() {
    let w = weights(&[("e.weight", &[1.0, 0.0, 0.0, 1.0, 2.0, 3.0], &[3, 2])]);
    let embedding = Embedding::load(&w.at("e"), 3, 2).unwrap();
    let rows = embedding.rows(&Array::from_slice(&[2u32, 0], &[1, 2])).unwrap();
    assert_eq!(rows.shape(), [1, 2, 2]);
    near(&rows, &[2.0, 3.0, 1.0, 0.0]);
    near(&embedding.unembed(&rows).unwrap(), &[2.0, 3.0, 13.0, 1.0, 0.0, 2.0]);
}

#[test]
fn norm_divides_by_the_root_of_the_mean_square() {
    let w = weights(&[("n.weight", &[1.0, 2.0], &[2])]);
    let norm = RmsNorm::load(&w.at("n"), 2, 0.0).unwrap();
    // The mean square of (3, 4) is 12.5.
    let root = 12.5f32.sqrt();
    near(&norm.forward(&array(&[3.0, 4.0], &[1, 2])).unwrap(), &[3.0 / root, 8.0 / root]);
}

#[test]
fn mlp_gates_with_silu() {
    let one: (&[f32], &[i32]) = (&[1.0], &[1, 1]);
    let named = ["m.gate_proj.weight", "m.up_proj.weight", "m.down_proj.weight"];
    let w = weights(&named.map(|name| (name, one.0, one.1)));
    let mlp = Mlp::load(&w.at("m"), 1, 1, false).unwrap();
    let silu = 2.0 / (1.0 + (-2f32).exp());
    near(&mlp.forward(&array(&[2.0], &[1, 1, 1])).unwrap(), &[silu * 2.0]);
}

#[test]
fn heads_split_and_join() {
    on_cpu();
    let x = array(&(0..12).map(|v| v as f32).collect::<Vec<_>>(), &[1, 2, 6]);
    let heads = split_heads(&x, 3).unwrap();
    assert_eq!(heads.shape(), [1, 3, 2, 2]);
    near(&heads, &[0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0]);
    near(&join_heads(&heads).unwrap(), &host(&x));
}

#[test]
fn attention_follows_the_mask_and_shares_heads() {
    on_cpu();
    // Equal keys: the result is the mean of the visible values. Two query heads, one key head.
    let queries = array(&[1.0; 8], &[1, 2, 2, 2]);
    let keys = array(&[0.0; 6], &[1, 1, 3, 2]);
    let values = array(&[1.0, 1.0, 2.0, 2.0, 6.0, 6.0], &[1, 1, 3, 2]);
    let see = |mask| attend(&queries, &View { keys: keys.clone(), values: values.clone(), mask }, 1.0);
    near(&see(Mask::All).unwrap(), &[3.0; 8]);
    near(&see(Mask::Causal).unwrap(), &[1.5, 1.5, 3.0, 3.0, 1.5, 1.5, 3.0, 3.0]);
    let allowed = Array::from_slice(&[true, false, true, false, true, false], &[1, 1, 2, 3]);
    near(&see(Mask::Bool(allowed)).unwrap(), &[3.5, 3.5, 2.0, 2.0, 3.5, 3.5, 2.0, 2.0]);
}

fn rope(text: &str, size: usize, base: f32) -> Rope {
    Rope::from_config(&Config::parse(text).unwrap(), size, base).unwrap()
}

/// The first halves of pairs (1, 0) after rotation: cosines, then sines.
fn turned(rope: &Rope, size: usize, slot: usize) -> Vec<f32> {
    let half = size / 2;
    let values: Vec<f32> = (0..size).map(|i| if i < half { 1.0 } else { 0.0 }).collect();
    host(&rope.forward(&array(&values, &[1, 1, 1, size as i32]), slot).unwrap())
}

fn angles(turned: &[f32]) -> Vec<f32> {
    let (cos, sin) = turned.split_at(turned.len() / 2);
    sin.iter().zip(cos).map(|(s, c)| s.atan2(*c)).collect()
}

#[test]
fn rotation_turns_halves_by_slot_times_frequency() {
    on_cpu();
    let plain = angles(&turned(&Rope::new(4, 100.0), 4, 3));
    near(&array(&plain, &[2]), &[3.0, 0.3]);
    let linear = r#"{"rope_scaling": {"type": "linear", "factor": 2}}"#;
    near(&array(&angles(&turned(&rope(linear, 4, 100.0), 4, 3)), &[2]), &[1.5, 0.15]);
    let stored = Rope::with_factors(4, 100.0, &[1.0, 3.0]).unwrap();
    near(&array(&angles(&turned(&stored, 4, 3)), &[2]), &[3.0, 0.1]);
    refused(Rope::with_factors(4, 100.0, &[f32::NAN, 1.0]), &["rope_freqs.weight"]);
}

#[test]
fn llama3_scaling_stretches_long_waves_only() {
    on_cpu();
    // Wavelengths over 2π of 1, 10, 100 and 1000 with a context of 400: turns 63.7, 6.37, 0.637, 0.0637.
    let text = r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0.25,
            "high_freq_factor": 1.0, "original_max_position_embeddings": 400}}"#;
    let got = angles(&turned(&rope(text, 8, 1e4), 8, 1));
    let smooth = (400.0 / (std::f32::consts::TAU * 100.0) - 0.25) / 0.75;
    let between = ((1.0 - smooth) / 8.0 + smooth) / 100.0;
    near(&array(&got, &[4]), &[1.0, 0.1, between, 1.0 / 8000.0]);
}
