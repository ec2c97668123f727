//! What fails, fails once, loses nothing, and leaves every cache level.

mod common;

use std::rc::Rc;

use common::*;
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{
    Drafter, SpeculateError,
    testkit::{
        Fault, FaultyDrafter, PairDrafter, Pattern, Played, Request, ScriptedDrafter, ScriptedTarget,
        Tracker, play,
    },
};

const TOKENS: usize = 16;
const DEPTH: usize = 3;

fn asked() -> Request {
    Request::greedy(&PROMPT, TOKENS, DEPTH)
}

fn plain() -> Vec<u32> {
    played(target(), None, &asked()).ids
}

fn faulty(inner: Rc<dyn Drafter>, fault: Fault) -> Rc<dyn Drafter> {
    Rc::new(FaultyDrafter::new(inner, VOCABULARY, fault))
}

/// Each set level, inside the history, the own one nowhere ahead.
fn check_level(done: &Played) {
    let request = &done.request;
    request.target.level().expect("target layers level");
    assert!(request.target.offset() < request.history.ids().len());
    if let Some(own) = request.own.as_ref() {
        own.level().expect("own layers level");
        assert!(!own.is_open() && !request.target.is_open());
        assert!(own.offset() <= request.target.offset());
    }
}

fn reasons(done: &Played) -> Vec<String> {
    done.runs.iter().filter_map(|r| r.speculation_ended.clone()).collect()
}

#[test]
fn a_failing_drafter_ends_speculation_once_and_never_the_text() {
    let want = plain();
    let faults = [
        Fault::Open,
        Fault::Propose(0),
        Fault::Propose(2),
        Fault::ProposePanic(1),
        Fault::Committed(0),
        Fault::Committed(3),
        Fault::CommittedPanic(4),
        Fault::NanRow(0),
        Fault::NanRow(2),
        Fault::ReadyPanic,
    ];
    for fault in faults {
        for options in
            [SamplingOptions::greedy(), SamplingOptions { seed: Seed::Fresh(3), ..SamplingOptions::greedy() }]
        {
            let asked = Request { options, ..asked() };
            let inner: [Rc<dyn Drafter>; 2] = [Rc::new(PairDrafter::new(VOCABULARY)), drafter(Pattern::Mix)];
            for inner in inner {
                let done = play(target(), Some(faulty(inner, fault)), &asked).expect("the request starts");
                assert!(done.error.is_none());
                assert_eq!(done.ids, want, "{fault:?}");
                let reasons = reasons(&done);
                assert_eq!(reasons.len(), 1, "{fault:?} said {reasons:?}");
                check_level(&done);
            }
        }
    }
}

#[test]
fn the_reason_names_the_drafter_and_the_fault() {
    let said =
        |fault| reasons(&play(target(), Some(faulty(drafter(Pattern::Oracle), fault)), &asked()).unwrap());
    assert_eq!(said(Fault::Propose(0)), ["scripted: scripted fault"]);
    assert_eq!(said(Fault::ProposePanic(0)), ["scripted: the drafter panicked: scripted panic"]);
    assert_eq!(said(Fault::Open), ["scripted: scripted fault"]);
    assert!(said(Fault::NanRow(0))[0].contains("not finite"));
}

#[test]
fn no_proposal_is_asked_for_after_a_fault() {
    let tracker = Rc::new(Tracker::new(faulty(drafter(Pattern::Oracle), Fault::Propose(1))));
    play(target(), Some(tracker.clone()), &asked()).expect("the request starts");
    let counts = tracker.counts();
    assert_eq!((counts.proposals, counts.opened, counts.open(), counts.finished), (2, 1, 0, 0));
}

#[test]
fn a_drafter_that_is_never_asked_fails_unnoticed() {
    for fault in [Fault::Open, Fault::Committed(0), Fault::CommittedPanic(3)] {
        let muted = Request::greedy(&PROMPT, TOKENS, 0);
        let done =
            play(target(), Some(faulty(Rc::new(PairDrafter::new(VOCABULARY)), fault)), &muted).unwrap();
        assert_eq!((done.ids.clone(), reasons(&done)), (plain(), Vec::new()), "{fault:?}");
        check_level(&done);
    }
}

#[test]
fn settling_and_finishing_may_fail_too() {
    for fault in [Fault::SettlePanic, Fault::FinishPanic] {
        let done =
            play(target(), Some(faulty(Rc::new(PairDrafter::new(VOCABULARY)), fault)), &asked()).unwrap();
        assert_eq!((done.ids.len(), reasons(&done).len()), (TOKENS, 0));
        check_level(&done);
    }
}

#[test]
fn every_session_is_settled_and_finished_once() {
    for max_tokens in [1, 2, 5, TOKENS] {
        let tracker = Rc::new(Tracker::new(Rc::new(PairDrafter::new(VOCABULARY))));
        let done = played(target(), Some(tracker.clone()), &Request { max_tokens, ..asked() });
        check_level(&done);
        let own = done.request.own.as_ref().expect("pairs are cached");
        assert_eq!(own.offset(), done.request.target.offset());
        let counts = tracker.counts();
        assert_eq!((counts.opened, counts.settled_with_next, counts.finished, counts.open()), (1, 1, 1, 0));
        assert_eq!(counts.cache_sets, 1);
    }
}

