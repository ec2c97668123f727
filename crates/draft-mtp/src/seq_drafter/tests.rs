//! The pairing protocol of the sequential session, on a head that stores what it is given.

use proptest::prelude::*;

use super::*;
use crate::fakes::{FakeModel, FakeSeq, FakeSink, hidden, pairs, target};

/// A request: every committed token, and what a drafter would be lent.
struct Bench {
    model: FakeModel,
    head: Rc<FakeSeq>,
    drafter: SeqDrafter,
    session: Box<dyn DraftSession>,
    own: CacheSet,
    /// Tokens at committed slots.
    tokens: Vec<u32>,
}

impl Bench {
    fn new(flush: usize) -> Self {
        Self::with_head(FakeSeq::new(), flush)
    }

    fn with_head(head: FakeSeq, flush: usize) -> Self {
        let (model, head) = (FakeModel::new(), Rc::new(head));
        let drafter = SeqDrafter::with_flush(head.clone(), flush);
        let own = drafter.make_caches().expect("a sequential head has caches");
        let session = drafter.open(0).expect("opens");
        Self { model, head, drafter, session, own, tokens: Vec::new() }
    }

    fn committed(&mut self, ids: &[u32]) -> Result<(), DraftError> {
        let slot = self.tokens.len();
        self.tokens.extend_from_slice(ids);
        let (target, hidden) = (target(self.tokens.len()), hidden(slot, self.tokens.len()));
        let mut cx = DraftCx { model: &self.model, target: &target, tokens: &[], own: Some(&mut self.own) };
        self.session.committed(&mut cx, CommittedRun { ids, hidden: Some(&hidden), slot })
    }

    fn propose(&mut self, current: u32, sink: &mut FakeSink) -> Result<(), DraftError> {
        let target = target(self.tokens.len());
        let mut cx = DraftCx { model: &self.model, target: &target, tokens: &[], own: Some(&mut self.own) };
        self.session.propose(&mut cx, current, sink)
    }

    fn settle(&mut self, next: Option<u32>) {
        let target = target(self.tokens.len());
        let mut cx = DraftCx { model: &self.model, target: &target, tokens: &[], own: Some(&mut self.own) };
        self.session.settle(&mut cx, next).expect("settles");
    }

    /// The pairs of a fresh prefill: (token S+1, slot S), through the last slot when `next` is given.
    fn fresh(&self, next: Option<u32>) -> Vec<(u32, usize)> {
        let after = self.tokens.iter().copied().skip(1).chain(next);
        after.enumerate().map(|(slot, token)| (token, slot)).collect()
    }
}

#[test]
fn pairs_join_a_slot_with_the_token_after_it() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6, 7]).expect("in order");
    bench.committed(&[8]).expect("in order");
    bench.settle(Some(9));
    assert_eq!(pairs(&bench.own), [(6, 0), (7, 1), (8, 2), (9, 3)]);
}

#[test]
fn a_proposal_before_any_committed_row_is_empty() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    let mut sink = FakeSink::of(&[1, 2]);
    bench.propose(4, &mut sink).expect("nothing to do");
    assert!(sink.logits.is_empty());
    bench.settle(Some(4));
    assert!(pairs(&bench.own).is_empty());
}

#[test]
fn a_proposal_chains_and_leaves_no_row_of_its_own() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6]).expect("in order");
    let mut sink = FakeSink::of(&[20, 30, 40]);
    bench.propose(7, &mut sink).expect("proposes");
    // Outs are sums: the pair (7, slot 1), then each draft added to the out before it.
    assert_eq!(sink.logits, [1008.0, 1028.0, 1058.0]);
    assert_eq!(pairs(&bench.own), [(6, 0), (7, 1)], "the pair of the current token is certain and stays");
    assert_eq!(*bench.head.forwards.borrow(), [2, 1, 1], "waiting pairs share one forward");
}

