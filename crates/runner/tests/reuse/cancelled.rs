//! Callers that leave: what was computed until then is not lost, and nothing else is kept.

use foretoken_runner::{FinishReason, PrefixOptions, Request};
use foretoken_sample::SplitMix64;
use foretoken_speculate::{DraftPolicy, testkit::Pattern};

use crate::support::*;

const TOKENS: usize = 12;

#[test]
fn h11_each_attempt_goes_on_from_the_last_restore_point_of_the_one_before() {
    let p = prompt(1, 41);
    let longer = [&p[..], &[3, 1, 4, 1]].concat();
    for (name, model) in models() {
        for keep_live in [true, false] {
            let mut runner = warm(&model, options(keep_live)).with_prefill_chunk(2);
            let mut cached = Vec::new();
            for (leave, least) in [(Leave::Prefill(16), 0), (Leave::Prefill(30), 16), (Leave::Never, 24)] {
                let served = serve_until(&mut runner, &greedy(&p, TOKENS), leave);
                assert!(served.cached() >= least, "{name}: {} reused, not {least}", served.cached());
                cached.push(served.cached());
            }
            let last = serve(&mut runner, &greedy(&longer, TOKENS));
            assert_eq!(last.ids, cold(&model, &greedy(&longer, TOKENS)), "{name}");
            assert!(last.cached() >= 40, "{name}: {} of 41 reused", last.cached());
            cached.push(last.cached());
            assert!(cached.is_sorted(), "{name}: counts never fall: {cached:?}");
        }
    }
}

#[test]
fn h19_leaving_inside_an_accepted_run_costs_the_next_request_nothing() {
    let asked = greedy(&prompt(2, 20), 20);
    for (name, model) in models() {
        let want = cold(&model, &asked);
        for drop_at in 1..=5 {
            for depth in [0, 5] {
                let drafter = Knows::new(Pattern::Oracle);
                drafter.learn(&asked.prompt, &want);
                let mut runner = drafter.runner(&model, depth);
                let left = serve_until(&mut runner, &asked, Leave::Tokens(drop_at));
                assert_eq!(
                    (&left.ids[..], left.report().finish_reason),
                    (&want[..drop_at], FinishReason::Cancelled)
                );
                let again = serve(&mut runner, &asked);
                assert_eq!(again.ids, want, "{name}, depth {depth}, left after {drop_at}");
                // Four tokens before the end lies a restore point, whatever the kinds of the layers.
                assert!(again.cached() >= 16, "{name}: {} reused", again.cached());
                let answer = [&asked.prompt[..], &want[..drop_at]].concat();
                let next = serve(&mut runner, &Request { prompt: answer, ..greedy(&[], 20 - drop_at) });
                assert_eq!(next.ids, want[drop_at..], "{name}, depth {depth}");
            }
        }
    }
}

#[test]
fn h66_a_cancelled_prefill_goes_on_where_it_was() {
    let asked = greedy(&prompt(3, 64), TOKENS);
    for (name, model) in models() {
        let want = cold(&model, &asked);
        for keep_live in [true, false] {
            let mut runner = warm(&model, options(keep_live)).with_prefill_chunk(8);
            let first = serve_until(&mut runner, &asked, Leave::Prefill(40));
            let second = serve_until(&mut runner, &asked, Leave::Prefill(56));
            let third = serve(&mut runner, &asked);
            let cached = [first.cached(), second.cached(), third.cached()];
            println!("{name}, sets kept alive {keep_live}: {cached:?} reused");
            assert!(cached[0] == 0 && cached[1] >= 40 && cached[2] >= 56, "{name}: {cached:?}");
            assert!(cached.is_sorted_by(|a, b| a < b), "{name}: {cached:?}");
            assert_eq!(third.ids, want, "{name}");
        }
    }
}

#[test]
fn a_request_that_leaves_before_anything_leaves_nothing() {
    let asked = greedy(&prompt(4, 30), TOKENS);
    for (name, model) in models() {
        let mut runner = warm(&model, options(true));
        let left = serve_until(&mut runner, &asked, Leave::Prefill(0));
        assert_eq!((left.cached(), runner.prefix_cache().unwrap().len()), (0, 0), "{name}");
        let served = serve(&mut runner, &asked);
        assert_eq!((served.cached(), served.ids), (0, cold(&model, &asked)), "{name}");
    }
}

#[test]
fn any_sequence_of_requests_and_departures_is_answered_like_a_cold_one() {
    let stems: Vec<Vec<u32>> = (0..3).map(|seed| prompt(seed, 48)).collect();
    for (name, model) in models() {
        for seed in 0..6 {
            let mut random = SplitMix64::new(seed);
            let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
            let (budget_bytes, keep_live) = ([usize::MAX, 150_000][below(2)], below(2) == 0);
            let drafter = Knows::new([Pattern::Mix, Pattern::Oracle, Pattern::Wrong][below(3)]);
            let mut runner = drafter
                .runner(&model, 3)
                .with_prefix_cache(Some(PrefixOptions { budget_bytes, ..options(keep_live) }))
                .with_prefill_chunk(1 + below(9));
            for step in 0..14 {
                let (stem, cut) = (&stems[below(3)], 1 + below(48));
                let ids = [&stem[..cut], &prompt(below(3) as u32 + 50, below(12))[..]].concat();
                let request = Request {
                    boundaries: vec![below(ids.len() + 1)],
                    speculate: below(3) > 0,
                    policy: Some(DraftPolicy::Constant(below(5))),
                    ..greedy(&ids, 1 + below(12))
                };
                let want = cold(&model, &request);
                drafter.learn(&ids, &want);
                let leave = match below(4) {
                    0 => Leave::Prefill(below(ids.len())),
                    1 => Leave::Tokens(1 + below(6)),
                    _ => Leave::Never,
                };
                let served = serve_until(&mut runner, &request, leave);
                let what = format!("{name}, seed {seed}, request {step}: {request:?}, {leave:?}");
                assert_eq!(served.ids, want[..served.ids.len()], "{what}");
                let left = served.report().finish_reason == FinishReason::Cancelled;
                assert!(left || served.ids.len() == want.len(), "{what}");
            }
        }
    }
}
