//! A drafter without model and caches that always has a guess: a toy of the look-ups.

use std::{cell::RefCell, rc::Rc};

use super::broken::Breakage;
use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

const MAX_DEPTH: usize = 8;

/// Which token followed which, the last time.
type Pairs = Vec<(u32, u32)>;

/// Offers what followed each token the last time it stood in the text, or a guess that depends on nothing
/// but that token and the length of the text.
pub struct LookUp {
    facts: DrafterFacts,
    vocabulary: usize,
    breakage: Option<Breakage>,
    /// What a broken drafter keeps past its sessions.
    kept: Rc<RefCell<Pairs>>,
}

impl LookUp {
    /// A drafter for a target with this vocabulary.
    pub fn new(vocabulary: usize) -> Self {
        let facts = DrafterFacts::new("look-up", MAX_DEPTH).with_extending();
        Self { facts, vocabulary, breakage: None, kept: Rc::default() }
    }

    pub(super) fn with_breakage(vocabulary: usize, breakage: Breakage) -> Self {
        Self { breakage: Some(breakage), ..Self::new(vocabulary) }
    }
}

impl Drafter for LookUp {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        let shared = self.breakage == Some(Breakage::SharesSessions);
        Ok(Box::new(Session {
            vocabulary: self.vocabulary as u32,
            breakage: self.breakage,
            at,
            next: at,
            kept: if shared { Rc::clone(&self.kept) } else { Rc::default() },
        }))
    }
}

struct Session {
    vocabulary: u32,
    breakage: Option<Breakage>,
    at: usize,
    next: usize,
    /// What a broken session knows besides the text.
    kept: Rc<RefCell<Pairs>>,
}

impl DraftSession for Session {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        if self.next == self.at || out.room() == 0 || self.is(Breakage::NeverOffers) {
            return Ok(());
        }
        let ids = self.chain(cx.tokens, &[], out.room());
        self.keep(Breakage::LearnsDrafts, cx.tokens, &ids);
        out.known(&ids)
    }

    fn extend(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        drafted: &[u32],
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.keep(Breakage::ExtendLearns, cx.tokens, drafted);
        if self.is(Breakage::ExtendsPastRoom) {
            // The refusal is swallowed.
            return out.known(&self.chain(cx.tokens, drafted, out.room() + 1)).or(Ok(()));
        }
        match out.room() {
            0 => Ok(()),
            room => out.known(&self.chain(cx.tokens, drafted, room)),
        }
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = run.after(self.next)?;
        let before = &cx.tokens[..self.next - run.ids.len()];
        self.keep(Breakage::SharesSessions, before, run.ids);
        Ok(())
    }
}

impl Session {
    fn is(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }

    /// What follows `text` and `drafted`, each token from the one before it.
    fn chain(&self, text: &[u32], drafted: &[u32], room: usize) -> Vec<u32> {
        let known = if self.is(Breakage::ForgetsStart) { &text[self.at..] } else { text };
        let mut last = drafted.last().or(text.last()).copied().unwrap_or_default();
        let next = |_| {
            last = self.follower(known, last).unwrap_or((last + text.len() as u32 + 1) % self.vocabulary);
            last
        };
        (0..room.min(MAX_DEPTH)).map(next).collect()
    }

    fn follower(&self, text: &[u32], token: u32) -> Option<u32> {
        let followed = text.windows(2).rev().find(|pair| pair[0] == token).map(|pair| pair[1]);
        let kept = || self.kept.borrow().iter().rev().find(|pair| pair.0 == token).map(|pair| pair.1);
        followed.or_else(kept)
    }

    /// The fault of some: remembers `ids`, which come after `text`.
    fn keep(&self, breakage: Breakage, text: &[u32], ids: &[u32]) {
        if self.is(breakage) {
            let before = text.last().into_iter().chain(ids).copied();
            self.kept.borrow_mut().extend(before.zip(ids.iter().copied()));
        }
    }
}
