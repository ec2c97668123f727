//! The contract for drafters.
//!
//! A [`Drafter`] lives as long as the loaded model and opens one [`DraftSession`] per request. The
//! session hears one ordered stream: the runs that were committed to the target, from prefill on,
//! without gaps. Between them it may be asked to propose.

use foretoken_cache::CacheSet;
use foretoken_model_base::{DraftVocabulary, Model};
use mlx_rs::Array;

use crate::DraftError;

/// What a call may look at; lent for that call only.
pub struct DraftCx<'a> {
    /// The target.
    pub model: &'a dyn Model,
    /// The target's caches, read-only.
    pub target: &'a CacheSet,
    /// Every token of the request so far, prompt and output. While proposing, the last one is the current.
    pub tokens: &'a [u32],
    /// The drafter's own caches, when it makes any. They belong to the request.
    pub own: Option<&'a mut CacheSet>,
}

/// Facts that the engine and the prefix cache rely on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrafterFacts {
    /// The name shown in statistics, for example `mtp-seq`.
    pub name: &'static str,
    /// The deepest proposal this drafter can make.
    pub max_depth: usize,
    /// How many tokens past a slot its own state of that slot depends on.
    pub look_ahead: usize,
    /// Whether committed runs must carry hidden states.
    pub needs_hidden: bool,
    /// The target layers whose states `CommittedRun.hidden` carries instead of `Hidden.aux`; none for most.
    pub taps: Vec<usize>,
    /// Whether [`DraftSession::extend`] may lengthen another drafter's proposal.
    pub extends: bool,
    /// Whether a session that is opened further on brings empty caches of its own up to there by itself.
    pub catches_up: bool,
}

impl DrafterFacts {
    /// A drafter that needs no hidden states and whose state of a slot depends on nothing after it.
    pub fn new(name: &'static str, max_depth: usize) -> Self {
        let (look_ahead, taps) = (0, Vec::new());
        Self { name, max_depth, look_ahead, needs_hidden: false, taps, extends: false, catches_up: false }
    }

    /// Asks for hidden states with every committed run.
    pub fn with_hidden(mut self) -> Self {
        self.needs_hidden = true;
        self
    }

    /// Asks for the states after these target layers, concatenated, with every committed run.
    pub fn with_taps(mut self, layers: &[usize]) -> Self {
        (self.needs_hidden, self.taps) = (true, layers.to_vec());
        self
    }

    /// States how many tokens past a slot the own state of that slot depends on.
    pub fn with_look_ahead(mut self, tokens: usize) -> Self {
        self.look_ahead = tokens;
        self
    }

    /// States that a session opened at a slot rebuilds empty caches of its own from `DraftCx.tokens`, so that
    /// this drafter can be loaded beside another one with caches.
    pub fn with_catching_up(mut self) -> Self {
        self.catches_up = true;
        self
    }

    /// Offers to lengthen the proposals of other drafters.
    pub fn with_extending(mut self) -> Self {
        self.extends = true;
        self
    }
}

/// The persistent half of a drafter: weights and facts, no request state.
pub trait Drafter {
    /// Fixed facts.
    fn facts(&self) -> &DrafterFacts;
    /// Empty caches of its own for one request; `None` when it keeps none.
    fn make_caches(&self) -> Option<CacheSet> {
        None
    }
    /// Opens a session whose first committed slot will be `at`; its own caches rest level with that.
    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError>;
}

/// Tokens that were committed to the target, and what the target thought at their slots.
#[derive(Debug, Clone, Copy)]
pub struct CommittedRun<'a> {
    /// The tokens, at least one.
    pub ids: &'a [u32],
    /// The target's `Hidden.aux` at these slots `[1,n,E]`, or the tapped layers' states `[1,n,E·t]`, as the
    /// drafter's facts ask.
    pub hidden: Option<&'a Array>,
    /// The slot of the first token.
    pub slot: usize,
}

impl CommittedRun<'_> {
    /// The slot after this run, which must begin at slot `next`: a gap in the slots is an error.
    pub fn after(&self, next: usize) -> Result<usize, DraftError> {
        match self.slot {
            slot if slot == next => Ok(next + self.ids.len()),
            got => Err(DraftError::Gap { expected: next, got }),
        }
    }
}

/// One request's half of a drafter.
///
/// Order of calls: `committed` for each run in slot order; any number of `propose` between them, each
/// followed by exactly one `committed`; `settle` once; `finish`. A session stores nothing that a
/// context lends it. While drafting is off, runs of one token arrive without proposals between them.
///
/// Own caches: the session writes and rewinds them, the engine opens no transaction on them. They may
/// lag behind the target's, but once `committed` returns they hold nothing that was not committed. When a
/// call fails or panics, or the round's forward does, the engine takes them back to where they rested
/// after the last `committed`; a failed session gets no further call.
pub trait DraftSession {
    /// Offers up to `out.room()` tokens that may follow `current`, the last token, not yet forwarded.
    /// Offering nothing keeps every answer right, and is the only right thing before any committed row. What
    /// is offered must follow from committed tokens and the room alone, so that an answer can be repeated.
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError>;
    /// How many tokens it could offer after `tokens`, the last of which is the current one, when it knows that
    /// without drafting; `None` when it has to be asked. A drafter that seldom has anything to offer is then
    /// asked only when it has. What is learned here must not matter.
    fn ready(&self, _tokens: &[u32]) -> Option<usize> {
        None
    }
    /// Offers tokens that may follow `drafted`, which another drafter proposed after `current` in this round
    /// and which may all be rejected: nothing learned from them may outlive the call.
    fn extend(
        &mut self,
        _cx: &mut DraftCx<'_>,
        _current: u32,
        _drafted: &[u32],
        _out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        Ok(())
    }
    /// Hears a committed run. A gap in the slots is an error.
    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError>;
    /// Brings the own caches level with the target's, once, before `finish`: with the token after the
    /// last committed slot the pair left open at the frontier is completed; without one (an error) the own
    /// caches rest at the last complete pair, behind the target's.
    fn settle(&mut self, _cx: &mut DraftCx<'_>, _next: Option<u32>) -> Result<(), DraftError> {
        Ok(())
    }
    /// Ends the session.
    fn finish(self: Box<Self>) -> Result<(), DraftError> {
        Ok(())
    }
}

/// Where a proposal goes. The engine draws; the drafter only says from which logits.
pub trait DraftSink {
    /// How many more tokens this round takes.
    fn room(&self) -> usize;
    /// Draws one token per row with the request's own options and randomness, and records what it was
    /// drawn from. Several rows are a block: none of them sees the others' tokens.
    ///
    /// # Shapes
    /// `logits` `[1,n,D]` → target ids `[1,n]` uint32, lazy.
    fn draw(&mut self, logits: &Array, vocabulary: Option<&DraftVocabulary>) -> Result<Array, DraftError>;
    /// Offers tokens that are certain, as a look-up does.
    fn known(&mut self, ids: &[u32]) -> Result<(), DraftError>;
}
