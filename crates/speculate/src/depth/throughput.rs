//! The controller that measures: the source and depth with the most expected tokens per millisecond.

use std::{cell::RefCell, rc::Rc};

use super::{
    Choice, Controller, Estimates, Outcome, Situation, Source,
    arms::{Arm, Asked},
    cost::freshness,
    estimates::{Bucket, REPORTED},
    learner::Learner,
};

/// Another choice must look better by this share before it is taken: estimates within half a percent are a
/// tie, and every change costs a refill of the pipeline.
const HYSTERESIS: f64 = 0.005;
/// Drafting must look better than plain decoding by this share: where both are equal, plain is the safe one.
const CAUTION: f64 = 0.01;
/// Hopes smaller than this are not worth a probe.
const LEAST_GAIN: f64 = 0.005;
/// Rounds at the initial depth on a model that was never measured. The first pays for the start.
const FIRST_DRAFTED: usize = 2;
/// Rounds of a probe: the first after a change is not a measurement.
const PROBE: f64 = 2.0;
/// The most rounds of a probe. One that costs little beside the change of source it needs goes on until it has
/// cost as much as the change.
const LONG_PROBE: f64 = 16.0;
/// What a change of source costs about, in plain rounds: the token under way goes out before a draft.
const SWITCH: f64 = 0.3;
/// The smallest price per round that the length of a probe is computed with, in plain rounds.
const LEAST_PRICE: f64 = 0.01;
/// A choice that was not measured for so many rounds, as many as halve its certainty, is worth a probe however
/// poor it looked.
const STALE: u64 = 256;
/// What such a probe is assumed to win: texts and machines change by more, but seldom.
const STALE_GAIN: f64 = 0.05;
/// A round longer than so many expected ones is charged no further.
const HICCUP: f64 = 2.0;
/// What any probe costs beside its price, in plain rounds: cheap ones must not crowd out promising ones.
const EFFORT: f64 = 0.3;

/// Rounds that are decided already.
#[derive(Debug, Clone, Copy)]
struct Script {
    choice: Choice,
    left: usize,
    /// Tokens per millisecond of the best choice when it began; none when the rounds are not a probe.
    instead: Option<f64>,
    /// What a round of it promises.
    tokens: f64,
    cost: f64,
}

impl Script {
    /// Rounds that are no probe.
    fn fixed(choice: Choice, left: usize) -> Self {
        Self { choice, left, instead: None, tokens: 1.0, cost: 0.0 }
    }

    fn probe(arm: &Arm, left: usize, instead: f64) -> Self {
        Self { choice: arm.choice, left, instead: Some(instead), tokens: arm.tokens, cost: arm.cost }
    }
}

/// The throughput policy of one request; what it learns belongs to the model.
pub struct Throughput {
    learner: Learner,
    initial: usize,
    max: usize,
    script: Option<Script>,
    /// The last choice that was no probe.
    settled: Choice,
    probing_ms: f64,
}

impl Throughput {
    /// A controller over `sources` that starts at `initial` and never exceeds `max`. When `frozen`, it takes
    /// the estimates as they are, leaves them so, and looks at no time.
    pub fn new(
        sources: Vec<Source>,
        estimates: Rc<RefCell<Estimates>>,
        initial: usize,
        max: usize,
        frozen: bool,
    ) -> Self {
        let learner = match frozen {
            true => Learner::frozen(sources, &estimates),
            false => Learner::new(sources, estimates),
        };
        let (initial, settled) = (initial.clamp(1, max.max(1)), Choice::PLAIN);
        Self { learner, initial, max, script: None, settled, probing_ms: 0.0 }
    }

