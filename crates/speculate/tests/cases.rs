//! Faults that other engines really had, as tests of this one. The names are those of the case list.

mod common;

use std::{path::Path, rc::Rc};

use common::*;
use foretoken_model_base::{Batch, LoadOptions, Model};
use foretoken_sample::{Sampler, SamplingOptions, Seed};
use foretoken_speculate::{
    DraftPolicy, Drafter, Provenance, RequestState, make_decoder,
    testkit::{Pattern, Request, RowsDrafter, ScriptedDrafter, ScriptedTarget, on_cpu, play, prefill},
};

/// Prompts for the tiny network, vocabulary 64.
const TINY_PROMPTS: [&[u32]; 3] = [&[2, 5, 7, 9], &[11, 42, 3, 3, 60, 17, 8, 1, 29], &[63, 0, 31]];

/// Below this gap between the two best logits another order of summation may choose the other token.
const NEAR_TIE: f32 = 1e-3;

fn tiny() -> Rc<dyn Model> {
    on_cpu();
    Rc::from(foretoken_models::testkit::tiny(7).expect("a tiny model"))
}

/// A 4-bit model whose weights stay packed, so that quantized kernels compute it.
fn packed() -> Rc<dyn Model> {
    on_cpu();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/llama-q4");
    let options = LoadOptions { expand: false, ..LoadOptions::cpu() };
    Rc::from(foretoken_models::load(Path::new(path), options).expect("golden/llama-q4 loads").model)
}

fn vocabulary(model: &Rc<dyn Model>) -> usize {
    model.facts().vocabulary
}

type Tried<T> = Result<T, Box<dyn std::error::Error>>;

/// The gap between the two best logits after `tokens`.
fn top_two_gap(model: &dyn Model, tokens: &[u32]) -> Tried<f32> {
    let mut caches = model.make_caches();
    let hidden = model.forward(&Batch::from_ids(tokens, 0)?, &mut [&mut caches])?;
    let logits: Vec<f32> = model.unembed(&hidden.last)?.contiguous()?.to_vec_exact()?;
    let mut row = logits[(tokens.len() - 1) * model.facts().vocabulary..].to_vec();
    row.sort_by(|a, b| b.total_cmp(a));
    Ok(row[0] - row[1])
}

/// Equal ids, or a first difference where the target's two best tokens were all but equal.
fn assert_same(model: &dyn Model, prompt: &[u32], got: &[u32], want: &[u32], what: &str) {
    let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) else {
        return assert_eq!(got.len(), want.len(), "{what}");
    };
    let tokens: Vec<u32> = prompt.iter().chain(&want[..at]).copied().collect();
    let gap = top_two_gap(model, &tokens).expect("logits");
    println!("{what}: first difference at {at}, gap between the two best logits {gap:.3e}");
    assert!(gap < NEAR_TIE, "{what}: {got:?} instead of {want:?}");
}

#[test]
fn h12_greedy_speculation_gives_the_plain_text() {
    for model in [tiny(), packed()] {
        speculation_gives_the_plain_text(&model);
    }
}

fn speculation_gives_the_plain_text(model: &Rc<dyn Model>) {
    const TOKENS: usize = 200;
    for prompt in TINY_PROMPTS {
        let plain = played(model.clone(), None, &Request::greedy(prompt, TOKENS + 16, 0)).ids;
        for pattern in PATTERNS {
            for depth in 1..=8 {
                let drafter = planned(pattern, vocabulary(model), prompt.len(), &plain);
                let done = played(model.clone(), Some(drafter), &Request::greedy(prompt, TOKENS, depth));
                let what = format!("{} tokens, {pattern:?} at depth {depth}", vocabulary(model));
                assert_same(model.as_ref(), prompt, &done.ids, &plain[..TOKENS], &what);
            }
        }
    }
}

const CONST: [f32; 5] = [2.0, 1.5, 1.0, 0.0, -100.0];

/// The prompt is a token outside the four of the case.
fn penalised(repeat_last_n: i32, depth: usize) -> Request {
    let options = SamplingOptions { presence_penalty: 5.0, repeat_last_n, ..SamplingOptions::greedy() };
    Request { options, ..Request::greedy(&[4, 4], 8, depth) }
}

