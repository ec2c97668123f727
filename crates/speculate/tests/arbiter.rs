//! Several drafters side by side: the text, who is asked, who fails, and what is accounted.

mod common;

use std::{cell::RefCell, rc::Rc};

use common::*;
use foretoken_model_base::Model;
use foretoken_sample::Seed;
use foretoken_speculate::{
    DraftPolicy, Drafter, Provenance, ScriptedClock, Speculation, Trace, Traces,
    testkit::{
        Fault, FaultyDrafter, LookUp, Minimal, PairDrafter, Pattern, Request, Rotation, ScriptedTarget,
        TABLE_VOCABULARY, TableDrafter, TableModel, conformance::check_set, on_cpu, play_set,
    },
};

const THROUGHPUT: DraftPolicy = DraftPolicy::Throughput { initial: 4, max: 8, frozen: false };

fn model() -> Rc<dyn Model> {
    on_cpu();
    Rc::new(ScriptedTarget::new(VOCABULARY, wanted))
}

fn pairs() -> Rc<dyn Drafter> {
    Rc::new(PairDrafter::new(VOCABULARY))
}

fn look_up() -> Rc<dyn Drafter> {
    Rc::new(LookUp::new(VOCABULARY))
}

#[test]
fn sets_of_drafters_conform() {
    let oracle = drafter(Pattern::Oracle);
    let sets: [&[Rc<dyn Drafter>]; 6] = [
        &[],
        &[pairs()],
        &[pairs(), look_up()],
        &[look_up(), pairs()],
        &[oracle.clone(), look_up(), Rc::new(Minimal::new())],
        &[drafter(Pattern::Sometimes), pairs(), look_up()],
    ];
    for set in sets {
        let names: Vec<&str> = set.iter().map(|drafter| drafter.facts().name).collect();
        let seen = check_set(&model(), set, &PROMPT).unwrap_or_else(|err| panic!("{names:?}: {err}"));
        println!("{names:?}: {seen:?}");
        assert_eq!(seen.drafted > 0, !set.is_empty());
        assert_eq!(seen.extra_waits > 0, names.contains(&"pairs") && names.contains(&"look-up"), "{names:?}");
    }
}

#[test]
fn a_set_conforms_on_a_lazy_model() {
    on_cpu();
    let model: Rc<dyn Model> = Rc::new(TableModel::new(3));
    let set: [Rc<dyn Drafter>; 2] = [Rc::new(TableDrafter::new(4)), Rc::new(LookUp::new(TABLE_VOCABULARY))];
    let seen = check_set(&model, &set, &[1, 2, 3, 4, 5]).expect("a set conforms");
    assert!(seen.accepted > 0 && seen.extra_waits > 0, "{seen:?}");
}

/// A set under a controller that goes through all sources.
fn rotating(drafters: Vec<Rc<dyn Drafter>>) -> Speculation {
    let rotation = |sources: Vec<_>| Box::new(Rotation::new(&sources, 4, 1)) as Box<_>;
    Speculation::new(drafters, THROUGHPUT).with_controller(rotation)
}

fn asked(tokens: usize) -> Request {
    Request::greedy(&PROMPT, tokens, 0)
}

#[test]
fn a_drafter_that_fails_ends_only_itself() {
    let plain = play_set(model(), &Speculation::none(), &asked(40)).unwrap().ids;
    for fault in [Fault::Open, Fault::Propose(1), Fault::ProposePanic(0), Fault::Committed(3)] {
        let faulty = Rc::new(FaultyDrafter::new(drafter(Pattern::Oracle), VOCABULARY, fault));
        let done = play_set(model(), &rotating(vec![faulty, pairs()]), &asked(40)).unwrap();
        assert_eq!(done.ids[..40], plain[..40], "{fault:?}");
        let ended: Vec<&String> = done.runs.iter().filter_map(|run| run.speculation_ended.as_ref()).collect();
        assert_eq!(ended.len(), 1, "{fault:?}: {ended:?}");
        assert!(ended[0].starts_with("scripted: "), "{ended:?}");
        let other = &done.statistics.sources[1];
        assert!(other.name == "pairs" && other.rounds > 3, "{fault:?}: {other:?}");
    }
}

#[test]
fn every_token_says_which_drafter_it_came_from() {
    let done = play_set(model(), &rotating(vec![drafter(Pattern::Oracle), pairs()]), &asked(40)).unwrap();
    let mut accepted = vec![("scripted", 0), ("pairs", 0)];
    for token in done.runs.iter().flat_map(|run| &run.tokens) {
        if let Provenance::Drafted { drafter, .. } = token.provenance {
            accepted.iter_mut().filter(|(name, _)| *name == drafter).for_each(|(_, count)| *count += 1);
        }
    }
    for (source, (name, count)) in done.statistics.sources.iter().zip(accepted) {
        assert_eq!((source.name, source.accepted), (name, count));
    }
    let total: usize = done.statistics.sources.iter().map(|source| source.accepted).sum();
    assert_eq!(total, done.statistics.accepted);
}

