//! The sliding window: what each query sees, across the wrap, and how far back it can go.

use foretoken_cache::{
    CacheError, KvCache, Layer, LayerCache, LayerSnapshot, Mask, RotatingCache, SetId, View,
};
use mlx_rs::{Array, transforms::eval};

use crate::common::{cpu, rows, run, seen, sees};

/// A window after `tokens` single tokens from 0 on.
fn after(window: usize, tokens: usize) -> RotatingCache {
    let mut cache = RotatingCache::new(window);
    run(0, tokens).iter().for_each(|token| drop(sees(&mut cache, &[*token])));
    cache
}

fn holds(cache: &RotatingCache) -> Vec<u32> {
    cache.view().expect("a view").map_or(Vec::new(), |view| seen(0, &view))
}

#[test]
fn h01_a_block_after_the_wrap_sees_every_key_of_its_window() {
    cpu();
    let mut cache = RotatingCache::new(5);
    sees(&mut cache, &run(0, 4));
    run(4, 7).iter().for_each(|token| drop(sees(&mut cache, &[*token])));
    let block = sees(&mut cache, &run(11, 3));
    assert_eq!(block, [run(7, 5), run(8, 5), run(9, 5)]);
    assert_eq!(cache.offset(), 14);
}

#[test]
fn h02_a_window_holds_exactly_its_number_of_keys() {
    cpu();
    let block = sees(&mut RotatingCache::new(4), &run(0, 10));
    let want: Vec<Vec<u32>> = (0..10u32).map(|query| (query.saturating_sub(3)..=query).collect()).collect();
    assert_eq!(block, want);
    assert_eq!(sees(&mut after(4, 32), &[32]), [run(29, 4)]);
}

#[test]
fn h02_a_full_cache_can_be_read_through_a_window() {
    cpu();
    let mut cache = KvCache::new();
    sees(&mut cache, &run(0, 32));
    let (keys, values) = rows(0, &[32]);
    let view = cache.append(&keys, &values).expect("one more").narrow(1, 4).expect("a window");
    assert_eq!(crate::common::visible(&view, 1), [run(29, 4)]);
    let (keys, values) = rows(0, &run(33, 3));
    let view = cache.append(&keys, &values).expect("a block").narrow(3, 4).expect("a window");
    assert_eq!(crate::common::visible(&view, 3), [run(30, 4), run(31, 4), run(32, 4)]);
    let wide = cache.view().expect("a view").expect("rows").narrow(1, 100).expect("wider than the cache");
    assert_eq!(seen(0, &wide), run(0, 36));
    let error = wide.narrow(37, 4).expect_err("36 rows");
    assert_eq!(error.to_string(), "view through a window: expected shape 1 to 36 queries, got 37 queries");
}

#[test]
fn h03_a_rejected_block_on_a_full_window_gives_back_what_it_pushed_out() {
    cpu();
    let mut cache = after(8, 20);
    cache.begin();
    let block = sees(&mut cache, &run(20, 4));
    assert_eq!((&block[0], &block[3]), (&run(13, 8), &run(16, 8)));
    cache.rewind(21).expect("inside the transaction");
    cache.end();
    assert_eq!(sees(&mut cache, &[121]), [[run(14, 7), vec![121]].concat()]);
}

#[test]
fn h03_every_block_and_every_kept_count_leave_a_twin_that_never_speculated() {
    cpu();
    for (start, block) in [(0, 4), (3, 6), (7, 3), (8, 20), (30, 5), (31, 9), (47, 64)] {
        for kept in 0..=block {
            let (mut cache, mut twin) = (after(8, start), after(8, start));
            cache.begin();
            sees(&mut cache, &run(100, block));
            cache.rewind(start + kept).expect("inside the transaction");
            cache.end();
            run(100, kept).iter().for_each(|token| drop(sees(&mut twin, &[*token])));
            assert_eq!(holds(&cache), holds(&twin), "{kept} of {block} after {start}");
            assert_eq!(sees(&mut cache, &run(900, 3)), sees(&mut twin, &run(900, 3)));
        }
    }
}

