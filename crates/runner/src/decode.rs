//! The decode loop: the sole emitter of tokens, and the only place that enforces the budget.

use std::ops::ControlFlow;

use foretoken_speculate::{Decoder, RequestState, Run, Token};

use crate::{Event, FinishReason, Result, RunnerError, TokenSink, memory};

/// What decoding came to.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) finish_reason: FinishReason,
    /// Tokens streamed.
    pub(crate) count: usize,
    /// Tokens produced, streamed or not.
    pub(crate) produced: usize,
}

/// Produces runs and streams them until the budget is used up, an end token comes, or the sink breaks.
///
/// Every token of a run is in the request's history before the first of them is streamed, so a sink that
/// goes away in the middle of a run leaves history and caches level.
pub(crate) fn decode(
    state: &mut RequestState,
    decoder: &mut dyn Decoder,
    budget: usize,
    sink: &mut dyn TokenSink,
) -> Result<Decoded> {
    let mut loop_ = Loop { budget, count: 0, produced: 0 };
    let finish_reason = loop {
        match loop_.round(state, decoder, sink)? {
            ControlFlow::Break(reason) => break reason,
            ControlFlow::Continue(()) => {}
        }
    };
    Ok(Decoded { finish_reason, count: loop_.count, produced: loop_.produced })
}

struct Loop {
    budget: usize,
    count: usize,
    produced: usize,
}

impl Loop {
    fn round(
        &mut self,
        state: &mut RequestState,
        decoder: &mut dyn Decoder,
        sink: &mut dyn TokenSink,
    ) -> Result<ControlFlow<FinishReason>> {
        let remaining = self.budget.saturating_sub(self.count);
        if remaining == 0 {
            return Ok(ControlFlow::Break(FinishReason::Length));
        }
        let known = state.history.ids().len();
        let run = decoder.next(state, remaining)?;
        check_recorded(state, known, &run)?;
        self.produced += run.tokens.len();
        let before = self.count;
        let flow = self.emit(&state.ends, run, sink);
        if memory::crossed(before, self.count) {
            memory::clear_buffers()?;
        }
        Ok(flow)
    }

    /// Streams the part of a recorded run that belongs to the answer.
    fn emit(&mut self, ends: &[u32], run: Run, sink: &mut dyn TokenSink) -> ControlFlow<FinishReason> {
        if let Some(reason) = run.speculation_ended {
            sink.event(Event::SpeculationEnded { reason })?;
        }
        for Token { id, logprobs, margin, provenance } in run.tokens {
            if ends.contains(&id) {
                return ControlFlow::Break(FinishReason::Stop);
            }
            self.count += 1;
            sink.event(Event::Token { id, logprobs, margin, provenance })?;
            if self.count == self.budget {
                return ControlFlow::Break(FinishReason::Length);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Refuses a run that is empty or that is not the tail of the history.
fn check_recorded(state: &RequestState, known: usize, run: &Run) -> Result<()> {
    let ids: Vec<u32> = run.tokens.iter().map(|token| token.id).collect();
    let tail = state.history.ids().get(known..).unwrap_or_default();
    if !ids.is_empty() && tail == ids {
        return Ok(());
    }
    Err(RunnerError::Decoder {
        expected: "at least one token, all recorded in the history before they are returned".into(),
        got: format!("{} tokens, {} recorded", ids.len(), tail.len()),
    })
}
