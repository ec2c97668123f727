//! Drafting changes no token: plain texts, laws of sampled ones, restored prefixes.

use std::rc::Rc;

use foretoken_model_base::{BlockDraft, Model};
use foretoken_sample::{RuleChoice, Sampler, SamplingOptions, Seed};
use foretoken_speculate::{
    DraftPolicy, RequestState, make_decoder,
    testkit::{Request, first_two_tokens, prefill},
};

use super::common::{drafter, embeds, golden, play, random, read, tiny, trained};

const PROMPT: [u32; 12] = [11, 48, 85, 122, 159, 36, 73, 110, 147, 24, 61, 98];

/// Requests per law.
const REQUESTS: u64 = 120;

#[test]
fn texts_are_plain_at_every_depth_under_both_rules() {
    let model = golden("llama");
    let drafter = drafter(trained(model.as_ref()));
    for (temperature, rule) in
        [(0.0, RuleChoice::Ratio), (0.0, RuleChoice::Coupled), (0.8, RuleChoice::Coupled)]
    {
        for seed in [Seed::Fixed(1), Seed::Fixed(2)] {
            let options = SamplingOptions { temperature, seed, rule, ..SamplingOptions::greedy() };
            let asked = |depth| Request { options: options.clone(), ..Request::greedy(&PROMPT, 60, depth) };
            let plain = play(&model, None, &asked(0)).ids;
            for depth in 1..=4 {
                let done = play(&model, Some(drafter.clone()), &asked(depth));
                assert_eq!(done.ids, plain, "{rule:?} at {temperature}, {seed:?}, depth {depth}");
                let (drafted, accepted) = (done.statistics.drafted, done.statistics.accepted);
                println!("{rule:?} at {temperature}, depth {depth}: {accepted} of {drafted}");
                assert!(accepted > 0 && accepted < drafted, "depth {depth}: {accepted} of {drafted}");
            }
        }
    }
}

#[test]
fn random_heads_change_no_token_of_any_family() {
    for name in ["llama-q4", "qwen3", "gemma3", "gemma4", "qwen3_5"] {
        let model = golden(name);
        let plain = play(&model, None, &Request::greedy(&PROMPT, 24, 0)).ids;
        let drafter = drafter(random(model.as_ref(), 4, &[2, 0], 9));
        let done = play(&model, Some(drafter), &Request::greedy(&PROMPT, 24, 3));
        assert_eq!(done.ids, plain, "{name}");
        assert!(done.statistics.drafted > 0);
    }
}

#[test]
fn the_first_tokens_follow_the_targets_law() {
    for (name, model) in [("tiny", tiny()), ("llama", golden("llama"))] {
        let head: Rc<dyn BlockDraft> = match name {
            "llama" => trained(model.as_ref()),
            _ => random(model.as_ref(), 3, &[1, 2], 1),
        };
        let drafter = drafter(head);
        for rule in [RuleChoice::Ratio, RuleChoice::Coupled] {
            let options = SamplingOptions { temperature: 0.8, top_k: 6, rule, ..SamplingOptions::greedy() };
            let request = Request { options, ..Request::greedy(&[3, 50, 7], 3, 2) };
            let (fit, did) = first_two_tokens(&model, &drafter, &request, REQUESTS).unwrap();
            println!("{name}, {rule:?}: {:.2} of the bound, {}/{}", fit.share(), did.accepted, did.drafted);
            assert!(fit.holds(), "{name}, {rule:?}: {fit:?}");
            assert!(did.accepted > 0 && did.mismatches > 0, "{name}, {rule:?}: some drafts are kept");
        }
    }
}

/// Decodes after a prompt of which `known` tokens, and own rows for `own` of them, came from elsewhere.
fn warm(
    model: &Rc<dyn Model>,
    prompt: &[u32],
    known: usize,
    own: usize,
) -> (Vec<u32>, usize, Option<String>) {
    let head = trained(model.as_ref());
    let drafter = drafter(head.clone());
    let sampler = Sampler::new(SamplingOptions::greedy(), model.facts().vocabulary).unwrap();
    let mut request =
        RequestState::new(model.as_ref(), Some(drafter.as_ref()), sampler, prompt, &[]).unwrap();
    let (_, taps) = read(model.as_ref(), head.as_ref(), &mut request.target, &prompt[..known]);
    if own > 0 {
        let rows = mlx_rs::ops::indexing::TryIndexOp::try_index(&taps, (.., ..own as i32, ..)).unwrap();
        let caches = request.own.as_mut().unwrap();
        head.append(&embeds(model.as_ref(), &prompt[..own]), &rows, 0, caches).unwrap();
    }
    let policy = DraftPolicy::Constant(4);
    let mut decoder = make_decoder(model.clone(), Some(drafter), policy, &request).unwrap();
    prefill(model.as_ref(), decoder.as_mut(), &mut request).unwrap();
    let (mut ids, mut ended) = (Vec::new(), None);
    while ids.len() < 40 {
        let run = decoder.next(&mut request, 40 - ids.len()).unwrap();
        ended = ended.or(run.speculation_ended);
        ids.extend(run.tokens.iter().map(|token| token.id));
    }
    let accepted = decoder.statistics().accepted;
    decoder.finish(&mut request).unwrap();
    if ended.is_none() {
        assert_eq!(request.own.unwrap().offset(), request.target.offset(), "both rest level");
    }
    (ids, accepted, ended)
}

#[test]
fn a_restored_prefix_drafts_like_a_fresh_one() {
    let model = golden("llama");
    let prompt = [PROMPT.as_slice(), &[5, 6, 1, 44]].concat();
    let plain = play(&model, None, &Request::greedy(&prompt, 40, 0)).ids;
    let cold = play(&model, Some(drafter(trained(model.as_ref()))), &Request::greedy(&prompt, 40, 4));
    assert_eq!(cold.ids, plain);
    for known in [1, PROMPT.len(), prompt.len() - 1] {
        let (ids, accepted, ended) = warm(&model, &prompt, known, known);
        assert_eq!((ids, ended), (plain.clone(), None), "{known} tokens are known");
        assert_eq!(accepted, cold.statistics.accepted, "{known} tokens are known");
    }
}

#[test]
fn own_caches_that_lag_end_speculation_and_change_no_token() {
    let model = golden("llama");
    let plain = play(&model, None, &Request::greedy(&PROMPT, 40, 0)).ids;
    for own in [0, 3] {
        let (ids, accepted, ended) = warm(&model, &PROMPT, 7, own);
        assert_eq!((ids, accepted), (plain.clone(), 0), "{own} rows");
        assert!(ended.is_some_and(|reason| reason.contains("draft cache")), "{own} rows");
    }
}
