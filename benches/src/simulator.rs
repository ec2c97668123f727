//! Machines that exist only as numbers, to find out what a depth controller costs: no model, no arrays.
//!
//! A text is a row of slots; whether a drafter guesses slot s is decided once per text, so that every policy
//! decodes the same text. Measurements are noisy, as on a real machine, but time is counted without the
//! noise: a lucky measurement makes no policy better.

use std::{cell::RefCell, rc::Rc};

use foretoken_speculate::{
    Choice, Controller, Estimates, Outcome, Recorder, Seat, Situation, Source, Throughput, Trace,
};

/// The deepest fixed depth that controllers are compared with.
pub const DEEPEST: usize = 16;
/// Depth of the first rounds, as models without an opinion of their own have it.
const INITIAL: usize = 4;
/// A plain step, in milliseconds.
const STEP_MS: f64 = 20.0;
/// Leaving or entering the plain pipeline, in steps.
const REFILL: f64 = 0.3;
/// Any other change of depth, in steps.
const RESHAPE: f64 = 0.05;
/// Spread of a measurement, and how often the system hiccups.
const NOISE: f64 = 0.08;
const HICCUPS: f64 = 0.01;

/// How the cost of a forward grows with its rows, relative to one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verify {
    /// Rows are free.
    Flat,
    /// Each row costs an eighth of a step.
    Linear,
    /// More than four rows take another, slower kernel.
    StepAtFour,
    /// A second row doubles the cost.
    DoubleAtTwo,
}

impl Verify {
    /// Cost of a forward of so many rows, in steps.
    pub fn cost(self, rows: usize) -> f64 {
        match self {
            Verify::Flat => 1.0,
            Verify::Linear => 1.0 + 0.125 * (rows - 1) as f64,
            Verify::StepAtFour if rows > 4 => 1.75,
            Verify::DoubleAtTwo if rows > 1 => 2.0,
            Verify::StepAtFour | Verify::DoubleAtTwo => 1.0,
        }
    }
}

/// A machine with its drafter and its text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// The target's forward.
    pub verify: Verify,
    /// Cost of one draft, in steps.
    pub draft: f64,
    /// The chance that the drafter guesses a slot.
    pub acceptance: f64,
}

impl Machine {
    /// Cost of a round of this depth, in steps.
    pub fn cost(&self, depth: usize) -> f64 {
        self.verify.cost(depth + 1) + self.draft * depth as f64
    }

    /// Expected tokens of a round of this depth.
    pub fn tokens(&self, depth: usize) -> f64 {
        (0..=depth).map(|kept| self.acceptance.powi(kept as i32)).sum()
    }

    /// The depth with the most tokens per step.
    pub fn best_depth(&self) -> usize {
        let rate = |depth: usize| self.tokens(depth) / self.cost(depth);
        (0..=DEEPEST).fold(0, |best, depth| if rate(depth) > rate(best) { depth } else { best })
    }

    /// A short name, such as `flat a0.80 c0.02`.
    pub fn name(&self) -> String {
        format!("{:?} a{:.2} c{:.2}", self.verify, self.acceptance, self.draft)
    }
}

/// Every stationary machine: four forwards, five qualities and three prices of drafts.
pub fn machines() -> Vec<Machine> {
    let mut all = Vec::new();
    for verify in [Verify::Flat, Verify::Linear, Verify::StepAtFour, Verify::DoubleAtTwo] {
        for acceptance in [0.0, 0.2, 0.5, 0.8, 0.95] {
            all.extend([0.02, 0.1, 0.5].map(|draft| Machine { verify, draft, acceptance }));
        }
    }
    all
}

/// Pairs of machines of which the second takes the first one's place in the middle of a run: other text,
/// dearer or cheaper drafts, another forward.
pub fn changes() -> Vec<(Machine, Machine)> {
    let mut all = Vec::new();
    for verify in [Verify::Flat, Verify::Linear, Verify::StepAtFour, Verify::DoubleAtTwo] {
        for draft in [0.02, 0.1, 0.5] {
            let with = |acceptance| Machine { verify, draft, acceptance };
            for (one, two) in [(0.0, 0.8), (0.8, 0.0), (0.2, 0.95), (0.95, 0.2), (0.5, 0.8), (0.8, 0.5)] {
                all.push((with(one), with(two)));
            }
        }
        for acceptance in [0.5, 0.8] {
            let with = |draft| Machine { verify, draft, acceptance };
            all.extend([(0.02, 0.5), (0.5, 0.02)].map(|(one, two)| (with(one), with(two))));
        }
    }
    for acceptance in [0.5, 0.8] {
        let with = |verify| Machine { verify, draft: 0.02, acceptance };
        all.push((with(Verify::Flat), with(Verify::DoubleAtTwo)));
        all.push((with(Verify::DoubleAtTwo), with(Verify::Flat)));
    }
    all
}