#[test]
fn h04_a_rewind_succeeds_exactly_or_changes_nothing() {
    cpu();
    for back in 1..=20 {
        let (mut cache, twin) = (after(8, 20), after(8, 20 - back));
        let promised = cache.can_rewind(20 - back);
        match cache.rewind(20 - back) {
            Ok(()) => assert_eq!(holds(&cache), holds(&twin), "{back} back"),
            Err(error) => {
                assert!(matches!(error, CacheError::Offset { what: "rewind", .. }), "{error}");
                assert_eq!((cache.offset(), holds(&cache)), (20, run(13, 7)));
                assert_eq!(sees(&mut cache, &[20]), [run(13, 8)]);
                assert!(!promised);
                continue;
            }
        }
        assert!(promised, "{back} back");
        let next = 20 - back as u32;
        assert_eq!(sees(&mut cache, &[next]), [(next.saturating_sub(7)..=next).collect::<Vec<_>>()]);
    }
    assert!(after(8, 20).can_rewind(17), "so much is always kept");
}

#[test]
fn h04_a_rewind_past_what_is_held_is_refused() {
    cpu();
    let mut cache = after(8, 200);
    let error = cache.rewind(100).expect_err("slid away");
    assert!(error.to_string().starts_with("rewind: expected an offset whose 7 slots before it"), "{error}");
    assert_eq!((cache.offset(), holds(&cache)), (200, run(193, 7)));
    assert_eq!(sees(&mut cache, &[200]), [run(193, 8)]);
    cache.rewind(202).expect_err("ahead");
}

#[test]
fn the_start_can_always_be_reached() {
    cpu();
    for window in [1, 2, 8] {
        let mut cache = after(window, 100);
        cache.rewind(0).expect("nothing is needed there");
        assert!(holds(&cache).is_empty());
        let mut twin = RotatingCache::new(window);
        assert_eq!(sees(&mut cache, &run(300, 9)), sees(&mut twin, &run(300, 9)));
    }
}

#[test]
fn a_window_of_one_sees_itself_only() {
    cpu();
    let mut cache = RotatingCache::new(0);
    assert_eq!(cache.window(), 1);
    assert_eq!(sees(&mut cache, &run(0, 3)), [[0], [1], [2]]);
    let snapshot = cache.snapshot(0..3).expect("at the offset");
    assert_eq!(sees(&mut cache, &[3]), [[3]]);
    assert!(cache.view().expect("a view").is_none());
    cache.rewind(1).expect("nothing is needed");
    assert_eq!(sees(&mut cache, &[11]), [[11]]);
    cache.rewind(0).expect("nothing is needed");
    cache.restore(&[&snapshot]).expect("nothing is needed");
    assert_eq!((cache.offset(), sees(&mut cache, &[3])), (3, vec![vec![3]]));
}

#[test]
fn views_hold_only_rows_that_some_query_sees() {
    cpu();
    let mut cache = after(4, 2);
    let append = |cache: &mut RotatingCache, tokens: &[u32]| -> View {
        let (keys, values) = rows(0, tokens);
        cache.append(&keys, &values).expect("fits")
    };
    let view = append(&mut cache, &[2, 3]);
    assert!(matches!(view.mask, Mask::Causal), "nothing has slid away yet");
    drop(view);
    let view = append(&mut cache, &[4]);
    assert!(matches!(view.mask, Mask::All));
    assert_eq!(seen(0, &view), run(1, 4));
    drop(view);
    let view = append(&mut cache, &[5, 6]);
    let Mask::Bool(mask) = &view.mask else { panic!("{:?}", view.mask) };
    assert_eq!((mask.shape(), seen(0, &view)), (&[2, 5][..], run(2, 5)));
}

