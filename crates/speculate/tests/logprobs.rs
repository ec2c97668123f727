//! Reported log probabilities while speculating: the plain ones, of the raw distribution.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use std::rc::Rc;

use common::*;
use foretoken_model_base::Model;
use foretoken_models::testkit::tiny;
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{
    TokenLogprobs,
    testkit::{Pattern, Played, Request, ScriptedTarget, on_cpu},
};

/// Rows of one and of several tokens may sum in another order.
const LOGPROB_TOLERANCE: f32 = 1e-3;
const TOKENS: usize = 30;

fn reported(done: &Played) -> Vec<TokenLogprobs> {
    let tokens = done.runs.iter().flat_map(|run| &run.tokens).take(TOKENS);
    tokens.map(|token| token.logprobs.clone().expect("asked for")).collect()
}

#[test]
fn h34_every_token_has_the_plain_log_probability() {
    on_cpu();
    let model: Rc<dyn Model> = Rc::from(tiny(7).unwrap());
    let prompt = [2, 5, 7, 9];
    for temperature in [0.0, 0.9] {
        let options = SamplingOptions {
            temperature,
            seed: Seed::Fixed(4),
            logprobs: Some(3),
            ..SamplingOptions::greedy()
        };
        let ask = |depth| Request { options: options.clone(), ..Request::greedy(&prompt, TOKENS, depth) };
        let plain = played(model.clone(), None, &ask(0));
        let want = reported(&plain);
        for pattern in PATTERNS {
            let drafter = planned(pattern, model.facts().vocabulary, prompt.len(), &plain.ids);
            let done = played(model.clone(), Some(drafter), &ask(4));
            let got = reported(&done);
            assert_eq!((got.len(), &done.ids[..TOKENS]), (want.len(), &plain.ids[..TOKENS]));
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got.logprob - want.logprob).abs() < LOGPROB_TOLERANCE, "{pattern:?}, token {at}");
                assert!(got.logprob < 0.0 && got.top.len() == 3, "{pattern:?}, token {at}");
                for (got, want) in got.top.iter().zip(&want.top) {
                    assert!((got.1 - want.1).abs() < LOGPROB_TOLERANCE, "{pattern:?}, token {at}");
                }
            }
            let accepted = pattern == Pattern::Oracle && done.statistics.accepted == done.statistics.drafted;
            assert!(accepted || pattern != Pattern::Oracle);
        }
    }
}

#[test]
fn h35_filters_do_not_reach_the_report() {
    on_cpu();
    let target = Rc::new(ScriptedTarget::constant(&[2.0, 1.0, 0.0]));
    let want = [(0, -0.4076), (1, -1.4076), (2, -2.4076)];
    let options =
        SamplingOptions { temperature: 0.5, top_k: 1, logprobs: Some(3), ..SamplingOptions::greedy() };
    for pattern in PATTERNS {
        let request = Request { options: options.clone(), ..Request::greedy(&[0, 1], 8, 3) };
        let drafter = planned(pattern, 3, 2, &[0; 8]);
        for report in reported(&played(target.clone(), Some(drafter), &request)) {
            assert!((report.logprob - want[0].1).abs() < LOGPROB_TOLERANCE, "{report:?}");
            for (got, want) in report.top.iter().zip(want) {
                assert!(got.0 == want.0 && (got.1 - want.1).abs() < LOGPROB_TOLERANCE, "{report:?}");
            }
        }
    }
}
