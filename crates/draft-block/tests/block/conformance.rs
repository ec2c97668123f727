//! The suite that every drafter runs.

use std::rc::Rc;

use foretoken_draft_block::BlockDrafter;
use foretoken_model_base::BlockDraft;
use foretoken_speculate::testkit::conformance::check;

use super::common::{drafter, golden, random, tiny, trained};

const PROMPT: [u32; 9] = [3, 50, 7, 7, 19, 2, 61, 33, 8];

#[test]
fn the_trained_head_conforms() {
    let model = golden("llama");
    let drafter = drafter(trained(model.as_ref()));
    check(model.as_ref(), drafter.as_ref(), &PROMPT).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn random_heads_conform_at_every_block_size() {
    let model = tiny();
    for (block, taps, flush) in [(1, vec![0], 3), (3, vec![3, 1], 1), (6, vec![0, 1, 2, 3], 256)] {
        let head = random(model.as_ref(), block, &taps, 3);
        let drafter = BlockDrafter::with_flush(head as Rc<dyn BlockDraft>, flush);
        check(model.as_ref(), &drafter, &PROMPT).unwrap_or_else(|e| panic!("{block}, {taps:?}: {e}"));
    }
}

#[test]
fn random_heads_conform_on_models_that_forget() {
    for name in ["gemma3", "qwen3_5"] {
        let model = golden(name);
        let drafter = drafter(random(model.as_ref(), 4, &[1, 3], 5));
        check(model.as_ref(), drafter.as_ref(), &PROMPT).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
