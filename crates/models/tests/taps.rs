//! Tapped layers: what a forward reports beside the state to unembed, and what it leaves alone.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::path::Path;

use common::{F32_TOLERANCE, difference, golden, host, on_cpu, workspace};
use foretoken_model_base::{Batch, Hidden, LoadOptions, Model, ModelError, Weights};
use foretoken_models::{kv_format, load, with_packed_kv};
use mlx_rs::Array;

const TOKENS: [u32; 9] = [3, 50, 7, 7, 19, 2, 61, 33, 8];

/// One model of each family that the golden files have.
const FAMILIES: [&str; 6] = ["llama", "llama-q4", "qwen3", "gemma3", "gemma4", "qwen3_5"];

/// Every token in two chunks, with these layers tapped: the states to unembed, `aux`, and the tapped ones.
fn tapped(model: &dyn Model, layers: &[usize]) -> [Vec<f32>; 3] {
    let (mut caches, mut out) = (model.make_caches(), [Vec::new(), Vec::new(), Vec::new()]);
    for chunk in [&TOKENS[..5], &TOKENS[5..]] {
        let batch = Batch::from_ids(chunk, caches.offset()).unwrap();
        let taps = model.taps().expect("every family taps");
        let (Hidden { last, aux }, states) = taps.forward_both(&batch, &mut [&mut caches], layers).unwrap();
        assert_eq!(states.dim(2), last.dim(2) * layers.len() as i32);
        for (out, array) in out.iter_mut().zip([last, aux, states]) {
            out.extend(host(&array));
        }
    }
    out
}

/// The same without taps.
fn plain(model: &dyn Model) -> [Vec<f32>; 2] {
    let (mut caches, mut out) = (model.make_caches(), [Vec::new(), Vec::new()]);
    for chunk in [&TOKENS[..5], &TOKENS[5..]] {
        let batch = Batch::from_ids(chunk, caches.offset()).unwrap();
        let Hidden { last, aux } = model.forward(&batch, &mut [&mut caches]).unwrap();
        for (out, array) in out.iter_mut().zip([last, aux]) {
            out.extend(host(&array));
        }
    }
    out
}

#[test]
fn taps_change_no_bit_of_a_forward() {
    for family in FAMILIES {
        let model = golden(family).model;
        let count = model.facts().layers;
        for layers in [vec![0], vec![0, count - 1], (0..count).collect(), vec![2, 0, 2]] {
            let [last, aux, _] = tapped(model.as_ref(), &layers);
            assert!([last, aux] == plain(model.as_ref()), "{family}: taps {layers:?}");
        }
    }
}

#[test]
fn packed_keys_and_values_tap_as_well() {
    on_cpu();
    let file = workspace("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
    let whole = load(&file, LoadOptions::cpu()).unwrap().model;
    let format = kv_format(whole.as_ref(), 8).unwrap();
    let packed = with_packed_kv(whole, format).unwrap();
    let [last, aux, states] = tapped(packed.as_ref(), &[1, 29]);
    assert!([last, aux] == plain(packed.as_ref()));
    assert!(states.iter().all(|x| x.is_finite()));
}

/// A model with the last layers cut off ends with the state after the layers that it has.
#[test]
fn a_tapped_state_is_what_a_shorter_model_ends_with() {
    let whole = golden("llama").model;
    let width = whole.facts().width;
    for layer in 0..whole.facts().layers {
        let cut = shortened("llama", layer + 1);
        let [_, _, states] = tapped(whole.as_ref(), &[layer]);
        let [last, _] = plain(cut.as_ref());
        let off = difference(&normed(&states, width), &last);
        println!("layer {layer}: {off:.1e}");
        assert!(off < F32_TOLERANCE, "layer {layer}: {off}");
    }
}

/// States come in the order in which they are asked for.
#[test]
fn states_come_in_the_order_asked_for() {
    for family in FAMILIES {
        let model = golden(family).model;
        let width = model.facts().width;
        let parts = [0, 2, 1].map(|layer| tapped(model.as_ref(), &[layer])[2].clone());
        assert!(parts[0] != parts[1] && parts[1] != parts[2], "{family}");
        let [_, _, joined] = tapped(model.as_ref(), &[0, 2, 1, 2]);
        for (row, values) in joined.chunks(4 * width).enumerate() {
            let at = row * width..(row + 1) * width;
            for (part, want) in values.chunks(width).zip([&parts[0], &parts[1], &parts[2], &parts[1]]) {
                assert!(part == &want[at.clone()], "{family}: row {row}");
            }
        }
    }
}

#[test]
fn layers_outside_the_model_are_refused_and_nothing_is_written() {
    for family in FAMILIES {
        let model = golden(family).model;
        let count = model.facts().layers;
        for (layers, got) in [
            (vec![0, count], count.to_string()),
            (vec![usize::MAX], usize::MAX.to_string()),
            (vec![], "none".into()),
        ] {
            let mut caches = model.make_caches();
            let batch = Batch::from_ids(&TOKENS, 0).unwrap();
            let error =
                model.taps().unwrap().forward_tapped(&batch, &mut [&mut caches], &layers).unwrap_err();
            let ModelError::Input { what: "tapped layers", got: said, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(*said, got, "{family}");
            assert_eq!(caches.offset(), 0, "{family}");
        }
    }
}

/// The golden model with its first `layers` layers only, and the final norm replaced by ones.
fn shortened(name: &str, layers: usize) -> Box<dyn Model> {
    let folder = workspace(&format!("golden/{name}"));
    let weights = Weights::open(&folder.join("model.safetensors"), LoadOptions::cpu()).unwrap();
    let kept = |name: &&str| match name.strip_prefix("model.layers.") {
        Some(rest) => rest.split('.').next().unwrap().parse::<usize>().unwrap() < layers,
        None => true,
    };
    let mut arrays: Vec<(String, Array)> = Vec::new();
    for name in weights.names().filter(kept) {
        let array = match name {
            "model.norm.weight" => Array::from_slice(&[1f32; 64], &[64]),
            _ => weights.at(name).tensor(weights.shape(name).unwrap()).unwrap(),
        };
        arrays.push((name.into(), array));
    }
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = config.replace("\"num_hidden_layers\": 4", &format!("\"num_hidden_layers\": {layers}"));
    let out = tempfile::tempdir().unwrap();
    std::fs::write(out.path().join("config.json"), config).unwrap();
    Array::save_safetensors(
        arrays.iter().map(|(n, a)| (n.as_str(), a)),
        None,
        out.path().join("model.safetensors"),
    )
    .unwrap();
    open(out.path())
}

fn open(folder: &Path) -> Box<dyn Model> {
    load(folder, LoadOptions::cpu()).unwrap().model
}

/// Rows divided by their root mean square, as the final norm does with weights of one.
fn normed(states: &[f32], width: usize) -> Vec<f32> {
    let norm = |row: &[f32]| {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / width as f32;
        let scale = (mean + 1e-6).sqrt().recip();
        row.iter().map(|x| x * scale).collect::<Vec<_>>()
    };
    states.chunks(width).flat_map(norm).collect()
}
