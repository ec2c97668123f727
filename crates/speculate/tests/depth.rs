//! The measuring depth policy as plain arithmetic: what it measures, what it chooses, and what it can be told.

use std::{cell::RefCell, rc::Rc};

use foretoken_speculate::{
    Choice, Controller, Estimates, Outcome, Recorder, Seat, Situation, Source, Throughput, Trace,
};
use proptest::prelude::*;

const MAX: usize = 8;
const INITIAL: usize = 4;

fn source(name: &str) -> Source {
    Source { name: name.into(), max_depth: MAX, lengthens: None }
}

fn ahead(caps: &[(usize, bool)]) -> Situation {
    let seats = caps.iter().map(|&(cap, sporadic)| Seat { cap, sporadic }).collect();
    Situation { context: 50, room: MAX, constrained: false, seats }
}

/// A round in which `kept` of the chosen drafts were accepted.
fn outcome(choice: Choice, kept: usize, ms: f64) -> Outcome {
    let accepted = kept.min(choice.depth);
    Outcome {
        drafted: choice.depth,
        accepted,
        rejected: accepted < choice.depth,
        tokens: accepted + 1,
        nanos: Some((ms * 1e6) as u64),
        ..Outcome::default()
    }
}

struct Bench {
    estimates: Rc<RefCell<Estimates>>,
    controller: Throughput,
}

impl Bench {
    fn new(sources: &[Source]) -> Self {
        let estimates = Rc::new(RefCell::new(Estimates::new()));
        let controller = Throughput::new(sources.to_vec(), estimates.clone(), INITIAL, MAX, false);
        Self { estimates, controller }
    }

    /// Plays rounds on a machine given by the cost of a choice and the drafts it keeps.
    fn play(
        &mut self,
        rounds: usize,
        situation: &Situation,
        machine: impl Fn(Choice) -> (f64, usize),
    ) -> Vec<Choice> {
        let round = |_| {
            let choice = self.controller.choose(situation);
            let (ms, kept) = machine(choice);
            self.controller.observe(&outcome(choice, kept, ms));
            choice
        };
        (0..rounds).map(round).collect()
    }

    fn plain_ms(&self) -> Option<f64> {
        self.estimates.borrow().plain_ms(50, false)
    }
}

#[test]
fn a_new_model_drafts_first_and_measures_plain_decoding_early() {
    let mut bench = Bench::new(&[source("head")]);
    let machine = |choice: Choice| (10.0 + choice.depth as f64, choice.depth);
    let choices = bench.play(8, &ahead(&[(MAX, false)]), machine);
    let depths: Vec<usize> = choices.iter().map(|choice| choice.depth).collect();
    // The first measurement of a depth is taken twice when nothing says what to expect.
    assert_eq!(depths[..7], [4, 4, 4, 0, 0, 0, 0]);
    assert!(depths[7] >= INITIAL, "what is always kept is drafted on: {depths:?}");
    assert_eq!(bench.plain_ms(), Some(10.0));
}

#[test]
fn plain_cost_is_unknown_before_three_measurements() {
    let mut bench = Bench::new(&[]);
    for known in [false, false, false, true] {
        assert!(bench.plain_ms().is_none());
        bench.play(1, &ahead(&[]), |_| (5.0, 0));
        assert_eq!(bench.plain_ms().is_some(), known, "the first fills the pipeline");
    }
}

#[test]
fn the_first_round_after_a_change_is_no_measurement() {
    // Every change costs ten rounds: nothing of that may be taken for the cost of a depth.
    let mut bench = Bench::new(&[source("head")]);
    let before = RefCell::new(None);
    bench.play(200, &ahead(&[(MAX, false)]), |choice| {
        let changed = before.replace(Some(choice)) != Some(choice);
        (if changed { 100.0 } else { 10.0 }, usize::from(choice.depth > 0))
    });
    let plain = bench.plain_ms().unwrap();
    assert!((plain - 10.0).abs() < 1e-9, "{plain}");
}

