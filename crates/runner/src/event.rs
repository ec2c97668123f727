//! What a caller hears. Plain data: events cross threads and hold no arrays.

use std::ops::ControlFlow;

use foretoken_speculate::{Accounting, Provenance, Statistics, TokenLogprobs};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end token, or a stop string that the sink found.
    Stop,
    /// The budget or the context is used up.
    Length,
    /// The caller went away or asked for an end.
    Cancelled,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The request cannot be served by this model; nothing was evaluated.
    Request,
    /// Something went wrong while serving.
    Runtime,
}

/// One step of a request's life. The last event is exactly one of [`Event::Done`] and [`Event::Failed`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Prompt tokens whose state is there, of those that come before the last; the first report counts
    /// the cached ones.
    Prefill {
        /// Evaluated or cached so far.
        done: usize,
        /// All but the last.
        total: usize,
    },
    /// The next token of the answer.
    Token {
        /// The id.
        id: u32,
        /// Log probabilities, when asked for.
        logprobs: Option<TokenLogprobs>,
        /// How far the score it was drawn with lies above the next best, when asked for.
        margin: Option<f32>,
        /// How the token came about.
        provenance: Provenance,
    },
    /// A drafter failed and drafts no more in this answer, whose text is not concerned. Said once for each; when
    /// none is left the rest is decoded plainly.
    SpeculationEnded {
        /// The drafter's own words.
        reason: String,
    },
    /// The answer is complete.
    Done(Box<Report>),
    /// The request failed. Tokens that came before are good.
    Failed {
        /// What happened, and the next step to take.
        message: String,
        /// Whose fault it is.
        kind: FailureKind,
    },
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens streamed: without the end token and without anything past the stop.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was already there.
    pub cached_tokens: usize,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Timing {
    /// Loading the model, once per process.
    pub load_seconds: f64,
    /// Evaluating the prompt, all but its last token.
    pub prefill_seconds: f64,
    /// Producing the answer.
    pub decode_seconds: f64,
    /// Prompt tokens that prefill evaluated.
    pub prefilled_tokens: usize,
    /// Tokens streamed.
    pub decoded_tokens: usize,
}

impl Timing {
    /// Prompt tokens per second; 0 when there were none.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prefilled_tokens, self.prefill_seconds)
    }

    /// Streamed tokens per second; 0 when there were none.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decoded_tokens, self.decode_seconds)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}

/// What is known about a request when it is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Why the answer ended.
    pub finish_reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Where the time went.
    pub timing: Timing,
    /// What speculation did.
    pub statistics: Statistics,
    /// Tokens that rounds produced: the streamed ones, the end token, and what came past the stop.
    pub produced_tokens: usize,
    /// The first drafter that the request could use; absent when it was decoded plainly. What each of them did
    /// is in `statistics.sources`.
    pub drafter: Option<&'static str>,
    /// What the same tokens would have taken plainly, as measured since the model was loaded; absent until
    /// three plain rounds were measured.
    pub estimated_plain_seconds: Option<f64>,
    /// What decoding took in comparison, and what was spent on trying other depths.
    pub accounting: Accounting,
    /// The most bytes that MLX held at one time while serving this request, weights included.
    pub peak_memory: usize,
}

impl Report {
    /// Tokens produced per round; 0 without rounds.
    pub fn tokens_per_round(&self) -> f64 {
        let rounds = self.statistics.rounds.len();
        if rounds == 0 { 0.0 } else { self.produced_tokens as f64 / rounds as f64 }
    }
}

/// Where a request's events go.
///
/// Called on the worker thread, so it should return quickly. An answer of `Break` ends the request: no
/// further token is produced and the reason becomes the answer's finish reason. The answer to the last
/// event is ignored.
pub trait TokenSink {
    /// Hears one event.
    fn event(&mut self, event: Event) -> ControlFlow<FinishReason>;
}

impl<F: FnMut(Event) -> ControlFlow<FinishReason>> TokenSink for F {
    fn event(&mut self, event: Event) -> ControlFlow<FinishReason> {
        self(event)
    }
}