#[test]
fn rounds_leave_the_state_of_a_fresh_prefill() {
    for kept in [0usize, 3, 1] {
        let mut bench = Bench::new(FLUSH_TOKENS);
        bench.committed(&[5, 6]).expect("in order");
        for round in 0..4 {
            let drafts = [20 + round, 30 + round, 40 + round];
            bench.propose(7 + round, &mut FakeSink::of(&drafts)).expect("proposes");
            let run: Vec<u32> = [7 + round].into_iter().chain(drafts[..kept].iter().copied()).collect();
            bench.committed(&run).expect("in order");
        }
        bench.settle(Some(99));
        assert_eq!(pairs(&bench.own), bench.fresh(Some(99)), "{kept} kept");
    }
}

#[test]
fn settling_without_a_token_leaves_the_last_complete_pair() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6, 7]).expect("in order");
    bench.settle(None);
    assert_eq!(pairs(&bench.own), [(6, 0), (7, 1)]);

    let mut cancelled = Bench::new(FLUSH_TOKENS);
    cancelled.committed(&[5, 6, 7]).expect("in order");
    cancelled.propose(8, &mut FakeSink::of(&[9, 9])).expect("proposes");
    cancelled.settle(None);
    assert_eq!(pairs(&cancelled.own), [(6, 0), (7, 1), (8, 2)], "the round was dropped, its token is not");
}

#[test]
fn a_gap_in_the_runs_is_an_error_and_changes_nothing() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6]).expect("in order");
    let (target, late) = (target(4), hidden(3, 4));
    for slot in [0, 1, 3] {
        let mut cx = DraftCx { model: &bench.model, target: &target, tokens: &[], own: Some(&mut bench.own) };
        let run = CommittedRun { ids: &[7], hidden: Some(&late), slot };
        let error = bench.session.committed(&mut cx, run).expect_err("slot 2 comes next");
        assert!(matches!(error, DraftError::Gap { expected: 2, got } if got == slot), "{error}");
    }
    bench.committed(&[7]).expect("in order");
    bench.settle(Some(8));
    assert_eq!(pairs(&bench.own), bench.fresh(Some(8)));
}

#[test]
fn a_run_must_carry_hidden_states_for_each_token() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    let (target, short) = (target(2), hidden(0, 1));
    for hidden in [None, Some(&short)] {
        let mut cx = DraftCx { model: &bench.model, target: &target, tokens: &[], own: Some(&mut bench.own) };
        let run = CommittedRun { ids: &[5, 6], hidden, slot: 0 };
        let error = bench.session.committed(&mut cx, run).expect_err("hidden states are needed");
        assert!(matches!(error, DraftError::Mismatch { .. }), "{error}");
    }
    bench.committed(&[5, 6]).expect("the failed runs did not count");
}

#[test]
fn a_run_that_contradicts_the_proposal_is_an_error() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6]).expect("in order");
    bench.propose(7, &mut FakeSink::of(&[20])).expect("proposes");
    let error = bench.committed(&[8]).expect_err("7 was certain");
    assert!(error.to_string().contains("expected 7, got 8"), "{error}");
}

#[test]
fn a_failing_sink_leaves_the_committed_pairs() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6]).expect("in order");
    let mut sink = FakeSink { fails_at: 2, ..FakeSink::of(&[20, 30, 40]) };
    bench.propose(7, &mut sink).expect_err("the sink fails");
    assert_eq!(pairs(&bench.own), [(6, 0), (7, 1)]);
}

#[test]
fn a_failing_head_leaves_the_written_pairs() {
    let head = FakeSeq { fails_at: 4, ..FakeSeq::new() };
    let mut bench = Bench::with_head(head, 2);
    bench.committed(&[5, 6, 7]).expect("two pairs fit");
    bench.committed(&[8, 9]).expect_err("the head fails at row 4");
    assert_eq!(pairs(&bench.own), [(6, 0), (7, 1)]);
}

