//! Exact mode: plain and speculative answers have equal bits, on every kind of layer.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::{path::Path, rc::Rc};

use common::*;
use foretoken_model_base::{LoadOptions, Model};
use foretoken_models::testkit::{hyb, tiny_window};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{
    EXACT_WIDTH, Provenance,
    testkit::{PairDrafter, Pattern, Played, Request, on_cpu},
};

const PROMPT_IDS: [u32; 12] = [11, 48, 85, 122, 159, 36, 73, 110, 147, 24, 61, 98];
const TOKENS: usize = 60;

fn golden(name: &str) -> Rc<dyn Model> {
    on_cpu();
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden")).join(name);
    assert!(path.exists(), "{} is missing: run `cargo xtask model` first", path.display());
    Rc::from(foretoken_models::load(&path, LoadOptions::cpu()).unwrap().model)
}

fn models() -> Vec<(&'static str, Rc<dyn Model>)> {
    on_cpu();
    let mut models: Vec<(&'static str, Rc<dyn Model>)> =
        ["llama", "llama-q4", "qwen3", "gemma3", "qwen3_5"].map(|name| (name, golden(name))).into();
    models.push(("tiny_window", Rc::from(tiny_window(7).unwrap())));
    models.push(("hyb", Rc::from(hyb(7).unwrap())));
    models
}

/// Every logit is reported, so that bits can be compared.
fn asked(model: &dyn Model, prompt: &[u32], depth: usize, temperature: f32) -> Request {
    let vocabulary = model.facts().vocabulary;
    let options = SamplingOptions {
        temperature,
        seed: Seed::Fixed(9),
        logprobs: Some(vocabulary),
        ..SamplingOptions::greedy()
    };
    Request { options, exact: Some(EXACT_WIDTH), ..Request::greedy(prompt, TOKENS, depth) }
}

/// Each token with the bits of every log probability of its row.
fn bits(done: &Played) -> Vec<(u32, Vec<(u32, u32)>)> {
    let tokens = done.runs.iter().flat_map(|run| &run.tokens).take(TOKENS);
    tokens
        .map(|token| {
            let row = &token.logprobs.as_ref().unwrap().top;
            (token.id, row.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect())
        })
        .collect()
}

#[test]
fn plain_and_speculative_rows_have_equal_bits() {
    for (name, model) in models() {
        let vocabulary = model.facts().vocabulary as u32;
        let prompt: Vec<u32> = PROMPT_IDS.iter().map(|id| id % vocabulary).collect();
        for temperature in [0.0, 0.8] {
            let ask = |depth| asked(model.as_ref(), &prompt, depth, temperature);
            let plain = played(model.clone(), None, &ask(0));
            let want = bits(&plain);
            for (pattern, depth) in [
                (Pattern::Oracle, 7),
                (Pattern::Oracle, 2),
                (Pattern::Mix, 5),
                (Pattern::Sometimes, 7),
                (Pattern::Wrong, 3),
            ] {
                let drafter = planned(pattern, vocabulary as usize, prompt.len(), &plain.ids);
                let done = played(model.clone(), Some(drafter), &ask(depth));
                let got = bits(&done);
                let parted = got.iter().zip(&want).position(|(a, b)| a != b);
                assert_eq!(parted, None, "{name}, {pattern:?} at depth {depth}, temperature {temperature}");
                assert_eq!(got.len(), want.len());
                assert!(done.statistics.rounds.iter().all(|round| round.0 < EXACT_WIDTH));
            }
        }
    }
}

#[test]
fn a_block_is_filled_and_never_overrun() {
    let target = target();
    let ids = played(target.clone(), None, &Request::greedy(&PROMPT, 30, 0)).ids;
    for width in [1, 2, 5, 8] {
        let request = Request { exact: Some(width), ..Request::greedy(&PROMPT, 30, 16) };
        let done = played(target.clone(), Some(drafter(Pattern::Oracle)), &request);
        assert_eq!(done.ids[..30], ids);
        // A block whose tokens are all kept ends where the next one starts.
        assert!(done.statistics.rounds.iter().take(3).all(|round| round.0 == width - 1), "{width}");
        let plain = done.runs.iter().flat_map(|run| &run.tokens);
        assert_eq!(plain.filter(|t| t.provenance == Provenance::Plain).count() > 0, width == 1);
    }
}

#[test]
fn a_drafter_with_caches_of_its_own_hears_every_slot_once() {
    let target = target();
    let want = played(target.clone(), None, &Request::greedy(&PROMPT, 24, 0)).ids;
    for depth in [0, 1, 4, 7] {
        let request = Request { exact: Some(4), ..Request::greedy(&PROMPT, 24, depth) };
        let done = played(target.clone(), Some(Rc::new(PairDrafter::new(VOCABULARY))), &request);
        assert_eq!(done.ids[..24], want, "depth {depth}");
        check_contents(&done);
    }
}

#[test]
fn the_last_block_ends_with_the_context() {
    on_cpu();
    let model: Rc<dyn Model> = Rc::new(
        foretoken_speculate::testkit::ScriptedTarget::new(VOCABULARY, wanted).context(PROMPT.len() + 10),
    );
    let asked = |depth| Request { exact: Some(8), ..Request::greedy(&PROMPT, 10, depth) };
    let plain = played(model.clone(), None, &asked(0));
    let done = played(model, Some(drafter(Pattern::Oracle)), &asked(7));
    assert_eq!(done.ids[..10], plain.ids[..10]);
}
