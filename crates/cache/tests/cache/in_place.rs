//! What MLX allocates: in-place writes really are in place, and dropped snapshots give memory back.

use foretoken_cache::{
    CacheSet, KvCache, KvFormat, Layer, LayerCache, QuantizedCache, RecurrentCache, RecurrentState,
    RotatingCache, View,
};
use mlx_rs::{
    Array, Dtype,
    memory::{active_memory, peak_memory, reset_peak_memory},
    ops::{full, indexing::TryIndexOp, zeros_dtype},
    transforms::eval,
};

use crate::common::cpu;

const HEADS: i32 = 8;
const SIZE: i32 = 64;
/// Rows of a buffer that is far larger than anything else a test allocates (8 MiB for keys alone).
const LONG: i32 = 4096;
const ROW_BYTES: usize = 2 * (HEADS * SIZE) as usize * 4;
/// Room for small arrays around a write.
const SLACK: usize = 256 * 1024;

fn block(rows: i32) -> Array {
    zeros_dtype(&[1, HEADS, rows, SIZE], Dtype::Float32).expect("an array")
}

fn push(cache: &mut KvCache, rows: i32) -> View {
    cache.append(&block(rows), &block(rows)).expect("rows that fit")
}

fn settle(view: View) {
    eval([&view.keys, &view.values]).expect("evaluates");
}

/// How far the allocations of `work` went above what was held before it.
fn extra(work: impl FnOnce()) -> usize {
    let before = active_memory().expect("a number");
    reset_peak_memory().expect("resets");
    work();
    peak_memory().expect("a number").saturating_sub(before)
}

/// A layer of LONG rows with capacity left for one more step.
fn long() -> KvCache {
    let mut cache = KvCache::new();
    settle(push(&mut cache, LONG + 1));
    cache
}

#[test]
fn appends_do_not_copy_the_buffer() {
    cpu();
    let mut cache = long();
    for rows in [1, 1, 5, 1] {
        let used = extra(|| settle(push(&mut cache, rows)));
        assert!(used < SLACK, "{rows} rows took {used} bytes on a buffer of {}", cache.bytes());
    }
}

#[test]
fn rejected_rounds_do_not_copy_the_buffer() {
    cpu();
    let mut cache = long();
    for _ in 0..3 {
        let base = cache.offset();
        let used = extra(|| settle(push(&mut cache, 5)));
        cache.rewind(base + 1).expect("back");
        assert!(used < SLACK, "a round took {used} bytes");
    }
}

#[test]
fn a_kept_view_costs_a_copy_which_this_measure_sees() {
    cpu();
    let mut cache = long();
    let view = push(&mut cache, 1);
    eval([&view.keys, &view.values]).expect("evaluates");
    let used = extra(|| settle(push(&mut cache, 1)));
    assert!(used > cache.bytes() / 2, "only {used} bytes");
    drop(view);
    let used = extra(|| settle(push(&mut cache, 1)));
    assert!(used < SLACK, "{used} bytes after the view is gone");
}

#[test]
fn a_live_snapshot_at_the_frontier_costs_nothing() {
    cpu();
    let mut cache = long();
    let snapshot = cache.snapshot(0..LONG as usize).expect("live rows");
    let used = extra(|| settle(push(&mut cache, 1)));
    assert!(used < SLACK, "{used} bytes");
    assert_eq!(snapshot.bytes(), 0);
}

#[test]
fn overwritten_snapshots_are_compact_and_give_their_memory_back() {
    cpu();
    let mut set = CacheSet::new(vec![Layer::Kv(long())]);
    let before = active_memory().expect("a number");
    let snapshot = set.snapshot(100..200).expect("live rows");
    set.rewind(150).expect("back");
    let cache = set.layer_mut(0).expect("a layer").get_mut();
    settle(cache.append(&block(1), &block(1)).expect("fits"));
    settle(cache.append(&block(1), &block(1)).expect("fits"));
    let held = active_memory().expect("a number") - before;
    assert_eq!(snapshot.bytes(), 100 * ROW_BYTES);
    assert_eq!(set.snapshot_bytes(), 100 * ROW_BYTES);
    assert!(held < 100 * ROW_BYTES + SLACK, "{held} bytes held for {}", snapshot.bytes());
    drop(snapshot);
    assert_eq!((set.snapshot_bytes(), set.snapshots()), (0, 0));
    let left = active_memory().expect("a number").saturating_sub(before);
    assert!(left < SLACK, "{left} bytes left");
}

#[test]
fn writes_after_a_copied_snapshot_are_in_place_again() {
    cpu();
    let mut cache = long();
    let snapshot = cache.snapshot(100..200).expect("live rows");
    cache.rewind(150).expect("back");
    settle(push(&mut cache, 1));
    let used = extra(|| settle(push(&mut cache, 1)));
    assert!(used < SLACK, "{used} bytes");
    assert_eq!(snapshot.bytes(), 100 * ROW_BYTES);
}

#[test]
fn a_dropped_set_gives_everything_back_but_the_copies() {
    cpu();
    let before = active_memory().expect("a number");
    let mut set = CacheSet::new(vec![Layer::Kv(long())]);
    let snapshot = set.snapshot(100..200).expect("live rows");
    drop(set);
    let rows = snapshot.bytes();
    assert_eq!(rows, 100 * ROW_BYTES, "copied out before the buffer went");
    // The copy runs on its own; reading it waits for it.
    let foretoken_cache::LayerSnapshot::Rows(copy) = &snapshot.layers()[0] else { panic!("rows") };
    let (keys, values) = copy.read().expect("copied");
    eval([&keys, &values]).expect("evaluates");
    drop((keys, values));
    let held = active_memory().expect("a number") - before;
    assert!(held < rows + SLACK, "{held} bytes held for {rows}");
    drop(snapshot);
    assert!(active_memory().expect("a number") < before + SLACK);
}

