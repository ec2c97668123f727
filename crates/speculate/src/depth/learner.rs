//! Takes rounds into the estimates: what every policy does alike.

use std::{cell::RefCell, rc::Rc};

use super::{
    Choice, Estimates, Outcome, Situation, Source,
    cost::Cell,
    estimates::{Bucket, REPORTED},
};

/// A first measurement this far above what neighbours suggest is taken twice: it may have met a hiccup, and
/// a depth that seems dear is not tried again soon.
const SURPRISE: f64 = 1.25;
/// Shorter or longer rounds than a microsecond and an hour are no measurements; costs are divided by.
const LEAST_NANOS: u64 = 1_000;
const MOST_NANOS: u64 = 3_600_000_000_000;
/// Rounds that the average length of a kept tail looks back on.
const TAIL_MEMORY: f64 = 32.0;

/// Carries one request's rounds into the estimates of its model.
pub(crate) struct Learner {
    pub(crate) sources: Vec<Source>,
    pub(crate) estimates: Rc<RefCell<Estimates>>,
    /// Costs stay as they are.
    frozen: bool,
    choice: Choice,
    bucket: Bucket,
    sporadic: bool,
    /// The choice of the round before; none when that round was no measure of anything.
    before: Option<Choice>,
}

impl Learner {
    pub(crate) fn new(sources: Vec<Source>, estimates: Rc<RefCell<Estimates>>) -> Self {
        estimates.borrow_mut().another_text();
        let (choice, bucket) = (Choice::PLAIN, Bucket::default());
        Self { sources, estimates, frozen: false, choice, bucket, sporadic: false, before: None }
    }

    /// Learns in a copy of the estimates, and of that only what is accepted: the loaded model's own stay as
    /// they are.
    pub(crate) fn frozen(sources: Vec<Source>, estimates: &RefCell<Estimates>) -> Self {
        let own = Rc::new(RefCell::new(estimates.borrow().clone()));
        Self { frozen: true, ..Self::new(sources, own) }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Whether a source proposes by itself, and is not another one's with a tail.
    pub(crate) fn is_whole(&self, source: usize) -> bool {
        self.sources.get(source).is_some_and(|source| source.lengthens.is_none())
    }

    /// The name under which a choice is accounted; plain decoding has none.
    pub(crate) fn name(&self, choice: Choice) -> &str {
        choice.source.map_or("", |source| &self.sources[source].name)
    }

    /// Whether the round before did the same as `choice`.
    pub(crate) fn follows(&self, choice: Choice) -> bool {
        self.before == Some(choice)
    }

    /// The round ahead is decided.
    pub(crate) fn begin(&mut self, choice: Choice, situation: &Situation) {
        self.choice = choice;
        self.bucket = Bucket::of(situation.context, situation.constrained);
        self.sporadic = choice.source.and_then(|s| situation.seats.get(s)).is_some_and(|seat| seat.sporadic);
    }

    /// The round is over. Returns whether its depth was measured for the first time and should be once more.
    pub(crate) fn observe(&mut self, outcome: &Outcome) -> bool {
        if outcome.beside {
            self.before = None;
            return false;
        }
        let mut estimates = self.estimates.borrow_mut();
        estimates.round = estimates.round.saturating_add(1);
        drop(estimates);
        self.learn_acceptance(outcome);
        let again = self.millis(outcome).is_some_and(|ms| self.learn_cost(ms));
        self.before = Some(self.choice);
        again
    }

    /// The round's time, when it counts.
    pub(crate) fn millis(&self, outcome: &Outcome) -> Option<f64> {
        outcome.nanos.filter(|_| !self.frozen).map(|nanos| nanos.clamp(LEAST_NANOS, MOST_NANOS) as f64 / 1e6)
    }

    fn learn_acceptance(&mut self, outcome: &Outcome) {
        let Some(index) = self.choice.source else { return };
        let (source, depth) = (&self.sources[index], self.choice.depth);
        let head = source.lengthens.map_or(source, |head| &self.sources[head]);
        // A source that offered less than it was asked for would not have been kept further either, unless
        // the answer has ended.
        let short = outcome.drafted < depth && outcome.accepted == outcome.drafted;
        let rejected = outcome.rejected || short && outcome.tokens > outcome.accepted;
        let mut estimates = self.estimates.borrow_mut();
        let now = estimates.round;
        let kept = outcome.accepted.min(depth);
        let changed = estimates.source(&head.name).acceptance.learn(kept, rejected && kept < depth, now);
        if source.lengthens.is_some() && outcome.accepted == depth {
            let tail = &mut estimates.source(&source.name).tail;
            tail.1 = (tail.1 + 1.0).min(TAIL_MEMORY);
            tail.0 += (outcome.tail as f64 - tail.0) / tail.1;
        }
        if changed {
            let plain = estimates.plain_cell(self.bucket).ms;
            estimates.ledger.changed(plain);
        }
    }

    fn learn_cost(&mut self, ms: f64) -> bool {
        let steady = self.follows(self.choice);
        let mut estimates = self.estimates.borrow_mut();
        let mut again = false;
        match self.choice.source {
            Some(index) if steady || self.sporadic => {
                let (name, depth) = (&self.sources[index].name, self.choice.depth);
                let curve = estimates.curve(name, self.bucket);
                let expected = curve.predict(&estimates.plain_cell(self.bucket), depth, estimates.round);
                let likely = expected.last().is_some_and(|cost| ms < SURPRISE * cost.mean);
                again = !likely && !curve.cells.get(depth - 1).is_some_and(Cell::known);
                estimates.learn_cost(name, self.bucket, depth, ms);
            }
            None if steady => {
                estimates.learn_plain(self.bucket, ms);
                if estimates.plain_rounds == REPORTED {
                    let plain = estimates.plain_cell(self.bucket).ms;
                    estimates.ledger.known(plain);
                }
            }
            _ => {}
        }
        let plain = estimates.plain_cell(self.bucket).ms;
        estimates.ledger.earn(ms, plain);
        again
    }
}