#[test]
fn it_parks_where_drafts_fail_and_comes_back_when_they_hold() {
    let mut bench = Bench::new(&[source("head")]);
    let situation = ahead(&[(MAX, false)]);
    let cost = |choice: Choice| 10.0 + 3.0 * choice.depth as f64;
    bench.play(200, &situation, |choice| (cost(choice), 0));
    let parked = bench.play(300, &situation, |choice| (cost(choice), 0));
    let plain = parked.iter().filter(|&&choice| choice == Choice::PLAIN).count();
    assert!(plain > 285, "{plain} of 300 plain");
    bench.play(400, &situation, |choice| (cost(choice), choice.depth));
    let back = bench.play(100, &situation, |choice| (cost(choice), choice.depth));
    assert!(back.iter().filter(|choice| choice.depth >= 6).count() > 90, "{back:?}");
}

#[test]
fn the_better_of_two_sources_is_asked() {
    for good in [0, 1] {
        let mut bench = Bench::new(&[source("one"), source("two")]);
        let machine = |choice: Choice| {
            let kept = if choice.source == Some(good) { choice.depth } else { 0 };
            (10.0 + choice.depth as f64, kept)
        };
        let situation = ahead(&[(MAX, false), (MAX, false)]);
        bench.play(300, &situation, machine);
        let later = bench.play(200, &situation, machine);
        let asked = later.iter().filter(|choice| choice.source == Some(good)).count();
        assert!(asked > 180, "source {good}: {asked} of 200");
    }
}

#[test]
fn a_source_that_has_something_now_and_then_is_asked_then() {
    let mut bench = Bench::new(&[source("look-up")]);
    let mut taken = [0; 2];
    for round in 0..400 {
        let cap = if round % 4 == 0 { MAX } else { 0 };
        let choice = bench.controller.choose(&ahead(&[(cap, true)]));
        bench.controller.observe(&outcome(choice, MAX, 10.0 + choice.depth as f64));
        if round >= 100 && cap > 0 {
            taken[usize::from(choice != Choice::PLAIN)] += 1;
        }
        assert!(cap > 0 || choice == Choice::PLAIN, "round {round}");
    }
    assert!(taken[1] > 9 * taken[0], "{taken:?}");
}

#[test]
fn a_hiccup_changes_nothing_and_a_dearer_drafter_is_noticed() {
    let mut bench = Bench::new(&[source("head")]);
    let situation = ahead(&[(MAX, false)]);
    let machine = |choice: Choice| (10.0 + 0.1 * choice.depth as f64, choice.depth);
    bench.play(300, &situation, machine);
    let before = bench.controller.choose(&situation);
    bench.controller.observe(&outcome(before, before.depth, 300.0));
    assert_eq!(bench.play(1, &situation, machine), [before], "one hiccup");
    // Every draft now costs two plain rounds.
    let dear = |choice: Choice| (10.0 + 20.0 * choice.depth as f64, choice.depth);
    bench.play(100, &situation, dear);
    let after = bench.play(100, &situation, dear);
    let plain = after.iter().filter(|&&choice| choice == Choice::PLAIN).count();
    assert!(plain > 80, "{after:?}");
}

/// A round: what is ahead, the drafts that would be kept, its time, and whether it only drains.
type Happening = (Situation, usize, u64, bool);

/// Anything that may happen to a controller with two sources and the tail of the second behind the first.
fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let seat = (0..=MAX, any::<bool>()).prop_map(|(cap, sporadic)| Seat { cap, sporadic });
    let situation = (0..40_000_usize, 0..12_usize, any::<bool>(), prop::collection::vec(seat, 3))
        .prop_map(|(context, room, constrained, seats)| Situation { context, room, constrained, seats });
    let drained = prop::bool::weighted(0.1);
    prop::collection::vec((situation, 0..=MAX, 0..50_000_000_u64, drained), 1..120)
}

