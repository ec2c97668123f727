//! Sets of several kinds: all layers go to an offset, or none does.

use foretoken_cache::{CacheError, CacheSet, KvCache, Layer, RecurrentCache, RotatingCache, Snapshot};

use crate::common::{cpu, fold, folded, run, seen, sees, state_of};

const WINDOW: usize = 8;

fn attention() -> CacheSet {
    CacheSet::new(vec![Layer::Kv(KvCache::new()), Layer::Rotating(RotatingCache::new(WINDOW))])
}

fn hybrid() -> CacheSet {
    let layers = [Layer::Kv(KvCache::new()), Layer::Rotating(RotatingCache::new(WINDOW))];
    CacheSet::new(layers.into_iter().chain([Layer::Recurrent(RecurrentCache::new())]).collect())
}

fn push(set: &mut CacheSet, tokens: &[u32]) {
    // A layer refuses a block without rows.
    for index in (0..set.len()).filter(|_| !tokens.is_empty()) {
        match set.layer_mut(index).expect("a layer") {
            Layer::Recurrent(cache) => fold(cache, tokens),
            other => drop(sees(other.attention_mut().expect("attention"), tokens)),
        }
    }
}

/// Fails unless every layer holds what `tokens`, fed from scratch, would leave.
fn is_at(set: &CacheSet, tokens: &[u32]) {
    assert_eq!(set.offset(), tokens.len());
    for layer in set.layers() {
        let from = match layer {
            Layer::Recurrent(cache) => {
                assert_eq!(state_of(&cache.state().expect("a state")), folded(tokens));
                continue;
            }
            Layer::Rotating(cache) => tokens.len().saturating_sub(cache.window() - 1),
            _ => 0,
        };
        assert_eq!(layer.get().offset(), tokens.len());
        let view = layer.get().view().expect("a view");
        assert_eq!(view.map_or(vec![], |view| seen(0, &view)), tokens[from..], "{}", layer.kind());
    }
}

/// Takes the set as far back as it goes towards `shared` tokens, and says how far that is.
fn reuse(set: &mut CacheSet, shared: usize) -> usize {
    let at = if set.can_rewind(shared) { shared } else { 0 };
    set.rewind(at).expect("promised");
    at
}

#[test]
fn h05_every_layer_answers_for_how_far_a_set_goes_back() {
    cpu();
    for (length, shared) in [(30, 20), (30, 29), (300, 20), (300, 290)] {
        let mut set = attention();
        push(&mut set, &run(0, length));
        for _ in 0..2 {
            let reused = reuse(&mut set, shared);
            is_at(&set, &run(0, reused));
            push(&mut set, &run(reused as u32, shared - reused));
            push(&mut set, &[777, 778]);
            is_at(&set, &[run(0, shared), vec![777, 778]].concat());
        }
    }
}

#[test]
fn h05_one_layer_that_cannot_go_back_keeps_all_where_they_are() {
    cpu();
    let mut set = attention();
    run(0, 300).iter().for_each(|token| push(&mut set, &[*token]));
    assert!(!set.can_rewind(20));
    let error = set.rewind(20).expect_err("the window has slid away");
    assert!(matches!(error, CacheError::Offset { what: "rewind", got: 20, .. }), "{error}");
    is_at(&set, &run(0, 300));
    push(&mut set, &[300]);
    is_at(&set, &run(0, 301));
}

#[test]
fn h06_a_window_that_slid_away_is_not_resumed_without_a_snapshot() {
    cpu();
    let mut set = attention();
    run(0, 40).iter().for_each(|token| push(&mut set, &[*token]));
    assert_eq!(reuse(&mut set, 5), 0, "no snapshot covers slot 5");
    push(&mut set, &run(0, 5));
    push(&mut set, &run(500, 20));
    is_at(&set, &[run(0, 5), run(500, 20)].concat());
}

#[test]
fn h06_a_snapshot_that_covers_the_point_resumes_there() {
    cpu();
    let mut set = hybrid();
    set.schedule(&[5]).expect("ahead");
    push(&mut set, &run(0, 9));
    let snapshots = set.collect().expect("closed");
    run(9, 31).iter().for_each(|token| push(&mut set, &[*token]));
    set.restore(&snapshots[0]).expect("captured");
    is_at(&set, &run(0, 5));
    push(&mut set, &run(500, 20));
    is_at(&set, &[run(0, 5), run(500, 20)].concat());
}

