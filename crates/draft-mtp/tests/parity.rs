//! Random heads on small targets: bad drafts must change nothing but the rounds.

mod common;

use common::{STYLES, golden_llama, play, random_drafter, tiny};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{DraftPolicy, testkit::Request};

const PROMPT: [u32; 12] = [3, 50, 7, 7, 19, 2, 61, 33, 8, 40, 12, 5];
const DEPTHS: [usize; 6] = [1, 2, 3, 4, 8, 16];

#[test]
fn greedy_answers_do_not_depend_on_the_depth() {
    let model = golden_llama();
    let plain = play(&model, None, &Request::greedy(&PROMPT, 40, 0)).ids;
    for style in STYLES {
        let drafter = random_drafter(style, model.as_ref(), 1);
        for depth in DEPTHS {
            let played = play(&model, Some(drafter.clone()), &Request::greedy(&PROMPT, 40, depth));
            assert_eq!(played.ids, plain, "{style} at depth {depth}");
            assert!(played.statistics.drafted > 0, "{style} at depth {depth} drafts");
        }
    }
}

#[test]
fn answers_end_at_the_same_end_token_and_budget() {
    let model = golden_llama();
    let plain = play(&model, None, &Request::greedy(&PROMPT, 40, 0)).ids;
    let end = *plain.iter().skip(9).find(|id| plain.iter().filter(|x| x == id).count() == 1).expect("one");
    for style in STYLES {
        let drafter = random_drafter(style, model.as_ref(), 1);
        for depth in DEPTHS {
            for budget in [1, 2, 3, 7, 40] {
                let mut request = Request::greedy(&PROMPT, budget, depth);
                request.ends = vec![end];
                let ids = play(&model, Some(drafter.clone()), &request).ids;
                let stop = plain.iter().position(|&id| id == end).expect("in it") + 1;
                assert_eq!(ids, plain[..budget.min(stop)], "{style} depth {depth} budget {budget}");
            }
        }
    }
}

#[test]
fn seeded_answers_do_not_depend_on_the_drafter() {
    let model = golden_llama();
    let options = SamplingOptions { temperature: 0.8, seed: Seed::Fixed(5), ..SamplingOptions::greedy() };
    let request = Request { options, ..Request::greedy(&PROMPT, 40, 0) };
    let plain = play(&model, None, &request).ids;
    for style in STYLES {
        let request = Request { policy: DraftPolicy::Constant(4), ..request.clone() };
        let drafter = random_drafter(style, model.as_ref(), 1);
        let played = play(&model, Some(drafter), &request);
        assert_eq!(played.ids, plain, "{style}");
        assert!(played.statistics.drafted > 0);
    }
}

/// At rest the target holds every token but the last, and the own cache has its pair.
#[test]
fn caches_rest_level_after_a_request() {
    let model = tiny();
    for style in STYLES {
        for depth in [0, 3] {
            let drafter = random_drafter(style, model.as_ref(), 1);
            let played = play(&model, Some(drafter), &Request::greedy(&PROMPT, 20, depth));
            let slots = played.request.history.ids().len() - 1;
            assert_eq!(played.request.target.offset(), slots, "{style} depth {depth}");
            played.request.target.level().expect("level");
            let own = played.request.own.as_ref().map(|own| own.offset());
            assert_eq!(own, (style == "seq").then_some(slots), "{style} depth {depth}");
        }
    }
}
