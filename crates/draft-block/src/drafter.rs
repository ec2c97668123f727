//! The persistent half: a head and what it asks of the engine.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::BlockDraft;
use foretoken_speculate::{DraftError, DraftSession, Drafter, DrafterFacts};

use crate::session::BlockSession;

/// Committed slots that may wait before they are written: enough for efficient products, small enough that a
/// long prefill holds little besides the caches.
pub const FLUSH_TOKENS: usize = 256;

/// Drafts with any [`BlockDraft`].
pub struct BlockDrafter {
    head: Rc<dyn BlockDraft>,
    facts: DrafterFacts,
    flush: usize,
}

impl BlockDrafter {
    /// A drafter for one loaded head.
    pub fn new(head: Rc<dyn BlockDraft>) -> Self {
        Self::with_flush(head, FLUSH_TOKENS)
    }

    /// Like [`new`](Self::new), writing whenever `flush` slots wait (at least 1).
    pub fn with_flush(head: Rc<dyn BlockDraft>, flush: usize) -> Self {
        // The state of a slot is what the target knew there: it depends on nothing after it.
        let facts = DrafterFacts::new("block", head.block()).with_taps(head.layers());
        Self { head, facts, flush: flush.max(1) }
    }
}

impl Drafter for BlockDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn make_caches(&self) -> Option<CacheSet> {
        Some(self.head.make_caches())
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(BlockSession::new(Rc::clone(&self.head), self.flush, at)))
    }
}