/// What a run of a controller came to.
#[derive(Debug, Clone)]
pub struct Played {
    /// Tokens produced.
    pub tokens: usize,
    /// Time, in steps.
    pub time: f64,
    /// Time of plain decoding for the same text.
    pub plain: f64,
    /// The best fixed depth for the same text, and its time.
    pub fixed: (usize, f64),
    /// Time with the best fixed depth of each phase.
    pub oracle: f64,
    /// Rounds at each depth.
    pub depths: Vec<usize>,
}

impl Played {
    /// How much longer it took than the best fixed depth, relative.
    pub fn regret(&self) -> f64 {
        self.time / self.fixed.1 - 1.0
    }

    /// How much longer it took than changing depths with every phase.
    pub fn oracle_regret(&self) -> f64 {
        self.time / self.oracle - 1.0
    }

    /// How much longer it took than plain decoding; less than nothing when it was faster.
    pub fn over_plain(&self) -> f64 {
        self.time / self.plain - 1.0
    }
}

/// A counter stream of random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0)
    }

    /// Close to normal: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    /// A measurement of something that takes `ms`.
    fn measured(&mut self, ms: f64) -> f64 {
        let hiccup = if self.uniform() < HICCUPS { 2.0 + 3.0 * self.uniform() } else { 1.0 };
        ms * hiccup * (NOISE * self.normal()).exp()
    }
}

fn hash(x: u64) -> f64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A text under one seed, and the machines that decode it, each from a slot on.
struct Text<'a> {
    seed: u64,
    phases: Vec<(usize, &'a Machine)>,
}

impl Text<'_> {
    fn machine(&self, slot: usize) -> &Machine {
        let found = self.phases.iter().rev().find(|(from, _)| slot >= *from);
        found.map_or(self.phases[0].1, |(_, machine)| machine)
    }

    fn guessed(&self, slot: usize) -> bool {
        let key =
            self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash(key) < self.machine(slot).acceptance
    }

    /// Drafts kept of a round whose current token is at `slot`.
    fn kept(&self, slot: usize, depth: usize) -> usize {
        (1..=depth).take_while(|ahead| self.guessed(slot + ahead)).count()
    }

    /// Time of a fixed depth over the slots `from..to`.
    fn fixed(&self, depth: usize, from: usize, to: usize) -> f64 {
        let (mut slot, mut time) = (from, 0.0);
        while slot < to {
            let tokens = 1 + self.kept(slot, depth);
            let share = (to - slot).min(tokens) as f64 / tokens as f64;
            time += share * self.machine(slot).cost(depth);
            slot += tokens;
        }
        time
    }
}

/// Lets the throughput policy decode `rounds` rounds on one machine after the other.
pub fn play(machines: &[Machine], rounds: usize, seed: u64) -> Played {
    let mut controller = Throughput::new(sources(), Rc::default(), INITIAL, DEEPEST, false);
    play_with(&mut controller, machines, rounds, seed)
}

/// Lets the throughput policy serve requests of `rounds` rounds, each a text of its own, on one machine after
/// the other.
pub fn play_requests(machines: &[Machine], rounds: usize, seed: u64) -> Played {
    let mut requests = Requests { estimates: Rc::default(), controller: None, round: 0, rounds };
    play_with(&mut requests, machines, machines.len() * rounds, seed)
}

/// A new controller for every request, over estimates that stay.
struct Requests {
    estimates: Rc<RefCell<Estimates>>,
    controller: Option<Throughput>,
    round: usize,
    rounds: usize,
}

