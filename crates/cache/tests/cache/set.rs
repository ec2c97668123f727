//! The transaction: every exit ends it, no failed call changes anything.

use foretoken_cache::{CacheError, CacheSet};

use crate::common::{append, bytes, cpu, held, rows, run, set};

/// What no failed call may change.
fn state(set: &CacheSet) -> (usize, usize, bool, Vec<u32>) {
    (set.offset(), set.pending(), set.is_open(), held(set))
}

fn refused<T: std::fmt::Debug>(
    set: &mut CacheSet,
    call: impl FnOnce(&mut CacheSet) -> Result<T, CacheError>,
) -> CacheError {
    let before = state(set);
    let error = call(set).expect_err("a refusal");
    assert_eq!(state(set), before, "after {error}");
    error
}

fn open(committed: usize, in_flight: usize) -> CacheSet {
    let mut set = set();
    append(&mut set, &run(0, committed));
    assert_eq!(set.begin().expect("no other transaction"), committed);
    append(&mut set, &run(100, in_flight));
    assert_eq!((set.offset(), set.pending()), (committed, in_flight));
    set
}

#[test]
fn commit_keeps_the_first_rows_and_ends_the_transaction() {
    cpu();
    for kept in 0..=4 {
        let mut set = open(3, 4);
        set.commit(kept).expect("appended");
        let want = [run(0, 3), run(100, kept)].concat();
        assert_eq!(state(&set), (3 + kept, 0, false, want));
    }
}

#[test]
fn rollback_drops_every_row_and_is_idle_without_a_transaction() {
    cpu();
    let mut set = open(3, 4);
    set.rollback().expect("open");
    assert_eq!(state(&set), (3, 0, false, run(0, 3)));
    set.rollback().expect("nothing to do");
    assert_eq!(state(&set), (3, 0, false, run(0, 3)));
}

#[test]
fn a_transaction_may_begin_in_an_empty_set_and_append_nothing() {
    cpu();
    let mut set = open(0, 2);
    set.rollback().expect("open");
    assert_eq!(state(&set), (0, 0, false, vec![]));
    set.begin().expect("again");
    set.commit(0).expect("nothing appended");
    assert_eq!(state(&set), (0, 0, false, vec![]));
}

#[test]
fn commit_of_more_rows_than_appended_is_refused() {
    cpu();
    let mut set = open(3, 2);
    let error = refused(&mut set, |set| set.commit(3));
    assert_eq!(error.to_string(), "commit: expected an offset that every layer reaches (one is at 5), got 6");
    refused(&mut set, |set| set.commit(usize::MAX));
    set.commit(2).expect("the transaction is still open");
}

#[test]
fn commit_needs_a_transaction_and_begin_needs_none() {
    cpu();
    let mut set = open(3, 2);
    let error = refused(&mut set, CacheSet::begin);
    assert_eq!(error.to_string(), "begin: expected no open transaction, got one at offset 3");
    set.rollback().expect("open");
    let error = refused(&mut set, |set| set.commit(0));
    assert!(matches!(error, CacheError::State { what: "commit", .. }), "{error}");
}

#[test]
fn rewind_ends_the_transaction_wherever_it_goes() {
    cpu();
    for (to, want) in [(5, [run(0, 3), run(100, 2)].concat()), (3, run(0, 3)), (1, run(0, 1))] {
        let mut set = open(3, 4);
        set.rewind(to).expect("back");
        assert_eq!(state(&set), (to, 0, false, want));
        set.begin().expect("no transaction is left open");
    }
    let mut set = open(3, 4);
    let error = refused(&mut set, |set| set.rewind(8));
    assert!(matches!(error, CacheError::Offset { what: "rewind", got: 8, .. }), "{error}");
}

