//! Sessions driven by hand: what the own caches hold after any order of runs and proposals.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_draft_block::BlockDrafter;
use foretoken_model_base::{BlockDraft, DraftVocabulary, Model};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter};
use mlx_rs::{Array, ops::indexing::TryIndexOp};
use proptest::prelude::*;

use super::common::{difference, embeds, host, random, read, tiny};

/// Rows written in other chunks differ in the order of sums alone.
const SAME: f32 = 1e-5;

const TEXT: [u32; 21] = [3, 50, 7, 7, 19, 2, 61, 33, 8, 1, 0, 44, 12, 12, 9, 63, 5, 27, 31, 4, 58];

/// Takes what is drawn and remembers how many rows came at once.
struct Sink {
    room: usize,
    draws: Vec<usize>,
}

impl DraftSink for Sink {
    fn room(&self) -> usize {
        self.room - self.draws.iter().sum::<usize>()
    }

    fn draw(&mut self, logits: &Array, _: Option<&DraftVocabulary>) -> Result<Array, DraftError> {
        logits.eval()?;
        self.draws.push(logits.dim(1) as usize);
        Ok(Array::from_slice(&vec![0u32; logits.dim(1) as usize], &[1, logits.dim(1)]))
    }

    fn known(&mut self, _: &[u32]) -> Result<(), DraftError> {
        Err(DraftError::Other("a block is never certain".into()))
    }
}

/// A session, its caches, and what the target knows of [`TEXT`].
struct Driven {
    model: Rc<dyn Model>,
    target: CacheSet,
    taps: Array,
    own: CacheSet,
    session: Box<dyn DraftSession>,
    next: usize,
}

impl Driven {
    fn new(block: usize, flush: usize) -> (Self, Rc<dyn BlockDraft>) {
        let model = tiny();
        let head: Rc<dyn BlockDraft> = random(model.as_ref(), block, &[2, 0], 11);
        let mut target = model.make_caches();
        let (_, taps) = read(model.as_ref(), head.as_ref(), &mut target, &TEXT);
        let session = BlockDrafter::with_flush(head.clone(), flush).open(0).unwrap();
        (Self { model, target, taps, own: head.make_caches(), session, next: 0 }, head)
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut dyn DraftSession, &mut DraftCx<'_>) -> T) -> T {
        let mut cx = DraftCx {
            model: self.model.as_ref(),
            target: &self.target,
            tokens: &TEXT[..=self.next.min(TEXT.len() - 1)],
            own: Some(&mut self.own),
        };
        call(self.session.as_mut(), &mut cx)
    }

    fn commit(&mut self, count: usize) {
        let (slot, end) = (self.next, (self.next + count).min(TEXT.len()));
        if slot == end {
            return;
        }
        let hidden = self.taps.try_index((.., slot as i32..end as i32, ..)).unwrap();
        self.next = end;
        let run = CommittedRun { ids: &TEXT[slot..end], hidden: Some(&hidden), slot };
        self.call(|session, cx| session.committed(cx, run)).unwrap();
    }

    /// The sizes of the draws.
    fn propose(&mut self, room: usize) -> Vec<usize> {
        let mut sink = Sink { room, draws: Vec::new() };
        self.call(|session, cx| session.propose(cx, 1, &mut sink)).unwrap();
        sink.draws
    }
}

fn rows(own: &CacheSet) -> Vec<f32> {
    let views = own.layers().iter().map(|layer| layer.get().view().unwrap().unwrap());
    views.flat_map(|view| [host(&view.keys), host(&view.values)].concat()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn own_caches_hold_what_was_committed(
        block in 1usize..6,
        flush in 1usize..9,
        steps in prop::collection::vec((1usize..6, prop::option::of(0usize..8)), 1..9),
    ) {
        let (mut driven, head) = Driven::new(block, flush);
        for (count, room) in steps {
            driven.commit(count);
            if let Some(room) = room {
                let want = if room == 0 { vec![] } else { vec![room.min(block)] };
                prop_assert_eq!(driven.propose(room), want);
                // A proposal writes what waited, and takes its own rows back.
                prop_assert!(room == 0 || driven.own.offset() == driven.next);
            }
            prop_assert!(driven.own.offset() <= driven.next && driven.next - driven.own.offset() < flush);
        }
        driven.call(|session, cx| session.settle(cx, None)).unwrap();
        prop_assert_eq!(driven.own.offset(), driven.next);
        let mut fresh = head.make_caches();
        let taps = driven.taps.try_index((.., ..driven.next as i32, ..)).unwrap();
        head.append(&embeds(driven.model.as_ref(), &TEXT[..driven.next]), &taps, 0, &mut fresh).unwrap();
        let off = difference(&rows(&driven.own), &rows(&fresh));
        prop_assert!(off < SAME, "off by {}", off);
    }
}

#[test]
fn every_row_of_a_block_sees_the_whole_block_and_every_slot() {
    let (driven, head) = Driven::new(4, 256);
    let block = |slots: usize, current: u32, spoil: Option<usize>| {
        let mut own = head.make_caches();
        let mut ids = TEXT[..slots].to_vec();
        if let Some(slot) = spoil {
            ids[slot] = (ids[slot] + 1) % 64;
        }
        let taps = driven.taps.try_index((.., ..slots as i32, ..)).unwrap();
        head.append(&embeds(driven.model.as_ref(), &ids), &taps, 0, &mut own).unwrap();
        host(&head.draft_block(&embeds(driven.model.as_ref(), &[current]), slots, &mut own).unwrap())
    };
    let whole = block(10, 5, None);
    let width = whole.len() / 4;
    for other in [block(10, 6, None), block(10, 5, Some(0)), block(10, 5, Some(9)), block(9, 5, None)] {
        for row in 0..4 {
            let at = row * width..(row + 1) * width;
            assert!(difference(&other[at.clone()], &whole[at]) > SAME, "row {row} did not change");
        }
    }
}

#[test]
fn runs_that_do_not_fit_are_errors() {
    let (mut driven, _) = Driven::new(4, 2);
    driven.commit(3);
    let one = driven.taps.try_index((.., 3..4, ..)).unwrap();
    let two = driven.taps.try_index((.., 3..5, ..)).unwrap();
    let narrow = one.try_index((.., .., ..8)).unwrap();
    let cases = [
        (CommittedRun { ids: &TEXT[4..5], hidden: Some(&one), slot: 4 }, "slot 3, got 4"),
        (CommittedRun { ids: &TEXT[3..4], hidden: None, slot: 3 }, "got none"),
        (CommittedRun { ids: &TEXT[3..4], hidden: Some(&two), slot: 3 }, "[1,1,E·t]"),
    ];
    for (run, wanted) in cases {
        let error = driven.call(|session, cx| session.committed(cx, run)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // States of another model show when they are written.
    let (mut driven, _) = Driven::new(4, 1);
    let run = CommittedRun { ids: &TEXT[..1], hidden: Some(&narrow), slot: 0 };
    let error = driven.call(|session, cx| session.committed(cx, run)).unwrap_err().to_string();
    assert!(error.contains("tapped states") && error.contains("[1, 1, 64]"), "{error}");
    assert_eq!(driven.own.offset(), 0, "nothing was written");
}
