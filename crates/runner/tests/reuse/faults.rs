//! Requests that fail leave no wrong state to the ones after them.

use std::rc::Rc;

use foretoken_model_base::Model;
use foretoken_runner::{Request, Runner};
use foretoken_speculate::{
    DraftPolicy, Drafter,
    testkit::{Fault, FaultyDrafter, PairDrafter, ScriptedTarget, on_cpu},
};

use crate::support::*;

const V: usize = 64;
const TOKENS: usize = 10;

fn wanted(tokens: &[u32]) -> u32 {
    tokens.iter().fold(7_u32, |sum, &t| sum.wrapping_mul(31).wrapping_add(t)) >> 4
}

fn target() -> ScriptedTarget {
    on_cpu();
    ScriptedTarget::new(V, wanted)
}

/// Requests that share beginnings with each other.
fn requests() -> Vec<Request> {
    let base = prompt(1, 26);
    let branch = |at: usize, seed| [&base[..at], &prompt(seed, 6)[..]].concat();
    vec![
        greedy(&base, TOKENS),
        greedy(&branch(20, 2), TOKENS),
        greedy(&branch(9, 3), TOKENS),
        greedy(&base, TOKENS),
    ]
}

/// Serves all requests, some of which may fail; those that succeed must be right.
fn check(mut runner: Runner, what: &str) -> usize {
    let right: Rc<dyn Model> = Rc::new(target());
    let mut failed = 0;
    for _ in 0..2 {
        for request in requests() {
            let want = cold(&right, &request);
            let served = serve(&mut runner, &request);
            assert_eq!(served.ids, want[..served.ids.len()], "{what}");
            match served.result {
                Ok(_) => assert_eq!(served.ids.len(), TOKENS, "{what}"),
                Err(_) => failed += 1,
            }
        }
    }
    failed
}

fn drafting(model: ScriptedTarget, depth: usize, keep_live: bool) -> Runner {
    Runner::new(Rc::new(model))
        .with_drafter(Rc::new(PairDrafter::new(V)), Some(DraftPolicy::Constant(depth)))
        .with_prefix_cache(Some(options(keep_live)))
        .with_prefill_chunk(4)
}

#[test]
fn a_forward_or_an_evaluation_that_fails_is_forgotten() {
    for depth in [0, 3] {
        for keep_live in [true, false] {
            for forward in 0..24 {
                let what = format!("forward {forward}, depth {depth}, sets kept alive {keep_live}");
                let built = drafting(target().fail_at(forward), depth, keep_live);
                assert_eq!(check(built, &what), 1, "{what}");
                let evaluated = drafting(target().fail_evaluation_at(forward), depth, keep_live);
                // A token past the end of an answer may be the one that fails.
                assert!(check(evaluated, &what) <= 1, "{what}");
            }
        }
    }
}

#[test]
fn logits_that_are_not_numbers_end_one_request_after_the_other_and_spoil_none() {
    for depth in [0, 3] {
        for slot in [27, 30, 33] {
            let what = format!("slot {slot}, depth {depth}");
            let failed = check(drafting(target().nan_at(slot), depth, true), &what);
            assert!(failed > 0, "{what}");
        }
    }
}

#[test]
fn a_drafter_that_fails_spoils_neither_text_nor_state() {
    let faults = [
        Fault::Open,
        Fault::Propose(1),
        Fault::ProposePanic(0),
        Fault::Committed(0),
        Fault::Committed(3),
        Fault::CommittedPanic(5),
        Fault::NanRow(1),
        Fault::SettlePanic,
        Fault::FinishPanic,
    ];
    for fault in faults {
        let drafter: Rc<dyn Drafter> = Rc::new(FaultyDrafter::new(Rc::new(PairDrafter::new(V)), V, fault));
        let runner = Runner::new(Rc::new(target()))
            .with_drafter(drafter, Some(DraftPolicy::Constant(3)))
            .with_prefix_cache(Some(options(true)))
            .with_prefill_chunk(4);
        assert_eq!(check(runner, &format!("{fault:?}")), 0, "{fault:?}");
    }
}

#[test]
fn sets_without_an_identity_of_their_model_are_served_without_reuse() {
    /// Makes sets that no other set can exchange states with.
    struct Loner(ScriptedTarget);

    impl Model for Loner {
        fn facts(&self) -> &foretoken_model_base::ModelFacts {
            self.0.facts()
        }

        fn make_caches(&self) -> foretoken_cache::CacheSet {
            ScriptedTarget::new(V, wanted).make_caches()
        }

        fn forward(
            &self,
            batch: &foretoken_model_base::Batch,
            caches: &mut [&mut foretoken_cache::CacheSet],
        ) -> foretoken_model_base::Result<foretoken_model_base::Hidden> {
            self.0.forward(batch, caches)
        }

        fn unembed(&self, last: &mlx_rs::Array) -> foretoken_model_base::Result<mlx_rs::Array> {
            self.0.unembed(last)
        }
    }

    let mut runner = Runner::new(Rc::new(Loner(target())));
    let right: Rc<dyn Model> = Rc::new(target());
    for request in requests() {
        let served = serve(&mut runner, &request);
        assert_eq!((served.cached(), served.ids), (0, cold(&right, &request)));
    }
}
