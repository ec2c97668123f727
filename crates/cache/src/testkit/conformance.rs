//! What a run is, what it reports, and the ways to start one.

use std::fmt;

use crate::{
    Layer, LayerCache, SetId,
    testkit::{Complaint, Folding, RowForm, Rows, Set, States, Subject, oracle::Twin},
};

/// What to run: always the same sequences for the same plan.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Start of the random numbers.
    pub seed: u64,
    /// Sequences.
    pub cases: u64,
    /// Calls per sequence.
    pub calls: usize,
    /// The longest block appended at once; several windows, where there is one.
    pub longest: usize,
    /// The cache is emptied once it holds more tokens than this.
    pub length: usize,
}

impl Plan {
    /// `cases` sequences of 24 calls, with blocks of up to 24 tokens and lengths up to 80.
    pub fn new(seed: u64, cases: u64) -> Self {
        Self { seed, cases, calls: 24, longest: 24, length: 80 }
    }
}

/// What a run without a violation did, to show that it did something.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Calls made.
    pub calls: usize,
    /// Comparisons of what is held, or was seen, with the oracle.
    pub looks: usize,
    /// Transactions that took rows back.
    pub rejections: usize,
    /// Snapshots restored.
    pub restores: usize,
    /// Calls that were rightly refused.
    pub refusals: usize,
}

/// A sequence in which a cache differed from the oracle.
#[derive(Debug)]
pub struct Violation {
    /// The seed of the plan.
    pub seed: u64,
    /// The number of the sequence.
    pub case: u64,
    /// What was wrong.
    pub what: Complaint,
    /// The calls up to the one that showed it.
    pub calls: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, case, what, calls } = self;
        write!(f, "sequence {case} of seed {seed} after {}: {what}", calls.join(", "))
    }
}

impl std::error::Error for Violation {}

/// Checks a cache of keys and values whose queries see `window` keys, or all.
pub fn check_rows<C: LayerCache>(
    plan: &Plan,
    form: RowForm,
    window: Option<usize>,
    make: impl Fn() -> C,
) -> Result<Report, Violation> {
    check(plan, || Rows::new(make(), form, window))
}

/// Checks a cache of folded states.
pub fn check_states<C: Folding>(plan: &Plan, make: impl Fn() -> C) -> Result<Report, Violation> {
    check(plan, || States(make()))
}

/// Checks layers of this crate's kinds as a set. Attention layers are fed rows of `form`.
pub fn check_layers(plan: &Plan, form: RowForm, make: impl Fn() -> Vec<Layer>) -> Result<Report, Violation> {
    let id = SetId::fresh();
    check(plan, || Set::new(id, make(), form))
}

/// Runs the sequences of `plan`, each on a cache that `make` makes, and stops at the first difference.
pub fn check<S: Subject>(plan: &Plan, make: impl Fn() -> S) -> Result<Report, Violation> {
    let mut report = Report::default();
    for case in 0..plan.cases {
        let mut twin = Twin::new(plan, case, &make, &mut report);
        let ran = (0..plan.calls).try_for_each(|_| twin.call()).and_then(|()| twin.close());
        if let Err(what) = ran {
            return Err(Violation { seed: plan.seed, case, what, calls: twin.into_log() });
        }
    }
    Ok(report)
}
