//! The engine against a target whose every prediction is scripted.

mod common;

use std::rc::Rc;

use common::*;
use foretoken_sample::{RuleChoice, SamplingOptions, Seed};
use foretoken_speculate::{
    DraftPolicy, Drafter, Provenance,
    testkit::{Minimal, Pattern, Request, RowsDrafter, ScriptedDrafter, ScriptedTarget, Tracker},
};

const TOKENS: usize = 24;

fn plain(options: &SamplingOptions) -> Vec<u32> {
    let asked = Request { options: options.clone(), ..Request::greedy(&PROMPT, TOKENS, 0) };
    played(target(), None, &asked).ids
}

#[test]
fn plain_decoding_follows_the_script() {
    let done = played(target(), None, &Request::greedy(&PROMPT, TOKENS, 0));
    let mut path = PROMPT.to_vec();
    for &id in &done.ids {
        assert_eq!(id, wanted(&path));
        path.push(id);
    }
    assert_eq!(done.ids.len(), TOKENS);
    assert_eq!(done.statistics.rounds, vec![(0, 0); TOKENS]);
    check_contents(&done);
}

#[test]
fn every_pattern_and_depth_gives_the_plain_text() {
    let rules = [
        SamplingOptions::greedy(),
        SamplingOptions { rule: RuleChoice::Ratio, ..SamplingOptions::greedy() },
        SamplingOptions { seed: Seed::Fresh(5), ..SamplingOptions::greedy() },
        sampled(Seed::Fixed(3)),
    ];
    for options in rules {
        let want = plain(&options);
        for pattern in PATTERNS {
            for depth in [1, 2, 3, 4, 8, 16] {
                let asked = Request { options: options.clone(), ..Request::greedy(&PROMPT, TOKENS, depth) };
                let done = played(target(), Some(drafter(pattern)), &asked);
                assert_eq!(done.ids, want, "{pattern:?} at depth {depth}, {options:?}");
                check_contents(&done);
                let drawn = ScriptedDrafter::new(pattern, VOCABULARY, wanted).drawn();
                let done = played(target(), Some(Rc::new(drawn)), &asked);
                assert_eq!(done.ids, want, "{pattern:?} drawn at depth {depth}, {options:?}");
            }
        }
    }
}

#[test]
fn an_oracle_is_always_accepted_and_a_wrong_one_never() {
    let done = played(target(), Some(drafter(Pattern::Oracle)), &Request::greedy(&PROMPT, 20, 4));
    assert_eq!(done.statistics.rounds, [(4, 4); 4]);
    assert_eq!(
        (done.statistics.all_accepted, done.statistics.mismatches, done.statistics.deepest),
        (4, 0, 4)
    );
    let done = played(target(), Some(drafter(Pattern::Wrong)), &Request::greedy(&PROMPT, 6, 4));
    assert_eq!(done.statistics.rounds, [(4, 0), (4, 0), (3, 0), (2, 0), (1, 0), (0, 0)]);
    assert_eq!((done.statistics.all_accepted, done.statistics.mismatches), (0, 5));
}

#[test]
fn tokens_say_where_they_came_from() {
    let done = played(target(), Some(drafter(Pattern::Mix)), &Request::greedy(&PROMPT, 3, 3));
    let from: Vec<_> = done.runs[0].tokens.iter().map(|t| t.provenance).collect();
    assert_eq!(
        from,
        [
            Provenance::Drafted { drafter: "scripted", position: 0 },
            Provenance::Drafted { drafter: "scripted", position: 1 },
            Provenance::Bonus
        ]
    );
    let done = played(target(), Some(drafter(Pattern::Wrong)), &Request::greedy(&PROMPT, 2, 3));
    assert_eq!(done.runs[0].tokens[0].provenance, Provenance::Residual);
    assert_eq!(done.runs[1].tokens[0].provenance, Provenance::Plain);
}

#[test]
fn sometimes_has_rounds_without_drafts() {
    let done = played(target(), Some(drafter(Pattern::Sometimes)), &Request::greedy(&PROMPT, 8, 2));
    assert_eq!(done.statistics.rounds, [(2, 2), (0, 0), (2, 2), (0, 0)]);
}