#[test]
fn rollback_levels_layers_that_a_failed_forward_left_apart() {
    cpu();
    let mut set = open(3, 0);
    let (keys, values) = rows(0, &run(100, 4));
    set.layer_mut(0).expect("a layer").get_mut().append(&keys, &values).expect("fits");
    let error = set.level().expect_err("only the first layer moved");
    assert_eq!(error.to_string(), "layers of one set: expected an offset 7, got 3");
    set.commit(4).expect_err("the second layer has no such rows");
    assert!(set.is_open());
    set.rollback().expect("open");
    set.level().expect("one offset");
    assert_eq!(held(&set), run(0, 3));
}

#[test]
fn layers_that_are_apart_cannot_begin() {
    cpu();
    let mut set = set();
    let (keys, values) = rows(0, &run(0, 4));
    set.layer_mut(0).expect("a layer").get_mut().append(&keys, &values).expect("fits");
    set.begin().expect_err("the second layer is empty");
    assert!(!set.is_open());
    set.rewind(0).expect("every layer reaches the start");
    set.begin().expect("level again");
}

#[test]
fn a_set_without_layers_counts_slots() {
    cpu();
    let mut set = CacheSet::default();
    set.advance(7).expect("no layers");
    assert_eq!(set.begin().expect("closed"), 7);
    set.commit(3).expect("nothing to count, so it moves on");
    assert_eq!(set.offset(), 10);
    set.begin().expect("closed");
    set.advance(4).expect("no layers");
    assert_eq!((set.offset(), set.pending()), (10, 4));
    set.rollback().expect("open");
    assert_eq!(set.offset(), 10);
    set.rewind(2).expect("back");
    set.rewind(3).expect_err("ahead");
    assert_eq!((set.offset(), set.is_empty(), set.len(), set.bytes()), (2, true, 0, 0));
    let snapshot = set.snapshot(0..2).expect("slots");
    set.rewind(0).expect("back");
    set.restore(&snapshot).expect("its own");
    assert_eq!(set.offset(), 2);
}

#[test]
fn a_set_with_layers_moves_with_its_rows_only() {
    cpu();
    let mut set = open(3, 0);
    let error = refused(&mut set, |set| set.advance(1));
    assert!(matches!(error, CacheError::State { what: "advance", .. }), "{error}");
}

#[test]
fn a_poisoned_set_says_why_in_every_call() {
    cpu();
    let mut set = open(3, 2);
    set.poison("out of memory");
    assert!(set.is_poisoned());
    type Call = fn(&mut CacheSet) -> Result<(), CacheError>;
    let calls: [(&str, Call); 10] = [
        ("begin", |set| set.begin().map(drop)),
        ("commit", |set| set.commit(0)),
        ("rollback", CacheSet::rollback),
        ("rewind", |set| set.rewind(0)),
        ("advance", |set| set.advance(1)),
        ("snapshot", |set| set.snapshot(0..1).map(drop)),
        ("schedule", |set| set.schedule(&[9])),
        ("collect", |set| set.collect().map(drop)),
        ("restore", |set| set.restore_path(&[])),
        ("view", |set| set.layers()[0].get().view().map(drop)),
    ];
    for (name, call) in calls {
        let error = call(&mut set).expect_err(name);
        let told = matches!(error, CacheError::Poisoned { .. } | CacheError::Lost { .. });
        assert!(told, "{name}: {error}");
    }
    let error = set.rollback().expect_err("poisoned");
    assert_eq!(
        error.to_string(),
        "the cache set is poisoned by a failed evaluation (out of memory); drop it and prefill again"
    );
}

#[test]
fn bytes_count_both_buffers_of_every_layer() {
    cpu();
    let mut set = set();
    assert_eq!(set.bytes(), 0);
    append(&mut set, &run(0, 1));
    assert_eq!(set.bytes(), bytes(256));
    append(&mut set, &run(1, 256));
    assert_eq!(set.bytes(), bytes(512));
    set.rewind(0).expect("back");
    assert_eq!((set.bytes(), set.snapshot_bytes()), (bytes(512), 0), "capacity stays for the next rows");
}
