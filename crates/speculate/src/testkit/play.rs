//! A minimal decode loop: prompt in, tokens and statistics out.

use std::{rc::Rc, sync::Arc};

use foretoken_model_base::{Batch, Model};
use foretoken_sample::{Grammar, Sampler, SamplingOptions};

use crate::{
    Decoder, DraftPolicy, Drafter, Exact, RequestState, Result, Run, SpeculateError, Speculation, States,
    Statistics,
};

/// Tokens per prefill chunk.
const CHUNK: usize = 5;

/// What to decode.
#[derive(Clone)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens that end the answer.
    pub ends: Vec<u32>,
    /// The budget.
    pub max_tokens: usize,
    /// Sampling options.
    pub options: SamplingOptions,
    /// The depth policy.
    pub policy: DraftPolicy,
    /// What the answer must match.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Exact mode with blocks of this many rows.
    pub exact: Option<usize>,
}

impl Request {
    /// Greedy, without end tokens, drafting at a constant depth.
    pub fn greedy(prompt: &[u32], max_tokens: usize, depth: usize) -> Self {
        Self {
            prompt: prompt.to_vec(),
            ends: Vec::new(),
            max_tokens,
            options: SamplingOptions::greedy(),
            policy: DraftPolicy::Constant(depth),
            grammar: None,
            exact: None,
        }
    }
}

/// What a request came to, after its decoder was finished.
pub struct Played {
    /// Every token produced, an end token included, tokens past the budget as well.
    pub ids: Vec<u32>,
    /// The runs in order.
    pub runs: Vec<Run>,
    /// The decoder's statistics.
    pub statistics: Statistics,
    /// The state at rest.
    pub request: RequestState,
    /// Why the request ended early.
    pub error: Option<SpeculateError>,
}

/// Forwards all but the last prompt token in small chunks and reports them to the decoder.
pub fn prefill(model: &dyn Model, decoder: &mut dyn Decoder, request: &mut RequestState) -> Result<()> {
    let prompt = request.history.ids().to_vec();
    let (mut slot, layers) = (request.target.offset(), decoder.layers());
    for chunk in prompt[slot..prompt.len() - 1].chunks(CHUNK) {
        let batch = Batch::from_ids(chunk, slot)?;
        let (_, states) = States::forward(model, &batch, &mut request.target, &layers)?;
        decoder.heard(request, chunk, &states, slot)?;
        slot += chunk.len();
    }
    Ok(())
}

/// Prefills, decodes until the budget, an end token or an error, and finishes the decoder.
pub fn play(model: Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, asked: &Request) -> Result<Played> {
    play_set(model, &Speculation::new(drafter.into_iter().collect(), asked.policy), asked)
}

/// The same with any set of drafters, whose policy goes before the request's.
pub fn play_set(model: Rc<dyn Model>, speculation: &Speculation, asked: &Request) -> Result<Played> {
    let sampler = Sampler::new(asked.options.clone(), model.facts().vocabulary)?;
    let mut request = RequestState::new(model.as_ref(), None, sampler, &asked.prompt, &asked.ends)?;
    speculation.lend(&mut request);
    request.constraint = asked.grammar.as_ref().map(|grammar| grammar.begin()).transpose()?;
    request.exact = asked.exact.map(Exact::new);
    let mut decoder = speculation.decoder(Rc::clone(&model), &request)?;
    prefill(model.as_ref(), decoder.as_mut(), &mut request)?;
    let (mut ids, mut runs, mut error) = (Vec::new(), Vec::new(), None);
    while ids.len() < asked.max_tokens && !ids.last().is_some_and(|&id| request.is_end(id)) {
        match decoder.next(&mut request, asked.max_tokens - ids.len()) {
            Ok(run) => {
                ids.extend(run.tokens.iter().map(|t| t.id));
                runs.push(run);
            }
            Err(err) => {
                error = Some(err);
                break;
            }
        }
    }
    let statistics = decoder.statistics().clone();
    decoder.finish(&mut request)?;
    Ok(Played { ids, runs, statistics, request, error })
}
