//! Folded states: which are held when, and that a rejected token never stays in one.

use foretoken_cache::{
    CacheError, CacheSet, KvCache, Layer, LayerCache, LayerSnapshot, RecurrentCache, RecurrentState,
    RotatingCache,
};
use mlx_rs::{Array, Dtype, ops::zeros_dtype};

use crate::common::{TAIL, cpu, fold, folded, rows, run, state_of, sum};

/// Bytes of one state of the toy: three tail rows and one number, float32.
const STATE_BYTES: usize = (TAIL + 1) * 4;

fn after(tokens: &[u32]) -> RecurrentCache {
    let mut cache = RecurrentCache::new();
    tokens.iter().for_each(|token| fold(&mut cache, &[*token]));
    cache
}

fn holds(cache: &RecurrentCache) -> (Vec<u32>, u32) {
    state_of(&cache.state().expect("a state"))
}

/// Fails unless the cache holds what folding `tokens` from scratch gives.
fn is_at(cache: &RecurrentCache, tokens: &[u32]) {
    assert_eq!((cache.offset(), holds(cache)), (tokens.len(), folded(tokens)));
}

/// Greedy decoding of the SUM toy, whose next token is its state modulo the vocabulary.
fn plain(steps: usize) -> Vec<u32> {
    let mut tokens = vec![5];
    while tokens.len() < steps {
        tokens.push(folded(&tokens).1 % 64);
    }
    tokens
}

#[test]
fn h21_a_rejected_token_never_stays_in_the_state() {
    cpu();
    let want = plain(60);
    // WRONG rejects everything, MIX is right twice and then wrong.
    for (depth, right) in (1..=6).flat_map(|depth| [(depth, 0), (depth, 2)]) {
        let mut cache = RecurrentCache::new();
        let mut tokens = vec![want[0]];
        while tokens.len() < want.len() {
            let base = tokens.len() - 1;
            let truth = want[base..].iter().chain([&1, &2, &3, &4, &5, &6, &7]).copied();
            let wrong = |(at, token): (usize, u32)| if at > right { (token + 1) % 64 } else { token };
            let block: Vec<u32> = truth.take(depth + 1).enumerate().map(wrong).collect();
            cache.begin();
            fold(&mut cache, &block);
            let kept = (1 + right.min(depth)).min(want.len() - base);
            cache.rewind(base + kept).expect("a row of the block");
            cache.end();
            is_at(&cache, &[&want[..base], &block[..kept]].concat());
            let mut next = block[1..kept].to_vec();
            next.push(holds(&cache).1 % 64);
            tokens.extend(next);
        }
        assert_eq!(tokens[..want.len()], want, "depth {depth}, {right} right");
    }
}

#[test]
fn h22_the_convolution_tail_is_that_of_the_committed_inputs() {
    cpu();
    for start in 0..=5 {
        for (block, kept) in (1..=7).flat_map(|block| (0..=block).map(move |kept| (block, kept))) {
            let mut cache = after(&run(1, start));
            cache.begin();
            fold(&mut cache, &run(50, block));
            cache.rewind(start + kept).expect("a row of the block");
            cache.end();
            is_at(&cache, &[run(1, start), run(50, kept)].concat());
            fold(&mut cache, &[9]);
            is_at(&cache, &[run(1, start), run(50, kept), vec![9]].concat());
        }
    }
}

#[test]
fn h22_two_blocks_of_one_transaction_can_be_cut_anywhere() {
    cpu();
    for kept in 0..=7 {
        let mut cache = after(&run(1, 2));
        cache.begin();
        fold(&mut cache, &run(50, 4));
        fold(&mut cache, &run(60, 3));
        cache.rewind(2 + kept).expect("a row of either block");
        cache.end();
        let block = [run(50, 4), run(60, 3)].concat();
        is_at(&cache, &[&run(1, 2), &block[..kept]].concat());
    }
}

#[test]
fn only_the_states_that_can_be_asked_for_are_held() {
    cpu();
    let mut cache = after(&run(1, 4));
    assert_eq!((cache.stops(3), cache.wants_interior(3)), (vec![3], false));
    assert_eq!(cache.bytes(), STATE_BYTES);
    cache.begin();
    assert_eq!((cache.stops(3), cache.wants_interior(3)), (vec![1, 2, 3], true));
    fold(&mut cache, &run(50, 3));
    assert_eq!(cache.bytes(), 4 * STATE_BYTES, "the base and every row");
    assert_eq!((0..9).filter(|at| cache.can_rewind(*at)).collect::<Vec<_>>(), [0, 4, 5, 6, 7]);
    cache.rewind(5).expect("held");
    cache.end();
    assert_eq!(cache.bytes(), STATE_BYTES);
    assert_eq!((0..9).filter(|at| cache.can_rewind(*at)).collect::<Vec<_>>(), [0, 5]);
}

#[test]
fn rows_that_are_kept_together_need_no_state_between() {
    cpu();
    let mut cache = after(&run(1, 4));
    cache.begin_whole();
    assert_eq!(cache.stops(500), [500]);
    fold(&mut cache, &run(50, 20));
    assert_eq!((0..30).filter(|at| cache.can_rewind(*at)).collect::<Vec<_>>(), [0, 4, 24]);
    cache.rewind(4).expect("where it began");
    cache.end();
    is_at(&cache, &run(1, 4));
}

