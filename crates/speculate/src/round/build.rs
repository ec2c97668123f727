//! A round before its wait: the proposal, the forward, and everything that is judged.

use std::ops::Range;

use foretoken_cache::CacheSet;
use foretoken_model_base::{Batch, Model};
use foretoken_sample::{Constraint, Rows};
use mlx_rs::{
    Array,
    ops::{concatenate, indexing::TryIndexOp},
};

use super::{Plan, RowFacts, ask::Asked, host_ids, judge::Report, walk};
use crate::{
    DraftSink, Exact, RequestState, Result, States,
    accept::{Engine, Verdict, continuations},
    audience::Audience,
    lazy::Lazy,
    sink::Desk,
};

/// Everything the wait brings.
pub(super) struct Built {
    pub(super) facts: Lazy<(Verdict, RowFacts)>,
    /// The states of current and drafts, when a session listens to them.
    pub(super) states: Option<States>,
    /// The drafts that the grammar made.
    pub(super) forced: Range<usize>,
    /// How many drafts came before the tail of another session.
    pub(super) head: usize,
    pub(super) extra_waits: usize,
    /// Committed rows before the current token's that are forwarded again.
    pub(super) lead: usize,
}

/// Builds the whole round. It waits only for the ids of drafts that a grammar must look at, or that a tail
/// follows.
pub(super) fn build<R: Engine>(
    rule: &R,
    model: &dyn Model,
    audience: &mut Audience,
    request: &mut RequestState,
    plan: Plan,
) -> Result<Built> {
    let (origin, slot) = (request.origin(), request.next_slot() - 1);
    let RequestState {
        target, own, others, sampler, history, current, stream, constraint, ends, exact, ..
    } = request;
    let current = *current;
    let room = plan.room + plan.tail.map_or(0, |(_, more)| more);
    let mut sink = rule.sink(Desk { sampler, history, stream, room });
    let first = forced_first(constraint, plan.room, sampler.vocabulary())?;
    let (mut asked, mut waits) = (Asked { model, audience, own, others, current }, 0);
    if !first.is_empty() {
        sink.known(&first).map_err(walk::refused)?;
    } else if !asked.head(plan, (target, history.ids()), &mut sink) {
        // What a failed session offered does not count.
        drop(sink);
        sink = rule.sink(Desk { sampler, history, stream, room: 0 });
    }
    // What the grammar forces is nobody's draft.
    let head = if first.is_empty() { R::drafts(&sink).count() } else { 0 };
    if let Some(tail) = plan.tail.filter(|_| first.is_empty() && head > 0) {
        let drafted = known::<R>(&sink, &mut waits).map_err(|err| asked.poison(target, err))?;
        asked.tail(tail, (target, history.ids()), &drafted, &mut sink);
    }
    let mut built = Walked { forced: 0..first.len(), ..Walked::default() };
    if let Some(constraint) = constraint.as_mut() {
        let is_end = |id| ends.binary_search(&id).is_ok();
        let drafted = known::<R>(&sink, &mut waits).map_err(|err| asked.poison(target, err))?;
        built = walk_drafts::<R>(&mut sink, constraint.as_mut(), (&drafted, first.len()), is_end)?;
    }
    let ids = R::drafts(&sink).ids().cloned();
    let count = 1 + R::drafts(&sink).count();
    let place = Place { target, exact, before: history.ids(), origin, slot };
    let fed = feed(current, ids.as_ref())?;
    let Forwarded { logits, states, lead } = forward(model, &audience.layers(), place, (fed, count))?;
    let (law, margin) = sampler.distribution_with_margin(Rows {
        logits: &logits,
        columns: None,
        history,
        in_flight: ids.as_ref(),
        first: 0,
        allowed: built.allowed.as_ref(),
    })?;
    let verdict = rule.accept(&law, sink)?;
    let report = match (sampler.options().logprobs, continuations(&verdict)) {
        (Some(top), Some(next)) => Some(Report::of(&logits, ids.as_ref(), next, top)?),
        _ => None,
    };
    let rows = RowFacts::of(&logits, &law, margin.as_ref(), report)?;
    let states = audience.wants_hidden().then_some(states);
    Ok(Built { facts: verdict.with(rows), states, forced: built.forced, head, extra_waits: waits, lead })
}

/// Where the current token stands.
struct Place<'a> {
    target: &'a mut CacheSet,
    exact: &'a mut Option<Exact>,
    /// The tokens of all slots, the current one's included.
    before: &'a [u32],
    origin: usize,
    slot: usize,
}

