//! Evaluates the prompt in chunks and leaves its last token for decode.

use std::ops::ControlFlow;

use foretoken_model_base::{Batch, Model};
use foretoken_speculate::{Decoder, RequestState, States};
use mlx_rs::{Array, transforms::eval};

use crate::{
    Event, FinishReason, Result, RunnerError, TokenSink, memory,
    reuse::{Lease, Reuse},
};

/// Tokens per chunk: large enough for full speed, small enough to cancel soon and to bound memory.
pub const PREFILL_CHUNK: usize = 2048;

/// What prefill works with besides the request's own state.
pub(crate) struct Prefill<'a> {
    pub(crate) model: &'a dyn Model,
    /// Tokens per forward.
    pub(crate) chunk: usize,
    pub(crate) reuse: &'a mut Reuse,
    pub(crate) lease: &'a mut Lease,
}

impl Prefill<'_> {
    /// Forwards all but the last prompt token from where the caches rest, chunk by chunk, and reports
    /// every chunk to the decoder. The sink may cancel before the first chunk and after each one; restore
    /// points that were passed stay.
    pub(crate) fn run(
        self,
        state: &mut RequestState,
        decoder: &mut dyn Decoder,
        sink: &mut dyn TokenSink,
    ) -> Result<ControlFlow<FinishReason>> {
        let prompt = state.history.ids()[..state.prompt_tokens.saturating_sub(1)].to_vec();
        let total = prompt.len();
        let mut done = state.target.offset();
        loop {
            if let ControlFlow::Break(reason) = sink.event(Event::Prefill { done, total }) {
                return Ok(ControlFlow::Break(reason));
            }
            if done >= total {
                return Ok(ControlFlow::Continue(()));
            }
            let ids = &prompt[done..total.min(done + self.chunk.max(1))];
            let (last, states) = forward(self.model, state, ids, &decoder.layers())?;
            // Only rows that were really evaluated count as committed.
            if let Err(error) = eval(std::iter::once(&last).chain(states.arrays())) {
                state.target.poison(error.what());
                return Err(error.into());
            }
            decoder.heard(state, ids, &states, done)?;
            done += ids.len();
            drop((last, states));
            self.reuse.collect(self.lease, state);
            memory::clear_buffers()?;
        }
    }
}

/// Appends `ids` to the target's caches, or leaves the caches as they were.
fn forward(
    model: &dyn Model,
    state: &mut RequestState,
    ids: &[u32],
    layers: &[usize],
) -> Result<(Array, States)> {
    let at = state.target.begin_whole()?;
    let batch = Batch::from_ids(ids, at);
    let built = batch
        .map_err(RunnerError::from)
        .and_then(|batch| Ok(States::forward(model, &batch, &mut state.target, layers)?));
    match built {
        Ok(forwarded) => {
            state.target.commit(ids.len())?;
            Ok(forwarded)
        }
        Err(error) => {
            state.target.rollback()?;
            Err(error)
        }
    }
}
