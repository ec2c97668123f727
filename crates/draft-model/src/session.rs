//! One request: what the draft model has read, and the rows of a proposal until its verdict is known.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, Model};
use foretoken_speculate::{CommittedRun, DraftCx, DraftError, DraftSession, DraftSink};
use mlx_rs::{Array, ops::indexing::TryIndexOp, transforms::async_eval};

use crate::drafter::{Columns, MAX_DEPTH};

/// Committed tokens that are read together with the current one. Each of these rows can be taken back, for
/// which a recurrent layer keeps a state, so there must be few.
const ALONG: usize = 4;

/// The own caches are all that is remembered of the text: they hold its first `own.offset()` tokens.
///
/// A proposal leaves its rows in an open transaction. The run that follows it says which drafts were
/// accepted; their rows are kept, and the draft model does not read these tokens again.
pub(crate) struct ModelSession {
    model: Rc<dyn Model>,
    columns: Rc<Columns>,
    catch_up: usize,
    /// One past the last committed slot.
    next: usize,
}

impl ModelSession {
    pub(crate) fn new(model: Rc<dyn Model>, columns: Rc<Columns>, catch_up: usize, at: usize) -> Self {
        Self { model, columns, catch_up, next: at }
    }
}

impl DraftSession for ModelSession {
    fn propose(
        &mut self,
        cx: &mut DraftCx<'_>,
        _current: u32,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let steps = out.room().min(MAX_DEPTH).min(self.context_left());
        if self.next == 0 || steps == 0 {
            return Ok(());
        }
        let tokens = cx.tokens.get(..=self.next).ok_or_else(|| few(cx.tokens, self.next + 1))?;
        let own = own(cx.own.as_deref_mut())?;
        self.read_until(own, tokens, self.next.saturating_sub(ALONG))?;
        own.begin()?;
        // After an error no row of the proposal may stay.
        self.chain(own, tokens, steps, out).inspect_err(|_| drop(own.rollback()))
    }

    fn committed(&mut self, cx: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        let next = run.after(self.next)?;
        let tokens = cx.tokens.get(..next).ok_or_else(|| few(cx.tokens, next))?;
        let own = own(cx.own.as_deref_mut())?;
        if own.is_open() {
            own.commit(own.pending().min(next - own.offset()))?;
        }
        self.next = next;
        // Nobody may propose for a long time, and tokens must not pile up.
        match self.waiting(own) {
            waiting if waiting >= self.catch_up => {
                let whole = waiting - waiting % self.catch_up;
                self.read_until(own, tokens, own.offset() + whole)
            }
            _ => Ok(()),
        }
    }

    fn settle(&mut self, cx: &mut DraftCx<'_>, _next: Option<u32>) -> Result<(), DraftError> {
        let tokens = cx.tokens.get(..self.next).ok_or_else(|| few(cx.tokens, self.next))?;
        let own = own(cx.own.as_deref_mut())?;
        own.rollback()?;
        // The state of a slot depends on nothing after it, so no next token is needed.
        self.read_until(own, tokens, self.next)
    }
}

impl ModelSession {
    /// Draws `steps` tokens: the first from the rows that were not read yet, with the current token last,
    /// each later one from the row of the draft before it.
    fn chain(
        &self,
        own: &mut CacheSet,
        tokens: &[u32],
        steps: usize,
        out: &mut dyn DraftSink,
    ) -> Result<(), DraftError> {
        let mut at = own.offset();
        let mut ids = self.ids(&tokens[at..])?;
        for _ in 0..steps {
            let rows = ids.dim(1);
            let hidden = self.model.forward(&Batch::single(ids, at)?, &mut [&mut *own])?.last;
            let logits = self.model.unembed(&hidden.try_index((.., rows - 1.., ..))?)?;
            at += rows as usize;
            ids = out.draw(&self.columns.cut(logits)?, self.columns.vocabulary())?;
            // The device works while the host builds the next step, and then the verifying forward.
            async_eval([&ids])?;
        }
        Ok(())
    }

    /// Reads committed tokens up to slot `end`, in chunks whose evaluation is started, as far as the draft
    /// model's context goes.
    fn read_until(&self, own: &mut CacheSet, tokens: &[u32], end: usize) -> Result<(), DraftError> {
        let end = end.min(self.model.facts().context_length);
        while own.offset() < end {
            let at = own.begin_whole()?;
            let rows = self.catch_up.min(end - at);
            if let Err(error) = self.read(own, &tokens[at..at + rows], at) {
                // Layers that did append step back; if they cannot, the first error still says more.
                own.rollback().ok();
                return Err(error);
            }
            own.commit(rows)?;
        }
        Ok(())
    }

    fn read(&self, own: &mut CacheSet, ids: &[u32], at: usize) -> Result<(), DraftError> {
        let hidden = self.model.forward(&Batch::single(self.ids(ids)?, at)?, &mut [own])?;
        Ok(async_eval([&hidden.last])?)
    }

    /// Ids `[1,n]`. One without an embedding would read stray memory.
    fn ids(&self, ids: &[u32]) -> Result<Array, DraftError> {
        let known = self.model.facts().vocabulary;
        match ids.iter().find(|&&id| id as usize >= known) {
            None => Ok(Array::from_slice(ids, &[1, ids.len() as i32])),
            Some(id) => Err(mismatch("committed token", format!("an id below {known}"), id)),
        }
    }

    /// Committed tokens that the draft model has not read and can.
    fn waiting(&self, own: &CacheSet) -> usize {
        self.next.min(self.model.facts().context_length).saturating_sub(own.offset())
    }

    /// Drafts whose rows fit the draft model's context: the current token takes a row, the last draft none.
    fn context_left(&self) -> usize {
        self.model.facts().context_length.saturating_sub(self.next)
    }
}

/// The own caches that the engine lends.
fn own(lent: Option<&mut CacheSet>) -> Result<&mut CacheSet, DraftError> {
    lent.ok_or_else(|| mismatch("own caches", "the set that the drafter made", "none"))
}

fn few(tokens: &[u32], expected: usize) -> DraftError {
    mismatch("tokens of the request", format!("at least {expected}"), tokens.len())
}

fn mismatch(what: &str, expected: impl ToString, got: impl ToString) -> DraftError {
    DraftError::Mismatch { what: what.into(), expected: expected.to_string(), got: got.to_string() }
}
