//! One round of speculation: propose, forward once, judge, wait once, keep the accepted prefix.

mod ask;
mod build;
mod judge;
mod walk;

use foretoken_model_base::Model;
use mlx_rs::{Array, Dtype, error::Exception, transforms::eval};

use crate::{
    Provenance, RequestState, Result, SpeculateError, States, Token,
    accept::Engine,
    audience::Audience,
    lazy::{Host, Lazy},
};

pub(crate) use build::logits;
use build::{Built, build};
use judge::{Outcome, judge};
pub(crate) use judge::{Report, RowFacts};
pub(crate) use walk::allowed_next;

/// What a round is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// The session that proposes; none draws the next token alone.
    pub(crate) source: Option<usize>,
    /// The most drafts of that session, and of the grammar.
    pub(crate) room: usize,
    /// The session that lengthens the proposal, and by how much at most.
    pub(crate) tail: Option<(usize, usize)>,
}

/// What a round produced and recorded.
pub(crate) struct Round {
    pub(crate) tokens: Vec<Token>,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) rejected: bool,
    /// How many of the drafts came before the tail.
    pub(crate) head: usize,
    /// Whether a grammar made the whole proposal, and no session was asked.
    pub(crate) forced: bool,
    /// Waits beyond the round's own.
    pub(crate) extra_waits: usize,
    /// Why the next call must fail: the tokens of this round precede the fault.
    pub(crate) failure: Option<SpeculateError>,
}

/// Runs a round. On an error no token was produced and every cache is back at the round's base offset (in
/// exact mode at the start of its block), or poisoned when the evaluation failed.
pub(crate) fn round<R: Engine>(
    rule: &R,
    model: &dyn Model,
    audience: &mut Audience,
    request: &mut RequestState,
    plan: Plan,
) -> Result<Round> {
    let base = resting(request)?;
    let built = build(rule, model, audience, request, plan).inspect_err(|_| take_back(audience, request))?;
    let Built { facts, states, forced, head, extra_waits, lead } = built;
    let (verdict, rows) = wait(facts, states.as_ref()).inspect_err(|err| request.poison(&err.to_string()))?;
    let names = (audience.name(plan.source), audience.name(plan.tail.map(|(tail, _)| tail)));
    let origin = |position: usize| match forced.contains(&position) {
        true => Provenance::Forced { position },
        false if position < head => Provenance::Drafted { drafter: names.0, position },
        false => Provenance::Drafted { drafter: names.1, position },
    };
    let outcome = judge(&verdict, &rows, origin, |id| request.is_end(id));
    let step = request.step_of(request.next_slot()) + outcome.accepted;
    let failure = outcome.fault.map(|fault| fault.error(step));
    match failure {
        Some(failure) if outcome.tokens.is_empty() => {
            take_back(audience, request);
            return Err(failure);
        }
        _ => {
            request.advance(&outcome.ids()).inspect_err(|_| take_back(audience, request))?;
            request.target.commit(lead + 1 + outcome.kept)?;
            if outcome.unsound {
                let reason = "a draft row is not finite; check the drafter's weights";
                let tail = plan.tail.map(|(tail, _)| tail).filter(|_| outcome.accepted >= head);
                tail.or(plan.source)
                    .and_then(|s| audience.get_mut(s))
                    .into_iter()
                    .for_each(|h| h.fail(request, reason));
            }
            keep(&outcome, model, audience, request, states.as_ref(), base)?;
        }
    }
    Ok(Round {
        drafted: verdict.ids.len(),
        accepted: outcome.accepted,
        rejected: outcome.rejected,
        head: head.min(verdict.ids.len()),
        forced: head == 0 && forced.start == 0 && !forced.is_empty(),
        tokens: outcome.tokens,
        extra_waits,
        failure,
    })
}

/// Opens a transaction at the current token's slot.
pub(crate) fn begin(request: &mut RequestState) -> Result<usize> {
    resting(request)?;
    Ok(request.target.begin()?)
}

/// The current token's slot, at which the target's caches must rest.
fn resting(request: &RequestState) -> Result<usize> {
    let (base, expected) = (request.target.offset(), request.next_slot() - 1);
    if base == expected && !request.target.is_open() {
        return Ok(base);
    }
    Err(SpeculateError::Input {
        what: "target caches",
        expected: format!("all {expected} tokens before the current one"),
        got: base.to_string(),
    })
}

/// Every layer returns to the round's base offset.
fn take_back(audience: &Audience, request: &mut RequestState) {
    if let Err(err) = request.target.rollback() {
        request.target.poison(err.to_string());
    }
    audience.rewind_own(request);
}

/// Records the tokens, and reports the committed run to everybody.
fn keep(
    outcome: &Outcome,
    model: &dyn Model,
    audience: &mut Audience,
    request: &mut RequestState,
    states: Option<&States>,
    base: usize,
) -> Result<()> {
    let rows = 1 + outcome.kept;
    let current = request.current;
    let ids = outcome.ids();
    request.record(&ids);
    let run: Vec<u32> = std::iter::once(current).chain(ids).take(rows).collect();
    let states = states.map(|states| states.rows(0, rows)).transpose()?;
    audience.committed(model, request, &run, states.as_ref(), base);
    Ok(())
}

/// The one wait: evaluates everything together and brings the contents to the host.
pub(crate) fn wait<T>(lazy: Lazy<T>, also: Option<&States>) -> Result<T> {
    eval(lazy.arrays().iter().chain(also.into_iter().flat_map(States::arrays)))?;
    let hosts = lazy.arrays().iter().map(host).collect::<Result<_>>()?;
    Ok(lazy.assemble(hosts))
}

/// Ids that a round needs before its own wait.
fn host_ids(ids: &Array) -> Result<Vec<u32>> {
    wait(Lazy::new(&[ids], |mut hosts| hosts.next().map(Host::ids).unwrap_or_default())?, None)
}

fn host(array: &Array) -> Result<Host> {
    let read = match array.dtype() {
        _ if array.size() == 0 => Ok(Host::Floats(Vec::new())),
        Dtype::Uint32 => array.to_vec_exact().map(Host::Ids),
        Dtype::Bool => array.to_vec_exact().map(Host::Flags),
        _ => array.to_vec_exact().map(Host::Floats),
    };
    read.map_err(|err| SpeculateError::Array(Exception::custom(err.to_string())))
}