/// The largest buffer, in slots, that is allowed for a window and the longest block.
fn bound(window: usize, longest: usize) -> usize {
    3 * window + longest
}

#[test]
fn memory_stays_within_three_windows_and_the_longest_block() {
    cpu();
    for (window, blocks) in [(5, vec![1]), (8, vec![1, 5]), (40, vec![100, 1, 3]), (300, vec![200, 1, 9])] {
        let longest = blocks.iter().copied().max().expect("blocks");
        let mut cache = RotatingCache::new(window);
        for step in 0..5 * window {
            let (keys, values) = rows(0, &run(0, blocks[step % blocks.len()]));
            drop(cache.append(&keys, &values).expect("fits"));
            let slots = cache.bytes() / (2 * (4 + 2) * 4);
            assert!(slots <= bound(window, longest), "{slots} slots for {window}, step {step}");
        }
        eval([&cache.view().expect("a view").expect("rows").keys]).expect("evaluates");
    }
}

#[test]
fn a_snapshot_is_free_until_its_rows_slide_away() {
    cpu();
    let mut cache = after(8, 20);
    let LayerSnapshot::Window(snapshot) = cache.snapshot(0..20).expect("at the offset") else { panic!() };
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes()), (0, 0));
    run(20, 100).iter().for_each(|token| drop(sees(&mut cache, &[*token])));
    let rows = 7 * 2 * (4 + 2) * 4;
    assert_eq!((snapshot.bytes(), cache.snapshot_bytes()), (rows, rows));
    cache.restore(&[&LayerSnapshot::Window(snapshot)]).expect("captured");
    assert_eq!((cache.offset(), holds(&cache)), (20, run(13, 7)));
    assert_eq!(cache.snapshot_bytes(), 0, "the snapshot is gone");
    assert!(!cache.can_rewind(19), "only the window was restored");
    assert_eq!(sees(&mut cache, &run(20, 2)), [run(13, 8), run(14, 8)]);
}

#[test]
fn restoring_rows_that_never_moved_copies_nothing() {
    cpu();
    let mut cache = after(8, 20);
    let snapshot = cache.snapshot(0..20).expect("at the offset");
    sees(&mut cache, &run(20, 3));
    cache.rewind(18).expect("held");
    cache.restore(&[&snapshot]).expect("captured");
    assert_eq!((cache.offset(), holds(&cache), snapshot.bytes()), (20, run(13, 7), 0));
}

#[test]
fn rows_of_another_branch_are_not_gone_back_to_after_a_restore() {
    cpu();
    let mut cache = after(4, 12);
    let snapshot = cache.snapshot(0..12).expect("at the offset");
    cache.rewind(6).expect("held");
    sees(&mut cache, &[106]);
    cache.restore(&[&snapshot]).expect("captured; slots 9..12 never moved");
    assert_eq!(holds(&cache), [9, 10, 11]);
    assert!(!cache.can_rewind(8), "slot 6 belongs to the other branch");
}

#[test]
fn a_window_that_has_not_slid_cuts_anywhere() {
    cpu();
    let mut cache = after(8, 7);
    let snapshot = cache.snapshot(0..7).expect("at the offset");
    run(50, 30).iter().for_each(|token| drop(sees(&mut cache, &[*token])));
    for at in 1..7 {
        assert!(snapshot.reaches(at));
        let (front, back) = snapshot.split(at).expect("inside");
        cache.restore(&[&front]).expect("nothing had slid away");
        assert_eq!((cache.offset(), holds(&cache)), (at, run(0, at)));
        cache.restore(&[&back]).expect("it follows");
        assert_eq!(holds(&cache), run(0, 7));
        let whole = front.merge(&back).expect("adjacent");
        assert!(whole.reaches(at) && whole.reaches(7));
    }
    assert!(matches!(snapshot.split(7), Err(CacheError::Offset { what: "split", got: 7, .. })));
}

