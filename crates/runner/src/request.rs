//! What a caller asks for. Plain data: it crosses threads and holds no arrays.

use std::sync::Arc;

use foretoken_sample::{Grammar, SamplingOptions};
use foretoken_speculate::DraftPolicy;

/// One request for tokens.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt, at least one id.
    pub prompt: Vec<u32>,
    /// Where messages of the prompt end, in tokens from its start; later requests that share the messages
    /// up to there can go on from these places. None need be named, and the order does not matter.
    pub boundaries: Vec<usize>,
    /// The most tokens to produce. Absent or 0 means the room left in the model's context, which is the
    /// limit in any case.
    pub max_tokens: Option<usize>,
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Tokens that end the answer. They are recorded, but neither streamed nor counted.
    pub ends: Vec<u32>,
    /// The depth policy; absent means the runner's own.
    pub policy: Option<DraftPolicy>,
    /// The names of the drafters that may be asked; absent means all that are loaded.
    pub drafters: Option<Vec<String>>,
    /// Whether a loaded drafter may be used at all.
    pub speculate: bool,
    /// What the answer must match.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Exact mode with blocks of this many rows, usually [`EXACT_WIDTH`](foretoken_speculate::EXACT_WIDTH):
    /// plain and speculative answers then have equal bits, and every token costs a forward of a block.
    pub exact: Option<usize>,
}

impl Request {
    /// A greedy request that fills the context, speculating when a drafter is loaded.
    pub fn greedy(prompt: impl Into<Vec<u32>>) -> Self {
        Self {
            prompt: prompt.into(),
            boundaries: Vec::new(),
            max_tokens: None,
            sampling: SamplingOptions::greedy(),
            ends: Vec::new(),
            policy: None,
            drafters: None,
            speculate: true,
            grammar: None,
            exact: None,
        }
    }

    /// The most tokens that a model with this context length may produce for this request.
    pub fn budget(&self, context_length: usize) -> usize {
        let room = context_length.saturating_sub(self.prompt.len());
        match self.max_tokens {
            None | Some(0) => room,
            Some(asked) => asked.min(room),
        }
    }
}
