//! How often the trained head is right, on texts that the target sampled and no training saw.
//!
//! Greedy texts of so small a target run in circles, which any head learns; these do not.

use std::rc::Rc;

use foretoken_model_base::{BlockDraft, Model};
use foretoken_sample::{RuleChoice, SamplingOptions, Seed, SplitMix64};
use foretoken_speculate::testkit::Request;
use mlx_rs::ops::indexing::TryIndexOp;

use super::common::{Zeroed, best, drafter, embeds, golden, play, read, trained};

/// Tokens of a random prompt, and of its continuation.
const PROMPT: usize = 8;
const LENGTH: usize = 72;
/// Texts for each temperature, and the distance of the slots that are looked at.
const TEXTS: u64 = 20;
const STRIDE: usize = 4;

/// What the head must reach in its first position, and lead by over itself without tapped states.
const ENOUGH: f64 = 0.40;
const LEAD: f64 = 0.20;
/// The lead under shared noise, which accepts some of anything that is not sure of itself.
const SHARED_LEAD: f64 = 0.10;

fn prompt(seed: u64, vocabulary: usize) -> Vec<u32> {
    let mut random = SplitMix64::new(seed + 990_000);
    (0..PROMPT).map(|_| (random.next_u64() % vocabulary as u64) as u32).collect()
}

fn sampled(temperature: f32, seed: u64, prompt: &[u32], depth: usize) -> Request {
    let (rule, seed) = (RuleChoice::Coupled, Seed::Fixed(seed + 770_000));
    let options = SamplingOptions { temperature, seed, rule, ..SamplingOptions::greedy() };
    Request { options, ..Request::greedy(prompt, LENGTH - PROMPT, depth) }
}

/// How many first drafts are the target's best token, of how many.
fn right(model: &dyn Model, head: &dyn BlockDraft, text: &[u32]) -> (usize, usize) {
    let (logits, taps) = read(model, head, &mut model.make_caches(), text);
    let (wanted, mut own) = (best(&logits), head.make_caches());
    let (mut right, mut asked, mut written) = (0, 0, 0);
    for at in (PROMPT..text.len()).step_by(STRIDE) {
        let fresh = taps.try_index((.., written as i32..at as i32, ..)).unwrap();
        head.append(&embeds(model, &text[written..at]), &fresh, written, &mut own).unwrap();
        let states = head.draft_block(&embeds(model, &text[at..=at]), at, &mut own).unwrap();
        own.rewind(at).unwrap();
        let first = best(&head.unembed(&states.try_index((.., ..1, ..)).unwrap(), model).unwrap())[0];
        (right, asked, written) = (right + usize::from(first == wanted[at]), asked + 1, at);
    }
    (right, asked)
}

#[test]
fn first_drafts_are_the_targets_best_tokens() {
    let model = golden("llama");
    let head = trained(model.as_ref());
    for temperature in [0.7, 1.0] {
        let heads: [Rc<dyn BlockDraft>; 2] = [head.clone(), Rc::new(Zeroed(head.clone()))];
        let mut sums = [(0, 0); 2];
        for seed in 0..TEXTS {
            let prompt = prompt(seed, model.facts().vocabulary);
            let text = play(&model, None, &sampled(temperature, seed, &prompt, 0)).request.history;
            for (sum, head) in sums.iter_mut().zip(&heads) {
                let (right, asked) = right(model.as_ref(), head.as_ref(), text.ids());
                *sum = (sum.0 + right, sum.1 + asked);
            }
        }
        let [whole, zeroed] = sums.map(|(right, asked)| right as f64 / asked as f64);
        println!("temperature {temperature}: {whole:.3} of {}, taps zeroed {zeroed:.3}", sums[0].1);
        assert!(whole >= ENOUGH, "temperature {temperature}: {whole}");
        assert!(whole >= zeroed + LEAD, "temperature {temperature}: {whole} and {zeroed}");
    }
}

/// The same in decoding with shared noise: what the engine keeps of proposals of one token.
#[test]
fn first_drafts_are_accepted_while_sampling() {
    let model = golden("llama");
    let head = trained(model.as_ref());
    let drafters = [drafter(head.clone()), drafter(Rc::new(Zeroed(head)))];
    let [whole, zeroed] = drafters.map(|drafter| {
        let (mut accepted, mut drafted) = (0, 0);
        for seed in 0..8 {
            let prompt = prompt(seed, model.facts().vocabulary);
            let asked = sampled(1.0, seed, &prompt, 1);
            let statistics = play(&model, Some(drafter.clone()), &asked).statistics;
            (accepted, drafted) = (accepted + statistics.accepted, drafted + statistics.drafted);
        }
        println!("{accepted} of {drafted}");
        accepted as f64 / drafted as f64
    });
    assert!(whole >= ENOUGH && whole >= zeroed + SHARED_LEAD, "{whole} and {zeroed}");
}
