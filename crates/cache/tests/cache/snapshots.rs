//! Snapshots: free until overwritten, right afterwards, and refused where they do not belong.

use foretoken_cache::{CacheError, CacheSet, KvCache, Layer, LayerCache, LayerSnapshot, SetId, Snapshot};
use proptest::prelude::*;

use crate::common::{append, bytes, cpu, held, kept, layers, rows, run, set};

fn filled(tokens: usize) -> CacheSet {
    let mut set = set();
    append(&mut set, &run(0, tokens));
    set
}

/// Two sets that may restore each other's snapshots.
fn siblings() -> (CacheSet, CacheSet) {
    let id = SetId::fresh();
    (CacheSet::with_id(id, layers()), CacheSet::with_id(id, layers()))
}

fn refused<T: std::fmt::Debug>(
    set: &mut CacheSet,
    call: impl FnOnce(&mut CacheSet) -> Result<T, CacheError>,
) -> CacheError {
    let (before, at, open) = (held(set), set.offset(), set.is_open());
    let error = call(set).expect_err("a refusal");
    assert_eq!((held(set), set.offset(), set.is_open()), (before, at, open), "after {error}");
    error
}

#[test]
fn h07_a_snapshot_survives_the_second_append_after_a_rewind() {
    cpu();
    let mut set = filled(16);
    let snapshot = set.snapshot(8..12).expect("live rows");
    assert_eq!((snapshot.bytes(), set.snapshots()), (0, 1));
    set.rewind(2).expect("back");
    append(&mut set, &run(102, 3));
    assert_eq!(snapshot.bytes(), 0, "slots 2..5 are not in it");
    append(&mut set, &run(105, 8));
    assert_eq!(snapshot.bytes(), bytes(4), "slots 5..13 are");
    assert_eq!(kept(&snapshot), [8, 9, 10, 11]);
    set.restore(&snapshot).expect("its own");
    let want = [run(0, 2), run(102, 6), run(8, 4)].concat();
    assert_eq!((set.offset(), held(&set)), (12, want));
    assert_eq!(kept(&snapshot), [8, 9, 10, 11]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn h07_random_appends_match_a_reference_that_always_copies(
        first in 2usize..300,
        cut in (0usize..1000, 0usize..1000),
        appends in prop::collection::vec((0usize..1000, 1usize..150), 1..=10),
    ) {
        cpu();
        let mut set = filled(first);
        let mut model = run(0, first);
        let start = cut.0 % first;
        let end = start + 1 + cut.1 % (first - start);
        let reference = model[start..end].to_vec();
        let snapshot = set.snapshot(start..end).expect("live rows");
        for (index, (back, count)) in appends.into_iter().enumerate() {
            let to = back % (model.len() + 1);
            set.rewind(to).expect("back");
            model.truncate(to);
            let tokens = run(1000 * (index as u32 + 1), count);
            append(&mut set, &tokens);
            model.extend(tokens);
            prop_assert_eq!(kept(&snapshot), reference.clone());
        }
        prop_assert_eq!(held(&set), model.clone());
        if start <= model.len() {
            set.restore(&snapshot).expect("reachable");
            model.truncate(start);
            model.extend(reference);
            prop_assert_eq!(held(&set), model);
        }
        drop(snapshot);
        prop_assert_eq!((set.snapshot_bytes(), set.snapshots()), (0, 0));
    }
}

#[test]
fn restoring_rows_that_never_moved_copies_nothing() {
    cpu();
    let mut set = filled(16);
    let snapshot = set.snapshot(4..16).expect("live rows");
    set.rewind(4).expect("back");
    set.restore(&snapshot).expect("its own");
    assert_eq!((held(&set), snapshot.bytes()), (run(0, 16), 0));
}

#[test]
fn growth_moves_a_resident_snapshot_along() {
    cpu();
    let mut set = filled(250);
    let snapshot = set.snapshot(240..250).expect("live rows");
    append(&mut set, &run(250, 20));
    assert_eq!((kept(&snapshot), snapshot.bytes()), (run(240, 10), 0));
    set.rewind(245).expect("back");
    append(&mut set, &run(900, 300));
    assert_eq!((kept(&snapshot), snapshot.bytes()), (run(240, 10), bytes(10)));
}

#[test]
fn a_rejected_round_leaves_the_snapshots_of_committed_rows_alone() {
    cpu();
    let mut set = filled(10);
    let snapshot = set.snapshot(0..10).expect("live rows");
    for round in 0..3 {
        set.begin().expect("closed");
        append(&mut set, &run(100 * round, 5));
        set.rollback().expect("open");
    }
    assert_eq!((snapshot.bytes(), kept(&snapshot)), (0, run(0, 10)));
}

#[test]
fn a_path_of_snapshots_rebuilds_a_branch() {
    cpu();
    let mut set = filled(6);
    let trunk = set.snapshot(0..6).expect("live rows");
    append(&mut set, &run(10, 4));
    let left = set.snapshot(6..10).expect("live rows");
    set.rewind(6).expect("back");
    append(&mut set, &run(20, 5));
    let right = set.snapshot(6..11).expect("live rows");
    for _ in 0..2 {
        set.rewind(0).expect("back");
        append(&mut set, &run(50, 3));
        set.rewind(0).expect("back");
        set.restore_path(&[&trunk, &left]).expect("no gap");
        assert_eq!(held(&set), [run(0, 6), run(10, 4)].concat());
        set.restore_path(&[&right]).expect("the trunk is in place");
        assert_eq!(held(&set), [run(0, 6), run(20, 5)].concat());
    }
    set.restore_path(&[]).expect("nowhere to go");
    assert_eq!(set.offset(), 11);
}

#[test]
fn paths_with_a_gap_and_snapshots_past_the_offset_are_refused() {
    cpu();
    let mut set = filled(16);
    let (low, high) = (set.snapshot(0..4).expect("live"), set.snapshot(8..12).expect("live"));
    let error = refused(&mut set, |set| set.restore_path(&[&low, &high]));
    assert_eq!(error.to_string(), "restore: expected an offset 4 for the next snapshot to start at, got 8");
    set.rewind(7).expect("back");
    let error = refused(&mut set, |set| set.restore(&high));
    assert!(matches!(error, CacheError::Offset { what: "restore", got: 8, .. }), "{error}");
    assert_eq!(kept(&high), run(8, 4));
}

#[test]
fn ranges_that_are_not_there_cannot_be_taken() {
    cpu();
    let mut set = filled(5);
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..6, 3..3, 4..2, 6..7] {
        let error = refused(&mut set, |set| set.snapshot(range));
        assert!(matches!(error, CacheError::Offset { what: "snapshot", .. }), "{error}");
    }
    let layer = set.layer_mut(0).expect("a layer").get_mut();
    layer.snapshot(0..6).expect_err("past the offset");
    layer.snapshot(2..2).expect_err("no slot");
    assert_eq!(set.snapshots(), 0);
}

