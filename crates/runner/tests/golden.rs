//! Golden models through the runner: speculation at every depth changes nothing.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    rc::Rc,
};

use foretoken_model_base::{LoadOptions, Model};
use foretoken_runner::{Event, FinishReason, Request, Runner};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{
    DraftPolicy, Drafter,
    testkit::{Pattern, ScriptedDrafter, on_cpu},
};
use mlx_rs::Array;

const DEPTHS: [usize; 6] = [1, 2, 3, 4, 8, 16];
const PROMPT: usize = 12;

fn golden(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name);
    assert!(fs::exists(&folder).is_ok_and(|there| there), "{} is missing", folder.display());
    folder
}

/// The model, the first tokens of its golden sequence, and the greedy ids after them.
fn load(name: &str) -> (Rc<dyn Model>, Vec<u32>, Vec<u32>) {
    on_cpu();
    let folder = golden(name);
    let expected = Array::load_safetensors(folder.join("expected.safetensors")).expect("golden data");
    let ids = |key: &str| expected[key].to_vec_cast::<u32>().expect("ids");
    let loaded = foretoken_models::load(&folder, LoadOptions::cpu()).expect("a golden model loads");
    (Rc::from(loaded.model), ids("tokens")[..PROMPT].to_vec(), ids("greedy_after_12"))
}

fn knows(pattern: Pattern, vocabulary: usize, answer: &[u32]) -> Rc<dyn Drafter> {
    let answer = answer.to_vec();
    Rc::new(ScriptedDrafter::new(pattern, vocabulary, move |tokens| {
        answer.get(tokens.len().saturating_sub(PROMPT)).copied().unwrap_or(0)
    }))
}

fn serve(runner: &mut Runner, request: &Request) -> (Vec<u32>, FinishReason) {
    let mut ids = Vec::new();
    let report = runner.generate(request, &mut |event: Event| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
        ControlFlow::Continue(())
    });
    (ids, report.expect("no failure").finish_reason)
}

#[test]
fn greedy_answers_are_the_reference_at_every_depth_and_limit() {
    for name in ["llama", "llama-rope3", "llama-q4"] {
        let (model, prompt, right) = load(name);
        let vocabulary = model.facts().vocabulary;
        for (pattern, depth) in
            [Pattern::Oracle, Pattern::Mix, Pattern::Wrong].into_iter().flat_map(|p| DEPTHS.map(|d| (p, d)))
        {
            let drafter = knows(pattern, vocabulary, &right);
            let mut runner =
                Runner::new(model.clone()).with_drafter(drafter, Some(DraftPolicy::Constant(depth)));
            for limit in [1, 2, 3, 7, 24] {
                let request = Request { max_tokens: Some(limit), ..Request::greedy(prompt.clone()) };
                let (ids, reason) = serve(&mut runner, &request);
                assert_eq!(ids, right[..limit], "{name}, {pattern:?} at depth {depth}, limit {limit}");
                assert_eq!(reason, FinishReason::Length);
            }
            let end = right[5];
            let first = right.iter().position(|&id| id == end).unwrap_or_default();
            let request =
                Request { max_tokens: Some(24), ends: vec![end], ..Request::greedy(prompt.clone()) };
            let (ids, reason) = serve(&mut runner, &request);
            assert_eq!((ids.as_slice(), reason), (&right[..first], FinishReason::Stop), "{name}, {depth}");
        }
    }
}

#[test]
fn seeded_answers_do_not_depend_on_drafts() {
    let (model, prompt, right) = load("llama");
    let sampling =
        SamplingOptions { temperature: 0.8, seed: Seed::Fixed(3), top_p: 0.95, ..SamplingOptions::greedy() };
    let request = Request { max_tokens: Some(24), sampling, ..Request::greedy(prompt) };
    let (plain, _) = serve(&mut Runner::new(model.clone()), &request);
    assert_ne!(plain, right, "it is really sampled");
    for (pattern, depth) in [Pattern::Oracle, Pattern::Mix].into_iter().flat_map(|p| DEPTHS.map(|d| (p, d))) {
        for answer in [&plain, &right] {
            let drafter = knows(pattern, model.facts().vocabulary, answer);
            let runner = Runner::new(model.clone()).with_drafter(drafter, Some(DraftPolicy::Constant(depth)));
            let (ids, _) = serve(&mut { runner }, &request);
            assert_eq!(ids, plain, "{pattern:?} at depth {depth}");
        }
    }
}
