//! Models, requests, and a drafter that knows an answer wherever it is opened.

use std::{cell::RefCell, ops::ControlFlow, rc::Rc};

use foretoken_model_base::Model;
use foretoken_models::testkit::{hyb, tiny, tiny_window};
use foretoken_runner::{Event, FinishReason, PrefixOptions, Report, Request, Runner, RunnerError};
use foretoken_speculate::{
    CommittedRun, DraftCx, DraftError, DraftPolicy, DraftSession, DraftSink, Drafter, DrafterFacts,
    testkit::{Pattern, SumModel, on_cpu},
};

/// Seed of the random models: their greedy texts vary.
const SEED: u64 = 7;
/// Restore points of the tests, every so many tokens.
pub(crate) const INTERVAL: usize = 8;

/// TINY with full layers, TINY with windows, HYB and SUM.
pub(crate) fn models() -> [(&'static str, Rc<dyn Model>); 4] {
    on_cpu();
    [
        ("tiny", Rc::from(tiny(SEED).unwrap())),
        ("tiny_window", Rc::from(tiny_window(SEED).unwrap())),
        ("hyb", Rc::from(hyb(SEED).unwrap())),
        ("sum", Rc::new(SumModel::new(64))),
    ]
}

/// Whether every offset of a model can be gone back to.
pub(crate) fn cuttable(name: &str) -> bool {
    name == "tiny"
}

pub(crate) fn options(keep_live: bool) -> PrefixOptions {
    PrefixOptions { interval: INTERVAL, keep_live, ..PrefixOptions::default() }
}

/// Ids that look random and are the same everywhere.
pub(crate) fn prompt(seed: u32, length: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % 64
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn greedy(prompt: &[u32], tokens: usize) -> Request {
    Request { max_tokens: Some(tokens), ..Request::greedy(prompt) }
}

/// What a request came to.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) ids: Vec<u32>,
    pub(crate) ended: Vec<String>,
    pub(crate) result: Result<Report, RunnerError>,
}

impl Served {
    pub(crate) fn report(&self) -> &Report {
        self.result.as_ref().expect("the request succeeds")
    }

    pub(crate) fn cached(&self) -> usize {
        self.report().usage.cached_tokens
    }

    pub(crate) fn rounds(&self) -> &[(usize, usize)] {
        &self.report().statistics.rounds
    }
}

/// When a caller goes away.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Leave {
    Never,
    /// Once so many prompt tokens are there.
    Prefill(usize),
    /// Once so many tokens were streamed.
    Tokens(usize),
}

pub(crate) fn serve_until(runner: &mut Runner, request: &Request, leave: Leave) -> Served {
    let (mut ids, mut ended) = (Vec::new(), Vec::new());
    let result = runner.generate(request, &mut |event: Event| {
        let gone = match (event, leave) {
            (Event::Token { id, .. }, _) => {
                ids.push(id);
                matches!(leave, Leave::Tokens(n) if ids.len() >= n)
            }
            (Event::Prefill { done, .. }, Leave::Prefill(n)) => done >= n,
            (Event::SpeculationEnded { reason }, _) => {
                ended.push(reason);
                false
            }
            _ => false,
        };
        if gone { ControlFlow::Break(FinishReason::Cancelled) } else { ControlFlow::Continue(()) }
    });
    Served { ids, ended, result }
}

pub(crate) fn serve(runner: &mut Runner, request: &Request) -> Served {
    serve_until(runner, request, Leave::Never)
}

/// A runner that remembers under these options.
pub(crate) fn warm(model: &Rc<dyn Model>, options: PrefixOptions) -> Runner {
    Runner::new(model.clone()).with_prefix_cache(Some(options))
}

/// The ids of a fresh runner that remembers nothing and does not speculate.
pub(crate) fn cold(model: &Rc<dyn Model>, request: &Request) -> Vec<u32> {
    let mut runner = Runner::new(model.clone()).with_prefix_cache(None);
    let served = serve(&mut runner, request);
    assert_eq!(served.cached(), 0);
    assert!(runner.prefix_cache().is_none());
    served.ids
}

/// A drafter that knows which token stands at each slot of one sequence, and offers it as the pattern says.
pub(crate) struct Knows {
    facts: DrafterFacts,
    pattern: Pattern,
    sequence: RefCell<Rc<[u32]>>,
}

impl Knows {
    pub(crate) fn new(pattern: Pattern) -> Rc<Self> {
        let facts = DrafterFacts::new("knows", 16);
        Rc::new(Self { facts, pattern, sequence: RefCell::new(Rc::new([])) })
    }

    /// The sequence of the requests to come.
    pub(crate) fn learn(&self, prompt: &[u32], answer: &[u32]) {
        self.sequence.replace(prompt.iter().chain(answer).copied().collect());
    }

    /// A runner that drafts with this.
    pub(crate) fn runner(self: &Rc<Self>, model: &Rc<dyn Model>, depth: usize) -> Runner {
        Runner::new(model.clone()).with_drafter(self.clone(), Some(DraftPolicy::Constant(depth)))
    }
}

impl Drafter for Knows {
    fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    fn open(&self, at: usize) -> Result<Box<dyn DraftSession>, DraftError> {
        Ok(Box::new(Knowing {
            sequence: self.sequence.borrow().clone(),
            pattern: self.pattern,
            at,
            next: at,
        }))
    }
}

struct Knowing {
    sequence: Rc<[u32]>,
    pattern: Pattern,
    at: usize,
    next: usize,
}

impl DraftSession for Knowing {
    fn propose(&mut self, _: &mut DraftCx<'_>, _: u32, out: &mut dyn DraftSink) -> Result<(), DraftError> {
        if self.next == self.at {
            return Ok(());
        }
        let wrong = |slot: usize| match self.pattern {
            Pattern::Wrong => true,
            Pattern::Mix => slot % 3 == 2,
            _ => false,
        };
        // The current token stands at slot `next`.
        let slots = (self.next + 1..).take(out.room());
        let offered: Vec<u32> = slots
            .map_while(|slot| self.sequence.get(slot).map(|&id| (id + u32::from(wrong(slot))) % 64))
            .collect();
        if offered.is_empty() { Ok(()) } else { out.known(&offered) }
    }

    fn committed(&mut self, _: &mut DraftCx<'_>, run: CommittedRun<'_>) -> Result<(), DraftError> {
        if run.slot != self.next {
            return Err(DraftError::Gap { expected: self.next, got: run.slot });
        }
        self.next += run.ids.len();
        Ok(())
    }
}
