//! SmolLM2 with the shipped heads: the recorded decoding of an independent implementation, and parity.
//!
//! `examples/trace_check.rs` plays all four recorded chats; here is what a test may cost.

mod common;

use common::{STYLES, Trace, play, shipped, smollm2};
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{DraftPolicy, testkit::Request};

/// The shortest chat, whole: it ends with an end token, so no round depends on a limit.
#[test]
fn a_chat_has_the_recorded_tokens_and_rounds() {
    let (model, traces) = (smollm2(), Trace::all());
    let trace = traces.iter().min_by_key(|t| t.plain.len()).expect("four chats");
    assert_eq!(play(&model, None, &trace.request(0)).ids, trace.plain);
    for style in STYLES {
        let played = play(&model, Some(shipped(style, model.as_ref())), &trace.request(Trace::DEPTH));
        assert_eq!(played.ids, trace.plain, "{style}");
        assert_eq!(played.statistics.rounds, trace.rounds(style), "{style}");
    }
}

/// Sixteen tokens of the recorded code answer: the heads are right most often when it goes on.
fn code(depth: usize) -> Request {
    Request::greedy(&Trace::all()[1].plain[16..32], 10, depth)
}

#[test]
fn any_depth_decodes_the_same_tokens() {
    let model = smollm2();
    let plain = play(&model, None, &code(0)).ids;
    for style in STYLES {
        let drafter = shipped(style, model.as_ref());
        for depth in [1, 2, 3, 4, 8, 16] {
            let played = play(&model, Some(drafter.clone()), &code(depth));
            assert_eq!(played.ids, plain, "{style} at depth {depth}");
            assert_eq!(played.statistics.deepest, depth.min(plain.len() - 1), "{style} at depth {depth}");
            assert!(played.statistics.accepted > 0, "{style} at depth {depth}");
        }
    }
}

#[test]
fn a_seeded_answer_is_the_same_with_either_head() {
    let model = smollm2();
    let options = SamplingOptions { temperature: 0.8, seed: Seed::Fixed(11), ..SamplingOptions::greedy() };
    let request = Request { options, max_tokens: 16, ..code(0) };
    let plain = play(&model, None, &request).ids;
    assert_ne!(plain[..10], play(&model, None, &code(0)).ids, "the temperature has an effect");
    for style in STYLES {
        let request = Request { policy: DraftPolicy::Constant(4), ..request.clone() };
        let played = play(&model, Some(shipped(style, model.as_ref())), &request);
        assert_eq!(played.ids, plain, "{style}");
        assert!(played.statistics.accepted > 0, "{style} accepts something");
    }
}
