//! Branches, message boundaries, drafters with caches of their own, and live sets.

use foretoken_cache::{
    CacheSet, KvFormat, Layer, QuantizedCache, SetId,
    prefix::{PrefixCache, PrefixOptions},
};
use mlx_rs::Array;

use crate::toy::{Ask, Engine, FULL, HYB, Kind, TINY, copying, cpu, options, run};

#[test]
fn a_branch_keeps_both_sides() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for options in [options(), copying()] {
            let mut engine = Engine::new(kinds, PrefixOptions { interval: 0, ..options });
            let shared = run(0, 20);
            let left = [&shared[..], &run(100, 20)].concat();
            let right = [&shared[..], &run(200, 20)].concat();
            engine.serve(&Ask::new(&left));
            engine.serve(&Ask::new(&right));
            for side in [&left, &right, &left, &right] {
                assert_eq!(engine.serve(&Ask::new(side)), 39, "{kinds:?}");
            }
            let third = [&shared[..], &run(300, 20)].concat();
            assert_eq!(engine.serve(&Ask::new(&third)), 20, "{kinds:?}");
        }
    }
}

#[test]
fn message_boundaries_are_restore_points() {
    cpu();
    let mut engine = Engine::new(HYB, PrefixOptions { interval: 0, ..options() });
    let chat = run(0, 50);
    engine.serve(&Ask::new(&chat).boundaries(&[13, 29, 50]).answer(&[70, 71]));
    for (shared, reused) in [(12, 0), (28, 13), (45, 29), (49, 46)] {
        let other = [&chat[..shared], &run(400 + 50 * shared as u32, 9)].concat();
        assert_eq!(engine.serve(&Ask::new(&other)), reused, "{shared} tokens shared");
    }
    assert_eq!(engine.serve(&Ask::new(&[&chat[..], &[71, 72]].concat())), 50, "the prompt's own end");
}

#[test]
fn an_answer_is_reused_up_to_its_last_forwarded_token() {
    cpu();
    for (kinds, rejected) in [(FULL, 0), (FULL, 3), (TINY, 3), (HYB, 0), (HYB, 3)] {
        let mut engine = Engine::new(kinds, options());
        let answer = run(100, 12);
        engine.serve(&Ask { rejected, ..Ask::new(&run(0, 21)).answer(&answer) });
        let turn = [&run(0, 21)[..], &answer, &run(200, 5)].concat();
        // Twelve tokens produced, eleven of them forwarded.
        assert_eq!(engine.serve(&Ask::new(&turn)), 32, "{kinds:?}");
    }
}

#[test]
fn a_drafters_row_is_reused_only_where_the_tokens_it_tells_match() {
    cpu();
    for (ahead, reused) in [(0, 20), (1, 19), (2, 18)] {
        let mut engine = Engine::with_drafter(FULL, FULL, ahead, options());
        let a = run(0, 30);
        engine.serve(&Ask::new(&a));
        let b = [&a[..20], &run(100, 10)].concat();
        assert_eq!(engine.serve(&Ask::new(&b)), reused, "look-ahead {ahead}");
        // The last key of a prompt that ends here is not known with two tokens of look-ahead.
        assert_eq!(engine.serve(&Ask::new(&a)), 29.min(30 - ahead));
    }
}

#[test]
fn a_drafter_that_lags_is_level_again_when_it_matters() {
    cpu();
    let own: &[Kind] = &[Kind::Full, Kind::State];
    for lag in [0, 1, 5, 40] {
        for (kinds, own) in [(FULL, FULL), (TINY, FULL), (HYB, own)] {
            let mut engine = Engine::with_drafter(kinds, own, 1, options());
            let prompt = run(0, 41);
            assert_eq!(engine.serve(&Ask { lag, ..Ask::new(&prompt).cancel(2) }), 0);
            assert_eq!(engine.serve(&Ask { lag, ..Ask::new(&prompt).cancel(2) }), 16);
            assert_eq!(engine.serve(&Ask { lag, ..Ask::new(&prompt).answer(&[50, 51]) }), 32);
            let turn = [&prompt[..], &[50, 51, 52, 53]].concat();
            assert_eq!(engine.serve(&Ask { lag, ..Ask::new(&turn) }), 42);
        }
    }
}

#[test]
fn sets_that_did_not_come_level_are_kept_as_far_as_both_are() {
    cpu();
    for (kinds, reused) in [(FULL, 10), (HYB, 8)] {
        let mut engine = Engine::with_drafter(kinds, FULL, 1, options());
        let prompt = run(0, 30);
        let (mut target, mut own) = (engine.target.set(), engine.own.as_ref().expect("a drafter").set());
        let session = engine.cache.begin(&prompt, &[], &mut target, Some(&mut own)).expect("a request");
        engine.target.feed(&mut target, &prompt, 25);
        engine.own.as_ref().expect("a drafter").feed(&mut own, &prompt, 10);
        engine.cache.close(session, &prompt, target, Some(own)).expect("closed");
        assert_eq!(engine.serve(&Ask::new(&prompt)), reused);
    }
}

#[test]
fn a_drafter_without_layers_counts_slots() {
    cpu();
    let mut engine = Engine::with_drafter(TINY, &[], 1, options());
    let prompt = run(0, 30);
    engine.serve(&Ask::new(&prompt));
    assert_eq!(engine.serve(&Ask::new(&prompt)), 29);
}