/// A target that fails at a forward, with every decoder that can meet it.
fn failing(break_at: impl Fn(ScriptedTarget, usize) -> ScriptedTarget, check: impl Fn(&Played, usize)) {
    let want = plain();
    for forward in 2..7 {
        let drafters: [Option<Rc<dyn Drafter>>; 4] = [
            None,
            Some(drafter(Pattern::Mix)),
            Some(drafter(Pattern::Wrong)),
            Some(Rc::new(PairDrafter::new(VOCABULARY))),
        ];
        for drafter in drafters {
            let target = Rc::new(break_at(ScriptedTarget::new(VOCABULARY, wanted), forward));
            let done = play(target, drafter, &asked()).expect("the request starts");
            assert_eq!(done.ids, want[..done.ids.len()], "no token is lost or invented");
            assert_eq!(&done.request.history.ids()[PROMPT.len()..], done.ids);
            check(&done, forward);
        }
    }
}

#[test]
fn a_failing_forward_takes_every_layer_back() {
    on_cpu_before_targets();
    failing(
        |target, forward| target.fail_at(forward),
        |done, _| {
            assert!(matches!(done.error, Some(SpeculateError::Model(_))), "{:?}", done.error);
            check_level(done);
        },
    );
}

#[test]
fn a_failing_evaluation_poisons_the_caches() {
    on_cpu_before_targets();
    failing(
        |target, forward| target.fail_evaluation_at(forward),
        |done, _| {
            assert!(matches!(done.error, Some(SpeculateError::Array(_))), "{:?}", done.error);
            assert!(done.request.target.is_poisoned());
            assert!(done.request.own.as_ref().is_none_or(|own| own.is_poisoned()));
        },
    );
}

fn on_cpu_before_targets() {
    foretoken_speculate::testkit::on_cpu();
}

#[test]
fn plain_tokens_before_a_failing_forward_go_out() {
    on_cpu_before_targets();
    // Forwards 0 and 1 are the prefill; forward 5 would bring the fourth token.
    let target = Rc::new(ScriptedTarget::new(VOCABULARY, wanted).fail_at(5));
    let done = play(target, None, &asked()).expect("the request starts");
    assert_eq!((done.ids.len(), done.error.is_some()), (3, true));
    check_level(&done);
}

#[test]
fn h27_not_a_number_at_step_five_inside_a_round() {
    on_cpu_before_targets();
    const STEP: usize = 5;
    let want = plain();
    for options in [SamplingOptions::greedy(), sampled(Seed::Fixed(1)), sampled(Seed::Fresh(1))] {
        let top_p = SamplingOptions { top_p: 0.9, ..options.clone() };
        for options in [options, top_p] {
            let target = || Rc::new(ScriptedTarget::new(VOCABULARY, wanted).nan_at(PROMPT.len() + STEP));
            let mut drafters: Vec<(usize, Option<Rc<dyn Drafter>>)> = vec![(0, None)];
            for pattern in PATTERNS {
                drafters.extend((1..=8).map(|depth| (depth, Some(drafter(pattern)))));
            }
            for (depth, drafter) in drafters {
                let asked = Request { options: options.clone(), ..Request::greedy(&PROMPT, TOKENS, depth) };
                let done = play(target(), drafter, &asked).expect("the request starts");
                assert_eq!(done.ids.len(), STEP, "the tokens before were delivered at depth {depth}");
                let error = done.error.as_ref().expect("an error");
                assert!(matches!(error, SpeculateError::NonFinite { step: STEP }), "{error}");
                assert!(error.to_string().contains("not finite") && error.to_string().contains("step 5"));
                check_level(&done);
            }
        }
    }
    // The next request of the same model works.
    let target = Rc::new(ScriptedTarget::new(VOCABULARY, wanted).nan_at(PROMPT.len() + STEP));
    assert!(play(target.clone(), None, &asked()).unwrap().error.is_some());
    let again = played(target, Some(drafter(Pattern::Mix)), &Request::greedy(&PROMPT, STEP, 2));
    assert_eq!(again.ids, want[..STEP]);
}

#[test]
fn h27_logits_that_cannot_be_sampled_end_the_request_at_step_zero() {
    on_cpu_before_targets();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for row in [[nan, 1.0, 2.0], [1.0, nan, 2.0], [1.0, inf, 2.0], [-inf, -inf, -inf]] {
        for options in [SamplingOptions::greedy(), SamplingOptions { top_p: 0.9, ..sampled(Seed::Fixed(0)) }]
        {
            for depth in [0, 3] {
                let drafter: Rc<dyn Drafter> = Rc::new(ScriptedDrafter::new(Pattern::Oracle, 3, |_| 2));
                let asked = Request { options: options.clone(), ..Request::greedy(&[0, 1, 2], 8, depth) };
                let done = play(Rc::new(ScriptedTarget::constant(&row)), Some(drafter), &asked).unwrap();
                assert!(matches!(done.error, Some(SpeculateError::NonFinite { step: 0 })), "{row:?}");
                assert!(done.ids.is_empty());
            }
        }
    }
    // A single −∞ among finite values is legal.
    let legal = Rc::new(ScriptedTarget::constant(&[-inf, 1.0, 2.0]));
    assert_eq!(played(legal, None, &Request::greedy(&[0], 4, 0)).ids, [2; 4]);
}

#[test]
fn a_fault_past_the_first_rejection_is_none() {
    on_cpu_before_targets();
    // Every draft is wrong, so the rows after the first are never used; the budget ends before the fault.
    let target = Rc::new(ScriptedTarget::new(VOCABULARY, wanted).nan_at(PROMPT.len() + 4));
    let done = played(target, Some(drafter(Pattern::Wrong)), &Request::greedy(&PROMPT, 4, 3));
    assert_eq!(done.ids, plain()[..4]);
    assert!(done.error.is_none());
}