/// A window of LONG rows after LONG + 1 rows, all of it evaluated; its buffer has room for more.
fn long_window() -> RotatingCache {
    let mut cache = RotatingCache::new(LONG as usize);
    for rows in [LONG, 1] {
        settle(cache.append(&block(rows), &block(rows)).expect("rows that fit"));
    }
    cache
}

#[test]
fn a_window_is_written_in_place_also_when_rounds_are_rejected() {
    cpu();
    let mut cache = long_window();
    for rows in [1, 1, 5, 1] {
        // What attention reads is a view; the mask of a block is small.
        let used = extra(|| settle(cache.append(&block(rows), &block(rows)).expect("fits")));
        assert!(used < SLACK, "{rows} rows took {used} bytes on a buffer of {}", cache.bytes());
    }
    for kept in [1, 0, 3] {
        let base = cache.offset();
        cache.begin();
        let used = extra(|| settle(cache.append(&block(5), &block(5)).expect("fits")));
        cache.rewind(base + kept).expect("inside the transaction");
        cache.end();
        assert!(used < SLACK, "a round took {used} bytes");
    }
}

#[test]
fn a_window_moves_its_rows_once_per_window_at_most() {
    cpu();
    let mut cache = RotatingCache::new(64);
    let mut moves = 0;
    let steps = 1000;
    for _ in 0..steps {
        let before = cache.bytes();
        let used = extra(|| settle(cache.append(&block(1), &block(1)).expect("fits")));
        moves += usize::from(used > before / 2);
    }
    assert!(moves <= 2 + steps / 64, "{moves} moves in {steps} steps");
}

#[test]
fn a_window_snapshot_that_slid_away_is_compact_and_given_back() {
    cpu();
    let mut cache = long_window();
    let snapshot = cache.snapshot(0..LONG as usize + 1).expect("at the offset");
    let (before, buffer) = (active_memory().expect("a number"), cache.bytes());
    let used = extra(|| settle(cache.append(&block(1), &block(1)).expect("fits")));
    assert!(used < SLACK && snapshot.bytes() == 0, "{used} bytes");
    while snapshot.bytes() == 0 {
        settle(cache.append(&block(512), &block(512)).expect("fits"));
    }
    assert_eq!(cache.snapshot_bytes(), (LONG as usize - 1) * ROW_BYTES);
    drop(snapshot);
    settle(cache.append(&block(1), &block(1)).expect("fits"));
    assert_eq!(cache.snapshot_bytes(), 0);
    let held = active_memory().expect("a number").saturating_sub(before + cache.bytes() - buffer);
    assert!(held < SLACK, "{held} bytes more than the buffer grew");
}

#[test]
fn packed_rows_are_written_in_place() {
    cpu();
    let mut cache = QuantizedCache::new(KvFormat::new(8, 64).expect("a known format"));
    drop(cache.append(&block(LONG + 1), &block(LONG + 1)).expect("fits"));
    let look = |cache: &QuantizedCache| settle(cache.view().expect("a view").expect("rows"));
    look(&cache);
    let unpacking = extra(|| look(&cache));
    let used = extra(|| {
        drop(cache.append(&block(1), &block(1)).expect("fits"));
        look(&cache);
    });
    assert!(used < unpacking + SLACK, "{used} bytes, {unpacking} of them to unpack a view");
}

#[test]
fn states_that_nothing_asks_for_are_freed() {
    cpu();
    let mut cache = RecurrentCache::new();
    let state = |n: f32| RecurrentState {
        tail: None,
        state: Some(full::<f32>(&[1, 64, 64, 64], Array::from_f32(n)).expect("an array")),
    };
    let advance = |cache: &mut RecurrentCache, rows: usize| {
        let states: Vec<RecurrentState> = cache.stops(rows).iter().map(|row| state(*row as f32)).collect();
        states.iter().for_each(|state| eval(&state.state).expect("evaluates"));
        cache.advance(rows, states).expect("fits");
    };
    advance(&mut cache, 1);
    let before = active_memory().expect("a number");
    cache.begin();
    advance(&mut cache, 9);
    let open = active_memory().expect("a number") - before;
    assert!(open >= 9 * (1 << 20), "{open} bytes: one state per row");
    cache.rewind(4).expect("a row of the block");
    cache.end();
    let left = active_memory().expect("a number").saturating_sub(before);
    assert!(left < SLACK, "{left} bytes more than one state");
}

#[test]
fn a_tail_does_not_keep_the_inputs_of_its_block_alive() {
    cpu();
    let mut cache = RecurrentCache::new();
    let before = active_memory().expect("a number");
    let inputs = full::<f32>(&[1, 1000, 4096], Array::from_f32(1.0)).expect("an array");
    eval([&inputs]).expect("evaluates");
    let tail = inputs.try_index((.., 997.., ..)).expect("the last rows");
    cache.advance(1000, [RecurrentState { tail: Some(tail), state: None }]).expect("fits");
    drop(inputs);
    cache.begin();
    let state = cache.state().expect("a state");
    eval(&state.tail).expect("evaluates");
    let held = active_memory().expect("a number").saturating_sub(before);
    assert!(held < SLACK, "{held} bytes held for {} of tail", cache.bytes());
}
