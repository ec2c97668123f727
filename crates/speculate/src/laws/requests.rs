//! The joint law of three tokens of whole requests: rounds, rollback, tokens in flight, grammars.

use std::rc::Rc;

use foretoken_sample::{Grammar, Sampler, SamplingOptions, Seed};

use super::{
    faulty::{Fault, Faulty},
    joint::{BEFORE, TOKENS, cell, guesses, joint, table},
    options,
};
use crate::{
    Coupled, Decoder, DraftPolicy, Drafter, Ratio, RequestState, Speculation,
    accept::Engine,
    audience::Audience,
    session::{Hearing, Owner},
    speculative::Speculative,
    testkit::{
        Automaton, Fit, Pattern, ScriptedDrafter, TABLE_VOCABULARY as V, TableDrafter, TableModel, exact_law,
        on_cpu, prefill,
    },
};

/// Requests per law. Each costs one or two milliseconds.
const REQUESTS: u64 = 400;

/// Requests of a faulty rule.
const FAULTY_REQUESTS: u64 = 1_500;

/// A faulty rule's few requests lie this many times farther from the law than chance allows.
const CLEAR: f64 = 1.5;

/// Neighbouring cells, which share their first tokens, count as one until they are expected this often.
const LEAST: f64 = 20.0;

const PROMPT: [u32; 3] = [1, BEFORE[0], BEFORE[1]];

/// What a request asks for.
struct Asked {
    name: &'static str,
    options: SamplingOptions,
    grammar: Option<Automaton>,
}

impl Asked {
    fn new(name: &'static str, change: impl Fn(&mut SamplingOptions)) -> Self {
        Self { name, options: options(change), grammar: None }
    }

    fn all() -> [Self; 9] {
        [
            Self::new("nothing", |_| {}),
            Self::new("temperature 0.6", |o| o.temperature = 0.6),
            Self::new("temperature 1.5", |o| o.temperature = 1.5),
            Self::new("top-k", |o| o.top_k = 3),
            Self::new("top-p", |o| o.top_p = 0.8),
            Self::new("min-p", |o| o.min_p = 0.2),
            // The window holds drafts of the same round, and fewer tokens than a block.
            Self::new("penalties", |o| {
                (o.repeat_penalty, o.presence_penalty, o.frequency_penalty) = (1.4, 1.0, 0.5);
                o.repeat_last_n = 2;
            }),
            Self::new("bans", |o| o.banned = vec![vec![6], vec![5, 2], vec![0, 1], vec![4, 3, 3]]),
            Self { grammar: Some(grammar()), ..Self::new("grammar", |_| {}) },
        ]
    }

    /// The exact joint law.
    fn law(&self, model: &TableModel) -> Vec<f64> {
        joint(&PROMPT, |path| {
            let [.., before, last] = *path else { panic!("two tokens stand before each") };
            let allowed = |id: u32| match &self.grammar {
                Some(grammar) => grammar.accepts(&[&path[PROMPT.len()..], &[id]].concat()),
                None => true,
            };
            exact_law(model.logits(before, last), &self.options, path, allowed)
        })
    }
}

/// Some ids, then some others; one way forces its next token.
fn grammar() -> Automaton {
    let to = |state: usize, ids: &[u32]| ids.iter().map(|&id| (id, state)).collect::<Vec<_>>();
    Automaton::new(vec![
        [to(1, &[0, 2, 5]), to(2, &[1, 7])].concat(),
        [to(0, &[1, 3, 4]), to(2, &[6])].concat(),
        to(1, &[4]),
    ])
}

/// A bad drafter that draws, and one that is certain.
fn drafter(model: &TableModel, certain: bool) -> Box<dyn Drafter> {
    match certain {
        false => Box::new(TableDrafter::of(&guesses(model))),
        true => Box::new(ScriptedDrafter::new(Pattern::Oracle, V, |ids| ids[ids.len() - 1] * 3 + 1)),
    }
}

/// How the first three tokens of whole requests at depth 2 fit the law. A third of them may have the certain
/// drafter.
fn fit<R: Engine>(rule: impl Fn(u64) -> R, asked: &Asked, requests: u64, certain: bool) -> Fit {
    let model = Rc::new(table());
    let mut counts = vec![0; V.pow(TOKENS as u32)];
    for seed in 0..requests {
        let options = SamplingOptions { seed: Seed::Fresh(seed * 7919), ..asked.options.clone() };
        let sampler = Sampler::new(options, V).expect("options");
        let drafter = drafter(&model, certain && seed % 3 == 2);
        let mut request = RequestState::new(model.as_ref(), Some(drafter.as_ref()), sampler, &PROMPT, &[])
            .expect("a request");
        request.constraint = asked.grammar.as_ref().map(|grammar| grammar.begin().expect("a constraint"));
        let audience = Audience::new(vec![Hearing::open(drafter.as_ref(), 0, Owner::Nobody)], 0);
        let director = Speculation::new(vec![drafter.into()], DraftPolicy::Constant(2)).director(&audience);
        let mut decoder = Box::new(Speculative::new(model.clone(), audience, rule(seed), director));
        prefill(model.as_ref(), decoder.as_mut(), &mut request).expect("a prefill");
        let end = PROMPT.len() + TOKENS;
        while request.history.ids().len() < end {
            let remaining = end - request.history.ids().len();
            decoder.next(&mut request, remaining).expect("a run");
        }
        counts[cell(&request.history.ids()[PROMPT.len()..][..TOKENS])] += 1;
    }
    Fit::merged(&counts, &asked.law(&model), LEAST)
}

#[test]
fn whole_requests_follow_the_joint_law_under_every_option() {
    on_cpu();
    for asked in Asked::all() {
        let ratio = fit(|_| Ratio::new(), &asked, REQUESTS, true);
        let coupled = fit(|seed| Coupled::new(seed * 31 + 7), &asked, REQUESTS, true);
        println!("{}: ratio {:.2}, coupled {:.2} of the bound", asked.name, ratio.share(), coupled.share());
        assert!(ratio.holds(), "ratio, {}: {ratio:?}", asked.name);
        assert!(coupled.holds(), "coupled, {}: {coupled:?}", asked.name);
    }
}

/// Top-k leaves few cells, so that few requests say much.
#[test]
fn whole_requests_of_faulty_rules_do_not() {
    on_cpu();
    let asked = Asked::new("top-k", |o| o.top_k = 3);
    for fault in [Fault::ArgmaxAgainstArgmax, Fault::NoResidual, Fault::SharedNoise] {
        let fit = fit(|_| Faulty::new(fault), &asked, FAULTY_REQUESTS, false);
        println!("{fault:?}: {:.2} of the bound", fit.share());
        assert!(fit.share() > CLEAR, "{fault:?} passed: {fit:?}");
    }
}
