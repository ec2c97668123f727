//! Both heads under both rules: the first tokens follow the law of the target's own logits.

mod common;

use common::{STYLES, golden_llama, random_drafter, tiny};
use foretoken_sample::{RuleChoice, SamplingOptions};
use foretoken_speculate::testkit::{Request, first_two_tokens};

/// Requests per law.
const REQUESTS: u64 = 240;

/// Two drafts, so that the second token may be a draft, a residual or the first round's bonus.
const DEPTH: usize = 2;

fn request(rule: RuleChoice, change: impl Fn(&mut SamplingOptions)) -> Request {
    let mut options = SamplingOptions { temperature: 1.0, rule, ..SamplingOptions::greedy() };
    change(&mut options);
    Request { options, ..Request::greedy(&[3, 50, 7], 3, DEPTH) }
}

#[test]
fn a_tiny_models_first_tokens_follow_its_law() {
    let model = tiny();
    for style in STYLES {
        for rule in [RuleChoice::Ratio, RuleChoice::Coupled] {
            let request = request(rule, |o| (o.temperature, o.top_k) = (0.8, 6));
            let drafter = random_drafter(style, model.as_ref(), 1);
            let (fit, did) = first_two_tokens(&model, &drafter, &request, REQUESTS).expect("requests");
            println!("{style}, {rule:?}: {:.2} of the bound, {}/{}", fit.share(), did.accepted, did.drafted);
            assert!(fit.holds(), "{style}, {rule:?}: {fit:?}");
            assert!(did.accepted > 0 && did.mismatches > 0, "{style}, {rule:?}: some drafts are kept");
        }
    }
}

#[test]
fn a_golden_models_first_tokens_follow_its_law_under_penalties() {
    let model = golden_llama();
    for style in STYLES {
        for rule in [RuleChoice::Ratio, RuleChoice::Coupled] {
            let request = request(rule, |o| {
                (o.top_p, o.min_p) = (0.9, 0.02);
                (o.presence_penalty, o.repeat_penalty, o.repeat_last_n) = (0.5, 1.2, 3);
            });
            let drafter = random_drafter(style, model.as_ref(), 1);
            let (fit, did) = first_two_tokens(&model, &drafter, &request, REQUESTS / 2).expect("requests");
            println!("{style}, {rule:?}: {:.2} of the bound, {}/{}", fit.share(), did.accepted, did.drafted);
            assert!(fit.holds(), "{style}, {rule:?}: {fit:?}");
        }
    }
}
