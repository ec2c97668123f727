//! The controller that measures: the source and depth with the most expected tokens per millisecond.

use std::{cell::RefCell, rc::Rc};

use super::{
    Choice, Controller, Estimates, Outcome, Seat, Situation, Source,
    acceptance::Chance,
    cost::{Cell, Cost, freshness},
    estimates::Bucket,
};

/// Another choice must look better by this share before it is taken: estimates within a percent are a
/// tie, and every change costs a refill of the pipeline.
const HYSTERESIS: f64 = 0.01;
/// Rounds at the initial depth on a model that was never measured. The first pays for the start.
const FIRST_DRAFTED: usize = 2;
/// Plain rounds measured right after them: enough for the report, and cheap even where drafting pays.
const FIRST_PLAIN: f64 = 3.0;
/// Rounds of a probe: the first after a change is not a measurement.
const PROBE: usize = 2;
/// What a change of source costs about, in plain rounds: the token under way goes out before a draft.
const SWITCH: f64 = 0.3;
/// A choice that was not measured for so many rounds is worth a probe however poor it looked.
const STALE: u64 = 256;
/// What such a probe is assumed to win.
const STALE_GAIN: f64 = 0.05;
/// A source without any measurement is assumed to cost this much more than plain decoding.
const UNKNOWN_COST: f64 = 1.3;
/// Tokens that a tail is assumed to add before it was tried.
const PRIOR_TAIL: f64 = 0.5;
/// Rounds that the tail's average looks back on.
const TAIL_MEMORY: f64 = 32.0;

/// One possible choice with what it promises.
#[derive(Debug, Clone, Copy)]
struct Arm {
    choice: Choice,
    tokens: f64,
    cost: f64,
    /// Tokens per millisecond, at best.
    hope: f64,
    /// The round of its last measurement.
    at: u64,
    sporadic: bool,
}

impl Arm {
    fn rate(&self) -> f64 {
        self.tokens / self.cost
    }
}

/// Rounds that are decided already.
#[derive(Debug, Clone, Copy)]
struct Script {
    choice: Choice,
    left: usize,
    /// Tokens per millisecond of the best choice when it began; none when the rounds are not a probe.
    instead: Option<f64>,
}

/// The throughput policy of one request; what it learns belongs to the model.
pub struct Throughput {
    sources: Vec<Source>,
    estimates: Rc<RefCell<Estimates>>,
    initial: usize,
    max: usize,
    /// This request's own copy, when the shared one must stay as it is.
    frozen: Option<Rc<RefCell<Estimates>>>,
    script: Option<Script>,
    /// The choice that is being carried out, its bucket and seat.
    now: (Choice, Bucket, bool),
    before: Option<Choice>,
    /// The last choice that was no probe.
    settled: Choice,
    probing_ms: f64,
}

impl Throughput {
    /// A controller over `sources` that starts at `initial` and never exceeds `max`.
    pub fn new(
        sources: Vec<Source>,
        estimates: Rc<RefCell<Estimates>>,
        initial: usize,
        max: usize,
        frozen: bool,
    ) -> Self {
        let own = frozen.then(|| Rc::new(RefCell::new(estimates.borrow().clone())));
        Self {
            sources,
            estimates: own.clone().unwrap_or(estimates),
            initial: initial.clamp(1, max.max(1)),
            max,
            frozen: own,
            script: None,
            now: (Choice::PLAIN, Bucket::default(), false),
            before: None,
            settled: Choice::PLAIN,
            probing_ms: 0.0,
        }
    }

    /// Plain decoding first, then every source at every depth that may be tried now.
    fn arms(&self, situation: &Situation, bucket: Bucket) -> Vec<Arm> {
        let estimates = self.estimates.borrow();
        let plain = estimates.plain_cell(bucket);
        let mut arms = vec![plain_arm(&plain)];
        for (index, (source, seat)) in self.sources.iter().zip(&situation.seats).enumerate() {
            let most = seat.cap.min(situation.room).min(self.max).min(source.max_depth);
            if most > 0 {
                self.source_arms(&estimates, &plain, (index, *seat, most), bucket, &mut arms);
            }
        }
        arms
    }

