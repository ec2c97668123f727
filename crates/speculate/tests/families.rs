//! Speculation on the families whose layers forget: every drafter at every depth gives the plain text.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::{path::Path, rc::Rc};

use common::*;
use foretoken_cache::{CacheSet, Layer};
use foretoken_model_base::{Batch, Config, LoadOptions, Model, Weights, find_family};
use foretoken_models::{
    FAMILIES,
    testkit::{hyb, hyb_arrays, hyb_config_json, tiny_window, tiny_window_arrays, tiny_window_config_json},
};
use foretoken_speculate::{
    Provenance,
    testkit::{Pattern, Request, on_cpu},
};
use mlx_rs::{Array, ops};

/// Below this gap between the two best logits another order of summation may choose the other token.
const NEAR_TIE: f32 = 1e-3;
/// Long enough for windows of eight tokens to wrap many times, and for buffers to move.
const TOKENS: usize = 300;
/// A run may go past the budget by one round.
const SPARE: usize = 16;

const TOY_PROMPTS: [&[u32]; 3] = [&[2, 5, 7, 9], &[11, 42, 3, 3, 60, 17, 8, 1, 29], &[63, 0, 31]];
const GOLDEN_PROMPT: [u32; 12] = [11, 48, 85, 122, 159, 36, 73, 110, 147, 24, 61, 98];

fn golden(name: &str) -> Rc<dyn Model> {
    on_cpu();
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden")).join(name);
    assert!(path.exists(), "{} is missing: run `cargo xtask model` first", path.display());
    Rc::from(foretoken_models::load(&path, LoadOptions::cpu()).unwrap().model)
}

/// Seeds whose greedy texts vary.
fn toys() -> [(&'static str, Rc<dyn Model>); 2] {
    on_cpu();
    [("tiny_window", Rc::from(tiny_window(7).unwrap())), ("hyb", Rc::from(hyb(7).unwrap()))]
}

/// The gap between the two best logits after `tokens`.
fn top_two_gap(model: &dyn Model, tokens: &[u32]) -> f32 {
    let mut caches = model.make_caches();
    let hidden = model.forward(&Batch::from_ids(tokens, 0).unwrap(), &mut [&mut caches]).unwrap();
    let logits: Vec<f32> = model.unembed(&hidden.last).unwrap().contiguous().unwrap().to_vec_exact().unwrap();
    let mut row = logits[(tokens.len() - 1) * model.facts().vocabulary..].to_vec();
    row.sort_by(|a, b| b.total_cmp(a));
    row[0] - row[1]
}

/// Equal ids, or a first difference where the target's two best tokens were all but equal.
fn assert_same(model: &dyn Model, prompt: &[u32], got: &[u32], want: &[u32], what: &str) {
    let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) else {
        return assert_eq!(got.len(), want.len(), "{what}");
    };
    let tokens: Vec<u32> = prompt.iter().chain(&want[..at]).copied().collect();
    let gap = top_two_gap(model, &tokens);
    println!("{what}: first difference at {at}, gap between the two best logits {gap:.3e}");
    assert!(gap < NEAR_TIE, "{what}: {got:?} instead of {want:?}");
}

/// Greedy text of every pattern and depth against the plain one.
fn check(name: &str, model: &Rc<dyn Model>, prompt: &[u32], tokens: usize, patterns: &[Pattern]) {
    let plain = played(model.clone(), None, &Request::greedy(prompt, tokens + SPARE, 0)).ids;
    for &pattern in patterns {
        for depth in 1..=8 {
            let drafter = planned(pattern, model.facts().vocabulary, prompt.len(), &plain);
            let done = played(model.clone(), Some(drafter), &Request::greedy(prompt, tokens, depth));
            let what = format!("{name}, {pattern:?} at depth {depth}");
            assert_same(model.as_ref(), prompt, &done.ids, &plain[..tokens], &what);
            let statistics = &done.statistics;
            match pattern {
                Pattern::Oracle => assert_eq!(statistics.accepted, statistics.drafted, "{what}"),
                Pattern::Wrong => {
                    assert_eq!((statistics.accepted, statistics.drafted > 0), (0, true), "{what}")
                }
                _ => assert!(statistics.accepted > 0, "{what}"),
            }
        }
    }
}

const THREE: [Pattern; 3] = [Pattern::Oracle, Pattern::Wrong, Pattern::Mix];

#[test]
fn qwen3_speculates_without_a_trace() {
    check("qwen3", &golden("qwen3"), &GOLDEN_PROMPT, TOKENS, &THREE);
}

#[test]
fn gemma3_speculates_without_a_trace() {
    check("gemma3", &golden("gemma3"), &GOLDEN_PROMPT, TOKENS, &THREE);
}

#[test]
fn gemma4_speculates_without_a_trace() {
    check("gemma4", &golden("gemma4"), &GOLDEN_PROMPT, TOKENS, &THREE);
}

#[test]
fn qwen3_5_speculates_without_a_trace() {
    check("qwen3_5", &golden("qwen3_5"), &GOLDEN_PROMPT, TOKENS, &THREE);
}

