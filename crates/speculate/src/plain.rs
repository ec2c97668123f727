//! Plain decoding, one step ahead: the next forward is built while the device computes this one, and
//! dispatched as soon as this token is known.
//!
//! Dispatched any earlier, its writes could meet cache buffers that the running step still holds, and MLX
//! would copy each of them whole (a write happens in place only when nothing else holds the buffer). Built
//! early and dispatched late, every write stays in place, an end token costs no wasted forward, and the
//! device works while the caller streams.

use foretoken_model_base::{Batch, Model};
use foretoken_sample::{Distribution, Rows};
use mlx_rs::{Array, transforms::async_eval};

use crate::{
    Provenance, RequestState, Result, SpeculateError, States, Token,
    audience::Audience,
    lazy::{Host, Lazy},
    round::{Report, RowFacts, allowed_next, begin, logits, wait},
};

/// One forward of one token, and the token drawn from it.
struct Step {
    /// The slot of the token that was forwarded.
    slot: usize,
    /// The drawn token `[1]` uint32.
    token: Array,
    facts: Lazy<(Drawn, RowFacts)>,
    /// The states of the forwarded token, when a session listens to them.
    states: Option<States>,
}

/// What a step keeps for the sessions: nothing, or the states with these layers tapped.
type Listens = Option<Vec<usize>>;

struct Drawn {
    id: u32,
    margin: Option<f32>,
}

/// The pipeline of one request. While a step is ahead, its row sits in an open transaction of the
/// target's caches.
#[derive(Default)]
pub(crate) struct Plain {
    ahead: Option<Step>,
    failure: Option<SpeculateError>,
}

impl Plain {
    /// Whether a token is being computed.
    fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Whether the next call has something to tell: a token that is being computed, or that it failed.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_ahead() || self.failure.is_some()
    }

    /// Produces and records one token; with `stay_ahead` the next one is then under way.
    pub(crate) fn next(
        &mut self,
        model: &dyn Model,
        request: &mut RequestState,
        audience: &mut Audience,
        stay_ahead: bool,
    ) -> Result<Token> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let listens = audience.wants_hidden().then(|| audience.layers());
        let step = match self.ahead.take() {
            Some(step) => step,
            None => first(model, request, &listens)?,
        };
        request.target.commit(1)?;
        let room = step.slot + 1 < model.facts().context_length;
        // What a grammar allows next is known only with the token.
        let known = request.constraint.is_none();
        let next = (stay_ahead && room && known).then(|| build(model, request, Some(&step.token), &listens));
        let (drawn, rows) =
            wait(step.facts, step.states.as_ref()).inspect_err(|err| request.poison(&err.to_string()))?;
        if let Some(fault) = rows.fault(0) {
            rewind(request, step.slot);
            return Err(fault.error(request.step_of(request.next_slot())));
        }
        if let Err(err) = request.advance(&[drawn.id]) {
            rewind(request, step.slot);
            return Err(err);
        }
        let forwarded = request.current;
        request.record(&[drawn.id]);
        self.failure = self.dispatch(request, next).err();
        if !request.target.is_poisoned() {
            audience.committed(model, request, &[forwarded], step.states.as_ref(), step.slot);
        }
        let margin = rows.margin(0).or(drawn.margin);
        Ok(Token { id: drawn.id, logprobs: rows.logprobs(0, 0), margin, provenance: Provenance::Plain })
    }

    /// Starts the step that was built ahead, unless the answer has ended. An error belongs to the next
    /// call: the token before it was produced and goes out first.
    fn dispatch(&mut self, request: &mut RequestState, next: Option<Result<Step>>) -> Result<()> {
        let Some(step) = next.transpose()? else {
            return Ok(());
        };
        if request.is_end(request.current) {
            return Ok(request.target.rollback()?);
        }
        start(&step).inspect_err(|err| request.poison(&err.to_string()))?;
        self.ahead = Some(step);
        Ok(())
    }

    /// Records the token that is being computed.
    pub(crate) fn drain(
        &mut self,
        model: &dyn Model,
        request: &mut RequestState,
        audience: &mut Audience,
    ) -> Result<Option<Token>> {
        match self.is_ahead() {
            true => self.next(model, request, audience, false).map(Some),
            false => Ok(None),
        }
    }

    /// Takes back the token that is being computed.
    pub(crate) fn finish(&mut self, request: &mut RequestState) {
        if self.ahead.take().is_some() {
            let slot = request.next_slot() - 1;
            rewind(request, slot);
        }
    }
}

