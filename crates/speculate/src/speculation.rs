//! What a loaded model may draft with: a set of drafters, a policy, and what was learned about both.

use std::{
    cell::{OnceCell, RefCell},
    rc::Rc,
};

use foretoken_model_base::Model;

use crate::{
    Clock, Controller, Coupled, Decoder, DraftPolicy, Drafter, Estimates, Ratio, Recorder, RequestState,
    Result, Source, SpeculateError, SystemClock, Throughput, Trace,
    audience::Audience,
    depth::Fixed,
    session::{Hearing, Owner},
    speculative::{Director, Link, Speculative},
};

/// Makes the controller of one request over its sources.
type MakeController = Rc<dyn Fn(Vec<Source>) -> Box<dyn Controller>>;

/// The decisions of requests, one trace each.
pub type Traces = Rc<RefCell<Vec<Rc<RefCell<Trace>>>>>;

/// Drafters that are loaded together, how deep they draft, and what their rounds have taught so far.
///
/// The owner of a model keeps one and makes every request's decoder from it, so that estimates live as long as
/// the model. Every session hears all that is committed; in each round the policy picks one to propose, or none.
#[derive(Clone)]
pub struct Speculation {
    /// The drafters. [`check`](Self::check) says whether they can work side by side.
    pub drafters: Vec<Rc<dyn Drafter>>,
    /// Which of them drafts, and how deep.
    pub policy: DraftPolicy,
    /// What was measured.
    pub estimates: Rc<RefCell<Estimates>>,
    /// What time is measured with.
    pub clock: Rc<dyn Clock>,
    /// The drafters that may be asked; none means all.
    only: Option<Vec<usize>>,
    /// Makes controllers instead of the policy.
    make: Option<MakeController>,
    /// Where decisions go.
    traces: Option<Traces>,
    /// Which drafters keep caches of their own, found out when it first matters.
    keeps: OnceCell<Vec<bool>>,
}

impl Speculation {
    /// Drafters under a policy, with nothing measured yet.
    pub fn new(drafters: Vec<Rc<dyn Drafter>>, policy: DraftPolicy) -> Self {
        let clock = Rc::new(SystemClock::new());
        let (estimates, keeps) = (Rc::default(), OnceCell::new());
        Self { drafters, policy, estimates, clock, only: None, make: None, traces: None, keeps }
    }

    /// Plain decoding.
    pub fn none() -> Self {
        Self::new(Vec::new(), DraftPolicy::Constant(0))
    }

    /// The same drafters and estimates under another policy.
    pub fn with_policy(&self, policy: DraftPolicy) -> Self {
        Self { policy, ..self.clone() }
    }

    /// The same, with only these drafters asked, by name. The others still hear what is committed when they keep
    /// caches. A name that no drafter has is an error.
    pub fn with_only(mut self, names: &[String]) -> Result<Self> {
        let index = |name: &String| {
            let found = self.drafters.iter().position(|drafter| drafter.facts().name == name);
            found.ok_or_else(|| SpeculateError::Input {
                what: "drafter",
                expected: match self.drafters.is_empty() {
                    true => "none, since none is loaded".into(),
                    false => format!("one of {}", self.names().join(", ")),
                },
                got: name.clone(),
            })
        };
        self.only = Some(names.iter().map(index).collect::<Result<_>>()?);
        Ok(self)
    }