    fn source_arms(
        &self,
        estimates: &Estimates,
        plain: &Cell,
        (index, seat, most): (usize, Seat, usize),
        bucket: Bucket,
        arms: &mut Vec<Arm>,
    ) {
        let source = &self.sources[index];
        let curve = estimates.curve(&source.name, bucket);
        let frontier = curve.frontier();
        let reach = if frontier == 0 { self.initial } else { frontier + 1 };
        let depths = most.min(reach);
        let mut costs = curve.predict(plain, depths, estimates.round);
        if costs.is_empty() {
            costs = vec![Cost { mean: UNKNOWN_COST * plain.ms, low: plain.ms }; depths];
        }
        let known = estimates.sources.get(&source.name);
        let head = source.lengthens.and_then(|head| estimates.sources.get(&self.sources[head].name));
        let none = Default::default();
        let acceptance = head.or(known).map_or(&none, |known| &known.acceptance);
        let tail = match source.lengthens {
            Some(_) => known.map(|known| known.tail).filter(|tail| tail.1 > 0.0).map_or(PRIOR_TAIL, |t| t.0),
            None => 0.0,
        };
        let mut tokens = (1.0, 1.0);
        let mut reached = (1.0, 1.0);
        let chances = acceptance.chances(depths, estimates.round);
        for (depth, (cost, Chance { mean, high })) in (1..).zip(costs.iter().zip(chances)) {
            reached = (reached.0 * mean, reached.1 * high);
            tokens = (tokens.0 + reached.0, tokens.1 + reached.1);
            arms.push(Arm {
                choice: Choice { source: Some(index), depth },
                tokens: tokens.0 + tail * reached.0,
                cost: cost.mean,
                hope: (tokens.1 + tail * reached.1) / cost.low,
                at: curve.cells.get(depth - 1).map_or(0, |cell| cell.at),
                sporadic: seat.sporadic,
            });
        }
    }

    /// Rounds that a model needs before anything can be compared.
    fn first_rounds(&self, arms: &[Arm], bucket: Bucket) -> Option<Script> {
        let estimates = self.estimates.borrow();
        let first = arms.iter().skip(1).filter(|arm| !arm.sporadic);
        let deepest = first.filter(|arm| arm.choice.depth <= self.initial).next_back();
        if let Some(arm) = deepest.filter(|_| estimates.untouched()) {
            let first = arm.choice.source;
            let same = arms.iter().filter(|a| a.choice.source == first && a.choice.depth <= self.initial);
            let choice = same.last().map_or(arm.choice, |arm| arm.choice);
            return Some(Script { choice, left: FIRST_DRAFTED, instead: None });
        }
        let missing = FIRST_PLAIN - estimates.plain_rounds;
        let known = missing <= 0.0 && estimates.plain_cell(bucket).known();
        // The first plain round fills the pipeline.
        let left = missing.max(1.0) as usize + usize::from(self.before != Some(Choice::PLAIN));
        (!known).then_some(Script { choice: Choice::PLAIN, left, instead: None })
    }