#[test]
fn h12_window_and_recurrent_layers_give_the_plain_text() {
    for (name, model) in toys() {
        for prompt in TOY_PROMPTS {
            check(name, &model, prompt, 200, &PATTERNS);
        }
    }
}

/// A toy whose products are packed in four bits and stay so: their rows are summed in another way.
fn packed(family: &str, config: &str, arrays: Vec<(String, Array)>) -> Rc<dyn Model> {
    on_cpu();
    let pack = |(name, array): (String, Array)| -> Vec<(String, Array)> {
        let Some(module) = name.strip_suffix("_proj.weight") else { return vec![(name, array)] };
        let (words, scales, biases) = ops::quantize(&array, 32, 4).unwrap();
        let parts = [("weight", words), ("scales", scales), ("biases", biases)];
        parts.map(|(part, array)| (format!("{module}_proj.{part}"), array)).into()
    };
    let options = LoadOptions { expand: false, ..LoadOptions::cpu() };
    let weights = Weights::from_arrays(arrays.into_iter().flat_map(pack), options);
    let family = find_family(FAMILIES, family).unwrap();
    let model = (family.build)(&Config::parse(config).unwrap(), &weights).unwrap();
    weights.finish(&[]).unwrap();
    Rc::from(model)
}

#[test]
fn h12_packed_window_and_recurrent_layers_give_the_plain_text() {
    let window = packed("gemma3_text", &tiny_window_config_json(), tiny_window_arrays(7));
    let hyb = packed("qwen3_5_text", &hyb_config_json(), hyb_arrays(7));
    for (name, model) in [("packed tiny_window", window), ("packed hyb", hyb)] {
        check(name, &model, TOY_PROMPTS[1], 100, &[Pattern::Mix, Pattern::Wrong]);
    }
}

#[test]
fn h17_an_end_token_inside_a_run_stops_windows_and_states() {
    for (name, model) in toys() {
        let mut checked = 0;
        for prompt in TOY_PROMPTS {
            let plain = played(model.clone(), None, &Request::greedy(prompt, 40 + SPARE, 0)).ids;
            let Some(k) = (9..40).find(|&k| !plain[..k].contains(&plain[k])) else {
                continue;
            };
            checked += 1;
            for depth in 1..=8 {
                let drafter = planned(Pattern::Oracle, model.facts().vocabulary, prompt.len(), &plain);
                let asked = Request { ends: vec![plain[k]], ..Request::greedy(prompt, 40, depth) };
                let done = played(model.clone(), Some(drafter), &asked);
                assert_eq!(done.ids, plain[..=k], "{name}, depth {depth}");
                let last = done.runs.last().unwrap();
                let drafted =
                    last.tokens.iter().filter(|t| matches!(t.provenance, Provenance::Drafted { .. }));
                assert_eq!(last.accepted, drafted.count(), "{name}, depth {depth}");
            }
        }
        assert!(checked > 0, "{name}: no prompt whose plain text has a new token after the ninth");
    }
}

/// The states of the recurrent layers, on the host.
fn states(caches: &CacheSet) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut out = Vec::new();
    for layer in caches.layers() {
        if let Layer::Recurrent(layer) = layer {
            let state = layer.state().unwrap();
            let host = |array: Option<Array>| -> Vec<f32> {
                array.unwrap().contiguous().unwrap().to_vec_exact().unwrap()
            };
            out.push((host(state.tail), host(state.state)));
        }
    }
    out
}

/// Largest difference between states of one sequence that was cut in different ways.
const STATE_TOLERANCE: f32 = 1e-5;

#[test]
fn h21_h22_states_equal_those_of_a_twin_without_speculation() {
    let (name, model) = toys().into_iter().last().unwrap();
    let prompt = TOY_PROMPTS[1];
    let plain = played(model.clone(), None, &Request::greedy(prompt, 60 + SPARE, 0)).ids;
    for pattern in [Pattern::Wrong, Pattern::Mix] {
        for depth in 1..=6 {
            for tokens in [1, 2, 3, 5, 60] {
                let drafter = planned(pattern, model.facts().vocabulary, prompt.len(), &plain);
                let done = played(model.clone(), Some(drafter), &Request::greedy(prompt, tokens, depth));
                let history = done.request.history.ids();
                let committed = &history[..history.len() - 1];
                let mut twin = model.make_caches();
                let batch = Batch::from_ids(committed, 0).unwrap();
                let hidden = model.forward(&batch, &mut [&mut twin]).unwrap();
                hidden.last.eval().unwrap();
                let (own, want) = (states(&done.request.target), states(&twin));
                assert_eq!(own.len(), 2, "{name} has two recurrent layers");
                for ((tail, state), (twin_tail, twin_state)) in own.iter().zip(&want) {
                    let off = largest(tail, twin_tail).max(largest(state, twin_state));
                    assert!(off <= STATE_TOLERANCE, "{pattern:?}, depth {depth}, {tokens} tokens: {off}");
                }
            }
        }
    }
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}
