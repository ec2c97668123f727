//! One round of speculation: propose, forward once, judge, wait once, keep the accepted prefix.

use foretoken_model_base::{Batch, Hidden, Model};
use foretoken_sample::{Distribution, Rows, finite_rows};
use mlx_rs::{
    Array, Dtype,
    error::Exception,
    ops::{concatenate, indexing::TryIndexOp},
    transforms::eval,
};

use crate::{
    Provenance, RequestState, Result, SpeculateError, Token,
    accept::{Engine, Verdict},
    lazy::{Host, Lazy},
    session::{Hearing, Lent},
    sink::Desk,
};

/// What a round produced and recorded.
pub(crate) struct Round {
    pub(crate) tokens: Vec<Token>,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    pub(crate) rejected: bool,
    /// Why the next call must fail: the tokens of this round precede the fault.
    pub(crate) failure: Option<SpeculateError>,
}

/// Runs a round with at most `room` drafts. On an error no token was produced and every cache is back at
/// the round's base offset, or poisoned when the evaluation failed.
pub(crate) fn round<R: Engine>(
    rule: &R,
    model: &dyn Model,
    hearing: &mut Hearing,
    request: &mut RequestState,
    room: usize,
) -> Result<Round> {
    let base = begin(request)?;
    let built = build(rule, model, hearing, request, room).inspect_err(|_| take_back(hearing, request))?;
    let (verdict, rows) =
        wait(built.facts, built.aux.as_ref()).inspect_err(|err| request.poison(&err.to_string()))?;
    let mut outcome = judge(&verdict, &rows, |id| request.is_end(id));
    outcome.name(hearing.facts().name);
    let step = request.step_of(request.next_slot()) + outcome.accepted;
    let failure = outcome.fault.map(|fault| fault.error(step));
    match failure {
        Some(failure) if outcome.tokens.is_empty() => {
            take_back(hearing, request);
            return Err(failure);
        }
        _ => keep(&outcome, model, hearing, request, built.aux.as_ref(), base)?,
    }
    Ok(Round {
        drafted: verdict.ids.len(),
        accepted: outcome.accepted,
        rejected: outcome.rejected,
        tokens: outcome.tokens,
        failure,
    })
}

/// Opens the round's transaction; the state must rest level.
pub(crate) fn begin(request: &mut RequestState) -> Result<usize> {
    let base = request.target.begin()?;
    let expected = request.next_slot() - 1;
    if base == expected {
        return Ok(base);
    }
    request.target.rollback()?;
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

/// Everything the wait brings.
struct Built {
    facts: Lazy<(Verdict, RowFacts)>,
    /// `Hidden.aux` of current and drafts `[1,1+n,E]`, when the session listens to it.
    aux: Option<Array>,
}

/// Builds the whole round without waiting.
fn build<R: Engine>(
    rule: &R,
    model: &dyn Model,
    hearing: &mut Hearing,
    request: &mut RequestState,
    room: usize,
) -> Result<Built> {
    let RequestState { target, own, sampler, history, current, stream, .. } = request;
    let (current, base) = (*current, target.offset());
    let mut sink = rule.sink(Desk { sampler, history, stream, room });
    let lent = Lent { target, tokens: history.ids(), own: own.as_mut() };
    if !hearing.propose(model, lent, current, &mut sink) {
        // What a failed session offered does not count.
        drop(sink);
        sink = rule.sink(Desk { sampler, history, stream, room: 0 });
    }
    let ids = R::drafts(&sink).ids().cloned();
    let fed = feed(current, ids.as_ref())?;
    let hidden = model.forward(&Batch::single(fed, base)?, &mut [target])?;
    let logits = logits(model, &hidden)?;
    let law = sampler.distribution(Rows {
        logits: &logits,
        columns: None,
        history,
        in_flight: ids.as_ref(),
        first: 0,
        allowed: None,
    })?;
    let rows = RowFacts::of(&logits, &law)?;
    let facts = rule.accept(&law, sink)?.with(rows);
    Ok(Built { facts, aux: hearing.wants_hidden().then_some(hidden.aux) })
}

/// # Shapes
/// `drafts` `[n]` → `[1,1+n]`.
fn feed(current: u32, drafts: Option<&Array>) -> Result<Array> {
    let current = Array::from_slice(&[current], &[1]);
    let flat = match drafts {
        Some(drafts) => concatenate(&[&current, drafts], 0)?,
        None => current,
    };
    Ok(flat.expand_dims(0)?)
}

/// # Shapes
/// `[1,n,E]` → `[n,V]`.
pub(crate) fn logits(model: &dyn Model, hidden: &Hidden) -> Result<Array> {
    let logits = model.unembed(&hidden.last)?;
    Ok(logits.reshape(&[logits.dim(1), logits.dim(2)])?)
}

/// What is wrong with rows of the target, one entry per row.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowFacts {
    /// The raw logits can be sampled.
    pub(crate) finite: Vec<bool>,
    /// Something is left after filters and masks.
    pub(crate) support: Vec<bool>,
}