    /// The names of the drafters that the policy may ask.
    pub fn asked(&self) -> Vec<&'static str> {
        if self.policy == DraftPolicy::Constant(0) {
            return Vec::new();
        }
        let all = self.names().into_iter().enumerate();
        all.filter(|(index, _)| self.may_ask(*index)).map(|(_, name)| name).collect()
    }

    fn names(&self) -> Vec<&'static str> {
        self.drafters.iter().map(|drafter| drafter.facts().name).collect()
    }

    fn may_ask(&self, index: usize) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&index))
    }

    /// The same, with what an earlier set has measured.
    pub fn with_estimates(mut self, estimates: Rc<RefCell<Estimates>>) -> Self {
        self.estimates = estimates;
        self
    }

    /// The same, with another clock.
    pub fn with_clock(mut self, clock: Rc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The same, with a controller of the caller's own for every request. The policy then only says whether
    /// anybody is asked at all.
    pub fn with_controller(mut self, make: impl Fn(Vec<Source>) -> Box<dyn Controller> + 'static) -> Self {
        self.make = Some(Rc::new(make));
        self
    }

    /// The same, with the decisions of every request under the throughput policy added to `traces`.
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = Some(traces);
        self
    }

    /// Whether the drafters can work side by side: names tell them apart, and of those that keep caches only the
    /// first has them managed, so that the others must be able to catch up. Call it when loading.
    pub fn check(&self) -> Result<()> {
        if self.drafters.len() < 2 {
            return Ok(());
        }
        let managed = self.managed();
        for (index, drafter) in self.drafters.iter().enumerate() {
            let facts = drafter.facts();
            let more = managed.is_some_and(|managed| managed < index) && self.keeps()[index];
            if more && !facts.catches_up {
                return Err(SpeculateError::Input {
                    what: "drafters",
                    expected: "at most one that keeps caches of its own and cannot catch up".into(),
                    got: format!("{} as another one; load it first, or alone", facts.name),
                });
            }
            if self.drafters[..index].iter().any(|other| other.facts().name == facts.name) {
                return Err(SpeculateError::Input {
                    what: "drafters",
                    expected: "each one once".into(),
                    got: format!("{} twice", facts.name),
                });
            }
        }
        Ok(())
    }

    /// The drafter whose own caches go with the request's.
    pub fn managed(&self) -> Option<usize> {
        // Caches are not made to be thrown away: the only drafter has no rival.
        if self.drafters.len() == 1 {
            return Some(0);
        }
        self.keeps().iter().position(|&keeps| keeps)
    }

    fn keeps(&self) -> &[bool] {
        self.keeps
            .get_or_init(|| self.drafters.iter().map(|drafter| drafter.make_caches().is_some()).collect())
    }

    /// How many tokens past a slot the managed caches of that slot depend on.
    pub fn look_ahead(&self) -> usize {
        self.managed().map_or(0, |index| self.drafters[index].facts().look_ahead)
    }

    /// Gives a request empty caches for every drafter that keeps its own.
    pub fn lend(&self, request: &mut RequestState) {
        let managed = self.managed();
        let caches = |(index, drafter): (usize, &Rc<dyn Drafter>)| match Some(index) == managed {
            true => None,
            false => drafter.make_caches(),
        };
        request.own = managed.and_then(|index| self.drafters[index].make_caches());
        request.others = self.drafters.iter().enumerate().map(caches).collect();
    }

    /// The decoder for a request. Call it before prefill: sessions open at the offset where the target's caches
    /// rest. At a constant depth of 0, drafters with caches of their own hear the committed runs all the same.
    pub fn decoder(&self, model: Rc<dyn Model>, request: &RequestState) -> Result<Box<dyn Decoder>> {
        self.check()?;
        let at = request.target.offset();
        let mut hearings = Vec::new();
        for (index, drafter) in self.drafters.iter().enumerate() {
            let owner = self.owner(index, request);
            let asked = self.may_ask(index) && self.policy != DraftPolicy::Constant(0);
            if asked || owner != Owner::Nobody {
                let hearing = Hearing::open(drafter.as_ref(), at, owner);
                hearings.push(if asked { hearing } else { hearing.muted() });
            }
        }
        check_taps(model.as_ref(), &hearings)?;
        let audience = Audience::new(hearings, at);
        let director = self.director(&audience);
        let options = request.sampler.options();
        if options.coupled() {
            let rule = Coupled::new(options.seed_value()).with_margins(options.margins);
            Ok(Box::new(Speculative::new(model, audience, rule, director)))
        } else {
            Ok(Box::new(Speculative::new(model, audience, Ratio::new(), director)))
        }
    }

    fn owner(&self, index: usize, request: &RequestState) -> Owner {
        match request.others.get(index) {
            Some(Some(_)) => Owner::Other(index),
            // A request that was opened for one drafter alone has no entry for it.
            None if request.own.is_some() && index == 0 => Owner::Managed,
            Some(None) if request.own.is_some() && self.managed() == Some(index) => Owner::Managed,
            _ => Owner::Nobody,
        }
    }

    pub(crate) fn director(&self, audience: &Audience) -> Director {
        let hearings = audience.hearings();
        let asked = || hearings.iter().enumerate().filter(|(_, hearing)| !hearing.is_muted());
        let (mut links, mut sources) = (Vec::new(), Vec::new());
        for (head, hearing) in asked() {
            let facts = hearing.facts();
            links.push(Link { head, tail: None });
            sources.push(Source { name: facts.name.into(), max_depth: facts.max_depth, lengthens: None });
        }
        for (place, (head, hearing)) in asked().enumerate() {
            for (tail, other) in asked().filter(|(tail, _)| *tail != head) {
                // A drafter whose own tokens are as certain as a tail's goes on by itself.
                if other.facts().extends && !hearing.facts().extends {
                    let name = format!("{}+{}", hearing.facts().name, other.facts().name);
                    let max_depth = hearing.facts().max_depth;
                    sources.push(Source { name, max_depth, lengthens: Some(place) });
                    links.push(Link { head, tail: Some(tail) });
                }
            }
        }
        let frozen = matches!(self.policy, DraftPolicy::Throughput { frozen: true, .. });
        let clock = (!frozen).then(|| self.clock.clone());
        let measured = match self.policy {
            DraftPolicy::Throughput { max, .. } if self.make.is_none() => Some(max),
            _ => None,
        };
        let (controller, estimates) = (self.controller(sources), self.estimates.clone());
        Director { controller, links, clock, measured, estimates }
    }

    fn controller(&self, sources: Vec<Source>) -> Box<dyn Controller> {
        if let Some(make) = &self.make {
            return make(sources);
        }
        let estimates = self.estimates.clone();
        match self.policy {
            DraftPolicy::Constant(depth) => Box::new(Fixed::constant(depth, sources, estimates)),
            DraftPolicy::Heuristic { initial, max } => {
                Box::new(Fixed::heuristic((initial, max), sources, estimates))
            }
            DraftPolicy::Throughput { initial, max, frozen } => match &self.traces {
                None => Box::new(Throughput::new(sources, estimates, initial, max, frozen)),
                Some(traces) => {
                    let trace = Trace { initial, max, frozen, sources, ..Trace::default() };
                    let trace = Rc::new(RefCell::new(trace));
                    traces.borrow_mut().push(trace.clone());
                    Box::new(Recorder::new(trace, estimates))
                }
            },
        }
    }
}

/// A drafter that conditions on inner layers needs a model that reports them.
fn check_taps(model: &dyn Model, hearings: &[Hearing]) -> Result<()> {
    let wants = hearings.iter().find(|hearing| !hearing.facts().taps.is_empty());
    match wants.filter(|_| model.taps().is_none()) {
        None => Ok(()),
        Some(hearing) => Err(SpeculateError::Input {
            what: "model",
            expected: format!("one that taps inner layers, for {}", hearing.facts().name),
            got: "one that does not".into(),
        }),
    }
}
