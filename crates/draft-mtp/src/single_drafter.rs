//! The drafter around a single-position head: it remembers one hidden state, nothing else.

use std::rc::Rc;

use foretoken_model_base::MTPDraftModel;
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
};
use mlx_rs::{Array, ops::concatenate};

use crate::session::{MAX_DEPTH, Stream, embeddings, last_row, one};

/// Drafts with any [`MTPDraftModel`].
///
/// Its state of a slot depends on no later token, so a cached prefix is usable to its last slot.
pub struct SingleDrafter {
    head: Rc<dyn MTPDraftModel>,
    facts: DrafterFacts,
}

impl SingleDrafter {
    /// A drafter for one loaded head.
    pub fn new(head: Rc<dyn MTPDraftModel>) -> Self {
        let facts = DrafterFacts::new("mtp-single", MAX_DEPTH).with_hidden();
        Self { head, facts }
    }
}

impl Drafter for SingleDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(SingleSession {
            head: Rc::clone(&self.head),
            stream: Stream { next: at },
            frontier: None,
        }))
    }
}

struct SingleSession {
    head: Rc<dyn MTPDraftModel>,
    stream: Stream,
    /// The target's hidden state at the last committed slot [1,1,E].
    frontier: Option<Array>,
}

impl DraftSession for SingleSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let Some(mut hidden) = self.frontier.clone() else {
            return Ok(());
        };
        self.stream.check_target(cx)?;
        let embeddings = embeddings(cx.model)?;
        // Every step asks from the last committed slot, the newest that the target's caches hold.
        let anchor = self.stream.next - 1;
        let mut ids = one(current);
        for _ in 0..out.room().min(MAX_DEPTH) {
            let input = concatenate(&[embeddings.token_embeddings(&ids)?, hidden], -1)?; // [1,1,2E]
            let (logits, next) = self.head.draft(&input, anchor, cx.target)?;
            ids = out.draw(&logits, self.head.vocabulary())?;
            hidden = next;
        }
        Ok(())
    }

    fn committed(&mut self, _cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        self.frontier = Some(last_row(self.stream.hear(run)?)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
