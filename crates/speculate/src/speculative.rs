//! The decoder that owns the sessions and a depth policy, and parks into plain decoding at depth 0.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use foretoken_model_base::Model;

use crate::{
    Accounting, Choice, Clock, Controller, Decoder, Estimates, Outcome, RequestState, Result, Run, Seat,
    Situation, SpeculateError, States, Statistics, Token,
    accept::Engine,
    audience::Audience,
    depth::Bucket,
    plain::{Plain, check_remaining},
    round::{Plan, Round, round},
};

/// The most tokens that one session adds to another one's proposal: a tail is a bonus, and every row of it
/// costs whether it is kept or not.
const TAIL: usize = 8;
/// A session must have been right this often by itself before its tails are tried.
const TAIL_WORTH: f64 = 0.5;

/// One source of the controller: a session, or a session with another one's tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) head: usize,
    pub(crate) tail: Option<usize>,
}

/// Who decides, by what clock, and where it is learned.
pub(crate) struct Director {
    pub(crate) controller: Box<dyn Controller>,
    /// One per source of the controller.
    pub(crate) links: Vec<Link>,
    /// None when no time may be looked at.
    pub(crate) clock: Option<Rc<dyn Clock>>,
    /// The depth limit of a policy that measures. Exact rounds all cost a whole block, so there is nothing to
    /// measure: they draft as deep as they may.
    pub(crate) measured: Option<usize>,
    pub(crate) estimates: Rc<RefCell<Estimates>>,
}

/// Speculative decoding under one acceptance rule; without sessions, plain decoding.
pub(crate) struct Speculative<R> {
    model: Rc<dyn Model>,
    rule: R,
    audience: Audience,
    director: Director,
    plain: Plain,
    statistics: Statistics,
    /// Time of rounds so far.
    spent: Duration,
    /// Tokens so far, by what a plain one costs.
    produced: BTreeMap<Bucket, usize>,
    /// An error that the next call reports, because tokens went out before it.
    failure: Option<SpeculateError>,
    /// A round failed: the sessions are settled without a next token.
    failed: bool,
}

impl<R: Engine> Speculative<R> {
    pub(crate) fn new(model: Rc<dyn Model>, audience: Audience, rule: R, director: Director) -> Self {
        let names = audience.hearings().iter().map(|hearing| hearing.facts().name);
        Self {
            model,
            rule,
            statistics: Statistics::of(names),
            audience,
            director,
            plain: Plain::default(),
            spent: Duration::ZERO,
            produced: BTreeMap::new(),
            failure: None,
            failed: false,
        }
    }

    /// What the controller has to know. The current token takes one row of the context, and the round's last
    /// token none.
    fn situation(&mut self, request: &RequestState, remaining: usize) -> Situation {
        let slot = request.next_slot() - 1;
        let context = self.model.facts().context_length.saturating_sub(slot + 1);
        let block = request.exact.as_ref().map_or(usize::MAX, |exact| exact.room(slot, request.origin()));
        let room = (remaining - 1).min(context).min(block);
        let links = self.director.links.clone();
        let seats = links.iter().map(|link| self.seat(*link, request, room)).collect();
        Situation { context: slot, room, constrained: request.constraint.is_some(), seats }
    }

    fn seat(&mut self, link: Link, request: &RequestState, room: usize) -> Seat {
        let tokens = request.history.ids();
        let alive = |index: usize| self.audience.hearings().get(index).is_some_and(|h| h.alive());
        if let Some(tail) = link.tail {
            // A grammar waits for the drafts by itself; a tail would make it wait twice.
            let able = alive(link.head) && alive(tail) && request.constraint.is_none() && room > 1;
            let name = self.audience.name(Some(tail));
            let worth = able && self.director.estimates.borrow().kept_often(name, TAIL_WORTH);
            let cap = if worth { self.audience.hearings()[link.head].facts().max_depth } else { 0 };
            return Seat { cap: cap.min(room.saturating_sub(1)), sporadic: false };
        }
        let Some(hearing) = self.audience.get_mut(link.head).filter(|hearing| hearing.alive()) else {
            return Seat::default();
        };
        let ready = hearing.ready(tokens);
        if !hearing.alive() {
            return Seat::default();
        }
        let cap = hearing.facts().max_depth.min(ready.unwrap_or(usize::MAX));
        Seat { cap, sporadic: ready.is_some() }
    }

