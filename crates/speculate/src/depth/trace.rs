//! Decisions on paper: what a controller saw, chose and heard, as lines of text that can be replayed.

use std::{cell::RefCell, fmt::Write as _, rc::Rc, str::FromStr};

use super::{
    Choice, Controller, Estimates, Outcome, Seat, Situation, Source, Throughput,
    lines::{self, Fields, optional},
};
use crate::{Result, SpeculateError};

/// The first line of a trace.
const HEADER: &str = "foretoken-trace 1";

/// The decisions of one request under the throughput policy, from the estimates it began with.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The depth of first rounds.
    pub initial: usize,
    /// The depth never exceeded.
    pub max: usize,
    /// Whether the estimates stayed as they were.
    pub frozen: bool,
    /// The sources in order.
    pub sources: Vec<Source>,
    /// What was known before the first round.
    pub estimates: Estimates,
    /// The rounds in order.
    pub rounds: Vec<Traced>,
}

/// One decision and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traced {
    /// What the controller saw.
    pub situation: Situation,
    /// What it chose.
    pub choice: Choice,
    /// What it heard; none when the request ended before.
    pub outcome: Option<Outcome>,
}

impl Trace {
    /// Decides every round again, from what was recorded alone.
    pub fn replay(&self) -> Vec<Choice> {
        let estimates = Rc::new(RefCell::new(self.estimates.clone()));
        let sources = self.sources.clone();
        let mut controller = Throughput::new(sources, estimates, self.initial, self.max, self.frozen);
        let decide = |round: &Traced| {
            let choice = controller.choose(&round.situation);
            if let Some(outcome) = &round.outcome {
                controller.observe(outcome);
            }
            choice
        };
        self.rounds.iter().map(decide).collect()
    }

    /// The trace as lines of text, which [`str::parse`] reads.
    pub fn to_lines(&self) -> String {
        let mut out = format!("{HEADER}\npolicy {} {} {}\n", self.initial, self.max, self.frozen);
        for Source { name, max_depth, lengthens } in &self.sources {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "source {max_depth} {} {name}", optional(lengthens));
        }
        lines::write_estimates(&self.estimates, &mut out);
        self.rounds.iter().for_each(|round| write_round(round, &mut out));
        out
    }
}

/// The throughput policy with every decision on paper.
pub struct Recorder {
    controller: Throughput,
    trace: Rc<RefCell<Trace>>,
}

impl Recorder {
    /// A controller like the one of `trace`, which must hold no rounds yet, that learns into `estimates`. The
    /// trace begins with a copy of these.
    pub fn new(trace: Rc<RefCell<Trace>>, estimates: Rc<RefCell<Estimates>>) -> Self {
        let mut begun = trace.borrow_mut();
        begun.estimates = estimates.borrow().clone();
        let Trace { initial, max, frozen, .. } = *begun;
        let controller = Throughput::new(begun.sources.clone(), estimates, initial, max, frozen);
        drop(begun);
        Self { controller, trace }
    }
}

impl Controller for Recorder {
    fn choose(&mut self, situation: &Situation) -> Choice {
        let choice = self.controller.choose(situation);
        let round = Traced { situation: situation.clone(), choice, outcome: None };
        self.trace.borrow_mut().rounds.push(round);
        choice
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.controller.observe(outcome);
        if let Some(round) = self.trace.borrow_mut().rounds.last_mut() {
            round.outcome = Some(*outcome);
        }
    }

    fn probing_ms(&self) -> f64 {
        self.controller.probing_ms()
    }
}

fn write_round(round: &Traced, out: &mut String) {
    let Traced { situation: s, choice, outcome } = round;
    let _ = write!(out, "round {} {} {} {}", s.context, s.room, s.constrained, s.seats.len());
    for Seat { cap, sporadic } in &s.seats {
        let _ = write!(out, " {cap} {sporadic}");
    }
    let _ = write!(out, " {} {}", optional(&choice.source), choice.depth);
    if let Some(o) = outcome {
        let nanos = optional(&o.nanos);
        let Outcome { drafted, accepted, tail, rejected, tokens, beside, .. } = o;
        let _ = write!(out, " {drafted} {accepted} {tail} {rejected} {tokens} {nanos} {beside}");
    }
    out.push('\n');
}

impl FromStr for Trace {
    type Err = SpeculateError;

    fn from_str(text: &str) -> Result<Self> {
        let mut rest = text.lines();
        if rest.next() != Some(HEADER) {
            let got = text.lines().next().unwrap_or_default().to_owned();
            return Err(SpeculateError::Input { what: "trace", expected: format!("{HEADER:?}"), got });
        }
        let mut trace = Self::default();
        for line in rest {
            trace.read(line).ok_or_else(|| SpeculateError::Input {
                what: "line of a trace",
                expected: "a kind and its numbers, as a trace is written".into(),
                got: line.to_owned(),
            })?;
        }
        Ok(trace)
    }
}

impl Trace {
    fn read(&mut self, line: &str) -> Option<()> {
        let mut fields = Fields::of(line);
        match fields.word()? {
            "policy" => {
                (self.initial, self.max, self.frozen) = (fields.next()?, fields.next()?, fields.next()?);
                fields.end()
            }
            "source" => {
                let (max_depth, lengthens) = (fields.next()?, fields.maybe()?);
                let known = lengthens.is_none_or(|head| head < self.sources.len());
                self.sources.push(Source { max_depth, lengthens, name: fields.rest() });
                known.then_some(())
            }
            "round" => {
                self.rounds.push(read_round(&mut fields, self.sources.len())?);
                Some(())
            }
            kind => lines::read_estimates(kind, &mut fields, &mut self.estimates),
        }
    }
}

fn read_round(fields: &mut Fields<'_>, sources: usize) -> Option<Traced> {
    let (context, room, constrained) = (fields.next()?, fields.next()?, fields.next()?);
    let seats = (0..fields.next::<usize>().filter(|&seats| seats == sources)?)
        .map(|_| Some(Seat { cap: fields.next()?, sporadic: fields.next()? }))
        .collect::<Option<_>>()?;
    let situation = Situation { context, room, constrained, seats };
    let choice = Choice { source: fields.maybe()?, depth: fields.next()? };
    let fits = choice.source.is_none_or(|source| source < sources);
    let outcome = match fields.next() {
        None => None,
        Some(drafted) => Some(Outcome {
            drafted,
            accepted: fields.next()?,
            tail: fields.next()?,
            rejected: fields.next()?,
            tokens: fields.next()?,
            nanos: fields.maybe()?,
            beside: fields.next()?,
        }),
    };
    fields.end()?;
    fits.then_some(Traced { situation, choice, outcome })
}