impl RowFacts {
    pub(crate) fn of(logits: &Array, law: &Distribution) -> Result<Lazy<Self>> {
        let finite = finite_rows(logits)?;
        let support = law.support()?;
        Lazy::new(&[&finite, &support], |mut hosts| Self {
            finite: hosts.next().map(Host::flags).unwrap_or_default(),
            support: hosts.next().map(Host::flags).unwrap_or_default(),
        })
    }

    /// The fault of row i, if it has one.
    pub(crate) fn fault(&self, row: usize) -> Option<Fault> {
        match (self.finite.get(row), self.support.get(row)) {
            (Some(true), Some(true)) => None,
            (Some(true), _) => Some(Fault::EmptySupport),
            _ => Some(Fault::NonFinite),
        }
    }
}

/// Why no token can be drawn from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NonFinite,
    EmptySupport,
}

impl Fault {
    pub(crate) fn error(self, step: usize) -> SpeculateError {
        match self {
            Fault::NonFinite => SpeculateError::NonFinite { step },
            Fault::EmptySupport => SpeculateError::EmptySupport { step },
        }
    }
}

/// The host's reading of a judged proposal.
#[derive(Debug, Default)]
struct Outcome {
    tokens: Vec<Token>,
    /// Drafts accepted, an end token included.
    accepted: usize,
    /// Drafts whose rows the caches keep.
    kept: usize,
    rejected: bool,
    /// The draft at the end of the run came from logits that cannot be sampled.
    unsound: bool,
    /// The row after the run cannot be sampled.
    fault: Option<Fault>,
}

/// The longest accepted prefix and what follows it. Rows past the first rejection do not matter.
fn judge(verdict: &Verdict, rows: &RowFacts, is_end: impl Fn(u32) -> bool) -> Outcome {
    let mut run = Outcome::default();
    let drafts = verdict.ids.len();
    for (row, &next) in verdict.continuations.iter().enumerate() {
        run.kept = row;
        if let Some(fault) = rows.fault(row) {
            // The last accepted draft becomes the token to forward again.
            run.kept = row.saturating_sub(1);
            run.fault = Some(fault);
            return run;
        }
        if row == drafts {
            run.push(next, if drafts == 0 { Provenance::Plain } else { Provenance::Bonus });
            return run;
        }
        run.unsound = !verdict.sound[row];
        if run.unsound || !verdict.accepted[row] {
            run.rejected = true;
            run.push(next, Provenance::Residual);
            return run;
        }
        run.accepted += 1;
        run.push(verdict.ids[row], Provenance::Drafted { drafter: "", position: row });
        if is_end(verdict.ids[row]) {
            return run;
        }
    }
    run
}

impl Outcome {
    /// Says who drafted.
    fn name(&mut self, name: &'static str) {
        for token in &mut self.tokens {
            if let Provenance::Drafted { drafter, .. } = &mut token.provenance {
                *drafter = name;
            }
        }
    }