#[test]
fn h15_each_draft_sees_the_drafts_before_it() {
    on_cpu();
    for (window, want) in [(-1, [0, 1, 2, 3, 0, 0, 0, 0]), (1, [0, 1, 0, 1, 0, 1, 0, 1])] {
        let target = || Rc::new(ScriptedTarget::constant(&CONST));
        assert_eq!(played(target(), None, &penalised(window, 0)).ids, want, "plain, window {window}");
        let zeros: Rc<dyn Drafter> = Rc::new(ScriptedDrafter::new(Pattern::Oracle, 5, |_| 0));
        assert_eq!(played(target(), Some(zeros), &penalised(window, 4)).ids, want, "zeros, window {window}");
        for pattern in PATTERNS {
            let drafter = planned(pattern, 5, 2, &want);
            let done = played(target(), Some(drafter), &penalised(window, 4));
            assert_eq!(done.ids, want, "{pattern:?}, window {window}");
        }
        // Drafts drawn from the target's own logits are penalised like the target's rows.
        let done = played(target(), Some(Rc::new(RowsDrafter::new(&CONST))), &penalised(window, 4));
        assert_eq!(
            (done.ids.as_slice(), done.statistics.rounds.as_slice()),
            (&want[..], &[(4, 4), (2, 2)][..])
        );
        // A block sees the committed history alone.
        let done = played(target(), Some(Rc::new(RowsDrafter::new(&CONST).block())), &penalised(window, 4));
        assert_eq!((done.ids.as_slice(), done.statistics.rounds[0]), (&want[..], (4, 1)));
    }
}

#[test]
fn h17_an_end_token_inside_a_run_stops_the_output() {
    let model = tiny();
    let mut checked = 0;
    for prompt in TINY_PROMPTS {
        let plain = played(model.clone(), None, &Request::greedy(prompt, 56, 0)).ids;
        let Some(k) = (9..40).find(|&k| !plain[..k].contains(&plain[k])) else {
            continue;
        };
        checked += 1;
        for depth in 1..=8 {
            let drafter = planned(Pattern::Oracle, vocabulary(&model), prompt.len(), &plain);
            let asked = Request { ends: vec![plain[k]], ..Request::greedy(prompt, 40, depth) };
            let done = played(model.clone(), Some(drafter), &asked);
            assert_eq!(done.ids, plain[..=k], "depth {depth}");
            let last = done.runs.last().expect("a run");
            assert_eq!(last.tokens.last().map(|t| t.id), Some(plain[k]));
            // `accepted` counts the end token when it was a draft.
            let drafted = last.tokens.iter().filter(|t| matches!(t.provenance, Provenance::Drafted { .. }));
            assert_eq!(last.accepted, drafted.count());
        }
    }
    assert!(checked > 0, "no prompt whose plain text has a new token after the ninth");
}

#[test]
fn h17_the_end_tokens_own_state_stays_uncommitted() {
    let want = played(target(), None, &Request::greedy(&PROMPT, 24, 0)).ids;
    for (k, depth) in (1..12).flat_map(|k| (1..=8).map(move |depth| (k, depth))) {
        let end = want[k];
        let first = want.iter().position(|&id| id == end).expect("it occurs");
        let asked = Request { ends: vec![end], ..Request::greedy(&PROMPT, 24, depth) };
        for pattern in PATTERNS {
            let done = played(target(), Some(drafter(pattern)), &asked);
            assert_eq!(done.ids, want[..=first]);
            check_contents(&done);
        }
        let done = played(target(), None, &asked);
        assert_eq!(done.ids, want[..=first]);
        check_contents(&done);
    }
}