    /// The best known choice; the present one is kept unless another is clearly better.
    fn best<'a>(&self, arms: &'a [Arm]) -> &'a Arm {
        let worth = |arm: &Arm| match arm.choice == self.settled {
            true => arm.rate() * (1.0 + HYSTERESIS),
            false => arm.rate(),
        };
        let better = |best: &'a Arm, arm: &'a Arm| if worth(arm) > worth(best) { arm } else { best };
        arms.iter().skip(1).fold(&arms[0], better)
    }

    /// A choice that may turn out better, when its price can be paid.
    fn probe(&self, arms: &[Arm], best: &Arm) -> Option<Script> {
        let estimates = self.estimates.borrow();
        let (ledger, now, plain) = (&estimates.ledger, estimates.round, arms[0].cost);
        if !ledger.due(now) {
            return None;
        }
        let rate = best.rate();
        let mut found: Option<(f64, &Arm)> = None;
        for arm in arms.iter().filter(|arm| arm.choice != best.choice) {
            let hope = arm.hope / rate - 1.0;
            let stale = (arm.choice.source != best.choice.source && now >= arm.at + STALE)
                .then_some(STALE_GAIN * (1.0 - freshness(now - arm.at)));
            let gain = hope.max(stale.unwrap_or(0.0));
            let switch = if arm.choice.source == best.choice.source { 0.0 } else { SWITCH * plain };
            let price = PROBE as f64 * (arm.cost - arm.tokens / rate).max(0.0) + switch;
            let score = gain / (price + 0.1 * plain);
            if gain > HYSTERESIS && price <= ledger.credit_ms && found.is_none_or(|(top, _)| score > top) {
                found = Some((score, arm));
            }
        }
        let (_, arm) = found?;
        let left = if arm.sporadic { 1 } else { PROBE };
        Some(Script { choice: arm.choice, left, instead: Some(rate) })
    }

    fn decide(&mut self, situation: &Situation, bucket: Bucket) -> Choice {
        let arms = self.arms(situation, bucket);
        let legal = |choice: Choice| arms.iter().any(|arm| arm.choice == choice);
        if let Some(script) = self.script.filter(|script| script.left > 0 && legal(script.choice)) {
            return script.choice;
        }
        self.end_script();
        if self.frozen.is_none() {
            self.script = self.first_rounds(&arms, bucket);
        }
        if let Some(script) = self.script {
            return script.choice;
        }
        let best = self.best(&arms);
        if best.choice != self.settled {
            self.settled = best.choice;
            self.estimates.borrow_mut().ledger.pause = 4;
        }
        if self.frozen.is_none() {
            self.script = self.probe(&arms, best);
        }
        self.script.map_or(best.choice, |script| script.choice)
    }

    fn end_script(&mut self) {
        if let Some(script) = self.script.take().filter(|script| script.instead.is_some()) {
            let _ = script;
            let mut estimates = self.estimates.borrow_mut();
            let now = estimates.round;
            estimates.ledger.close(now, false);
        }
    }

    fn learn(&mut self, outcome: &Outcome) {
        let (choice, bucket, sporadic) = self.now;
        let steady = self.before == Some(choice);
        let mut estimates = self.estimates.borrow_mut();
        estimates.round += 1;
        let now = estimates.round;
        let ms = outcome.nanos.map(|nanos| nanos as f64 / 1e6);
        let ms = ms.filter(|_| self.frozen.is_none());
        if let Some(index) = choice.source {
            let source = &self.sources[index];
            let head = source.lengthens.map_or(source, |head| &self.sources[head]);
            // A source that offered less than it was asked for would not have been kept further either.
            let short = outcome.drafted < choice.depth && outcome.accepted == outcome.drafted;
            let rejected = outcome.rejected || short && outcome.tokens > outcome.accepted;
            let better = estimates.source(&head.name).acceptance.learn(outcome.accepted, rejected, now);
            if source.lengthens.is_some() && outcome.accepted == choice.depth {
                let tail = &mut estimates.source(&source.name).tail;
                tail.1 = (tail.1 + 1.0).min(TAIL_MEMORY);
                tail.0 += (outcome.tail as f64 - tail.0) / tail.1;
            }
            if better {
                let plain = estimates.plain_cell(bucket).ms;
                estimates.ledger.alert(plain);
            }
            if let Some(ms) = ms.filter(|_| steady || sporadic) {
                estimates.learn_cost(&source.name, bucket, choice.depth, ms);
            }
        } else if let Some(ms) = ms.filter(|_| steady) {
            estimates.learn_plain(bucket, ms);
        }
        if let Some(ms) = ms {
            let plain = estimates.plain_cell(bucket).ms;
            estimates.ledger.earn(ms, plain);
            if let Some(rate) = self.script.and_then(|script| script.instead) {
                let excess = ms - outcome.tokens as f64 / rate;
                estimates.ledger.spend(excess);
                self.probing_ms += excess.max(0.0);
            }
        }
    }
}

fn plain_arm(plain: &Cell) -> Arm {
    // Before its first measurement plain decoding costs one unit of whatever time it is.
    let ms = if plain.known() { plain.ms } else { 1.0 };
    let hope = 1.0 / (ms * 0.9);
    Arm { choice: Choice::PLAIN, tokens: 1.0, cost: ms, hope, at: plain.at, sporadic: false }
}

impl Controller for Throughput {
    fn choose(&mut self, situation: &Situation) -> Choice {
        let bucket = Bucket::of(situation.context, situation.constrained);
        let choice = self.decide(situation, bucket);
        let sporadic = choice.source.and_then(|s| situation.seats.get(s)).is_some_and(|seat| seat.sporadic);
        self.now = (choice, bucket, sporadic);
        choice
    }

    fn observe(&mut self, outcome: &Outcome) {
        if outcome.drained {
            self.before = None;
            return;
        }
        self.learn(outcome);
        self.before = Some(self.now.0);
        if let Some(script) = self.script.as_mut() {
            script.left = script.left.saturating_sub(1);
        }
    }

    fn probing_ms(&self) -> f64 {
        self.probing_ms
    }
}
