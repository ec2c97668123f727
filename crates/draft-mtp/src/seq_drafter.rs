//! The drafter around a sequential head: pairs of (next token, hidden) in a cache of its own.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::DraftHead;
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftSession, DraftSink, Drafter, DrafterFacts,
};
use mlx_rs::{Array, ops::indexing::TryIndexOp, transforms::async_eval};

use crate::{
    pairs::Pairs,
    session::{MAX_DEPTH, Stream, embeddings, last_row, mismatch},
};

/// Pairs that may wait before they are written: enough for efficient products, small enough that a
/// long prefill holds little besides the caches.
pub const FLUSH_TOKENS: usize = 256;

/// Drafts with any [`DraftHead`].
///
/// The pair of a slot needs the token after it, so its state looks one token ahead.
pub struct SeqDrafter {
    head: Rc<dyn DraftHead>,
    facts: DrafterFacts,
    flush: usize,
}

impl SeqDrafter {
    /// A drafter for one loaded head.
    pub fn new(head: Rc<dyn DraftHead>) -> Self {
        Self::with_flush(head, FLUSH_TOKENS)
    }

    /// Like [`new`](Self::new), writing whenever `flush` pairs wait (at least 1).
    pub fn with_flush(head: Rc<dyn DraftHead>, flush: usize) -> Self {
        let facts = DrafterFacts::new("mtp-seq", MAX_DEPTH).with_look_ahead(1).with_hidden();
        Self { head, facts, flush: flush.max(1) }
    }
}

impl Drafter for SeqDrafter {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn make_caches(&self) -> Option<CacheSet> {
        Some(self.head.make_caches())
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(SeqSession {
            head: Rc::clone(&self.head),
            flush: self.flush,
            stream: Stream { next: at },
            written: at,
            waiting: Pairs::default(),
            frontier: None,
            out: None,
        }))
    }
}

/// One request. The pairs of slots `..written` are in the own cache, those of `waiting` follow, and
/// `frontier` is the half pair of the last committed slot until its next token is known.
struct SeqSession {
    head: Rc<dyn DraftHead>,
    flush: usize,
    stream: Stream,
    written: usize,
    waiting: Pairs,
    frontier: Option<Frontier>,
    /// The head's out at the last written pair [1,1,E].
    out: Option<Array>,
}

/// The last committed slot.
#[derive(Debug)]
enum Frontier {
    /// Its next token is not known yet; the target's hidden state [1,1,E] waits for it.
    Open(Array),
    /// A proposal completed the pair with this token, which the next run must begin with.
    Closed(u32),
}

impl DraftSession for SeqSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let steps = out.room().min(MAX_DEPTH);
        if self.frontier.is_none() || steps == 0 {
            return Ok(());
        }
        self.stream.check_target(cx)?;
        self.close(current)?;
        self.write_all(cx)?;
        let drafted = self.chain(cx, steps, out);
        // Chain rows stand for drafts: whatever becomes of those, the rows must not outlive the proposal.
        let rewound = own(cx)?.rewind(self.written);
        drafted?;
        Ok(rewound?)
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        if let (Some(Frontier::Closed(token)), Some(&first)) = (&self.frontier, run.ids.first())
            && *token != first
        {
            return Err(mismatch("first token of a committed run", token, first));
        }
        let hidden = self.stream.hear(run)?;
        if let Some(Frontier::Open(before)) = self.frontier.take() {
            self.waiting.push(&run.ids[..1], before);
        }
        if run.ids.len() > 1 {
            self.waiting.push(&run.ids[1..], hidden.try_index((.., ..-1, ..))?);
        }
        self.frontier = Some(Frontier::Open(last_row(hidden)?));
        self.flush_full(cx)
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, next: Option<u32>) -> Result<(), DraftError> {
        if let (Some(next), Some(_)) = (next, &self.frontier) {
            self.close(next)?;
        }
        self.write_all(cx)
    }
}

impl SeqSession {
    /// Completes the pair of the last committed slot with the token that follows it.
    fn close(&mut self, next: u32) -> Result<(), DraftError> {
        if let Some(Frontier::Closed(token)) = self.frontier
            && token != next
        {
            return Err(mismatch("token after the last committed slot", token, next));
        }
        if let Some(Frontier::Open(hidden)) = self.frontier.replace(Frontier::Closed(next)) {
            self.waiting.push(&[next], hidden);
        }
        Ok(())
    }

    /// Draws `steps` tokens; the first from the last committed pair, each later one from a chain row.
    fn chain(
        &mut self,
        cx: &mut DraftCx<'_>,
        steps: usize,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let embeddings = embeddings(cx.model)?;
        let Some(mut hidden) = self.out.clone() else {
            return Ok(());
        };
        let mut ids = out.draw(&self.head.unembed(&hidden)?, self.head.vocabulary())?; // [1,1]
        for step in 1..steps {
            let embeds = embeddings.token_embeddings(&ids)?;
            let (target, position) = (cx.target, self.written + step - 1);
            hidden = self.head.forward(&embeds, &hidden, position, target, own(cx)?)?.last;
            ids = out.draw(&self.head.unembed(&hidden)?, self.head.vocabulary())?;
        }
        Ok(())
    }

    /// Writes waiting pairs in full batches and starts their evaluation, so that neither hidden states
    /// nor unevaluated writes pile up while nobody proposes.
    fn flush_full(&mut self, cx: &mut DraftCx<'_>) -> Result<(), DraftError> {
        while self.waiting.len() >= self.flush {
            self.write(cx, self.flush)?;
            async_eval(self.out.iter().chain(self.waiting.hidden()))?;
        }
        Ok(())
    }

    fn write_all(&mut self, cx: &mut DraftCx<'_>) -> Result<(), DraftError> {
        while self.waiting.len() > 0 {
            self.write(cx, self.flush.min(self.waiting.len()))?;
        }
        Ok(())
    }

    /// Writes the first `count` waiting pairs. A failure leaves the own cache at the last written pair.
    fn write(&mut self, cx: &mut DraftCx<'_>, count: usize) -> Result<(), DraftError> {
        let (next, hidden) = self.waiting.front(count)?;
        let embeds = embeddings(cx.model)?.token_embeddings(&Array::from_slice(next, &[1, count as i32]))?;
        let (target, own) = (cx.target, own(cx)?);
        match self.head.forward(&embeds, &hidden, self.written, target, own) {
            Ok(out) => {
                self.out = Some(last_row(&out.last)?);
                self.written += count;
                Ok(self.waiting.advance(count)?)
            }
            Err(error) => {
                // Layers that did append step back; if they cannot, the first error still says more.
                own.rewind(self.written).ok();
                Err(error.into())
            }
        }
    }
}

/// The own caches that the engine lends.
fn own<'c>(cx: &'c mut DraftCx<'_>) -> Result<&'c mut CacheSet, DraftError> {
    cx.own.as_deref_mut().ok_or_else(|| mismatch("own caches", "the set that the drafter made", "none"))
}

#[cfg(test)]
mod tests;
