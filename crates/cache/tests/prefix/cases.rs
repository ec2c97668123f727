//! Faults of other engines, at the level of caches.

use crate::toy::{Ask, Engine, FULL, HYB, Kind, ROW, TINY, copying, cpu, options, run};

#[test]
fn h05_reuse_is_what_every_layer_can_go_back_to() {
    cpu();
    for options in [options(), copying()] {
        // No restore point but the one at the end: 20 shared tokens are then out of reach of the windows.
        let sparse = foretoken_cache::prefix::PrefixOptions { interval: 0, ..options };
        let mut engine = Engine::new(TINY, sparse);
        let a = run(0, 30);
        let b = [&a[..20], &[90, 91]].concat();
        assert_eq!(engine.serve(&Ask::new(&a).answer(&[50, 51])), 0);
        assert_eq!(engine.serve(&Ask::new(&b).answer(&[60, 61])), 0, "windows have slid past 20 tokens");
        assert_eq!(engine.serve(&Ask::new(&b).answer(&[60, 61])), 20, "the branch was remembered");
        assert_eq!(engine.serve(&Ask::new(&a).answer(&[50, 51])), 26, "and A still is");
    }
}

#[test]
fn h06_a_window_that_has_slid_away_is_computed_again() {
    cpu();
    for options in [options(), copying()] {
        let sparse = foretoken_cache::prefix::PrefixOptions { interval: 0, ..options };
        let mut engine = Engine::new(TINY, sparse);
        let a = run(0, 40);
        let b = [&a[..5], &run(100, 20)].concat();
        assert_eq!(engine.serve(&Ask::new(&a)), 0);
        assert_eq!(engine.serve(&Ask::new(&b)), 0);
        let c = [&a[..5], &run(200, 20)].concat();
        assert_eq!(engine.serve(&Ask::new(&c)), 5, "the point was stored when B branched off");
    }
}

#[test]
fn h09_one_token_is_always_left_to_evaluate() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        let mut engine = Engine::new(kinds, options());
        let prompt = run(0, 12);
        engine.serve(&Ask::new(&prompt).answer(&[40, 41]));
        let again = engine.serve(&Ask::new(&prompt).answer(&[40, 41]));
        let shorter = engine.serve(&Ask::new(&prompt[..11]).answer(&[11, 40]));
        let one = engine.serve(&Ask::new(&prompt[..1]).answer(&[1, 2]));
        assert_eq!(engine.serve(&Ask::new(&prompt[..1]).answer(&[1, 2])), 0, "nothing before the only token");
        match kinds.iter().any(|kind| !matches!(kind, Kind::Full)) {
            false => assert_eq!((again, shorter, one), (11, 10, 0)),
            // 8 is regular and 4 before the end; the answer starts past 11.
            true => assert_eq!((again, shorter, one), (8, 8, 0), "{kinds:?}"),
        }
    }
}

#[test]
fn h10_a_longer_sequence_holds_its_own_bytes_and_no_more() {
    cpu();
    let row = ROW * FULL.len();
    let mut engine = Engine::new(FULL, copying());
    // The last token of a prompt is evaluated by decode: an answer of one token forwards it.
    engine.serve(&Ask::new(&[1, 2]).answer(&[9]));
    assert_eq!((engine.cache.len(), engine.cache.bytes()), (1, 2 * row));
    assert_eq!(engine.serve(&Ask::new(&[1, 2, 3]).answer(&[9])), 2);
    assert_eq!(engine.cache.bytes(), 3 * row, "the shorter one is the beginning of the longer");
    let (mut target, before) = (engine.target.set(), format!("{:?}", engine.cache));
    engine.cache.begin(&[], &[], &mut target, None).expect_err("no token to look up");
    assert_eq!(format!("{:?}", engine.cache), before);
    assert_eq!(engine.serve(&Ask::new(&[1]).cancel(0)), 0);
    assert_eq!(engine.serve(&Ask::new(&[1, 2, 3]).cancel(0)), 2);
    assert_eq!(engine.serve(&Ask::new(&[2, 3]).cancel(0)), 0);
    assert_eq!(engine.cache.bytes(), 3 * row, "looking adds nothing");
    engine.cache.clear();
    assert_eq!((engine.cache.len(), engine.cache.bytes()), (0, 0));
}

#[test]
fn h10_a_sequence_that_goes_on_in_live_caches_is_one_entry() {
    cpu();
    let mut engine = Engine::new(FULL, foretoken_cache::prefix::PrefixOptions::default());
    engine.serve(&Ask::new(&[1, 2]).answer(&[3]));
    assert_eq!(engine.cache.len(), 1);
    assert_eq!(engine.serve(&Ask::new(&[1, 2, 3]).answer(&[4])), 2);
    assert_eq!(engine.cache.len(), 1);
    let live = 2 * 256 * ROW;
    assert_eq!(engine.cache.bytes(), live, "buffers of one growth step, and no copies");
}

#[test]
fn h11_every_attempt_goes_on_where_the_last_one_stopped() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for options in [options(), copying()] {
            let mut engine = Engine::new(kinds, options);
            let prompt = run(0, 41);
            let longer = run(0, 45);
            let first = engine.serve(&Ask::new(&prompt).chunk(8).cancel(2));
            let second = engine.serve(&Ask::new(&prompt).chunk(7).cancel(2));
            let third = engine.serve(&Ask::new(&prompt).answer(&[60, 61]));
            let last = engine.serve(&Ask::new(&longer));
            assert_eq!((first, second, third), (0, 16, 30), "{kinds:?}");
            let attention_only = kinds.iter().all(|kind| matches!(kind, Kind::Full));
            assert_eq!(last, if attention_only { 41 } else { 40 }, "{kinds:?}");
        }
    }
}

#[test]
fn h66_a_cancelled_prefill_is_not_computed_again() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for options in [options(), copying()] {
            let mut engine = Engine::new(kinds, options);
            let prompt = run(0, 64);
            assert_eq!(engine.serve(&Ask::new(&prompt).chunk(8).cancel(5)), 0);
            assert_eq!(engine.serve(&Ask::new(&prompt).chunk(8).cancel(2)), 40);
            assert_eq!(engine.serve(&Ask::new(&prompt).answer(&[70, 71])), 56);
        }
    }
}

#[test]
fn h66_restore_points_stay_when_the_request_is_never_closed() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        let mut engine = Engine::new(kinds, options());
        let prompt = run(0, 64);
        let mut target = engine.target.set();
        let mut session = engine.cache.begin(&prompt, &[], &mut target, None).expect("a request");
        assert_eq!(session.restore_points(), [8, 16, 24, 32, 40, 48, 56, 60]);
        for to in [20, 44] {
            engine.target.feed(&mut target, &prompt, to);
            engine.cache.collect(&mut session, &mut target, None).expect("restore points");
        }
        assert_eq!(session.restore_points(), [48, 56, 60]);
        drop((session, target));
        assert_eq!(engine.serve(&Ask::new(&prompt)), 40, "{kinds:?}");
    }
}
