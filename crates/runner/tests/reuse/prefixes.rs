//! Prompts that begin alike.

use foretoken_runner::{FailureKind, PrefixOptions, Request, Runner, RunnerError};
use foretoken_sample::SamplingOptions;
use foretoken_speculate::testkit::Pattern;

use crate::support::*;

const TOKENS: usize = 12;

fn joined(a: &[u32], b: &[u32]) -> Vec<u32> {
    [a, b].concat()
}

#[test]
fn h05_a_shorter_prompt_never_gets_the_state_of_a_longer_one() {
    let a = prompt(1, 30);
    let b = joined(&a[..20], &[61, 62]);
    for (name, model) in models() {
        let want = cold(&model, &greedy(&b, TOKENS));
        for options in [options(true), options(false), PrefixOptions::default()] {
            let mut runner = warm(&model, options.clone());
            serve(&mut runner, &greedy(&a, TOKENS));
            let first = serve(&mut runner, &greedy(&b, TOKENS));
            assert_eq!(first.ids, want, "{name} {options:?}");
            let shared = if cuttable(name) { 20 } else { 20 / options.interval * options.interval };
            assert_eq!(first.cached(), shared, "{name} {options:?}");
            let again = serve(&mut runner, &greedy(&b, TOKENS));
            assert_eq!(again.ids, want, "{name} {options:?}");
            assert!(again.cached() >= first.cached() && again.cached() < b.len(), "{name} {options:?}");
        }
    }
}

#[test]
fn h06_a_point_that_the_window_has_left_is_computed_again() {
    let a = prompt(2, 40);
    let b = joined(&a[..5], &prompt(3, 20));
    for (name, model) in models() {
        let want = cold(&model, &greedy(&b, TOKENS));
        for keep_live in [true, false] {
            let off = PrefixOptions { interval: 0, before_end: 0, keep_live, ..PrefixOptions::default() };
            let mut runner = warm(&model, off);
            serve(&mut runner, &greedy(&a, TOKENS));
            let served = serve(&mut runner, &greedy(&b, TOKENS));
            assert_eq!(served.ids, want, "{name}");
            assert_eq!(served.cached(), if cuttable(name) { 5 } else { 0 }, "{name}");
            // A boundary that the first request names brings the point back.
            let mut runner = warm(&model, PrefixOptions { keep_live, ..PrefixOptions::default() });
            serve(&mut runner, &Request { boundaries: vec![5], ..greedy(&a, TOKENS) });
            let served = serve(&mut runner, &greedy(&b, TOKENS));
            assert_eq!((served.ids, served.result.unwrap().usage.cached_tokens), (want.clone(), 5), "{name}");
        }
    }
}

#[test]
fn h09_a_prompt_that_is_cached_as_a_whole_still_evaluates_a_token() {
    let whole = prompt(4, 17);
    for (name, model) in models() {
        for keep_live in [true, false] {
            let mut runner = warm(&model, options(keep_live));
            for asked in [&whole[..], &whole, &whole[..16], &whole[..16], &whole[..1], &whole[..1]] {
                let served = serve(&mut runner, &greedy(asked, TOKENS));
                assert_eq!(served.ids, cold(&model, &greedy(asked, TOKENS)), "{name}, {}", asked.len());
                assert!(served.cached() < asked.len(), "{name}: {} of {}", served.cached(), asked.len());
                let report = served.report();
                assert_eq!(report.timing.prefilled_tokens + served.cached(), asked.len() - 1, "{name}");
            }
            let again = serve(&mut runner, &greedy(&whole, TOKENS));
            assert!(again.cached() >= 13, "{name}: only {} of 17 reused", again.cached());
            let empty = serve(&mut runner, &greedy(&[], TOKENS));
            assert!(matches!(empty.result, Err(RunnerError::EmptyPrompt { .. })));
            assert_eq!(serve(&mut runner, &greedy(&whole, TOKENS)).ids, again.ids);
        }
    }
}

#[test]
fn h32_penalties_see_the_whole_sequence_cold_and_warm() {
    let asked = [2, 5, 7, 9];
    let sampling = SamplingOptions { repeat_penalty: 1.5, ..SamplingOptions::greedy() };
    let request = Request { sampling, ..greedy(&asked, 20) };
    // SUM's logits are too sharp for a penalty to change anything.
    for (name, model) in models().into_iter().filter(|(name, _)| *name != "sum") {
        let want = cold(&model, &request);
        assert_ne!(want, cold(&model, &greedy(&asked, 20)), "{name}: the penalty matters");
        for chunk in [1, 2, 3, 512] {
            for depth in [0, 4] {
                let drafter = Knows::new(Pattern::Mix);
                drafter.learn(&asked, &want);
                let mut runner = drafter
                    .runner(&model, depth)
                    .with_prefix_cache(Some(PrefixOptions { interval: 1, ..PrefixOptions::default() }))
                    .with_prefill_chunk(chunk);
                let what = format!("{name}, chunk {chunk}, depth {depth}");
                let first = serve(&mut runner, &request);
                assert_eq!((&first.ids, first.cached()), (&want, 0), "{what}");
                let second = serve(&mut runner, &request);
                assert_eq!((&second.ids, second.cached()), (&want, 3), "{what}");
            }
        }
    }
}

#[test]
fn a_growing_chat_prefills_only_what_is_new() {
    for (name, model) in models() {
        for depth in [0, 3] {
            let mut chat = prompt(5, 21);
            let drafter = Knows::new(Pattern::Mix);
            let mut runner = drafter.runner(&model, depth);
            let mut known = 0;
            for turn in 0..6 {
                let request = greedy(&chat, 9);
                let want = cold(&model, &request);
                drafter.learn(&chat, &want);
                let served = serve(&mut runner, &request);
                assert_eq!(served.ids, want, "{name}, turn {turn}");
                if depth == 0 {
                    assert_eq!(served.cached(), known, "{name}, turn {turn}: all that was computed");
                }
                chat.extend(&served.ids);
                known = chat.len() - 1;
                chat.extend(prompt(turn + 10, 7));
            }
        }
    }
}

#[test]
fn switching_it_off_and_forgetting_make_every_request_cold() {
    let asked = greedy(&prompt(6, 20), 4);
    for (_, model) in models() {
        let mut off = Runner::new(model.clone()).with_prefix_cache(None);
        let mut on = Runner::new(model.clone());
        for _ in 0..2 {
            assert_eq!(serve(&mut off, &asked).cached(), 0);
            assert_eq!(serve(&mut on, &asked).cached(), 0);
            assert!(on.prefix_cache().is_some_and(|cache| cache.bytes() > 0));
            on.clear_prefix_cache();
            assert!(on.prefix_cache().is_none());
        }
    }
}

#[test]
fn a_boundary_outside_the_prompt_is_the_requests_own_fault() {
    let (_, model) = models().into_iter().next().unwrap();
    let mut runner = Runner::new(model);
    let served = serve(&mut runner, &Request { boundaries: vec![3, 7], ..greedy(&prompt(1, 6), 2) });
    let error = served.result.expect_err("7 lies outside");
    assert_eq!(error.kind(), FailureKind::Request);
    assert!(error.to_string().contains("at most 6") && error.to_string().contains('7'), "{error}");
    let served = serve(&mut runner, &Request { boundaries: vec![6, 0, 3, 3], ..greedy(&prompt(1, 6), 2) });
    assert_eq!(served.ids.len(), 2, "unsorted ones are fine");
}