#[test]
fn h07_snapshots_of_every_kind_survive_what_comes_after_them() {
    cpu();
    let mut set = hybrid();
    push(&mut set, &run(0, 16));
    let snapshot = set.snapshot(8..16).expect("at the offset");
    for round in 1..=10u32 {
        let at = set.offset();
        push(&mut set, &run(1000 * round, 1 + (7 * round as usize) % 13));
        if round % 3 == 0 {
            set.restore(&snapshot).expect("captured");
            is_at(&set, &run(0, 16));
        } else {
            assert!(set.offset() > at);
        }
    }
    set.rewind(0).expect("the start");
    push(&mut set, &run(0, 8));
    set.restore(&snapshot).expect("captured");
    is_at(&set, &run(0, 16));
}

#[test]
fn rejected_rounds_leave_what_the_committed_tokens_leave() {
    cpu();
    let (mut set, mut tokens) = (hybrid(), Vec::new());
    for round in 0..40usize {
        let block = run(100 * round as u32, 1 + round % 7);
        set.begin().expect("closed");
        push(&mut set, &block);
        let kept = (round * 5) % (block.len() + 1);
        set.commit(kept).expect("open");
        tokens.extend(&block[..kept]);
        is_at(&set, &tokens);
    }
}

#[test]
fn a_prompt_in_whole_chunks_can_be_cancelled_between_and_inside() {
    cpu();
    let mut set = hybrid();
    for chunk in 0..4u32 {
        set.begin_whole().expect("closed");
        push(&mut set, &run(10 * chunk, 10));
        set.commit(10).expect("all of them");
    }
    set.begin_whole().expect("closed");
    push(&mut set, &run(40, 10));
    set.commit(3).expect_err("no state after three rows");
    assert!(set.is_open());
    set.rollback().expect("none of them");
    is_at(&set, &run(0, 40));
}

#[test]
fn a_forward_that_failed_between_layers_is_rolled_back() {
    cpu();
    let mut set = hybrid();
    push(&mut set, &run(0, 20));
    set.begin().expect("closed");
    sees(set.layer_mut(0).expect("a layer").attention_mut().expect("attention"), &run(90, 3));
    sees(set.layer_mut(1).expect("a layer").attention_mut().expect("attention"), &run(90, 3));
    set.commit(2).expect_err("the recurrent layer has no such rows");
    set.rollback().expect("open");
    is_at(&set, &run(0, 20));
}

#[test]
fn a_mixed_snapshot_says_where_it_restores_to() {
    cpu();
    let mut set = hybrid();
    set.schedule(&[12, 20]).expect("ahead");
    push(&mut set, &run(0, 30));
    let snapshots = set.collect().expect("closed");
    let whole = snapshots[0].merge(&snapshots[1]).expect("adjacent");
    assert_eq!((0..40).filter(|at| whole.reaches(*at)).collect::<Vec<_>>(), [12, 20]);
    assert_eq!(
        [11, 12, 19, 20, 99].map(|at| whole.restore_point(at)),
        [None, Some(12), Some(12), Some(20), Some(20)]
    );
    let (front, back) = whole.split(15).expect("inside");
    let error = set.restore(&front).expect_err("15 was not captured");
    assert!(matches!(error, CacheError::Offset { what: "restore", got: 15, .. }), "{error}");
    is_at(&set, &run(0, 30));
    set.can_restore_path(&[&front]).expect_err("the same");
    set.can_restore_path(&[&front, &back]).expect("20 was captured");
    set.restore_path(&[&front, &back]).expect("20 was captured");
    is_at(&set, &run(0, 20));
    let (front, _) = front.split(12).expect("inside");
    set.restore(&front).expect("12 was captured");
    is_at(&set, &run(0, 12));
}

