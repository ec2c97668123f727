//! Drafters with caches of their own: kept level, and remembered together with the target's.

use std::rc::Rc;

use foretoken_model_base::Model;
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

/// Requests that do not draft, each for another reason.
fn undrafted(prompt: &[u32]) -> [Request; 4] {
    let sampling = SamplingOptions { logprobs: Some(2), ..SamplingOptions::greedy() };
    [
        greedy(prompt, TOKENS),
        Request { speculate: false, ..greedy(prompt, TOKENS) },
        Request { policy: Some(DraftPolicy::Constant(0)), ..greedy(prompt, TOKENS) },
        Request { sampling, ..greedy(prompt, TOKENS) },
    ]
}

#[test]
fn own_caches_are_level_whether_or_not_the_earlier_request_drafted() {
    let model = target();
    let first = prompt(1, 23);
    for (kind, request) in undrafted(&first).iter().enumerate() {
        let (mut warm, tracker) = runner(&model);
        let answer = serve(&mut warm, request).ids;
        assert_eq!(answer, cold(&model, request), "request {kind}");
        let counts = tracker.counts();
        assert_eq!(counts.proposals > 0, kind == 0, "request {kind}");
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
    for request in &undrafted(&prompt(4, 12))[1..] {
        let (mut runner, _) = runner(&model);
        let served = serve(&mut runner, request);
        assert_eq!((served.report().drafter, served.report().statistics.drafted), (None, 0));
        assert_eq!(served.rounds().len(), TOKENS);
    }
}
