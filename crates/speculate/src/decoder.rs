//! What the runner sees: request state, runs of tokens, and the decoder that makes them.

use std::rc::Rc;

use foretoken_cache::CacheSet;
use foretoken_model_base::Model;
use foretoken_sample::{Constraint, History, Sampler, SplitMix64};
use mlx_rs::Array;

use crate::{
    Accounting, DraftPolicy, Drafter, Exact, Result, SpeculateError, Speculation, States, Statistics,
};

/// The state of one request that decoders and the runner share.
///
/// At rest the target's caches hold every token of `history` but the last, which is `current`.
pub struct RequestState {
    /// The target's caches.
    pub target: CacheSet,
    /// The own caches of the first drafter that keeps any; what requests share covers them.
    pub own: Option<CacheSet>,
    /// The own caches of the other drafters, one entry for each drafter; nothing outside the request covers
    /// them. [`Speculation::lend`] fills both.
    pub others: Vec<Option<CacheSet>>,
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
    /// What the answer must match, when it is constrained; [`RequestState::new`] sets none.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Exact mode; [`RequestState::new`] sets none.
    pub exact: Option<Exact>,
}

impl RequestState {
    /// A request before prefill: empty caches, `history` is the whole prompt.
    ///
    /// An empty prompt, a prompt that fills the context, an id outside the vocabulary and a sampler of
    /// another vocabulary are errors.
    pub fn new(
        model: &dyn Model,
        drafter: Option<&dyn Drafter>,
        sampler: Sampler,
        prompt: &[u32],
        ends: &[u32],
    ) -> Result<Self> {
        check_prompt(model, &sampler, prompt)?;
        let mut ends = ends.to_vec();
        ends.sort_unstable();
        ends.dedup();
        let sampler = sampler.with_ends(&ends)?;
        let stream = SplitMix64::new(sampler.options().seed_value());
        Ok(Self {
            target: model.make_caches(),
            own: drafter.and_then(|d| d.make_caches()),
            others: Vec::new(),
            sampler,
            history: History::new(prompt),
            current: prompt[prompt.len() - 1],
            prompt_tokens: prompt.len(),
            ends,
            stream,
            constraint: None,
            exact: None,
        })
    }

    /// Whether `id` ends the answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The slot of the next token to draw.
    pub(crate) fn next_slot(&self) -> usize {
        self.history.ids().len()
    }

    /// The slot of the first token that is forwarded while decoding.
    pub(crate) fn origin(&self) -> usize {
        self.prompt_tokens - 1
    }

    /// The output position, from 0, of the token at `slot`.
    pub(crate) fn step_of(&self, slot: usize) -> usize {
        slot - self.prompt_tokens
    }

    /// Moves the grammar past tokens that are about to be recorded, or not at all.
    pub(crate) fn advance(&mut self, ids: &[u32]) -> Result<()> {
        let Some(constraint) = self.constraint.as_mut() else {
            return Ok(());
        };
        for (taken, &id) in ids.iter().enumerate() {
            if let Err(err) = constraint.advance(id) {
                constraint.rollback(taken)?;
                return Err(err.into());
            }
        }
        Ok(())
    }

    /// Records produced tokens; the last of them is the next one to forward.
    pub(crate) fn record(&mut self, ids: &[u32]) {
        self.history.extend(ids);
        if let Some(&last) = ids.last() {
            self.current = last;
        }
    }

    /// A failed evaluation leaves the contents of in-flight rows unknown.
    pub(crate) fn poison(&mut self, reason: &str) {
        self.target.poison(reason);
        self.own.iter_mut().chain(self.others.iter_mut().flatten()).for_each(|own| own.poison(reason));
    }
}