/// The forward of a round.
struct Forwarded {
    /// Of the current token and the drafts `[1+n,V]`.
    logits: Array,
    /// Of the same slots.
    states: States,
    /// Rows of the forward before the current token's.
    lead: usize,
}

/// Forwards the current token and the drafts, `fed` `[1,1+n]`; in exact mode the whole block around them.
fn forward(
    model: &dyn Model,
    layers: &[usize],
    place: Place<'_>,
    (mut fed, count): (Array, usize),
) -> Result<Forwarded> {
    let Place { target, exact, before, origin, slot } = place;
    let mut lead = 0;
    if let Some(exact) = exact.as_mut() {
        let start = exact.enter(target, slot, origin)?;
        lead = slot - start;
        let rows = exact.width().min(model.facts().context_length.saturating_sub(start));
        fed = fill(&before[start..slot], &fed, rows)?;
    }
    let base = target.begin()?;
    let (last, mut states) = States::forward(model, &Batch::single(fed, base)?, target, layers)?;
    let mut logits = logits(model, &last)?;
    if exact.is_some() {
        logits = logits.try_index(lead as i32..(lead + count) as i32)?;
        states = states.rows(lead, count)?;
    }
    Ok(Forwarded { logits, states, lead })
}

/// The tokens that the grammar forces next, cut to the room.
fn forced_first(
    constraint: &mut Option<Box<dyn Constraint>>,
    room: usize,
    vocabulary: usize,
) -> Result<Vec<u32>> {
    let Some(constraint) = constraint.as_mut().filter(|_| room > 0) else {
        return Ok(Vec::new());
    };
    walk::forced(constraint.as_mut(), room, vocabulary)
}

/// What a grammar made of a proposal.
#[derive(Default)]
struct Walked {
    /// Ids that may follow each row `[1+n,V]` bool.
    allowed: Option<Array>,
    forced: Range<usize>,
}

/// Masks every row, drops what follows a draft that cannot be accepted, and lengthens a proposal that fits
/// the grammar by what the grammar forces then.
fn walk_drafts<R: Engine>(
    sink: &mut R::Sink<'_>,
    constraint: &mut dyn Constraint,
    (ids, forced_first): (&[u32], usize),
    is_end: impl Fn(u32) -> bool,
) -> Result<Walked> {
    let (room, vocabulary) = (sink.room(), R::drafts(sink).vocabulary());
    let walk = walk::walk(constraint, ids, room, vocabulary, is_end)?;
    let mut forced = 0..forced_first;
    if walk.judged < ids.len() {
        R::cut(sink, walk.judged)?;
    } else if !walk.tail.is_empty() {
        sink.known(&walk.tail).map_err(walk::refused)?;
        let start = if forced_first == ids.len() { 0 } else { ids.len() };
        forced = start..ids.len() + walk.tail.len();
    }
    Ok(Walked { allowed: Some(walk.allowed()), forced })
}

/// The ids drafted so far. Lazy ones are waited for, see the crate's invariants: the only place besides the
/// round's wait that reads ids.
fn known<R: Engine>(sink: &R::Sink<'_>, waits: &mut usize) -> Result<Vec<u32>> {
    let drafts = R::drafts(sink);
    match (drafts.host(), drafts.ids()) {
        (Some(ids), _) => Ok(ids.to_vec()),
        (None, Some(ids)) => {
            *waits += 1;
            host_ids(ids)
        }
        (None, None) => Ok(Vec::new()),
    }
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

/// A whole block: the tokens before `fed` in it, and as many ids after it as are missing. What stands
/// there does not matter, since no row before them can see it.
///
/// # Shapes
/// `fed` `[1,m]` → `[1,rows]`.
fn fill(before: &[u32], fed: &Array, rows: usize) -> Result<Array> {
    let known = before.len() + fed.size();
    let before = Array::from_slice(before, &[1, before.len() as i32]);
    let padding = vec![0_u32; rows.saturating_sub(known)];
    let padding = Array::from_slice(&padding, &[1, padding.len() as i32]);
    Ok(concatenate(&[&before, fed, &padding], 1)?)
}

/// # Shapes
/// `[1,n,E]` → `[n,V]`.
pub(crate) fn logits(model: &dyn Model, last: &Array) -> Result<Array> {
    let logits = model.unembed(last)?;
    Ok(logits.reshape(&[logits.dim(1), logits.dim(2)])?)
}