impl Controller for Requests {
    fn choose(&mut self, situation: &Situation) -> Choice {
        if self.round.is_multiple_of(self.rounds) {
            self.controller = None;
        }
        self.round += 1;
        let begin = || Throughput::new(sources(), self.estimates.clone(), INITIAL, DEEPEST, false);
        self.controller.get_or_insert_with(begin).choose(situation)
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.controller.iter_mut().for_each(|controller| controller.observe(outcome));
    }
}

fn sources() -> Vec<Source> {
    vec![Source { name: "drafter".into(), max_depth: DEEPEST, lengthens: None }]
}

/// The same, with every decision on paper.
pub fn recorded(machines: &[Machine], rounds: usize, seed: u64) -> Trace {
    let trace = Trace { initial: INITIAL, max: DEEPEST, sources: sources(), ..Trace::default() };
    let trace = Rc::new(RefCell::new(trace));
    play_with(&mut Recorder::new(trace.clone(), Rc::default()), machines, rounds, seed);
    trace.take()
}

/// Lets a controller decode `rounds` rounds on one machine after the other.
pub fn play_with(controller: &mut dyn Controller, machines: &[Machine], rounds: usize, seed: u64) -> Played {
    let mut text = Text { seed, phases: vec![(0, &machines[0])] };
    let mut random = Random(seed ^ 0x5eed);
    let (mut slot, mut time, mut before) = (0, 0.0, Choice::PLAIN);
    let mut depths = vec![0; DEEPEST + 1];
    for round in 0..rounds {
        let phase = round * machines.len() / rounds;
        if phase == text.phases.len() {
            text.phases.push((slot, &machines[phase]));
        }
        let situation = Situation {
            context: 100 + slot % 400,
            room: DEEPEST,
            constrained: false,
            seats: vec![Seat { cap: DEEPEST, sporadic: false }],
        };
        let choice = controller.choose(&situation);
        let kept = text.kept(slot, choice.depth);
        let cost = text.machine(slot).cost(choice.depth) + change(before, choice);
        let nanos = random.measured(cost * STEP_MS) * 1e6;
        controller.observe(&Outcome {
            drafted: choice.depth,
            accepted: kept,
            rejected: kept < choice.depth,
            tokens: kept + 1,
            nanos: Some(nanos as u64),
            ..Outcome::default()
        });
        depths[choice.depth] += 1;
        (slot, time, before) = (slot + kept + 1, time + cost, choice);
    }
    compare(&text, slot, time, depths)
}

fn change(before: Choice, choice: Choice) -> f64 {
    match (before == choice, before.source == choice.source) {
        (true, _) => 0.0,
        (false, true) => RESHAPE,
        (false, false) => REFILL,
    }
}

fn compare(text: &Text<'_>, tokens: usize, time: f64, depths: Vec<usize>) -> Played {
    let fixed: Vec<f64> = (0..=DEEPEST).map(|depth| text.fixed(depth, 0, tokens)).collect();
    let best = (0..=DEEPEST).fold(0, |best, depth| if fixed[depth] < fixed[best] { depth } else { best });
    let ends = text.phases.iter().skip(1).map(|(from, _)| *from).chain([tokens]);
    let phase = |(from, to): (usize, usize)| {
        (0..=DEEPEST).map(|depth| text.fixed(depth, from, to)).fold(f64::INFINITY, f64::min)
    };
    let oracle = text.phases.iter().map(|(from, _)| *from).zip(ends).map(phase).sum();
    Played { tokens, time, plain: fixed[0], fixed: (best, fixed[best]), oracle, depths }
}

/// One machine, or a change of machines, over several texts.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The machines in order.
    pub name: String,
    /// The best fixed depth of each machine.
    pub best: Vec<usize>,
    /// Mean regret against the best fixed depth.
    pub regret: f64,
    /// The largest regret.
    pub worst: f64,
    /// Mean regret against changing depths with every phase.
    pub oracle: f64,
    /// Mean time over plain decoding.
    pub over_plain: f64,
}

/// Plays the machines in a row over texts with these seeds.
pub fn summary(machines: &[Machine], rounds: usize, seeds: std::ops::Range<u64>) -> Summary {
    let played: Vec<Played> = seeds.map(|seed| play(machines, rounds, seed)).collect();
    let mean = |of: fn(&Played) -> f64| played.iter().map(of).sum::<f64>() / played.len() as f64;
    let names: Vec<String> = machines.iter().map(Machine::name).collect();
    Summary {
        name: names.join(", then "),
        best: machines.iter().map(Machine::best_depth).collect(),
        regret: mean(Played::regret),
        worst: played.iter().map(Played::regret).fold(f64::NEG_INFINITY, f64::max),
        oracle: mean(Played::oracle_regret),
        over_plain: mean(Played::over_plain),
    }
}