/// The first step of a pipeline, dispatched.
fn first(model: &dyn Model, request: &mut RequestState, listens: &Listens) -> Result<Step> {
    let step = build(model, request, None, listens)?;
    start(&step).inspect_err(|err| request.poison(&err.to_string()))?;
    Ok(step)
}

fn start(step: &Step) -> Result<()> {
    Ok(async_eval(step.facts.arrays().iter().chain(step.states.iter().flat_map(States::arrays)))?)
}

/// The target's caches return to the tokens before `slot`.
fn rewind(request: &mut RequestState, slot: usize) {
    if let Err(err) = request.target.rewind(slot) {
        request.target.poison(err.to_string());
    }
}

/// Builds one step in a transaction of its own, which stays open on success.
///
/// # Shapes
/// `in_flight` `[1]`, a drawn token that is not on the host yet; it is forwarded instead of the current one.
fn build(
    model: &dyn Model,
    request: &mut RequestState,
    in_flight: Option<&Array>,
    listens: &Listens,
) -> Result<Step> {
    let base = match in_flight {
        None => begin(request)?,
        Some(_) => request.target.begin()?,
    };
    let step = forward(model, request, in_flight, listens, base);
    if step.is_err() {
        request.target.rollback()?;
    }
    step
}

fn forward(
    model: &dyn Model,
    request: &mut RequestState,
    in_flight: Option<&Array>,
    listens: &Listens,
    slot: usize,
) -> Result<Step> {
    let fed = match in_flight {
        Some(token) => token.reshape(&[1, 1])?,
        None => Array::from_slice(&[request.current], &[1, 1]),
    };
    let layers = listens.as_deref().unwrap_or_default();
    let (last, states) = States::forward(model, &Batch::single(fed, slot)?, &mut request.target, layers)?;
    let logits = logits(model, &last)?;
    let allowed = match request.constraint.as_mut() {
        Some(constraint) => Some(allowed_next(constraint.as_mut(), request.sampler.vocabulary())?),
        None => None,
    };
    let (law, margin) = request.sampler.distribution_with_margin(Rows {
        logits: &logits,
        columns: None,
        history: &request.history,
        in_flight,
        first: usize::from(in_flight.is_some()),
        allowed: allowed.as_ref(),
    })?;
    let (token, drawn) = draw(request, &law, slot + 1)?;
    let report = request.sampler.options().logprobs;
    let report = report.map(|top| Report::of(&logits, None, &token, top)).transpose()?;
    let facts = drawn.with(RowFacts::of(&logits, &law, margin.as_ref(), report)?);
    Ok(Step { slot, token, facts, states: listens.is_some().then_some(states) })
}

/// The token `[1]` that the law gives at a slot; its margin comes along where the rule shares noise.
fn draw(request: &mut RequestState, law: &Distribution, slot: usize) -> Result<(Array, Lazy<Drawn>)> {
    let options = request.sampler.options();
    let first_id = |host: Option<Host>| host.map(Host::ids).and_then(|ids| ids.first().copied());
    if options.coupled() && options.margins {
        let (token, margin) = law.draw_with_margin(options.seed_value(), slot)?;
        let drawn = Lazy::new(&[&token, &margin], move |mut hosts| Drawn {
            id: first_id(hosts.next()).unwrap_or_default(),
            margin: hosts.next().map(Host::floats).and_then(|floats| floats.first().copied()),
        })?;
        return Ok((token, drawn));
    }
    let key = if options.coupled() { options.seed_value() } else { request.stream.next_u64() };
    let token = law.draw(key, slot)?;
    let drawn = Lazy::new(&[&token], move |mut hosts| Drawn {
        id: first_id(hosts.next()).unwrap_or_default(),
        margin: None,
    })?;
    Ok((token, drawn))
}

/// A call for no tokens is a fault of the decode loop.
pub(crate) fn check_remaining(remaining: usize) -> Result<()> {
    match remaining {
        0 => Err(SpeculateError::Input { what: "remaining", expected: "at least 1".into(), got: "0".into() }),
        _ => Ok(()),
    }
}
