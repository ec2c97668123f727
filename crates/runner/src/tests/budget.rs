//! How many tokens come out, and what is left when somebody leaves.

use std::{rc::Rc, time::Duration};

use foretoken_speculate::testkit::{Minimal, Pattern, on_cpu};

use super::*;

fn patterns() -> [Pattern; 4] {
    [Pattern::Oracle, Pattern::Wrong, Pattern::Mix, Pattern::Sometimes]
}

#[test]
fn h67_a_limit_of_n_gives_n_tokens_at_every_depth() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(7)).ids;
    for limit in [1, 2, 3, 7] {
        let alone = hear(&mut plain(Rc::new(target())), &asked(limit));
        assert_eq!(alone.ids, whole[..limit]);
        assert_at_rest(&alone);
        for (pattern, depth) in patterns().into_iter().flat_map(|p| DEPTHS.map(|d| (p, d))) {
            let heard = hear(&mut drafting(Rc::new(target()), scripted(pattern), depth), &asked(limit));
            assert_eq!(heard.ids, whole[..limit], "{pattern:?} at depth {depth}");
            assert_eq!(heard.report().usage.completion_tokens, limit);
            assert_eq!(heard.report().finish_reason, FinishReason::Length);
            assert_at_rest(&heard);
        }
    }
}

#[test]
fn h68_the_context_is_the_last_limit() {
    for (length, room) in [(30, 2), (31, 1)] {
        for depth in [0, 1, 8] {
            let model = Rc::new(target().context(32));
            let mut runner = drafting(model.clone(), scripted(Pattern::Oracle), depth);
            let request = Request { max_tokens: Some(100), ..Request::greedy(vec![1; length]) };
            let heard = hear(&mut runner, &request);
            assert_eq!(heard.ids.len(), room, "prompt {length}, depth {depth}");
            assert_eq!(heard.report().finish_reason, FinishReason::Length);
            assert!(model.largest_position() < Some(32), "{:?}", model.largest_position());
        }
    }
    for length in [32, 33, 5000] {
        let model = Rc::new(target().context(32));
        let heard = hear(&mut plain(model.clone()), &Request::greedy(vec![1; length]));
        let error = heard.error();
        assert!(error.contains(&length.to_string()) && error.contains("32"), "{error}");
        assert_eq!(model.forwards(), 0, "nothing was evaluated");
    }
}

#[test]
fn no_limit_and_a_limit_of_0_fill_the_context() {
    for max_tokens in [None, Some(0), Some(1000)] {
        let request = Request { max_tokens, ..Request::greedy(PROMPT) };
        let heard = hear(&mut plain(Rc::new(target().context(40))), &request);
        assert_eq!(heard.ids.len(), 40 - PROMPT.len());
    }
}

#[test]
fn h17_an_accepted_end_token_ends_the_answer_at_every_depth() {
    on_cpu();
    let prompt = [2, 5, 7, 9];
    let request = Request { max_tokens: Some(40), ..Request::greedy(prompt) };
    let tiny = || Rc::from(foretoken_models::testkit::tiny(1).expect("TINY builds"));
    let whole = hear(&mut plain(tiny()), &request).ids;
    let at = (9..whole.len()).find(|&k| !whole[..k].contains(&whole[k])).expect("a token that is new");
    let request = Request { ends: vec![whole[at]], ..request };
    for depth in 0..=8 {
        let vocabulary = tiny().facts().vocabulary;
        let oracle = by_heart(Pattern::Oracle, vocabulary, prompt.len(), &whole);
        let heard = hear(&mut drafting(tiny(), oracle, depth), &request);
        assert_eq!(heard.ids, whole[..at], "depth {depth}");
        assert_eq!(heard.report().finish_reason, FinishReason::Stop);
        assert_eq!(heard.report().usage.completion_tokens, at);
        let state = heard.state.as_ref().expect("admitted");
        assert_eq!(state.history.ids().last(), Some(&whole[at]), "the end token is recorded");
        assert_eq!(state.target.offset(), state.history.ids().len() - 1);
    }
}

#[test]
fn h18_delivered_budget_usage_and_logprobs_are_one_number() {
    for limit in 1..=12 {
        let mut request = asked(limit);
        for pattern in [Pattern::Oracle, Pattern::Wrong, Pattern::Mix] {
            let heard = hear(&mut drafting(Rc::new(target()), scripted(pattern), 4), &request);
            assert_eq!((heard.ids.len(), heard.report().usage.completion_tokens), (limit, limit));
        }
        request.sampling.logprobs = Some(3);
        let heard = hear(&mut drafting(Rc::new(target()), scripted(Pattern::Oracle), 4), &request);
        assert_eq!((heard.ids.len(), heard.logprobs.len()), (limit, limit));
        assert_eq!(heard.report().drafter, Some("scripted"), "log probabilities come while speculating");
        assert!(heard.logprobs.iter().all(|l| l.top.len() == 3 && l.logprob < 0.0));
    }
}

#[test]
fn h19_a_caller_may_leave_inside_an_accepted_run() {
    let whole = hear(&mut plain(Rc::new(target())), &asked(20)).ids;
    for drop_at in 1..=5 {
        for depth in [0, 5] {
            let mut runner = drafting(Rc::new(target()), scripted(Pattern::Oracle), depth);
            let left = hear_until(&mut runner, &asked(20), drop_at);
            assert_eq!(left.ids, whole[..drop_at]);
            assert_eq!(left.report().finish_reason, FinishReason::Cancelled);
            assert_eq!(left.report().usage.completion_tokens, drop_at);
            assert_at_rest(&left);
            assert_eq!(hear(&mut runner, &asked(20)).ids, whole, "the next request equals a cold run");
        }
    }
}

