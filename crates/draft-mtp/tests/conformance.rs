//! The suite that every drafter runs, for both heads on random targets, and for heads broken on purpose.

mod common;

use std::rc::Rc;

use common::{STYLES, golden_llama, play, random_drafter, tiny};
use foretoken_cache::CacheSet;
use foretoken_model_base::Model;
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
    testkit::{Request, Tracker, conformance::check},
};
use mlx_rs::{Array, ops::indexing::TryIndexOp};

const PROMPT: [u32; 9] = [3, 50, 7, 7, 19, 2, 61, 33, 8];

#[test]
fn both_heads_conform_on_random_targets() {
    for model in [tiny(), golden_llama()] {
        for style in STYLES {
            let drafter = random_drafter(style, model.as_ref(), 3);
            check(model.as_ref(), drafter.as_ref(), &PROMPT).unwrap_or_else(|e| panic!("{style}: {e}"));
        }
    }
}

/// Shows that the suite looks at what these heads could get wrong.
#[test]
fn broken_heads_do_not_conform() {
    let model = tiny();
    for style in STYLES {
        for flaw in [Flaw::IgnoresGap, Flaw::OldHidden, Flaw::OneRowBehind] {
            refuse(model.as_ref(), style, flaw);
        }
    }
    refuse(model.as_ref(), "seq", Flaw::RewindsOneTooMany);
    refuse(model.as_ref(), "seq", Flaw::SettlesNothing);
}

fn refuse(model: &dyn Model, style: &str, flaw: Flaw) {
    let drafter = Broken { inner: random_drafter(style, model, 3), flaw };
    let violation = check(model, &drafter, &PROMPT).expect_err("a broken drafter passes");
    println!("{style}, {flaw:?}: {violation}");
}

/// Sessions end, and what they were told is exactly what the target holds.
#[test]
fn sessions_hear_every_committed_token_and_end() {
    let model = tiny();
    for style in STYLES {
        for depth in [0, 1, 4] {
            let tracker = Rc::new(Tracker::new(random_drafter(style, model.as_ref(), 3)));
            let played = play(&model, Some(tracker.clone()), &Request::greedy(&PROMPT, 20, depth));
            let (counts, history) = (tracker.counts(), played.request.history.ids());
            // Without caches of its own a drafter that never drafts need not listen either.
            let listens = depth > 0 || style == "seq";
            let once = usize::from(listens);
            assert_eq!(
                (counts.opened, counts.settled, counts.finished),
                (once, once, once),
                "{style} {depth}"
            );
            assert_eq!(counts.open(), 0);
            if listens {
                let heard = counts.committed().expect("no gaps");
                assert_eq!(heard, history[..history.len() - 1], "{style} at depth {depth}");
            }
        }
    }
}

/// What a broken variant does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// Takes a run in the wrong place for the next one.
    IgnoresGap,
    /// Takes the first hidden row of a run for all of them.
    OldHidden,
    /// Takes the hidden state before the last kept draft for the frontier's.
    OneRowBehind,
    /// Rewinds the own caches by one pair too many after a proposal.
    RewindsOneTooMany,
    /// Leaves the pair at the frontier open.
    SettlesNothing,
}

struct Broken {
    inner: Rc<dyn Drafter>,
    flaw: Flaw,
}

impl Drafter for Broken {
    fn facts(&self) -> &DrafterFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> Option<CacheSet> {
        self.inner.make_caches()
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(BrokenSession { inner: self.inner.open(at)?, flaw: self.flaw, next: at }))
    }
}

struct BrokenSession {
    inner: Box<dyn DraftSession>,
    flaw: Flaw,
    next: usize,
}

impl DraftSession for BrokenSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.inner.propose(cx, current, out)?;
        match cx.own.as_deref_mut() {
            Some(own) if self.flaw == Flaw::RewindsOneTooMany && own.offset() > 0 => {
                Ok(own.rewind(own.offset() - 1)?)
            }
            _ => Ok(()),
        }
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let slot = if self.flaw == Flaw::IgnoresGap { self.next } else { run.slot };
        self.next = slot + run.ids.len();
        let hidden = run.hidden.map(|hidden| self.hidden(hidden)).transpose()?;
        let run = CommittedRun { slot, hidden: hidden.as_ref(), ..run };
        self.inner.committed(cx, run)
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        match self.flaw {
            Flaw::SettlesNothing => self.inner.settle(cx, None),
            _ => self.inner.settle(cx, next),
        }
    }
}

impl BrokenSession {
    fn hidden(&self, hidden: &Array) -> Result<Array, DraftError> {
        let rows = hidden.dim(1);
        Ok(match self.flaw {
            Flaw::OldHidden => {
                let first = hidden.try_index((.., ..1, ..))?;
                mlx_rs::ops::broadcast_to(&first, hidden.shape())?
            }
            Flaw::OneRowBehind if rows > 1 => {
                let before = hidden.try_index((.., ..rows - 1, ..))?;
                let stale = hidden.try_index((.., rows - 2..rows - 1, ..))?;
                mlx_rs::ops::concatenate(&[before, stale], 1)?
            }
            _ => hidden.clone(),
        })
    }
}