    fn push(&mut self, id: u32, provenance: Provenance) {
        self.tokens.push(Token { id, logprobs: None, margin: None, provenance });
    }
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
    request.target.commit(rows)?;
    let current = request.current;
    let ids: Vec<u32> = outcome.tokens.iter().map(|t| t.id).collect();
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

fn host(array: &Array) -> Result<Host> {
    let read = match array.dtype() {
        _ if array.size() == 0 => Ok(Host::Floats(Vec::new())),
        Dtype::Uint32 => array.to_vec_exact().map(Host::Ids),
        Dtype::Bool => array.to_vec_exact().map(Host::Flags),
        _ => array.to_vec_exact().map(Host::Floats),
    };
    read.map_err(|err| SpeculateError::Array(Exception::custom(err.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    fn verdict(ids: &[u32], accepted: &[bool], continuations: &[u32]) -> Verdict {
        Verdict {
            ids: ids.to_vec(),
            accepted: accepted.to_vec(),
            sound: vec![true; ids.len()],
            continuations: continuations.to_vec(),
        }
    }

    fn rows(finite: &[bool]) -> RowFacts {
        RowFacts { finite: finite.to_vec(), support: vec![true; finite.len()] }
    }

    fn ids(outcome: &Outcome) -> Vec<u32> {
        outcome.tokens.iter().map(|t| t.id).collect()
    }

    #[test]
    fn the_run_ends_at_the_first_rejection() {
        let run =
            judge(&verdict(&[1, 2, 3], &[true, false, true], &[5, 6, 7, 8]), &rows(&[true; 4]), |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, 6], 1, 1, true));
        assert_eq!(run.tokens[0].provenance, Provenance::Drafted { drafter: "", position: 0 });
        assert_eq!(run.tokens[1].provenance, Provenance::Residual);
    }

    #[test]
    fn a_full_run_brings_a_bonus_token() {
        let run = judge(&verdict(&[1, 2], &[true, true], &[5, 6, 7]), &rows(&[true; 3]), |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, 2, 7], 2, 2, false));
        assert_eq!(run.tokens[2].provenance, Provenance::Bonus);
    }

    #[test]
    fn without_drafts_the_token_is_plain() {
        let run = judge(&verdict(&[], &[], &[5]), &rows(&[true]), |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![5], 0, 0, false));
        assert_eq!(run.tokens[0].provenance, Provenance::Plain);
    }

    #[test]
    fn an_accepted_end_token_keeps_only_what_precedes_it() {
        let run = judge(&verdict(&[1, END, 3], &[true; 3], &[5, 6, 7, 8]), &rows(&[true; 4]), |id| id == END);
        assert_eq!((ids(&run), run.accepted, run.kept, run.rejected), (vec![1, END], 2, 1, false));
    }

    #[test]
    fn a_fault_lets_earlier_tokens_out_first() {
        let judged = verdict(&[1, 2, 3], &[true; 3], &[5, 6, 7, 8]);
        let run = judge(&judged, &rows(&[true, true, false, true]), |_| false);
        assert_eq!((ids(&run), run.accepted, run.kept), (vec![1, 2], 2, 1));
        assert_eq!(run.fault, Some(Fault::NonFinite));
        let run = judge(&judged, &rows(&[false, true, true, true]), |_| false);
        assert_eq!((ids(&run), run.kept, run.fault), (vec![], 0, Some(Fault::NonFinite)));
    }

    #[test]
    fn a_fault_past_the_rejection_does_not_matter() {
        let judged = verdict(&[1, 2, 3], &[true, false, true], &[5, 6, 7, 8]);
        let run = judge(&judged, &rows(&[true, true, false, false]), |_| false);
        assert_eq!((ids(&run), run.fault), (vec![1, 6], None));
    }

    #[test]
    fn an_unsound_draft_is_rejected_whatever_the_rule_said() {
        let mut judged = verdict(&[1, 2], &[true, true], &[5, 6, 7]);
        judged.sound[1] = false;
        let run = judge(&judged, &rows(&[true; 3]), |_| false);
        assert_eq!((ids(&run), run.unsound, run.rejected), (vec![1, 6], true, true));
    }

    #[test]
    fn an_empty_support_is_a_fault_of_its_own() {
        let facts = RowFacts { finite: vec![true, true], support: vec![true, false] };
        let run = judge(&verdict(&[1], &[true], &[5, 6]), &facts, |_| false);
        assert_eq!((ids(&run), run.fault), (vec![1], Some(Fault::EmptySupport)));
        assert!(Fault::EmptySupport.error(3).to_string().contains("step 3"));
    }
}
