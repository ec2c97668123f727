//! Bad input changes nothing; failed evaluations leave nothing behind.

use foretoken_cache::{CacheError, CacheSet};

use crate::toy::{Ask, Engine, FULL, HYB, TINY, Toy, copying, cpu, options, run};

fn looks(engine: &Engine) -> String {
    format!("{:?}", engine.cache)
}

#[test]
fn sets_of_another_model_are_refused() {
    cpu();
    let mut engine = Engine::with_drafter(FULL, FULL, 1, options());
    let prompt = run(0, 20);
    engine.serve(&Ask::new(&prompt));
    let before = looks(&engine);
    let target = || engine.target.set();
    let own = || engine.own.as_ref().expect("a drafter").set();
    let stranger = || Toy::new(FULL, 0).set();
    let mut pairs: Vec<(CacheSet, Option<CacheSet>)> = vec![
        (stranger(), Some(own())),
        (target(), Some(stranger())),
        (target(), None),
        (own(), Some(target())),
    ];
    for (target, own) in &mut pairs {
        let refused = engine.cache.begin(&prompt, &[], target, own.as_mut());
        assert!(matches!(refused, Err(CacheError::Foreign { what: "begin", .. })), "{refused:?}");
        assert_eq!(target.offset(), 0);
    }
    assert_eq!(looks(&engine), before);
    assert_eq!(engine.serve(&Ask::new(&prompt)), 19, "the live sets are still there");
}

#[test]
fn a_request_cannot_end_with_other_sets_or_tokens() {
    cpu();
    let mut engine = Engine::new(FULL, options());
    let prompt = run(0, 20);
    for wrong_tokens in [true, false] {
        let mut target = engine.target.set();
        let session = engine.cache.begin(&prompt, &[], &mut target, None).expect("a request");
        engine.target.feed(&mut target, &prompt, 19);
        let refused = match wrong_tokens {
            true => engine.cache.close(session, &run(1, 20), target, None),
            false => engine.cache.close(session, &prompt, Toy::new(FULL, 0).set(), None),
        };
        assert!(matches!(refused, Err(CacheError::State { .. } | CacheError::Foreign { .. })), "{refused:?}");
        assert!(engine.cache.is_empty());
    }
    assert_eq!(engine.serve(&Ask::new(&prompt)), 0);
}

#[test]
fn prompts_without_tokens_and_boundaries_outside_are_refused() {
    cpu();
    let mut engine = Engine::new(FULL, options());
    let mut target = engine.target.set();
    let empty = engine.cache.begin(&[], &[], &mut target, None);
    assert!(matches!(empty, Err(CacheError::State { what: "prompt", .. })), "{empty:?}");
    let outside = engine.cache.begin(&[1, 2], &[3], &mut target, None);
    assert!(matches!(outside, Err(CacheError::Offset { got: 3, .. })), "{outside:?}");
    target.begin().expect("at rest");
    let open = engine.cache.begin(&[1, 2], &[], &mut target, None);
    assert!(matches!(open, Err(CacheError::State { what: "begin", .. })), "{open:?}");
    target.rollback().expect("closed");
    engine.cache.begin(&[1, 2], &[], &mut target, None).expect("now it is fine");
}

#[test]
fn a_transaction_left_open_is_told_and_nothing_is_kept() {
    cpu();
    let mut engine = Engine::new(FULL, options());
    let prompt = run(0, 20);
    let mut target = engine.target.set();
    let mut session = engine.cache.begin(&prompt, &[], &mut target, None).expect("a request");
    target.begin().expect("at rest");
    engine.target.feed(&mut target, &prompt, 19);
    let early = engine.cache.collect(&mut session, &mut target, None);
    assert!(matches!(early, Err(CacheError::State { what: "collect", .. })), "{early:?}");
    let late = engine.cache.close(session, &prompt, target, None);
    assert!(matches!(late, Err(CacheError::State { what: "close", .. })), "{late:?}");
    assert_eq!(engine.serve(&Ask::new(&prompt)), 0);
}

#[test]
fn nothing_of_a_failed_evaluation_is_reused() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for options in [options(), copying()] {
            let mut engine = Engine::new(kinds, options);
            let prompt = run(0, 40);
            engine.serve(&Ask { poison: true, ..Ask::new(&prompt) });
            assert_eq!((engine.cache.len(), engine.cache.bytes()), (0, 0));
            assert_eq!(engine.serve(&Ask::new(&prompt)), 0, "{kinds:?}");
            assert_eq!(engine.serve(&Ask::new(&prompt)), 39, "{kinds:?}");
        }
    }
}

#[test]
fn a_failure_leaves_the_requests_of_other_sets_alone() {
    cpu();
    let mut engine = Engine::new(HYB, copying());
    let (good, bad) = (run(0, 40), run(100, 40));
    engine.serve(&Ask::new(&good));
    engine.serve(&Ask { poison: true, ..Ask::new(&bad) });
    assert_eq!(engine.serve(&Ask::new(&bad)), 0);
    assert_eq!(engine.serve(&Ask::new(&good)), 39);
}

#[test]
fn tokens_that_were_not_recorded_are_not_reused() {
    cpu();
    let mut engine = Engine::new(FULL, options());
    let mut target = engine.target.set();
    let session = engine.cache.begin(&run(0, 20), &[], &mut target, None).expect("a request");
    // The caches hold 30 rows, but only 22 tokens were recorded.
    engine.target.feed(&mut target, &run(0, 30), 30);
    engine.cache.close(session, &run(0, 22), target, None).expect("closed");
    assert_eq!(engine.serve(&Ask::new(&run(0, 30))), 22);
}
