//! The decoder that owns a session and a depth policy, and parks into plain decoding at depth 0.

use std::rc::Rc;

use foretoken_model_base::Model;
use mlx_rs::Array;

use crate::{
    Decoder, RequestState, Result, Run, SpeculateError, Statistics, Token,
    accept::Engine,
    depth::DepthControl,
    plain::{Plain, check_remaining},
    round::{Round, round},
    session::Hearing,
};

/// Speculative decoding under one acceptance rule.
pub(crate) struct Speculative<R> {
    model: Rc<dyn Model>,
    rule: R,
    hearing: Hearing,
    depth: Box<dyn DepthControl>,
    plain: Plain,
    statistics: Statistics,
    /// An error that the next call reports, because tokens went out before it.
    failure: Option<SpeculateError>,
    /// A round failed: the session is settled without a next token.
    failed: bool,
}

impl<R: Engine> Speculative<R> {
    pub(crate) fn new(model: Rc<dyn Model>, hearing: Hearing, rule: R, depth: Box<dyn DepthControl>) -> Self {
        Self {
            model,
            rule,
            hearing,
            depth,
            plain: Plain::default(),
            statistics: Statistics::default(),
            failure: None,
            failed: false,
        }
    }

    /// Drafts allowed by policy, drafter, budget and context. The current token takes one row of the
    /// context, and the round's last token none.
    fn room(&self, depth: usize, request: &RequestState, remaining: usize) -> usize {
        let slot = request.next_slot() - 1;
        let context = self.model.facts().context_length.saturating_sub(slot + 1);
        let block = request.exact.as_ref().map_or(usize::MAX, |exact| exact.room(slot, request.origin()));
        depth.min(self.hearing.facts().max_depth).min(remaining - 1).min(context).min(block)
    }

    fn produce(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let depth = if self.hearing.alive() { self.depth.depth() } else { 0 };
        let room = self.room(depth, request, remaining);
        // A token that is already being computed is never thrown away: it goes out before the first draft.
        let exact = request.exact.is_some();
        if !exact && (depth == 0 || room == 0 || self.plain.is_ahead()) {
            let stay_ahead = depth == 0 && remaining > 1;
            return self.step(request, stay_ahead);
        }
        let done = round(&self.rule, self.model.as_ref(), &mut self.hearing, request, room)?;
        Ok(self.finish_round(done))
    }

    fn step(&mut self, request: &mut RequestState, stay_ahead: bool) -> Result<Run> {
        let token = self.plain.next(self.model.as_ref(), request, Some(&mut self.hearing), stay_ahead)?;
        self.statistics.record(0, 0, false);
        self.depth.observe(0, 0);
        Ok(Run { tokens: vec![token], ..Run::default() })
    }

    fn finish_round(&mut self, done: Round) -> Run {
        self.statistics.record(done.drafted, done.accepted, done.rejected);
        self.statistics.extra_waits += done.extra_waits;
        self.depth.observe(done.drafted, done.accepted);
        self.failure = done.failure;
        Run { tokens: done.tokens, drafted: done.drafted, accepted: done.accepted, speculation_ended: None }
    }
}

impl<R: Engine> Decoder for Speculative<R> {
    fn prefilled(
        &mut self,
        request: &mut RequestState,
        ids: &[u32],
        hidden: &Array,
        slot: usize,
    ) -> Result<()> {
        if ids.is_empty() || hidden.ndim() != 3 || hidden.dim(1) as usize != ids.len() {
            return Err(SpeculateError::Input {
                what: "prefilled chunk",
                expected: "at least one id and one hidden row for each".into(),
                got: format!("{} ids, hidden {:?}", ids.len(), hidden.shape()),
            });
        }
        if self.hearing.alive() && slot != self.hearing.heard() {
            return Err(SpeculateError::Input {
                what: "prefilled chunk",
                expected: format!("slot {}", self.hearing.heard()),
                got: slot.to_string(),
            });
        }
        self.hearing.committed(self.model.as_ref(), request, ids, Some(hidden), slot);
        Ok(())
    }

    fn next(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run> {
        check_remaining(remaining)?;
        let mut run = self.produce(request, remaining).inspect_err(|_| self.failed = true)?;
        run.speculation_ended = self.hearing.take_ended();
        Ok(run)
    }

    fn drain(&mut self, request: &mut RequestState) -> Result<Option<Token>> {
        let drained = self.plain.drain(self.model.as_ref(), request, Some(&mut self.hearing));
        let token = drained.inspect_err(|_| self.failed = true)?;
        if token.is_some() {
            self.statistics.record(0, 0, false);
        }
        Ok(token)
    }

    fn finish(mut self: Box<Self>, request: &mut RequestState) -> Result<()> {
        self.plain.finish(request);
        let poisoned = request.target.is_poisoned() || request.own.as_ref().is_some_and(|o| o.is_poisoned());
        let at = request.target.offset();
        let healthy = !self.failed && !poisoned && self.hearing.heard() == at;
        // A prefill that was cancelled leaves more of the prompt ahead than the current token.
        let next = request.history.ids().get(at).copied().filter(|_| healthy);
        self.hearing.finish(self.model.as_ref(), request, next);
        Ok(())
    }

    fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}

#[cfg(test)]
mod tests;
