//! What the engine's tests share.
#![allow(dead_code)]

use std::rc::Rc;

use foretoken_model_base::Model;
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::{
    Drafter,
    testkit::{Pattern, Played, Request, ScriptedDrafter, ScriptedTarget, cached_ids, on_cpu, play},
};

pub(crate) const VOCABULARY: usize = 11;
pub(crate) const PROMPT: [u32; 7] = [3, 1, 4, 1, 5, 9, 2];
pub(crate) const PATTERNS: [Pattern; 4] = [Pattern::Oracle, Pattern::Wrong, Pattern::Mix, Pattern::Sometimes];

/// A script that depends on the whole sequence.
pub(crate) fn wanted(tokens: &[u32]) -> u32 {
    let sum = tokens
        .iter()
        .enumerate()
        .fold(7_u32, |sum, (i, &t)| sum.wrapping_mul(31).wrapping_add(t.wrapping_mul(i as u32 + 1)));
    (sum >> 3) % VOCABULARY as u32
}

pub(crate) fn target() -> Rc<ScriptedTarget> {
    on_cpu();
    Rc::new(ScriptedTarget::new(VOCABULARY, wanted))
}

pub(crate) fn drafter(pattern: Pattern) -> Rc<dyn Drafter> {
    Rc::new(ScriptedDrafter::new(pattern, VOCABULARY, wanted))
}

/// The drafter of a pattern for a target whose answer is known.
pub(crate) fn planned(pattern: Pattern, vocabulary: usize, prompt: usize, answer: &[u32]) -> Rc<dyn Drafter> {
    let answer = answer.to_vec();
    Rc::new(ScriptedDrafter::new(pattern, vocabulary, move |tokens| {
        answer.get(tokens.len() - prompt).copied().unwrap_or(0)
    }))
}

pub(crate) fn sampled(seed: Seed) -> SamplingOptions {
    SamplingOptions { temperature: 0.8, seed, ..SamplingOptions::greedy() }
}

/// Plays and checks what must hold after any request: caches level with the history, runs and statistics
/// that agree.
pub(crate) fn played(model: Rc<dyn Model>, drafter: Option<Rc<dyn Drafter>>, asked: &Request) -> Played {
    let played = play(model, drafter, asked).expect("the request starts");
    check_rest(&played);
    let recorded = &played.request.history.ids()[asked.prompt.len()..];
    assert_eq!(recorded, played.ids, "every token is recorded");
    let runs: Vec<_> = played.runs.iter().map(|r| (r.drafted, r.accepted)).collect();
    assert_eq!(played.statistics.rounds, runs);
    assert_eq!(played.statistics.drafted, runs.iter().map(|r| r.0).sum::<usize>());
    assert_eq!(played.statistics.accepted, runs.iter().map(|r| r.1).sum::<usize>());
    for run in &played.runs {
        assert!(!run.tokens.is_empty() && run.accepted <= run.drafted);
    }
    played
}

/// The caches hold exactly the tokens before the current one.
pub(crate) fn check_rest(played: &Played) {
    let request = &played.request;
    if request.target.is_poisoned() {
        return;
    }
    request.target.level().expect("layers level");
    assert!(!request.target.is_open(), "no transaction is left open");
    assert_eq!(request.target.offset(), request.history.ids().len() - 1);
    assert_eq!(request.history.ids().last(), Some(&request.current));
}

/// What a scripted target's caches hold is the history without its last token.
pub(crate) fn check_contents(played: &Played) {
    let history = played.request.history.ids();
    let cached = cached_ids(&played.request.target).expect("the caches can be read");
    assert_eq!(cached, history[..history.len() - 1]);
}
