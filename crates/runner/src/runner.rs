//! A loaded model with its drafters: checks a request, prefills, decodes, reports.

use std::{cell::RefCell, ops::ControlFlow, rc::Rc, time::Instant};

use foretoken_cache::prefix::{PrefixCache, PrefixOptions};
use foretoken_model_base::{MTPDefaults, Model};
use foretoken_sample::Sampler;
use foretoken_speculate::{
    Accounting, Decoder, DraftPolicy, Drafter, Estimates, Exact, RequestState, Speculation, Statistics,
};

use crate::{
    Event, FinishReason, PREFILL_CHUNK, Report, Request, Result, RunnerError, Timing, TokenSink, Usage,
    decode::{Decoded, decode},
    memory::{self, MemoryUse},
    prefill::Prefill,
    reuse::{Lease, Reuse},
};

/// Serves requests one after the other on the thread that built it.
///
/// What requests computed is remembered in a prefix cache, so that the next one that begins with the
/// same tokens goes on from there. A request that failed leaves nothing that could touch the next one.
pub struct Runner {
    pub(crate) model: Rc<dyn Model>,
    /// The drafters, the policy, and what was measured since the model was loaded.
    speculation: Speculation,
    pub(crate) chunk: usize,
    load_seconds: f64,
    reuse: Reuse,
}

/// A request that was admitted.
pub(crate) struct Opened {
    pub(crate) state: RequestState,
    decoder: Box<dyn Decoder>,
    lease: Lease,
}

/// What is left when a request has ended, well or badly.
pub(crate) struct Outcome {
    /// The state at rest, to be closed; absent when the request was refused.
    pub(crate) rest: Option<(RequestState, Lease)>,
    pub(crate) result: Result<Report>,
}

/// The policy for a model whose user did not choose one: measured throughput between plain decoding and the
/// model's largest depth, beginning at its initial one; plain decoding when the model prefers that.
pub fn default_policy(model: &dyn Model) -> DraftPolicy {
    let defaults = MTPDefaults::resolve(model.mtp_defaults());
    let (initial, max) = (defaults.initial_draft_tokens, defaults.max_draft_tokens);
    match defaults.enabled {
        true => DraftPolicy::Throughput { initial, max, frozen: false },
        false => DraftPolicy::Constant(0),
    }
}

impl Runner {
    /// A runner that decodes plainly.
    pub fn new(model: Rc<dyn Model>) -> Self {
        Self {
            model,
            speculation: Speculation::none(),
            chunk: PREFILL_CHUNK,
            load_seconds: 0.0,
            reuse: Reuse::new(Some(PrefixOptions::default())),
        }
    }

    /// Drafts with one drafter; without a policy, [`default_policy`].
    pub fn with_drafter(mut self, drafter: Rc<dyn Drafter>, policy: Option<DraftPolicy>) -> Self {
        self.draft_with(vec![drafter], policy);
        self
    }

    /// Drafts with any of these drafters, in each round with the one that the policy expects most of; without
    /// a policy, [`default_policy`]. Drafters that cannot work side by side are an error.
    pub fn with_drafters(
        mut self,
        drafters: Vec<Rc<dyn Drafter>>,
        policy: Option<DraftPolicy>,
    ) -> Result<Self> {
        self.draft_with(drafters, policy);
        self.speculation.check()?;
        Ok(self)
    }

    fn draft_with(&mut self, drafters: Vec<Rc<dyn Drafter>>, policy: Option<DraftPolicy>) {
        let policy = policy.unwrap_or_else(|| default_policy(self.model.as_ref()));
        let estimates = self.speculation.estimates.clone();
        self.speculation = Speculation::new(drafters, policy).with_estimates(estimates);
        self.reuse.clear();
    }

    /// Prefills in chunks of this many tokens instead of [`PREFILL_CHUNK`].
    pub fn with_prefill_chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// Remembers what requests computed under these options, whose look-ahead the drafter decides, or
    /// nothing. The default is [`PrefixOptions::default`].
    pub fn with_prefix_cache(mut self, options: Option<PrefixOptions>) -> Self {
        self.reuse = Reuse::new(options);
        self
    }

