//! Answers under a grammar: speculation, forced runs and faults change nothing in the text.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{rc::Rc, sync::Arc};

use foretoken_sample::{RuleChoice, SamplingOptions, Seed};
use foretoken_speculate::{
    Drafter, Provenance, SpeculateError,
    testkit::{
        Automaton, Pattern, Played, Request, RowsDrafter, ScriptedDrafter, TABLE_VOCABULARY, TableDrafter,
        TableModel, on_cpu, play,
    },
};
use proptest::prelude::*;

/// The table model's vocabulary ends with an end token in these tests.
const END: u32 = TABLE_VOCABULARY as u32 - 1;

/// Log probabilities of one row and of several may differ by this.
const LOGPROB_TOLERANCE: f32 = 1e-3;

const TABLE_PROMPT: [u32; 5] = [1, 2, 3, 4, 5];

/// (2 | 3) 4 5 6 (0 | 1 | loop) end: a choice, a forced run, a choice.
fn grammar() -> Automaton {
    Automaton::new(vec![
        vec![(2, 1), (3, 1)],
        vec![(4, 2)],
        vec![(5, 3)],
        vec![(6, 4)],
        vec![(0, 5), (1, 5), (2, 1)],
        vec![(END, 6)],
        vec![],
    ])
}

fn options(temperature: f32, seed: Seed, rule: RuleChoice) -> SamplingOptions {
    SamplingOptions { temperature, seed, rule, ..SamplingOptions::greedy() }
}

fn asked(grammar: &Automaton, options: SamplingOptions, depth: usize) -> Request {
    Request {
        options,
        ends: vec![END],
        grammar: Some(Arc::new(grammar.clone())),
        ..Request::greedy(&TABLE_PROMPT, 20, depth)
    }
}

fn drafters() -> Vec<Rc<dyn Drafter>> {
    let likes = |t: &[u32]| (t.len() as u32 * 3) % TABLE_VOCABULARY as u32;
    vec![
        Rc::new(TableDrafter::new(11)),
        Rc::new(TableDrafter::new(5)),
        Rc::new(ScriptedDrafter::new(Pattern::Oracle, TABLE_VOCABULARY, likes)),
        Rc::new(ScriptedDrafter::new(Pattern::Sometimes, TABLE_VOCABULARY, likes)),
        Rc::new(RowsDrafter::new(&[0.5; TABLE_VOCABULARY]).block()),
    ]
}

/// Plays and checks what every answer under a grammar must be.
fn constrained(grammar: &Automaton, drafter: Option<Rc<dyn Drafter>>, request: &Request) -> Played {
    let done = play(Rc::new(TableModel::new(11)), drafter, request).unwrap();
    assert!(grammar.accepts(&done.ids), "{:?} leaves the grammar", done.ids);
    assert_eq!(grammar.watch().depth(), done.ids.len(), "the grammar stands past what was recorded");
    done.request.target.level().unwrap();
    done
}

#[test]
fn a_seed_gives_one_text_with_and_without_speculation() {
    on_cpu();
    let grammar = grammar();
    for temperature in [0.0, 0.7, 1.5] {
        for seed in 0..6 {
            let options = options(temperature, Seed::Fixed(seed), RuleChoice::Auto);
            let plain = constrained(&grammar, None, &asked(&grammar, options.clone(), 0));
            assert!(plain.ids.last() == Some(&END) || plain.ids.len() == 20);
            for drafter in drafters() {
                for depth in [1, 3, 7] {
                    let name = drafter.facts().name;
                    let done = constrained(
                        &grammar,
                        Some(drafter.clone()),
                        &asked(&grammar, options.clone(), depth),
                    );
                    assert_eq!(done.ids, plain.ids, "{name} at depth {depth}, seed {seed}");
                }
            }
        }
    }
}

#[test]
fn the_ratio_rule_stays_inside_the_grammar() {
    on_cpu();
    let grammar = grammar();
    for seed in 0..12 {
        for drafter in drafters() {
            let options = options(1.0, Seed::Fresh(seed), RuleChoice::Ratio);
            constrained(&grammar, Some(drafter), &asked(&grammar, options, 4));
        }
    }
}

#[test]
fn forced_runs_are_free_drafts() {
    on_cpu();
    let grammar = grammar();
    let silent = ScriptedDrafter::new(Pattern::Wrong, TABLE_VOCABULARY, |_| END);
    let options = options(0.0, Seed::Fixed(0), RuleChoice::Auto);
    let done = constrained(&grammar, Some(Rc::new(silent)), &asked(&grammar, options, 4));
    let forced: Vec<u32> = done
        .runs
        .iter()
        .flat_map(|run| &run.tokens)
        .filter(|token| matches!(token.provenance, Provenance::Forced { .. }))
        .map(|token| token.id)
        .collect();
    assert!(forced.starts_with(&[4, 5, 6]), "{forced:?}");
    let credited: usize = done.statistics.sources.iter().map(|source| source.accepted).sum();
    let kept = done.statistics.accepted;
    assert_eq!(credited + forced.len(), kept, "what is forced is nobody's merit");
    // A round whose drafts all come from the grammar waits once.
    let waits = done.statistics.rounds.iter().filter(|round| round.0 > 0).count();
    assert!(done.statistics.extra_waits < waits, "{} of {waits}", done.statistics.extra_waits);
}