#[test]
fn full_attention_alone_goes_to_every_offset_of_a_snapshot() {
    cpu();
    let mut set = CacheSet::new(vec![Layer::Kv(KvCache::new())]);
    push(&mut set, &run(0, 10));
    let snapshot = set.snapshot(2..10).expect("live rows");
    assert_eq!(
        (0..12).filter(|at| snapshot.reaches(*at)).collect::<Vec<_>>(),
        run(3, 8).iter().map(|n| *n as usize).collect::<Vec<_>>()
    );
    assert_eq!((snapshot.restore_point(7), snapshot.restore_point(2)), (Some(7), None));
}

#[test]
fn an_offset_that_some_layer_cannot_capture_is_refused_whole() {
    cpu();
    let mut set = hybrid();
    push(&mut set, &run(0, 20));
    let error = set.snapshot(0..15).expect_err("the recurrent layer is at 20");
    assert!(matches!(error, CacheError::Offset { what: "snapshot", got: 15, .. }), "{error}");
    assert_eq!((set.snapshots(), set.snapshot_bytes()), (0, 0));
    set.rewind(0).expect("the start");
    push(&mut set, &run(300, 40));
    assert_eq!(set.snapshot_bytes(), 0, "the layers that could capture it let go again");
    is_at(&set, &run(300, 40));
}

#[test]
fn snapshots_of_another_kind_of_layer_are_refused() {
    cpu();
    let mut set = hybrid();
    push(&mut set, &run(0, 6));
    let snapshot = set.snapshot(0..6).expect("at the offset");
    let twisted = [Layer::Rotating(RotatingCache::new(WINDOW)), Layer::Recurrent(RecurrentCache::new())];
    let twisted = twisted.into_iter().chain([Layer::Kv(KvCache::new())]);
    let mut other = CacheSet::with_id(set.id(), twisted.collect());
    let error = other.restore(&snapshot).expect_err("kinds differ");
    assert_eq!(
        error.to_string(),
        "restore: expected a layer's snapshot of a window, got a layer's snapshot of rows"
    );
    assert_eq!(other.offset(), 0);
    let [rows, window, _] = snapshot.layers() else { panic!("three layers") };
    assert!(matches!(rows.merge(window), Err(CacheError::Offset { what: "merge", .. })));
}

#[test]
fn snapshots_move_between_sets_of_one_model_and_outlive_the_first() {
    cpu();
    let mut first = hybrid();
    let mut second = CacheSet::with_id(first.id(), hybrid_layers());
    push(&mut first, &run(0, 30));
    let snapshot = first.snapshot(0..30).expect("at the offset");
    second.restore(&snapshot).expect("the same model");
    is_at(&second, &run(0, 30));
    push(&mut second, &[30]);
    drop(first);
    assert!(snapshot.bytes() > 0);
    let mut third = CacheSet::with_id(second.id(), hybrid_layers());
    third.restore(&snapshot).expect("copied before the first set went");
    is_at(&third, &run(0, 30));
    push(&mut third, &run(500, 50));
    is_at(&third, &[run(0, 30), run(500, 50)].concat());
    is_at(&second, &run(0, 31));
}

fn hybrid_layers() -> Vec<Layer> {
    vec![
        Layer::Kv(KvCache::new()),
        Layer::Rotating(RotatingCache::new(WINDOW)),
        Layer::Recurrent(RecurrentCache::new()),
    ]
}

#[test]
fn everything_is_given_back() {
    cpu();
    let mut set = hybrid();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for turn in 0..20u32 {
        let from = set.offset();
        push(&mut set, &run(100 * turn, 9));
        snapshots.push(set.snapshot(from..from + 9).expect("at the offset"));
    }
    set.rewind(0).expect("the start");
    push(&mut set, &run(7, 200));
    assert!(set.snapshot_bytes() > 0);
    let path: Vec<&Snapshot> = snapshots.iter().collect();
    set.rewind(0).expect("the start");
    set.restore_path(&path).expect("no gap");
    let tokens: Vec<u32> = (0..20).flat_map(|turn| run(100 * turn, 9)).collect();
    is_at(&set, &tokens);
    drop(snapshots);
    assert_eq!((set.snapshot_bytes(), set.snapshots()), (0, 0));
}