    /// Plain decoding first, then every source at every depth that may be tried now.
    fn arms(&self, situation: &Situation, bucket: Bucket) -> Vec<Arm> {
        let (estimates, sources) = (self.learner.estimates.borrow(), &self.learner.sources);
        let mut arms = vec![Arm::plain(&estimates.plain_cell(bucket))];
        for (index, (source, seat)) in sources.iter().zip(&situation.seats).enumerate() {
            let most = seat.cap.min(situation.room).min(self.max).min(source.max_depth);
            if most > 0 {
                let asked = Asked { index, sources, seat: *seat, most, initial: self.initial };
                arms.extend(asked.arms(&estimates, bucket));
            }
        }
        arms
    }

    /// Rounds that a model needs before anything can be compared.
    fn first_rounds(&self, arms: &[Arm], bucket: Bucket) -> Option<Script> {
        let estimates = self.learner.estimates.borrow();
        if estimates.untouched() {
            // The first source at its initial depth; one that seldom has anything to offer has to wait.
            let whole = |arm: &&Arm| {
                !arm.sporadic && arm.choice.source.is_some_and(|source| self.learner.is_whole(source))
            };
            let first = arms.iter().find(whole).map(|arm| arm.choice.source);
            let deepest = arms.iter().rfind(|arm| Some(arm.choice.source) == first);
            if let Some(arm) = deepest {
                return Some(Script::fixed(arm.choice, FIRST_DRAFTED));
            }
        }
        // Right after the first drafts: cheap even where drafting pays.
        let missing = REPORTED - estimates.plain_rounds;
        let known = missing <= 0.0 && estimates.plain_cell(bucket).known();
        // The first plain round fills the pipeline.
        let left = missing.max(1.0) as usize + usize::from(!self.learner.follows(Choice::PLAIN));
        (!known).then_some(Script::fixed(Choice::PLAIN, left))
    }

    /// The best known choice; the present one is kept unless another is clearly better.
    fn best<'a>(&self, arms: &'a [Arm]) -> &'a Arm {
        let worth = |arm: &Arm| {
            let kept = if arm.choice == self.settled { HYSTERESIS } else { 0.0 };
            let safe = if arm.choice == Choice::PLAIN { CAUTION } else { 0.0 };
            arm.rate() * (1.0 + kept + safe)
        };
        let better = |best: &'a Arm, arm: &'a Arm| if worth(arm) > worth(best) { arm } else { best };
        arms.iter().skip(1).fold(&arms[0], better)
    }

    /// A choice that may turn out better, when its price can be paid.
    fn probe(&self, arms: &[Arm], best: &Arm) -> Option<Script> {
        let estimates = self.learner.estimates.borrow();
        let (ledger, now, plain) = (&estimates.ledger, estimates.round, arms[0].cost);
        if !ledger.due(now) {
            return None;
        }
        let mut found: Option<(Candidate, &Arm)> = None;
        for arm in arms.iter().filter(|arm| arm.choice != best.choice) {
            let candidate = Candidate::of(arm, best, plain, now);
            let due = ledger.due_for(self.learner.name(arm.choice), arm.choice.depth, now);
            let better = found.as_ref().is_none_or(|(top, _)| candidate.score > top.score);
            if due && candidate.gain > LEAST_GAIN && ledger.ever(candidate.price, plain) && better {
                found = Some((candidate, arm));
            }
        }
        // One that cannot be paid yet is saved for: cheaper ones that promise less do not come first.
        let (candidate, arm) = found.filter(|(candidate, _)| candidate.price <= ledger.credit_ms)?;
        let rounds = if arm.sporadic { 1 } else { candidate.rounds as usize };
        Some(Script::probe(arm, rounds, best.rate()))
    }

    fn decide(&mut self, situation: &Situation) -> Choice {
        let bucket = Bucket::of(situation.context, situation.constrained);
        let arms = self.arms(situation, bucket);
        let legal = |choice: Choice| arms.iter().any(|arm| arm.choice == choice);
        if let Some(script) = self.script.filter(|script| script.left > 0 && legal(script.choice)) {
            return script.choice;
        }
        self.script = None;
        if self.learner.is_frozen() {
            self.settled = self.unmeasured(&arms, bucket).unwrap_or_else(|| self.best(&arms).choice);
            return self.settled;
        }
        self.script = self.first_rounds(&arms, bucket);
        match self.script {
            Some(script) => script.choice,
            None => self.settle(&arms),
        }
    }

    /// Without plain rounds nothing can be compared: the first source at its initial depth.
    fn unmeasured(&self, arms: &[Arm], bucket: Bucket) -> Option<Choice> {
        if self.learner.estimates.borrow().plain_cell(bucket).known() {
            return None;
        }
        let first = arms.iter().find_map(|arm| arm.choice.source)?;
        let own = arms.iter().filter(|arm| arm.choice.source == Some(first));
        own.map(|arm| arm.choice).take_while(|choice| choice.depth <= self.initial).last()
    }

    /// Takes the best choice, or tries another.
    fn settle(&mut self, arms: &[Arm]) -> Choice {
        let best = self.best(arms);
        if best.choice != self.settled {
            let before = arms.iter().find(|arm| arm.choice == self.settled).unwrap_or(&arms[0]);
            self.settled = best.choice;
            let name = self.learner.name(best.choice);
            self.learner.estimates.borrow_mut().ledger.proved(name, best.choice.depth);
            if best.at == 0 {
                // What was never measured is, before anything is decided again.
                self.script = Some(Script::probe(best, PROBE as usize, before.rate()));
                return best.choice;
            }
        }
        self.script = self.probe(arms, best);
        let Some(Script { choice, .. }) = self.script else {
            return best.choice;
        };
        let mut estimates = self.learner.estimates.borrow_mut();
        let now = estimates.round;
        if choice.source != self.settled.source {
            // The way back is paid in a round that is no probe any more.
            let switch = SWITCH * arms[0].cost;
            estimates.ledger.spend(switch);
            self.probing_ms += switch;
        }
        estimates.ledger.open(self.learner.name(choice), choice.depth, now);
        choice
    }
}