fn check_prompt(model: &dyn Model, sampler: &Sampler, prompt: &[u32]) -> Result<()> {
    let facts = model.facts();
    let input = |what, expected: String, got: String| Err(SpeculateError::Input { what, expected, got });
    if prompt.is_empty() {
        return input("prompt", "at least one token".into(), "none".into());
    }
    if prompt.len() > facts.context_length {
        let expected = format!("at most {} tokens, the model's context", facts.context_length);
        return input("prompt", expected, prompt.len().to_string());
    }
    if let Some(&id) = prompt.iter().find(|&&id| id as usize >= facts.vocabulary) {
        return input("prompt", format!("ids below {}", facts.vocabulary), id.to_string());
    }
    if sampler.vocabulary() != facts.vocabulary {
        let expected = format!("the model's vocabulary {}", facts.vocabulary);
        return input("sampler", expected, sampler.vocabulary().to_string());
    }
    Ok(())
}

/// Where a token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provenance {
    /// Drawn from the target without a draft.
    Plain,
    /// Drafted and accepted.
    Drafted {
        /// The drafter's name.
        drafter: &'static str,
        /// Its place in the proposal, from 0.
        position: usize,
    },
    /// The only continuation that the grammar allows, drafted by it and accepted.
    Forced {
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
    /// How far the score it was drawn with lies above the next best, when asked for.
    pub margin: Option<f32>,
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
    /// Which drafters ended in this round and why, each said once.
    pub speculation_ended: Option<String>,
}

/// Produces tokens; the decode loop alone emits them.
///
/// Between calls `request.target` rests at `history.len() − 1`, also while a token is being computed
/// ahead: that row sits in an open transaction which the next call commits and
/// [`finish`](Self::finish) takes back.
pub trait Decoder {
    /// The layers to tap in forwards of the prompt, ascending, for [`States::forward`].
    fn layers(&self) -> Vec<usize>;
    /// Hears a prefill chunk that was forwarded into the request's target caches and starts at slot `slot`.
    fn heard(&mut self, request: &mut RequestState, ids: &[u32], states: &States, slot: usize) -> Result<()>;
    /// Hears a prefill chunk that was forwarded without taps.
    ///
    /// # Shapes
    /// `hidden` `[1,n,E]`, `Hidden.aux` of the chunk that starts at slot `slot`.
    fn prefilled(
        &mut self,
        request: &mut RequestState,
        ids: &[u32],
        hidden: &Array,
        slot: usize,
    ) -> Result<()> {
        self.heard(request, ids, &States::plain(hidden.clone()), slot)
    }
    /// Produces the next run; a round drafts at most `remaining − 1` tokens.
    ///
    /// An error means that no token was produced by this call; earlier tokens were all returned. Call
    /// [`finish`](Self::finish) then.
    fn next(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run>;
    /// Brings in a token that is still being computed, so that the state rests level. `None` when there
    /// is none, or when the answer has ended.
    fn drain(&mut self, request: &mut RequestState) -> Result<Option<Token>>;
    /// Ends the request: the session is settled and finished, every set's layers rest level, and the own
    /// caches rest where the target's do, or before that after a failure. A token that is still being
    /// computed is taken back.
    fn finish(self: Box<Self>, request: &mut RequestState) -> Result<()>;
    /// What happened so far.
    fn statistics(&self) -> &Statistics;
    /// What it took so far.
    fn accounting(&self, request: &RequestState) -> Accounting;
}

/// The decoder for a request: plain without a drafter, else speculative under `policy`. What it measures is
/// forgotten with it; [`Speculation`] remembers, and takes several drafters.
///
/// Call it before prefill: the session opens at the offset where the target's caches rest. At a constant
/// depth of 0 a drafter with caches of its own hears the committed runs all the same.
pub fn make_decoder(
    model: Rc<dyn Model>,
    drafter: Option<Rc<dyn Drafter>>,
    policy: DraftPolicy,
    request: &RequestState,
) -> Result<Box<dyn Decoder>> {
    Speculation::new(drafter.into_iter().collect(), policy).decoder(model, request)
}