#[test]
fn a_sink_can_stop_an_answer_for_a_reason_of_its_own() {
    let mut runner = drafting(Rc::new(target()), scripted(Pattern::Oracle), 4);
    let (mut count, mut last) = (0, None);
    let report = runner.generate(&asked(20), &mut |event: Event| {
        count += usize::from(matches!(event, Event::Token { .. }));
        let stop = count == 3;
        last = Some(event);
        if stop { ControlFlow::Break(FinishReason::Stop) } else { ControlFlow::Continue(()) }
    });
    let report = report.expect("no failure");
    assert_eq!((report.finish_reason, report.usage.completion_tokens), (FinishReason::Stop, 3));
    assert_eq!(last, Some(Event::Done(Box::new(report))), "the last event says the same");
}

#[test]
fn prefill_leaves_one_token_and_reports_its_chunks() {
    let mut runner = plain(Rc::new(target())).with_prefill_chunk(2);
    let heard = hear(&mut runner, &asked(1));
    assert_eq!(heard.prefill, [(0, 4), (2, 4), (4, 4)]);
    assert_eq!(heard.report().timing.prefilled_tokens, 4);
    let heard = hear(&mut runner, &Request { max_tokens: Some(2), ..Request::greedy([7]) });
    assert_eq!((heard.prefill, heard.ids.len()), (vec![(0, 0)], 2));
}

#[test]
fn prefill_can_be_cancelled_between_chunks() {
    for cancel_at in [0, 2, 4] {
        let model = Rc::new(target());
        let mut runner = plain(model.clone()).with_prefill_chunk(2);
        let report = runner.generate(&asked(20), &mut |event: Event| match event {
            Event::Prefill { done, .. } if done == cancel_at => ControlFlow::Break(FinishReason::Cancelled),
            _ => ControlFlow::Continue(()),
        });
        assert_eq!(report.expect("no failure").finish_reason, FinishReason::Cancelled);
        assert_eq!(model.forwards(), cancel_at / 2, "nothing is evaluated after the cancel");
    }
}

#[test]
fn tokens_per_round_counts_what_rounds_produced() {
    let heard = hear(&mut drafting(Rc::new(target()), scripted(Pattern::Oracle), 4), &asked(10));
    let report = heard.report();
    assert_eq!(report.statistics.rounds, [(4, 4), (4, 4)]);
    assert_eq!((report.produced_tokens, report.tokens_per_round()), (10, 5.0));
    assert_eq!(report.drafter, Some("scripted"));
}

#[test]
fn a_request_may_turn_speculation_off_or_change_its_depth() {
    let mut runner = drafting(Rc::new(target()), scripted(Pattern::Oracle), 4);
    let off = hear(&mut runner, &Request { speculate: false, ..asked(10) });
    assert_eq!((off.report().drafter, off.report().statistics.drafted), (None, 0));
    let two = hear(&mut runner, &Request { policy: Some(DraftPolicy::Constant(2)), ..asked(10) });
    assert_eq!(two.report().statistics.deepest, 2);
    assert_eq!(off.ids, two.ids);
}

#[test]
fn peak_memory_is_measured_per_request() {
    let heard = hear(&mut plain(Rc::new(target())), &asked(3));
    assert!(heard.report().peak_memory > 0);
}

#[test]
fn plain_time_is_estimated_once_three_plain_rounds_were_measured() {
    // The first token of each answer fills the pipeline and is no measure.
    let mut runner = drafting(Rc::new(target()), scripted(Pattern::Oracle), 4);
    let off = Request { speculate: false, ..asked(3) };
    for known in [false, true] {
        let heard = hear(&mut runner, &off);
        assert_eq!(heard.report().estimated_plain_seconds.is_some(), known);
    }
    let accounting = hear(&mut runner, &asked(10)).report().accounting;
    assert!(accounting.actual > Duration::ZERO, "{accounting:?}");
    assert!(accounting.estimated_plain.is_some_and(|plain| plain > Duration::ZERO), "{accounting:?}");
    assert_eq!(accounting.probing, Duration::ZERO, "a constant depth tries nothing");
}

#[test]
fn a_request_may_choose_among_the_drafters() {
    let drafters = || -> Vec<Rc<dyn Drafter>> { vec![scripted(Pattern::Oracle), Rc::new(Minimal::new())] };
    let policy = Some(DraftPolicy::Constant(4));
    let mut runner = Runner::new(Rc::new(target())).with_drafters(drafters(), policy).expect("a set");
    let both = hear(&mut runner, &asked(10));
    let only = |name: &str| Request { drafters: Some(vec![name.into()]), ..asked(10) };
    let minimal = hear(&mut runner, &only("minimal"));
    assert_eq!((both.report().drafter, minimal.report().drafter), (Some("scripted"), Some("minimal")));
    assert_eq!(both.ids, minimal.ids);
    let sources = &both.report().statistics.sources;
    assert_eq!((sources[0].drafted, sources[0].accepted, sources[1].drafted), (8, 8, 0));
    let unknown = hear(&mut runner, &only("scripted2"));
    assert!(unknown.error().contains("one of scripted, minimal"), "{}", unknown.error());
    let twice = vec![scripted(Pattern::Oracle), scripted(Pattern::Wrong)];
    let refused =
        Runner::new(Rc::new(target())).with_drafters(twice, None).map(|_| ()).expect_err("one name");
    assert!(refused.to_string().contains("scripted twice"), "{refused}");
}