/// A possible probe.
struct Candidate {
    gain: f64,
    /// What it costs beyond the best choice, in milliseconds.
    price: f64,
    rounds: f64,
    score: f64,
}

impl Candidate {
    fn of(arm: &Arm, best: &Arm, plain: f64, now: u64) -> Self {
        let rate = best.rate();
        let other = arm.choice.source != best.choice.source;
        // A long shot counts for as little as what it would do to the rate if hope were in vain.
        let hope = (arm.hope(best) / rate - 1.0) * (arm.rate() / rate).min(1.0);
        let age = now.saturating_sub(arm.at);
        let stale = if other && age >= STALE { STALE_GAIN * (1.0 - freshness(age)) } else { 0.0 };
        let gain = hope.max(stale);
        let switch = if other { 2.0 * SWITCH * plain } else { 0.0 };
        let excess = (arm.cost - arm.tokens / rate).max(0.0);
        let rounds = (switch / excess.max(LEAST_PRICE * plain)).clamp(PROBE, LONG_PROBE).floor();
        let price = rounds * excess + switch;
        Self { gain, price, rounds, score: gain / (price + EFFORT * plain) }
    }
}

impl Controller for Throughput {
    fn choose(&mut self, situation: &Situation) -> Choice {
        let choice = self.decide(situation);
        self.learner.begin(choice, situation);
        choice
    }

    fn observe(&mut self, outcome: &Outcome) {
        let again = self.learner.observe(outcome);
        let Some(script) = self.script.as_mut().filter(|_| !outcome.beside) else {
            return;
        };
        script.left = script.left.saturating_sub(1) + usize::from(again);
        let Some((rate, ms)) = script.instead.zip(self.learner.millis(outcome)) else {
            return;
        };
        // The promise and not the luck of one round, and no hiccup of the system.
        let excess = ms.min(HICCUP * script.cost) - script.tokens / rate;
        self.learner.estimates.borrow_mut().ledger.spend(excess);
        self.probing_ms += excess;
    }

    fn probing_ms(&self) -> f64 {
        self.probing_ms.max(0.0)
    }
}
