//! Matrices packed in MLX's affine layout: expansion, kept packing, and configurations that disagree.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{host, on_cpu, refused};
use foretoken_model_base::{
    Config, LoadOptions, Weights,
    nn::{Embedding, Linear},
    weights::{ComputeType, Matrix},
};
use mlx_rs::{Array, ops};

const IN: usize = 64;
const OUT: usize = 8;
/// Packed product against the product with expanded weights, over values of about 1.
const TOLERANCE: f32 = 1e-5;

fn values() -> Array {
    let values: Vec<f32> = (0..OUT * IN).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    Array::from_slice(&values, &[OUT as i32, IN as i32])
}

/// One packed module `name`, described by a configuration.
fn packed(name: &str, bits: i32, config: &str, options: LoadOptions) -> Weights {
    on_cpu();
    let (weight, scales, biases) = ops::quantize(values(), 64, bits).unwrap();
    let parts = [("weight", weight), ("scales", scales), ("biases", biases)];
    let named = parts.into_iter().map(|(part, a)| (format!("{name}.{part}"), a));
    let config = Config::parse(config).unwrap();
    Weights::from_arrays(named, options).quantized(config.quantization().unwrap())
}

fn expanded(bits: i32) -> Vec<f32> {
    let (weight, scales, biases) = ops::quantize(values(), 64, bits).unwrap();
    host(&ops::dequantize(weight, scales, &biases, 64, bits).unwrap())
}

fn config(overrides: &str) -> String {
    format!(r#"{{"quantization": {{"group_size": 64, "bits": 4{overrides}}}}}"#)
}

fn dense(weights: &Weights, name: &str) -> Vec<f32> {
    let matrix = name.split('.').skip(1).fold(weights.at("model"), |at, part| at.at(part));
    match matrix.matrix(OUT, IN).unwrap() {
        Matrix::Dense(array) => host(&array),
        other => panic!("not expanded: {other:?}"),
    }
}

#[test]
fn h41_overrides_are_found_with_and_without_a_wrapper_prefix() {
    on_cpu();
    let name = "model.layers.0.mlp.up_proj";
    for key in [name, "language_model.model.layers.0.mlp.up_proj", "layers.0.mlp.up_proj"] {
        let text = config(&format!(r#", "{key}": {{"group_size": 64, "bits": 6}}"#));
        assert_eq!(dense(&packed(name, 6, &text, LoadOptions::cpu()), name), expanded(6), "{key}");
    }
    let other = config(r#", "model.layers.1.mlp.up_proj": {"bits": 6}"#);
    assert_eq!(dense(&packed(name, 4, &other, LoadOptions::cpu()), name), expanded(4));
}

#[test]
fn h41_a_contradiction_names_tensor_declared_and_found_width() {
    let name = "model.layers.0.mlp.up_proj";
    let weights = packed(name, 6, &config(""), LoadOptions::cpu());
    let read = weights.at(name).matrix(OUT, IN);
    refused(read, &["model.layers.0.mlp.up_proj.weight", "4 bits", "6 bits"]);
    let off = config(&format!(r#", "{name}": false"#));
    let weights = packed(name, 4, &off, LoadOptions::cpu());
    refused(weights.at(name).matrix(OUT, IN), &["no packing", "4 bits"]);
}

#[test]
fn packed_width_must_fit_the_columns() {
    let weights = packed("m", 4, &config(""), LoadOptions::cpu());
    refused(weights.at("m").matrix(OUT, 48), &["m.weight", "48 columns"]);
    refused(weights.at("m").matrix(9, IN), &["m.weight", "[9, columns·bits/32]"]);
}

#[test]
fn packed_words_must_be_words() {
    on_cpu();
    let (_, scales, biases) = ops::quantize(values(), 64, 4).unwrap();
    let floats = Array::from_slice(&[0f32; OUT * 8], &[OUT as i32, 8]);
    let parts = [("m.weight", floats), ("m.scales", scales), ("m.biases", biases.clone())];
    let named =
        |parts: &[(&str, Array)]| parts.iter().map(|(n, a)| (n.to_string(), a.clone())).collect::<Vec<_>>();
    let weights = Weights::from_arrays(named(&parts), LoadOptions::cpu());
    refused(weights.at("m").matrix(OUT, IN), &["m.weight", "uint32", "F32"]);
    let weights = Weights::from_arrays(named(&parts[..2]), LoadOptions::cpu());
    refused(weights.at("m").matrix(OUT, IN), &["m.weight", "without biases"]);
}

#[test]
fn other_modes_are_refused() {
    let text = r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}"#;
    refused(Config::parse(text).unwrap().quantization(), &["quantization.mode", "affine", "mxfp4"]);
    refused(Config::parse(r#"{"quantization": 4}"#).unwrap().quantization(), &["quantization", "4"]);
    let text = r#"{"quantization": {"bits": -1}}"#;
    refused(Config::parse(text).unwrap().quantization(), &["quantization.bits", "-1"]);
}

#[test]
fn h40_nothing_declared_means_plain() {
    for text in ["{}", r#"{"quantization": null}"#, r#"{"quantization": {}}"#] {
        on_cpu();
        let quantization = Config::parse(text).unwrap().quantization().unwrap();
        assert_eq!(quantization.default_packing(), None);
        let plain = Weights::from_arrays([("m.weight".into(), values())], LoadOptions::cpu());
        let matrix = plain.quantized(quantization).at("m").matrix(OUT, IN).unwrap();
        assert!(matches!(matrix, Matrix::Dense(_)), "{text}");
    }
}

#[test]
fn kept_packing_computes_the_same() {
    let options = LoadOptions { expand: false, compute: ComputeType::F32, ..LoadOptions::cpu() };
    let x = Array::from_slice(&(0..IN).map(|i| (i as f32).sin()).collect::<Vec<_>>(), &[1, IN as i32]);
    let (kept, full) =
        (packed("m", 4, &config(""), options), packed("m", 4, &config(""), LoadOptions::cpu()));
    assert!(matches!(kept.at("m").matrix(OUT, IN).unwrap(), Matrix::Affine(_)));
    let product = |w: &Weights| host(&Linear::load(&w.at("m"), IN, OUT, false).unwrap().forward(&x).unwrap());
    let ids = Array::from_slice(&[7u32, 0], &[1, 2]);
    let rows = |w: &Weights| host(&Embedding::load(&w.at("m"), OUT, IN).unwrap().rows(&ids).unwrap());
    let off = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let (products, looked_up) = (off(product(&kept), product(&full)), off(rows(&kept), rows(&full)));
    println!("products differ by {products:.1e}, rows by {looked_up:.1e}");
    assert!(products <= TOLERANCE && looked_up <= TOLERANCE);
}
