//! What is dropped when, and that every byte comes back.

use foretoken_cache::prefix::PrefixOptions;

use crate::toy::{Ask, Engine, FULL, HYB, ROW, TINY, active_memory, copying, cpu, options, run};

fn conversation(n: u32) -> Vec<u32> {
    run(10 * n, 3).into_iter().chain(run(300, 37)).collect()
}

#[test]
fn fifty_alternating_conversations_stay_under_the_budget() {
    cpu();
    let row = ROW * 2;
    // Room for about six conversations of 40 rows in two full layers, beside windows and states.
    for (kinds, keep_live) in [(FULL, false), (FULL, true), (TINY, false), (HYB, false), (HYB, true)] {
        let live = if keep_live { 4 * 256 * ROW } else { 0 };
        let budget_bytes = 6 * 40 * row + live;
        let mut engine = Engine::new(kinds, PrefixOptions { budget_bytes, keep_live, ..options() });
        let mut reused = 0;
        for round in 0..3 {
            for n in 0..50 {
                engine.serve(&Ask::new(&conversation(n)).answer(&run(500, 2 + round)));
                // Asked again at once, it is still there.
                reused += engine.serve(&Ask::new(&conversation(n)));
            }
        }
        assert!(reused > 150 * 8, "{kinds:?}: {reused} tokens reused");
        assert!(engine.cache.len() > 1);
    }
}

#[test]
fn the_oldest_of_equals_goes_first() {
    cpu();
    let row = ROW * FULL.len();
    let budget_bytes = 3 * 39 * row;
    let mut engine = Engine::new(FULL, PrefixOptions { budget_bytes, ..copying() });
    for n in [0, 1, 2] {
        engine.serve(&Ask::new(&conversation(n)));
    }
    assert_eq!(engine.cache.bytes(), budget_bytes);
    assert_eq!(engine.serve(&Ask::new(&conversation(0))), 39, "used again");
    engine.serve(&Ask::new(&conversation(3)));
    for (n, reused) in [(0, 39), (2, 39), (3, 39)] {
        assert_eq!(engine.serve(&Ask::new(&conversation(n))), reused, "conversation {n}");
    }
    assert_eq!(engine.serve(&Ask::new(&conversation(1))), 0, "evicted");
}

#[test]
fn a_shared_beginning_outlives_its_leaves() {
    cpu();
    let row = ROW * FULL.len();
    let budget_bytes = 60 * row;
    let mut engine = Engine::new(FULL, PrefixOptions { budget_bytes, ..copying() });
    let system = run(0, 30);
    for n in 0..8 {
        let ask = [&system[..], &run(100 + 20 * n, 20)].concat();
        let reused = engine.serve(&Ask::new(&ask));
        assert_eq!(reused, if n == 0 { 0 } else { 30 });
    }
}

#[test]
fn a_sequence_larger_than_the_budget_leaves_nothing_over_it() {
    cpu();
    for kinds in [FULL, TINY, HYB] {
        for budget_bytes in [0, 100, 1000] {
            for keep_live in [false, true] {
                let mut engine = Engine::new(kinds, PrefixOptions { budget_bytes, keep_live, ..options() });
                for _ in 0..2 {
                    engine.serve(&Ask::new(&run(0, 200)).chunk(64));
                }
            }
        }
    }
}

#[test]
fn live_sets_are_given_up_before_the_only_conversation_is() {
    cpu();
    // Less than the buffers' growth step, more than the rows.
    let budget_bytes = 100 * ROW * FULL.len();
    let mut engine = Engine::new(FULL, PrefixOptions { budget_bytes, ..options() });
    engine.serve(&Ask::new(&run(0, 60)));
    assert_eq!(engine.cache.bytes(), 59 * ROW * FULL.len());
    assert_eq!(engine.serve(&Ask::new(&run(0, 60))), 59);
}

#[test]
fn memory_returns_to_where_it_was() {
    cpu();
    let own = FULL;
    for kinds in [FULL, TINY, HYB] {
        for keep_live in [true, false] {
            let budget_bytes = 20_000;
            let options = PrefixOptions { budget_bytes, keep_live, ..options() };
            let before = active_memory();
            let mut engine = Engine::with_drafter(kinds, own, 1, options);
            for n in 0..12 {
                engine.serve(&Ask {
                    rejected: 2,
                    lag: 3,
                    ..Ask::new(&conversation(n % 5)).answer(&run(500, 4))
                });
            }
            assert!(active_memory() > before, "states are really held");
            engine.cache.clear();
            assert_eq!((engine.cache.len(), engine.cache.bytes()), (0, 0));
            assert_eq!(active_memory(), before, "{kinds:?}, live {keep_live}");
        }
    }
}