    /// Reports this as the time that loading took.
    pub fn with_load_seconds(mut self, seconds: f64) -> Self {
        self.load_seconds = seconds;
        self
    }

    /// The model.
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }

    /// The first drafter, when one is loaded.
    pub fn drafter(&self) -> Option<&dyn Drafter> {
        self.drafters().first().map(Rc::as_ref)
    }

    /// All drafters.
    pub fn drafters(&self) -> &[Rc<dyn Drafter>] {
        &self.speculation.drafters
    }

    /// What was measured since the model was loaded. Put other estimates in, such as earlier ones, to begin with
    /// those.
    pub fn estimates(&self) -> &Rc<RefCell<Estimates>> {
        &self.speculation.estimates
    }

    /// What earlier requests left; absent before the first one, or when nothing is remembered.
    pub fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.reuse.cache()
    }

    /// Forgets what earlier requests left.
    pub fn clear_prefix_cache(&mut self) {
        self.reuse.clear();
    }

    /// Serves one request. The sink hears every event, the last of which is exactly one `Done` or
    /// `Failed`; the same report or error is returned.
    pub fn generate(&mut self, request: &Request, sink: &mut dyn TokenSink) -> Result<Report> {
        let outcome = self.serve(request, sink);
        if let Some((state, lease)) = outcome.rest {
            self.reuse.close(lease, state);
        }
        // Whatever happened, the next request starts with an empty buffer cache.
        let result = outcome.result.and_then(|report| memory::clear_buffers().map(|()| report));
        let last = match &result {
            Ok(report) => Event::Done(Box::new(report.clone())),
            Err(error) => Event::Failed { message: error.to_string(), kind: error.kind() },
        };
        // There is nothing left to end, so the answer does not matter.
        let _ = sink.event(last);
        result
    }

    /// Serves one request and hands its state back at rest.
    pub(crate) fn serve(&mut self, request: &Request, sink: &mut dyn TokenSink) -> Outcome {
        let mut opened = match self.open(request) {
            Ok(opened) => opened,
            Err(error) => return Outcome { rest: None, result: Err(error) },
        };
        let answered = self.answer(request, &mut opened, sink);
        let Opened { mut state, decoder, lease } = opened;
        // Whatever happened, every cache comes to rest.
        let finished = decoder.finish(&mut state);
        let result = answered.and_then(|report| Ok(finished.map(|()| report)?));
        Outcome { rest: Some((state, lease)), result }
    }

    /// Checks the ids before anything is evaluated: at least one, at most `limit`, all known.
    pub(crate) fn check_prompt(&self, prompt: &[u32], limit: usize) -> Result<()> {
        let facts = self.model.facts();
        let (vocabulary, context) = (facts.vocabulary, facts.context_length);
        if prompt.is_empty() {
            return Err(RunnerError::EmptyPrompt { expected: 1 });
        }
        if prompt.len() > limit {
            return Err(RunnerError::PromptTooLong { got: prompt.len(), limit, context });
        }
        match prompt.iter().position(|&id| id as usize >= vocabulary) {
            Some(index) => Err(RunnerError::TokenOutOfRange { index, got: prompt[index], vocabulary }),
            None => Ok(()),
        }
    }

    fn open(&mut self, request: &Request) -> Result<Opened> {
        let facts = self.model.facts();
        let sampler = Sampler::new(request.sampling.clone(), facts.vocabulary)?;
        self.check_prompt(&request.prompt, facts.context_length.saturating_sub(1))?;
        check_boundaries(request)?;
        let constraint = request.grammar.as_ref().map(|grammar| grammar.begin()).transpose();
        let constraint = constraint.map_err(|source| RunnerError::Grammar { source })?;
        memory::begin_request()?;
        // A drafter with caches of its own hears every request, so that its caches stay level.
        let (model, speculation) = (self.model.clone(), self.speculation_for(request)?);
        let (prompt, ends) = (&request.prompt, &request.ends);
        let mut state = RequestState::new(model.as_ref(), None, sampler, prompt, ends)?;
        (state.constraint, state.exact) = (constraint, request.exact.map(Exact::new));
        speculation.lend(&mut state);
        let begun = self.reuse.begin(speculation.look_ahead(), &request.boundaries, &mut state);
        let lease = begun.unwrap_or_else(|| {
            state.target = model.make_caches();
            speculation.lend(&mut state);
            Lease::default()
        });
        let decoder = speculation.decoder(model, &state)?;
        Ok(Opened { state, decoder, lease })
    }

    /// The drafters and the policy that a request may use.
    fn speculation_for(&self, request: &Request) -> Result<Speculation> {
        let policy = match request.speculate {
            true => request.policy.unwrap_or(self.speculation.policy),
            false => DraftPolicy::Constant(0),
        };
        let speculation = self.speculation.with_policy(policy);
        match &request.drafters {
            Some(names) => Ok(speculation.with_only(names)?),
            None => Ok(speculation),
        }
    }

    fn answer(&mut self, request: &Request, opened: &mut Opened, sink: &mut dyn TokenSink) -> Result<Report> {
        let Opened { state, decoder, lease } = opened;
        let (decoder, cached) = (decoder.as_mut(), lease.cached_tokens());
        let started = Instant::now();
        let (model, chunk, reuse) = (self.model.as_ref(), self.chunk, &mut self.reuse);
        let flow = Prefill { model, chunk, reuse, lease }.run(state, decoder, sink)?;
        let mut timing = Timing {
            load_seconds: self.load_seconds,
            prefill_seconds: started.elapsed().as_secs_f64(),
            prefilled_tokens: state.target.offset() - cached,
            ..Timing::default()
        };
        let started = Instant::now();
        let decoded = match flow {
            ControlFlow::Break(reason) => Decoded::nothing(reason),
            ControlFlow::Continue(()) => {
                let budget = request.budget(self.model.facts().context_length);
                decode(state, decoder, budget, sink)?
            }
        };
        timing.decode_seconds = started.elapsed().as_secs_f64();
        timing.decoded_tokens = decoded.count;
        let spent = (decoder.statistics().clone(), decoder.accounting(state));
        let mut report = self.report(request, decoded, timing, spent)?;
        report.usage.cached_tokens = cached;
        // A token that is still being computed is waited for and recorded, not streamed or counted. The
        // answer is complete, so a failure of that token does not concern it; `finish` levels the caches.
        let _ = decoder.drain(state);
        Ok(report)
    }

    fn report(
        &self,
        request: &Request,
        decoded: Decoded,
        timing: Timing,
        (statistics, accounting): (Statistics, Accounting),
    ) -> Result<Report> {
        let drafter = self.speculation_for(request)?.asked().first().copied();
        Ok(Report {
            finish_reason: decoded.finish_reason,
            usage: Usage {
                prompt_tokens: request.prompt.len(),
                completion_tokens: decoded.count,
                cached_tokens: 0,
            },
            timing,
            statistics,
            produced_tokens: decoded.produced,
            drafter,
            estimated_plain_seconds: accounting.estimated_plain.map(|plain| plain.as_secs_f64()),
            accounting,
            peak_memory: MemoryUse::now()?.peak,
        })
    }
}

/// Fails unless every boundary lies inside the prompt.
fn check_boundaries(request: &Request) -> Result<()> {
    let prompt = request.prompt.len();
    match request.boundaries.iter().find(|&&at| at > prompt) {
        Some(&got) => Err(RunnerError::Boundary { got, prompt }),
        None => Ok(()),
    }
}

impl Decoded {
    fn nothing(finish_reason: FinishReason) -> Self {
        Self { finish_reason, count: 0, produced: 0 }
    }
}
