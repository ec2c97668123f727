//! A drafter for texts that count upwards: whatever the last token is, the next ids follow.

use foretoken_speculate::*;

/// Knows nothing but how many ids there are.
pub struct Counting {
    facts: DrafterFacts,
    vocabulary: u32,
}

impl Counting {
    /// A drafter for a target with this vocabulary.
    pub fn new(vocabulary: u32) -> Self {
        Self { facts: DrafterFacts::new("counting", 4), vocabulary }
    }
}

impl Drafter for Counting {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Session { vocabulary: self.vocabulary, next: at }))
    }
}

struct Session {
    vocabulary: u32,
    next: usize,
}

impl DraftSession for Session {
    fn propose(
        &mut self,
        _: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let ids: Vec<u32> = (current + 1..self.vocabulary).take(out.room()).collect();
        if self.next == 0 || ids.is_empty() {
            return Ok(());
        }
        out.known(&ids)
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.next = run.after(self.next)?;
        Ok(())
    }
}
