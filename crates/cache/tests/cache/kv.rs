//! The full key/value layer on its own: growth, checks, and what stays after an error.

use foretoken_cache::{CacheError, GROW_SLOTS, KvCache, LayerCache, Mask};
use mlx_rs::{
    Array, Dtype,
    ops::{broadcast_to, zeros_dtype},
};

use crate::common::{SHAPES, cpu, rows, run, seen};

fn push(cache: &mut KvCache, tokens: &[u32]) {
    let (keys, values) = rows(0, tokens);
    cache.append(&keys, &values).expect("rows that fit");
}

fn holds(cache: &KvCache) -> Vec<u32> {
    cache.view().expect("a view").map_or(Vec::new(), |view| seen(0, &view))
}

fn sized(slots: usize) -> usize {
    let (heads, key, value) = SHAPES[0];
    heads as usize * slots * (key + value) as usize * 4
}

fn zeros(shape: [i32; 4], dtype: Dtype) -> Array {
    zeros_dtype(&shape, dtype).expect("a small array")
}

#[test]
fn an_append_shows_the_block_everything_so_far() {
    cpu();
    let mut cache = KvCache::new();
    assert!(cache.view().expect("empty").is_none());
    let (keys, values) = rows(0, &run(0, 3));
    let view = cache.append(&keys, &values).expect("first rows");
    assert!(matches!(view.mask, Mask::Causal));
    assert_eq!(seen(0, &view), run(0, 3));
    let (keys, values) = rows(0, &[3]);
    let view = cache.append(&keys, &values).expect("one more");
    assert!(matches!(view.mask, Mask::All));
    assert_eq!((seen(0, &view), cache.offset()), (run(0, 4), 4));
}

#[test]
fn growth_goes_in_whole_steps_also_across_the_border() {
    cpu();
    let mut cache = KvCache::new();
    assert_eq!(cache.bytes(), 0);
    let mut all = Vec::new();
    for (rows, steps) in [(250, 1), (6, 1), (1, 2), (255, 2), (300, 4), (1, 4)] {
        let next = run(all.len() as u32, rows);
        push(&mut cache, &next);
        all.extend(next);
        assert_eq!(cache.bytes(), sized(steps * GROW_SLOTS), "after {} rows", all.len());
    }
    assert_eq!(holds(&cache), all);
}

#[test]
fn a_first_block_longer_than_a_step_fits() {
    cpu();
    let mut cache = KvCache::new();
    push(&mut cache, &run(0, 2 * GROW_SLOTS + 1));
    assert_eq!(cache.bytes(), sized(3 * GROW_SLOTS));
    assert_eq!(holds(&cache), run(0, 2 * GROW_SLOTS + 1));
}

#[test]
fn rewound_rows_are_never_seen_again() {
    cpu();
    let mut cache = KvCache::new();
    push(&mut cache, &run(0, 260));
    cache.rewind(250).expect("back");
    assert_eq!(holds(&cache), run(0, 250));
    push(&mut cache, &[900]);
    let mut want = run(0, 250);
    want.push(900);
    assert_eq!(holds(&cache), want, "slots 251.. still hold the old rows and must stay hidden");
    cache.rewind(0).expect("to the start");
    assert!(cache.view().expect("empty").is_none());
}

#[test]
fn a_rewind_ahead_is_refused() {
    cpu();
    let mut cache = KvCache::new();
    push(&mut cache, &run(0, 5));
    assert!(!cache.can_rewind(6));
    let error = cache.rewind(6).expect_err("ahead");
    assert_eq!(error.to_string(), "rewind: expected an offset of at most 5, got 6");
    assert_eq!(holds(&cache), run(0, 5));
}

