//! One request: which committed slots the head's caches hold, and its proposals.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::{BlockDraft, MTPEmbeddingModel, Model};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink};
use mlx_rs::{Array, ops::indexing::TryIndexOp, transforms::async_eval};

use crate::waiting::Waiting;

/// The slots `..own.offset()` are in the own caches, those of `waiting` follow up to `next`.
pub(crate) struct BlockSession {
    head: Rc<dyn BlockDraft>,
    flush: usize,
    /// One past the last committed slot.
    next: usize,
    waiting: Waiting,
}

impl BlockSession {
    pub(crate) fn new(head: Rc<dyn BlockDraft>, flush: usize, at: usize) -> Self {
        Self { head, flush, next: at, waiting: Waiting::default() }
    }
}

impl DraftSession for BlockSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let rows = out.room().min(self.head.block());
        if self.next == 0 || rows == 0 {
            return Ok(());
        }
        self.write(cx)?;
        let embeds = embeddings(cx.model)?.token_embeddings(&Array::from_slice(&[current], &[1, 1]))?;
        let own = own(cx.own.as_deref_mut())?;
        let states = self.head.draft_block(&embeds, self.next, own); // [1,N,E]
        // The block's rows stand for masks: whatever becomes of the drafts, they must not stay.
        let rewound = own.rewind(self.next);
        let states = states?.try_index((.., ..rows as i32, ..))?;
        rewound?;
        out.draw(&self.head.unembed(&states, cx.model)?, self.head.vocabulary())?;
        Ok(())
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let next = run.after(self.next)?;
        let rows = run.ids.len();
        let fits = |taps: &&Array| taps.ndim() == 3 && taps.dim(0) == 1 && taps.dim(1) as usize == rows;
        let Some(taps) = run.hidden.filter(fits) else {
            let got = run.hidden.map_or("none".into(), |taps| format!("{:?}", taps.shape()));
            return Err(mismatch("tapped states of a committed run", format!("[1,{rows},E·t]"), got));
        };
        self.waiting.push(run.ids, taps.clone());
        self.next = next;
        // While nobody proposes, neither states nor unevaluated writes may pile up.
        if self.waiting.len() >= self.flush {
            self.write(cx)?;
            start(own(cx.own.as_deref_mut())?)?;
        }
        Ok(())
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, _next: Option<u32>) -> Result<(), DraftError> {
        self.write(cx)
    }
}

impl BlockSession {
    /// Writes all that waits. A failure leaves the own caches at the last written slot.
    fn write(&mut self, cx: &mut DraftCx<'_>) -> Result<(), DraftError> {
        let Some((ids, taps)) = self.waiting.joined()? else { return Ok(()) };
        let embeds = embeddings(cx.model)?.token_embeddings(&ids)?;
        let at = self.next - self.waiting.len();
        let own = own(cx.own.as_deref_mut())?;
        if let Err(error) = self.head.append(&embeds, &taps, at, own) {
            // Layers that did append step back; if they cannot, the first error still says more.
            own.rewind(at).ok();
            return Err(error.into());
        }
        self.waiting.clear();
        Ok(())
    }
}

/// Starts the evaluation of the caches' rows.
fn start(own: &CacheSet) -> Result<(), DraftError> {
    for layer in own.layers() {
        if let Some(view) = layer.get().view()? {
            async_eval([&view.keys, &view.values])?;
        }
    }
    Ok(())
}

/// The target's embeddings.
fn embeddings(model: &dyn Model) -> Result<&dyn MTPEmbeddingModel, DraftError> {
    model.mtp().ok_or_else(|| mismatch("target", "shared embeddings", model.facts().family))
}

/// The own caches that the engine lends.
fn own(lent: Option<&mut CacheSet>) -> Result<&mut CacheSet, DraftError> {
    lent.ok_or_else(|| mismatch("own caches", "the set that the drafter made", "none"))
}

fn mismatch(what: &str, expected: impl ToString, got: impl ToString) -> DraftError {
    DraftError::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
}