/// Replays recorded rounds and counts the ones that the policy decides as it did then.
pub fn replayed(trace: &Trace) -> (usize, usize) {
    let same = trace.replay().iter().zip(&trace.rounds).filter(|(now, then)| **now == then.choice).count();
    (same, trace.rounds.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 2_000;
    const SEEDS: std::ops::Range<u64> = 100..104;
    /// What the policy may lose to the best fixed depth on a machine that stays as it is.
    const STATIONARY: f64 = 0.03;
    /// The same where the machine or the text changes half-way.
    const CHANGING: f64 = 0.08;
    /// What it may lose to plain decoding where no depth pays.
    const NEVER_SLOWER: f64 = 0.015;

    #[test]
    fn regret_is_small_on_every_machine() {
        for machine in machines() {
            let summary = summary(&[machine], ROUNDS, SEEDS);
            let limit = if machine.best_depth() == 0 { NEVER_SLOWER } else { STATIONARY };
            println!(
                "{:28} {:6.2} % at worst {:.2} %",
                summary.name,
                100.0 * summary.regret,
                100.0 * summary.worst
            );
            assert!(summary.regret < limit, "{summary:?}");
        }
    }

    #[test]
    fn regret_is_bounded_when_the_machine_or_the_text_changes() {
        for (one, two) in changes() {
            let summary = summary(&[one, two], ROUNDS, SEEDS);
            println!("{:60} {:6.2} %", summary.name, 100.0 * summary.regret);
            assert!(summary.regret < CHANGING, "{summary:?}");
        }
    }

    #[test]
    fn requests_whose_texts_differ_do_not_mislead_each_other() {
        for (verify, draft) in [(Verify::Flat, 0.1), (Verify::Linear, 0.02), (Verify::StepAtFour, 0.1)] {
            for qualities in [[0.5, 0.5], [0.8, 0.8], [0.4, 0.75], [0.2, 0.9], [0.0, 0.6]] {
                let machine = |at: usize| Machine { verify, draft, acceptance: qualities[at % 2] };
                let machines: Vec<Machine> = (0..40).map(machine).collect();
                let played = SEEDS.map(|seed| play_requests(&machines, 50, seed).regret());
                let regret = played.sum::<f64>() / (SEEDS.end - SEEDS.start) as f64;
                println!("{verify:?} {draft} {qualities:?} {:.2} %", 100.0 * regret);
                assert!(regret < STATIONARY, "{verify:?}, drafts at {draft}, {qualities:?}: {regret}");
            }
        }
    }

    #[test]
    fn simulated_traces_read_back_and_replay() {
        let (machine, other) = (machines()[40], machines()[3]);
        let trace = recorded(&[machine, other], 600, 7);
        let read: Trace = trace.to_lines().parse().unwrap();
        assert_eq!(read, trace);
        assert_eq!(replayed(&read), (600, 600));
    }

    #[test]
    fn fixed_depths_take_what_arithmetic_says() {
        let machine = Machine { verify: Verify::Linear, draft: 0.1, acceptance: 0.5 };
        let text = Text { seed: 3, phases: vec![(0, &machine)] };
        let slots = 60_000;
        for depth in [0, 1, 4] {
            let (time, expected) =
                (text.fixed(depth, 0, slots), slots as f64 * machine.cost(depth) / machine.tokens(depth));
            assert!((time / expected - 1.0).abs() < 0.02, "depth {depth}: {time} for {expected}");
        }
    }

    #[test]
    fn the_best_depth_follows_price_and_quality() {
        let with = |verify, acceptance, draft| Machine { verify, draft, acceptance }.best_depth();
        assert_eq!(with(Verify::Flat, 0.0, 0.02), 0);
        assert_eq!(with(Verify::Flat, 0.95, 0.02), DEEPEST);
        assert_eq!(with(Verify::StepAtFour, 0.8, 0.02), 3);
        assert_eq!(with(Verify::DoubleAtTwo, 0.5, 0.1), 0);
    }
}
