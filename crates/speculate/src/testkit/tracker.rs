//! Counts what a drafter opens and what the engine closes.

use std::{cell::RefCell, rc::Rc};

use foretoken_cache::CacheSet;

use crate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts};

/// What happened to a tracked drafter's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sessions opened.
    pub opened: usize,
    /// Sessions settled, once each.
    pub settled: usize,
    /// Of those, with a next token.
    pub settled_with_next: usize,
    /// Sessions finished.
    pub finished: usize,
    /// Sessions dropped, finished or not.
    pub dropped: usize,
    /// Proposals asked for.
    pub proposals: usize,
    /// Every committed run: slot and ids.
    pub runs: Vec<(usize, Vec<u32>)>,
    /// Own cache sets made.
    pub cache_sets: usize,
}

impl Counts {
    /// Sessions that are still open.
    pub fn open(&self) -> usize {
        self.opened - self.dropped
    }

    /// The committed tokens of the one session tracked, when its runs had no gap.
    pub fn committed(&self) -> Option<Vec<u32>> {
        let mut tokens: Vec<u32> = Vec::new();
        for (slot, ids) in &self.runs {
            if *slot != tokens.len() {
                return None;
            }
            tokens.extend(ids);
        }
        Some(tokens)
    }
}

/// Wraps a drafter and counts.
pub struct Tracker {
    inner: Rc<dyn Drafter>,
    counts: Rc<RefCell<Counts>>,
}

impl Tracker {
    /// Tracks `inner`.
    pub fn new(inner: Rc<dyn Drafter>) -> Self {
        Self { inner, counts: Rc::default() }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts.borrow().clone()
    }
}

impl Drafter for Tracker {
    fn facts(&self) -> &DrafterFacts {
        self.inner.facts()
    }

    fn make_caches(&self) -> Option<CacheSet> {
        let made = self.inner.make_caches();
        self.counts.borrow_mut().cache_sets += usize::from(made.is_some());
        made
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        let inner = Some(self.inner.open(at)?);
        self.counts.borrow_mut().opened += 1;
        Ok(Box::new(Tracked { inner, counts: Rc::clone(&self.counts) }))
    }
}

struct Tracked {
    /// Gone once finished.
    inner: Option<Box<dyn DraftSession>>,
    counts: Rc<RefCell<Counts>>,
}

impl Tracked {
    fn inner(&mut self) -> Result<&mut Box<dyn DraftSession>, DraftError> {
        self.inner.as_mut().ok_or_else(|| DraftError::Other("the session is finished".into()))
    }
}

impl DraftSession for Tracked {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        self.counts.borrow_mut().proposals += 1;
        self.inner()?.propose(cx, current, out)
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.counts.borrow_mut().runs.push((run.slot, run.ids.to_vec()));
        self.inner()?.committed(cx, run)
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        {
            let mut counts = self.counts.borrow_mut();
            counts.settled += 1;
            counts.settled_with_next += usize::from(next.is_some());
        }
        self.inner()?.settle(cx, next)
    }

    fn finish(mut self: Box<Self>) -> Result<(), DraftError> {
        self.counts.borrow_mut().finished += 1;
        self.inner.take().map_or(Ok(()), |inner| inner.finish())
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.counts.borrow_mut().dropped += 1;
    }
}
