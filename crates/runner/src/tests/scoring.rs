//! Scores of given ids.

use std::rc::Rc;

use foretoken_speculate::testkit::{ScriptedTarget, on_cpu};

use super::*;

/// How far a log probability may be off.
const LOGPROB_TOLERANCE: f32 = 1e-5;

#[test]
fn scores_are_the_log_softmax_of_each_next_id_in_any_chunk() {
    on_cpu();
    // log-softmax of [2,1,0].
    let right = [-0.407_606, -1.407_606, -2.407_606];
    for chunk in [1, 2, 3, 512] {
        let mut runner = plain(Rc::new(ScriptedTarget::constant(&[2.0, 1.0, 0.0]))).with_prefill_chunk(chunk);
        let mut rows = 0;
        let score = runner.score(&[2, 0, 1, 2, 0], |logits| {
            assert_eq!(logits.dim(1), 3);
            rows += logits.dim(0);
            Ok(())
        });
        let score = score.expect("no failure");
        assert_eq!((rows, score.top_ids.as_slice()), (5, [0; 5].as_slice()));
        assert_eq!(score.logprobs.len(), 4);
        for (got, id) in score.logprobs.iter().zip([0, 1, 2, 0]) {
            let off = (got - right[id]).abs();
            assert!(off < LOGPROB_TOLERANCE, "off by {off}");
        }
    }
}

#[test]
fn perplexity_is_the_exponential_of_the_mean() {
    let score = crate::Score { logprobs: vec![-1.0, -3.0], top_ids: vec![0; 3] };
    assert_eq!(score.perplexity(), Some(2f64.exp()));
    assert_eq!(crate::Score::default().perplexity(), None);
}

#[test]
fn a_sequence_may_fill_the_context_but_not_more() {
    let mut runner = plain(Rc::new(target().context(8)));
    let all = |_: &mlx_rs::Array| Ok(());
    assert_eq!(runner.score(&[1; 8], all).map(|s| s.top_ids.len()).ok(), Some(8));
    let error = runner.score(&[1; 9], all).expect_err("too long").to_string();
    assert!(error.contains('9') && error.contains('8'), "{error}");
    assert!(runner.score(&[], all).is_err());
    assert!(runner.score(&[V as u32], all).is_err());
}

#[test]
fn h27_scores_refuse_logits_that_are_not_finite() {
    let mut runner = plain(Rc::new(target().nan_at(3)));
    let error = runner.score(&[1, 2, 3, 4], |_| Ok(())).expect_err("not finite").to_string();
    assert!(error.contains("finite") && error.contains("token 2"), "{error}");
}