#[test]
fn a_second_drafter_with_caches_must_be_able_to_catch_up() {
    let set = |drafters| Speculation::new(drafters, THROUGHPUT);
    assert_eq!(set(vec![look_up(), pairs()]).managed(), Some(1));
    assert_eq!(set(vec![pairs(), look_up()]).look_ahead(), 1);
    set(vec![look_up(), pairs()]).check().expect("one set of caches");
    let table: Rc<dyn Drafter> = Rc::new(TwoCaches(pairs()));
    let refused = set(vec![pairs(), table]).check().expect_err("two sets of caches").to_string();
    assert!(refused.contains("cannot catch up") && refused.contains("other"), "{refused}");
}

/// Another drafter with caches, under another name.
struct TwoCaches(Rc<dyn Drafter>);

impl Drafter for TwoCaches {
    fn facts(&self) -> &foretoken_speculate::DrafterFacts {
        static FACTS: std::sync::OnceLock<foretoken_speculate::DrafterFacts> = std::sync::OnceLock::new();
        FACTS.get_or_init(|| foretoken_speculate::DrafterFacts::new("other", 4).with_hidden())
    }

    fn make_caches(&self) -> Option<foretoken_cache::CacheSet> {
        self.0.make_caches()
    }

    fn open(
        &self,
        at: usize,
    ) -> Result<Box<dyn foretoken_speculate::DraftSession>, foretoken_speculate::DraftError> {
        self.0.open(at)
    }
}

#[test]
fn decisions_are_traced_and_replay_from_the_text_alone() {
    let traces = Traces::default();
    let clock = Rc::new(ScriptedClock::new());
    let set =
        Speculation::new(vec![drafter(Pattern::Mix), look_up()], THROUGHPUT).with_traces(traces.clone());
    let set = set.with_clock(clock);
    for tokens in [60, 30] {
        play_set(model(), &set, &asked(tokens)).unwrap();
    }
    assert_eq!(traces.borrow().len(), 2);
    for trace in traces.borrow().iter() {
        let trace: &RefCell<Trace> = trace;
        let read: Trace = trace.borrow().to_lines().parse().unwrap();
        assert_eq!(&read, &*trace.borrow());
        let choices: Vec<_> = read.rounds.iter().map(|round| round.choice).collect();
        assert_eq!(read.replay(), choices);
        assert!(choices.len() > 3);
    }
    assert_ne!(traces.borrow()[1].borrow().estimates, Trace::default().estimates, "the second goes on");
}

#[test]
fn the_seeds_text_depends_on_no_choice() {
    let seeded = |tokens| {
        let mut request = Request::greedy(&[1, 2, 3, 4, 5], tokens, 0);
        request.options.temperature = 0.9;
        request.options.seed = Seed::Fixed(5);
        request
    };
    on_cpu();
    let table = || -> Rc<dyn Model> { Rc::new(TableModel::new(8)) };
    let want = play_set(table(), &Speculation::none(), &seeded(50)).unwrap().ids;
    let set = Speculation::new(
        vec![Rc::new(TableDrafter::new(9)), Rc::new(LookUp::new(TABLE_VOCABULARY))],
        THROUGHPUT,
    );
    // The real clock: choices differ from run to run.
    for _ in 0..4 {
        let done = play_set(table(), &set, &seeded(50)).unwrap();
        assert_eq!(done.ids[..50], want[..50]);
    }
}

#[test]
fn frozen_choices_repeat_and_teach_nothing() {
    let set = Speculation::new(vec![drafter(Pattern::Mix), look_up()], THROUGHPUT);
    (0..3).for_each(|_| drop(play_set(model(), &set, &asked(60)).unwrap()));
    let known = set.estimates.borrow().clone();
    let frozen = set.with_policy(DraftPolicy::Throughput { initial: 4, max: 8, frozen: true });
    let first = play_set(model(), &frozen, &asked(60)).unwrap();
    for _ in 0..3 {
        let again = play_set(model(), &frozen, &asked(60)).unwrap();
        assert_eq!(again.statistics.rounds, first.statistics.rounds);
    }
    assert_eq!(*set.estimates.borrow(), known);
}

#[test]
fn exact_rounds_draft_as_deep_as_they_may_and_teach_nothing() {
    let request = Request { exact: Some(foretoken_speculate::EXACT_WIDTH), ..asked(40) };
    let plain = play_set(model(), &Speculation::none(), &request).expect("the request starts");
    for set in [vec![look_up()], vec![pairs(), look_up()]] {
        let speculation = Speculation::new(set, THROUGHPUT);
        let done = play_set(model(), &speculation, &request).expect("the request starts");
        assert_eq!(done.ids, plain.ids);
        let deepest = done.statistics.rounds.iter().map(|round| round.0).max();
        assert!(done.statistics.accepted > 0 && deepest > Some(3), "{:?}", done.statistics);
        assert_eq!(*speculation.estimates.borrow(), *Speculation::none().estimates.borrow());
    }
}