#[test]
fn nothing_is_snapshotted_or_restored_inside_a_transaction() {
    cpu();
    let mut set = filled(5);
    let snapshot = set.snapshot(0..5).expect("live rows");
    set.begin().expect("closed");
    append(&mut set, &run(90, 2));
    type Call<'a> = &'a dyn Fn(&mut CacheSet) -> Result<(), CacheError>;
    let calls: [Call<'_>; 4] = [
        &|set| set.snapshot(0..5).map(drop),
        &|set| set.restore(&snapshot),
        &|set| set.schedule(&[9]),
        &|set| set.collect().map(drop),
    ];
    for call in calls {
        let error = refused(&mut set, |set| call(set));
        assert!(matches!(error, CacheError::State { .. }), "{error}");
    }
    set.commit(1).expect("open");
    assert_eq!(held(&set), [run(0, 5), vec![90]].concat());
}

#[test]
fn split_and_merge_keep_every_row_wherever_it_lives() {
    cpu();
    let mut set = filled(16);
    let whole = set.snapshot(2..12).expect("live rows");
    let (front, back) = whole.split(5).expect("inside");
    assert_eq!((front.range(), back.range()), (2..5, 5..12));
    drop(whole);
    set.rewind(6).expect("back");
    append(&mut set, &run(100, 3));
    assert_eq!((front.bytes(), back.bytes()), (0, bytes(7)), "slots 6..9 are in the back half only");
    let whole = front.merge(&back).expect("adjacent");
    assert_eq!((kept(&whole), whole.bytes()), (run(2, 10), bytes(10)));
    let (front, back) = whole.split(11).expect("inside");
    drop(whole);
    assert_eq!((kept(&front), kept(&back)), (run(2, 9), vec![11]));
    assert_eq!((front.bytes(), back.bytes()), (bytes(9), bytes(1)));
    let lazy = set.snapshot(0..2).expect("live").merge(&set.snapshot(2..4).expect("live")).expect("adjacent");
    assert_eq!((lazy.bytes(), kept(&lazy)), (0, run(0, 4)));
}

