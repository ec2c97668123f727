//! Requests that are refused, and requests that fail half way.

use std::rc::Rc;

use foretoken_sample::SamplingOptions;
use foretoken_speculate::testkit::{Fault, FaultyDrafter, PairDrafter, Pattern, ScriptedTarget, on_cpu};

use super::*;
use crate::FailureKind;

#[test]
fn bad_requests_are_refused_before_anything_is_evaluated() {
    let sampling = |change: fn(&mut SamplingOptions)| {
        let mut sampling = SamplingOptions::greedy();
        change(&mut sampling);
        Request { sampling, ..asked(4) }
    };
    let table = [
        (Request::greedy([]), "empty"),
        (Request::greedy(vec![1; 5000]), "5000"),
        (Request::greedy([1, V as u32]), "vocabulary size 29"),
        (sampling(|s| s.temperature = -1.0), "temperature"),
        (sampling(|s| s.temperature = f32::NAN), "temperature"),
        (sampling(|s| s.top_p = 1.5), "top_p"),
        (sampling(|s| s.min_p = -0.1), "min_p"),
        (sampling(|s| s.repeat_penalty = 0.0), "repeat_penalty"),
        (sampling(|s| s.repeat_last_n = -2), "repeat_last_n"),
    ];
    let model = Rc::new(target());
    let mut runner = drafting(model.clone(), scripted(Pattern::Oracle), 4);
    for (request, word) in table {
        let mut events = Vec::new();
        let result = runner.generate(&request, &mut |event: Event| {
            events.push(event);
            ControlFlow::Continue(())
        });
        let message = result.expect_err(word).to_string();
        assert!(message.to_lowercase().replace('-', "_").contains(word), "{word}: {message}");
        assert_eq!(events, [Event::Failed { message, kind: FailureKind::Request }], "one event");
    }
    assert_eq!(model.forwards(), 0);
    assert_eq!(
        runner
            .generate(&asked(4), &mut |_: Event| ControlFlow::Continue(()))
            .map(|r| r.usage.completion_tokens)
            .ok(),
        Some(4)
    );
}

#[test]
fn h27_logits_that_are_not_finite_end_the_request_with_the_step() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for temperature in [0.0, 0.8] {
        let sampling = SamplingOptions { temperature, top_p: 0.9, ..SamplingOptions::greedy() };
        let request = Request { max_tokens: Some(4), sampling, ..Request::greedy([1]) };
        for row in [[nan, 1.0, 2.0], [1.0, nan, 2.0], [1.0, inf, 2.0], [-inf, -inf, -inf]] {
            on_cpu();
            let heard = hear(&mut plain(Rc::new(ScriptedTarget::constant(&row))), &request);
            let error = heard.error();
            assert!(error.contains("finite") && error.contains("step 0"), "{row:?}: {error}");
            assert!(heard.ids.is_empty());
        }
        let legal = ScriptedTarget::constant(&[-inf, 1.0, 2.0]);
        assert_eq!(hear(&mut plain(Rc::new(legal)), &request).ids.len(), 4, "a single −∞ is legal");
    }
}

#[test]
fn h27_tokens_before_the_failing_step_are_delivered() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(10)).ids;
    for depth in [0, 1, 4, 8] {
        let broken = Rc::new(target().nan_at(PROMPT.len() + 5));
        let mut runner = drafting(broken, scripted(Pattern::Oracle), depth);
        let heard = hear(&mut runner, &asked(10));
        assert_eq!(heard.ids, whole[..5], "depth {depth}");
        assert!(heard.error().contains("step 5"), "{}", heard.error());
        assert_at_rest(&heard);
        assert_eq!(hear(&mut runner, &asked(5)).ids, whole[..5], "the next request works");
    }
}