#[test]
fn h18_the_budget_is_what_is_delivered() {
    let want = played(target(), None, &Request::greedy(&PROMPT, 12, 0)).ids;
    for max_tokens in 1..=12 {
        for pattern in PATTERNS {
            let done = played(target(), Some(drafter(pattern)), &Request::greedy(&PROMPT, max_tokens, 4));
            assert_eq!(done.ids, want[..max_tokens], "{pattern:?}");
            let recorded = done.request.history.ids().len() - done.request.prompt_tokens;
            assert_eq!(recorded, max_tokens);
        }
        // With log probabilities the list is as long.
        let options = SamplingOptions { logprobs: Some(2), ..SamplingOptions::greedy() };
        let asked = Request { options, ..Request::greedy(&PROMPT, max_tokens, 4) };
        let done = played(target(), Some(drafter(Pattern::Oracle)), &asked);
        let listed = done.runs.iter().flat_map(|r| &r.tokens).filter(|t| t.logprobs.is_some()).count();
        assert_eq!((listed, done.ids.as_slice()), (max_tokens, &want[..max_tokens]));
    }
}

#[test]
fn h19_leaving_after_any_run_leaves_history_and_caches_level() {
    let target = target();
    let want = played(target.clone(), None, &Request::greedy(&PROMPT, 20, 0)).ids;
    for (pattern, depth) in [(Pattern::Oracle, 5), (Pattern::Mix, 5), (Pattern::Oracle, 0)] {
        for runs in 0..=4 {
            let drafter = drafter(pattern);
            let sampler = Sampler::new(SamplingOptions::greedy(), VOCABULARY).unwrap();
            let mut request =
                RequestState::new(target.as_ref(), Some(drafter.as_ref()), sampler, &PROMPT, &[]).unwrap();
            let policy = DraftPolicy::Constant(depth);
            let mut decoder = make_decoder(target.clone(), Some(drafter.clone()), policy, &request).unwrap();
            prefill(target.as_ref(), decoder.as_mut(), &mut request).unwrap();
            let mut produced = 0;
            for _ in 0..runs {
                produced += decoder.next(&mut request, 20 - produced).unwrap().tokens.len();
            }
            decoder.finish(&mut request).unwrap();
            assert_eq!(request.history.ids().len(), PROMPT.len() + produced);
            assert_eq!(request.target.offset(), request.history.ids().len() - 1);
            request.target.level().unwrap();
            let again = played(target.clone(), Some(drafter), &Request::greedy(&PROMPT, 20, depth));
            assert_eq!(again.ids, want);
        }
    }
}

#[test]
fn h20_drafts_stop_at_the_context_limit() {
    on_cpu();
    let prompt: Vec<u32> = (0..28).map(|i| i % 3 + 1).collect();
    let next = |tokens: &[u32]| tokens.len() as u32 % 3 + 1;
    for depth in [0, 1, 8] {
        let target = Rc::new(ScriptedTarget::new(VOCABULARY, next).context(32));
        let drafter: Rc<dyn Drafter> = Rc::new(ScriptedDrafter::new(Pattern::Oracle, VOCABULARY, next));
        // Even a decode loop that asks for more must not be led past the context.
        let done = play(target.clone(), Some(drafter), &Request::greedy(&prompt, 4, depth)).unwrap();
        assert_eq!(done.ids, [2, 3, 1, 2]);
        assert!(target.largest_position() < Some(32), "depth {depth}");
        let drafter: Rc<dyn Drafter> = Rc::new(ScriptedDrafter::new(Pattern::Oracle, VOCABULARY, next));
        let asked = Request { ends: vec![9], ..Request::greedy(&prompt, 5, depth) };
        play(target.clone(), Some(drafter), &asked).unwrap();
        assert_eq!(target.largest_position(), Some(31), "depth {depth}");
    }
}

/// Decodes with a prefill in chunks of the given size.
fn chunked(
    model: &Rc<dyn Model>,
    drafter: Option<Rc<dyn Drafter>>,
    asked: &Request,
    chunk: usize,
) -> Tried<Vec<u32>> {
    let sampler = Sampler::new(asked.options.clone(), vocabulary(model))?;
    let mut request = RequestState::new(model.as_ref(), drafter.as_deref(), sampler, &asked.prompt, &[])?;
    let mut decoder = make_decoder(model.clone(), drafter, asked.policy, &request)?;
    let mut slot = 0;
    for ids in asked.prompt[..asked.prompt.len() - 1].chunks(chunk) {
        let batch = Batch::from_ids(ids, slot)?;
        let hidden = model.forward(&batch, &mut [&mut request.target])?;
        decoder.prefilled(&mut request, ids, &hidden.aux, slot)?;
        slot += ids.len();
    }
    let mut ids = Vec::new();
    while ids.len() < asked.max_tokens {
        let run = decoder.next(&mut request, asked.max_tokens - ids.len())?;
        ids.extend(run.tokens.iter().map(|t| t.id));
    }
    decoder.finish(&mut request)?;
    Ok(ids)
}

