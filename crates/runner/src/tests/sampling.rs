//! Options that must not depend on how the prompt was processed or on speculation.

use std::rc::Rc;

use foretoken_model_base::Model;
use foretoken_sample::{SamplingOptions, Seed};
use foretoken_speculate::testkit::{Pattern, ScriptedDrafter, ScriptedTarget, on_cpu};

use super::*;

fn tiny() -> Rc<dyn Model> {
    Rc::from(foretoken_models::testkit::tiny(1).expect("TINY builds"))
}

#[test]
fn h32_penalties_do_not_depend_on_chunks_or_speculation() {
    on_cpu();
    let prompt = [2, 5, 7, 9];
    let sampling = SamplingOptions { repeat_penalty: 1.5, ..SamplingOptions::greedy() };
    let request = Request { max_tokens: Some(20), sampling, ..Request::greedy(prompt) };
    let model = tiny();
    let whole = hear(&mut plain(model.clone()), &request).ids;
    assert_eq!(whole.len(), 20);
    for chunk in [1, 2, 3, 512] {
        let cold = hear(&mut plain(model.clone()).with_prefill_chunk(chunk), &request);
        assert_eq!(cold.ids, whole, "chunk {chunk}");
        for pattern in [Pattern::Oracle, Pattern::Mix] {
            let drafter = by_heart(pattern, model.facts().vocabulary, prompt.len(), &whole);
            let mut runner = drafting(model.clone(), drafter, 4).with_prefill_chunk(chunk);
            assert_eq!(hear(&mut runner, &request).ids, whole, "chunk {chunk}, {pattern:?}");
        }
    }
}

#[test]
fn h32_the_whole_prompt_counts_whatever_the_chunk() {
    // Every logit is equal but for the penalty, so the answer lists what the prompt did not say.
    let sampling = SamplingOptions { presence_penalty: 5.0, repeat_last_n: -1, ..SamplingOptions::greedy() };
    for chunk in [1, 2, 3, 512] {
        on_cpu();
        let mut runner = plain(Rc::new(ScriptedTarget::constant(&[1.0; 8]))).with_prefill_chunk(chunk);
        let request =
            Request { max_tokens: Some(4), sampling: sampling.clone(), ..Request::greedy([0, 2, 4, 6]) };
        assert_eq!(hear(&mut runner, &request).ids, [1, 3, 5, 7], "chunk {chunk}");
    }
}

fn even_odds(seed: Seed, drafter: bool) -> Vec<u32> {
    on_cpu();
    let model = Rc::new(ScriptedTarget::constant(&[0.0; 16]));
    let mix = Rc::new(ScriptedDrafter::new(Pattern::Mix, 16, |tokens| tokens.len() as u32 % 16));
    let mut runner = if drafter { drafting(model, mix, 4) } else { plain(model) };
    let sampling = SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::greedy() };
    hear(&mut runner, &Request { max_tokens: Some(32), sampling, ..Request::greedy([1]) }).ids
}

#[test]
fn h33_seed_0_is_a_seed_and_speculation_keeps_it() {
    for seed in [Seed::Fixed(0), Seed::Fixed(1)] {
        let first = even_odds(seed, false);
        assert_eq!(first, even_odds(seed, false), "{seed:?} twice");
        assert_eq!(first, even_odds(seed, true), "{seed:?} with speculation");
    }
    assert_ne!(even_odds(Seed::Fixed(0), false), even_odds(Seed::Fixed(1), false));
    for drafter in [false, true] {
        assert_ne!(even_odds(Seed::Fresh(11), drafter), even_odds(Seed::Fresh(12), drafter));
    }
}

#[test]
fn a_long_answer_crosses_the_buffer_cache_limits() {
    let heard = hear(&mut drafting(Rc::new(target()), scripted(Pattern::Mix), 4), &asked(600));
    assert_eq!(heard.ids, hear(&mut plain(Rc::new(target())), &asked(600)).ids);
    assert_at_rest(&heard);
}
