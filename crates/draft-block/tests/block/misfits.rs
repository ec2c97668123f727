//! Heads that do not fit their target, and files that are none: one clear error each, never a panic.

use std::{fs, path::Path};

use foretoken_draft_block::{MAX_BLOCK, drafter, is_block_head, load};
use foretoken_model_base::{Config, LoadOptions, Model, Weights};
use mlx_rs::Array;
use serde_json::{Value, json};

use super::common::{HEAD, config, golden, repository, tensors, tiny};

type Tensors = Vec<(String, Array)>;

const TAPS: [usize; 2] = [0, 3];

fn whole(model: &dyn Model) -> (Value, Tensors) {
    let config = serde_json::from_str(&config(model.facts(), 4, &TAPS)).unwrap();
    (config, tensors(model.facts(), TAPS.len(), 1))
}

fn refusal(model: &dyn Model, config: &Value, tensors: Tensors) -> String {
    let weights = Weights::from_arrays(tensors, LoadOptions::cpu());
    let config = Config::parse(&config.to_string()).unwrap();
    let error = drafter(&config, weights, model).err().expect("the head must not fit").to_string();
    println!("{error}");
    error
}

fn zeros(shape: &[i32]) -> Array {
    Array::from_slice(&vec![0f32; shape.iter().product::<i32>() as usize], shape)
}

#[test]
fn every_bad_key_is_named() {
    let model = tiny();
    let (config, tensors) = whole(model.as_ref());
    for (key, value) in [
        ("model_type", json!("llama")),
        ("model_type", json!(7)),
        ("block_size", json!(0)),
        ("block_size", json!(MAX_BLOCK + 1)),
        ("block_size", json!(-4)),
        ("target_layer_ids", json!([])),
        ("target_layer_ids", json!([0, 4])),
        ("target_layer_ids", json!([0, -1])),
        ("target_layer_ids", json!([0, 1.5])),
        ("target_layer_ids", json!([0, 1, 2, 3, 0])),
        ("target_layer_ids", json!(u64::MAX)),
        ("hidden_size", json!(64)),
        ("target_vocab_size", json!(65)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("intermediate_size", json!("many")),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(7)),
        ("rms_norm_eps", json!(-1.0)),
        ("rope_theta", json!(0.0)),
    ] {
        let mut bad = config.clone();
        bad[key] = value.clone();
        let error = refusal(model.as_ref(), &bad, tensors.clone());
        assert!(error.contains(key), "{key} = {value}: {error}");
    }
    for key in
        ["model_type", "block_size", "target_layer_ids", "hidden_size", "head_dim", "target_vocab_size"]
    {
        let mut bad = config.clone();
        bad.as_object_mut().unwrap().remove(key);
        assert!(refusal(model.as_ref(), &bad, tensors.clone()).contains(key), "{key} is missing");
    }
}

#[test]
fn every_missing_misshapen_or_unknown_tensor_is_named() {
    let model = tiny();
    let (config, whole) = whole(model.as_ref());
    for (name, array) in &whole {
        let rest = whole.iter().filter(|(n, _)| n != name).cloned().collect();
        let error = refusal(model.as_ref(), &config, rest);
        assert!(error.contains(name) && error.contains("--draft none"), "{name}: {error}");

        let mut shape = array.shape().to_vec();
        *shape.last_mut().unwrap() += 1;
        let mut wrong = whole.clone();
        wrong.iter_mut().find(|(n, _)| n == name).unwrap().1 = zeros(&shape);
        let error = refusal(model.as_ref(), &config, wrong);
        assert!(error.contains(name) && error.contains(&format!("{shape:?}")), "{name}: {error}");
    }
    let mut more = whole;
    more.push(("layers.2.mlp.up_proj.weight".into(), zeros(&[48, 32])));
    assert!(refusal(model.as_ref(), &config, more).contains("layers.2.mlp.up_proj.weight"));
}

#[test]
fn a_vocabulary_and_rows_of_its_own_are_used_and_checked() {
    let model = tiny();
    let (config, whole) = whole(model.as_ref());
    let with = |ids: &[u32], rows: Option<i32>| {
        let mut tensors = whole.clone();
        tensors.push(("draft_token_ids".into(), Array::from_slice(ids, &[ids.len() as i32])));
        tensors.extend(rows.map(|rows| ("lm_head.weight".to_owned(), zeros(&[rows, 32]))));
        tensors
    };
    let parsed = Config::parse(&config.to_string()).unwrap();
    for rows in [None, Some(3)] {
        let weights = Weights::from_arrays(with(&[1, 5, 63], rows), LoadOptions::cpu());
        drafter(&parsed, weights, model.as_ref()).unwrap();
    }
    for (ids, rows, wanted) in [
        (&[1, 5, 64][..], None, "below 64"),
        (&[5, 1], None, "5 before 1"),
        (&[1, 5, 63], Some(4), "lm_head.weight"),
    ] {
        let error = refusal(model.as_ref(), &config, with(ids, rows));
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn hostile_folders_are_errors() {
    let model = golden("llama");
    let shipped = |name: &str| fs::read(repository(HEAD).join(name)).unwrap();
    let attempt = |config: Option<&[u8]>, weights: Option<&[u8]>| {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        config.inspect(|bytes| put("config.json", bytes));
        weights.inspect(|bytes| put("model.safetensors", bytes));
        let recognised = is_block_head(folder.path());
        (recognised, load(folder.path(), model.as_ref()).err().map(|error| error.to_string()))
    };
    let (config, weights) = (shipped("config.json"), shipped("model.safetensors"));
    assert_eq!(attempt(Some(&config), Some(&weights)), (true, None));
    let huge = [&[0xff; 8][..], &weights[8..]].concat();
    for (config, weights, recognised) in [
        (None, Some(&weights[..]), false),
        (Some(&config[..]), None, true),
        (Some(&config[..config.len() / 2]), Some(&weights[..]), false),
        (Some(b"[]"), Some(&weights[..]), false),
        (Some(b"\xff\xfe"), Some(&weights[..]), false),
        (Some(&config[..]), Some(&weights[..weights.len() - 7]), true),
        (Some(&config[..]), Some(&weights[..5]), true),
        (Some(&config[..]), Some(b""), true),
        (Some(&config[..]), Some(&huge[..]), true),
    ] {
        let (seen, error) = attempt(config, weights);
        let error = error.expect("refused");
        println!("{error}");
        assert_eq!(seen, recognised, "{error}");
    }
    assert!(load(Path::new("/nowhere"), model.as_ref()).is_err());
}

#[test]
fn another_target_is_refused_by_name() {
    let error = load(&repository(HEAD), tiny().as_ref()).err().unwrap().to_string();
    assert!(
        error.contains("config.json") && error.contains("hidden_size") && error.contains("--draft none"),
        "{error}"
    );
}
