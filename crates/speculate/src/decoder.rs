//! What the runner sees: request state, runs of tokens, and the decoder that makes them.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::Model;
use foretoken_sample::{History, Sampler, SplitMix64};
use mlx_rs::Array;

use crate::{DraftPolicy, Drafter, Result, Statistics};

/// The state of one request that decoders and the runner share.
///
/// At rest the target's caches hold every token of `history` but the last, which is `current`.
pub struct RequestState {
    /// The target's caches.
    pub target: CacheSet,
    /// The drafter's own caches, when it keeps any.
    pub own: Option<CacheSet>,
    /// The options applied to logits.
    pub sampler: Sampler,
    /// Every token, prompt and output.
    pub history: History,
    /// The last token, not yet forwarded.
    pub current: u32,
    /// How many tokens of `history` are the prompt.
    pub prompt_tokens: usize,
    /// Tokens that end the answer, ascending.
    pub ends: Vec<u32>,
    /// Keys for unseeded draws.
    pub stream: SplitMix64,
}

impl RequestState {
    /// A request before prefill: empty caches, `history` is the whole prompt.
    pub fn new(
        model: &dyn Model,
        drafter: Option<&dyn Drafter>,
        sampler: Sampler,
        prompt: &[u32],
        ends: &[u32],
    ) -> Result<Self> {
        let _ = (model, drafter, sampler, prompt, ends);
        unimplemented!()
    }
}

/// Where a token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// Drawn from the target without a draft.
    Plain,
    /// Drafted and accepted.
    Drafted {
        /// Its place in the proposal, from 0.
        position: usize,
    },
    /// Drawn by the target where a draft was rejected.
    Residual,
    /// Drawn by the target after a fully accepted proposal.
    Bonus,
}

/// Log probabilities of one token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// A token that was produced and recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// The id.
    pub id: u32,
    /// Log probabilities, when asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// Where it came from.
    pub provenance: Provenance,
}

/// What one call of [`Decoder::next`] produced. The tokens are already in the request's history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// The tokens in order, at least one; an end token is always the last.
    pub tokens: Vec<Token>,
    /// Tokens proposed in this round.
    pub drafted: usize,
    /// Proposed tokens that were accepted, an end token included.
    pub accepted: usize,
    /// Why speculation ended in this round, said once.
    pub speculation_ended: Option<String>,
}

/// Produces tokens; the decode loop alone emits them.
pub trait Decoder {
    /// Hears a prefill chunk that was forwarded into the request's target caches.
    ///
    /// # Shapes
    /// `hidden` [1,n,E], `Hidden.aux` of the chunk that starts at slot `slot`.
    fn prefilled(
        &mut self,
        request: &mut RequestState,
        ids: &[u32],
        hidden: &Array,
        slot: usize,
    ) -> Result<()>;
    /// Produces the next run; a round drafts at most `remaining − 1` tokens.
    fn next(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run>;
    /// Brings in a token that is still being computed, so that the state rests level.
    fn drain(&mut self, request: &mut RequestState) -> Result<Option<Token>>;
    /// Ends the request: every cache rests level, the session is settled and finished.
    fn finish(self: Box<Self>, request: &mut RequestState) -> Result<()>;
    /// What happened so far.
    fn statistics(&self) -> &Statistics;
}

/// The decoder for a request: plain without a drafter, else speculative under `policy`.
pub fn make_decoder(
    model: Rc<dyn Model>,
    drafter: Option<Rc<dyn Drafter>>,
    policy: DraftPolicy,
    request: &RequestState,
) -> Result<Box<dyn Decoder>> {
    let _ = (model, drafter.is_some(), policy, request.current);
    unimplemented!()
}