#[test]
fn splits_outside_and_merges_across_a_gap_are_refused() {
    cpu();
    let mut set = filled(10);
    let snapshot = set.snapshot(2..6).expect("live rows");
    for at in [0, 2, 6, 9] {
        let error = snapshot.split(at).expect_err("not inside");
        assert_eq!(error.to_string(), format!("split: expected an offset inside 2..6, got {at}"));
    }
    let later = set.snapshot(7..9).expect("live rows");
    assert!(matches!(snapshot.merge(&later), Err(CacheError::Offset { what: "merge", got: 7, .. })));
    assert!(matches!(later.merge(&snapshot), Err(CacheError::Offset { what: "merge", .. })));
    assert_eq!(set.snapshots(), 2);
}

#[test]
fn scheduled_offsets_are_captured_while_blocks_are_written() {
    cpu();
    let mut set = filled(3);
    set.schedule(&[5, 8, 20]).expect("ahead");
    append(&mut set, &run(3, 4));
    append(&mut set, &run(7, 6));
    let snapshots = set.collect().expect("closed");
    let ranges: Vec<_> = snapshots.iter().map(Snapshot::range).collect();
    assert_eq!(ranges, [3..5, 5..8], "20 was not reached");
    assert_eq!(kept(&snapshots[1]), run(5, 3));
    assert!(set.collect().expect("closed").is_empty());
    set.schedule(&[14]).expect("the first one ended");
}

#[test]
fn a_schedule_never_captures_rows_that_were_taken_back() {
    cpu();
    let mut set = filled(3);
    set.schedule(&[5, 6]).expect("ahead");
    set.begin().expect("closed");
    append(&mut set, &run(100, 4));
    set.commit(1).expect("open");
    append(&mut set, &run(200, 1));
    let snapshots = set.collect().expect("closed");
    assert_eq!(snapshots.len(), 1, "slot 5 was taken back and not written again");
    assert_eq!((snapshots[0].range(), kept(&snapshots[0])), (3..5, vec![100, 200]));
}

#[test]
fn schedules_in_the_past_out_of_order_and_at_once_are_refused() {
    cpu();
    let mut set = filled(5);
    for offsets in [&[4][..], &[5], &[7, 7], &[9, 8]] {
        let error = refused(&mut set, |set| set.schedule(offsets));
        assert!(matches!(error, CacheError::Offset { what: "schedule", .. }), "{error}");
    }
    set.schedule(&[7]).expect("nothing was scheduled");
    let error = refused(&mut set, |set| set.schedule(&[9]));
    assert_eq!(
        error.to_string(),
        "schedule: expected no other schedule, got one from offset 5 that waits for collect"
    );
    append(&mut set, &run(5, 2));
    assert_eq!(set.collect().expect("closed").len(), 1, "the first schedule still stands");
}

#[test]
fn a_restore_drops_what_was_scheduled() {
    cpu();
    let mut set = filled(5);
    let snapshot = set.snapshot(0..5).expect("live rows");
    set.schedule(&[7]).expect("ahead");
    append(&mut set, &run(5, 3));
    set.restore(&snapshot).expect("its own");
    set.schedule(&[6]).expect("no schedule is left");
    set.unschedule();
    append(&mut set, &run(5, 3));
    assert!(set.collect().expect("closed").is_empty());
}

#[test]
fn a_snapshot_of_another_model_is_refused() {
    cpu();
    let (mut set, mut other) = (filled(5), filled(5));
    let foreign = other.snapshot(0..5).expect("live rows");
    let error = refused(&mut set, |set| set.restore(&foreign));
    assert!(matches!(error, CacheError::Foreign { what: "restore", .. }), "{error}");
    let (own, next) = (set.snapshot(0..2).expect("live"), other.snapshot(2..4).expect("live"));
    assert!(matches!(own.merge(&next), Err(CacheError::Foreign { what: "merge", .. })));
    let mut short = CacheSet::with_id(set.id(), vec![Layer::Kv(KvCache::new())]);
    let error = short.restore(&own).expect_err("another number of layers");
    assert_eq!(
        error.to_string(),
        format!(
            "restore: expected a snapshot of {0} with 1 layers, got one of {0} with 2 layers; prefill instead",
            set.id()
        )
    );
}

