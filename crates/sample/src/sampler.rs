//! One request's options applied to logits.

use mlx_rs::Array;

use crate::{Distribution, History, Result, SamplingOptions};

/// Logit rows and what each of them has seen.
///
/// Row i's penalties look at the history followed by the first min(`first` + i, m) tokens in flight.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Raw logits [n,D], any float dtype.
    pub logits: &'a Array,
    /// The target id of each column [D] uint32, ascending; `None` when D is V.
    pub columns: Option<&'a Array>,
    /// Tokens known on the host.
    pub history: &'a History,
    /// Tokens after the history that may not be known yet [m] uint32.
    pub in_flight: Option<&'a Array>,
    /// How many tokens in flight row 0 has already seen.
    pub first: usize,
}

/// One request's sampler: options checked once, no state.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SamplingOptions,
    vocabulary: usize,
}

impl Sampler {
    /// Checks the options against their ranges and the vocabulary.
    pub fn new(options: SamplingOptions, vocabulary: usize) -> Result<Self> {
        options.validate()?;
        Ok(Self { options, vocabulary })
    }

    /// The options.
    pub fn options(&self) -> &SamplingOptions {
        &self.options
    }

    /// The target's vocabulary size V.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// What each row's next token is drawn from. Greedy requests get points, top-k requests sparse rows,
    /// rows over a draft vocabulary sparse rows with the columns' target ids, everything else dense rows.
    pub fn distribution(&self, rows: Rows<'_>) -> Result<Distribution> {
        unimplemented!("{rows:?}")
    }
}

/// Whether each row of raw logits can be sampled: no NaN, no +∞, not all −∞.
///
/// # Shapes
/// [n,D] → [n] bool.
pub fn finite_rows(logits: &Array) -> Result<Array> {
    unimplemented!("{logits:?}")
}

/// Log probabilities to report, from raw logits before penalties, temperature and filters.
#[derive(Debug, Clone)]
pub struct Logprobs {
    /// Of the chosen ids, [n] float32.
    pub chosen: Array,
    /// The most likely ids, best first, [n,k] uint32.
    pub top_ids: Array,
    /// Their log probabilities, [n,k] float32.
    pub top: Array,
}

/// The full-vocabulary log-softmax at the chosen ids and the `top` most likely ids.
///
/// # Shapes
/// `logits` [n,V], `chosen` [n].
pub fn logprobs(logits: &Array, chosen: &Array, top: usize) -> Result<Logprobs> {
    unimplemented!("{logits:?} {chosen:?} {top}")
}