#[test]
fn one_forward_per_round() {
    let target = target();
    let before = 2; // two prefill chunks
    let done = played(target.clone(), Some(drafter(Pattern::Mix)), &Request::greedy(&PROMPT, TOKENS, 3));
    assert_eq!(target.forwards(), before + done.runs.len());
    assert_eq!(done.statistics.extra_waits, 0);
}

#[test]
fn the_heuristic_policy_follows_acceptance() {
    let policy = DraftPolicy::Heuristic { initial: 2, max: 5 };
    let asked = Request { policy, ..Request::greedy(&PROMPT, 20, 0) };
    let done = played(target(), Some(drafter(Pattern::Oracle)), &asked);
    assert_eq!(done.statistics.rounds, [(2, 2), (4, 4), (5, 5), (5, 5)]);
    let done = played(target(), Some(drafter(Pattern::Wrong)), &Request { max_tokens: 5, ..asked });
    assert_eq!(done.statistics.rounds, [(2, 0), (1, 0), (1, 0), (1, 0), (0, 0)]);
}

#[test]
fn committed_runs_have_no_gaps_and_cover_the_history() {
    for (pattern, depth) in
        [(Pattern::Mix, 4), (Pattern::Wrong, 2), (Pattern::Oracle, 16), (Pattern::Oracle, 0)]
    {
        let tracker =
            Rc::new(Tracker::new(Rc::new(foretoken_speculate::testkit::PairDrafter::new(VOCABULARY))));
        let asked = Request::greedy(&PROMPT, TOKENS, depth);
        let done = played(target(), Some(tracker.clone()), &asked);
        let history = done.request.history.ids();
        let counts = tracker.counts();
        assert_eq!(counts.committed().as_deref(), Some(&history[..history.len() - 1]), "{pattern:?} {depth}");
        assert_eq!((counts.opened, counts.finished, counts.open()), (1, 1, 0));
        assert_eq!((counts.settled, counts.settled_with_next), (1, 1));
        let own = done.request.own.as_ref().expect("own caches");
        assert_eq!(own.offset(), done.request.target.offset());
    }
}

#[test]
fn other_rows_and_the_minimal_drafter_keep_the_text() {
    let want = plain(&SamplingOptions::greedy());
    let row: Vec<f32> = (0..VOCABULARY).map(|i| i as f32 / 3.0).collect();
    let drafters: [Rc<dyn Drafter>; 3] =
        [Rc::new(Minimal::new()), Rc::new(RowsDrafter::new(&row)), Rc::new(RowsDrafter::new(&row).block())];
    for drafter in drafters {
        let done = played(target(), Some(drafter), &Request::greedy(&PROMPT, TOKENS, 4));
        assert_eq!(done.ids, want);
    }
}

#[test]
fn a_prompt_of_one_token_offers_nothing_in_the_first_round() {
    let done = played(target(), Some(drafter(Pattern::Oracle)), &Request::greedy(&[5], 6, 4));
    assert_eq!(done.statistics.rounds, [(0, 0), (4, 4)]);
}

#[test]
fn contradicting_arguments_are_errors() {
    use foretoken_sample::Sampler;
    use foretoken_speculate::{RequestState, SpeculateError};
    let target = target();
    let sampler = |vocabulary| Sampler::new(SamplingOptions::greedy(), vocabulary).unwrap();
    let make =
        |prompt: &[u32], v| RequestState::new(target.as_ref(), None, sampler(v), prompt, &[]).map(drop);
    for (prompt, vocabulary) in [(&[][..], VOCABULARY), (&[1, 11], VOCABULARY), (&[1], 5)] {
        assert!(matches!(make(prompt, vocabulary), Err(SpeculateError::Input { .. })), "{prompt:?}");
    }
    let short = ScriptedTarget::new(VOCABULARY, wanted).context(4);
    assert!(RequestState::new(&short, None, sampler(VOCABULARY), &PROMPT, &[]).is_err());
}