#[test]
fn an_offset_without_a_state_is_refused_and_nothing_changes() {
    cpu();
    let mut cache = after(&run(1, 6));
    for at in [1, 5, 7] {
        let error = cache.rewind(at).expect_err("no state");
        assert_eq!(
            error.to_string(),
            format!("rewind: expected an offset with a state that is held: one of [6], got {at}")
        );
        is_at(&cache, &run(1, 6));
    }
    cache.rewind(0).expect("zeros");
    is_at(&cache, &[]);
    fold(&mut cache, &run(9, 2));
    is_at(&cache, &run(9, 2));
}

#[test]
fn states_may_be_handed_over_for_every_row() {
    cpu();
    let mut cache = RecurrentCache::new();
    cache.schedule(&[2]);
    let array = |n: f32| Array::from_slice(&[n], &[1, 1, 1, 1]);
    let state = |n: f32| RecurrentState { tail: None, state: Some(array(n)) };
    assert_eq!(cache.stops(5), [2, 5]);
    cache.advance(5, (1..=5).map(|n| state(n as f32))).expect("every row");
    cache.rewind(2).expect("scheduled");
    let held = cache.state().expect("a state").state.expect("given");
    assert_eq!(crate::common::host(&held), [2.0]);
    cache.advance(3, [state(9.0)]).expect("the last row");
    assert_eq!((cache.offset(), cache.bytes()), (5, 8), "2 is still scheduled");
}

#[test]
fn states_that_do_not_fit_change_nothing() {
    cpu();
    let mut cache = after(&run(1, 6));
    let zeros = |shape: &[i32], dtype| Some(zeros_dtype(shape, dtype).expect("a small array"));
    let state = |shape: &[i32], dtype| RecurrentState {
        tail: zeros(&[1, 3, 1], Dtype::Float32),
        state: zeros(shape, dtype),
    };
    let fits = || state(&[1, 1, 1, 1], Dtype::Float32);
    let cases = [
        (1, vec![]),
        (3, vec![fits(), fits()]),
        (0, vec![]),
        (1, vec![state(&[1, 1, 1, 2], Dtype::Float32)]),
        (1, vec![RecurrentState { tail: None, ..fits() }]),
        (1, vec![RecurrentState::default()]),
    ];
    for (rows, states) in cases {
        let error = cache.advance(rows, states).expect_err("does not fit");
        assert!(matches!(error, CacheError::Shape { .. }), "{error}");
        is_at(&cache, &run(1, 6));
    }
    let error = cache.advance(1, [state(&[1, 1, 1, 1], Dtype::Bfloat16)]).expect_err("another type");
    assert!(matches!(error, CacheError::Dtype { what: "recurrent state", .. }), "{error}");
    is_at(&cache, &run(1, 6));
}

#[test]
fn keys_and_values_are_refused_and_so_are_states_elsewhere() {
    cpu();
    let (keys, values) = rows(0, &[1]);
    let mut layer = Layer::Recurrent(RecurrentCache::new());
    let error = layer.get_mut().append(&keys, &values).expect_err("no rows here");
    assert_eq!(error.to_string(), "append: expected a layer of keys and values, got a recurrent layer");
    assert!(matches!(layer.get().view(), Err(CacheError::Kind { what: "view", .. })));
    assert!(layer.raw_view().is_err());
    let error = layer.attention_mut().err().expect("not attention");
    assert_eq!(
        error.to_string(),
        "attention: expected a layer of keys and values, got one of kind recurrent"
    );
    layer.recurrent_mut().expect("it is one");
    for mut other in [Layer::Kv(KvCache::new()), Layer::Rotating(RotatingCache::new(4))] {
        assert!(matches!(other.recurrent_mut(), Err(CacheError::Kind { what: "recurrence", .. })));
        other.attention_mut().expect("it is one").append(&keys, &values).expect("fits");
    }
}

#[test]
fn a_snapshot_costs_nothing_while_the_layer_holds_the_state() {
    cpu();
    let mut cache = after(&run(1, 6));
    let snapshot = cache.snapshot(0..6).expect("at the offset");
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes()), (0, 0));
    fold(&mut cache, &run(50, 2));
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes(), cache.bytes()), (16, 16, 16));
    cache.restore(&[&snapshot]).expect("captured");
    is_at(&cache, &run(1, 6));
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes()), (0, 0), "the layer holds it again");
    fold(&mut cache, &run(70, 1));
    drop(cache);
    assert_eq!(snapshot.bytes(), 16);
    let LayerSnapshot::State(state) = &snapshot else { panic!("{snapshot:?}") };
    assert_eq!(state_of(&state.read().expect("held")), folded(&run(1, 6)));
}