#[test]
fn rows_that_do_not_fit_change_nothing() {
    cpu();
    let mut cache = KvCache::new();
    push(&mut cache, &run(0, 5));
    let before = cache.bytes();
    let bad = [
        ([1, 2, 0, 4], [1, 2, 0, 2]), // no rows
        ([1, 2, 2, 4], [1, 2, 3, 2]), // as many keys as values
        ([1, 3, 2, 4], [1, 3, 2, 2]), // heads
        ([1, 2, 2, 5], [1, 2, 2, 2]), // key size
        ([1, 2, 2, 4], [1, 2, 2, 1]), // value size; would broadcast
        ([1, 2, 2, 4], [1, 1, 2, 2]), // heads of the values; would broadcast
        ([2, 2, 2, 4], [2, 2, 2, 2]), // two sequences
    ];
    for (keys, values) in bad {
        let (keys, values) = (zeros(keys, Dtype::Float32), zeros(values, Dtype::Float32));
        let error = cache.append(&keys, &values).expect_err("does not fit");
        assert!(matches!(error, CacheError::Shape { .. }), "{error}");
        assert_eq!((cache.offset(), cache.bytes()), (5, before));
    }
    let flat = zeros_dtype(&[1, 2, 4], Dtype::Float32).expect("rank 3");
    assert!(matches!(cache.append(&flat, &flat), Err(CacheError::Shape { .. })));
    assert_eq!(holds(&cache), run(0, 5));
}

#[test]
fn first_rows_that_do_not_fit_leave_the_layer_unused() {
    cpu();
    let mut cache = KvCache::new();
    let none = zeros([1, 2, 0, 4], Dtype::Float32);
    let error = cache.append(&none, &none).expect_err("no rows");
    assert_eq!(
        error.to_string(),
        "keys and values: expected shape [1,K,L,D] with L ≥ 1, got [1, 2, 0, 4] and [1, 2, 0, 4]"
    );
    assert_eq!((cache.offset(), cache.bytes()), (0, 0));
    push(&mut cache, &[1]);
    assert_eq!(holds(&cache), [1]);
}

#[test]
fn more_slots_than_an_array_can_index_are_refused() {
    cpu();
    let mut cache = KvCache::new();
    push(&mut cache, &run(0, 5));
    let endless =
        |size| broadcast_to(Array::from_f32(0.0), &[1, 2, i32::MAX, size]).expect("never evaluated");
    let error = cache.append(&endless(4), &endless(2)).expect_err("too many");
    assert!(matches!(error, CacheError::Offset { what: "append", .. }), "{error}");
    assert_eq!(holds(&cache), run(0, 5));
}

#[test]
fn rows_of_another_type_are_refused() {
    cpu();
    let mut cache = KvCache::new();
    let half = |size| zeros([1, 2, 1, size], Dtype::Bfloat16);
    cache.append(&half(4), &half(2)).expect("the first rows choose the type");
    let (keys, values) = rows(0, &[1]);
    let error = cache.append(&keys, &values).expect_err("float32");
    assert_eq!(error.to_string(), "keys: expected Bfloat16, got Float32; cast the rows first");
    assert!(matches!(cache.append(&half(4), &values), Err(CacheError::Dtype { what: "values", .. })));
    let view = cache.append(&half(4), &half(2)).expect("still bfloat16");
    assert_eq!((view.keys.dtype(), view.values.dtype()), (Dtype::Bfloat16, Dtype::Bfloat16));
    assert_eq!(cache.bytes(), sized(GROW_SLOTS) / 2);
}

#[test]
fn printing_shows_shapes_not_arrays() {
    cpu();
    let mut cache = KvCache::new();
    let (keys, values) = rows(0, &run(0, 2));
    let view = cache.append(&keys, &values).expect("fits");
    assert_eq!(format!("{view:?}"), "View { keys: [1, 2, 2, 4], values: [1, 2, 2, 2], mask: Causal }");
    assert_eq!(format!("{cache:?}"), format!("KvCache {{ offset: 2, bytes: {}, .. }}", sized(GROW_SLOTS)));
}
