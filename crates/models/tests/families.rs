//! The golden models of the families with norms on queries, sliding windows and recurrent layers.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{F32_TOLERANCE, difference, expected, golden, greedy, host, logits, workspace};
use foretoken_cache::Layer;
use foretoken_model_base::{Config, LoadOptions, Weights};
use foretoken_models::FAMILIES;
use mlx_rs::Array;

/// Chunks that cross the shapes of prefill, single steps and verification, and a window's wrap.
const CHUNKS: [usize; 5] = [19, 1, 5, 1, 14];

fn check(name: &str) {
    let loaded = golden(name);
    let model = loaded.model.as_ref();
    let want = expected(&format!("golden/{name}/expected.safetensors"));
    let tokens = want.at("tokens").ids().unwrap();
    let reference = host(&want.at("logits").tensor(&[40, 160]).unwrap());
    for chunks in [&[40][..], &CHUNKS, &[1; 40]] {
        let off = difference(&host(&logits(model, &tokens, chunks)), &reference);
        println!("{name} in chunks {chunks:?}: largest difference {off:.1e}");
        assert!(off <= F32_TOLERANCE, "{name} in chunks {chunks:?}: {off} > {F32_TOLERANCE}");
    }
    let ids = want.at("greedy_after_12").ids().unwrap();
    assert_eq!(greedy(model, &tokens[..12], ids.len()), ids, "{name}: greedy ids");
}

#[test]
fn qwen3_matches_the_reference() {
    check("qwen3");
}

#[test]
fn gemma3_matches_the_reference() {
    check("gemma3");
}

#[test]
fn gemma4_matches_the_reference() {
    check("gemma4");
}

#[test]
fn qwen3_5_matches_the_reference() {
    check("qwen3_5");
}

#[test]
fn layers_keep_what_their_kind_needs() {
    let kinds = |name: &str| -> Vec<&str> {
        golden(name).model.make_caches().layers().iter().map(Layer::kind).collect()
    };
    let windows = ["sliding window", "sliding window", "full attention"].repeat(2);
    assert_eq!(kinds("gemma3"), windows);
    assert_eq!(kinds("gemma4"), windows);
    assert_eq!(kinds("qwen3"), ["full attention"; 4]);
    assert_eq!(kinds("qwen3_5"), ["recurrent", "recurrent", "recurrent", "full attention"]);
}

#[test]
fn the_table_is_sorted_and_every_name_is_its_own() {
    assert!(FAMILIES.windows(2).all(|pair| pair[0].name < pair[1].name));
}

#[test]
fn values_that_are_keys_equal_a_copied_projection() {
    let loaded = golden("gemma4");
    let folder = workspace("golden/gemma4");
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let mut tensors = Array::load_safetensors(folder.join("model.safetensors")).unwrap();
    let build = |text: &str, tensors: &std::collections::HashMap<String, Array>| {
        let family = FAMILIES.iter().find(|f| f.name == "gemma4_text").unwrap();
        let pairs = tensors.iter().map(|(name, array)| (name.clone(), array.clone()));
        let weights = Weights::from_arrays(pairs, LoadOptions::cpu());
        let model = (family.build)(&Config::parse(text).unwrap(), &weights).unwrap();
        weights.finish(&[]).unwrap();
        model
    };
    let ids: Vec<u32> = (0..20).collect();
    for layer in [2, 5] {
        let at = |part: &str| format!("model.layers.{layer}.self_attn.{part}_proj.weight");
        tensors.insert(at("v"), tensors[&at("k")].clone());
    }
    let copied = host(&logits(build(&text, &tensors).as_ref(), &ids, &[12, 8]));
    for layer in [2, 5] {
        tensors.remove(&format!("model.layers.{layer}.self_attn.v_proj.weight"));
    }
    // As many key/value heads as before: the file's own number would count now.
    let same = text
        .replace("\"attention_k_eq_v\": false", "\"attention_k_eq_v\": true")
        .replace("\"num_global_key_value_heads\": 1", "\"num_global_key_value_heads\": 2");
    let shared = host(&logits(build(&same, &tensors).as_ref(), &ids, &[12, 8]));
    assert!(difference(&shared, &copied) <= F32_TOLERANCE);
    assert!(difference(&shared, &host(&logits(loaded.model.as_ref(), &ids, &[20]))) > F32_TOLERANCE);
}

#[test]
fn bounded_logits_stay_below_the_cap() {
    let loaded = golden("gemma4");
    let all = host(&logits(loaded.model.as_ref(), &[3, 1, 4, 1, 5], &[5]));
    assert!(all.iter().all(|logit| logit.abs() < 30.0));
}

#[test]
fn mtp_heads_get_scaled_embeddings_and_rows_of_the_head() {
    for (name, scale, tied) in
        [("qwen3", 1.0, true), ("gemma3", 8.0, false), ("gemma4", 8.0, true), ("qwen3_5", 1.0, true)]
    {
        let loaded = golden(name);
        let tensors =
            Array::load_safetensors(workspace(&format!("golden/{name}/model.safetensors"))).unwrap();
        let find = |tail: &str| host(tensors.iter().find(|(name, _)| name.ends_with(tail)).unwrap().1);
        let table = find("embed_tokens.weight");
        let head = if tied { table.clone() } else { find("lm_head.weight") };
        let rows = |table: &[f32], scale: f32| -> Vec<f32> {
            [7usize, 159]
                .iter()
                .flat_map(|&id| table[id * 64..][..64].iter().map(move |v| v * scale))
                .collect()
        };
        let shared = loaded.model.mtp().unwrap();
        let ids = Array::from_slice(&[7u32, 159], &[1, 2]);
        assert_eq!(host(&shared.token_embeddings(&ids).unwrap()), rows(&table, scale), "{name}");
        let ids = Array::from_slice(&[7u32, 159], &[2]);
        assert_eq!(host(&shared.output_rows(&ids).unwrap()), rows(&head, 1.0), "{name}");
    }
}