#[test]
fn a_sibling_set_restores_resident_copied_and_orphaned_snapshots() {
    cpu();
    let (mut first, mut second) = siblings();
    append(&mut first, &run(0, 9));
    let (resident, moved) = (first.snapshot(0..4).expect("live"), first.snapshot(4..9).expect("live"));
    first.rewind(6).expect("back");
    append(&mut first, &[70]);
    second.restore_path(&[&resident, &moved]).expect("the same model");
    assert_eq!(held(&second), run(0, 9));
    assert_eq!((resident.bytes(), moved.bytes()), (0, bytes(5)));
    assert_eq!((first.snapshot_bytes(), second.snapshot_bytes()), (bytes(5), 0));
    drop(first);
    assert_eq!((resident.bytes(), kept(&resident)), (bytes(4), run(0, 4)), "copied before its set went");
    second.rewind(0).expect("back");
    append(&mut second, &run(80, 2));
    second.restore_path(&[&resident, &moved]).expect("the same model");
    assert_eq!(held(&second), run(0, 9));
}

#[test]
fn snapshots_of_a_poisoned_set_are_lost_everywhere() {
    cpu();
    let (mut first, mut second) = siblings();
    append(&mut first, &run(0, 9));
    let (low, high) = (first.snapshot(0..4).expect("live"), first.snapshot(4..9).expect("live"));
    first.rewind(6).expect("back");
    append(&mut first, &[70]);
    first.poison("a worker died");
    let error = refused(&mut second, |set| set.restore(&low));
    assert_eq!(
        error.to_string(),
        "the snapshot of slots 0..4 is lost (a worker died); drop it and prefill again"
    );
    assert!(matches!(low.split(2), Err(CacheError::Lost { .. })));
    assert!(matches!(low.merge(&high), Err(CacheError::Lost { .. })));
    append(&mut second, &run(0, 4));
    let sound = second.snapshot(0..4).expect("live rows");
    assert!(matches!(sound.merge(&high), Err(CacheError::Lost { .. })));
    let LayerSnapshot::Rows(rows) = &low.layers()[0] else { panic!("rows") };
    assert!(matches!(rows.read(), Err(CacheError::Lost { .. })));
    drop(first);
    assert!(matches!(rows.read(), Err(CacheError::Lost { .. })));
    assert_eq!(low.bytes(), 0, "nothing is copied out of a poisoned set");
    assert!(matches!(second.restore(&high), Err(CacheError::Lost { .. })));
}

#[test]
fn rows_of_another_shape_are_refused_by_the_set_that_would_restore_them() {
    cpu();
    let id = SetId::fresh();
    let one = || CacheSet::with_id(id, vec![Layer::Kv(KvCache::new())]);
    let (mut narrow, mut wide) = (one(), one());
    for (set, shape) in [(&mut narrow, 1), (&mut wide, 0)] {
        let (keys, values) = rows(shape, &run(0, 4));
        set.layer_mut(0).expect("a layer").get_mut().append(&keys, &values).expect("first rows");
    }
    let (own, foreign) = (narrow.snapshot(0..2).expect("live"), wide.snapshot(2..4).expect("live"));
    assert!(matches!(narrow.restore(&foreign), Err(CacheError::Shape { .. })));
    assert_eq!(narrow.offset(), 4);
    let error = own.merge(&foreign).expect_err("MLX cannot join them");
    assert!(matches!(error, CacheError::Array(_)), "{error}");
}

#[test]
fn a_layer_restores_alone_under_the_same_rules() {
    cpu();
    let mut layer = KvCache::new();
    let (keys, values) = rows(0, &run(0, 8));
    layer.append(&keys, &values).expect("first rows");
    let (low, high) = (layer.snapshot(0..3).expect("live"), layer.snapshot(5..8).expect("live"));
    assert!(matches!(layer.restore(&[&low, &high]), Err(CacheError::Offset { what: "restore", .. })));
    assert!(matches!(layer.restore(&[&high, &low]), Err(CacheError::Offset { what: "restore", .. })));
    assert_eq!(layer.offset(), 8);
    layer.rewind(2).expect("back");
    assert!(layer.can_restore(&[&high]).is_err());
    layer.restore(&[&low]).expect("reachable");
    assert_eq!(layer.offset(), 3);
}
