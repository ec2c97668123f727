//! Drafters with caches of their own: kept level, and remembered together with the target's.

use std::{path::PathBuf, rc::Rc};

use foretoken_draft_mtp as mtp;
use foretoken_model_base::{LoadOptions, Model};
use foretoken_runner::{Request, Runner};
use foretoken_sample::SamplingOptions;
use foretoken_speculate::{
    DraftPolicy, Drafter,
    testkit::{PairDrafter, ScriptedTarget, Tracker, on_cpu},
};

use crate::support::*;

const V: usize = 64;
const DEPTH: usize = 3;
const TOKENS: usize = 14;

/// A target whose next token depends on every token before, so that hidden states differ.
fn target() -> Rc<dyn Model> {
    on_cpu();
    Rc::new(ScriptedTarget::with_logits(V, |tokens| {
        let sum = tokens.iter().fold(7_u32, |sum, &t| sum.wrapping_mul(31).wrapping_add(t));
        let logit = |id: usize| ((sum >> 3).wrapping_mul(id as u32 * 2 + 1) >> 8) as f32 / (1 << 22) as f32;
        (0..V).map(logit).collect()
    }))
}

fn runner(model: &Rc<dyn Model>) -> (Runner, Rc<Tracker>) {
    let tracker = Rc::new(Tracker::new(Rc::new(PairDrafter::new(V))));
    let drafter: Rc<dyn Drafter> = tracker.clone();
    let runner = Runner::new(model.clone()).with_drafter(drafter, Some(DraftPolicy::Constant(DEPTH)));
    (runner.with_prefix_cache(Some(options(true))).with_prefill_chunk(5), tracker)
}

/// Requests of which the first two draft, and the others do not, each for another reason.
fn mixed(prompt: &[u32]) -> [Request; 5] {
    let sampling = SamplingOptions { logprobs: Some(2), ..SamplingOptions::greedy() };
    [
        greedy(prompt, TOKENS),
        Request { sampling, ..greedy(prompt, TOKENS) },
        Request { speculate: false, ..greedy(prompt, TOKENS) },
        Request { policy: Some(DraftPolicy::Constant(0)), ..greedy(prompt, TOKENS) },
        Request { drafters: Some(Vec::new()), ..greedy(prompt, TOKENS) },
    ]
}

#[test]
fn own_caches_are_level_whether_or_not_the_earlier_request_drafted() {
    let model = target();
    let first = prompt(1, 23);
    for (kind, request) in mixed(&first).iter().enumerate() {
        let (mut warm, tracker) = runner(&model);
        let answer = serve(&mut warm, request).ids;
        assert_eq!(answer, cold(&model, request), "request {kind}");
        let counts = tracker.counts();
        assert_eq!(counts.proposals > 0, kind < 2, "request {kind}");
        assert!(
            counts.committed().is_some_and(|heard| heard.starts_with(&first)),
            "request {kind} was heard"
        );
        // The next turn drafts: what it proposes depends on every pair, also on those it did not compute.
        let turn = greedy(&[&first[..], &answer, &prompt(2, 9)].concat(), TOKENS);
        let (mut fresh, _) = runner(&model);
        let (got, want) = (serve(&mut warm, &turn), serve(&mut fresh, &turn));
        assert_eq!((&got.ids, want.cached()), (&want.ids, 0));
        assert_eq!(got.cached(), first.len() + answer.len() - 1, "request {kind}");
        assert_eq!(got.rounds(), want.rounds(), "request {kind}: the same drafts as cold");
        assert!(got.report().statistics.drafted > 0);
        assert!(got.ended.is_empty() && want.ended.is_empty());
    }
}

#[test]
fn a_cancelled_prefill_leaves_own_caches_level() {
    let model = target();
    let asked = greedy(&prompt(3, 40), TOKENS);
    let (mut fresh, _) = runner(&model);
    let want = serve(&mut fresh, &asked);
    for leave in [5, 10, 25, 35] {
        let (mut warm, _) = runner(&model);
        serve_until(&mut warm, &asked, Leave::Prefill(leave));
        let got = serve(&mut warm, &asked);
        assert_eq!((&got.ids, got.rounds()), (&want.ids, want.rounds()), "left after {leave}");
        assert_eq!(got.cached(), leave, "the pair at the frontier was completed");
    }
}

#[test]
fn a_request_that_only_listens_is_reported_as_plain() {
    let model = target();
    for request in &mixed(&prompt(4, 12))[2..] {
        let (mut runner, _) = runner(&model);
        let served = serve(&mut runner, request);
        assert_eq!((served.report().drafter, served.report().statistics.drafted), (None, 0));
        assert_eq!(served.rounds().len(), TOKENS);
    }
}

fn repository(path: &str) -> PathBuf {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    assert!(path.exists(), "{} is missing: run `cargo xtask model` first", path.display());
    path
}

#[test]
fn a_sequential_head_proposes_after_a_remembered_turn_what_it_proposes_cold() {
    on_cpu();
    let file = repository("models/fetched/SmolLM2-135M-Instruct.Q4_1.gguf");
    let model: Rc<dyn Model> = Rc::from(foretoken_models::load(&file, LoadOptions::cpu()).unwrap().model);
    let head = repository("models/smollm2-135m-mtp/mtp-seq.safetensors");
    let head = mtp::load(&head, model.as_ref()).unwrap();
    let runner = || Runner::new(model.clone()).with_drafter(head.clone(), Some(DraftPolicy::Constant(DEPTH)));
    let chat: serde_json::Value =
        serde_json::from_slice(&std::fs::read(repository("golden/smollm2-greedy-trace.json")).unwrap())
            .unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(chat[0][key].clone()).unwrap() };
    let (mut sequence, answer) = (ids("prompt_ids"), ids("plain"));
    let mut warm = runner();
    // The first turn only listens; what it heard must be good enough to draft with.
    let first = serve(&mut warm, &Request { speculate: false, ..greedy(&sequence, TOKENS) });
    assert_eq!(first.ids, answer[..TOKENS]);
    sequence.extend(&answer[..TOKENS + 3]);
    let turn = greedy(&sequence, 2 * TOKENS);
    let (got, want) = (serve(&mut warm, &turn), serve(&mut runner(), &turn));
    assert_eq!(got.cached(), sequence.len() - 4, "all but the new tokens and the one before them");
    assert_eq!((&got.ids, got.rounds()), (&want.ids, want.rounds()));
    assert!(got.report().statistics.accepted > 0 && got.ended.is_empty(), "{:?}", got.ended);
}