#[test]
fn bytes_return_to_zero_with_the_last_snapshot() {
    cpu();
    let mut cache = after(&run(1, 6));
    let first = cache.snapshot(0..6).expect("at the offset");
    fold(&mut cache, &run(50, 2));
    let second = cache.snapshot(6..8).expect("at the offset");
    fold(&mut cache, &run(60, 2));
    let whole = first.merge(&second).expect("adjacent");
    assert_eq!((whole.bytes(), cache.snapshot_bytes()), (32, 32), "both states, once");
    drop((first, second));
    let (front, back) = whole.split(7).expect("inside");
    drop(whole);
    assert_eq!((front.bytes(), back.bytes(), cache.snapshot_bytes()), (16, 16, 32));
    drop(front);
    drop(back);
    assert_eq!(cache.snapshot_bytes(), 0);
}

#[test]
fn a_whole_state_cannot_be_cut() {
    cpu();
    let mut cache = after(&run(1, 6));
    let snapshot = cache.snapshot(2..6).expect("at the offset");
    assert_eq!((0..9).filter(|at| snapshot.reaches(*at)).collect::<Vec<_>>(), [6]);
    let (front, back) = snapshot.split(4).expect("inside");
    assert!(!front.reaches(4) && back.reaches(6));
    fold(&mut cache, &run(50, 2));
    let error = cache.restore(&[&front]).expect_err("4 was not captured");
    assert_eq!(
        error.to_string(),
        "restore: expected an offset that was captured (the snapshot has none), got 4"
    );
    is_at(&cache, &[run(1, 6), run(50, 2)].concat());
    cache.restore(&[&front, &back]).expect("6 was captured");
    is_at(&cache, &run(1, 6));
    assert!(matches!(cache.snapshot(0..3), Err(CacheError::Offset { what: "snapshot", got: 3, .. })));
    assert!(matches!(cache.snapshot(6..6), Err(CacheError::Offset { what: "snapshot", .. })));
}

#[test]
fn scheduled_states_are_captured_inside_one_block() {
    cpu();
    let mut set = CacheSet::new(vec![Layer::Recurrent(after(&run(1, 3)))]);
    let push = |set: &mut CacheSet, tokens: &[u32]| {
        fold(set.layer_mut(0).expect("a layer").recurrent_mut().expect("recurrent"), tokens);
    };
    set.schedule(&[5, 8, 30]).expect("ahead");
    set.begin_whole().expect("closed");
    push(&mut set, &run(4, 10));
    set.commit(10).expect("all of them");
    let snapshots = set.collect().expect("closed");
    assert_eq!(snapshots.iter().map(|s| s.range()).collect::<Vec<_>>(), [3..5, 5..8]);
    assert_eq!(set.bytes(), STATE_BYTES);
    for (snapshot, end) in snapshots.iter().zip([5, 8]) {
        set.restore(snapshot).expect("captured");
        let Layer::Recurrent(cache) = &set.layers()[0] else { panic!("recurrent") };
        is_at(cache, &run(1, end));
    }
    drop(snapshots);
    assert_eq!((set.snapshot_bytes(), set.snapshots()), (0, 0));
}

#[test]
fn a_schedule_never_captures_a_state_that_was_taken_back() {
    cpu();
    let mut set = CacheSet::new(vec![Layer::Recurrent(after(&run(1, 3)))]);
    let push = |set: &mut CacheSet, tokens: &[u32]| {
        fold(set.layer_mut(0).expect("a layer").recurrent_mut().expect("recurrent"), tokens);
    };
    set.schedule(&[5, 6]).expect("ahead");
    set.begin().expect("closed");
    push(&mut set, &run(100, 4));
    set.commit(1).expect("open");
    push(&mut set, &[200]);
    let snapshots = set.collect().expect("closed");
    assert_eq!(snapshots.len(), 1, "slot 5 was taken back and not written again");
    push(&mut set, &[7]);
    set.restore(&snapshots[0]).expect("captured");
    let Layer::Recurrent(cache) = &set.layers()[0] else { panic!("recurrent") };
    is_at(cache, &[run(1, 3), vec![100, 200]].concat());
}

#[test]
fn states_of_a_failed_evaluation_are_lost() {
    cpu();
    let mut cache = after(&run(1, 3));
    let before = cache.snapshot(0..3).expect("at the offset");
    fold(&mut cache, &[4]);
    let broken = cache.snapshot(0..4).expect("at the offset");
    cache.abandon();
    assert!(matches!(cache.state(), Err(CacheError::LostState { .. })));
    assert!(matches!(cache.advance(1, [RecurrentState::default()]), Err(CacheError::LostState { .. })));
    let mut other = RecurrentCache::new();
    assert!(matches!(other.restore(&[&broken]), Err(CacheError::LostState { .. })));
    other.restore(&[&before]).expect("older than the failure");
    is_at(&other, &run(1, 3));
}

#[test]
fn printing_a_state_evaluates_nothing() {
    cpu();
    let cache = after(&[1]);
    assert!(format!("{cache:?}").starts_with("RecurrentCache { offset: 1, bytes: 16"));
    let state = cache.state().expect("a state");
    assert_eq!(format!("{state:?}"), "RecurrentState { tail: Some([1, 3, 1]), state: Some([1, 1, 1, 1]) }");
    assert_eq!(sum(96, 96), (3 * 96 + 97) % 97);
}
