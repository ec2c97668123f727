//! Folded states keep committed tokens only, whatever was drafted and rejected.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::rc::Rc;

use common::*;
use foretoken_cache::{CacheSet, Layer};
use foretoken_model_base::{Batch, Model};
use foretoken_models::testkit::{HYB_KERNEL, hyb};
use foretoken_sample::{Sampler, SamplingOptions};
use foretoken_speculate::{
    DraftPolicy, Drafter, RequestState, make_decoder,
    testkit::{Pattern, Request, ScriptedDrafter, SumModel, SumState, on_cpu, prefill},
};

const V: usize = 64;
const TOKENS: usize = 60;
const PROMPTS: [&[u32]; 4] = [&[7], &[2, 5], &[63, 0, 31], &[11, 42, 3, 3, 60, 17, 8, 1, 29]];
/// Largest difference between states of one sequence that was cut in different ways.
const STATE_TOLERANCE: f32 = 1e-5;

fn sum() -> Rc<SumModel> {
    on_cpu();
    Rc::new(SumModel::new(V))
}

fn hybrid() -> Rc<dyn Model> {
    on_cpu();
    Rc::from(hyb(7).unwrap())
}

/// Decodes `tokens` and calls `check` with the state at rest after every run.
fn rounds(
    model: &Rc<dyn Model>,
    drafter: Rc<dyn Drafter>,
    (prompt, tokens, depth): (&[u32], usize, usize),
    mut check: impl FnMut(&RequestState, usize),
) -> Vec<u32> {
    let sampler = Sampler::new(SamplingOptions::greedy(), model.facts().vocabulary).unwrap();
    let mut state = RequestState::new(model.as_ref(), None, sampler, prompt, &[]).unwrap();
    let policy = DraftPolicy::Constant(depth);
    let mut decoder = make_decoder(model.clone(), Some(drafter), policy, &state).unwrap();
    prefill(model.as_ref(), decoder.as_mut(), &mut state).unwrap();
    let mut ids = Vec::new();
    while ids.len() < tokens {
        let run = decoder.next(&mut state, tokens - ids.len()).unwrap();
        ids.extend(run.tokens.iter().map(|token| token.id));
        check(&state, run.accepted);
    }
    decoder.finish(&mut state).unwrap();
    check(&state, 0);
    ids
}

/// The tokens that the caches must hold.
fn committed(state: &RequestState) -> &[u32] {
    let history = state.history.ids();
    assert_eq!(state.target.offset(), history.len() - 1);
    &history[..history.len() - 1]
}

/// Right for the first `right` drafts after the prompt, then wrong.
fn right_for(right: usize, vocabulary: usize, prompt: usize, answer: &[u32]) -> Rc<dyn Drafter> {
    let answer = answer.to_vec();
    Rc::new(ScriptedDrafter::new(Pattern::Oracle, vocabulary, move |tokens| {
        let at = tokens.len() - prompt;
        (answer[at % answer.len()] + u32::from(at >= right)) % vocabulary as u32
    }))
}

#[test]
fn h21_sum_keeps_no_rejected_token() {
    let sum = sum();
    let model: Rc<dyn Model> = sum.clone();
    for prompt in PROMPTS {
        let plain = played(model.clone(), None, &Request::greedy(prompt, TOKENS, 0)).ids;
        let mut path = prompt.to_vec();
        (0..TOKENS).for_each(|_| path.push(sum.wants(&path)));
        assert_eq!(plain, path[prompt.len()..], "plain steps, one of them always under way");
        for pattern in [Pattern::Wrong, Pattern::Mix, Pattern::Oracle, Pattern::Sometimes] {
            for depth in 1..=6 {
                let drafter = planned(pattern, V, prompt.len(), &plain);
                let ids = rounds(&model, drafter, (prompt, TOKENS, depth), |state, _| {
                    let cached = SumState::cached(&state.target).unwrap();
                    assert_eq!(cached, SumState::of(committed(state)), "{pattern:?} at depth {depth}");
                });
                assert_eq!(ids[..TOKENS], plain, "{pattern:?} at depth {depth}");
            }
        }
    }
}

#[test]
fn h22_the_tail_holds_the_last_committed_tokens_for_every_block_and_rejection() {
    let model: Rc<dyn Model> = sum();
    for prompt in PROMPTS {
        let plain = played(model.clone(), None, &Request::greedy(prompt, TOKENS, 0)).ids;
        for block in 2..=6 {
            for accepted in 0..block {
                let drafter = right_for(accepted, V, prompt.len(), &plain);
                // After a prompt of one token nothing is committed yet, so the first round drafts nothing.
                let mut first = prompt.len() > 1;
                rounds(&model, drafter, (prompt, TOKENS, block - 1), |state, got| {
                    assert!(!first || got == accepted, "block {block}: {got} accepted, not {accepted}");
                    first = false;
                    let cached = SumState::cached(&state.target).unwrap();
                    assert_eq!(cached, SumState::of(committed(state)), "block {block}, {accepted} accepted");
                });
            }
        }
    }
}

#[test]
fn h22_convolution_and_delta_states_equal_a_twins_for_every_block_and_rejection() {
    let model = hybrid();
    let vocabulary = model.facts().vocabulary;
    for prompt in PROMPTS {
        let plain = played(model.clone(), None, &Request::greedy(prompt, 24, 0)).ids;
        for block in 2..=6 {
            for accepted in 0..block {
                let drafter = right_for(accepted, vocabulary, prompt.len(), &plain);
                // One round: more of them would only repeat others.
                rounds(&model, drafter, (prompt, accepted + 1, block - 1), |state, _| {
                    let off = difference(model.as_ref(), &state.target, committed(state));
                    assert!(off <= STATE_TOLERANCE, "block {block}, {accepted} accepted: off by {off:.1e}");
                });
            }
        }
    }
}

/// The largest difference between the recurrent states of `set` and of a twin that was fed `tokens` only.
fn difference(model: &dyn Model, set: &CacheSet, tokens: &[u32]) -> f32 {
    let mut twin = model.make_caches();
    if !tokens.is_empty() {
        let batch = Batch::from_ids(tokens, 0).unwrap();
        model.forward(&batch, &mut [&mut twin]).unwrap().last.eval().unwrap();
    }
    let mut most = 0.0_f32;
    for (own, twin) in set.layers().iter().zip(twin.layers()) {
        let (Layer::Recurrent(own), Layer::Recurrent(twin)) = (own, twin) else { continue };
        let (own, twin) = (own.state().unwrap(), twin.state().unwrap());
        for (own, twin) in [(own.tail, twin.tail), (own.state, twin.state)] {
            let (Some(own), Some(twin)) = (own, twin) else {
                assert!(tokens.is_empty());
                continue;
            };
            let read =
                |array: mlx_rs::Array| -> Vec<f32> { array.contiguous().unwrap().to_vec_exact().unwrap() };
            assert_eq!(own.shape(), twin.shape());
            assert!(own.ndim() != 3 || own.dim(1) as usize == HYB_KERNEL - 1);
            most = read(own).iter().zip(read(twin)).fold(most, |most, (a, b)| most.max((a - b).abs()));
        }
    }
    most
}