#[test]
fn two_requests_at_once_share_what_is_there() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        let mut engine = Engine::new(kinds, options());
        let prompt = run(0, 33);
        engine.serve(&Ask::new(&prompt));
        let (mut one, mut two) = (engine.target.set(), engine.target.set());
        let first = engine.cache.begin(&prompt, &[], &mut one, None).expect("a request");
        let second = engine.cache.begin(&run(0, 20), &[], &mut two, None).expect("another");
        engine.target.check(&one, &prompt, first.cached_tokens());
        engine.target.check(&two, &prompt, second.cached_tokens());
        assert_eq!(first.cached_tokens(), 32);
        engine.target.feed(&mut one, &prompt, 33);
        let other = [&prompt[..20], &run(100, 10)].concat();
        engine.target.feed(&mut two, &other, 30);
        engine.target.check(&one, &prompt, 33);
        engine.cache.close(first, &prompt, one, None).expect("closed");
        engine.cache.close(second, &other, two, None).expect("closed");
        assert_eq!(engine.serve(&Ask::new(&[&prompt[..], &[77, 78]].concat())), 33);
        assert_eq!(engine.serve(&Ask::new(&[&other[..], &[77, 78]].concat())), 30);
    }
}

#[test]
fn the_next_turn_in_live_caches_copies_nothing() {
    cpu();
    let mut engine = Engine::with_drafter(FULL, FULL, 1, PrefixOptions::default());
    let mut chat = run(0, 40);
    for turn in 0..5 {
        let answer = run(100 + 20 * turn, 10);
        engine.serve(&Ask::new(&chat).answer(&answer));
        let buffers = 4 * 256 * crate::toy::ROW;
        assert_eq!((engine.cache.len(), engine.cache.bytes()), (1, buffers), "one run, in the buffers");
        chat.extend(answer);
        chat.extend(run(500 + 20 * turn, 5));
    }
}

#[test]
fn both_sets_must_reach_a_restore_point() {
    cpu();
    let own: &[Kind] = &[Kind::Full, Kind::State];
    for (kinds, own) in [(FULL, own), (HYB, FULL), (HYB, own)] {
        let mut engine = Engine::with_drafter(kinds, own, 0, options());
        let a = run(0, 40);
        engine.serve(&Ask::new(&a));
        let b = [&a[..21], &run(100, 10)].concat();
        assert_eq!(engine.serve(&Ask::new(&b)), 16);
        assert_eq!(engine.serve(&Ask::new(&a)), 39, "nothing was lost on the way");
    }
}

#[test]
fn restore_points_wait_for_a_drafter_that_lags() {
    cpu();
    for kinds in [TINY, HYB] {
        let mut engine = Engine::with_drafter(kinds, FULL, 1, options());
        let a = run(0, 41);
        engine.serve(&Ask { lag: 20, ..Ask::new(&a) });
        for (shared, reused) in [(10, 8), (19, 16), (30, 24)] {
            let b = [&a[..shared], &run(50 * shared as u32, 10)].concat();
            assert_eq!(engine.serve(&Ask { lag: 20, ..Ask::new(&b) }), reused, "{kinds:?}, {shared} shared");
        }
    }
}

#[test]
fn what_the_given_sets_held_does_not_matter() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for known in [true, false] {
            let mut engine = Engine::new(kinds, copying());
            let prompt = run(0, 40);
            if known {
                engine.serve(&Ask::new(&prompt));
            }
            let mut target = engine.target.set();
            engine.target.feed(&mut target, &run(500, 60), 60);
            target.schedule(&[70, 80]).expect("ahead");
            let session = engine.cache.begin(&prompt, &[], &mut target, None).expect("a request");
            assert_eq!(session.cached_tokens(), if known { 39 } else { 0 });
            engine.target.check(&target, &prompt, session.cached_tokens());
            engine.target.feed(&mut target, &prompt, 40);
            engine.target.check(&target, &prompt, 40);
            engine.cache.close(session, &prompt, target, None).expect("closed");
            assert_eq!(engine.serve(&Ask::new(&run(500, 60))), 0, "no request recorded them");
        }
    }
}

#[test]
fn rows_in_fewer_bits_are_reused_at_every_offset() {
    cpu();
    let id = SetId::fresh();
    let set = || {
        CacheSet::with_id(
            id,
            vec![Layer::Quantized(QuantizedCache::new(KvFormat::new(8, 64).expect("a format")))],
        )
    };
    let feed = |set: &mut CacheSet, tokens: &[u32]| {
        let numbers: Vec<f32> =
            tokens.iter().flat_map(|token| (0..64).map(move |n| (token * n) as f32)).collect();
        let rows = Array::from_slice(&numbers, &[1, 1, tokens.len() as i32, 64]);
        let layer = set.layer_mut(0).expect("a layer").attention_mut().expect("attention");
        layer.append(&rows, &rows).expect("rows that fit");
    };
    let shown = |set: &CacheSet| {
        let view = set.layer(0).expect("a layer").get().view().expect("a view").expect("rows");
        view.keys.contiguous().expect("contiguous").to_vec_exact::<f32>().expect("float32 numbers")
    };
    for options in [options(), copying()] {
        let mut cache = PrefixCache::new(options);
        let prompt = run(0, 40);
        let mut first = set();
        let session = cache.begin(&prompt, &[], &mut first, None).expect("a request");
        feed(&mut first, &prompt[..39]);
        cache.close(session, &prompt, first, None).expect("closed");
        for shared in [39, 17, 30] {
            let mut again = set();
            let other = [&prompt[..shared], &[99, 98]].concat();
            let session = cache.begin(&other, &[], &mut again, None).expect("a request");
            assert_eq!(session.cached_tokens(), shared);
            let mut cold = set();
            feed(&mut cold, &prompt[..shared]);
            assert_eq!(shown(&again), shown(&cold));
            cache.close(session, &other, again, None).expect("closed");
        }
    }
}
