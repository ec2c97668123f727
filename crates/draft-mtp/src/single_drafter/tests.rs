//! The single-position session, on a head that notes what it is asked.

use super::*;
use crate::fakes::{FakeModel, FakeSingle, FakeSink, hidden, target};

struct Bench {
    model: FakeModel,
    head: Rc<FakeSingle>,
    session: Box<dyn DraftSession>,
}

impl Bench {
    fn at(slot: usize) -> Self {
        let (model, head) = (FakeModel::new(), Rc::new(FakeSingle::default()));
        let drafter = SingleDrafter::new(head.clone());
        assert!(drafter.make_caches().is_none(), "a single-position head keeps no caches");
        let session = drafter.open(slot).expect("opens");
        Self { model, head, session }
    }

    fn committed(&mut self, ids: &[u32], slot: usize) -> Result<(), DraftError> {
        let (target, hidden) = (target(slot + ids.len()), hidden(slot, slot + ids.len()));
        let mut cx = DraftCx { model: &self.model, target: &target, tokens: &[], own: None };
        self.session.committed(&mut cx, CommittedRun { ids, hidden: Some(&hidden), slot })
    }

    fn propose(&mut self, current: u32, slots: usize, sink: &mut FakeSink) -> Result<(), DraftError> {
        let target = target(slots);
        self.session.propose(
            &mut DraftCx { model: &self.model, target: &target, tokens: &[], own: None },
            current,
            sink,
        )
    }
}

#[test]
fn every_step_asks_from_the_last_committed_slot() {
    let mut bench = Bench::at(0);
    bench.committed(&[5, 6, 7], 0).expect("in order");
    let mut sink = FakeSink::of(&[20, 30, 40]);
    bench.propose(8, 3, &mut sink).expect("proposes");
    let steps = bench.head.steps.borrow();
    assert_eq!(*steps, [(8, 1002.0, 2, 3), (20, 1003.0, 2, 3), (30, 1004.0, 2, 3)]);
    assert_eq!(sink.logits, [1003.0, 1004.0, 1005.0]);
}

#[test]
fn the_frontier_is_the_last_row_of_the_last_run() {
    let mut bench = Bench::at(4);
    let mut sink = FakeSink::of(&[20]);
    bench.propose(5, 4, &mut sink).expect("nothing heard yet");
    assert!(sink.logits.is_empty());
    bench.committed(&[5], 4).expect("in order");
    bench.committed(&[6, 7], 5).expect("in order");
    bench.propose(8, 7, &mut sink).expect("proposes");
    assert_eq!(*bench.head.steps.borrow(), [(8, 1006.0, 6, 7)]);
}

#[test]
fn proposals_do_not_change_the_next_one() {
    let mut bench = Bench::at(0);
    bench.committed(&[5, 6], 0).expect("in order");
    for _ in 0..2 {
        bench.propose(7, 2, &mut FakeSink::of(&[20, 30])).expect("proposes");
    }
    let steps = bench.head.steps.borrow();
    assert_eq!(steps[..2], steps[2..]);
}

#[test]
fn a_gap_in_the_runs_is_an_error() {
    let mut bench = Bench::at(0);
    bench.committed(&[5, 6], 0).expect("in order");
    for slot in [0, 1, 3] {
        let error = bench.committed(&[7], slot).expect_err("slot 2 comes next");
        assert!(matches!(error, DraftError::Gap { expected: 2, got } if got == slot), "{error}");
    }
    bench.committed(&[7], 2).expect("in order");
}

#[test]
fn target_caches_must_end_at_the_last_committed_slot() {
    let mut bench = Bench::at(0);
    bench.committed(&[5, 6], 0).expect("in order");
    for slots in [1, 3] {
        let error = bench.propose(7, slots, &mut FakeSink::of(&[20])).expect_err("two slots are committed");
        assert!(matches!(error, DraftError::Mismatch { .. }), "{error}");
    }
}