#[test]
fn a_slid_window_restores_only_to_offsets_that_were_captured() {
    cpu();
    let mut cache = after(4, 20);
    let first = cache.snapshot(0..20).expect("at the offset");
    run(20, 30).iter().for_each(|token| drop(sees(&mut cache, &[*token])));
    let second = cache.snapshot(20..50).expect("at the offset");
    let whole = first.merge(&second).expect("adjacent");
    let reached: Vec<usize> = (0..60).filter(|at| whole.reaches(*at)).collect();
    assert_eq!(reached, [20, 50]);
    let (front, back) = whole.split(30).expect("inside");
    let error = cache.restore(&[&front]).expect_err("30 was not captured");
    assert_eq!(
        error.to_string(),
        "restore: expected an offset that was captured (the last in the snapshot is 20), got 30"
    );
    assert_eq!((cache.offset(), holds(&cache)), (50, run(47, 3)));
    let (front, _) = front.split(20).expect("inside");
    cache.restore(&[&front]).expect("20 was captured");
    assert_eq!(holds(&cache), run(17, 3));
    cache.restore(&[&second]).expect("it follows");
    cache.rewind(50).expect("where it is");
    let mut fresh = RotatingCache::new(4);
    fresh.restore(&[&first, &back]).expect_err("a gap from 20 to 30");
    fresh.restore(&[&first, &second]).expect("no gap");
    assert_eq!((fresh.offset(), holds(&fresh)), (50, run(47, 3)));
    let mut wide = RotatingCache::new(5);
    let error = wide.restore(&[&first]).expect_err("another window");
    assert!(matches!(error, CacheError::Kind { what: "restore", .. }), "{error}");
}

#[test]
fn scheduled_offsets_outlive_the_slide_and_not_a_rejection() {
    cpu();
    let mut set = foretoken_cache::CacheSet::with_id(SetId::fresh(), vec![Layer::Rotating(after(4, 3))]);
    let push = |set: &mut foretoken_cache::CacheSet, tokens: &[u32]| {
        drop(sees(set.layer_mut(0).expect("a layer").attention_mut().expect("attention"), tokens));
    };
    set.schedule(&[10, 12, 14]).expect("ahead");
    push(&mut set, &run(3, 60));
    let snapshots = set.collect().expect("closed");
    assert_eq!(snapshots.iter().map(|s| s.range()).collect::<Vec<_>>(), [3..10, 10..12, 12..14]);
    for (snapshot, end) in snapshots.iter().zip([10, 12, 14]) {
        set.restore(snapshot).expect("captured");
        let view = set.layers()[0].get().view().expect("a view").expect("rows");
        assert_eq!(seen(0, &view), run(end - 3, 3));
        if end < 14 {
            push(&mut set, &run(end, 9));
        }
    }
    set.schedule(&[16]).expect("ahead");
    set.begin().expect("closed");
    push(&mut set, &run(200, 4));
    set.commit(1).expect("open");
    assert!(set.collect().expect("closed").is_empty(), "slot 15 was taken back");
    drop(snapshots);
    assert_eq!((set.snapshot_bytes(), set.snapshots()), (0, 0));
}

#[test]
fn bad_rows_leave_the_window_as_it_was() {
    cpu();
    let mut cache = after(4, 50);
    let bytes = cache.bytes();
    let flat = Array::from_slice(&[0.0f32; 8], &[1, 1, 2, 4]);
    let error = cache.append(&flat, &flat).expect_err("one head, not two");
    assert!(matches!(error, CacheError::Shape { .. }), "{error}");
    assert_eq!((cache.offset(), cache.bytes(), holds(&cache)), (50, bytes, run(47, 3)));
}

#[test]
fn printing_a_window_evaluates_nothing() {
    cpu();
    let cache = after(4, 2);
    assert!(format!("{cache:?}").starts_with("RotatingCache { window: 4, offset: 2, bytes: "));
}
