//! Random conversations against a cold run: what a request finds is what its tokens lead to.
//!
//! Every comparison is made by the engine: whenever a request begins and ends, each layer is compared
//! with a fresh one that was fed the same tokens, and the budget is checked.

use foretoken_cache::prefix::PrefixOptions;
use proptest::prelude::*;

use crate::toy::{Ask, Engine, FULL, HYB, Kind, TINY, active_memory, cpu};

/// Scripts per run, and requests per script.
const SCRIPTS: u32 = 600;
const REQUESTS: usize = 14;

/// One request. It goes on from an earlier one's tokens, cut somewhere, so that branches, repeats and
/// continuations are common.
#[derive(Debug, Clone)]
struct Turn {
    base: usize,
    cut: usize,
    added: Vec<u32>,
    boundaries: Vec<usize>,
    chunk: usize,
    cancel: Option<usize>,
    answer: Vec<u32>,
    rejected: usize,
    lag: usize,
    poison: bool,
    /// Other requests begin, run and end before this one goes on.
    wait: bool,
}

fn turn() -> impl Strategy<Value = Turn> {
    // Few different tokens, so that sequences meet by chance too.
    let tokens = |most| proptest::collection::vec(1u32..3, 0..most);
    let shape = (0usize..100, 0usize..1000, tokens(25), tokens(6));
    let course = (1usize..20, proptest::option::weighted(0.3, 0usize..4), 0usize..4, 0usize..12);
    let rest = (
        proptest::collection::vec(0usize..1000, 0..3),
        (proptest::bool::weighted(0.04), proptest::bool::weighted(0.2)),
    );
    (shape, course, rest).prop_map(|((base, cut, added, answer), course, (boundaries, (poison, wait)))| {
        let (chunk, cancel, rejected, lag) = course;
        Turn { base, cut, added, boundaries, chunk, cancel, answer, rejected, lag, poison, wait }
    })
}

impl Turn {
    fn ask(&self, earlier: &[Vec<u32>]) -> Ask {
        let base = earlier.get(self.base % (earlier.len() + 1)).map_or(&[][..], Vec::as_slice);
        // Most requests keep all of it or most.
        let keep = base.len().saturating_sub(self.cut.saturating_sub(500) % (base.len() + 1));
        let mut prompt = [&base[..keep], &self.added].concat();
        if prompt.is_empty() {
            prompt.push(1);
        }
        let boundaries = self.boundaries.iter().map(|at| at % (prompt.len() + 1)).collect();
        Ask {
            boundaries,
            prompt,
            chunk: self.chunk,
            cancel: self.cancel,
            answer: self.answer.clone(),
            rejected: self.rejected,
            lag: self.lag,
            poison: self.poison,
        }
    }
}

fn target() -> impl Strategy<Value = &'static [Kind]> {
    prop_oneof![Just(FULL), Just(TINY), Just(HYB)]
}

/// The drafter's layers and its look-ahead; or none.
fn drafter() -> impl Strategy<Value = Option<(&'static [Kind], usize)>> {
    const MIXED: &[Kind] = &[Kind::Full, Kind::Window(5), Kind::State];
    let kinds = prop_oneof![Just(FULL), Just(MIXED), Just(&[] as &[Kind])];
    proptest::option::of((kinds, 0usize..3))
}

fn options() -> impl Strategy<Value = PrefixOptions> {
    let budget = prop_oneof![Just(usize::MAX), 0usize..30_000];
    (budget, prop_oneof![Just(0), 1usize..20], 0usize..6, any::<bool>()).prop_map(
        |(budget_bytes, interval, before_end, keep_live)| PrefixOptions {
            budget_bytes,
            interval,
            before_end,
            keep_live,
            look_ahead: 0,
        },
    )
}

fn engine(kinds: &[Kind], drafter: Option<(&[Kind], usize)>, options: PrefixOptions) -> Engine {
    match drafter {
        Some((own, ahead)) => Engine::with_drafter(kinds, own, ahead, options),
        None => Engine::new(kinds, options),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: SCRIPTS, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_request_finds_is_what_its_tokens_lead_to(
        kinds in target(),
        drafter in drafter(),
        options in options(),
        turns in proptest::collection::vec(turn(), 1..REQUESTS),
    ) {
        cpu();
        let before = active_memory();
        let mut engine = engine(kinds, drafter, options);
        let (mut earlier, mut waiting) = (Vec::new(), Vec::new());
        for turn in &turns {
            let mut ask = turn.ask(&earlier);
            // A failure may take along a request that shares states with the failed one and still runs.
            ask.poison &= !turn.wait && waiting.is_empty();
            let running = engine.open(&ask);
            waiting.push(running);
            earlier.push([ask.prompt, ask.answer].concat());
            if !turn.wait {
                waiting.drain(..).rev().for_each(|running| engine.finish(running));
            }
        }
        waiting.drain(..).for_each(|running| engine.finish(running));
        engine.cache.clear();
        prop_assert_eq!((engine.cache.len(), engine.cache.bytes()), (0, 0));
        prop_assert_eq!(active_memory(), before, "every byte comes back");
    }

    #[test]
    fn full_attention_without_a_budget_reuses_every_key_ever_kept(
        ahead in 0usize..3,
        drafts in any::<bool>(),
        keep_live in any::<bool>(),
        turns in proptest::collection::vec(turn(), 1..REQUESTS),
    ) {
        cpu();
        let options = PrefixOptions { keep_live, interval: 8, ..PrefixOptions::default() };
        let mut engine = engine(FULL, drafts.then_some((FULL, ahead)), options);
        let ahead = if drafts { ahead } else { 0 };
        // What each request left: its tokens, and how many of its keys.
        let mut kept: Vec<(Vec<u32>, usize)> = Vec::new();
        for turn in &turns {
            let earlier: Vec<Vec<u32>> = kept.iter().map(|(tokens, _)| tokens.clone()).collect();
            let ask = Ask { poison: false, ..turn.ask(&earlier) };
            let most = (ask.prompt.len() - 1).min(ask.prompt.len().saturating_sub(ahead));
            let shared = kept.iter().map(|(tokens, keys)| {
                let same = tokens.iter().zip(&ask.prompt).take_while(|(a, b)| a == b).count();
                same.saturating_sub(ahead).min(*keys).min(most)
            });
            let expected = shared.max().unwrap_or(0);
            let reused = engine.serve(&ask);
            prop_assert_eq!(reused, expected);
            let full = ask.prompt.len() - 1;
            let (tokens, rows) = match ask.cancel {
                Some(chunks) => (ask.prompt, full.min(reused + chunks * ask.chunk)),
                None => ([&ask.prompt[..], &ask.answer].concat(), full + ask.answer.len()),
            };
            let keys = rows.min(tokens.len().saturating_sub(ahead));
            kept.push((tokens, keys));
        }
    }
}
