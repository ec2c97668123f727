//! One round of speculation: propose, forward once, judge, wait once, keep the accepted prefix.

mod build;
mod judge;
mod walk;

use foretoken_model_base::Model;
use mlx_rs::{Array, Dtype, error::Exception, ops::indexing::TryIndexOp, transforms::eval};

use crate::{
    Provenance, RequestState, Result, SpeculateError, Token,
    accept::Engine,
    lazy::{Host, Lazy},
    session::Hearing,
};

pub(crate) use build::logits;
use build::{Built, build};
use judge::{Outcome, judge};
pub(crate) use judge::{Report, RowFacts};
pub(crate) use walk::allowed_next;

/// What a round produced and recorded.
pub(crate) struct Round {
    pub(crate) tokens: Vec<Token>,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) rejected: bool,
    /// Waits beyond the round's own.
    pub(crate) extra_waits: usize,
    /// Why the next call must fail: the tokens of this round precede the fault.
    pub(crate) failure: Option<SpeculateError>,
}

/// Runs a round with at most `room` drafts. On an error no token was produced and every cache is back at
/// the round's base offset (in exact mode at the start of its block), or poisoned when the evaluation
/// failed.
pub(crate) fn round<R: Engine>(
    rule: &R,
    model: &dyn Model,
    hearing: &mut Hearing,
    request: &mut RequestState,
    room: usize,
) -> Result<Round> {
    let base = resting(request)?;
    let built = build(rule, model, hearing, request, room).inspect_err(|_| take_back(hearing, request))?;
    let Built { facts, aux, forced, extra_waits, lead } = built;
    let (verdict, rows) = wait(facts, aux.as_ref()).inspect_err(|err| request.poison(&err.to_string()))?;
    let name = hearing.facts().name;
    let origin = |position: usize| match forced.contains(&position) {
        true => Provenance::Forced { position },
        false => Provenance::Drafted { drafter: name, position },
    };
    let outcome = judge(&verdict, &rows, origin, |id| request.is_end(id));
    let step = request.step_of(request.next_slot()) + outcome.accepted;
    let failure = outcome.fault.map(|fault| fault.error(step));
    match failure {
        Some(failure) if outcome.tokens.is_empty() => {
            take_back(hearing, request);
            return Err(failure);
        }
        _ => {
            request.advance(&outcome.ids()).inspect_err(|_| take_back(hearing, request))?;
            request.target.commit(lead + 1 + outcome.kept)?;
            keep(&outcome, model, hearing, request, aux.as_ref(), base)?;
        }
    }
    Ok(Round {
        drafted: verdict.ids.len(),
        accepted: outcome.accepted,
        rejected: outcome.rejected,
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
fn take_back(hearing: &Hearing, request: &mut RequestState) {
    if let Err(err) = request.target.rollback() {
        request.target.poison(err.to_string());
    }
    hearing.rewind_own(request.own.as_mut());
}

/// Rolls the caches back to what was kept, records the tokens, and reports the committed run.
fn keep(
    outcome: &Outcome,
    model: &dyn Model,
    hearing: &mut Hearing,
    request: &mut RequestState,
    aux: Option<&Array>,
    base: usize,
) -> Result<()> {
    let rows = 1 + outcome.kept;
    let current = request.current;
    let ids = outcome.ids();
    request.record(&ids);
    if outcome.unsound {
        let reason = "a draft row is not finite; check the drafter's weights".into();
        hearing.fail(request.own.as_mut(), reason);
    }
    let run: Vec<u32> = std::iter::once(current).chain(ids).take(rows).collect();
    let hidden = aux.map(|a| a.try_index((.., ..rows as i32, ..))).transpose()?;
    hearing.committed(model, request, &run, hidden.as_ref(), base);
    Ok(())
}

/// The one wait: evaluates everything together and brings the contents to the host.
pub(crate) fn wait<T>(lazy: Lazy<T>, also: Option<&Array>) -> Result<T> {
    eval(lazy.arrays().iter().chain(also))?;
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