    fn produce(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let situation = self.situation(request, remaining);
        // In exact mode every round forwards a whole block, which says nothing about other requests.
        let exact = request.exact.is_some();
        let clock = self.director.clock.clone().filter(|_| !exact);
        let started = clock.as_ref().map(|clock| clock.now());
        let choice = match self.director.measured.filter(|_| exact) {
            Some(max) => deepest(&situation, max),
            None => situation.allow(self.director.controller.choose(&situation)),
        };
        // A token that is already being computed is never thrown away: it goes out before the first draft.
        let ahead = self.plain.is_pending();
        let (run, mut outcome) = if !exact && (choice == Choice::PLAIN || ahead) {
            self.step(request, choice == Choice::PLAIN && remaining > 1)?
        } else {
            let plan = self.plan(choice, &situation);
            let done = round(&self.rule, self.model.as_ref(), &mut self.audience, request, plan)?;
            self.finish_round(plan, done)
        };
        outcome.beside |= ahead && choice != Choice::PLAIN;
        let elapsed = clock.zip(started).map(|(clock, started)| clock.now().saturating_sub(started));
        outcome.nanos = elapsed.map(|elapsed| u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        if !exact || self.director.measured.is_none() {
            self.director.controller.observe(&outcome);
        }
        self.spent += elapsed.unwrap_or_default();
        let bucket = Bucket::of(situation.context, situation.constrained);
        *self.produced.entry(bucket).or_default() += run.tokens.len();
        Ok(run)
    }

    fn plan(&self, choice: Choice, situation: &Situation) -> Plan {
        let Some(link) = choice.source.and_then(|source| self.director.links.get(source)) else {
            return Plan::default();
        };
        let most = situation.room.saturating_sub(choice.depth).min(TAIL);
        let tail = link.tail.map(|tail| (tail, most)).filter(|_| most > 0);
        Plan { source: Some(link.head), room: choice.depth, tail }
    }

    fn step(&mut self, request: &mut RequestState, stay_ahead: bool) -> Result<(Run, Outcome)> {
        let token = self.plain.next(self.model.as_ref(), request, &mut self.audience, stay_ahead)?;
        self.statistics.record(0, 0, false);
        let outcome = Outcome { tokens: 1, ..Outcome::default() };
        Ok((Run { tokens: vec![token], ..Run::default() }, outcome))
    }

    fn finish_round(&mut self, plan: Plan, done: Round) -> (Run, Outcome) {
        let Round { tokens, drafted, accepted, rejected, head, forced, extra_waits, failure } = done;
        self.statistics.record(drafted, accepted, rejected);
        self.statistics.extra_waits += extra_waits;
        let kept = accepted.min(head);
        if let Some(source) = plan.source {
            self.statistics.credit(source, head, kept);
        }
        if let Some((tail, _)) = plan.tail.filter(|_| drafted > head) {
            self.statistics.credit(tail, drafted - head, accepted - kept);
        }
        self.failure = failure;
        let rejected = rejected && accepted < head;
        let outcome =
            Outcome { drafted: head, accepted: kept, rejected, tail: accepted - kept, ..Outcome::default() };
        let outcome = Outcome { tokens: tokens.len(), beside: forced, ..outcome };
        (Run { tokens, drafted, accepted, speculation_ended: None }, outcome)
    }
}

impl<R: Engine> Decoder for Speculative<R> {
    fn layers(&self) -> Vec<usize> {
        self.audience.layers()
    }

    fn heard(&mut self, request: &mut RequestState, ids: &[u32], states: &States, slot: usize) -> Result<()> {
        if ids.is_empty() || states.aux.ndim() != 3 || states.aux.dim(1) as usize != ids.len() {
            return Err(SpeculateError::Input {
                what: "prefilled chunk",
                expected: "at least one id and one hidden row for each".into(),
                got: format!("{} ids, hidden {:?}", ids.len(), states.aux.shape()),
            });
        }
        if self.audience.alive() && slot != self.audience.heard() {
            return Err(SpeculateError::Input {
                what: "prefilled chunk",
                expected: format!("slot {}", self.audience.heard()),
                got: slot.to_string(),
            });
        }
        self.audience.committed(self.model.as_ref(), request, ids, Some(states), slot);
        Ok(())
    }

    fn next(&mut self, request: &mut RequestState, remaining: usize) -> Result<Run> {
        check_remaining(remaining)?;
        let mut run = self.produce(request, remaining).inspect_err(|_| self.failed = true)?;
        run.speculation_ended = self.audience.take_ended();
        Ok(run)
    }

    fn drain(&mut self, request: &mut RequestState) -> Result<Option<Token>> {
        let drained = self.plain.drain(self.model.as_ref(), request, &mut self.audience);
        let token = drained.inspect_err(|_| self.failed = true)?;
        if token.is_some() {
            self.statistics.record(0, 0, false);
        }
        Ok(token)
    }

    fn finish(mut self: Box<Self>, request: &mut RequestState) -> Result<()> {
        self.plain.finish(request);
        let poisoned = request.target.is_poisoned() || request.own.as_ref().is_some_and(|o| o.is_poisoned());
        let at = request.target.offset();
        let healthy = !self.failed && !poisoned;
        // A prefill that was cancelled leaves more of the prompt ahead than the current token.
        let next = request.history.ids().get(at).copied().filter(|_| healthy);
        self.audience.finish(self.model.as_ref(), request, next);
        Ok(())
    }

    fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn accounting(&self, request: &RequestState) -> Accounting {
        let Director { controller, estimates, .. } = &self.director;
        let estimates = estimates.borrow();
        let known = estimates.plain_ms(request.next_slot(), request.constraint.is_some()).is_some();
        let prices = self.produced.iter().map(|(&bucket, &tokens)| estimates.price(bucket) * tokens as f64);
        Accounting {
            actual: self.spent,
            estimated_plain: known.then(|| of_millis(prices.sum())),
            probing: of_millis(controller.probing_ms()),
        }
    }
}

/// A time that a controller reports; what is none counts as nothing.
fn of_millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

/// The first drafter that can be asked, as deep as it and `max` allow.
fn deepest(situation: &Situation, max: usize) -> Choice {
    let depths = situation.seats.iter().map(|seat| seat.cap.min(max)).enumerate();
    let asked = depths.map(|(index, depth)| Choice { source: Some(index), depth });
    situation.allow(asked.into_iter().find(|choice| choice.depth > 0).unwrap_or(Choice::PLAIN))
}

#[cfg(test)]
mod tests;