#[test]
fn a_session_opened_in_the_middle_continues_there() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6, 7]).expect("in order");
    bench.settle(Some(8));
    // The next request shares the four tokens; its session starts at slot 3.
    bench.session = bench.drafter.open(3).expect("opens");
    let mut sink = FakeSink::of(&[20]);
    bench.propose(8, &mut sink).expect("nothing heard yet");
    assert!(sink.logits.is_empty());
    bench.committed(&[8]).expect("in order");
    bench.propose(9, &mut sink).expect("proposes");
    assert_eq!(sink.logits, [1012.0]);
    bench.committed(&[9]).expect("in order");
    bench.settle(Some(10));
    assert_eq!(pairs(&bench.own), bench.fresh(Some(10)));
}

#[test]
fn a_long_prefill_is_written_in_batches_and_changes_nothing() {
    let prompt: Vec<u32> = (1..=600).collect();
    let (mut flushed, mut whole) = (Bench::new(FLUSH_TOKENS), Bench::new(usize::MAX));
    for bench in [&mut flushed, &mut whole] {
        bench.committed(&prompt).expect("in order");
        bench.committed(&[700]).expect("in order");
    }
    assert_eq!(*flushed.head.forwards.borrow(), [256, 256], "full batches go at once");
    assert!(whole.head.forwards.borrow().is_empty());
    for bench in [&mut flushed, &mut whole] {
        bench.settle(Some(701));
        assert_eq!(pairs(&bench.own), bench.fresh(Some(701)));
    }
    assert_eq!(*flushed.head.forwards.borrow(), [256, 256, 89]);
}

#[test]
fn single_tokens_without_proposals_are_flushed_too() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    for token in 0..=300 {
        bench.committed(&[token]).expect("in order");
    }
    assert_eq!(*bench.head.forwards.borrow(), [256]);
    let mut sink = FakeSink::of(&[20]);
    bench.propose(301, &mut sink).expect("proposes");
    assert_eq!(*bench.head.forwards.borrow(), [256, 45]);
    assert_eq!(pairs(&bench.own), bench.fresh(Some(301)));
}

#[test]
fn no_room_means_no_work() {
    let mut bench = Bench::new(FLUSH_TOKENS);
    bench.committed(&[5, 6]).expect("in order");
    bench.propose(7, &mut FakeSink::of(&[])).expect("nothing to do");
    assert!(bench.head.forwards.borrow().is_empty());
    bench.committed(&[8]).expect("a proposal without room promised nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any mix of chunks, proposals, rejections and rounds without proposals ends in the state of a
    /// fresh prefill.
    #[test]
    fn any_history_equals_a_fresh_prefill(
        flush in 1usize..9,
        prompt in proptest::collection::vec(1usize..12, 1..4),
        rounds in proptest::collection::vec((0usize..6, 0usize..6, any::<bool>()), 0..12),
        finished in any::<bool>(),
    ) {
        let mut bench = Bench::new(flush);
        let mut token = 0;
        let mut fresh_tokens = |n: usize| -> Vec<u32> {
            (0..n).map(|_| { token += 1; token }).collect()
        };
        for chunk in prompt {
            bench.committed(&fresh_tokens(chunk)).expect("in order");
        }
        for (depth, kept, drafting) in rounds {
            let current = fresh_tokens(1);
            let drafts = fresh_tokens(depth);
            if drafting {
                let mut sink = FakeSink::of(&drafts);
                bench.propose(current[0], &mut sink).expect("proposes");
                prop_assert_eq!(sink.logits.len(), depth);
            }
            let kept = if drafting { kept.min(depth) } else { 0 };
            bench.committed(&[&current[..], &drafts[..kept]].concat()).expect("in order");
        }
        let next = finished.then_some(900);
        bench.settle(next);
        prop_assert_eq!(pairs(&bench.own), bench.fresh(next));
        prop_assert_eq!(bench.own.offset(), bench.tokens.len() - usize::from(!finished));
    }
}
