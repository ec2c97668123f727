//! A drafter that costs nothing: it knows the answer, and offers it or always another token.

use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
};
use std::rc::Rc;

/// Offers the tokens of a known sequence.
pub struct Known {
    facts: DrafterFacts,
    sequence: Rc<[u32]>,
}

impl Known {
    /// `sequence` is the prompt and the answer. A drafter that is not `right` offers the ids before these.
    pub fn new(sequence: &[u32], right: bool) -> Self {
        let facts = DrafterFacts::new("known", 16);
        let offered = |&id: &u32| if right { id } else { id.checked_sub(1).unwrap_or(1) };
        Self { facts, sequence: sequence.iter().map(offered).collect() }
    }
}

impl Drafter for Known {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Session { sequence: self.sequence.clone(), next: at }))
    }
}

struct Session {
    sequence: Rc<[u32]>,
    /// The slot of the current token.
    next: usize,
}

impl DraftSession for Session {
    fn propose(&mut self, _: &mut DraftCx<'_>, _: u32, out: &mut dyn DraftSink) -> Result<(), DraftError> {
        let ahead = self.sequence.get(self.next + 1..).unwrap_or_default();
        match &ahead[..ahead.len().min(out.room())] {
            [] => Ok(()),
            drafts => out.known(drafts),
        }
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = run.slot + run.ids.len();
        Ok(())
    }
}