#[test]
fn h32_history_does_not_depend_on_the_prefill() {
    let model = tiny();
    let options = SamplingOptions { repeat_penalty: 1.5, ..SamplingOptions::greedy() };
    let asked = Request { options, ..Request::greedy(&[2, 5, 7, 9], 20, 0) };
    let want = chunked(&model, None, &asked, 512).unwrap();
    for chunk in [1, 2, 3, 512] {
        assert_eq!(chunked(&model, None, &asked, chunk).unwrap(), want, "chunks of {chunk}");
        for pattern in PATTERNS {
            let drafter = planned(pattern, vocabulary(&model), asked.prompt.len(), &want);
            let asked = Request { policy: DraftPolicy::Constant(4), ..asked.clone() };
            assert_eq!(
                chunked(&model, Some(drafter), &asked, chunk).unwrap(),
                want,
                "{pattern:?}, chunks of {chunk}"
            );
        }
    }
}

#[test]
fn h33_seeds_reproduce_with_and_without_speculation() {
    on_cpu();
    const TOKENS: usize = 32;
    let target = || Rc::new(ScriptedTarget::constant(&[0.0; 16]));
    let asked = |seed, depth| {
        let options = SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::greedy() };
        Request { options, ..Request::greedy(&[1, 2], TOKENS, depth) }
    };
    let plain = |seed| played(target(), None, &asked(seed, 0)).ids;
    let (zero, one) = (plain(Seed::Fixed(0)), plain(Seed::Fixed(1)));
    assert_eq!((&zero, &one), (&plain(Seed::Fixed(0)), &plain(Seed::Fixed(1))));
    assert_ne!(zero, one);
    assert_ne!(plain(Seed::Fresh(10)), plain(Seed::Fresh(11)));
    for (seed, want) in [(0, &zero), (1, &one)] {
        for depth in 1..=4 {
            let mix = planned(Pattern::Mix, 16, 2, want);
            let row: Vec<f32> = (0..16).map(|i| i as f32 / 8.0).collect();
            for drafter in [mix, Rc::new(RowsDrafter::new(&row)), Rc::new(RowsDrafter::new(&row).block())] {
                let done = played(target(), Some(drafter), &asked(Seed::Fixed(seed), depth));
                assert_eq!(&done.ids, want, "seed {seed} at depth {depth}");
            }
        }
    }
    let unseeded = |seed| {
        let drafter = planned(Pattern::Mix, 16, 2, &zero);
        played(target(), Some(drafter), &asked(Seed::Fresh(seed), 4)).ids
    };
    assert_ne!(unseeded(20), unseeded(21));
}

#[test]
fn h33_a_seeded_text_of_a_network_does_not_depend_on_the_drafter() {
    const TOKENS: usize = 40;
    let model = tiny();
    let options = SamplingOptions { temperature: 0.8, top_p: 0.95, ..sampled(Seed::Fixed(42)) };
    let prompt = TINY_PROMPTS[1];
    let asked = |depth, max| Request { options: options.clone(), ..Request::greedy(prompt, max, depth) };
    let plain = played(model.clone(), None, &asked(0, TOKENS + 16)).ids;
    let row: Vec<f32> = (0..64).map(|i| (i % 7) as f32 / 2.0).collect();
    for depth in [1, 2, 4, 8] {
        let drafters: [Rc<dyn Drafter>; 3] = [
            planned(Pattern::Mix, 64, prompt.len(), &plain),
            planned(Pattern::Oracle, 64, prompt.len(), &plain),
            Rc::new(RowsDrafter::new(&row)),
        ];
        for drafter in drafters {
            let done = played(model.clone(), Some(drafter), &asked(depth, TOKENS));
            assert_eq!(done.ids, plain[..TOKENS], "depth {depth}");
        }
    }
}