fn sources() -> Vec<Source> {
    vec![source("one"), source("two"), Source { lengthens: Some(0), ..source("one+two") }]
}

fn traced(happenings: &[Happening], frozen: bool) -> Trace {
    let trace = Trace { initial: INITIAL, max: MAX, frozen, sources: sources(), ..Trace::default() };
    let trace = Rc::new(RefCell::new(trace));
    let mut recorder = Recorder::new(trace.clone(), Rc::default());
    for (situation, kept, nanos, drained) in happenings {
        let choice = recorder.choose(situation);
        let made = outcome(choice, *kept, 0.0);
        recorder.observe(&Outcome { nanos: Some(*nanos), beside: *drained, tail: kept % 3, ..made });
    }
    trace.take()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn choices_can_always_be_carried_out(happenings in happenings(), frozen: bool) {
        for round in traced(&happenings, frozen).rounds {
            let (situation, choice) = (round.situation, round.choice);
            match choice.source {
                None => prop_assert_eq!(choice.depth, 0),
                Some(source) => {
                    let most = situation.seats[source].cap.min(situation.room).min(MAX);
                    prop_assert!((1..=most).contains(&choice.depth), "{:?} of {:?}", choice, situation);
                }
            }
        }
    }

    #[test]
    fn traces_read_back_and_replay(first in happenings(), second in happenings(), frozen: bool) {
        let begun = traced(&first, false);
        let mut trace = traced(&second, frozen);
        let choices: Vec<_> = trace.rounds.iter().map(|round| round.choice).collect();
        prop_assert_eq!(trace.replay(), choices);
        trace.estimates = begun.estimates;
        let read: Trace = trace.to_lines().parse().unwrap();
        prop_assert_eq!(&read, &trace);
        prop_assert_eq!(read.replay(), trace.replay());
    }

    #[test]
    fn no_text_breaks_the_reader(
        happenings in happenings(),
        at in any::<prop::sample::Index>(),
        with in ".{0,12}",
    ) {
        let mut text: Vec<char> = traced(&happenings, false).to_lines().chars().collect();
        let at = at.index(text.len());
        text.splice(at..(at + 3).min(text.len()), with.chars());
        if let Ok(trace) = text.into_iter().collect::<String>().parse::<Trace>() {
            prop_assert_eq!(trace.replay().len(), trace.rounds.len());
        }
    }
}

#[test]
fn a_broken_trace_is_an_error_that_shows_the_line() {
    let good = "foretoken-trace 1\npolicy 4 8 false\nsource 8 - head\n";
    assert!(good.parse::<Trace>().is_ok());
    for (line, shown) in [
        ("source 8 3 tail", "source 8 3 tail"),
        ("round 1 2 false 2 8 false 8 false - 0", "round 1 2"),
        ("cost false 0 NaN 1 0 0 0 head", "cost false 0 NaN"),
        ("cost false 0 1 1 0 0 0 nobody", "nobody"),
        ("position 2 1 0 0 head", "position 2"),
        ("colour blue", "colour blue"),
    ] {
        let error = format!("{good}{line}\n").parse::<Trace>().expect_err(line).to_string();
        assert!(error.contains(shown), "{error}");
    }
    assert!("something else".parse::<Trace>().expect_err("no trace").to_string().contains("something else"));
}

#[test]
fn a_frozen_policy_that_knows_nothing_stays_at_its_initial_depth() {
    let sources = vec![source("head"), source("other")];
    let mut frozen = Throughput::new(sources, Rc::default(), INITIAL, MAX, true);
    for kept in [0, 0, 0, 4] {
        let choice = frozen.choose(&ahead(&[(MAX, false), (MAX, false)]));
        assert_eq!(choice, Choice { source: Some(0), depth: INITIAL });
        frozen.observe(&outcome(choice, kept, 5.0));
    }
}