#[test]
fn lazy_drafts_cost_one_wait_more() {
    on_cpu();
    let free = Automaton::new(vec![(0..TABLE_VOCABULARY as u32).map(|id| (id, 0)).collect()]);
    let request = Request { ends: Vec::new(), ..asked(&free, SamplingOptions::greedy(), 3) };
    let done = constrained(&free, Some(Rc::new(TableDrafter::new(11))), &request);
    let drafting = done.statistics.rounds.iter().filter(|round| round.0 > 0).count();
    assert_eq!(done.statistics.extra_waits, drafting);
    // A grammar that allows everything changes nothing.
    let plain = play(Rc::new(TableModel::new(11)), None, &Request { grammar: None, ..request }).unwrap();
    assert_eq!(done.ids[..20], plain.ids[..20]);
}

#[test]
fn a_grammar_without_a_continuation_ends_the_request_after_what_was_said() {
    on_cpu();
    // After 2 4 nothing may follow, and no end token either.
    let dead = Automaton::new(vec![vec![(2, 1)], vec![(4, 9)]]);
    for depth in [0, 1, 5] {
        for rule in [RuleChoice::Coupled, RuleChoice::Ratio] {
            let options = options(0.8, Seed::Fixed(3), rule);
            let done =
                constrained(&dead, Some(Rc::new(TableDrafter::new(11))), &asked(&dead, options, depth));
            assert_eq!(done.ids, [2, 4], "depth {depth}");
            let error = done.error.expect("a fault");
            assert!(matches!(error, SpeculateError::EmptySupport { step: 2 }), "{error}");
        }
    }
}

#[test]
fn options_work_together_under_a_grammar() {
    on_cpu();
    let grammar = grammar();
    let options = SamplingOptions {
        logprobs: Some(2),
        margins: true,
        repeat_penalty: 1.4,
        top_k: 5,
        min_tokens: 7,
        ..options(0.9, Seed::Fixed(2), RuleChoice::Auto)
    };
    let plain = constrained(&grammar, None, &asked(&grammar, options.clone(), 0));
    for depth in [2, 6] {
        let done = constrained(
            &grammar,
            Some(Rc::new(TableDrafter::new(11))),
            &asked(&grammar, options.clone(), depth),
        );
        assert_eq!(done.ids, plain.ids);
        let tokens = done.runs.iter().flat_map(|run| &run.tokens);
        for (token, same) in tokens.zip(plain.runs.iter().flat_map(|run| &run.tokens)) {
            let (a, b) = (token.logprobs.as_ref().unwrap(), same.logprobs.as_ref().unwrap());
            assert!((a.logprob - b.logprob).abs() < LOGPROB_TOLERANCE, "{a:?} and {b:?}");
            assert_eq!(a.top.len(), 2);
            assert!(token.margin.unwrap() >= 0.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any automaton, rule, depth and drafter: the answer follows the grammar, and a seed gives one text.
    #[test]
    fn any_grammar_is_followed(
        edges in prop::collection::vec(prop::collection::btree_map(0..END + 1, 0_usize..6, 0..4), 1..6),
        seed in 0_u64..1_000,
        which in 0_usize..5,
        depth in 1_usize..8,
        temperature in prop::sample::select(vec![0.0_f32, 0.8, 1.3]),
    ) {
        on_cpu();
        let grammar = Automaton::new(edges.into_iter().map(|state| state.into_iter().collect()).collect());
        let drafter = drafters()[which].clone();
        let seeded = options(temperature, Seed::Fixed(seed), RuleChoice::Auto);
        let plain = constrained(&grammar, None, &asked(&grammar, seeded.clone(), 0));
        let done = constrained(&grammar, Some(drafter.clone()), &asked(&grammar, seeded, depth));
        let kept = plain.ids.len().min(done.ids.len()).min(20);
        prop_assert_eq!(&done.ids[..kept], &plain.ids[..kept]);
        prop_assert_eq!(done.error.is_some(), plain.error.is_some());
        let ratio = options(temperature, Seed::Fresh(seed), RuleChoice::Ratio);
        constrained(&grammar, Some(drafter), &asked(&grammar, ratio, depth));
    }
}