#[test]
fn caches_are_level_after_a_forward_that_fails() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(12)).ids;
    for depth in [0, 3] {
        for failing in 0..6 {
            let runner = drafting(Rc::new(target().fail_at(failing)), scripted(Pattern::Mix), depth);
            let mut runner = runner.with_prefill_chunk(2);
            let heard = hear(&mut runner, &asked(12));
            assert!(heard.error().contains(&format!("failure {failing}")), "{}", heard.error());
            assert_eq!(heard.ids, whole[..heard.ids.len()]);
            let state = heard.state.as_ref().expect("admitted");
            state.target.level().expect("level");
            assert!(state.target.offset() < state.history.ids().len());
            if failing >= 2 {
                assert_at_rest(&heard);
            }
            assert_eq!(hear(&mut runner, &asked(12)).ids, whole, "the next request works");
        }
    }
}

#[test]
fn an_evaluation_that_fails_poisons_the_caches_and_only_them() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(8)).ids;
    for depth in [0, 3] {
        for failing in [0, 1, 3] {
            let model = Rc::new(target().fail_evaluation_at(failing));
            let mut runner = drafting(model, scripted(Pattern::Wrong), depth).with_prefill_chunk(2);
            let heard = hear(&mut runner, &asked(8));
            assert!(heard.error.is_some(), "forward {failing} fails at depth {depth}");
            assert_eq!(heard.ids, whole[..heard.ids.len()]);
            assert!(heard.state.as_ref().is_some_and(|state| state.target.is_poisoned()));
            assert_eq!(hear(&mut runner, &asked(8)).ids, whole, "the next request works");
        }
    }
}

#[test]
fn a_failing_drafter_ends_speculation_once_and_never_the_answer() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(20)).ids;
    for fault in
        [Fault::Open, Fault::Propose(1), Fault::ProposePanic(1), Fault::Committed(2), Fault::NanRow(1)]
    {
        let faulty = Rc::new(FaultyDrafter::new(scripted(Pattern::Mix), V, fault));
        let mut runner = drafting(Rc::new(target()), faulty, 4);
        let heard = hear(&mut runner, &asked(20));
        assert_eq!(heard.ids, whole);
        assert_eq!(heard.ended.len(), 1, "{:?}", heard.ended);
        assert_at_rest(&heard);
    }
}

#[test]
fn own_caches_rest_level_after_an_answer_and_a_cancel_and_never_ahead_after_an_error() {
    let check = |heard: &Heard, what: &str| {
        let state = heard.state.as_ref().expect("admitted");
        let own = state.own.as_ref().expect("pairs are cached");
        assert!(!own.is_poisoned() && !state.target.is_poisoned(), "{what}");
        own.level().expect("level");
        let (own, target) = (own.offset(), state.target.offset());
        assert!(own == target || (what == "error" && own < target), "{what}: {own} of {target}");
    };
    for depth in [1, 3, 8] {
        let pairs = || Rc::new(PairDrafter::new(V));
        let mut runner = drafting(Rc::new(target()), pairs(), depth).with_prefill_chunk(2);
        check(&hear(&mut runner, &asked(20)), "answer");
        for limit in 0..6 {
            check(&hear_until(&mut runner, &asked(20), limit), "cancel");
        }
        for failing in 0..8 {
            let mut broken =
                drafting(Rc::new(target().fail_at(failing)), pairs(), depth).with_prefill_chunk(2);
            let heard = hear(&mut broken, &asked(20));
            assert!(heard.error.is_some());
            check(&heard, "error");
        }
    }
}

#[test]
fn a_token_past_the_stop_cannot_fail_the_answer() {
    // The third token is wanted by nobody, but the plain decoder is already computing it.
    for broken in [target().nan_at(PROMPT.len() + 2), target().fail_evaluation_at(3)] {
        let heard = hear_until(&mut plain(Rc::new(broken)), &asked(20), 2);
        assert_eq!(heard.ids.len(), 2);
        assert_eq!(heard.report().finish_reason, FinishReason::Cancelled);
    }
}
